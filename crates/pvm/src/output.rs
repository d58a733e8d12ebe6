//! Tasks' output: to the process's own streams, to a task that catches it, or line by line to the
//! log.

use crate::ops::OUTPUT_END;
use crate::services::Effect;
use crate::stream::STDERR;
use crate::tid::{HOST, Tid};
use crate::wire::Packet;
use serde::{Deserialize, Serialize};

/// Maximum length of a line in the log, in bytes. An unfinished line is kept up to this length.
const LONGEST: usize = 64 << 10;

/// Where a task's output goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OutputTarget {
    /// Directly to the process's own streams. For the machine's initial tasks.
    #[default]
    Own,
    /// To the machine's error stream, each line with its task's id. PVM writes this to its log.
    Log,
    /// To a task, as messages.
    Task(Tid),
}

/// The target of a task's output.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Output {
    pub(crate) to: OutputTarget,
    pub(crate) tag: i32,
    pub(crate) context: i32,
    /// The unfinished line, if the output goes to the log.
    line: Vec<u8>,
}

/// The task that catches output, and the tag and context of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Catcher {
    pub(crate) to: Tid,
    tag: i32,
    context: i32,
}

impl Catcher {
    /// The last message about a task: its output has ended.
    pub(crate) fn told_of_end(&self, tid: Tid) -> Effect {
        let data = Packet::default().int(tid.number()).int(OUTPUT_END as i32);
        Effect::Message { from: HOST, to: self.to, tag: self.tag, context: self.context, data }
    }
}

impl Output {
    pub(crate) fn catcher(&self) -> Option<Catcher> {
        match self.to {
            OutputTarget::Task(to) => Some(Catcher { to, tag: self.tag, context: self.context }),
            OutputTarget::Own | OutputTarget::Log => None,
        }
    }

    /// The same target, for another task.
    pub(crate) fn for_another(&self) -> Self {
        Self { line: Vec::new(), ..*self }
    }

    /// The log as the target.
    pub(crate) fn log() -> Self {
        Self { to: OutputTarget::Log, ..Self::default() }
    }

    /// Writes complete lines to the log, and keeps the unfinished one.
    pub(crate) fn log_lines(&mut self, tid: Tid, bytes: &[u8]) {
        STDERR.output(&self.lines(tid, bytes));
    }

    /// The complete lines, each with the task's id. A line of more than [`LONGEST`] bytes becomes
    /// several lines.
    fn lines(&mut self, tid: Tid, bytes: &[u8]) -> Vec<u8> {
        let label = format!("[{tid}] ").into_bytes();
        let mut all = Vec::new();
        for mut part in bytes.split_inclusive(|byte| *byte == b'\n') {
            while !part.is_empty() {
                // One byte more, which may be the newline.
                let (now, later) = part.split_at(part.len().min(LONGEST + 1 - self.line.len()));
                part = later;
                self.line.extend(now);
                let is_whole = now.ends_with(b"\n");
                if !is_whole && self.line.len() <= LONGEST {
                    break;
                }
                let next = if is_whole { Vec::new() } else { self.line.split_off(LONGEST) };
                let line = std::mem::replace(&mut self.line, next);
                all.extend_from_slice(&label);
                all.extend(line);
                all.extend((!is_whole).then_some(b'\n'));
            }
        }
        all
    }

    /// Writes the unfinished line to the log.
    pub(crate) fn log_rest(&mut self, tid: Tid) {
        if !self.line.is_empty() {
            self.log_lines(tid, b"\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_a_label_and_long_ones_are_cut() {
        let (mut output, tid) = (Output::log(), Tid::new(0, 2));
        let mut lines = |bytes: &[u8]| output.lines(tid, bytes);
        assert_eq!(lines(b"a\0b"), b"");
        assert_eq!(lines(b"c\n\nd\ne"), b"[t40002] a\0bc\n[t40002] \n[t40002] d\n");
        assert_eq!(lines(b"\n"), b"[t40002] e\n");
        let longest = vec![b'x'; LONGEST];
        assert_eq!(lines(&longest), b"");
        assert_eq!(lines(b"\n"), [b"[t40002] ", &longest[..], b"\n"].concat());
        let cut = [b"[t40002] ", &longest[..], b"\n"].concat();
        assert_eq!(lines(&[b'x'; 2 * LONGEST + 1]), cut.repeat(2));
        assert_eq!(lines(b"y\n"), b"[t40002] xy\n");
    }
}
