//! The sending end.

use super::*;
#[cfg(not(loom))]
use crate::span::Room;
use upcall_os::atomic::Ordering;
use upcall_os::fault::{Point, point};

/// The sending end.
#[derive(Debug)]
pub struct Outgoing<M: Memory> {
    /// Where messages go now.
    area: Area<M::Words>,
    /// Where the next header goes.
    next: u64,
    /// What lies before may be written: as of the last look at the receiver's word. In a segment
    /// 0, so that each message looks whether it is time to go home.
    until: u64,
    sent: u64,
    /// Words of the longest message.
    longest: u64,
    told: M::Told,
    /// There while messages go to a segment.
    away: Option<Away<M::Words>>,
    /// The number of the next segment, and the one that messages go to.
    segments: u64,
    run: Run,
    /// It does not go home.
    stays: bool,
    /// What the receiver has said last of those.
    diverted: u64,
    spares: Box<[Spare]>,
    /// Messages that were sent before it diverted last; and those that have gone to segments,
    /// without those since then.
    direct: u64,
    came_home: u64,
    memory: M,
}

#[derive(Clone, Copy, Debug, Default)]
struct Spare {
    /// The number of the segment after the one that it was last.
    free_at: u64,
    /// It may have pages.
    touched: bool,
}

impl<M: Memory> Outgoing<M> {
    /// The sending end of a queue that nothing was sent through yet: all words of its home are 0,
    /// and so are the receiver's.
    ///
    /// # Panics
    /// Home has fewer than four words, more than 2^29, or not a power of two.
    pub fn new(memory: M) -> Self {
        // The last segment may still be read when the next one is needed.
        const { assert!(M::SEGMENTS >= 2 && M::SPARES < 255, "a queue has two segments at least") };
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
            run: Run::NONE,
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

    /// The most bytes of payload that go the direct way.
    pub fn most_directly(&self) -> usize {
        (self.longest as usize - 1) * 8
    }

    /// A count that grows when the receiver has told that it has taken something.
    pub fn progress(&self) -> u64 {
        self.told
            .disposed
            .load(Ordering::Acquire)
            .wrapping_add(self.told.diverted.load(Ordering::Acquire))
    }

    /// The most bytes of payload that it takes.
    pub fn most(&self) -> usize {
        let words = self.memory.segment_words();
        (Run::most(words, M::SEGMENTS) * words) as usize * 8 - 16
    }

    /// Whether messages go to segments now.
    pub fn is_diverted(&self) -> bool {
        self.away.is_some()
    }

    /// So many segments hold messages that the receiver has not disposed of, for all that it has
    /// said.
    pub fn buffered(&self) -> u64 {
        match self.away {
            None => 0,
            // The receiver leaves the last one when it is led on, and who diverts always waits for
            // nothing else.
            Some(_) if self.is_empty() => 0,
            Some(_) => {
                self.segments
                    - (self.told.diverted.load(Ordering::Acquire) / STRIDE).min(self.segments)
            }
        }
    }

    /// So many messages were sent.
    #[inline(always)]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// So many messages have gone to segments so far. By counts that are kept anyway, so that no
    /// message pays for it.
    pub fn ever_buffered(&self) -> u64 {
        self.came_home + if self.away.is_some() { self.sent - self.direct } else { 0 }
    }

    /// Whether all that was launched has been disposed of, for all that the receiver has said. It
    /// does not say so at once ([`Incoming::tell`]).
    pub fn is_empty(&self) -> bool {
        match self.away {
            None => self.told.disposed.load(Ordering::Acquire) == self.next,
            Some(_) => self.told.diverted.load(Ordering::Acquire) == self.place_in_segments(),
        }
    }

    /// Sends a message of whole words. Never blocks.
    ///
    /// # Errors
    /// See [`Refused`]; then nothing was sent.
    #[inline]
    pub fn try_send(&mut self, handler: u16, payload: &[u64]) -> Result<(), Refused> {
        let draft = self.describe(handler, payload.len() * 8)?;
        draft.put_all(payload);
        draft.launch();
        Ok(())
    }

    /// Finds room for a message of so many bytes, to be written there and launched. Never blocks.
    ///
    /// # Errors
    /// See [`Refused`].
    #[inline]
    pub fn describe(&mut self, handler: u16, len: usize) -> Result<Draft<'_, M>, Refused> {
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

    #[cold]
    fn describe_outsized(&mut self, handler: u16, len: usize) -> Result<Draft<'_, M>, Refused> {
        if self.away.is_some() && self.is_drained()? && !self.stays {
            // Where it is now need not be left otherwise before the place of a long segment is
            // free.
            self.go_home()?;
        }
        let (begin, end) = (self.next, self.next + words_of(len));
        if len > self.most() {
            Err(Refused::TooLong { most: self.most() })
        } else if self.away.is_some() && end < self.area.capacity() {
            Ok(Draft { queue: self, handler, len: len as u32, begin, end })
        } else {
            Err(Refused::Outsized)
        }
    }

