//! The receiving end: it finds the next message by one load, and disposes of it.

mod follow;
#[cfg(not(loom))]
mod kept;

#[cfg(not(loom))]
pub use kept::ReceivedMessage;

#[cfg(not(loom))]
use super::handed::HandedNext;
use super::*;
#[cfg(not(loom))]
use crate::span::Span;
use upcall_os::atomic::Ordering;

/// Maximum number of words that the receiver follows in one probe.
///
/// An honest sender leads it to a message by two; more follow only if the sender diverts and goes
/// back at the same time. A hostile sender could lead it in a circle.
pub(super) const MOVES: usize = 4;

/// The receiving end.
#[derive(Debug)]
pub struct Incoming<M: QueueMemory> {
    /// Where messages come from now.
    area: Area<M::Words>,
    /// Where the next header is.
    next: u64,
    taken: u64,
    /// The position in this area that was last reported to the sender.
    said: u64,
    /// Words of the longest message in this area.
    longest: u64,
    told: M::Told,
    /// Set while messages come from a segment.
    away: Option<DivertedHome<M::Words>>,
    /// Number of the next segment; `run` is the segment that messages come from.
    segments: u64,
    run: SegmentRun,
    /// How often the queue has led from home to a segment.
    diversions: u64,
    /// Payloads that a sender of this process hands over.
    #[cfg(not(loom))]
    handed: HandedNext,
    memory: M,
}

impl<M: QueueMemory> Incoming<M> {
    /// The receiving end of a new queue, from which nothing was taken yet.
    ///
    /// # Panics
    /// Home has fewer than four words, more than 2^29, or not a power of two.
    pub fn new(memory: M) -> Self {
        let area = Area::new(memory.home());
        let longest = longest(area.capacity());
        Self {
            area,
            next: 0,
            taken: 0,
            said: 0,
            longest,
            told: memory.told(),
            away: None,
            segments: 0,
            run: SegmentRun::NONE,
            diversions: 0,
            #[cfg(not(loom))]
            handed: HandedNext { list: memory.handed(), payload: None },
            memory,
        }
    }

    /// Number of messages disposed of.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Counts a message that came another way while the queue was empty ([`Outgoing::skip`]).
    pub fn skip(&mut self) {
        self.taken += 1;
    }

    /// How often the messages went over to the buffer, as far as they were followed.
    pub fn diversions(&self) -> u64 {
        self.diversions
    }

    /// The memory of the queue.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Returns `true` if a message is there, or a word that leads to the place of one.
    ///
    /// It is one load, of a line that stays in this processor's cache until the sender writes it.
    #[inline]
    pub fn waits(&self) -> bool {
        self.area.word(self.next).load(Ordering::Acquire) != 0
    }

