//! How a machine stands still for a checkpoint: what its first process decides.
//!
//! ```text
//!     first process                       each process
//!     waits for moves and spawns
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
//! each pair of processes would not do. The processes count instead, as in the detection of a
//! [stuck](crate::node) machine (Mattern, 1987). If the messages received in one round are as many
//! as the messages sent in the next one, then none was under way between the rounds, and none was
//! sent since. Each message then is in an inbox, in a reply, or in the first process's services,
//! and so in the checkpoint, once.
//!
//! A process that ends or does not answer makes the first process give up. Then all go on, as after
//! a checkpoint: nothing has happened to their tasks.
//!
//! This is a state machine without clock, input and output. Its driver is
//! [`node::saving`](crate::node).

use crate::moves::RankSet;
use crate::remote::Count;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use upcall_message::Rank;

/// Maximum time until all moves and spawns are over, and then until no message is under way.
const SETTLED: Duration = Duration::from_secs(5);
/// Maximum time until a process reports that its tasks are held, or which one cannot be.
const HELD: Duration = Duration::from_secs(7);
/// Maximum time between two sections of a process.
const SENT: Duration = Duration::from_secs(10);

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
    Stops { missing: RankSet },
    Counts { round: u32, missing: RankSet, all: Count, own: Count, heard_before: Option<u64> },
    Saves { missing: RankSet },
}

impl MachineHold {
    /// A checkpoint of `size` processes, without those in `lost`.
    pub(crate) fn new(size: usize, lost: RankSet, now: Duration) -> Self {
        let (phase, until) = (HoldPhase::Settles, now + SETTLED);
        Self { size, lost, phase, until, names: vec![1; size] }
    }

    /// All living processes but those of a set.
    fn living(&self, without: RankSet) -> RankSet {
        let mut all = RankSet::default();
        (0..self.size).for_each(|rank| _ = all.insert(rank));
        all.without(self.lost).without(without)
    }

    /// Returns `true` until tasks are held: moves and spawns may go on.
    pub(crate) fn settles(&self) -> bool {
        matches!(self.phase, HoldPhase::Settles)
    }