    /// Where a message of so many words would lie.
    #[inline(always)]
    fn place(&self, size: u64) -> (u64, u64) {
        let left = self.area.left(self.next);
        let begin = if size <= left { self.next } else { self.next + left };
        (begin, begin + size)
    }

    #[cold]
    fn find_room(&mut self, size: u64) -> Result<(u64, u64), Refused> {
        if self.away.is_some() {
            if !self.is_drained()? || self.stays {
                let end = self.next + size;
                return if end < self.area.capacity() {
                    Ok((self.next, end))
                } else {
                    Err(Refused::Full)
                };
            }
            self.go_home()?;
        }
        self.look()?;
        let (begin, end) = self.place(size);
        if end < self.until { Ok((begin, end)) } else { Err(Refused::Full) }
    }

    /// Looks how far the receiver is at home.
    fn look(&mut self) -> Result<(), Refused> {
        let disposed = self.told.disposed.load(Ordering::Acquire);
        let until = disposed.wrapping_add(self.area.capacity());
        if disposed > self.next || until < self.until {
            return Err(Refused::Violation);
        }
        self.until = until;
        Ok(())
    }

    fn place_in_segments(&self) -> u64 {
        place(self.run.first, self.next)
    }

    /// Whether the receiver has disposed of all that was sent. Only while messages go to a segment.
    fn is_drained(&mut self) -> Result<bool, Refused> {
        let (said, here) = (self.told.diverted.load(Ordering::Acquire), self.place_in_segments());
        if said > here || said < self.diverted {
            return Err(Refused::Violation);
        }
        self.diverted = said;
        Ok(said == here)
    }

    /// Goes on in a segment: that of the next number. To be used when there is no room, or the
    /// receiver wants it. What was sent before is taken before.
    ///
    /// # Errors
    /// There is no segment: the machine gives none, or the receiver has left none of the most that
    /// there can be. Nothing has changed.
    pub fn divert(&mut self) -> io::Result<()> {
        self.divert_for(0)
    }

