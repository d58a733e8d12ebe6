//! Intrusive lists of things that are never unmapped.
//!
//! Every queue in this crate links thread records through one word inside the record. A record is
//! in at most one queue at a time (see `record`), so one link serves the ready queue, the inbox,
//! the queue of fresh threads, and the pools. All lists hold `&'static T`, so their code is safe
//! except for one cast.

use crate::sync::{AtomicPtr, Ordering};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;

/// Something with room for one link.
///
/// Only the holder of the thing's place in a queue writes the link.
pub trait Linked: Sized + 'static {
    /// The word that points to the next thing in the same queue.
    fn link(&self) -> &AtomicPtr<Self>;
}

/// The pointer under which a queue stores `thing`.
#[inline(always)]
pub(crate) fn to_raw<T>(thing: &'static T) -> *mut T {
    ptr::from_ref(thing).cast_mut()
}

/// The reference that `to_raw` was given, or `None` for null.
///
/// # Safety
/// `raw` is null or was made by [`to_raw`].
#[inline(always)]
pub(crate) unsafe fn from_raw<T>(raw: *mut T) -> Option<&'static T> {
    // SAFETY: by the caller's promise `raw` is null or came from a `&'static T`, and no `&mut T` is
    // ever made from such a pointer.
    unsafe { raw.as_ref() }
}

/// A first-in first-out list with one owner.
#[derive(Debug)]
pub(crate) struct Fifo<T: Linked> {
    head: Cell<*mut T>,
    /// The last thing, whose link is meaningless. The field itself is meaningless when the list is
    /// empty.
    tail: Cell<*mut T>,
    holds: PhantomData<&'static T>,
}

impl<T: Linked> Fifo<T> {
    pub(crate) const fn new() -> Self {
        Self {
            head: Cell::new(ptr::null_mut()),
            tail: Cell::new(ptr::null_mut()),
            holds: PhantomData,
        }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.get().is_null()
    }

    #[inline(always)]
    pub(crate) fn push(&self, thing: &'static T) {
        let raw = to_raw(thing);
        let last = self.tail.replace(raw);
        if self.is_empty() {
            self.head.set(raw);
        // SAFETY: `tail` holds only what `push` and `append_reversed` stored there, both by
        // `to_raw`.
        } else if let Some(last) = unsafe { from_raw(last) } {
            last.link().store(raw, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<&'static T> {
        let raw = self.head.get();
        // SAFETY: `head` and the links of the list hold only what `push` and `append_reversed`
        // stored there, both by `to_raw`.
        let first = unsafe { from_raw(raw) }?;
        let next = if raw == self.tail.get() {
            ptr::null_mut()
        } else {
            first.link().load(Ordering::Relaxed)
        };
        self.head.set(next);
        Some(first)
    }

    /// Takes a chain that runs from the newest to the oldest, and appends it oldest first.
    ///
    /// Returns the number of things appended.
    pub(crate) fn append_reversed(&self, chain: Chain<T>) -> usize {
        let reversed = Self::new();
        for thing in chain {
            let raw = to_raw(thing);
            thing.link().store(reversed.head.replace(raw), Ordering::Relaxed);
            if reversed.tail.get().is_null() {
                reversed.tail.set(raw);
            }
        }
        let mut count = 0;
        while let Some(thing) = reversed.pop() {
            self.push(thing);
            count += 1;
        }
        count
    }
}

/// A chain of linked things, newest first, taken off a stack that several processors push to.
#[derive(Debug)]
pub(crate) struct Chain<T: Linked> {
    head: *mut T,
}

impl<T: Linked> Chain<T> {
    /// # Safety
    /// `head`, and each link from there on, is null or was made by [`to_raw`], and the caller owns
    /// the whole chain.
    pub(crate) unsafe fn new(head: *mut T) -> Self {
        Self { head }
    }
}

impl<T: Linked> Iterator for Chain<T> {
    type Item = &'static T;

    fn next(&mut self) -> Option<&'static T> {
        // SAFETY: the promise made to `Chain::new`.
        let first = unsafe { from_raw(self.head) }?;
        self.head = first.link().load(Ordering::Relaxed);
        Some(first)
    }
}

/// A last-in first-out list with one owner.
#[derive(Debug)]
pub(crate) struct Lifo<T: Linked> {
    head: Cell<*mut T>,
    length: Cell<usize>,
}

impl<T: Linked> Lifo<T> {
    pub(crate) const fn new() -> Self {
        Self { head: Cell::new(ptr::null_mut()), length: Cell::new(0) }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.length.get()
    }

    #[inline(always)]
    pub(crate) fn push(&self, thing: &'static T) {
        thing.link().store(self.head.replace(to_raw(thing)), Ordering::Relaxed);
        self.length.set(self.length.get() + 1);
    }

    /// Iterates from the newest to the oldest.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static T> {
        // SAFETY: `head` and every link of the list hold only what `push` stored there, by
        // `to_raw`; the list has one owner.
        unsafe { Chain::new(self.head.get()) }.take(self.len())
    }

    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<&'static T> {
        // SAFETY: `head` and every link of the list hold only what `push` stored there, by
        // `to_raw`.
        let first = unsafe { from_raw(self.head.get()) }?;
        self.head.set(first.link().load(Ordering::Relaxed));
        self.length.set(self.length.get() - 1);
        Some(first)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Item(AtomicPtr<Item>, u32);

    impl Linked for Item {
        fn link(&self) -> &AtomicPtr<Item> {
            &self.0
        }
    }

    fn items(count: u32) -> Vec<&'static Item> {
        (0..count).map(|n| &*Box::leak(Box::new(Item(AtomicPtr::default(), n)))).collect()
    }

    fn drain(mut pop: impl FnMut() -> Option<&'static Item>) -> Vec<u32> {
        std::iter::from_fn(|| pop().map(|item| item.1)).collect()
    }

    #[test]
    fn first_in_first_out() {
        let fifo = Fifo::new();
        for round in 0..2 {
            assert!(fifo.is_empty(), "round {round}");
            items(3).into_iter().for_each(|item| fifo.push(item));
            assert_eq!(drain(|| fifo.pop()), [0, 1, 2]);
        }
    }

    #[test]
    fn a_stack_is_appended_oldest_first() {
        let (fifo, inbox) = (Fifo::new(), crate::inbox::Inbox::default());
        let items = items(5);
        fifo.push(items[0]);
        let was_empty: Vec<_> = items[1..4].iter().map(|&item| inbox.push(item)).collect();
        assert_eq!(was_empty, [true, false, false]);
        assert_eq!(fifo.append_reversed(inbox.take()), 3);
        fifo.push(items[4]);
        assert_eq!(drain(|| fifo.pop()), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn last_in_first_out() {
        let lifo = Lifo::new();
        items(3).into_iter().for_each(|item| lifo.push(item));
        assert_eq!(lifo.len(), 3);
        assert_eq!(drain(|| lifo.pop()), [2, 1, 0]);
        assert_eq!(lifo.len(), 0);
    }
}
