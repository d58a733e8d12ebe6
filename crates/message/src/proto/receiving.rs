//! Whose message is next, and when a sender is forgotten.
//!
//! Senders take turns. A message is taken by its handler, or in place, or it stays; the messages of
//! the same sender then stay behind it. A sender that has ended is forgotten when all its messages
//! are taken. A sender that violates the protocol is forgotten at once. The driver learns of that
//! once: a handler that polls may have found the same before.
//!
//! # Why no end is missed
//! A sender is forgotten after two steps, in either order, on the one thread of the member: its end
//! is noted ([`ended`]), and its last message is taken. Each step is followed by a check whether
//! the other one is done ([`nothing_there`]), so the second step finds the first one. The check
//! follows messages when a probe finds no further one, at the end of a batch, and after each
//! message that is taken in place. It cannot follow a message that is taken in an interrupt, which
//! may not free memory, or whose handler panics. So a member checks all senders before it waits
//! ([`before_wait`]). During the wait, interrupts are off. On a virtual processor other threads may
//! take messages in that time: by the functions here, or with a panic, which counts as a change and
//! so ends the wait.

use crate::Rank;
use crate::proto::receive_queue::{BorrowedQueue, NextMessage, ReceiveQueue};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use upcall_shm::direct::{Arrived, QueueMemory, Unreadable};

/// Maximum number of messages of one sender that run before the others get a turn.
const BATCH: usize = 64;

/// A list that is never changed, but replaced: a handler may replace it while a poll goes through
/// it.
type ReceiveQueues<M, X> = Rc<[Rc<ReceiveQueue<M, X>>]>;

/// The queues of all senders that have sent something, in the order of their arrival.
pub struct Senders<M: QueueMemory, X = ()> {
    all: RefCell<ReceiveQueues<M, X>>,
    /// Index of the sender whose turn is next.
    turn: Cell<usize>,
    /// Whether a message could not be read, for lack of memory, and none was looked for since.
    lacks: Cell<bool>,
}

impl<M: QueueMemory, X> Default for Senders<M, X> {
    fn default() -> Self {
        Self { all: RefCell::new(Rc::new([])), turn: Cell::new(0), lacks: Cell::new(false) }
    }
}

impl<M: QueueMemory, X> fmt::Debug for Senders<M, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} senders", self.all.borrow().len())
    }
}

impl<M: QueueMemory, X> Senders<M, X> {
    /// All queues at this moment.
    #[inline]
    pub fn all(&self) -> ReceiveQueues<M, X> {
        self.all.borrow().clone()
    }

    /// Calls `with` for all queues in a signal handler, which may neither allocate nor free. Does
    /// nothing while the list changes.
    pub fn for_each_lightly(&self, with: impl FnMut(&Rc<ReceiveQueue<M, X>>)) {
        if let Ok(all) = self.all.try_borrow() {
            all.iter().for_each(with);
        }
    }

    /// Returns `false` only if no message waits. Costs one load per sender.
    #[inline]
    pub fn glance(&self) -> bool {
        self.all.borrow().iter().any(|queue| queue.glance())
    }

    /// Returns `true` if a message waits.
    pub fn waits(&self) -> bool {
        self.all.borrow().iter().any(|queue| queue.waits())
    }

    /// A member's queue, if it has sent something and was not forgotten.
    pub fn of(&self, from: Rank) -> Option<Rc<ReceiveQueue<M, X>>> {
        self.all.borrow().iter().find(|queue| queue.from() == from).cloned()
    }

    /// Adds the queue of another member.
    pub fn add(&self, queue: Rc<ReceiveQueue<M, X>>) {
        let more = self.all().iter().cloned().chain([queue]).collect();
        *self.all.borrow_mut() = more;
    }

    fn remove(&self, queue: &Rc<ReceiveQueue<M, X>>) {
        let rest = self.all().iter().filter(|other| !Rc::ptr_eq(other, queue)).cloned().collect();
        *self.all.borrow_mut() = rest;
    }

    /// Reports this member's progress to all senders.
    pub fn tell(&self) {
        self.all().iter().for_each(|queue| queue.tell());
    }

    /// A sender whose next message lies in memory that could not be mapped. Costs one load if none
    /// was found.
    #[inline]
    pub fn lacking(&self) -> Option<Rank> {
        if self.lacks.get() { self.find_lacking() } else { None }
    }

    #[cold]
    fn find_lacking(&self) -> Option<Rank> {
        let all = self.all();
        let is_lacking =
            |queue: &&Rc<ReceiveQueue<M, X>>| queue.next() == Some(NextMessage::Unreadable);
        let found = all.iter().find(is_lacking).map(|queue| queue.from());
        self.lacks.set(found.is_some());
        found
    }

    /// The index whose turn is next, to be [restored](Self::keep_turn) by a caller that takes
    /// nothing.
    pub fn turn(&self) -> usize {
        self.turn.get()
    }

    /// Restores the turn: the next message stays, and its sender keeps its turn.
    pub fn keep_turn(&self, turn: usize) {
        self.turn.set(turn);
    }
}

/// The result for a message whose handler was to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// The message was taken, and its handler has run.
    Handled,
    /// It was taken, and belongs to the driver itself: no handler is counted.
    Absorbed,
    /// It has no handler, and stays.
    Stays,
    /// It is of an unknown kind, or its payload does not match the kind.
    Violates,
}

/// The reason why no more messages of a sender are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// It has ended, and all its messages were taken.
    Ended,
    /// Its next message, of this kind, is invalid.
    Kind(u16),
    /// It violated the protocol in another way.
    Violation(String),
}

