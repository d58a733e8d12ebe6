//! Whether a message is under way between the processes of a machine: the first process asks all
//! processes in rounds how many messages they have sent and received.
//!
//! If the messages received in one round are as many as the messages sent in the next one, then
//! none was under way between the rounds, and none was sent since. A message that was received but
//! not handled yet is in the first round's number. What its receiver sends in response is only in
//! the second round's.
//!
//! **Each pair of processes is counted by itself.** For honest processes the sums would do, since
//! no pair has received more than was sent. But a process that lies about its own messages could
//! make a sum right while a message of two others is under way. So it can hide only messages that
//! it has sent or received itself.
//!
//! Two processes that have lost each other have lost messages. So numbers only count if all
//! processes know of the same ends. Messages to and from processes that have ended are left out,
//! and so are those of the counting itself.
//!
//! Source: Mattern, "Algorithms for distributed termination detection" (Distributed Computing,
//! 1987), section 5: the four counters, here for each pair.

use crate::moves::RankSet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use upcall_message::Rank;

/// What one process has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Count {
    /// Whether nothing but a message makes this process do something.
    pub(crate) all_wait: bool,
    /// The processes that have ended, as far as this one knows.
    pub(crate) lost: RankSet,
    /// The other processes with which it has exchanged messages.
    pub(crate) peers: Vec<PeerCount>,
}

/// Messages that a process has exchanged with another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerCount {
    pub(crate) rank: Rank,
    pub(crate) sent: u64,
    pub(crate) heard: u64,
}

/// What has become of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundResult {
    /// Processes have not answered yet.
    Open,
    /// A process does not wait, or this is the first round in which all do.
    NotYet,
    /// A message of this pair, sender and receiver, may be under way. `None`: this process has sent
    /// some since.
    UnderWay(Option<(Rank, Rank)>),
    /// None is under way.
    Quiet,
}

/// Numbers of messages of pairs, sender and receiver. Pairs without messages are left out.
type PairCounts = BTreeMap<(Rank, Rank), u64>;

/// The rounds, in the first process.
#[derive(Debug, Default)]
pub(crate) struct CountRounds {
    /// The processes that have not answered.
    missing: RankSet,
    /// What this process had counted when the round began.
    own: Count,
    all_wait: bool,
    sent: PairCounts,
    heard: PairCounts,
    /// What was received as of the round before, if all waited then.
    heard_before: Option<PairCounts>,
}

impl CountRounds {
    /// Begins a round, in which these other processes are asked.
    pub(crate) fn begin(&mut self, own: Count, missing: RankSet) {
        let heard = std::mem::take(&mut self.heard);
        self.heard_before = self.all_wait.then_some(heard);
        (self.missing, self.all_wait, self.sent) = (missing, true, PairCounts::new());
        self.take(0, &own);
        self.own = own;
    }

    /// The processes that have not answered.
    pub(crate) fn missing(&self) -> RankSet {
        self.missing
    }

    /// Adds what a process has counted, unless it is not asked, or has answered.
    pub(crate) fn add(&mut self, from: Rank, count: &Count) {
        if self.missing.contains(from) {
            self.missing = self.missing.without(RankSet::from(from..from + 1));
            self.take(from, count);
        }
    }

    fn take(&mut self, from: Rank, count: &Count) {
        // The own count comes first.
        let lost = if from == 0 { count.lost } else { self.own.lost };
        self.all_wait &= count.all_wait && count.lost == lost;
        // What it names twice, or what no process has, makes no message of others look received.
        for PeerCount { rank, sent, heard } in count.peers.iter().take(RankSet::MOST).copied() {
            let add = |all: &mut PairCounts, pair, number: u64| {
                if number > 0 {
                    all.insert(pair, number);
                }
            };
            add(&mut self.sent, (from, rank), sent);
            add(&mut self.heard, (rank, from), heard);
        }
    }

