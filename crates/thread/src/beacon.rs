//! Where a tool finds the threads of a process from outside: `upcall threads PID` reads this memory
//! and stops nobody for longer than that takes.
//!
//! The ELF section `.upcall.threads` holds one [`Beacon`], which says what the rest looks like; so
//! the tool need not be of the same version as the program. Whoever changes a layout here, or the
//! meaning of a number in [`Cause`](crate::record::Cause), raises [`VERSION`]. The tool also knows
//! the scheduler's frames by the names of functions and modules (`crates/cli/src/threads/thread.rs`):
//! one from before these modules were split shows a thread that waits as running.
//!
//! ```text
//! beacon ─► slabs: newest first, each `count` slots of `slot` bytes from `base`; the record of slot i lies at
//!        │         base + i × slot + guard + usable − record − (i mod colours) × colour_step
//!        ├► kernel: records of kernel threads that have blocked through this crate, linked apart from them
//!        └► processors: virtual processors, newest first, with the thread that each runs
//! ```
//! A record with number 0 is no thread's. All three are chains of things that are never freed.

use crate::extra::Extra;
use crate::record::{Home, HomeAddress, Rec, Record};
use crate::slot::{self, record_at};
use std::cell::Cell;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use upcall_os::pages::PAGE;

/// Raised when a layout changes.
const VERSION: u32 = 1;

/// See the module comment.
#[repr(C)]
struct Beacon {
    magic: [u8; 16],
    version: u32,
    /// Of this struct, in bytes.
    size: u32,
    slabs: AtomicPtr<Slab>,
    kernel: AtomicPtr<Outsider>,
    processors: AtomicPtr<ProcessorRecord>,
    layout: BeaconLayout,
}

/// Sizes, and where in a record and in its extra things are, in bytes.
#[repr(C)]
struct BeaconLayout {
    guard: u32,
    record: u32,
    colours: u32,
    colour_step: u32,
    stack_pointer: u32,
    home: u32,
    /// One byte each.
    blocking: u32,
    cause: u32,
    object: u32,
    number: u32,
    extra: u32,
    bottom: u32,
    /// In the extra: address, then length.
    name: u32,
    /// In what `home` points to: the index of the virtual processor.
    index: u32,
}

/// A slab of stacks.
#[repr(C)]
struct Slab {
    next: *const Slab,
    base: *const u8,
    slot: usize,
    usable: usize,
    count: usize,
}

/// A kernel thread's record.
#[repr(C)]
struct Outsider {
    next: *const Outsider,
    record: Rec,
}

/// What a virtual processor says of itself: its first field.
#[repr(C)]
pub(crate) struct ProcessorRecord {
    next: Cell<*const ProcessorRecord>,
    pub(crate) current: Cell<Rec>,
    /// The kernel thread; 0 when it has stopped being a virtual processor.
    tid: AtomicU32,
    index: u32,
    /// For this process itself.
    pub(crate) home: HomeAddress,
}

#[used]
#[unsafe(link_section = ".upcall.threads")]
static BEACON: Beacon = Beacon {
    magic: *b"upcall threads\0\0",
    version: VERSION,
    size: size_of::<Beacon>() as u32,
    slabs: AtomicPtr::new(ptr::null_mut()),
    kernel: AtomicPtr::new(ptr::null_mut()),
    processors: AtomicPtr::new(ptr::null_mut()),
    layout: BeaconLayout {
        guard: PAGE as u32,
        record: size_of::<Record>() as u32,
        colours: slot::COLOURS as u32,
        colour_step: slot::COLOUR_STEP as u32,
        stack_pointer: offset_of!(Record, sp) as u32,
        home: Record::HOME_OFFSET as u32,
        blocking: Record::BLOCKING_OFFSET as u32,
        cause: Record::CAUSE_OFFSET as u32,
        object: offset_of!(Record, object) as u32,
        number: offset_of!(Record, id) as u32,
        extra: Record::EXTRA_OFFSET as u32,
        bottom: offset_of!(Record, bottom) as u32,
        name: Extra::NAME_OFFSET as u32,
        index: offset_of!(Home, index) as u32,
    },
};

