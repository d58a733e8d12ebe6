//! Output of members, with the member's rank before each line.
//!
//! It has a thread of its own: a slow reader of our output must not keep the supervisor from its
//! job.

use rustix::event::{PollFd, PollFlags, poll};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, channel};

/// Maximum length of a line, in bytes. A longer one is cut into several.
const LONGEST: usize = 64 * 1024;

struct OutputSource {
    rank: usize,
    pipe: File,
    line: Vec<u8>,
}

impl OutputSource {
    fn put(&mut self, out: &mut impl Write) {
        let mut text = format!("[{}] ", self.rank).into_bytes();
        text.append(&mut self.line);
        text.push(b'\n');
        // If the output has no reader any more, the text is dropped and the members go on.
        let _ = out.write_all(&text);
    }

    /// Passes on the bytes that are there. Returns `false` at the end of the pipe.
    fn pass(&mut self, out: &mut impl Write) -> bool {
        let mut bytes = [0; 16 * 1024];
        let read = self.pipe.read(&mut bytes).unwrap_or(0);
        for &byte in &bytes[..read] {
            if byte != b'\n' {
                self.line.push(byte);
            }
            if byte == b'\n' || self.line.len() >= LONGEST {
                self.put(out);
            }
        }
        if read == 0 && !self.line.is_empty() {
            self.put(out);
        }
        read > 0
    }
}

/// Passes on the output of the ranks' pipes, line by line, until all are closed.
///
/// The receiver that it returns is notified then.
pub(crate) fn pass(
    pipes: Vec<(usize, OwnedFd)>,
    mut out: impl Write + Send + 'static,
) -> Receiver<()> {
    let (done, ended) = channel();
    let mut sources: Vec<OutputSource> = pipes
        .into_iter()
        .map(|(rank, pipe)| OutputSource { rank, pipe: pipe.into(), line: Vec::new() })
        .collect();
    std::thread::spawn(move || {
        while !sources.is_empty() {
            let mut fds: Vec<_> =
                sources.iter().map(|source| PollFd::new(&source.pipe, PollFlags::IN)).collect();
            let _ = poll(&mut fds, None);
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            let mut ready = ready.into_iter();
            sources.retain_mut(|source| !ready.next().unwrap_or(false) || source.pass(&mut out));
            let _ = out.flush();
        }
        let _ = done.send(());
    });
    ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_stay_whole_and_the_last_one_is_ended() {
        let (page, pipes) = (Page::default(), [std::io::pipe().unwrap(), std::io::pipe().unwrap()]);
        let [(a, mut to_a), (b, mut to_b)] = pipes;
        let ended = pass(vec![(0, a.into()), (3, b.into())], page.clone());
        to_a.write_all(b"one\ntw").unwrap();
        to_b.write_all(b"last").unwrap();
        drop(to_b);
        to_a.write_all(b"o\n").unwrap();
        drop(to_a);
        ended.recv().unwrap();
        let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["[0] one", "[0] two", "[3] last"]);
    }
}
