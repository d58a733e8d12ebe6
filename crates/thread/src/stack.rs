//! Stacks: where they come from, how they are guarded, and where free ones are kept.
//!
//! **Slabs.** Slots are carved from slabs of at least 16 MiB, so the number of kernel mappings
//! stays small: adjoining slabs merge into one. Slabs are reserved without commitment; a thread
//! that has run a little costs the one page at the top of its slot, 4 KiB. Slabs are never
//! unmapped, which is what makes records type-stable (see `record`).
//!
//! **Guards.** `MADV_GUARD_INSTALL` (Linux 6.13) makes the lowest page fault without splitting the
//! mapping. Where the kernel is older, or a filter (seccomp) refuses the advice, `mprotect` does it
//! and splits the mapping. That takes two map entries a stack, so that the default
//! `vm.max_map_count` of 65 530 ends at some 32 700 stacks; spawning more fails with an error that
//! explains this. Where other advice is refused, the only cost is memory.
//!
//! **Pools.** A processor keeps up to 256 free slots of each small class, last used first. Beyond
//! that, half go to the process, in one step, and come back the same way. The process keeps all of
//! them with their memory while they are in use: a page fault costs more than all else in the life
//! of a thread (2.5 µs here, against 0.05). An idle processor gives slots that have not been needed
//! for a second back to the kernel (`MADV_DONTNEED`), a few at a time. From then on they cost only
//! address space, and a page fault when they are used again. Of each small class 256 MiB are kept
//! for good (4096 slots of 64 KiB, which hold 16 MiB if each was used lightly); of slots above 256
//! KiB none.

use crate::beacon;
use crate::link::Lifo;
use crate::record::{Rec, Record};
use crate::slot::{self, CLASSES, COLOURS, record_at, usable};
use std::collections::{TryReserveError, VecDeque};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use upcall_os::pages::{self, PAGE};

/// Number of classes that are kept warm.
const SMALL_CLASSES: usize = 5;
const SLAB: usize = 16 * 1024 * 1024;
const LOCAL_MOST: usize = 256;
const BATCH: usize = 128;
const COLD_BATCH: usize = 16;
/// Bytes that the slots of one class kept warm for good may hold, if each was used to its bottom.
const KEPT_BYTES: usize = 256 << 20;
/// Time without need after which the other slots are given back.
const KEEP: Duration = Duration::from_secs(1);
/// Maximum number given back in one step, which takes a quarter of a millisecond.
const TRIM_BATCH: usize = 256;

/// Default size of a stack, in bytes.
pub const DEFAULT_STACK_SIZE: usize = 64 * 1024;

/// Default size of the stacks that outside work runs on, in bytes.
///
/// Outside work is calls from other domains, and handlers. Its code may need a deep stack, as a
/// JSON or JPEG decoder does, and there are as many of these stacks as pieces of work at once. A
/// stack takes memory only where it is used.
pub const DEFAULT_WORK_STACK_SIZE: usize = 1024 * 1024;

/// Bytes at the top of an idle worker's stack that stay warm.
const WARM: usize = 64 * 1024;

/// The free stacks of one virtual processor.
pub(crate) struct Cache {
    free: [Lifo<Record>; SMALL_CLASSES],
}

impl Cache {
    pub(crate) fn new() -> Self {
        Self { free: [const { Lifo::new() }; SMALL_CLASSES] }
    }

    #[inline(always)]
    pub(crate) fn take(&self, class: u8) -> io::Result<Rec> {
        if let Some(rec) = self.free.get(usize::from(class)).and_then(Lifo::pop) {
            return Ok(rec);
        }
        self.refill(class)
    }

    #[cold]
    fn refill(&self, class: u8) -> io::Result<Rec> {
        let Some(free) = self.free.get(usize::from(class)) else {
            return pool().take(class);
        };
        let mut pool = pool();
        let first = pool.take(class)?;
        for _ in 0..pool.worth_taking(class) {
            let Ok(rec) = pool.take(class) else { break };
            free.push(rec);
        }
        Ok(first)
    }

    #[inline(always)]
    pub(crate) fn give(&self, rec: Rec) {
        let Some(free) = self.free.get(usize::from(rec.class.get())) else {
            return pool().give(rec);
        };
        free.push(rec);
        if free.len() > LOCAL_MOST {
            Self::spill(free, BATCH);
        }
    }