    /// The next message, where it lies; `None` if none is there.
    ///
    /// The message stays the next one until it is disposed of.
    ///
    /// # Errors
    /// The sender breaks the rules, and from then on nothing else is received; or memory cannot be
    /// mapped.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Arrived<'_, M>>, Unreadable> {
        self.peek_as(false)
    }

    /// Like [`peek`](Self::peek), but without allocation, for a signal handler.
    ///
    /// It neither allocates nor frees. It also returns `None` if the next message lies behind a
    /// segment that is not [at hand](QueueMemory::is_at_hand), now or next.
    ///
    /// # Errors
    /// As [`peek`](Self::peek).
    pub fn peek_lightly(&mut self) -> Result<Option<Arrived<'_, M>>, Unreadable> {
        self.peek_as(true)
    }

    #[inline(always)]
    fn peek_as(&mut self, lightly: bool) -> Result<Option<Arrived<'_, M>>, Unreadable> {
        let mut header = self.area.word(self.next).load(Ordering::Acquire);
        if header & MESSAGE == 0 {
            if header == 0 {
                return Ok(None);
            }
            header = self.follow(header, lightly)?;
            if header == 0 {
                return Ok(None);
            }
        }
        let (count, handler, len) =
            ((header >> 48 & SEQUENCE) as u16, (header >> 32) as u16, header as u32);
        let size = words_of(len as usize);
        let limit = self.area.left(self.next).min(self.longest);
        if header & WRAP != 0 || u64::from(count) != self.taken & SEQUENCE || size > limit {
            #[cfg(not(loom))]
            if header & WRAP != 0 && u64::from(count) == self.taken & SEQUENCE {
                // Disposing of it frees memory, which a signal handler may not.
                return match self.handed.find(len) {
                    Some(()) if lightly => Ok(None),
                    Some(()) => Ok(Some(Arrived { queue: self, handler, len, size: 1 })),
                    None => Err(Unreadable::Violation(Violation::NoHeader(header))),
                };
            }
            return Err(Unreadable::Violation(Self::violation(header, size > limit)));
        }
        Ok(Some(Arrived { queue: self, handler, len, size }))
    }

    /// Reports the counts to the memory, for statistics.
    fn count(&self) {
        let left = if self.away.is_some() { self.run.first } else { self.segments };
        self.memory.receiver_told(self.taken, left);
    }

    #[cold]
    fn violation(header: u64, long: bool) -> Violation {
        if header & WRAP != 0 {
            Violation::NoHeader(header)
        } else if long {
            Violation::Length(header as u32)
        } else {
            Violation::Sequence((header >> 48 & SEQUENCE) as u16)
        }
    }

    /// Disposes of the next message, which has `size` words.
    #[inline(always)]
    fn pass(&mut self, size: u64) {
        self.next += size;
        self.taken += 1;
        #[cfg(not(loom))]
        if self.handed.payload.is_some() {
            self.pass_handed();
        }
        // A diverted sender must learn at once that this was the last message.
        let last = || self.away.is_some() && self.area.word(self.next).load(Ordering::Relaxed) == 0;
        if self.next - self.said > self.area.mask / 4 || last() {
            self.tell();
        }
    }

    /// Drops the payload of the message that was disposed of.
    #[cfg(not(loom))]
    #[cold]
    fn pass_handed(&mut self) {
        self.handed.payload = None;
    }

    /// Reports to the sender all that was disposed of.
    ///
    /// To be called when no message waits, and when the sender waits for room. It takes the line
    /// with that word from the sender, so it should not be called more often.
    #[inline]
    pub fn tell(&mut self) {
        if self.said != self.next {
            self.said = self.next;
            match self.away {
                None => self.told.disposed.store(self.next, Ordering::Release),
                Some(_) => {
                    let place = place(self.run.first, self.next);
                    self.told.diverted.store(place, Ordering::Release);
                }
            }
            self.count();
        }
    }
}

/// A message that has arrived, where it lies. The sender can still write there.
#[derive(Debug)]
pub struct Arrived<'a, M: QueueMemory> {
    queue: &'a mut Incoming<M>,
    handler: u16,
    len: u32,
    size: u64,
}

impl<M: QueueMemory> Arrived<'_, M> {
    /// The handler that the sender named, unchecked.
    #[inline]
    pub fn handler(&self) -> u16 {
        self.handler
    }

    /// Bytes of payload.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns `true` if it has no payload.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A word of the payload; `None` beyond its end. The last word may be partly used.
    #[inline]
    pub fn word(&self, at: usize) -> Option<u64> {
        let position = at as u64;
        if position < self.size - 1 {
            let word = self.queue.area.word(self.queue.next + 1 + position);
            return Some(word.load(Ordering::Relaxed));
        }
        #[cfg(not(loom))]
        return self.handed_word(at);
        #[cfg(loom)]
        None
    }

    /// A word of a payload that was handed over.
    #[cfg(not(loom))]
    #[cold]
    fn handed_word(&self, at: usize) -> Option<u64> {
        let words = self.queue.handed.payload.as_ref()?.words();
        words[..self.len().div_ceil(8)].get(at).copied()
    }

    /// The payload.
    #[cfg(not(loom))]
    #[inline]
    pub fn payload(&self) -> Span<'_> {
        if let Some(handed) = &self.queue.handed.payload {
            let words = Span::of_words(handed.words());
            return words.part(0, self.len()).unwrap_or(words);
        }
        let payload = self.queue.area.payload(self.queue.next, self.size);
        // SAFETY: as many words are there as the length needs; they live as long as the queue, and
        // shared memory is only ever touched by atomic or opaque accesses.
        unsafe { Span::new(payload, self.len as usize) }
    }

    /// Disposes of the message: the next one appears.
    ///
    /// Its memory is the sender's again.
    #[inline]
    pub fn dispose(self) {
        self.queue.pass(self.size);
    }
}
