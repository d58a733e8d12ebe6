//! Whose message is next, and when a sender is forgotten.
//!
//! Senders have their turns. A message is taken by its handler, or in place, or it stays: then
//! those of the same sender stay behind it. A sender that has ended is forgotten when all that it
//! had sent is taken. A sender that violates the protocol is forgotten at once. The driver learns
//! of that once: a handler that polls may have found the same before.

use crate::Rank;
use crate::proto::receive_queue::{BorrowedQueue, ReceiveQueue};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use upcall_shm::direct::{Arrived, QueueMemory, Unreadable};

/// Maximum number of messages of one sender that run before the others have their turn.
const BATCH: usize = 64;

/// A list that is never changed, but replaced: a handler may change it while a poll goes through it.
type ReceiveQueues<M, X> = Rc<[Rc<ReceiveQueue<M, X>>]>;

/// Those who have sent something, in the order in which that was heard.
pub struct Senders<M: QueueMemory, X = ()> {
    all: RefCell<ReceiveQueues<M, X>>,
    /// Whose turn is next.
    turn: Cell<usize>,
}

impl<M: QueueMemory, X> Default for Senders<M, X> {
    fn default() -> Self {
        Self { all: RefCell::new(Rc::new([])), turn: Cell::new(0) }
    }
}

impl<M: QueueMemory, X> fmt::Debug for Senders<M, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} senders", self.all.borrow().len())
    }
}

impl<M: QueueMemory, X> Senders<M, X> {
    /// All of them, as of now.
    #[inline]
    pub fn all(&self) -> ReceiveQueues<M, X> {
        self.all.borrow().clone()
    }

    /// The same in a handler of a signal, which may neither allocate nor free; nothing while the
    /// list changes.
    pub fn for_each_lightly(&self, with: impl FnMut(&Rc<ReceiveQueue<M, X>>)) {
        if let Ok(all) = self.all.try_borrow() {
            all.iter().for_each(with);
        }
    }

    /// Whether anything may wait: false only if nothing does. A load for each sender.
    #[inline]
    pub fn glance(&self) -> bool {
        self.all.borrow().iter().any(|queue| queue.glance())
    }

    /// Whether something waits.
    pub fn waits(&self) -> bool {
        self.all.borrow().iter().any(|queue| queue.waits())
    }

    /// A member's queue, if it has sent something and was not forgotten.
    pub fn of(&self, from: Rank) -> Option<Rc<ReceiveQueue<M, X>>> {
        self.all.borrow().iter().find(|queue| queue.from() == from).cloned()
    }

    /// Another member has sent something.
    pub fn add(&self, queue: Rc<ReceiveQueue<M, X>>) {
        let more = self.all().iter().cloned().chain([queue]).collect();
        *self.all.borrow_mut() = more;
    }

    fn remove(&self, queue: &Rc<ReceiveQueue<M, X>>) {
        let rest = self.all().iter().filter(|other| !Rc::ptr_eq(other, queue)).cloned().collect();
        *self.all.borrow_mut() = rest;
    }

    /// Tells all senders how far this member is.
    pub fn tell(&self) {
        self.all().iter().for_each(|queue| queue.tell());
    }

    /// Whose turn is next, to be [given back](Self::keep_turn) by a look that takes nothing.
    pub fn turn(&self) -> usize {
        self.turn.get()
    }

    /// The next message stays, and its sender keeps its turn.
    pub fn keep_turn(&self, turn: usize) {
        self.turn.set(turn);
    }
}

/// What has become of a message for which a handler was to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// The message was taken, and its handler has run.
    Handled,
    /// It has no handler, and stays.
    Stays,
    /// It is of a kind that there is not, or carries something else.
    Violates,
}

/// Why nothing more is taken from a sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// It has ended, and all that it had sent was taken.
    Ended,
    /// Its next message, of this kind, is not what it may be.
    Kind(u16),
    /// It violates the protocol otherwise.
    Violation(String),
}

/// A member that receives, in the hands of its driver.
pub trait Receiving {
    /// Where its queues lie.
    type Memory: QueueMemory;
    /// What it keeps with each of them.
    type With;

    /// Those who have sent something.
    fn senders(&self) -> &Senders<Self::Memory, Self::With>;

    /// Runs the handler of a sender's next message, which is of this kind. A handler may poll, and
    /// send.
    fn run(
        &self,
        sender: &Rc<ReceiveQueue<Self::Memory, Self::With>>,
        kind: u16,
        queue: BorrowedQueue<'_, Self::Memory>,
    ) -> Ran;

    /// Nothing more is taken from this sender.
    fn forgets(&self, sender: &ReceiveQueue<Self::Memory, Self::With>, why: Forgotten);
}

type SenderOf<R> = Rc<ReceiveQueue<<R as Receiving>::Memory, <R as Receiving>::With>>;

/// Does something with the next message; the turn goes to the member after its sender. `None`:
/// nothing waits. The driver has heard the news before.
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

/// Runs the handlers of the messages that wait, at most 64 of each sender. Returns how many. The
/// driver has heard the news before.
#[inline]
pub fn poll<R: Receiving>(member: &R) -> usize {
    member.senders().all().iter().map(|sender| poll_one(member, sender)).sum()
}

#[inline]
fn poll_one<R: Receiving>(member: &R, sender: &SenderOf<R>) -> usize {
    for done in 0..BATCH {
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
            Ran::Handled => {}
            Ran::Stays => return done,
            Ran::Violates => {
                forget(member, sender, Forgotten::Kind(kind));
                return done;
            }
        }
    }
    BATCH
}

/// All that a sender has sent so far is taken.
#[inline(always)]
pub fn nothing_there<R: Receiving>(member: &R, sender: &SenderOf<R>) {
    sender.tell();
    if sender.has_ended() && sender.is_drained() {
        forget(member, sender, Forgotten::Ended);
    }
}

#[cold]
fn unreadable<R: Receiving>(member: &R, sender: &SenderOf<R>, error: &Unreadable) {
    // Without memory here, it is tried again.
    if let Unreadable::Violation(violation) = error {
        forget(member, sender, Forgotten::Violation(violation.to_string()));
    }
}

/// Takes nothing more from a sender.
#[cold]
pub fn forget<R: Receiving>(member: &R, sender: &SenderOf<R>, why: Forgotten) {
    // A handler that polls may have found the same before.
    if !sender.forget() {
        return;
    }
    member.senders().remove(sender);
    member.forgets(sender, why);
}

/// A member has ended: it is forgotten once all that it had sent is taken. Returns `false` if it
/// has sent nothing, or was forgotten before.
pub fn ended<R: Receiving>(member: &R, rank: Rank) -> bool {
    let Some(sender) = member.senders().of(rank) else { return false };
    sender.ends();
    nothing_there(member, &sender);
    true
}