    #[cold]
    fn spill(free: &Lifo<Record>, count: usize) {
        let mut pool = pool();
        for rec in std::iter::from_fn(|| free.pop()).take(count) {
            pool.give(rec);
        }
    }

    /// Gives all stacks to the process, when the processor ends.
    pub(crate) fn empty(&self) {
        for free in &self.free {
            Self::spill(free, usize::MAX);
        }
    }
}

/// Returns a stack from a kernel thread that has no cache.
pub(crate) fn give_from_outside(rec: Rec) {
    pool().give(rec);
}

/// The free stacks of the process.
struct StackPool {
    classes: [SizeClass; CLASSES],
    /// Time of the last check of `fewest`; `None` if no class has more than it keeps.
    looked_at: Option<Instant>,
}

struct SizeClass {
    /// Number of slots in all slabs. Each list has room for all of them.
    slots: usize,
    /// Slots with a record and with their memory; the last used last.
    warm: VecDeque<Rec>,
    /// Lowest number of warm slots since the last check: this many were not needed.
    fewest: usize,
    /// Number of warm slots to give back.
    surplus: usize,
    /// Slots without memory: their lowest usable address, and their colour.
    cold: Vec<(Bottom, u8)>,
    /// The rest of the newest slab.
    uncarved: Vec<(Bottom, u8)>,
}

/// The lowest usable address of a slot.
#[derive(Clone, Copy)]
struct Bottom(*mut u8);
// SAFETY: a plain address of memory that belongs to the pool.
unsafe impl Send for Bottom {}

static POOL: Mutex<StackPool> =
    Mutex::new(StackPool { classes: [const { SizeClass::new() }; CLASSES], looked_at: None });

/// Set when the kernel does not know `MADV_GUARD_INSTALL`, or a filter refuses it.
///
/// The advice is not tried again then.
static NO_GUARDS: AtomicBool = AtomicBool::new(false);

fn pool() -> std::sync::MutexGuard<'static, StackPool> {
    // A panic in the pool's few lines leaves its lists consistent.
    POOL.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl StackPool {
    fn take(&mut self, class: u8) -> io::Result<Rec> {
        let index = usize::from(class);
        let known = &mut self.classes[index];
        if let Some(rec) = known.warm.pop_back() {
            known.fewest = known.fewest.min(known.warm.len());
            return Ok(rec);
        }
        if let Some((bottom, colour)) = known.cold.pop() {
            return Ok(inscribe(bottom, colour, class));
        }
        if known.uncarved.is_empty() {
            known.map_slab(class)?;
        }
        let (bottom, colour) = known.uncarved.pop().expect("a slab holds at least one slot");
        if let Err(error) = guard(bottom) {
            known.uncarved.push((bottom, colour));
            return Err(error);
        }
        Ok(inscribe(bottom, colour, class))
    }

    /// Number of further slots that a cache should take along: many if they are warm, few if they
    /// are not.
    fn worth_taking(&self, class: u8) -> usize {
        let known = &self.classes[usize::from(class)];
        let makeable = known.cold.len() + known.uncarved.len();
        if known.warm.is_empty() { makeable.min(COLD_BATCH) } else { known.warm.len().min(BATCH) }
    }

    fn give(&mut self, rec: Rec) {
        let index = usize::from(rec.class.get());
        let known = &mut self.classes[index];
        if index < SMALL_CLASSES {
            known.warm.push_back(rec);
            if known.warm.len() > kept(rec.class.get()) && self.looked_at.is_none() {
                self.looked_at = Some(Instant::now());
                SURPLUS.store(true, Ordering::Relaxed);
            }
            return;
        }
        known.cold.push(cool(rec));
    }
}

/// Number of slots of a class that stay warm for good.
const fn kept(class: u8) -> usize {
    KEPT_BYTES / usable(class)
}

/// Returns `true` if there is anything to [`trim`]. Costs one load.
#[inline(always)]
pub(crate) fn wants_trim() -> bool {
    SURPLUS.load(Ordering::Relaxed)
}

