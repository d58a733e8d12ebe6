//! The threads of a virtual processor that have not started.
//!
//! They are the only threads that another processor may take.
//!
//! The owner pushes and pops many million times a second; a thief comes when it has nothing else to
//! do. So the list is guarded by a lock that is biased towards its owner. Entering costs the owner
//! one plain store and one plain load, with no locked operation, and the thief pays for both sides
//! with a `membarrier`. Source: the asymmetric Dekker algorithm (see `sync`); the idea of a lock
//! biased to one thread is K. Kawachiya et al., "Lock reservation", OOPSLA 2002.
//!
//! # Why at most one side is in
//! Each side announces itself, fences, and checks the other's word. The thief leaves if it sees the
//! owner, and the owner leaves if it sees the thief. The heavy fence on the thief's side orders the
//! two announcements: at least one of the checks sees the other's announcement (Dekker). So the two
//! are never in at the same time. Neither side waits: it leaves a busy list alone and does
//! something else (URPC; U2 here). A release store on leaving and an acquire load on checking hand
//! the list over.
//!
//! # What is pushed while a thief is in
//! The owner puts it on a stack beside the list, `late`, and the next side to enter moves it to the
//! list's end. So every thread stays available to thieves, which matters because the owner may be
//! about to run a thread that never yields. The check that decides whether a processor sleeps must
//! find these threads while they are moved. So they are counted in the list before they leave the
//! stack, and the check looks at the stack first.

use crate::inbox::Inbox;
use crate::link::{Fifo, Linked};
use crate::sync::{Apart, AtomicBool, AtomicUsize, Fences, Ordering};

/// The result of a pop by the owner.
#[derive(Debug, PartialEq, Eq)]
pub enum Pop<T> {
    /// The oldest thing.
    Got(T),
    /// The list is empty.
    Empty,
    /// A thief is in; it leaves within a few instructions.
    Busy,
}

/// A first-in first-out list with one owner and occasional thieves.
#[derive(Debug)]
pub struct Fresh<T: Linked> {
    /// Written by the owner.
    owner: Apart<OwnerSide<T>>,
    /// Written when a thief comes. The owner reads it each time.
    visit: Apart<ThiefSide<T>>,
    fences: Fences,
}

#[derive(Debug)]
struct OwnerSide<T: Linked> {
    owner_in: AtomicBool,
    /// Number of things in the list. A hint to all threads outside the lock.
    length: AtomicUsize,
    list: Fifo<T>,
}

#[derive(Debug)]
struct ThiefSide<T: Linked> {
    thief_in: AtomicBool,
    /// What the owner added while a thief was in.
    late: Inbox<T>,
}

// SAFETY: `list` is touched only by the side that is in, and one side is in at a time (module
// comment); the rest is atomic. The things themselves cross threads, hence the bound.
unsafe impl<T: Linked + Sync> Sync for Fresh<T> {}
// SAFETY: as for `Sync`; nothing in the list is bound to a kernel thread.
unsafe impl<T: Linked + Sync> Send for Fresh<T> {}

impl<T: Linked> Fresh<T> {
    /// Creates an empty list.
    pub fn new(fences: Fences) -> Self {
        let owner = OwnerSide {
            owner_in: AtomicBool::new(false),
            length: AtomicUsize::new(0),
            list: Fifo::new(),
        };
        let visit = ThiefSide { thief_in: AtomicBool::new(false), late: Inbox::default() };
        Self { owner: Apart(owner), visit: Apart(visit), fences }
    }

    #[inline(always)]
    fn enter(&self) -> bool {
        self.owner.owner_in.store(true, Ordering::Relaxed);
        self.fences.light();
        if self.visit.thief_in.load(Ordering::Acquire) {
            self.leave();
            return false;
        }
        if !self.visit.late.is_empty() {
            self.take_late();
        }
        true
    }

    /// Moves `late`, which is not empty, to the end of the list.
    ///
    /// Called by the side that is in.
    #[cold]
    fn take_late(&self) {
        self.count(|n| n + 1);
        let added = self.owner.list.append_reversed(self.visit.late.take());
        self.count(|n| n + added - 1);
    }

    #[inline(always)]
    fn leave(&self) {
        self.owner.owner_in.store(false, Ordering::Release);
    }

