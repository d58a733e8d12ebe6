//! The host's own reports on standard error: crashes, refusals, ends of processes.
//!
//! A report that fits into [`WHOLE`] bytes is one `write`. A longer one is one `write` per run of
//! whole lines that fits. So lines of several processes never mix.
//!
//! A report neither blocks the host nor ends it. If standard error is closed or full, the report is
//! dropped, and the next report that is written gives the number of dropped ones.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags, pwritev2, write};
use std::io::IoSlice;
use upcall_os::atomic::{AtomicUsize, Ordering};

/// Bytes that a pipe takes whole or not at all (`PIPE_BUF`).
const WHOLE: usize = 4096;

/// Number of reports dropped since the last written one.
static DROPPED: AtomicUsize = AtomicUsize::new(0);

/// Writes a report. `text` ends with a newline.
pub(crate) fn report(text: &str) {
    report_to(rustix::stdio::stderr(), &DROPPED, text);
}

/// Reports one line, formatted as by `format!`.
macro_rules! report_line {
    ($($arg:tt)*) => { $crate::report::report(&(format!($($arg)*) + "\n")) };
}
pub(crate) use report_line;

fn report_to(to: BorrowedFd<'_>, dropped: &AtomicUsize, text: &str) {
    let before = dropped.swap(0, Ordering::Relaxed);
    let noted = match before {
        0 => String::new(),
        count => format!(
            "upcall pvm: {count} earlier reports were dropped: standard error was full or closed\n"
        ),
    };
    let all = noted + text;
    for piece in pieces(all.as_bytes()) {
        if !is_written(to, piece) {
            dropped.fetch_add(before + 1, Ordering::Relaxed);
            return;
        }
    }
}

/// Splits text into runs of whole lines of at most [`WHOLE`] bytes each. A longer line is cut.
pub(crate) fn pieces(mut text: &[u8]) -> impl Iterator<Item = &[u8]> {
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

/// Writes a piece without blocking. Returns `true` if all of it was written.
fn is_written(to: BorrowedFd<'_>, piece: &[u8]) -> bool {
    // Writing to a pipe without a reader would raise SIGPIPE, unless the program ignores that.
    let mut one = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
    if poll(&mut one, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_err()
        || one[0].revents() != PollFlags::OUT
    {
        return false;
    }
    let waits = fstat(to).is_ok_and(|about| {
        matches!(FileType::from_raw_mode(about.st_mode), FileType::Fifo | FileType::Socket)
    });
    let written = if waits {
        // The pipe may have less room than the piece needs, and another process may fill it.
        match pwritev2(to, &[IoSlice::new(piece)], u64::MAX, ReadWriteFlags::NOWAIT) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => write(to, piece),
            other => other,
        }
    } else {
        write(to, piece)
    };
    written == Ok(piece.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{AsFd, OwnedFd};
    use rustix::io::read;
    use rustix::pipe::pipe;

    fn all_of(from: &OwnedFd, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most];
        let count = read(from, &mut bytes).unwrap();
        bytes.truncate(count);
        bytes
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
    fn a_pipe_that_is_full_or_closed_drops_reports_and_the_next_one_counts_them() {
        let dropped = AtomicUsize::new(0);
        let (reads, writes) = pipe().unwrap();
        let mut filled = 0;
        while is_written(writes.as_fd(), &[b'x'; WHOLE]) {
            filled += WHOLE;
        }
        assert!(filled > 0);
        for _ in 0..3 {
            report_to(writes.as_fd(), &dropped, "lost\n");
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 3);
        assert_eq!(all_of(&reads, filled).len(), filled);
        report_to(writes.as_fd(), &dropped, "told\n");
        let told = String::from_utf8(all_of(&reads, 4096)).unwrap();
        assert_eq!(
            told,
            "upcall pvm: 3 earlier reports were dropped: standard error was full or closed\ntold\n"
        );
        drop(reads);
        report_to(writes.as_fd(), &dropped, "nobody reads this\n");
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }
}
