//! How the receiving end follows its sender: around home, away, and back.

use super::*;
use upcall_os::fault::{Point, point};

impl<M: QueueMemory> Incoming<M> {
    /// Follows a word that is no message header.
    ///
    /// Returns the header that it leads to: a message's, or 0.
    #[cold]
    pub(super) fn follow(&mut self, mut header: u64, lightly: bool) -> Result<u64, Unreadable> {
        for _ in 0..MOVES {
            match header {
                WRAP if self.away.is_none()
                    && self.area.left(self.next) != self.area.capacity() =>
                {
                    // Published with the word that led here.
                    let first = self.area.word(0).load(Ordering::Relaxed);
                    if first & MESSAGE == 0 {
                        return Err(Unreadable::Violation(Violation::NoHeader(first)));
                    }
                    self.next += self.area.left(self.next);
                    return Ok(first);
                }
                _ if lightly
                    && self.away.is_some()
                    && !self.memory.is_at_hand(self.run.place()) =>
                {
                    return Ok(0);
                }
                HOME if self.away.is_some() => self.go_home(),
                _ => {
                    let run = SegmentRun::from_word::<M>(
                        header,
                        self.memory.segment_words(),
                        self.segments,
                    );
                    let run = run.ok_or(Unreadable::Violation(Violation::NoHeader(header)))?;
                    if lightly && !self.memory.is_at_hand(run.place()) {
                        return Ok(0);
                    }
                    self.enter(run)?;
                }
            }
            header = self.area.word(self.next).load(Ordering::Acquire);
            if header == 0 || header & MESSAGE != 0 {
                return Ok(header);
            }
        }
        // The next probe follows the rest.
        Ok(0)
    }

    /// Goes on in the next segment.
    fn enter(&mut self, run: SegmentRun) -> Result<(), Unreadable> {
        let area = Area::new(self.memory.segment(run.place()).map_err(Unreadable::Memory)?);
        self.longest = area.capacity();
        let (before, left) =
            (std::mem::replace(&mut self.area, area), std::mem::replace(&mut self.run, run));
        self.segments = run.next();
        if self.away.is_none() {
            self.told.disposed.store(self.next, Ordering::Release);
            self.diversions += 1;
            self.away = Some(DivertedHome { home: before, next: self.next });
        } else {
            self.left(left, before);
        }
        (self.next, self.said) = (0, 0);
        self.told.diverted.store(place(run.first, 0), Ordering::Release);
        self.count();
        Ok(())
    }

    fn go_home(&mut self) {
        if let Some(DivertedHome { home, next }) = self.away.take() {
            self.longest = longest(home.capacity());
            let before = std::mem::replace(&mut self.area, home);
            (self.next, self.said) = (next, next);
            self.left(self.run, before);
            self.count();
        }
    }

    /// Leaves a segment.
    fn left(&mut self, run: SegmentRun, area: Area<M::Words>) {
        drop(area);
        self.memory.leave(run.place());
        point(Point::MemberLeaves);
        // From here on the sender may reuse the memory.
        self.told.diverted.store(run.end(), Ordering::Release);
    }
}
