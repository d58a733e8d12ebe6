//! The sending end: it describes a message in place, and launches it by a store.

mod divert;
#[cfg(not(loom))]
mod hand;

use super::*;
#[cfg(not(loom))]
use crate::span::WritableSpan;
#[cfg(not(loom))]
use std::sync::Arc;
use upcall_os::atomic::Ordering;

/// The sending end.
#[derive(Debug)]
pub struct Outgoing<M: QueueMemory> {
    /// Where messages go now.
    area: Area<M::Words>,
    /// Where the next header goes.
    next: u64,
    /// Positions below this may be written, as of the last read of the receiver's word. In a
    /// segment it is 0, so that each message checks whether the queue can go home.
    until: u64,
    sent: u64,
    /// Words of the longest message.
    longest: u64,
    told: M::Told,
    /// Set while messages go to a segment.
    away: Option<DivertedHome<M::Words>>,
    /// Number of the next segment; `run` is the segment that messages go to.
    segments: u64,
    run: SegmentRun,
    /// `true` if the queue does not go home any more once it is diverted.
    stays: bool,
    /// The receiver's place in the segments, as it was last read.
    diverted: u64,
    spares: Box<[Spare]>,
    /// `direct`: messages sent before the last diversion. `came_home`: messages that went to
    /// segments before the queue last came home.
    direct: u64,
    came_home: u64,
    memory: M,
}

#[derive(Clone, Copy, Debug, Default)]
struct Spare {
    /// Number of the segment after the segment that the spare last was.
    free_at: u64,
    /// `true` if it may have pages.
    touched: bool,
}

impl<M: QueueMemory> Outgoing<M> {
    /// The sending end of a new queue: all words of its home and of its receiver are 0.
    ///
    /// # Panics
    /// Home has fewer than four words, more than 2^29, or not a power of two.
    pub fn new(memory: M) -> Self {
        // The last segment may still be read when the next one is needed.
        const { assert!(M::SEGMENTS >= 2 && M::SPARES < 255, "a queue has at least two segments") };
        let area = Area::new(memory.home());
        let (until, longest) = (area.capacity(), longest(area.capacity()));
        let told = memory.told();
        Self {
            area,
            next: 0,
            until,
            sent: 0,
            longest,
            told,
            away: None,
            segments: 0,
            run: SegmentRun::NONE,
            spares: vec![Spare::default(); M::SPARES].into(),
            stays: false,
            diverted: 0,
            direct: 0,
            came_home: 0,
            memory,
        }
    }

    /// The memory of the queue.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Maximum number of bytes of payload that go the direct path.
    pub fn most_directly(&self) -> usize {
        (self.longest as usize - 1) * 8
    }

    /// A count that grows when the receiver reports that it has taken something.
    pub fn progress(&self) -> u64 {
        self.told
            .disposed
            .load(Ordering::Acquire)
            .wrapping_add(self.told.diverted.load(Ordering::Acquire))
    }

    /// Returns `true` if messages go to segments now.
    pub fn is_diverted(&self) -> bool {
        self.away.is_some()
    }

    /// Number of segments whose messages are not reported as disposed of.
    pub fn buffered(&self) -> u64 {
        match self.away {
            None => 0,
            // The receiver leaves the last segment only when it is led on. A sender that stays
            // diverted does not lead it on, so an empty queue counts as 0.
            Some(_) if self.is_empty() => 0,
            Some(_) => {
                self.segments
                    - (self.told.diverted.load(Ordering::Acquire) / STRIDE).min(self.segments)
            }
        }
    }

    /// Number of messages sent.
    #[inline(always)]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Number of messages that have gone to segments so far.
    ///
    /// It is computed from counts that are kept anyway, so that no message pays for it.
    pub fn ever_buffered(&self) -> u64 {
        self.came_home + if self.away.is_some() { self.sent - self.direct } else { 0 }
    }

    /// Returns `true` if all launched messages are reported as disposed of.
    ///
    /// The receiver does not report at once ([`Incoming::tell`]).
    pub fn is_empty(&self) -> bool {
        match self.away {
            None => self.told.disposed.load(Ordering::Acquire) == self.next,
            Some(_) => self.told.diverted.load(Ordering::Acquire) == self.place_in_segments(),
        }
    }

    /// Sends a message of whole words. Never blocks.
    ///
    /// # Errors
    /// See [`SendRefusal`]; then nothing was sent.
    #[inline]
    pub fn try_send(&mut self, handler: u16, payload: &[u64]) -> Result<(), SendRefusal> {
        let draft = self.describe(handler, payload.len() * 8)?;
        draft.put_all(payload);
        draft.launch();
        Ok(())
    }

