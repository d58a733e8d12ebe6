//! Standard output and standard error as the host writes to them: it never waits for a reader.
//!
//! Bytes that the descriptor takes at once are written by the caller. The others wait in a queue,
//! and a thread writes them when there is room. While the queue is not empty, only that thread
//! writes, so bytes keep their order. Bytes are written in pieces of at most [`WHOLE`] bytes, and a
//! piece has whole lines if they fit. A pipe takes a piece whole, so lines of several processes do
//! not mix.
//!
//! **Output of tasks is not lost** while a process may read it. A task that has written waits while
//! the queue has more than [`MUCH`] bytes, and the machine does not end before all of it is
//! written.
//!
//! **Reports of the host** are dropped if the queue has more than [`MOST`] bytes, or if no process
//! reads them for [`PATIENCE`] at the machine's end. The next report that is written gives the
//! number of dropped reports. What the kernel refuses with an error other than a lack of room is
//! dropped, too: there is no reader, or no place on the disk.
//!
//! **No wake is lost.** All of the state is under one lock. The thread ends only if it finds there
//! that the queue is empty. The caller that adds to the queue starts a thread, under the same lock,
//! if there is none. The descriptor for tasks that wait is readable as long as there is room. It is
//! changed under the lock as well.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::{Errno, ReadWriteFlags, pwritev2, write};
use std::collections::VecDeque;
use std::io::{IoSlice, IsTerminal};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that a pipe takes whole or not at all (`PIPE_BUF`).
pub(crate) const WHOLE: usize = 4096;
/// Number of bytes in the queue above which tasks that write have to wait.
const MUCH: usize = 64 << 10;
/// Number of bytes in the queue above which reports are dropped.
const MOST: usize = 1 << 20;
/// Time for which the machine's end waits for a reader of reports, if it takes nothing.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval between two tries to write to what has room, but not enough.
const PAUSE: Duration = Duration::from_millis(2);

/// The process's standard error.
pub(crate) static STDERR: LazyLock<Stream> = LazyLock::new(|| Stream::new(rustix::stdio::stderr()));
/// The process's standard output, on which only the console writes.
pub(crate) static STDOUT: LazyLock<Stream> = LazyLock::new(|| Stream::new(rustix::stdio::stdout()));

/// A stream of the host's; see the module.
pub(crate) struct Stream {
    to: BorrowedFd<'static>,
    state: Mutex<StreamState>,
    /// Notified when the queue gets shorter.
    shorter: Condvar,
}

#[derive(Default)]
struct StreamState {
    queue: VecDeque<StreamPiece>,
    /// Number of bytes in the queue.
    bytes: usize,
    /// Number of pieces of tasks' output in the queue.
    output: usize,
    /// Number of times that the thread has written or dropped something.
    progress: u64,
    /// Number of reports dropped since the last written one.
    dropped: usize,
    /// Whether a thread writes the queue.
    writes: bool,
    thread: Option<JoinHandle<()>>,
    /// Readable while there is room for tasks' output, and whether it is now.
    room: Option<(OwnedFd, bool)>,
}

/// Bytes that are written at once if possible.
struct StreamPiece {
    bytes: Vec<u8>,
    /// Number of reports that this stands for; 0: it is a task's output.
    reports: usize,
}

/// What became of a write.
#[derive(Debug, PartialEq, Eq)]
enum WriteEnd {
    /// This number of bytes was written.
    Written(usize),
    /// There is no room now.
    Blocked,
    /// The kernel takes nothing.
    Refused,
}

impl Stream {
    fn new(to: BorrowedFd<'static>) -> Self {
        Self { to, state: Mutex::default(), shorter: Condvar::new() }
    }

