//! The segments of a link, and the notices of what was dropped.

use super::DomainLink;
use super::control::{NoExchange, patience_ends};
use crate::interface::KEPT_SEGMENTS;
use crate::wire::{ClientRequest, ServerReply};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::fault::{Point, point};
use upcall_os::memory::MemoryFile;
use upcall_sched::{Closed, WaitLimit};
use upcall_shm::region::Region;

/// Time within which the server should take a notice that can wait, in milliseconds.
pub(super) const SHORTLY: Duration = Duration::from_millis(2);

/// Interval at which a thread that waits on the control connection checks its cancel token, in
/// milliseconds. The token cannot wake that thread.
const SLICE: Duration = Duration::from_millis(10);

/// Repeats `attempt`, for one slice each time, while `waits` returns `true`.
fn in_slices<T>(
    waits: impl Fn(Instant) -> bool,
    mut attempt: impl FnMut(Instant) -> Result<T, NoExchange>,
) -> Result<T, NoExchange> {
    loop {
        match attempt(Instant::now() + SLICE) {
            Err(NoExchange::TimedOut) if waits(Instant::now()) => {}
            done => return done,
        }
    }
}

/// A segment that both sides have mapped.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u16,
    pub(crate) region: Arc<Region>,
}

#[derive(Default)]
pub(super) struct Segments {
    kept: Vec<Segment>,
    free: Vec<u16>,
    /// Segments that were dropped, and whose drop the server has not been sent yet.
    overdue: Vec<u16>,
    next: u16,
}

impl DomainLink {
    /// Returns a kept segment of at least `len` bytes that the server has mapped.
    pub(crate) fn kept_segment(&self, len: usize) -> Option<Segment> {
        let mut segments = self.segments.lock();
        let fitting =
            segments.kept.iter().enumerate().filter(|(_, segment)| segment.region.len() >= len);
        let best = fitting.min_by_key(|(_, segment)| segment.region.len()).map(|(i, _)| i);
        best.map(|i| segments.kept.swap_remove(i))
    }

    /// Makes a new segment. Blocks the kernel thread until the server has mapped it, for at most as
    /// long as `until` allows and at most [`PATIENCE`](super::PATIENCE). Then the error is
    /// `TimedOut`.
    pub(crate) fn new_segment(&self, len: usize, until: WaitLimit<'_>) -> io::Result<Segment> {
        // Rounded up to a power of two where that wastes little, so that later calls can use the
        // segment.
        let len = if len <= 1 << 24 {
            Some(len.next_power_of_two().max(1 << 16))
        } else {
            len.checked_next_multiple_of(1 << 21)
        };
        let len =
            len.filter(|&len| isize::try_from(len).is_ok()).ok_or(io::ErrorKind::OutOfMemory)?;
        let (memory, map) = MemoryFile::create_filled("upcall-segment", len)?;
        let region = Region::new(map).ok_or_else(|| io::Error::other("a read-only segment"))?;
        let deadline = until.ends.unwrap_or_else(patience_ends);
        self.tell_of_dropped(deadline.min(Instant::now() + SHORTLY));
        let number = {
            let mut segments = self.segments.lock();
            let number = segments.free.pop().unwrap_or_else(|| {
                segments.next = segments.next.saturating_add(1);
                segments.next
            });
            if number == u16::MAX {
                return Err(io::Error::other("more than 65534 segments in use at once"));
            }
            number
        };
        let request = ClientRequest::Segment { number, len: len as u64 };
        point(Point::ClientMadeSegment);
        let mut said = false;
        let waits = |now: Instant| now < deadline && !until.is_cancelled();
        let answered =
            in_slices(waits, |ends| self.control.talk(ends.min(deadline))).and_then(|mut talk| {
                talk.deadline = deadline;
                let serial = talk.say(request, &[memory.as_fd()])?;
                said = true;
                point(Point::ClientToldSegment);
                in_slices(waits, |ends| {
                    talk.deadline = ends.min(deadline);
                    talk.hear(serial)
                })
            });
        if answered.is_ok() {
            // Another thread may have held the connection when these were dropped.
            self.tell_of_dropped(deadline.min(Instant::now() + SHORTLY));
        }
        match answered {
            Ok((ServerReply::Mapped, _)) => Ok(Segment { number, region }),
            Ok((ServerReply::Refused(refusal), _)) => {
                self.segments.lock().free.push(number);
                Err(io::Error::other(format!("the server refuses the segment: {refusal}")))
            }
            Ok(_) => Err(io::Error::other("another answer than a mapped segment")),
            Err(NoExchange::TimedOut) => {
                // If the request was sent, the server will still map the segment.
                let mut segments = self.segments.lock();
                if said {
                    segments.overdue.push(number)
                } else {
                    segments.free.push(number)
                }
                Err(io::Error::new(io::ErrorKind::TimedOut, "the server did not map it in time"))
            }
            Err(error) => {
                // The clerk may not have noticed yet.
                if matches!(error, NoExchange::Closed) {
                    self.channel.close(Closed::PeerEnded);
                }
                Err(io::Error::other(format!("the server did not map the segment: {error:?}")))
            }
        }
    }

    /// Takes a segment back, and keeps it or drops it.
    pub(crate) fn give_segment(&self, segment: Segment) {
        let mut segments = self.segments.lock();
        let kept: usize = segments.kept.iter().map(|segment| segment.region.len()).sum();
        if kept + segment.region.len() <= KEPT_SEGMENTS {
            segments.kept.push(segment);
        } else {
            segments.overdue.push(segment.number);
            drop(segments);
            self.tell_of_dropped(Instant::now() + SHORTLY);
        }
    }

    /// Sends the server the bindings that have ended and the segments that were dropped. What it
    /// does not take before the deadline is sent on the next occasion.
    pub(super) fn tell_of_dropped(&self, deadline: Instant) {
        let mut ended = std::mem::take(&mut *self.ended.lock());
        self.tell_of_each(&mut ended, deadline, |id| ClientRequest::Unbind { id });
        self.ended.lock().append(&mut ended);
        let mut overdue = std::mem::take(&mut self.segments.lock().overdue);
        let told = self
            .tell_of_each(&mut overdue, deadline, |number| ClientRequest::DropSegment { number });
        let mut segments = self.segments.lock();
        segments.free.extend(told);
        segments.overdue.append(&mut overdue);
    }

    /// Sends those of `numbers` that the server takes before the deadline. Removes them from
    /// `numbers`, and returns them.
    fn tell_of_each(
        &self,
        numbers: &mut Vec<u16>,
        deadline: Instant,
        request: fn(u16) -> ClientRequest<'static>,
    ) -> Vec<u16> {
        let mut told = Vec::new();
        while let Some(&number) = numbers.last()
            && self.control.notify_by(deadline, request(number), &[]).is_ok()
        {
            told.extend(numbers.pop());
        }
        told
    }
}