/// A member that receives, as its driver implements it.
pub trait Receiving {
    /// The memory of its queues.
    type Memory: QueueMemory;
    /// State that it keeps with each queue.
    type With;

    /// The senders that have sent something.
    fn senders(&self) -> &Senders<Self::Memory, Self::With>;

    /// Runs the handler of a sender's next message, which is of this kind. A handler may poll, and
    /// send.
    fn run(
        &self,
        sender: &Rc<ReceiveQueue<Self::Memory, Self::With>>,
        kind: u16,
        queue: BorrowedQueue<'_, Self::Memory>,
    ) -> Ran;

    /// Called when no more messages of this sender are taken.
    fn forgets(&self, sender: &ReceiveQueue<Self::Memory, Self::With>, why: Forgotten);
}

type SenderOf<R> = Rc<ReceiveQueue<<R as Receiving>::Memory, <R as Receiving>::With>>;

/// Calls `with` on the next message; the turn goes to the member after its sender. `None` if no
/// message waits. The driver has taken in all events before.
#[inline(always)]
pub fn next<R: Receiving, T>(
    member: &R,
    with: impl FnOnce(Arrived<'_, R::Memory>, &SenderOf<R>) -> T,
) -> Option<T> {
    let senders = member.senders();
    let all = senders.all();
    let mut at = senders.turn.get();
    let mut looked = 0;
    while looked < all.len() {
        at = if at < all.len() { at } else { 0 };
        let sender = &all[at];
        at += 1;
        looked += 1;
        let Some(mut queue) = sender.queue() else { continue };
        match queue.peek() {
            Ok(Some(arrived)) => {
                senders.turn.set(at);
                let done = with(arrived, sender);
                drop(queue);
                if sender.has_ended() {
                    nothing_there(member, sender);
                }
                return Some(done);
            }
            Ok(None) => {
                drop(queue);
                nothing_there(member, sender);
            }
            Err(error) => {
                drop(queue);
                unreadable(member, sender, &error);
            }
        }
    }
    None
}

/// Calls `with` on the next message of one sender. `None` if none of its messages waits. The driver
/// has taken in all events before.
pub fn next_of<R: Receiving, T>(
    member: &R,
    from: Rank,
    with: impl FnOnce(Arrived<'_, R::Memory>, &SenderOf<R>) -> T,
) -> Option<T> {
    let sender = &member.senders().of(from)?;
    let mut queue = sender.queue()?;
    let done = match queue.peek() {
        Ok(arrived) => arrived.map(|arrived| with(arrived, sender)),
        Err(error) => {
            drop(queue);
            unreadable(member, sender, &error);
            return None;
        }
    };
    drop(queue);
    if done.is_none() || sender.has_ended() {
        nothing_there(member, sender);
    }
    done
}

/// Runs the handlers of the messages that wait, at most 64 of each sender. Returns their number.
/// The driver has taken in all events before.
#[inline]
pub fn poll<R: Receiving>(member: &R) -> usize {
    member.senders().all().iter().map(|sender| poll_one(member, sender)).sum()
}

#[inline]
fn poll_one<R: Receiving>(member: &R, sender: &SenderOf<R>) -> usize {
    let mut done = 0;
    for _ in 0..BATCH {
        let Some(mut queue) = sender.queue() else { return done };
        let kind = match queue.peek() {
            Ok(Some(arrived)) => arrived.handler(),
            Ok(None) => {
                drop(queue);
                nothing_there(member, sender);
                return done;
            }
            Err(error) => {
                drop(queue);
                unreadable(member, sender, &error);
                return done;
            }
        };
        match member.run(sender, kind, queue) {
            Ran::Handled => done += 1,
            Ran::Absorbed => {}
            Ran::Stays => return done,
            Ran::Violates => {
                forget(member, sender, Forgotten::Kind(kind));
                return done;
            }
        }
    }
    // The last message of the batch may be the last one of the sender.
    if sender.has_ended() {
        nothing_there(member, sender);
    }
    done
}

/// Called before the member waits. Reports its progress to all senders, and forgets those that have
/// ended, if all their messages are taken.
pub fn before_wait<R: Receiving>(member: &R) {
    member.senders().all().iter().for_each(|sender| nothing_there(member, sender));
}

/// Called when all messages of a sender so far may be taken.
#[inline(always)]
pub fn nothing_there<R: Receiving>(member: &R, sender: &SenderOf<R>) {
    sender.tell();
    if sender.has_ended() && sender.is_drained() {
        forget(member, sender, Forgotten::Ended);
    }
}

#[cold]
fn unreadable<R: Receiving>(member: &R, sender: &SenderOf<R>, error: &Unreadable) {
    match error {
        // The next poll tries again.
        Unreadable::Memory(_) => member.senders().lacks.set(true),
        Unreadable::Violation(violation) => {
            forget(member, sender, Forgotten::Violation(violation.to_string()));
        }
    }
}

/// Takes no more messages of a sender.
#[cold]
pub fn forget<R: Receiving>(member: &R, sender: &SenderOf<R>, why: Forgotten) {
    // A handler that polls may have found the same before.
    if !sender.forget() {
        return;
    }
    member.senders().remove(sender);
    member.forgets(sender, why);
}

/// Handles the end of a member: it is forgotten once all its messages are taken. Returns `false` if
/// it has sent nothing, or was forgotten before.
pub fn ended<R: Receiving>(member: &R, rank: Rank) -> bool {
    let Some(sender) = member.senders().of(rank) else { return false };
    sender.ends();
    nothing_there(member, &sender);
    true
}
