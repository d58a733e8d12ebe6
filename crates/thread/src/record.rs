//! The record of a thread, at the top of its own stack.
//!
//! # Why `&'static Record`
//! Stacks are never unmapped, and a stack's record is always at the same address in it, so a record
//! is memory of one type for the life of the process ("type-stable"). A pointer to a record whose
//! thread has ended is stale but not dangling. Holders of stale pointers only compare-and-swap
//! `ticket`, whose numbers are never used twice. All-zero bytes are a valid record, so a new stack
//! need not be initialised as a whole.
//!
//! # In at most one queue
//! A thread is in exactly one of these: a queue of fresh threads; running; a ready queue or inbox;
//! blocked, and then perhaps in the queue of one mutex; the pool of workers; the pool of stacks.
//! Each state's holder may use `link`. A thread leaves the blocked state by one wake: its `Waiter`
//! exists once and is consumed, and its `Ticket` is claimed once.
//!
//! # Who else has a record
//! A kernel thread that blocks through this crate has one too, leaked and reused, so that the same
//! mutex serves both. It has no stack of ours; its `home` is null, and a wake goes through `futex`.
//! While it is a virtual processor it is also that processor's first user-level thread, running on
//! the kernel thread's own stack.

use crate::extra::Extra;
use crate::link::Linked;
use crate::sync::Futex;
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// A thread, as the scheduler knows it.
pub(crate) type Rec = &'static Record;

/// See the module comment. The comment of each field names its writer first.
#[repr(C, align(64))]
pub(crate) struct Record {
    /// The holder of the thread's place in a queue.
    link: AtomicPtr<Record>,
    /// The processor, when it switches away from the thread.
    pub(crate) sp: Cell<*mut u8>,
    /// The processor that starts the thread, once; null before that, and for a kernel thread.
    home: AtomicPtr<Home>,
    /// Any thread: the references in units of `REF`, and the flags below.
    pub(crate) word: AtomicU64,
    /// The joiner, before it sets `JOINING`.
    pub(crate) joiner: AtomicPtr<Record>,
    /// The spawner: what the thread runs, and what else depends on the types of closure and result.
    /// `None` for a worker, which runs outside work.
    pub(crate) table: Cell<Option<&'static ThreadVtable>>,
    /// The spawner: the address of closure and result. The result comes first.
    pub(crate) packet: Cell<*mut u8>,
    /// The thread itself.
    pub(crate) state: Cell<WaitState>,
    /// The thread that claimed `ticket` because a deadline passed, or as if one had passed, before
    /// it wakes.
    pub(crate) timed_out: Cell<bool>,
    /// The spawner: the thread has floating-point control words of its own, in `extra`.
    pub(crate) owns_control: Cell<bool>,
    /// The pool: the size class, which names the list that the stack belongs to.
    pub(crate) class: Cell<u8>,
    /// The pool: how far the record is shifted.
    pub(crate) colour: Cell<u8>,
    /// The thread when it ends, then the caller of `drop_result` or the joiner that takes the
    /// result.
    pub(crate) has_result: Cell<bool>,

    /// The thread, then one waker: the number of the wait in progress, or 0 if it is over. The
    /// thread sets it, and one waker takes it.
    pub(crate) ticket: AtomicU64,
    /// The callers of `park` and `unpark`.
    pub(crate) token: AtomicU64,
    /// The waker, for a kernel thread.
    pub(crate) futex: Futex,
    /// The spawner.
    pub(crate) id: Cell<u64>,
    /// The joiner, with `joiner`: the number of its wait, 0 if the wait has no deadline.
    pub(crate) joiner_number: AtomicU64,
    /// The thread itself: see `WaitState::cause`.
    pub(crate) object: Cell<*const ()>,
    /// The spawner or the thread itself, once; the holder of the last reference removes it. What
    /// only few threads have.
    extra: AtomicPtr<Extra>,
    /// The pool: the lowest usable address of the stack, with the provenance of the mapping; null
    /// for a kernel thread.
    pub(crate) bottom: Cell<*mut u8>,
}