    fn locked(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes output of tasks, or queues it.
    pub(crate) fn output(&'static self, bytes: &[u8]) {
        let mut state = self.locked();
        for piece in pieces(bytes) {
            self.add(&mut state, StreamPiece { bytes: piece.to_vec(), reports: 0 });
        }
    }

    /// Writes a report, queues it, or drops it. `text` ends with a newline. A text that is longer
    /// than [`WHOLE`] bytes is cut.
    pub(crate) fn report(&'static self, text: &str) {
        let mut state = self.locked();
        if state.bytes > MOST {
            state.dropped += 1;
            return;
        }
        let before = std::mem::take(&mut state.dropped);
        let bytes = cut(format!("{}{text}", lost(before)));
        self.add(&mut state, StreamPiece { bytes, reports: before + 1 });
    }

    fn add(&'static self, state: &mut StreamState, mut piece: StreamPiece) {
        if state.queue.is_empty() {
            match write_now(self.to, &piece.bytes, false) {
                WriteEnd::Written(count) if count == piece.bytes.len() => return,
                WriteEnd::Written(count) => drop(piece.bytes.drain(..count)),
                WriteEnd::Blocked => {}
                WriteEnd::Refused => {
                    state.dropped += piece.reports;
                    return;
                }
            }
        }
        state.bytes += piece.bytes.len();
        state.output += usize::from(piece.reports == 0);
        state.queue.push_back(piece);
        if !state.writes {
            let thread = std::thread::Builder::new().name("output".into());
            // Without a thread, the next caller tries again.
            state.thread = thread.spawn(|| self.work()).ok();
            state.writes = state.thread.is_some();
        }
        state.show_room();
    }

    /// The body of the thread: writes the queue until it is empty.
    fn work(&self) {
        while let Some(bytes) = self.next() {
            let mut one = [PollFd::from_borrowed_fd(self.to, PollFlags::OUT)];
            let _ = poll(&mut one, None);
            let end = write_now(self.to, &bytes, true);
            let mut state = self.locked();
            match end {
                WriteEnd::Written(count) => state.written(count),
                WriteEnd::Refused => state.refused(),
                WriteEnd::Blocked => {
                    drop(state);
                    std::thread::sleep(PAUSE);
                    continue;
                }
            }
            state.show_room();
            self.shorter.notify_all();
        }
    }

    /// The first piece of the queue. `None`: it is empty, and the thread ends.
    fn next(&self) -> Option<Vec<u8>> {
        let mut state = self.locked();
        let first = state.queue.front().map(|piece| piece.bytes.clone());
        state.writes = first.is_some();
        if first.is_none() {
            self.shorter.notify_all();
        }
        first
    }

    /// A descriptor that becomes readable when there is room for tasks' output. `None`: there is
    /// room.
    pub(crate) fn awaited(&self) -> Option<i32> {
        let mut state = self.locked();
        if state.bytes <= MUCH || !state.writes {
            return None;
        }
        if state.room.is_none() {
            let room = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
            state.room = Some((room, false));
        }
        state.room.as_ref().map(|(room, _)| room.as_raw_fd())
    }

    /// Waits until the queue is written; see the module.
    pub(crate) fn flush(&self) {
        let mut state = self.locked();
        let (mut seen, mut until) = (state.progress, Instant::now() + PATIENCE);
        while !state.queue.is_empty() && state.writes {
            let left = until.saturating_duration_since(Instant::now());
            if state.output == 0 && left.is_zero() {
                return;
            }
            let wait = if state.output == 0 { left } else { PATIENCE };
            state =
                self.shorter.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
            if state.output > 0 || state.progress != seen {
                (seen, until) = (state.progress, Instant::now() + PATIENCE);
            }
        }
        if state.queue.is_empty() && state.dropped > 0 {
            write_now(self.to, lost(state.dropped).as_bytes(), false);
        }
        let thread = state.thread.take();
        drop(state);
        // It finds the queue empty. It does not panic.
        let _ = thread.map(JoinHandle::join);
    }

    /// Returns `true` if a reader may still make room for more.
    pub(crate) fn is_full(&self) -> bool {
        let mut one = [PollFd::from_borrowed_fd(self.to, PollFlags::OUT)];
        poll(&mut one, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }
}

impl StreamState {
    /// Records that `count` bytes of the first piece are written.
    fn written(&mut self, count: usize) {
        self.progress += 1;
        self.bytes -= count;
        let Some(first) = self.queue.front_mut() else { return };
        if count < first.bytes.len() {
            drop(first.bytes.drain(..count));
        } else if let Some(StreamPiece { reports: 0, .. }) = self.queue.pop_front() {
            self.output -= 1;
        }
    }

    /// Drops the first piece.
    fn refused(&mut self) {
        self.progress += 1;
        let Some(first) = self.queue.pop_front() else { return };
        self.bytes -= first.bytes.len();
        self.dropped += first.reports;
        self.output -= usize::from(first.reports == 0);
    }

    /// Makes the descriptor of tasks that wait readable if there is room, and not readable if not.
    fn show_room(&mut self) {
        let is_room = self.bytes <= MUCH;
        if let Some((room, shown)) = &mut self.room
            && *shown != is_room
        {
            // The counter is 0 or 1, so neither call can wait or fail.
            let _ = match is_room {
                true => write(&*room, &1_u64.to_ne_bytes()),
                false => rustix::io::read(&*room, &mut [0; 8]),
            };
            *shown = is_room;
        }
    }
}

/// The line that gives the number of dropped reports; empty if that is 0.
fn lost(count: usize) -> String {
    let reports = match count {
        0 => return String::new(),
        1 => "1 earlier report was".into(),
        _ => format!("{count} earlier reports were"),
    };
    format!("upcall pvm: {reports} dropped: standard error was full or closed\n")
}

/// Cuts a report to [`WHOLE`] bytes.
fn cut(mut text: String) -> Vec<u8> {
    const REST: &str = " […]\n";
    if text.len() > WHOLE {
        let at = (0..=WHOLE - REST.len()).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(at.unwrap_or(0));
        text += REST;
    }
    text.into_bytes()
}

/// Splits text into runs of whole lines of at most [`WHOLE`] bytes each. A longer line is cut.
fn pieces(mut text: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if text.is_empty() {
            return None;
        }
        let most = text.len().min(WHOLE);
        let end = if most == text.len() {
            most
        } else {
            text[..most].iter().rposition(|byte| *byte == b'\n').map_or(most, |at| at + 1)
        };
        let (piece, rest) = text.split_at(end);
        text = rest;
        Some(piece)
    })
}

