//! The sending end without room at home.
//!
//! It reads how far the receiver is, goes on in a segment, and comes home when the receiver has
//! taken all.

use super::*;
use upcall_os::fault::{Point, point};

impl<M: QueueMemory> Outgoing<M> {
    /// Maximum number of bytes of payload of a message.
    pub fn most(&self) -> usize {
        let words = self.memory.segment_words();
        (SegmentRun::most(words, M::SEGMENTS) * words) as usize * 8 - 16
    }

    #[cold]
    pub(super) fn find_room(&mut self, size: u64) -> Result<(u64, u64), SendRefusal> {
        if self.away.is_some() {
            if !self.is_drained()? || self.stays {
                let end = self.next + size;
                return if end < self.area.capacity() {
                    Ok((self.next, end))
                } else {
                    Err(SendRefusal::Full)
                };
            }
            self.go_home()?;
        }
        self.look()?;
        let (begin, end) = self.place(size);
        if end < self.until { Ok((begin, end)) } else { Err(SendRefusal::Full) }
    }

    #[cold]
    pub(super) fn describe_outsized(
        &mut self,
        handler: u16,
        len: usize,
    ) -> Result<Draft<'_, M>, SendRefusal> {
        if self.away.is_some() && self.is_drained()? && !self.stays {
            // Otherwise the receiver need not leave the current segment, whose place a long one may
            // need.
            self.go_home()?;
        }
        let (begin, end) = (self.next, self.next + words_of(len));
        if len > self.most() {
            Err(SendRefusal::TooLong { most: self.most() })
        } else if self.away.is_some() && end < self.area.capacity() {
            Ok(Draft { queue: self, handler, len: len as u32, begin, end })
        } else {
            Err(SendRefusal::Outsized)
        }
    }

    /// Reads how far the receiver is at home.
    fn look(&mut self) -> Result<(), SendRefusal> {
        let disposed = self.told.disposed.load(Ordering::Acquire);
        let until = disposed.wrapping_add(self.area.capacity());
        if disposed > self.next || until < self.until {
            return Err(SendRefusal::Violation);
        }
        self.until = until;
        Ok(())
    }

    /// Returns `true` if the receiver has disposed of all that was sent. Only for a diverted queue.
    fn is_drained(&mut self) -> Result<bool, SendRefusal> {
        let (said, here) = (self.told.diverted.load(Ordering::Acquire), self.place_in_segments());
        if said > here || said < self.diverted {
            return Err(SendRefusal::Violation);
        }
        self.diverted = said;
        Ok(said == here)
    }

    /// Goes on in the next segment.
    ///
    /// To be used when there is no room, or when the receiver asks for it. What was sent before is
    /// taken before.
    ///
    /// # Errors
    /// There is no segment: the machine has no memory for one, or the receiver has left none of the
    /// [`QueueMemory::SEGMENTS`]. Nothing has changed.
    pub fn divert(&mut self) -> io::Result<()> {
        self.divert_for(0)
    }

    /// Like [`divert`](Self::divert), with room for a message of `len` bytes.
    ///
    /// # Errors
    /// As [`divert`](Self::divert); or the message is longer than [`most`](Self::most).
    #[cold]
    pub fn divert_for(&mut self, len: usize) -> io::Result<()> {
        let run =
            SegmentRun::of(words_of(len), self.memory.segment_words(), self.segments, M::SEGMENTS);
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
            "a segment has at least as many words as home"
        );
        area.word(0).store(0, Ordering::Relaxed);
        point(Point::MemberDiverts);
        self.area.word(self.next).store(run.word(), Ordering::Release);
        let before = std::mem::replace(&mut self.area, area);
        if self.away.is_none() {
            self.away = Some(DivertedHome { home: before, next: self.next });
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

    /// What the next segment would be made of, for a message of `len` bytes.
    pub fn next_segment(&mut self, len: usize) -> NextSegment {
        self.hear();
        let words = self.memory.segment_words();
        let run = SegmentRun::of(words_of(len), words, self.segments, M::SEGMENTS);
        if run.is_none_or(|run| run.many > 1) {
            NextSegment::Own
        } else if self.spares.iter().any(|spare| self.is_free(spare)) {
            NextSegment::Spare
        } else {
            NextSegment::New
        }
    }

    /// Reads the receiver's word about the segments, and ignores a value that cannot be true.
    fn hear(&mut self) {
        let said = self.told.diverted.load(Ordering::Acquire);
        if (self.diverted..=self.run.end()).contains(&said) {
            self.diverted = said;
        }
    }

    /// Returns `true` if the receiver has left the spare.
    fn is_free(&self, spare: &Spare) -> bool {
        spare.free_at <= self.diverted / STRIDE
    }

    /// Gives the memory of unused spares back to the machine.
    ///
    /// Returns `true` if none is left to give.
    ///
    /// To be called where there is time for it.
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

    /// Makes the queue stay in segments, from the next diversion on.
    pub fn stay_diverted(&mut self) {
        self.stays = true;
    }

    /// Goes on at home, which is empty.
    fn go_home(&mut self) -> Result<(), SendRefusal> {
        let Some(DivertedHome { home, next }) = self.away.take() else { return Ok(()) };
        self.came_home += self.sent - self.direct;
        home.word(next).store(0, Ordering::Relaxed);
        self.area.word(self.next).store(HOME, Ordering::Release);
        (self.area, self.next, self.until) = (home, next, next);
        self.memory.sender_moved(self.sent, false, self.segments);
        // The receiver must have left home at exactly this word.
        if self.told.disposed.load(Ordering::Acquire) == next {
            Ok(())
        } else {
            Err(SendRefusal::Violation)
        }
    }
}