/// Gives back some of the slots that have not been needed for a second.
///
/// At the `end`, gives back all except those that are kept. Returns when to call this again.
#[cold]
pub(crate) fn trim(now: Instant, end: bool) -> Option<Instant> {
    let mut pool = pool();
    let looked_at = pool.looked_at?;
    let look = now >= looked_at + KEEP || end;
    let mut unwanted = Vec::new();
    let mut more = false;
    for (class, known) in (0_u8..).zip(&mut pool.classes[..SMALL_CLASSES]) {
        let most = known.warm.len().saturating_sub(kept(class));
        if look {
            known.surplus = if end { most } else { known.fewest.min(most) };
            known.fewest = known.warm.len();
        }
        known.surplus = known.surplus.min(most);
        let count = if end {
            known.surplus
        } else {
            known.surplus.min(TRIM_BATCH - unwanted.len().min(TRIM_BATCH))
        };
        // Without memory for the list, the slots stay for now.
        let count = if unwanted.try_reserve(count).is_ok() { count } else { 0 };
        known.surplus -= count;
        unwanted.extend(known.warm.drain(..count));
        known.fewest = known.fewest.min(known.warm.len());
        more |= known.surplus > 0;
    }
    let excess = (0_u8..)
        .zip(&pool.classes[..SMALL_CLASSES])
        .any(|(class, known)| known.warm.len() > kept(class));
    pool.looked_at = match (excess, look) {
        (false, _) => None,
        (true, true) => Some(now),
        (true, false) => Some(looked_at),
    };
    let next = pool.looked_at.map(|at| if more { now } else { at + KEEP });
    SURPLUS.store(pool.looked_at.is_some(), Ordering::Relaxed);
    drop(pool);
    // Without the lock, since other threads may want stacks now.
    for rec in unwanted {
        let (class, slot) = (rec.class.get(), cool(rec));
        self::pool().classes[usize::from(class)].cold.push(slot);
    }
    next
}

/// Set while the pool has more than it keeps.
static SURPLUS: AtomicBool = AtomicBool::new(false);

/// Gives the memory of a free slot back to the kernel.
fn cool(rec: Rec) -> (Bottom, u8) {
    let (bottom, colour) = (rec.bottom.get(), rec.colour.get());
    // SAFETY: the slot is free, so the contents of its stack and record are not needed; a stale
    // ticket finds zero.
    unsafe { pages::discard(bottom, usable(rec.class.get())) };
    (Bottom(bottom), colour)
}

impl SizeClass {
    const fn new() -> Self {
        Self {
            slots: 0,
            warm: VecDeque::new(),
            fewest: 0,
            surplus: 0,
            cold: Vec::new(),
            uncarved: Vec::new(),
        }
    }

    /// Makes room in all lists for `more` slots, so that returning a slot never fails.
    fn reserve(&mut self, class: u8, more: usize) -> Result<(), TryReserveError> {
        let slots = self.slots + more;
        self.uncarved.try_reserve(more)?;
        self.cold.try_reserve(slots - self.cold.len())?;
        if usize::from(class) < SMALL_CLASSES {
            self.warm.try_reserve(slots - self.warm.len())?;
        }
        Ok(())
    }

    fn map_slab(&mut self, class: u8) -> io::Result<()> {
        let slot = PAGE + usable(class);
        let count = (SLAB / slot).max(1);
        self.reserve(class, count).map_err(|_| {
            io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!("no memory to list {count} stacks of {} bytes", usable(class)),
            )
        })?;
        let base = pages::reserve(count * slot).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("no address space for {count} stacks of {} bytes: {error}", usable(class)),
            )
        })?;
        beacon::add_slab(base.as_ptr(), slot, usable(class), count);
        // Slots are popped from the back: the lowest first, so that neighbours are used together.
        for at in (0..count).rev() {
            let bottom = base.as_ptr().wrapping_add(at * slot + PAGE);
            self.uncarved.push((Bottom(bottom), (at % COLOURS) as u8));
        }
        self.slots += count;
        Ok(())
    }
}

fn guard(bottom: Bottom) -> io::Result<()> {
    let page = bottom.0.wrapping_sub(PAGE);
    if !NO_GUARDS.load(Ordering::Relaxed) {
        // SAFETY: the page below a slot's usable part belongs to the slot and is otherwise unused.
        match unsafe { pages::install_guard(page) } {
            Ok(()) => return Ok(()),
            // A lack of memory may have passed by the next time.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN)) => {}
            Err(_) => NO_GUARDS.store(true, Ordering::Relaxed),
        }
    }
    // SAFETY: as above.
    unsafe { pages::protect(page) }.map_err(|error| {
        io::Error::new(
            error.kind(),
            format!(
                "no guard page for another stack: {error}. MADV_GUARD_INSTALL (Linux 6.13) is not \
                 available here, so each stack takes two entries of the memory map; raise \
                 vm.max_map_count, or keep fewer threads alive"
            ),
        )
    })
}

