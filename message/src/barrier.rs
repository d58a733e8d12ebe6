//! A barrier: nobody goes on before all members have come to it.
//!
//! By dissemination (Hensgen, Finkel and Manber, 1988): in round `r` each member tells the one `2^r` places after it, and hears of the one `2^r` before; after ⌈log2 n⌉ rounds all have heard of all. Messages of one pair come in order, so to count
//! those of each round is enough, though some members may be at the next barrier already.

use crate::error::{RunError, SendError};
use crate::kinds::{Handlers, Kind};
use crate::payload::Payload;
use crate::reduction::Reduction;
use crate::{Event, Group, Rank};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Rounds of the largest group.
const ROUNDS: usize = crate::MOST_MEMBERS.next_power_of_two().ilog2() as usize;

/// What a member knows of its barriers.
pub(crate) struct Barrier {
    came: Kind<u8>,
    broken: Kind<u32>,
    /// How many messages of each round have come.
    heard: Rc<RefCell<[u64; ROUNDS]>>,
    /// The member that never came, by the word of one who has waited for it.
    missing: Rc<Cell<Option<Rank>>>,
    pub(crate) reduction: Reduction,
    /// How many barriers this one has come to.
    count: Cell<u64>,
}

impl Barrier {
    /// Kinds of messages that each group has for itself, behind all others.
    pub(crate) const KINDS: usize = 2 + Reduction::KINDS;

    /// Registers them.
    pub(crate) fn new(handlers: &mut Handlers) -> Self {
        let others = handlers.kinds.len();
        let (came, broken) = (handlers.own_kind("upcall:came"), handlers.own_kind("upcall:broken"));
        let (heard, missing) = (Rc::new(RefCell::new([0; ROUNDS])), Rc::new(Cell::new(None)));
        let here = heard.clone();
        handlers.on(came, move |group, from, round| {
            // From nobody but whom this member waits for in that round.
            if let Some(count) = here.borrow_mut().get_mut(usize::from(round))
                && from == awaited(group, usize::from(round))
            {
                *count += 1;
            }
        });
        let here = missing.clone();
        handlers.on(broken, move |_, _, rank| here.set(Some(rank as Rank)));
        let reduction = Reduction::new(handlers);
        assert_eq!(handlers.kinds.len(), others + Self::KINDS, "the group's own kinds of messages");
        Self { came, broken, heard, missing, reduction, count: Cell::new(0) }
    }
}

/// Whom a member waits for in a round.
fn awaited(group: &Group, round: usize) -> Rank {
    // A step of a round that there is in no group of the size goes round it, too.
    let step = (1 << round) % group.size();
    (group.rank() + group.size() - step) % group.size()
}

impl Group {
    /// Waits until all members have come here, and runs the handlers of what comes meanwhile. Takes a message, and the time that it needs to come, for each doubling of the group.
    ///
    /// # Errors
    /// A member has ended, or broken the protocol, before it came: then all others are told, and neither this barrier nor a later one holds. Or a message waits that has no handler: the barrier's own cannot pass those before it. Or the
    /// next member cannot be told for want of memory or descriptors here: then the others wait until this one has ended.
    pub fn barrier(&self) -> Result<(), RunError> {
        let barrier = self.barriers();
        barrier.count.set(barrier.count.get() + 1);
        let (rank, size) = (self.rank(), self.size());
        for round in 0.. {
            let step = 1 << round;
            if step >= size {
                break;
            }
            let next = (rank + step) % size;
            self.tell(next, barrier.came, &(round as u8))?;
            self.await_of(awaited(self, round), || barrier.heard.borrow()[round] >= barrier.count.get())?;
        }
        Ok(())
    }

    /// Tells another member what it waits for.
    pub(crate) fn tell<T: Payload + ?Sized>(&self, to: Rank, kind: Kind<T>, value: &T) -> Result<(), RunError> {
        match self.send(to, kind, value) {
            // Who has ended, and had passed already, needs it no more: only who is waited for is missed.
            Ok(()) | Err(SendError::Ended { .. } | SendError::Violation { .. }) => Ok(()),
            Err(SendError::Interrupted) => Err(RunError::Interrupted),
            Err(error) => Err(RunError::Unsent { rank: to, why: error.to_string() }),
        }
    }

    /// Polls and waits for something that a member makes true. Should that be lost, all others learn of it, and wait for it no longer.
    pub(crate) fn await_of(&self, member: Rank, there: impl Fn() -> bool) -> Result<(), RunError> {
        let barrier = self.barriers();
        while !there() {
            if let Some(missing) = barrier.missing.get() {
                return Err(RunError::Lost(Event::Ended { rank: missing }));
            }
            if let Some(event) = self.lost(member) {
                for other in (0..self.size()).filter(|other| ![self.rank(), member].contains(other)) {
                    let _ = self.send(other, barrier.broken, &(member as u32));
                }
                return Err(RunError::Lost(event));
            }
            if self.poll() == 0 {
                self.check_handlers()?;
                self.wait_unless(None, || there() || self.lost(member).is_some());
                if self.is_interrupted() {
                    return Err(RunError::Interrupted);
                }
            }
        }
        Ok(())
    }
}