const _: () = assert!(size_of::<Record>() == 128);

/// What a record knows of the processor that its thread belongs to.
///
/// It is the first part of what other kernel threads know of that processor: see
/// [`VpShared`](crate::shared::VpShared).
#[repr(C)]
pub(crate) struct Home {
    pub(crate) index: usize,
}

/// The address of a home that is never freed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HomeAddress(NonNull<Home>);

impl HomeAddress {
    /// # Safety
    /// `home` is the beginning of a `VpShared` that is never freed, and the pointer is valid for
    /// all of it.
    #[inline(always)]
    pub(crate) unsafe fn new(home: NonNull<Home>) -> Self {
        Self(home)
    }

    #[inline(always)]
    pub(crate) fn get(self) -> NonNull<Home> {
        self.0
    }
}

/// What depends on the types of a thread's closure and result.
pub(crate) struct ThreadVtable {
    /// Runs the closure in the packet and leaves the result there.
    pub(crate) run: unsafe fn(*mut u8),
    /// Drops a result that was not taken.
    pub(crate) drop_result: unsafe fn(*mut u8),
    /// The layout of the packet.
    #[cfg(any(miri, upcall_kernel_threads))]
    pub(crate) layout: std::alloc::Layout,
}

/// Whether a thread waits, and for what.
///
/// Both are set by one store, since stores make up most of a switch between threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(2))]
pub(crate) struct WaitState {
    /// The thread has published its waiter, and must not block again or yield before it is woken.
    pub(crate) blocking: bool,
    /// With the record's `object`: what the thread waits for. For people to read; nothing depends
    /// on it.
    pub(crate) cause: Cause,
}

impl WaitState {
    pub(crate) const RUNS: Self = Self { blocking: false, cause: Cause::Other };

    /// The thread waits, or is about to.
    #[inline(always)]
    pub(crate) const fn waits(cause: Cause) -> Self {
        Self { blocking: true, cause }
    }
}

/// What a thread waits for; its `object` is in parentheses.
///
/// Tools outside the process read the numbers: see `beacon`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Cause {
    /// Something outside this crate, such as the reply to a call.
    Other = 0,
    /// The end of a thread (its record).
    Join = 1,
    /// A mutex (its address).
    Lock = 2,
    /// A read-write lock or a semaphore (its address).
    Shares = 3,
    /// A condition variable (its address).
    Condition = 4,
    /// An unpark.
    Park = 5,
    /// A time.
    Sleep = 6,
    /// Blocking work done aside.
    Blocking = 7,
    /// Outside work: a worker that has none. Such a worker is not `blocking`.
    Work = 8,
}

/// The result is in place.
pub(crate) const DONE: u64 = 1;
/// A thread waits for the end; `joiner` names it.
pub(crate) const JOINING: u64 = 2;
/// The thread will not be joined.
pub(crate) const DETACHED: u64 = 4;
/// One reference. The thread itself has one while it runs, and so do its `JoinHandle` and each
/// `Thread`.
pub(crate) const REF: u64 = 8;

// SAFETY: every field is atomic, or a cell whose one writer at a time is named above. Other readers
// come after the writer by the release and acquire of the queue, the wake or the word that brought
// them the record.
unsafe impl Sync for Record {}

impl Linked for Record {
    #[inline(always)]
    fn link(&self) -> &AtomicPtr<Record> {
        &self.link
    }
}

impl Record {
    pub(crate) const HOME_OFFSET: usize = std::mem::offset_of!(Record, home);
    pub(crate) const BLOCKING_OFFSET: usize =
        std::mem::offset_of!(Record, state) + std::mem::offset_of!(WaitState, blocking);
    pub(crate) const CAUSE_OFFSET: usize =
        std::mem::offset_of!(Record, state) + std::mem::offset_of!(WaitState, cause);
    pub(crate) const EXTRA_OFFSET: usize = std::mem::offset_of!(Record, extra);

