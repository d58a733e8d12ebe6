//! Where a tool finds the threads of a process from outside.
//!
//! `upcall threads PID` reads this memory, and stops the process only for as long as that takes.
//!
//! The ELF section `.upcall.threads` holds one [`Beacon`], which describes the layout of the rest,
//! so the tool need not be of the same version as the program. Raise [`VERSION`] with each change
//! to a layout here or to the meaning of a number in [`Cause`](crate::record::Cause). The tool also
//! recognises the scheduler's frames by the names of functions and modules
//! (`crates/cli/src/threads/thread.rs`): a tool older than the present division into modules shows
//! a waiting thread as running.
//!
//! ```text
//! beacon ─┬► slabs: newest first, each `count` slots of `slot` bytes from `base`; the record of
//!         │         slot i lies at
//!         │         base + i × slot + guard + usable − record − (i mod colours) × colour_step
//!         ├► kernel: records of kernel threads that have blocked through this crate, each in a
//!         │         node of its own
//!         └► processors: virtual processors, newest first, each with the thread that it runs
//! ```
//! A record whose number is 0 belongs to no thread. The members of all three chains are never
//! freed.

use crate::extra::Extra;
use crate::record::{Home, HomeAddress, Rec, Record};
use crate::slot::{self, record_at};
use std::cell::Cell;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use upcall_os::pages::PAGE;

/// Version of the layout, to be raised when a layout changes.
const VERSION: u32 = 1;

/// See the module comment.
#[repr(C)]
struct Beacon {
    magic: [u8; 16],
    version: u32,
    /// Size of this struct, in bytes.
    size: u32,
    slabs: AtomicPtr<Slab>,
    kernel: AtomicPtr<Outsider>,
    processors: AtomicPtr<ProcessorRecord>,
    layout: BeaconLayout,
}

/// Sizes, and offsets of fields in a record and in its extra, in bytes.
#[repr(C)]
struct BeaconLayout {
    guard: u32,
    record: u32,
    colours: u32,
    colour_step: u32,
    stack_pointer: u32,
    home: u32,
    /// The two fields at these offsets take one byte each.
    blocking: u32,
    cause: u32,
    object: u32,
    number: u32,
    extra: u32,
    bottom: u32,
    /// Offset in the extra of the name's address, which its length follows.
    name: u32,
    /// Offset of the virtual processor's index in what `home` points to.
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

/// A node that holds the record of a kernel thread.
#[repr(C)]
struct Outsider {
    next: *const Outsider,
    record: Rec,
}

/// What a virtual processor publishes about itself: its first field.
#[repr(C)]
pub(crate) struct ProcessorRecord {
    next: Cell<*const ProcessorRecord>,
    pub(crate) current: Cell<Rec>,
    /// The number of its kernel thread; 0 when that has stopped being a virtual processor.
    tid: AtomicU32,
    index: u32,
    /// Used by this process itself, not by the tool.
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

/// Puts `make(next)` at the front of a chain.
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

/// Adds a slab that has been mapped.
pub(crate) fn add_slab(base: *const u8, slot: usize, usable: usize, count: usize) {
    let slab =
        ptr::from_mut(Box::leak(Box::new(Slab { next: ptr::null(), base, slot, usable, count })));
    chain(&BEACON.slabs, |next| {
        // SAFETY: no other thread has the slab before it is chained.
        unsafe { (*slab).next = next };
        slab
    });
}

/// Adds the new record of a kernel thread.
pub(crate) fn add_kernel_record(record: Rec) {
    let outsider = ptr::from_mut(Box::leak(Box::new(Outsider { next: ptr::null(), record })));
    chain(&BEACON.kernel, |next| {
        // SAFETY: no other thread has the node before it is chained.
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

    /// The number of its kernel thread; `None` when that has stopped being a virtual processor.
    pub(crate) fn tid(&self) -> Option<u32> {
        Some(self.tid.load(Ordering::Relaxed)).filter(|&tid| tid != 0)
    }

    /// Publishes the processor, which begins.
    pub(crate) fn put_up(&'static self) {
        chain(&BEACON.processors, |next| {
            self.next.set(next);
            ptr::from_ref(self).cast_mut()
        });
    }

    /// Marks the processor as ended.
    pub(crate) fn take_down(&self) {
        self.tid.store(0, Ordering::Relaxed);
    }
}

/// The virtual processors of the process, including those that have ended, newest first.
pub(crate) fn processors() -> impl Iterator<Item = &'static ProcessorRecord> {
    // SAFETY: the posts of the chain are never freed, and each was complete before it was chained.
    let first = unsafe { BEACON.processors.load(Ordering::Acquire).as_ref() };
    // SAFETY: as above.
    std::iter::successors(first, |post| unsafe { post.next.get().as_ref() })
}

/// The records of all slots, used or not, and of all kernel threads.
pub(crate) fn records() -> impl Iterator<Item = Rec> {
    // SAFETY: the slabs of the chain are never freed, and each was complete before it was chained.
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
        // SAFETY: the address is that of a record in a slot, and a slot is never unmapped. In a
        // slot that was never used all bytes are zero, which is a valid record.
        unsafe { &*at }
    }
}