/// Writes without waiting, or, if `may_wait`, with a wait where the kernel offers nothing else.
fn write_now(to: BorrowedFd<'_>, bytes: &[u8], may_wait: bool) -> WriteEnd {
    let ended = |result| match result {
        Ok(count) => WriteEnd::Written(count),
        Err(Errno::AGAIN) => WriteEnd::Blocked,
        Err(_) => WriteEnd::Refused,
    };
    let again = |call: &dyn Fn() -> rustix::io::Result<usize>| loop {
        match call() {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    let first = again(&|| pwritev2(to, &[IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::NOWAIT));
    if !matches!(first, Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)) {
        return ended(first);
    }
    let kind = fstat(to).map(|about| FileType::from_raw_mode(about.st_mode));
    let waits = matches!(kind, Ok(FileType::Fifo | FileType::Socket)) || to.is_terminal();
    if !waits {
        return ended(again(&|| write(to, bytes)));
    }
    if first == Err(Errno::AGAIN) {
        return WriteEnd::Blocked;
    }
    // The same file opened again, so that only this write does not wait. A socket has no such path.
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match open(format!("/proc/self/fd/{}", to.as_raw_fd()), flags, Mode::empty()) {
        Ok(own) => ended(again(&|| write(&own, bytes))),
        Err(_) if may_wait => ended(again(&|| write(to, bytes))),
        Err(_) => WriteEnd::Blocked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::io::read;
    use rustix::pipe::pipe;

    /// A stream into a pipe, whose other end is returned too.
    fn piped() -> (OwnedFd, &'static Stream) {
        let (reads, writes) = pipe().unwrap();
        let writes: &'static OwnedFd = Box::leak(Box::new(writes));
        (reads, Box::leak(Box::new(Stream::new(writes.as_fd()))))
    }

    fn fill(stream: &Stream) -> usize {
        let mut filled = 0;
        while let WriteEnd::Written(count) = write_now(stream.to, &[b'x'; WHOLE], false) {
            filled += count;
        }
        filled
    }

    fn some(from: &OwnedFd, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most];
        let count = read(from, &mut bytes).unwrap();
        bytes.truncate(count);
        bytes
    }

    /// Reads exactly this many bytes.
    fn read_all(from: &OwnedFd, count: usize) -> String {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(some(from, count - all.len()));
        }
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn pieces_are_whole_lines_and_nothing_is_lost() {
        let lines = (0..500)
            .map(|number| format!("{number} {}\n", "x".repeat(number % 90)))
            .collect::<String>();
        let parts = pieces(lines.as_bytes()).collect::<Vec<_>>();
        assert!(
            parts.len() > 1
                && parts.iter().all(|part| part.len() <= WHOLE && part.ends_with(b"\n"))
        );
        assert_eq!(parts.concat(), lines.as_bytes());
        assert_eq!(pieces(&[b'x'; WHOLE + 1]).map(<[u8]>::len).collect::<Vec<_>>(), [WHOLE, 1]);
        assert_eq!(pieces(b"").count(), 0);
    }

    #[test]
    fn a_report_is_cut_to_what_a_pipe_takes_whole() {
        for text in ["é".repeat(WHOLE), format!("x{}", "é".repeat(WHOLE))] {
            let report = cut(text);
            assert!((WHOLE - 2..=WHOLE).contains(&report.len()), "{}", report.len());
            assert!(String::from_utf8(report).unwrap().ends_with("é […]\n"));
        }
        assert_eq!(cut("short\n".into()), b"short\n");
    }

    #[test]
    fn what_a_full_pipe_does_not_take_comes_later_and_in_order() {
        let (reads, stream) = piped();
        let filled = fill(stream);
        stream.report("first\n");
        stream.output(b"second\n");
        stream.report("third\n");
        assert_eq!(read_all(&reads, filled).len(), filled);
        assert_eq!(read_all(&reads, 19), "first\nsecond\nthird\n");
        stream.flush();
        assert_eq!(stream.locked().bytes, 0);
        stream.report("fourth\n");
        assert_eq!(some(&reads, 99), b"fourth\n");
    }

    #[test]
    fn output_waits_for_room_and_reports_are_dropped_without() {
        let (reads, stream) = piped();
        let filled = fill(stream);
        assert_eq!(stream.awaited(), None);
        stream.output(&[b'x'; MUCH + 1]);
        let room = stream.awaited().unwrap();
        let is_room = |within| upcall_ulp::descriptors::ready(&[(room, 1)], within) == [true];
        assert!(!is_room(Some(Duration::ZERO)));
        stream.output(&[b'y'; MOST]);
        (0..3).for_each(|_| stream.report("lost\n"));
        let whole = filled + MUCH + 1 + MOST;
        assert_eq!(read_all(&reads, whole).len(), whole);
        assert!(is_room(None));
        assert_eq!(stream.awaited(), None);
        stream.flush();
        let told =
            "upcall pvm: 3 earlier reports were dropped: standard error was full or closed\n";
        assert_eq!(read_all(&reads, told.len()), told);
    }

    #[test]
    fn without_a_reader_reports_are_counted_and_nothing_waits() {
        let (reads, stream) = piped();
        fill(stream);
        stream.output(&[b'x'; MUCH + 1]);
        stream.report("lost\n");
        drop(reads);
        stream.flush();
        stream.report("not read\n");
        let state = stream.locked();
        assert_eq!((state.dropped, state.bytes), (2, 0));
    }
}