/// Checks that stacks of a class are available, by taking one and giving it back.
pub(crate) fn probe(class: u8) -> io::Result<()> {
    let mut pool = pool();
    let rec = pool.take(class)?;
    pool.give(rec);
    Ok(())
}

/// Gives the memory of an idle worker's stack back to the kernel.
///
/// [`WARM`] bytes at the top of the stack are kept.
///
/// # Safety
/// The worker is suspended, and `sp` is where its stack ends. Or it is the running thread, and `sp`
/// lies below all of its frames except those that begin after this.
pub(crate) unsafe fn cool_below(rec: Rec, sp: *mut u8) {
    let bottom = rec.bottom.get();
    // One page for the red zone and for frames of this module.
    let used = sp.addr().saturating_sub(PAGE) & !(PAGE - 1);
    let warm = (slot::top(rec).addr() - WARM.min(usable(rec.class.get()))) & !(PAGE - 1);
    let bytes = used.min(warm).saturating_sub(bottom.addr());
    if bytes > 0 {
        // SAFETY: the range lies between the stack's bottom and all of its frames, by the caller's
        // promise.
        unsafe { pages::discard(bottom, bytes) };
    }
}

/// Writes what the pool knows into the record of a slot whose memory is zero.
fn inscribe(bottom: Bottom, colour: u8, class: u8) -> Rec {
    let at = record_at(bottom.0, usize::from(colour), usable(class));
    // SAFETY: the address is in the slot, aligned to 64 by construction, and never unmapped; zero
    // bytes are a valid record. Every later access goes through the cells and atomics of this same
    // shared reference.
    let rec: Rec = unsafe { &*at };
    rec.class.set(class);
    rec.colour.set(colour);
    rec.bottom.set(bottom.0);
    rec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_comes_back_with_its_place_and_without_its_memory() {
        // A class that is never kept warm, so that it is discarded at once.
        let class = slot::class_for(1 << 20, 0).unwrap();
        let rec = pool().take(class).unwrap();
        let (bottom, colour) = (rec.bottom.get(), rec.colour.get());
        assert_eq!(slot::top(rec).addr() % 64, 0);
        assert!(bottom.addr().is_multiple_of(PAGE) && slot::top(rec) > bottom);
        rec.ticket.store(99, Ordering::Relaxed);
        pool().give(rec);
        assert_eq!(rec.ticket.load(Ordering::Relaxed), 0, "a stale ticket finds zero");
        let again = pool().take(class).unwrap();
        assert_eq!((again.bottom.get(), again.colour.get()), (bottom, colour));
        pool().give(again);
    }

    #[test]
    fn stacks_that_nobody_wants_are_given_back_after_a_while() {
        // A class that no other test of this crate uses.
        let class = slot::class_for(200 * 1024, 0).unwrap();
        let more = kept(class) + 3 * TRIM_BATCH / 2;
        let taken: Vec<_> = (0..more).map(|_| pool().take(class).unwrap()).collect();
        taken.iter().for_each(|rec| rec.ticket.store(99, Ordering::Relaxed));
        taken.iter().for_each(|&rec| pool().give(rec));
        let warm = || pool().classes[usize::from(class)].warm.len();
        assert!(wants_trim() && warm() == more);
        let given = Instant::now();
        assert!(trim(given, false).is_some_and(|next| next > given), "not yet");
        let first = given + KEEP;
        assert!(trim(first, false).is_some());
        assert_eq!(warm(), more, "what was given back just now may be wanted again");
        // Now more are needed than are kept for good.
        let wanted: Vec<_> =
            (0..kept(class) + TRIM_BATCH).map(|_| pool().take(class).unwrap()).collect();
        wanted.into_iter().for_each(|rec| pool().give(rec));
        let second = first + KEEP;
        trim(second, false);
        assert_eq!(warm(), kept(class) + TRIM_BATCH, "as many stay as were needed");
        let third = second + KEEP;
        while trim(third, false) == Some(third) {}
        assert_eq!(warm(), kept(class));
        assert_eq!(
            taken[0].ticket.load(Ordering::Relaxed),
            0,
            "the oldest went first, and its memory with it"
        );
        assert!(!wants_trim(), "and nothing is left to do");
    }
}
