//! The memory of a queue, every access to which is a step: a small `upcall_shm::mailbag` with the
//! same behaviour.
//!
//! Segments lie in places that are reused. Memory that was given back reads as zeros when it is
//! touched again; sometimes the kernel refuses to take it back, and it keeps its contents.
//! Sometimes there is no memory. All ends of a queue see the same words, even ends that should no
//! longer use them, so that too early a use of memory is found.

use crate::dice::Dice;
use crate::engine::Cpu;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_shm::direct::{QueueMemory, ReceiverProgress, SegmentLocation};

/// Cost of an access to a word, in ns.
const ACCESS: u64 = 3;
/// Cost of mapping a segment, and of giving one back, in ns.
const MAP: u64 = 100;
/// Number of spare segments, the same as in the product.
pub const SPARES: usize = 2;

/// The file that the sender creates and the receiver maps.
#[derive(Debug)]
pub struct File {
    home: Arc<[AtomicU64]>,
    told: Arc<ReceiverProgress>,
    inner: KernelMutex<Inner>,
    /// Number of words of a segment.
    segment: usize,
}

#[derive(Debug)]
struct Inner {
    /// By place, with whether it takes memory.
    segments: Vec<(u64, Arc<[AtomicU64]>, bool)>,
    dice: Dice,
    /// There is no memory once in this many times; 0 means never.
    short: u64,
    /// Number of segments that the sender has opened and the receiver has not left.
    held: u64,
    /// The last segment that the receiver has left, which it may not have reported yet.
    left: u64,
    /// Whether the sender is in a segment.
    is_away: bool,
}

impl File {
    /// Creates a file with this many words of home and of each segment. Once in `short` times there
    /// is no memory for a segment.
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

    /// Number of segments that the sender has opened and the receiver has not left, independent of
    /// what the two ends believe. It is 0 while the sender is at home, since then nothing waits in
    /// segments.
    pub fn held(&self) -> u64 {
        let inner = self.inner();
        if inner.is_away { inner.held } else { 0 }
    }

    /// Maximum number of segments that the sender may believe to be held from now on, until it
    /// opens another one.
    pub fn most_held(&self) -> u64 {
        let inner = self.inner();
        inner.held + inner.left
    }

    /// Size of a segment, in bytes.
    pub fn segment_bytes(&self) -> u64 {
        self.segment as u64 * 8
    }

    /// Number of segments that take memory.
    pub fn used(&self) -> usize {
        self.inner().segments.iter().filter(|segment| segment.2).count()
    }
}

fn zeros(words: usize) -> Arc<[AtomicU64]> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

/// A file as one of its ends uses it, with up to `SEGMENTS` segments at a time.
#[derive(Clone, Debug)]
pub struct Bag<const SEGMENTS: u64> {
    /// The file.
    pub file: Arc<File>,
    /// The processor of the domain at this end.
    pub cpu: Cpu,
    /// Whether this is the sender's end.
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
    /// The key of a place, for any number.
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
            // Its place is not reused soon.
            if SEGMENTS > 64 {
                inner.segments.swap_remove(at);
            }
        }
    }
}

/// Shared data, each access to which is a step.
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