    /// The result of the round, with what this process has counted now. What it had received when
    /// the round began, it may have handled after that.
    pub(crate) fn result(&self, own: &Count) -> RoundResult {
        if !self.missing.is_empty() {
            return RoundResult::Open;
        }
        let Some(before) = self.heard_before.as_ref().filter(|_| self.all_wait && own.all_wait)
        else {
            return RoundResult::NotYet;
        };
        if !own.has_sent_as_much_as(&self.own) {
            return RoundResult::UnderWay(None);
        }
        let differs = |(pair, _): &(&(Rank, Rank), &u64)| before.get(pair) != self.sent.get(pair);
        let pair = self.sent.iter().find(differs).or_else(|| before.iter().find(differs));
        pair.map_or(RoundResult::Quiet, |(pair, _)| RoundResult::UnderWay(Some(*pair)))
    }

    /// Returns `true` if all have answered in this round, and all wait.
    pub(crate) fn do_all_wait(&self, own: &Count) -> bool {
        self.missing.is_empty()
            && self.all_wait
            && own.all_wait
            && own.has_sent_as_much_as(&self.own)
    }
}

impl Count {
    fn has_sent_as_much_as(&self, other: &Self) -> bool {
        let sent = |one: &Self| one.peers.iter().map(|peer| peer.sent).sum::<u64>();
        sent(self) == sent(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(peers: &[(Rank, u64, u64)]) -> Count {
        let peer = |(rank, sent, heard): &(Rank, u64, u64)| PeerCount {
            rank: *rank,
            sent: *sent,
            heard: *heard,
        };
        let (all_wait, lost) = (true, RankSet::default());
        Count { all_wait, lost, peers: peers.iter().map(peer).collect() }
    }

    /// The result of two rounds with the same counts of three processes.
    fn twice(all: [&[(Rank, u64, u64)]; 3]) -> RoundResult {
        let [own, one, two] = all.map(count);
        let mut rounds = CountRounds::default();
        for expected in [Some(RoundResult::NotYet), None] {
            rounds.begin(own.clone(), RankSet::from(1..3));
            assert_eq!(rounds.result(&own), RoundResult::Open);
            rounds.add(1, &one);
            rounds.add(2, &two);
            assert!(expected.is_none_or(|expected| rounds.result(&own) == expected));
        }
        rounds.result(&own)
    }

    #[test]
    fn a_process_that_lies_hides_no_message_of_two_others() {
        assert_eq!(twice([&[(1, 1, 0)], &[(0, 0, 1)], &[]]), RoundResult::Quiet);
        // A message from 0 to 1 is under way, and process 2 makes up for it.
        let under_way = RoundResult::UnderWay(Some((0, 1)));
        for lie in [&[(0, 0, 1)][..], &[(1, 0, 1)], &[(2, 0, 1)], &[(0, u64::MAX, 0)]] {
            let result = twice([&[(1, 1, 0)], &[], lie]);
            assert!(matches!(result, RoundResult::UnderWay(Some(_))), "{lie:?}: {result:?}");
            assert!(result == under_way || lie[0].1 > 0, "{lie:?}: {result:?}");
        }
        // What it has sent itself it may hide.
        assert_eq!(twice([&[], &[], &[(1, 0, 0)]]), RoundResult::Quiet);
    }

    #[test]
    fn a_message_that_this_process_sends_after_the_question_is_under_way() {
        let (before, after) = (count(&[(1, 1, 0)]), count(&[(1, 2, 0)]));
        let mut rounds = CountRounds::default();
        for _ in 0..2 {
            rounds.begin(before.clone(), RankSet::from(1..2));
            rounds.add(1, &count(&[(0, 0, 1)]));
        }
        assert_eq!(rounds.result(&before), RoundResult::Quiet);
        assert_eq!(rounds.result(&after), RoundResult::UnderWay(None));
        assert!(rounds.do_all_wait(&before) && !rounds.do_all_wait(&after));
        // A process that does not wait makes two further rounds necessary.
        rounds.begin(before.clone(), RankSet::from(1..2));
        rounds.add(1, &Count { all_wait: false, ..count(&[(0, 0, 1)]) });
        assert_eq!(rounds.result(&before), RoundResult::NotYet);
        rounds.begin(before.clone(), RankSet::default());
        assert_eq!(rounds.result(&before), RoundResult::NotYet);
        // A process that knows of another end does, too.
        let other = Count { lost: RankSet::from(3..4), ..count(&[(0, 0, 1)]) };
        rounds.begin(before.clone(), RankSet::from(1..2));
        rounds.add(1, &other);
        assert_eq!(rounds.result(&before), RoundResult::NotYet);
    }
}
