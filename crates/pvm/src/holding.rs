//! How a machine stands still for a checkpoint: what its first process decides.
//!
//! ```text
//!     first process                       each process
//!     waits for moves, spawns and hosts
//!     Hold           ──────────────────▶  lets its tasks run to where they can be packed
//!                    ◀──────────────────  Held: all of them are there
//!     Count, again   ──────────────────▶
//!                    ◀──────────────────  Counted: messages sent, and received
//!     Save           ──────────────────▶
//!                    ◀──────────────────  all tasks, Saved
//!     GoOn           ──────────────────▶  lets them run
//! ```
//! **No message is lost.** After Held a process only reacts to messages. A reaction may send
//! others: a task that is killed has ended, and another one gets a notice of that. So one mark for
//! each pair of processes would not do. The processes count instead, until no message is under way
//! ([`counting`](crate::counting)). Each message then is in an inbox, in a reply, or in the first
//! process's services, and so in the checkpoint, once.
//!
//! **Several hosts.** A link between two hosts keeps a message until the other side has it, also
//! while it is cut. The counts are of messages that a process has sent and taken, so they include
//! those in links.
//!
//! A process that ends or does not answer makes the first process give up. Then all go on, as after
//! a checkpoint: nothing has happened to their tasks.
//!
//! This is a state machine without clock, input and output. Its driver is
//! [`node::saving`](crate::node).

use crate::counting::{Count, CountRounds, RoundResult};
use crate::moves::RankSet;
use crate::shown::readable;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use upcall_message::Rank;

/// Maximum time until all moves, spawns and changes of hosts are over, and then until no message
/// is under way.
const SETTLED: Duration = Duration::from_secs(5);
/// Maximum time until a process reports that its tasks are held, or which one cannot be.
const HELD: Duration = Duration::from_secs(7);
/// Maximum length of the reason that a process gives, in characters.
const LONGEST: usize = 1000;
/// Maximum time between two sections of a process.
const SENT: Duration = Duration::from_secs(10);
/// Maximum time until all sections are there, beside the time that the slowest network takes.
const ALL_SENT: Duration = Duration::from_secs(60);
/// Number of bytes that the slowest network takes in a second. A hostile process that sends less
/// would keep the machine from going on.
const SLOWEST: u64 = 128 << 10;

/// What the first process tells each process about checkpoint `number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HoldMessage {
    /// Hold all tasks.
    Hold,
    /// Count the messages, in this round.
    Count { round: u32 },
    /// Send all tasks.
    Save,
    /// Let all tasks run.
    GoOn,
}

/// What a process reports about checkpoint `number`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HeldMessage {
    /// All tasks are held, or why one of them cannot be.
    Held(Result<(), String>),
    /// The messages so far.
    Counted { round: u32, count: Count },
    /// All tasks were sent, and this is the next name that the process gives. Or the reason why a
    /// task was not sent.
    Saved(Result<u32, String>),
}

/// What the driver has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HoldStep {
    /// Tell all processes, with the first one.
    Tell(HoldMessage),
    /// Count here ([`MachineHold::count`]), and tell the others to.
    Count(u32),
    /// All tasks are saved. The names are those of the processes, by rank.
    Done(Vec<u32>),
    /// Give up, and let all go on.
    GiveUp(String),
}

/// The first process's view of a checkpoint; see the module.
#[derive(Debug)]
pub(crate) struct MachineHold {
    /// Number of processes, known once the machine has settled.
    size: usize,
    /// Processes that had ended before.
    lost: RankSet,
    phase: HoldPhase,
    /// When to give up.
    until: Duration,
    names: Vec<u32>,
}

#[derive(Debug)]
enum HoldPhase {
    Settles,
    Stops {
        missing: RankSet,
    },
    /// The pair is the sender and the receiver of a message that was under way in an earlier round.
    Counts {
        round: u32,
        rounds: CountRounds,
        pair: Option<(Rank, Rank)>,
    },
    Saves {
        missing: RankSet,
        since: Duration,
        bytes: u64,
    },
}