    /// Finds room for a message of `len` bytes, to be written there and launched.
    ///
    /// Never blocks.
    ///
    /// # Errors
    /// See [`SendRefusal`].
    #[inline]
    pub fn describe(&mut self, handler: u16, len: usize) -> Result<Draft<'_, M>, SendRefusal> {
        let size = words_of(len);
        if size > self.longest {
            return self.describe_outsized(handler, len);
        }
        let (mut begin, mut end) = self.place(size);
        // One more for the 0 in the place of the next header.
        if end >= self.until {
            (begin, end) = self.find_room(size)?;
        }
        Ok(Draft { queue: self, handler, len: len as u32, begin, end })
    }

    /// Counts a message that has gone another way while the queue was empty.
    ///
    /// The other end counts it as well ([`Incoming::skip`]) before it reads a later one.
    pub fn skip(&mut self) {
        self.sent += 1;
        if self.away.is_some() {
            self.direct += 1;
        }
    }

    /// Where a message of `size` words would lie.
    #[inline(always)]
    fn place(&self, size: u64) -> (u64, u64) {
        let left = self.area.left(self.next);
        let begin = if size <= left { self.next } else { self.next + left };
        (begin, begin + size)
    }

    /// Makes the message from `begin` to `end` visible as a whole.
    #[inline(always)]
    fn launch(&mut self, header: u64, begin: u64, end: u64) {
        self.area.word(end).store(0, Ordering::Relaxed);
        if begin == self.next {
            self.area.word(begin).store(header, Ordering::Release);
        } else {
            self.area.word(begin).store(header, Ordering::Relaxed);
            self.area.word(self.next).store(WRAP, Ordering::Release);
        }
        self.bring_near(end);
        self.next = end;
        self.sent += 1;
    }

    fn place_in_segments(&self) -> u64 {
        place(self.run.first, self.next)
    }

    /// Prefetches the line two ahead for writing. Stores leave the processor in order, so a store
    /// to a line that the receiver read last would hold up those after it until the line arrives.
    #[inline(always)]
    fn bring_near(&self, end: u64) {
        const LINE: u64 = 8;
        if (self.next ^ end) & !(LINE - 1) != 0 && end + 3 * LINE < self.until {
            prefetch_to_write(self.area.word(end + 2 * LINE));
        }
    }
}

/// A message that is being described. If it is dropped, nothing was sent.
#[derive(Debug)]
#[must_use = "a draft that is not launched is not sent"]
pub struct Draft<'a, M: QueueMemory> {
    queue: &'a mut Outgoing<M>,
    handler: u16,
    len: u32,
    begin: u64,
    end: u64,
}

impl<M: QueueMemory> Draft<'_, M> {
    /// Writes a word of the payload.
    ///
    /// # Panics
    /// `at` is beyond the payload.
    #[inline]
    pub fn put(&self, at: usize, word: u64) {
        let words = self.end - self.begin - 1;
        assert!((at as u64) < words, "word {at} of a message of {} bytes", self.len);
        self.queue.area.word(self.begin + 1 + at as u64).store(word, Ordering::Relaxed);
    }

    /// Writes the whole payload.
    ///
    /// # Panics
    /// The payload has another number of words.
    #[inline]
    pub fn put_all(&self, words: &[u64]) {
        let first = self.queue.area.index(self.begin) + 1;
        let cells = &self.queue.area.words[first..first + (self.end - self.begin - 1) as usize];
        assert!(
            cells.len() == words.len(),
            "{} words for a message of {} bytes",
            words.len(),
            self.len
        );
        for (cell, word) in cells.iter().zip(words) {
            cell.store(*word, Ordering::Relaxed);
        }
    }

    /// The place of the payload, for writing bytes.
    #[cfg(not(loom))]
    pub fn room(&self) -> WritableSpan<'_> {
        let payload = self.queue.area.payload(self.begin, self.end - self.begin);
        // SAFETY: as many words are there as the length needs; they live as long as the queue,
        // whose sending end is borrowed by this draft alone, and shared memory is only ever touched
        // by atomic or opaque accesses.
        unsafe { WritableSpan::new(payload, self.len as usize) }
    }

    /// Launches the message: one store makes it visible as a whole.
    #[inline]
    pub fn launch(self) {
        let Self { queue, handler, len, begin, end } = self;
        queue.launch(header(handler, len, queue.sent), begin, end);
    }
}

#[inline(always)]
fn prefetch_to_write(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a prefetch of any address has no effect that a program can see. A processor
    // that does not know this instruction does nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(
            (&raw const *word).cast(),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = word;
}
