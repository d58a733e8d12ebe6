//! The memory of a queue, every access to which is a step: as `upcall_shm::mailbag` in small, and
//! with its habits.
//!
//! Segments lie in places that are used over again. What was given back is there again, as zeros,
//! when it is touched; sometimes the kernel refuses to take it back, and it is there as it was.
//! Sometimes there is no memory. All ends of a queue see the same words, whoever still has them, so
//! that who uses memory too early is found.

use crate::dice::Dice;
use crate::engine::Cpu;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_shm::direct::{QueueMemory, ReceiverProgress, SegmentLocation};

/// An access to a word, in ns.
const ACCESS: u64 = 3;
/// Mapping a segment, and giving one back.
const MAP: u64 = 100;
/// As many as the product's.
pub const SPARES: usize = 2;

/// What the sender makes and the receiver maps.
#[derive(Debug)]
pub struct File {
    home: Arc<[AtomicU64]>,
    told: Arc<ReceiverProgress>,
    inner: KernelMutex<Inner>,
    /// Words of a segment.
    segment: usize,
}

#[derive(Debug)]
struct Inner {
    /// By place, and whether it takes memory.
    segments: Vec<(u64, Arc<[AtomicU64]>, bool)>,
    dice: Dice,
    /// Once in so many times there is no memory; 0: never.
    short: u64,
    /// Segments that the sender has opened and the receiver has not left.
    held: u64,
    /// The last that the receiver has left: it has not said so yet, perhaps.
    left: u64,
    /// The sender is in one.
    is_away: bool,
}

impl File {
    /// A file with so many words of home and of each segment; once in `short` times there is no
    /// memory for one.
    pub fn new(home: usize, segment: usize, short: u64, dice: Dice) -> Arc<Self> {
        let inner = KernelMutex::new(Inner {
            segments: Vec::new(),
            dice,
            short,
            held: 0,
            left: 0,
            is_away: false,
        });
        Arc::new(Self { home: zeros(home), told: Arc::default(), inner, segment })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// How many segments the sender has opened which the receiver has not left, whatever the two
    /// ends believe. None while the sender is at home: then nothing waits in them.
    pub fn held(&self) -> u64 {
        let inner = self.inner();
        if inner.is_away { inner.held } else { 0 }
    }

    /// The most that the sender may believe to be held from now on, until it opens another one.
    pub fn most_held(&self) -> u64 {
        let inner = self.inner();
        inner.held + inner.left
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> u64 {
        self.segment as u64 * 8
    }

    /// How many segments take memory.
    pub fn used(&self) -> usize {
        self.inner().segments.iter().filter(|segment| segment.2).count()
    }
}

fn zeros(words: usize) -> Arc<[AtomicU64]> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

/// A file in the hands of one of the ends, which may have so many segments at a time.
#[derive(Clone, Debug)]
pub struct Bag<const SEGMENTS: u64> {
    /// The file.
    pub file: Arc<File>,
    /// Of the domain whose end it is.
    pub cpu: Cpu,
    /// Whether that is the sender.
    pub sends: bool,
}

impl<const SEGMENTS: u64> QueueMemory for Bag<SEGMENTS> {
    type Words = Watched<Arc<[AtomicU64]>>;
    type Told = Watched<Arc<ReceiverProgress>>;
    const SEGMENTS: u64 = SEGMENTS;
    const SPARES: usize = SPARES;

    fn home(&self) -> Self::Words {
        Watched { it: self.file.home.clone(), cpu: self.cpu.clone() }
    }

    fn told(&self) -> Self::Told {
        Watched { it: self.file.told.clone(), cpu: self.cpu.clone() }
    }

    fn segment_words(&self) -> u64 {
        self.file.segment as u64
    }

    fn segment(&mut self, place: SegmentLocation) -> io::Result<Self::Words> {
        let key = Self::key(place);
        self.cpu.spend(MAP);
        let mut inner = self.file.inner();
        let short = inner.short;
        if short > 0 && inner.dice.once_in(short) {
            self.cpu.count(|seen| seen.without_memory += u64::from(!self.sends));
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let at = inner.segments.iter().position(|segment| segment.0 == key).unwrap_or_else(|| {
            inner.segments.push((key, zeros(self.file.segment), false));
            inner.segments.len() - 1
        });
        let (_, words, used) = &mut inner.segments[at];
        *used |= self.sends;
        let it = words.clone();
        inner.held += u64::from(self.sends);
        drop(inner);
        self.cpu.count(|seen| seen.diverts += u64::from(self.sends));
        self.cpu.event(if self.sends { "opens segment" } else { "enters segment" }, key, 0);
        Ok(Watched { it, cpu: self.cpu.clone() })
    }

    fn leave(&mut self, place: SegmentLocation) {
        self.cpu.event("leaves segment", Self::key(place), 0);
        let mut inner = self.file.inner();
        (inner.held, inner.left) = (inner.held - 1, 1);
        drop(inner);
        if let SegmentLocation::Row { .. } = place {
            self.give_back(place);
        }
    }

    fn shrink(&mut self, spare: u8) {
        self.cpu.event("gives back spare", spare.into(), 0);
        self.give_back(SegmentLocation::Spare(spare));
    }

    fn sender_moved(&self, _sent: u64, is_away: bool, _segments: u64) {
        self.file.inner().is_away = is_away;
    }
}

impl<const SEGMENTS: u64> Bag<SEGMENTS> {
    /// Of a place, whatever the number.
    fn key(place: SegmentLocation) -> u64 {
        match place {
            SegmentLocation::Row { number, many } => {
                assert_eq!(many, 1, "messages that need several segments are not simulated");
                number % SEGMENTS
            }
            SegmentLocation::Spare(spare) => SEGMENTS + u64::from(spare),
        }
    }

    fn give_back(&self, place: SegmentLocation) {
        self.cpu.spend(MAP);
        let mut inner = self.file.inner();
        let refused = inner.dice.once_in(3);
        let left = inner.segments.iter().position(|segment| segment.0 == Self::key(place));
        if let Some(at) = left {
            let (_, words, used) = &mut inner.segments[at];
            if !refused {
                words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            }
            *used = false;
            // Its place does not come again soon.
            if SEGMENTS > 64 {
                inner.segments.swap_remove(at);
            }
        }
    }
}

/// Something that is shared: to touch it is a step.
pub struct Watched<T> {
    it: T,
    cpu: Cpu,
}

impl<T: Deref> Deref for Watched<T> {
    type Target = T::Target;

    fn deref(&self) -> &T::Target {
        self.cpu.spend(ACCESS);
        &self.it
    }
}

impl<T> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({:?})", self.cpu)
    }
}
