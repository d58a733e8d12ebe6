//! The identity of the caller's virtual processor: its numbers, or the reason why it has none.

use crate::domain::{self, Domain};
use crate::sleep;
use std::cell::Cell;
use std::io;
use upcall_os::atomic::{AtomicU32, AtomicU64, Ordering};
use upcall_os::processor;

thread_local! {
    /// The number in the domain, plus one; 0 on other kernel threads.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
    /// The reason why it has none, although it was to poll.
    static HINDRANCE: Cell<Option<Hindrance>> = const { Cell::new(None) };
    static LIFE: Cell<u64> = const { Cell::new(0) };
    /// The index in the group.
    static INDEX: Cell<usize> = const { Cell::new(0) };
}

/// Makes the caller virtual processor `number` of the domain, with this index in its group.
pub(super) fn begin(number: usize, index: usize) {
    static LIVES: AtomicU64 = AtomicU64::new(0);
    LIFE.set(LIVES.fetch_add(1, Ordering::Relaxed) + 1);
    NUMBER.set(number + 1);
    INDEX.set(index);
}

/// Ends the caller's time as a virtual processor.
pub(super) fn end() {
    NUMBER.set(0);
    INDEX.set(0);
}

/// Sets the reason why the caller's virtual processor does not poll.
pub(super) fn set_hindrance(hindrance: Option<Hindrance>) {
    HINDRANCE.set(hindrance);
}

/// Number in this domain of the caller's virtual processor; `None` on other kernel threads, and
/// under a scheduler that does not poll channels.
#[inline]
pub(crate) fn number() -> Option<usize> {
    NUMBER.get().checked_sub(1)
}

/// Index of the caller's virtual processor in its group. Spares have the indices from the number of
/// the server's own processors on. 0 outside of a group.
#[inline]
pub fn index() -> usize {
    INDEX.get()
}

/// Publishes the CPU of the calling virtual processor `number`, and returns it.
pub(super) fn say_where(domain: &Domain, number: usize) -> u32 {
    let cpu = processor::current() as u32;
    let said = &domain.station().line(number).cpu;
    // All callers have this line in their caches, and each store takes it from them.
    if said.load(Ordering::Relaxed) != cpu {
        said.store(cpu, Ordering::Relaxed);
    }
    cpu
}

/// Returns `true` if another processor sleeps. Its word changes seldom, so the load costs nothing.
#[inline]
pub(super) fn is_asleep(domain: &Domain, other: usize) -> bool {
    sleep::seems_asleep(&domain.station().line(other).asleep)
}
/// Returns the reason why the caller's virtual processor does not poll, if its scheduler was to.
pub(crate) fn hindrance() -> Option<io::Error> {
    HINDRANCE.get().map(io::Error::from)
}

/// A virtual processor that polls channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    /// Its number in this domain, below [`MOST_PROCESSORS`](domain::MOST_PROCESSORS). After its
    /// scheduler has ended, another processor may get it.
    pub number: usize,
    /// Unique in this process, even if two processors have had the same number.
    pub life: u64,
}

impl Processor {
    /// The virtual processor of the caller; `None` on other kernel threads, and under a scheduler
    /// that does not poll channels.
    #[inline]
    pub fn current() -> Option<Self> {
        number().map(|number| Self { number, life: LIFE.get() })
    }
}

/// Stands in for an error without a number.
pub(super) const NO_MEMORY: i32 = rustix::io::Errno::NOMEM.raw_os_error();

/// The reason why a virtual processor that was to poll does not.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hindrance {
    /// All numbers of the domain are taken.
    Full,
    /// The kernel's error number.
    Kernel(i32),
}

impl From<Hindrance> for io::Error {
    fn from(hindrance: Hindrance) -> Self {
        match hindrance {
            Hindrance::Full => domain::too_many(),
            Hindrance::Kernel(errno) => Self::from_raw_os_error(errno),
        }
    }
}

/// Counts a probe. If a processor and its substitute count at once, one count may be lost.
#[inline]
pub(super) fn count_probe(probes: &AtomicU32) {
    probes.store(probes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}
