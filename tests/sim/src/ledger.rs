//! What the messages promise, watched at every step.
//!
//! * A message that is taken is the next message launched by its sender to its receiver, whole
//!   ([`Ledger::taken`]). So none is lost, doubled, or out of order.
//! * No domain falls asleep while a message waits for it, and none is left asleep by a sender that
//!   has checked whether to ring. Between launch and that check the sender is responsible for the
//!   ring: a sender that is stopped there leaves its receiver asleep for as long as it is stopped
//!   ([`Ledger::check_sleeper`], [`Ledger::looked`]).
//! * No domain buffers more than its share, apart from the first segment of each pair
//!   ([`Ledger::check_share`]).
//! * A launched message is taken at last, also if its sender has died since ([`Ledger::stranded`]).
//!   If a sender died while it launched a message, that message may have been launched.

use crate::Rank;
use crate::dice::mixed;
use crate::state::{Domain, State};
use std::collections::VecDeque;

/// A message, as it was launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its number, counted from the first message of its sender to its receiver.
    pub number: u64,
    /// Its length, in bytes.
    pub len: usize,
}

impl Message {
    /// The handler that it names.
    pub fn handler(self) -> u16 {
        self.number as u16
    }

    /// A word of its contents.
    pub fn word(self, from: Rank, to: Rank, at: usize) -> u64 {
        mixed(self.number << 24 | (from << 20 | to << 16 | at) as u64)
    }
}

/// A sender and a receiver.
#[derive(Clone, Debug, Default)]
struct Pair {
    /// Messages launched and not taken.
    waiting: VecDeque<Message>,
    /// Whether the last of those is still being launched.
    launching: bool,
    /// Whether the sender has yet to check whether to ring.
    owes: bool,
    /// Whether the sender died during a launch.
    torn: bool,
    sent: u64,
}

/// Counts of what a run has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "counts of what their names say")]
pub struct Summary {
    pub steps: u64,
    pub launched: u64,
    pub taken: u64,
    pub drafts_dropped: u64,
    pub refused: u64,
    pub buffered: u64,
    pub diverts: u64,
    pub home: u64,
    pub sleeps: u64,
    pub rings: u64,
    pub held_up: u64,
    pub stops: u64,
    pub stops_for_ever: u64,
    pub deaths: u64,
    pub leaves: u64,
    pub without_memory: u64,
    pub stopped: u64,
    /// Number of messages that were taken by senders while they waited for room.
    pub meanwhile: u64,
}

impl Summary {
    /// The sums of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            steps: self.steps + other.steps,
            launched: self.launched + other.launched,
            taken: self.taken + other.taken,
            drafts_dropped: self.drafts_dropped + other.drafts_dropped,
            refused: self.refused + other.refused,
            buffered: self.buffered + other.buffered,
            diverts: self.diverts + other.diverts,
            home: self.home + other.home,
            sleeps: self.sleeps + other.sleeps,
            rings: self.rings + other.rings,
            held_up: self.held_up + other.held_up,
            stops: self.stops + other.stops,
            stops_for_ever: self.stops_for_ever + other.stops_for_ever,
            deaths: self.deaths + other.deaths,
            leaves: self.leaves + other.leaves,
            without_memory: self.without_memory + other.without_memory,
            stopped: self.stopped + other.stopped,
            meanwhile: self.meanwhile + other.meanwhile,
        }
    }
}

/// The record of all messages. See the module.
#[derive(Debug)]
pub struct Ledger {
    count: usize,
    pairs: Vec<Pair>,
    /// The counts of the run.
    pub summary: Summary,
}

impl Ledger {
    /// Creates a ledger for `count` domains.
    pub fn new(count: usize) -> Self {
        Self { count, pairs: vec![Pair::default(); count * count], summary: Summary::default() }
    }

    fn pair(&mut self, from: Rank, to: Rank) -> &mut Pair {
        &mut self.pairs[from * self.count + to]
    }

    fn seen(&self, from: Rank, to: Rank) -> &Pair {
        &self.pairs[from * self.count + to]
    }

    /// The next message of `from` to `to`, with this length.
    pub fn next(&self, from: Rank, to: Rank, len: usize) -> Message {
        Message { number: self.seen(from, to).sent, len }
    }