    /// Adds `thing` at the end. For the owner.
    #[inline(always)]
    pub fn push(&self, thing: &'static T) {
        if self.enter() {
            self.owner.list.push(thing);
            self.count(|n| n + 1);
            self.leave();
        } else {
            // Ignored: whether `late` was empty is of no use here. Callers that need to know use
            // `is_empty`.
            let _ = self.visit.late.push(thing);
        }
    }

    /// Takes the oldest thing. For the owner.
    #[inline(always)]
    pub fn pop(&self) -> Pop<&'static T> {
        if self.is_empty() {
            return Pop::Empty;
        }
        if !self.enter() {
            return Pop::Busy;
        }
        let first = self.owner.list.pop();
        if first.is_some() {
            self.count(|n| n - 1);
        }
        self.leave();
        first.map_or(Pop::Empty, Pop::Got)
    }

    /// Takes the older half, at most `most`, and gives each thing to `each`. For a thief.
    ///
    /// Returns the number of things taken.
    pub fn steal(&self, most: usize, mut each: impl FnMut(&'static T)) -> usize {
        let announce = || {
            self.visit.thief_in.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed)
        };
        if self.is_empty() || announce().is_err() {
            return 0;
        }
        self.fences.heavy();
        let mut stolen = 0;
        if !self.owner.owner_in.load(Ordering::Acquire) {
            if !self.visit.late.is_empty() {
                self.take_late();
            }
            let share = self.listed().div_ceil(2).min(most);
            while stolen < share {
                let Some(thing) = self.owner.list.pop() else { break };
                stolen += 1;
                each(thing);
            }
            self.count(|n| n - stolen);
        }
        self.visit.thief_in.store(false, Ordering::Release);
        stolen
    }

    /// Updates the length. Called by the side that is in: one side at a time writes the length, so
    /// no locked operation is needed.
    #[inline(always)]
    fn count(&self, change: impl FnOnce(usize) -> usize) {
        self.owner.length.store(change(self.listed()), Ordering::Relaxed);
    }

    /// Number of things, counting everything in `late` as one.
    ///
    /// Exact for the side that is in, a hint for all others.
    #[inline(always)]
    pub fn len(&self) -> usize {
        let late = !self.visit.late.is_empty();
        self.listed() + usize::from(late)
    }

    /// Number of things in the list, without `late`.
    #[inline(always)]
    fn listed(&self) -> usize {
        self.owner.length.load(Ordering::Relaxed)
    }

    /// Returns `true` if there is nothing in the list or in `late`. As exact as `len`.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.visit.late.is_empty() && self.listed() == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::AtomicPtr;

    struct Item(AtomicPtr<Item>, u32);

    impl Linked for Item {
        fn link(&self) -> &AtomicPtr<Item> {
            &self.0
        }
    }

    fn item(number: u32) -> &'static Item {
        Box::leak(Box::new(Item(AtomicPtr::default(), number)))
    }

    #[test]
    fn what_comes_while_a_thief_is_in_may_still_be_stolen() {
        let fresh = Fresh::new(Fences::Symmetric);
        fresh.push(item(0));
        let mut taken = Vec::new();
        let stolen = fresh.steal(8, |first| {
            taken.push(first.1);
            fresh.push(item(1));
            fresh.push(item(2));
            assert!(matches!(fresh.pop(), Pop::Busy), "the thief is in");
        });
        assert_eq!((stolen, fresh.is_empty()), (1, false));
        while fresh.steal(8, |next| taken.push(next.1)) > 0 {}
        assert_eq!(taken, [0, 1, 2]);
        assert!(fresh.is_empty());
    }

    #[test]
    fn what_comes_late_keeps_its_turn() {
        let fresh = Fresh::new(Fences::Symmetric);
        fresh.push(item(0));
        fresh.steal(8, |_| fresh.push(item(1)));
        fresh.push(item(2));
        let next = || match fresh.pop() {
            Pop::Got(item) => Some(item.1),
            Pop::Empty | Pop::Busy => None,
        };
        let order: Vec<_> = std::iter::from_fn(next).collect();
        assert_eq!(order, [1, 2]);
        assert_eq!(fresh.len(), 0);
    }
}