    /// No move and no spawn is under way.
    pub(crate) fn settled(&mut self, now: Duration) -> HoldStep {
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
                Some(HoldStep::GiveUp(why))
            }
            (
                HeldMessage::Counted { round: of, count },
                HoldPhase::Counts { round, missing, all, .. },
            ) if of == *round && missing.contains(from) => {
                *missing = missing.without(sender);
                all.all_wait &= count.all_wait;
                all.sent = all.sent.wrapping_add(count.sent);
                all.heard = all.heard.wrapping_add(count.heard);
                self.counted(own, now)
            }
            (HeldMessage::Saved(Ok(name)), HoldPhase::Saves { missing }) => {
                *missing = missing.without(sender);
                self.names[from] = name;
                missing.is_empty().then(|| HoldStep::Done(std::mem::take(&mut self.names)))
            }
            _ => None,
        }
    }

    /// Begins a round of counting with the first process's own count.
    pub(crate) fn count(&mut self, round: u32, own: Count, now: Duration) -> Option<HoldStep> {
        let heard_before = match &self.phase {
            HoldPhase::Counts { all, .. } if all.all_wait => Some(all.heard),
            _ => None,
        };
        let mut first = RankSet::default();
        first.insert(0);
        let missing = self.living(first);
        self.phase = HoldPhase::Counts { round, missing, all: own, own, heard_before };
        self.counted(own, now)
    }

    /// Decides when all have counted.
    fn counted(&mut self, own_now: Count, now: Duration) -> Option<HoldStep> {
        let HoldPhase::Counts { round, missing, all, own, heard_before } = &mut self.phase else {
            return None;
        };
        if !missing.is_empty() {
            return None;
        }
        // What this process had received when it counted, it may have handled after that.
        all.all_wait &= own_now.all_wait && own_now.sent == own.sent;
        if !all.all_wait || *heard_before != Some(all.sent) {
            return Some(HoldStep::Count(*round + 1));
        }
        self.phase = HoldPhase::Saves { missing: self.living(RankSet::default()) };
        self.until = now + SENT;
        Some(HoldStep::Tell(HoldMessage::Save))
    }

    /// A section of some task has arrived.
    pub(crate) fn got(&mut self, now: Duration) {
        if matches!(self.phase, HoldPhase::Saves { .. }) {
            self.until = now + SENT;
        }
    }

    /// The reason to give up because of the time. `process` names a process.
    pub(crate) fn tick(&self, now: Duration, process: impl Fn(Rank) -> String) -> Option<HoldStep> {
        let names = |missing: RankSet| {
            let all = (0..self.size).filter(|rank| missing.contains(*rank)).map(process);
            all.collect::<Vec<_>>().join(", ")
        };
        (now >= self.until).then(|| {
            HoldStep::GiveUp(match self.phase {
                HoldPhase::Settles => "moves or spawns of tasks are not over within 5 s".into(),
                HoldPhase::Stops { missing }
                | HoldPhase::Counts { missing, .. }
                | HoldPhase::Saves { missing }
                    if !missing.is_empty() =>
                {
                    format!("no answer of {}: it is stopped, or in a system call", names(missing))
                }
                _ => "messages are still under way after 5 s".into(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const SIZE: usize = 4;

    /// A small world: each process has a queue from each other one.
    struct World {
        random: u64,
        queues: Vec<VecDeque<Sent>>,
        counts: [Count; SIZE],
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
                self.counts[from].sent += 1;
            }
            self.queues[from * SIZE + to].push_back(sent);
        }

        fn count(&self, rank: Rank) -> Count {
            Count { all_wait: true, ..self.counts[rank] }
        }

        /// Takes some of what has arrived at a process.
        fn take(&mut self, to: Rank) {
            let from = self.random(SIZE);
            if let Some(sent) = self.queues[from * SIZE + to].pop_front() {
                if matches!(sent, Sent::Message(_)) {
                    self.counts[to].heard += 1;
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
            counts: Default::default(),
            taken: Default::default(),
        };
        let mut holding = MachineHold::new(SIZE, RankSet::default(), Duration::ZERO);
        assert!(holding.settles());
        let HoldStep::Tell(hold) = holding.settled(Duration::ZERO) else { panic!() };
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
                        let mut step = holding.heard(from, message, own, Duration::ZERO);
                        while let Some(HoldStep::Count(round)) = step {
                            tell(&mut world, HoldMessage::Count { round });
                            step = holding.count(round, own, Duration::ZERO);
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
            let mut holding = MachineHold::new(2, RankSet::default(), Duration::ZERO);
            holding.settled(Duration::from_secs(1));
            holding
        };
        let mut holding = begin();
        let now = Duration::from_secs(2);
        let refused = HeldMessage::Held(Err("t1".into()));
        let own = Count::default();
        assert_eq!(holding.heard(1, refused, own, now), Some(HoldStep::GiveUp("t1".into())));
        let mut holding = begin();
        assert_eq!(holding.heard(0, HeldMessage::Held(Ok(())), own, now), None);
        assert_eq!(holding.tick(now, process), None);
        let late = holding.tick(Duration::from_secs(8), process);
        let Some(HoldStep::GiveUp(why)) = late else { panic!("{late:?}") };
        assert!(why.contains("process 1") && !why.contains("process 0"), "{why}");
        // Reports of another phase change nothing.
        assert_eq!(holding.heard(1, HeldMessage::Saved(Ok(1)), own, now), None);
        // A machine of one process needs no rounds of others.
        let mut holding = MachineHold::new(1, RankSet::default(), now);
        holding.settled(now);
        let step = holding.heard(0, HeldMessage::Held(Ok(())), own, now);
        assert_eq!(step, Some(HoldStep::Count(1)));
        let own = Count { all_wait: true, ..own };
        assert_eq!(holding.count(1, own, now), Some(HoldStep::Count(2)));
        assert_eq!(holding.count(2, own, now), Some(HoldStep::Tell(HoldMessage::Save)));
    }
}