    /// Records that a message is about to be launched.
    pub fn launches(&mut self, from: Rank, to: Rank, message: Message) {
        let pair = self.pair(from, to);
        pair.sent += 1;
        pair.waiting.push_back(message);
        (pair.launching, pair.owes) = (true, true);
    }

    /// Records that the message was launched.
    pub fn launched(&mut self, from: Rank, to: Rank) {
        self.pair(from, to).launching = false;
        self.summary.launched += 1;
    }

    /// Records that the sender has checked whether to ring, and has rung if needed.
    ///
    /// # Errors
    /// If the receiver sleeps on.
    pub fn looked(state: &mut State, from: Rank, to: Rank) -> Result<(), String> {
        state.ledger.pair(from, to).owes = false;
        let left = state.domains[to].sleeps_on() && !state.ledger.seen(from, to).waiting.is_empty();
        if left && !state.is_being_roused(to) {
            return Err(format!("domain {to} sleeps, a message waits for it, and no sender rings"));
        }
        Ok(())
    }

    /// Returns why a domain must not sleep now, if it must not.
    pub fn check_sleeper(state: &State, rank: Rank) -> Option<String> {
        if !state.domains[rank].sleeps_on() || state.is_being_roused(rank) {
            return None;
        }
        let waits = |from: &Rank| {
            let pair = state.ledger.seen(*from, rank);
            !pair.owes && pair.waiting.len() > usize::from(pair.torn)
        };
        let from = (0..state.ledger.count).find(waits)?;
        Some(format!(
            "domain {rank} falls asleep, though a message of domain {from} waits, and no sender \
            rings"
        ))
    }

    /// Returns `true` if all that was launched is taken.
    pub fn is_settled(&self, from: Rank, to: Rank) -> bool {
        self.seen(from, to).waiting.is_empty()
    }

    /// Checks a sender that has diverted, for a message of at most `len` bytes, in segments of
    /// `segment` bytes. Returns why it must not have, if so. `all` of its segments were not left
    /// before, `held` of those by this receiver.
    pub fn check_share(share: u64, all: u64, held: u64, segment: u64, len: u64) -> Option<String> {
        let wants = all * segment + len.max(segment);
        (held > 0 && wants > share).then(|| {
            format!(
                "buffers {wants} bytes, {all} segments of {segment} before, with a share of {share}"
            )
        })
    }

    /// Records that a receiver has found this message.
    ///
    /// # Errors
    /// If it is not the next message.
    pub fn taken(
        &mut self,
        from: Rank,
        to: Rank,
        handler: u16,
        len: usize,
    ) -> Result<Message, String> {
        let Some(message) = self.pair(from, to).waiting.pop_front() else {
            return Err(format!(
                "a message of domain {from} is taken, though none waits: handler {handler}, {len} \
                bytes"
            ));
        };
        if (message.handler(), message.len) != (handler, len) {
            return Err(format!(
                "the next message of domain {from} is {message:?}, and found is handler \
                {handler}, {len} bytes"
            ));
        }
        self.summary.taken += 1;
        Ok(message)
    }

    /// Records that a domain has ended.
    pub fn ended(&mut self, rank: Rank) {
        for to in 0..self.count {
            let pair = self.pair(rank, to);
            // A message that was found counts as launched.
            pair.torn = pair.launching && !pair.waiting.is_empty();
            (pair.launching, pair.owes) = (false, false);
        }
    }

    /// Once no domain can go on, returns why that must not be, if so.
    pub fn stranded(state: &State) -> Option<String> {
        let all = 0..state.ledger.count;
        let pairs = all.clone().flat_map(|from| all.clone().map(move |to| (from, to)));
        let mut stranded = pairs.filter(|(from, to)| {
            let pair = state.ledger.seen(*from, *to);
            state.domains[*to].is_well()
                && !pair.owes
                && pair.waiting.len() > usize::from(pair.torn)
        });
        let Some((from, to)) = stranded.next() else {
            let unheard = |domain: &Domain| domain.is_well() && !domain.news.is_empty();
            let rank = state.domains.iter().position(unheard)?;
            return Some(format!(
                "no domain can go on, and domain {rank} has not read that another one has ended"
            ));
        };
        let count = state.ledger.seen(from, to).waiting.len();
        Some(format!(
            "no domain can go on, and {count} messages of domain {from} to domain {to} are not \
            taken"
        ))
    }
}
