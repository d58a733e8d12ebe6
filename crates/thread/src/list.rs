//! The threads that wait for one thing, oldest first.
//!
//! Mutex, read-write lock, semaphore and condition variable share this list.
//!
//! The waiters form a list through nodes on their own stacks, under a spin lock that is held for a
//! few instructions. So no memory is allocated, and a waiter whose deadline passes takes its own
//! node off, at any position. Source: the wait queues of Mesa (Lampson, Redell, "Experience with
//! processes and monitors in Mesa", 1980).
//!
//! # Who wakes
//! A waker that takes a node off the list claims the right to wake its thread
//! ([`ListedWait::draw`]). If the thread's deadline claimed it first, the node is dropped and the
//! next one is taken: nothing is handed to a thread that has given up. A thread that has been taken
//! sleeps until its taker wakes it, so its node stays readable until then ([`TakenWaiters`]).

use crate::sync::{AtomicPtr, Ordering, Spin, Spinning};
use std::cell::Cell;
use std::ptr;

/// One wait of one thread, as a list holds it.
pub trait ListedWait: Copy {
    /// Claims the right to wake the thread. Returns `false` if its deadline claimed that first.
    fn draw(self) -> bool;

    /// Returns `true` if the thread may take itself off the list.
    ///
    /// Only for such a thread does the list mark a node that it takes off as unlisted.
    fn may_leave(self) -> bool;
}

/// A place in a list, in the frame of the thread that waits.
#[derive(Debug)]
pub struct WaitNode<W> {
    wait: W,
    /// What the thread waits for, in the terms of the list's owner.
    pub(crate) wants: usize,
    // The holder of the open list writes the rest. `older` is `UNLISTED` while the node is in no
    // list, if its thread may leave one.
    older: Cell<*const WaitNode<W>>,
    newer: Cell<*const WaitNode<W>>,
}

impl<W: ListedWait> WaitNode<W> {
    /// Creates a node that is in no list.
    pub fn new(wait: W, wants: usize) -> Self {
        Self { wait, wants, older: Cell::new(Self::UNLISTED), newer: Cell::new(ptr::null()) }
    }

    /// A pointer that is no node's address.
    const UNLISTED: *const Self = ptr::without_provenance(1);
}

/// See the module comment.
#[derive(Debug)]
pub struct WaitList<W> {
    busy: Spin,
    /// Written while the list is open; read at other times as a hint.
    oldest: AtomicPtr<WaitNode<W>>,
    /// Meaningless when the list is empty.
    newest: Cell<*const WaitNode<W>>,
}

// SAFETY: only the holder of the open list touches `newest` and the nodes, and there is one holder
// at a time. The waits cross threads.
unsafe impl<W: Send> Sync for WaitList<W> {}
// SAFETY: as above; nothing is bound to a kernel thread. A list that is moved is empty, since a
// waiter borrows its owner.
unsafe impl<W: Send> Send for WaitList<W> {}

impl<W: ListedWait> WaitList<W> {
    /// Creates an empty list.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            busy: Spin::new(),
            oldest: AtomicPtr::new(ptr::null_mut()),
            newest: Cell::new(ptr::null()),
        }
    }

    /// Creates an empty list.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            busy: Spin::new(),
            oldest: AtomicPtr::new(ptr::null_mut()),
            newest: Cell::new(ptr::null()),
        }
    }

    /// Returns `true` if no thread waits, by one load and without opening the list.
    ///
    /// This is a hint, except for a caller that something else orders after the waiter.
    #[inline(always)]
    pub fn seems_empty(&self) -> bool {
        self.oldest.load(Ordering::Relaxed).is_null()
    }

    /// Opens the list, until the guard is dropped. Nothing may block while it is open.
    #[inline(always)]
    pub fn open(&self) -> OpenList<'_, W> {
        OpenList { list: self, _busy: self.busy.lock() }
    }
}

/// The list, open for its one holder.
#[derive(Debug)]
pub struct OpenList<'a, W> {
    list: &'a WaitList<W>,
    _busy: Spinning<'a>,
}