    /// The same, with room for a message of so many bytes.
    ///
    /// # Errors
    /// As [`divert`](Self::divert); it is longer than [`most`](Self::most).
    #[cold]
    pub fn divert_for(&mut self, len: usize) -> io::Result<()> {
        let run = Run::of(words_of(len), self.memory.segment_words(), self.segments, M::SEGMENTS);
        let mut run = run.ok_or(io::ErrorKind::FileTooLarge)?;
        self.hear();
        if run.next() - self.diverted / STRIDE > M::SEGMENTS {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let spare =
            self.spares.iter().position(|spare| self.is_free(spare)).filter(|_| run.many == 1);
        run.spare = spare.map(|spare| spare as u8);
        let area = Area::new(self.memory.segment(run.place())?);
        assert!(
            area.capacity() >= 2 * self.longest,
            "a segment has as many words as home at least"
        );
        area.word(0).store(0, Ordering::Relaxed);
        point(Point::MemberDiverts);
        self.area.word(self.next).store(run.word(), Ordering::Release);
        let before = std::mem::replace(&mut self.area, area);
        if self.away.is_none() {
            self.away = Some(Away { home: before, next: self.next });
            self.direct = self.sent;
        }
        (self.next, self.until) = (0, 0);
        (self.run, self.segments) = (run, run.next());
        self.memory.sender_moved(self.sent, true, self.segments);
        if let Some(spare) = spare {
            self.spares[spare] = Spare { free_at: self.segments, touched: true };
        }
        point(Point::MemberDiverted);
        Ok(())
    }

    /// Hears what the receiver says of the segments, if it can be so.
    fn hear(&mut self) {
        let said = self.told.diverted.load(Ordering::Acquire);
        if (self.diverted..=self.run.end()).contains(&said) {
            self.diverted = said;
        }
    }

    /// Whether the receiver has left a spare.
    fn is_free(&self, spare: &Spare) -> bool {
        spare.free_at <= self.diverted / STRIDE
    }

    /// Gives the memory of spares that are not in use back to the machine. To be done where there
    /// is time for it. Whether there is none left to give back.
    pub fn shrink(&mut self) -> bool {
        self.hear();
        for number in 0..self.spares.len() {
            if self.spares[number].touched && self.is_free(&self.spares[number]) {
                self.spares[number].touched = false;
                self.memory.shrink(number as u8);
            }
        }
        self.spares.iter().all(|spare| !spare.touched)
    }

    /// From now on, once it has diverted it does not go home.
    pub fn stay_diverted(&mut self) {
        self.stays = true;
    }

    /// Goes on at home, which is empty.
    fn go_home(&mut self) -> Result<(), Refused> {
        let Some(Away { home, next }) = self.away.take() else { return Ok(()) };
        self.came_home += self.sent - self.direct;
        home.word(next).store(0, Ordering::Relaxed);
        self.area.word(self.next).store(HOME, Ordering::Release);
        (self.area, self.next, self.until) = (home, next, next);
        self.memory.sender_moved(self.sent, false, self.segments);
        // The segment is left, too.
        if self.told.disposed.load(Ordering::Acquire) == next {
            Ok(())
        } else {
            Err(Refused::Violation)
        }
    }

    /// Stores go out in order: one to a line that the receiver has read last would hold up those
    /// after it, until the line has come. So it is asked for two lines before.
    #[inline(always)]
    fn bring_near(&self, end: u64) {
        const LINE: u64 = 8;
        if (self.next ^ end) & !(LINE - 1) != 0 && end + 3 * LINE < self.until {
            prefetch_to_write(self.area.word(end + 2 * LINE));
        }
    }
}

/// A message that is being described. Dropped, it was never there.
#[derive(Debug)]
#[must_use = "it is launched, or nobody sees it"]
pub struct Draft<'a, M: Memory> {
    queue: &'a mut Outgoing<M>,
    handler: u16,
    len: u32,
    begin: u64,
    end: u64,
}

impl<M: Memory> Draft<'_, M> {
    /// Writes a word of the payload.
    ///
    /// # Panics
    /// It is none of the payload's.
    #[inline]
    pub fn put(&self, at: usize, word: u64) {
        let words = self.end - self.begin - 1;
        assert!((at as u64) < words, "word {at} of a message of {} bytes", self.len);
        self.queue.area.word(self.begin + 1 + at as u64).store(word, Ordering::Relaxed);
    }

    /// Writes the whole payload.
    ///
    /// # Panics
    /// It has another number of words.
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

    /// Where the payload goes, for writing bytes.
    #[cfg(not(loom))]
    pub fn room(&self) -> Room<'_> {
        let payload = self.queue.area.payload(self.begin, self.end - self.begin);
        // SAFETY: as many words are there as the length needs; they live as long as the queue,
        // whose sending end is borrowed by this draft alone, and shared memory is only ever touched
        // by atomic or opaque accesses.
        unsafe { Room::new(payload, self.len as usize) }
    }

    /// Launches it: with one store it is there, as a whole.
    #[inline]
    pub fn launch(self) {
        let Self { queue, handler, len, begin, end } = self;
        let header = header(handler, len, queue.sent);
        queue.area.word(end).store(0, Ordering::Relaxed);
        if begin == queue.next {
            queue.area.word(begin).store(header, Ordering::Release);
        } else {
            queue.area.word(begin).store(header, Ordering::Relaxed);
            queue.area.word(queue.next).store(WRAP, Ordering::Release);
        }
        queue.bring_near(end);
        queue.next = end;
        queue.sent += 1;
    }
}

#[inline(always)]
fn prefetch_to_write(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a prefetch has no effect that a program can see, whatever the address; where the
    // processor does not know this one it does nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(
            (&raw const *word).cast(),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = word;
}