/// Maximum time in which this number of bytes arrive.
fn time_for(bytes: u64) -> Duration {
    ALL_SENT.saturating_add(Duration::from_millis(bytes.saturating_mul(1000) / SLOWEST))
}

impl MachineHold {
    /// A checkpoint that begins now.
    pub(crate) fn new(now: Duration) -> Self {
        let (phase, until) = (HoldPhase::Settles, now + SETTLED);
        Self { size: 0, lost: RankSet::default(), phase, until, names: Vec::new() }
    }

    /// All living processes but those of a set.
    fn living(&self, without: RankSet) -> RankSet {
        let mut all = RankSet::default();
        (0..self.size).for_each(|rank| _ = all.insert(rank));
        all.without(self.lost).without(without)
    }

    /// Returns `true` until tasks are held: moves, spawns and changes of hosts may go on.
    pub(crate) fn settles(&self) -> bool {
        matches!(self.phase, HoldPhase::Settles)
    }

    /// No move and no spawn is under way, and no host comes or goes. The machine has `size`
    /// processes, of which those in `lost` have ended.
    pub(crate) fn settled(&mut self, size: usize, lost: RankSet, now: Duration) -> HoldStep {
        (self.size, self.lost, self.names) = (size, lost, vec![1; size]);
        self.phase = HoldPhase::Stops { missing: self.living(RankSet::default()) };
        self.until = now + HELD;
        HoldStep::Tell(HoldMessage::Hold)
    }

    /// A process has reported something. `own` is the first process's count now.
    pub(crate) fn heard(
        &mut self,
        from: Rank,
        message: HeldMessage,
        own: Count,
        now: Duration,
    ) -> Option<HoldStep> {
        // A process of a host that has failed to join may report anything.
        if !self.living(RankSet::default()).contains(from) {
            return None;
        }
        let mut sender = RankSet::default();
        sender.insert(from);
        match (message, &mut self.phase) {
            (HeldMessage::Held(Ok(())), HoldPhase::Stops { missing }) => {
                *missing = missing.without(sender);
                missing.is_empty().then(|| {
                    self.until = now + SETTLED;
                    HoldStep::Count(1)
                })
            }
            (HeldMessage::Held(Err(why)), HoldPhase::Stops { .. })
            | (HeldMessage::Saved(Err(why)), HoldPhase::Saves { .. }) => {
                Some(HoldStep::GiveUp(readable(&why, LONGEST)))
            }
            (
                HeldMessage::Counted { round: of, count },
                HoldPhase::Counts { round, rounds, .. },
            ) if of == *round && rounds.missing().contains(from) => {
                rounds.add(from, &count);
                self.counted(own, now)
            }
            (HeldMessage::Saved(Ok(name)), HoldPhase::Saves { missing, .. }) => {
                *missing = missing.without(sender);
                self.names[from] = name;
                missing.is_empty().then(|| HoldStep::Done(std::mem::take(&mut self.names)))
            }
            _ => None,
        }
    }

    /// Begins a round of counting with the first process's own count.
    pub(crate) fn count(&mut self, round: u32, own: Count, now: Duration) -> Option<HoldStep> {
        let others = self.living(RankSet::from(0..1));
        let (mut rounds, pair) = match &mut self.phase {
            HoldPhase::Counts { rounds, pair, .. } => (std::mem::take(rounds), *pair),
            _ => (CountRounds::default(), None),
        };
        rounds.begin(own.clone(), others);
        self.phase = HoldPhase::Counts { round, rounds, pair };
        self.counted(own, now)
    }

    /// Decides when all have counted.
    fn counted(&mut self, own: Count, now: Duration) -> Option<HoldStep> {
        let HoldPhase::Counts { round, rounds, pair } = &mut self.phase else { return None };
        match rounds.result(&own) {
            RoundResult::Open => return None,
            RoundResult::NotYet => return Some(HoldStep::Count(*round + 1)),
            RoundResult::UnderWay(of) => {
                *pair = of;
                return Some(HoldStep::Count(*round + 1));
            }
            RoundResult::Quiet => {}
        }
        let missing = self.living(RankSet::default());
        self.phase = HoldPhase::Saves { missing, since: now, bytes: 0 };
        self.until = now + SENT;
        Some(HoldStep::Tell(HoldMessage::Save))
    }