/// Puts `make(next)` in front of a chain.
fn chain<T>(first: &AtomicPtr<T>, make: impl Fn(*const T) -> *mut T) {
    let mut next = first.load(Ordering::Relaxed);
    loop {
        let new = make(next);
        match first.compare_exchange_weak(next, new, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => next = now,
        }
    }
}

/// A slab was mapped.
pub(crate) fn add_slab(base: *const u8, slot: usize, usable: usize, count: usize) {
    let slab =
        ptr::from_mut(Box::leak(Box::new(Slab { next: ptr::null(), base, slot, usable, count })));
    chain(&BEACON.slabs, |next| {
        // SAFETY: nobody else has the slab before it is chained.
        unsafe { (*slab).next = next };
        slab
    });
}

/// A kernel thread's record was made.
pub(crate) fn add_kernel_record(record: Rec) {
    let outsider = ptr::from_mut(Box::leak(Box::new(Outsider { next: ptr::null(), record })));
    chain(&BEACON.kernel, |next| {
        // SAFETY: nobody else has it before it is chained.
        unsafe { (*outsider).next = next };
        outsider
    });
}

impl ProcessorRecord {
    pub(crate) fn new(home: HomeAddress, index: usize, root: Rec) -> Self {
        let tid = AtomicU32::new(upcall_os::processor::thread_id());
        Self {
            next: Cell::new(ptr::null()),
            current: Cell::new(root),
            tid,
            index: index as u32,
            home,
        }
    }

    /// The kernel thread's number; `None` when it has stopped being a virtual processor.
    pub(crate) fn tid(&self) -> Option<u32> {
        Some(self.tid.load(Ordering::Relaxed)).filter(|&tid| tid != 0)
    }

    /// The processor begins.
    pub(crate) fn put_up(&'static self) {
        chain(&BEACON.processors, |next| {
            self.next.set(next);
            ptr::from_ref(self).cast_mut()
        });
    }

    /// The processor ends.
    pub(crate) fn take_down(&self) {
        self.tid.store(0, Ordering::Relaxed);
    }
}

/// The virtual processors of the process, the ended ones too, newest first.
pub(crate) fn processors() -> impl Iterator<Item = &'static ProcessorRecord> {
    // SAFETY: a chain of posts that are never freed; each was complete before it was chained.
    let first = unsafe { BEACON.processors.load(Ordering::Acquire).as_ref() };
    // SAFETY: as above.
    std::iter::successors(first, |post| unsafe { post.next.get().as_ref() })
}

/// The records of all slots of stacks, used or not, and of all kernel threads.
pub(crate) fn records() -> impl Iterator<Item = Rec> {
    // SAFETY: a chain of slabs that are never freed; each was complete before it was chained.
    let first = unsafe { BEACON.slabs.load(Ordering::Acquire).as_ref() };
    // SAFETY: as above.
    let slabs = std::iter::successors(first, |slab| unsafe { slab.next.as_ref() });
    let in_slots = slabs.flat_map(|slab| (0..slab.count).map(|slot| slab.record(slot)));
    // SAFETY: as for slabs.
    let first = unsafe { BEACON.kernel.load(Ordering::Acquire).as_ref() };
    // SAFETY: as above.
    let outsiders = std::iter::successors(first, |outsider| unsafe { outsider.next.as_ref() });
    in_slots.chain(outsiders.map(|outsider| outsider.record))
}

impl Slab {
    fn record(&self, number: usize) -> Rec {
        let bottom = self.base.wrapping_add(number * self.slot + PAGE).cast_mut();
        let at = record_at(bottom, number % slot::COLOURS, self.usable);
        // SAFETY: inside of a slot, which is never unmapped, and where its record lies; all zero,
        // which is a valid one, if the slot was never used.
        unsafe { &*at }
    }
}