    /// A kernel thread's record. All bytes are zero, as those of a stack's record are at first.
    pub(crate) fn blank() -> Self {
        Self {
            link: AtomicPtr::new(ptr::null_mut()),
            sp: Cell::new(ptr::null_mut()),
            home: AtomicPtr::new(ptr::null_mut()),
            word: AtomicU64::new(0),
            joiner: AtomicPtr::new(ptr::null_mut()),
            table: Cell::new(None),
            packet: Cell::new(ptr::null_mut()),
            state: Cell::new(WaitState::RUNS),
            timed_out: Cell::new(false),
            owns_control: Cell::new(false),
            class: Cell::new(0),
            colour: Cell::new(0),
            has_result: Cell::new(false),
            ticket: AtomicU64::new(0),
            token: AtomicU64::new(0),
            futex: Futex::new(0),
            id: Cell::new(0),
            joiner_number: AtomicU64::new(0),
            object: Cell::new(ptr::null()),
            extra: AtomicPtr::new(ptr::null_mut()),
            bottom: Cell::new(ptr::null_mut()),
        }
    }
    /// The home of the thread, if it has one.
    #[inline(always)]
    pub(crate) fn home(&self) -> Option<HomeAddress> {
        NonNull::new(self.home.load(Ordering::Relaxed)).map(HomeAddress)
    }

    #[inline(always)]
    pub(crate) fn set_home(&self, home: Option<HomeAddress>) {
        self.home.store(home.map_or(ptr::null_mut(), |home| home.0.as_ptr()), Ordering::Relaxed);
    }

    /// The record's address, for the context switch.
    #[inline(always)]
    pub(crate) fn as_raw(&'static self) -> *const () {
        ptr::from_ref(self).cast()
    }

    /// What only few threads have, if this one has it. The caller holds a reference.
    #[inline(always)]
    pub(crate) fn extra(&self) -> Option<&Extra> {
        // Acquire: a reader that sees the pointer sees what it points to.
        let extra = self.extra.load(Ordering::Acquire);
        // SAFETY: `extra_or_new` stored it from a box, which stays until the last reference is
        // gone.
        unsafe { extra.as_ref() }
    }

    /// As `extra`, created if need be.
    ///
    /// For the spawner before other threads know the record, and for the thread itself.
    pub(crate) fn extra_or_new(&self, new: impl FnOnce() -> Extra) -> &Extra {
        if self.extra().is_none() {
            self.extra.store(Box::into_raw(Box::new(new())), Ordering::Release);
        }
        self.extra().expect("stored just now")
    }

    /// Drops the extra. The caller holds the last reference.
    #[inline(always)]
    fn drop_extra(&self) {
        if !self.extra.load(Ordering::Relaxed).is_null() {
            let extra = self.extra.swap(ptr::null_mut(), Ordering::Relaxed);
            // SAFETY: the pointer came from a box, no other thread has a reference to the record,
            // and the pointer is taken out once.
            drop(unsafe { Box::from_raw(extra) });
        }
    }

    /// Marks the record as belonging to no thread, for tools that list threads.
    ///
    /// The caller holds the last reference.
    #[inline(always)]
    pub(crate) fn retire(&self) {
        self.drop_extra();
        self.set_home(None);
        self.id.set(0);
    }

    /// Returns `true` if this thread is a worker.
    ///
    /// A worker has a stack of ours, and no spawner has given it anything to run.
    pub(crate) fn is_worker(&self) -> bool {
        !self.bottom.get().is_null() && self.table.get().is_none()
    }

    pub(crate) fn acquire(&self) {
        let before = self.word.fetch_add(REF, Ordering::Relaxed);
        assert!(
            before < u64::MAX / 2,
            "more handles of one thread than a counter holds: they are being leaked"
        );
    }

    /// Releases one reference. Returns `true` if it was the last: the caller may then reuse the
    /// record.
    #[inline(always)]
    #[must_use]
    pub(crate) fn release(&self) -> bool {
        // If this is the last reference, no other thread can create one from it, and no locked
        // operation is needed.
        let word = self.word.load(Ordering::Acquire);
        word < 2 * REF || self.word.fetch_sub(REF, Ordering::AcqRel) < 2 * REF
    }
}