    /// A section of some task arrived at this time, and has been passed on to the disk by now. The
    /// disk may be slow, and no process answers for that.
    pub(crate) fn got(&mut self, length: u64, arrived: Duration, now: Duration) {
        if let HoldPhase::Saves { bytes, since, .. } = &mut self.phase {
            *bytes = bytes.saturating_add(length);
            *since += now.saturating_sub(arrived);
            self.until = now + SENT;
        }
    }

    /// The reason to give up because of the time. `process` names a process.
    pub(crate) fn tick(&self, now: Duration, process: impl Fn(Rank) -> String) -> Option<HoldStep> {
        let names = |missing: RankSet| {
            let all = (0..self.size).filter(|rank| missing.contains(*rank)).map(&process);
            all.collect::<Vec<_>>().join(", ")
        };
        if let HoldPhase::Saves { missing, since, bytes } = self.phase
            && !missing.is_empty()
            && now.saturating_sub(since) >= time_for(bytes)
        {
            return Some(HoldStep::GiveUp(format!(
                "after {} s the tasks of {} are not here: {bytes} bytes have arrived, and at least \
                 {} KiB a second are needed",
                now.saturating_sub(since).as_secs(),
                names(missing),
                SLOWEST >> 10
            )));
        }
        (now >= self.until).then(|| {
            let missing = match &self.phase {
                HoldPhase::Stops { missing } | HoldPhase::Saves { missing, .. } => *missing,
                HoldPhase::Counts { rounds, .. } => rounds.missing(),
                HoldPhase::Settles => RankSet::default(),
            };
            HoldStep::GiveUp(match &self.phase {
                HoldPhase::Settles => {
                    "moves or spawns of tasks, or hosts that come or go, are not done within 5 s"
                        .into()
                }
                _ if !missing.is_empty() => {
                    format!("no answer of {}: it is stopped, or in a system call", names(missing))
                }
                HoldPhase::Counts { pair: Some((from, to)), .. } => format!(
                    "messages from {} to {} are still under way after 5 s",
                    process(*from),
                    process(*to)
                ),
                _ => "messages are still under way after 5 s".into(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counting::PeerCount;
    use std::collections::VecDeque;

    const SIZE: usize = 4;

    /// A small world: each process has a queue from each other one.
    struct World {
        random: u64,
        queues: Vec<VecDeque<Sent>>,
        /// Numbers of messages, by sender and receiver.
        sent: [[u64; SIZE]; SIZE],
        heard: [[u64; SIZE]; SIZE],
        /// What a process has taken and not handled yet.
        taken: [VecDeque<(Rank, Sent)>; SIZE],
    }

    enum Sent {
        /// Handling it sends up to this number of others.
        Message(u32),
        Told(HoldMessage),
        Reported(HeldMessage),
    }

    impl World {
        fn random(&mut self, below: usize) -> usize {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.random >> 33) as usize % below
        }

        fn send(&mut self, from: Rank, to: Rank, sent: Sent) {
            if matches!(sent, Sent::Message(_)) {
                // What a process sends to its own tasks is delivered at once.
                if from == to {
                    return;
                }
                self.sent[from][to] += 1;
            }
            self.queues[from * SIZE + to].push_back(sent);
        }

        fn count(&self, rank: Rank) -> Count {
            let peer = |other: Rank| PeerCount {
                rank: other,
                sent: self.sent[rank][other],
                heard: self.heard[other][rank],
            };
            Count { all_wait: true, peers: (0..SIZE).map(peer).collect(), ..Count::default() }
        }

        /// Takes some of what has arrived at a process.
        fn take(&mut self, to: Rank) {
            let from = self.random(SIZE);
            if let Some(sent) = self.queues[from * SIZE + to].pop_front() {
                if matches!(sent, Sent::Message(_)) {
                    self.heard[from][to] += 1;
                }
                self.taken[to].push_back((from, sent));
            }
        }

        fn is_empty(&self) -> bool {
            let is_message = |sent: &Sent| matches!(sent, Sent::Message(_));
            !self.queues.iter().flatten().any(is_message)
                && !self.taken.iter().flatten().any(|(_, sent)| is_message(sent))
        }
    }

    fn tell(world: &mut World, message: HoldMessage) {
        (0..SIZE).for_each(|rank| world.send(0, rank, Sent::Told(message)));
    }

    fn run(seed: u64) {
        let mut world = World {
            random: seed,
            queues: (0..SIZE * SIZE).map(|_| VecDeque::new()).collect(),
            sent: Default::default(),
            heard: Default::default(),
            taken: Default::default(),
        };
        let mut holding = MachineHold::new(Duration::ZERO);
        assert!(holding.settles());
        let hold = holding.settled(SIZE, RankSet::default(), Duration::ZERO);
        let HoldStep::Tell(hold) = hold else { panic!() };
        tell(&mut world, hold);
        for _ in 0..world.random(30) {
            let (from, to, more) = (world.random(SIZE), world.random(SIZE), world.random(6));
            world.send(from, to, Sent::Message(more as u32));
        }
        let mut saved = 0;
        for _ in 0..1_000_000 {
            let rank = world.random(SIZE);
            world.take(rank);
            // A process handles all that it has taken before it takes more.
            while let Some((from, sent)) = world.taken[rank].pop_front() {
                match sent {
                    Sent::Message(more) => {
                        for _ in 0..world.random(more as usize + 1) {
                            let to = world.random(SIZE);
                            world.send(rank, to, Sent::Message(more - 1));
                        }
                    }
                    Sent::Told(HoldMessage::Hold) => {
                        world.send(rank, 0, Sent::Reported(HeldMessage::Held(Ok(()))));
                    }
                    Sent::Told(HoldMessage::Count { round }) if rank > 0 => {
                        let count = world.count(rank);
                        let counted = HeldMessage::Counted { round, count };
                        world.send(rank, 0, Sent::Reported(counted));
                    }
                    Sent::Told(HoldMessage::Save) => {
                        assert!(world.is_empty(), "seed {seed}: a message is under way");
                        saved += 1;
                        let name = rank as u32 + 10;
                        world.send(rank, 0, Sent::Reported(HeldMessage::Saved(Ok(name))));
                    }
                    Sent::Told(_) => {}
                    Sent::Reported(message) => {
                        let own = world.count(0);
                        let mut step = holding.heard(from, message, own.clone(), Duration::ZERO);
                        while let Some(HoldStep::Count(round)) = step {
                            tell(&mut world, HoldMessage::Count { round });
                            step = holding.count(round, own.clone(), Duration::ZERO);
                        }
                        match step {
                            Some(HoldStep::Done(names)) => {
                                assert_eq!((saved, names), (SIZE, vec![10, 11, 12, 13]));
                                return;
                            }
                            Some(HoldStep::Tell(message)) => tell(&mut world, message),
                            None => {}
                            other => panic!("{other:?}"),
                        }
                    }
                }
                // Sometimes more is taken before the rest is handled.
                if world.random(3) == 0 {
                    world.take(rank);
                }
            }
        }
        panic!("seed {seed}: it does not end");
    }

    #[test]
    fn nothing_is_saved_while_a_message_is_under_way() {
        (1..2000).for_each(run);
    }

    #[test]
    fn a_process_that_refuses_or_does_not_answer_ends_the_attempt() {
        let process = |rank: Rank| format!("process {rank}");
        let begin = || {
            let mut holding = MachineHold::new(Duration::ZERO);
            holding.settled(2, RankSet::default(), Duration::from_secs(1));
            holding
        };
        let mut holding = begin();
        let now = Duration::from_secs(2);
        let refused = HeldMessage::Held(Err("t1".into()));
        let own = Count::default();
        let odd = HeldMessage::Held(Err(format!("\x1b[2J{}", "x".repeat(2000))));
        let odd_step = begin().heard(1, odd, own.clone(), now);
        assert_eq!(odd_step, Some(HoldStep::GiveUp(format!("?[2J{}", "x".repeat(996)))));
        assert_eq!(
            holding.heard(1, refused, own.clone(), now),
            Some(HoldStep::GiveUp("t1".into()))
        );
        let mut holding = begin();
        assert_eq!(holding.heard(0, HeldMessage::Held(Ok(())), own.clone(), now), None);
        assert_eq!(holding.tick(now, process), None);
        let late = holding.tick(Duration::from_secs(8), process);
        let Some(HoldStep::GiveUp(why)) = late else { panic!("{late:?}") };
        assert!(why.contains("process 1") && !why.contains("process 0"), "{why}");
        // Reports of another phase change nothing.
        assert_eq!(holding.heard(1, HeldMessage::Saved(Ok(1)), own.clone(), now), None);
        // So do reports of a process that is no part of the checkpoint.
        let mut holding = begin();
        assert_eq!(holding.heard(2, HeldMessage::Held(Err("t1".into())), own.clone(), now), None);
        // A machine of one process needs no rounds of others.
        let mut holding = MachineHold::new(now);
        holding.settled(1, RankSet::default(), now);
        let step = holding.heard(0, HeldMessage::Held(Ok(())), own.clone(), now);
        assert_eq!(step, Some(HoldStep::Count(1)));
        let own = Count { all_wait: true, ..own.clone() };
        assert_eq!(holding.count(1, own.clone(), now), Some(HoldStep::Count(2)));
        assert_eq!(holding.count(2, own.clone(), now), Some(HoldStep::Tell(HoldMessage::Save)));
    }

    /// A process that sends a little all the time does not keep the machine from going on.
    #[test]
    fn a_process_that_sends_too_slowly_ends_the_attempt() {
        let process = |rank: Rank| format!("process {rank}");
        let (own, start) = (Count { all_wait: true, ..Count::default() }, Duration::from_secs(1));
        let saves = |length: u64| {
            let mut holding = MachineHold::new(start);
            holding.settled(2, RankSet::default(), start);
            for rank in [0, 1] {
                holding.heard(rank, HeldMessage::Held(Ok(())), own.clone(), start);
            }
            for round in [1, 2] {
                holding.count(round, own.clone(), start);
                holding.heard(
                    1,
                    HeldMessage::Counted { round, count: own.clone() },
                    own.clone(),
                    start,
                );
            }
            let mut seconds = 1..100_000;
            let late = seconds.find_map(|second| {
                let now = start + Duration::from_secs(second);
                holding.got(length, now, now);
                Some((second, holding.tick(now, process)?))
            });
            late.map(|(second, step)| match step {
                HoldStep::GiveUp(why) => (second, why),
                step => panic!("{step:?}"),
            })
        };
        assert_eq!(saves(SLOWEST), None);
        let (second, why) = saves(1).unwrap();
        assert_eq!(second, ALL_SENT.as_secs());
        assert!(why.contains("process 0, process 1") && why.contains("60 bytes"), "{why}");
        // Half of what is needed lasts for twice the time.
        assert_eq!(saves(SLOWEST / 2).unwrap().0, 2 * ALL_SENT.as_secs());
    }

    #[test]
    fn processes_that_know_of_different_ends_are_not_saved() {
        let now = Duration::ZERO;
        let count = |lost: usize| {
            let lost = RankSet::from(2..2 + lost);
            Count { all_wait: true, lost, ..Count::default() }
        };
        let saves = |theirs: [usize; 2]| {
            let mut holding = MachineHold::new(now);
            holding.settled(2, RankSet::default(), now);
            for rank in [0, 1] {
                holding.heard(rank, HeldMessage::Held(Ok(())), count(0), now);
            }
            for (round, lost) in (1..).zip(theirs) {
                assert_eq!(holding.count(round, count(0), now), None);
                let counted = HeldMessage::Counted { round, count: count(lost) };
                let step = holding.heard(1, counted, count(0), now);
                if step == Some(HoldStep::Tell(HoldMessage::Save)) {
                    return true;
                }
                assert_eq!(step, Some(HoldStep::Count(round + 1)));
            }
            false
        };
        assert!(saves([0, 0]) && !saves([0, 1]) && !saves([1, 0]) && !saves([1, 1]));
    }
}
