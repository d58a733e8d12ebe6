//! The record of a thread, at the top of its own stack.
//!
//! # Why `&'static Record`
//! Stacks are never unmapped, and a stack's record is always at the same address in it, so a record is memory of one
//! type for the life of the process ("type-stable"). A pointer to a record whose thread has ended is stale but not
//! dangling: the only thing that holders of stale pointers do is to compare-and-swap `ticket`, whose numbers are never
//! used twice. All-zero bytes are a valid record, so a new stack needs no initialising write of the whole.
//!
//! # In at most one queue
//! A thread is in exactly one of these: a queue of fresh threads; running; a ready queue or inbox; blocked, and then
//! perhaps in the queue of one mutex; the pool of workers; the pool of stacks. Each state's holder may use `link`.
//! A thread leaves the blocked state by one wake: its `Waiter` exists once and is consumed, its `Ticket` is drawn once.
//!
//! # Who else has a record
//! A kernel thread that blocks through this crate has one too, leaked and reused, so that the same mutex serves both.
//! It has no stack of ours; its `home` is null, and a wake goes through `futex`. While it is a virtual processor it is
//! also that processor's first user-level thread, running on the kernel thread's own stack.

use crate::link::Linked;
use crate::shared::Shared;
use crate::sync::Futex;
use std::cell::{Cell, UnsafeCell};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// A thread, as the scheduler knows it.
pub(crate) type Rec = &'static Record;

/// See the module comment. Grouped by who may write.
#[repr(C, align(64))]
pub(crate) struct Record {
    /// Whoever holds the thread's place in a queue.
    link: AtomicPtr<Record>,
    /// The processor, when it switches away from the thread.
    pub(crate) sp: Cell<*mut u8>,
    /// The processor that starts the thread, once; null before, and for a kernel thread.
    home: AtomicPtr<Shared>,
    /// References in units of `REF`, and the flags below.
    pub(crate) word: AtomicU64,
    /// The joiner, before it sets `JOINING`.
    pub(crate) joiner: Cell<Option<Rec>>,
    /// The spawner: what the thread runs.
    pub(crate) run: Cell<Option<unsafe fn(*mut u8)>>,
    /// The spawner: where closure and result are; the result comes first.
    pub(crate) packet: Cell<*mut u8>,
    /// The thread itself: it has published its waiter and must not block again, nor yield, before it is woken.
    pub(crate) blocking: Cell<bool>,
    /// Its processor, when a deadline passes.
    pub(crate) timed_out: Cell<bool>,
    /// The pool: which list the stack belongs to.
    pub(crate) class: Cell<u8>,
    /// The pool: how far the record is shifted.
    pub(crate) colour: Cell<u8>,
    /// Whoever runs `drop_result` or takes the result.
    pub(crate) has_result: Cell<bool>,

    /// The number of the wait in progress, 0 if it is over. The thread sets it; one waker takes it.
    pub(crate) ticket: AtomicU64,
    /// `park` and `unpark`.
    pub(crate) token: AtomicU64,
    /// A kernel thread's wake.
    pub(crate) futex: Futex,
    /// The spawner.
    pub(crate) id: Cell<u64>,
    /// The spawner; the last reference clears it.
    pub(crate) name: UnsafeCell<Option<Box<str>>>,
    /// The spawner: drops a result that nobody took.
    pub(crate) drop_result: Cell<Option<unsafe fn(*mut u8)>>,
    /// The pool: the lowest usable address of the stack, from the mapping itself; null for a kernel thread.
    pub(crate) bottom: Cell<*mut u8>,
}

const _: () = assert!(size_of::<Record>() == 128);

/// The result is in place.
pub(crate) const DONE: u64 = 1;
/// A thread waits for the end; `joiner` says which.
pub(crate) const JOINING: u64 = 2;
/// Nobody will join.
pub(crate) const DETACHED: u64 = 4;
/// One reference: the thread itself while it runs, its `JoinHandle`, each `Thread`.
pub(crate) const REF: u64 = 8;

// SAFETY: every field is atomic, or a cell whose one writer at a time is named above; readers other than the writer
// come after it by the release and acquire of the queue, the wake or the word that brought them the record.
unsafe impl Sync for Record {}

impl Linked for Record {
    #[inline(always)]
    fn link(&self) -> &AtomicPtr<Record> {
        &self.link
    }
}

impl Record {
    /// A kernel thread's; all bytes zero, as a stack's is at first.
    pub(crate) fn blank() -> Self {
        Self {
            link: AtomicPtr::new(ptr::null_mut()),
            sp: Cell::new(ptr::null_mut()),
            home: AtomicPtr::new(ptr::null_mut()),
            word: AtomicU64::new(0),
            joiner: Cell::new(None),
            run: Cell::new(None),
            packet: Cell::new(ptr::null_mut()),
            blocking: Cell::new(false),
            timed_out: Cell::new(false),
            class: Cell::new(0),
            colour: Cell::new(0),
            has_result: Cell::new(false),
            ticket: AtomicU64::new(0),
            token: AtomicU64::new(0),
            futex: Futex::new(0),
            id: Cell::new(0),
            name: UnsafeCell::new(None),
            drop_result: Cell::new(None),
            bottom: Cell::new(ptr::null_mut()),
        }
    }
    /// The processor that the thread belongs to.
    #[inline(always)]
    pub(crate) fn home(&self) -> Option<&'static Shared> {
        let home = self.home.load(Ordering::Relaxed);
        // SAFETY: `set_home` stored it from a `&'static Shared`, or it is null.
        unsafe { home.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn set_home(&self, home: Option<&'static Shared>) {
        self.home.store(home.map_or(ptr::null_mut(), |h| ptr::from_ref(h).cast_mut()), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn lives_on(&self, shared: &'static Shared) -> bool {
        ptr::eq(self.home.load(Ordering::Relaxed), shared)
    }

    /// The record's address, for the context switch.
    #[inline(always)]
    pub(crate) fn as_raw(&'static self) -> *const () {
        ptr::from_ref(self).cast()
    }

    pub(crate) fn acquire(&self) {
        let before = self.word.fetch_add(REF, Ordering::Relaxed);
        assert!(before < u64::MAX / 2, "more handles of one thread than a counter holds: they are being leaked");
    }

    /// Gives up one reference. `true`: it was the last, and the record is the caller's to reuse.
    #[inline(always)]
    #[must_use]
    pub(crate) fn release(&self) -> bool {
        // With one reference left, it is ours, and nobody can make another from it: no locked operation is needed.
        let word = self.word.load(Ordering::Acquire);
        word < 2 * REF || self.word.fetch_sub(REF, Ordering::AcqRel) < 2 * REF
    }
}