impl<W: ListedWait> OpenList<'_, W> {
    /// # Safety
    /// `node` is null or listed.
    #[inline(always)]
    unsafe fn node(&self, node: *const WaitNode<W>) -> Option<&WaitNode<W>> {
        // SAFETY: by the rules of `add`, a node stays while it is listed. This list is open, so the
        // node is listed for as long as `self` lives.
        unsafe { node.as_ref() }
    }

    /// Returns `true` if no thread waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.list.seems_empty()
    }

    /// Puts `node` behind all others.
    ///
    /// # Safety
    /// The node stays where it is and untouched until its thread has been woken, or has taken it
    /// off by [`remove`](Self::remove).
    #[inline(always)]
    pub unsafe fn add(&self, node: &WaitNode<W>) {
        let raw = ptr::from_ref(node);
        let newest = self.list.newest.replace(raw);
        if self.is_empty() {
            node.older.set(ptr::null());
            node.newer.set(ptr::null());
            self.list.oldest.store(raw.cast_mut(), Ordering::Relaxed);
        } else {
            node.older.set(newest);
            node.newer.set(ptr::null());
            // SAFETY: the newest of a list that is not empty is listed.
            if let Some(newest) = unsafe { self.node(newest) } {
                newest.newer.set(raw);
            }
        }
    }

    /// Takes `node` off, if it is still listed. For its own thread, which no longer waits.
    #[inline(always)]
    pub fn remove(&self, node: &WaitNode<W>) {
        let (older, newer) = (node.older.replace(WaitNode::UNLISTED), node.newer.get());
        if older == WaitNode::UNLISTED {
            return;
        }
        // SAFETY: the neighbours of a listed node are listed.
        match unsafe { self.node(older) } {
            Some(older) => older.newer.set(newer),
            None => self.list.oldest.store(newer.cast_mut(), Ordering::Relaxed),
        }
        // SAFETY: as above.
        match unsafe { self.node(newer) } {
            Some(newer) => newer.older.set(older),
            // Without an older node the list is empty, and `newest` is meaningless.
            None => self.list.newest.set(older),
        }
    }

    /// What the oldest waiter wants.
    #[inline(always)]
    pub fn wants(&self) -> Option<usize> {
        self.oldest().map(|oldest| oldest.wants)
    }

    #[inline(always)]
    fn oldest(&self) -> Option<&WaitNode<W>> {
        // SAFETY: what the list points to is listed.
        unsafe { self.node(self.list.oldest.load(Ordering::Relaxed)) }
    }

    /// Takes the oldest node off. Its thread still waits: it is not woken without a claim, and does
    /// not give up without opening the list.
    #[inline(always)]
    fn remove_oldest(&self) -> Option<&WaitNode<W>> {
        let oldest = self.oldest()?;
        if oldest.wait.may_leave() {
            oldest.older.set(WaitNode::UNLISTED);
        }
        let newer = oldest.newer.get();
        self.list.oldest.store(newer.cast_mut(), Ordering::Relaxed);
        // SAFETY: the neighbours of a listed node are listed.
        if let Some(newer) = unsafe { self.node(newer) } {
            newer.older.set(ptr::null());
        }
        Some(oldest)
    }

    /// Takes the oldest node off and moves the right to wake its thread to `taken`.
    ///
    /// Returns `false` if the thread had given up; its node is off the list nevertheless.
    #[inline(always)]
    pub fn take(&self, taken: &TakenWaiters<W>) -> bool {
        let Some(oldest) = self.remove_oldest() else { return false };
        let drawn = oldest.wait.draw();
        if drawn {
            taken.add(oldest);
        }
        drawn
    }

    /// Takes off the oldest waiter that has not given up, with the right to wake it.
    #[inline(always)]
    pub fn take_one(&self) -> Option<W> {
        loop {
            let oldest = self.remove_oldest()?;
            if oldest.wait.draw() {
                return Some(oldest.wait);
            }
        }
    }
}

/// Threads taken off a list, oldest first, to be woken after the list is closed.
#[derive(Debug)]
pub struct TakenWaiters<W> {
    first: Cell<*const WaitNode<W>>,
    last: Cell<*const WaitNode<W>>,
}

impl<W: ListedWait> TakenWaiters<W> {
    /// Creates an empty chain.
    pub fn new() -> Self {
        Self { first: Cell::new(ptr::null()), last: Cell::new(ptr::null()) }
    }

    #[inline(always)]
    fn add(&self, node: &WaitNode<W>) {
        let raw = ptr::from_ref(node);
        node.newer.set(ptr::null());
        // SAFETY: a node that was taken stays until its thread is woken, which happens when the
        // node leaves this chain.
        match unsafe { self.last.replace(raw).as_ref() } {
            Some(last) => last.newer.set(raw),
            None => self.first.set(raw),
        }
    }

    /// Passes each wait to `wake`, oldest first.
    #[inline(always)]
    pub fn wake_all(self, mut wake: impl FnMut(W)) {
        let mut next = self.first.get();
        // SAFETY: as in `add`.
        while let Some(node) = unsafe { next.as_ref() } {
            // After the wake the node belongs to its thread again, and may be gone.
            next = node.newer.get();
            wake(node.wait);
        }
    }
}
