//! Tasks' output: to the process's own streams, to a task that catches it, or line by line to the
//! log.

use crate::ops::OUTPUT_END;
use crate::report::pieces;
use crate::services::Effect;
use crate::tid::{HOST, Tid};
use crate::wire::Packet;
use serde::{Deserialize, Serialize};
use std::io::Write;

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
        self.line.extend(bytes);
        let Some(end) = self.line.iter().rposition(|byte| *byte == b'\n') else { return };
        let rest = self.line.split_off(end + 1);
        let whole = std::mem::replace(&mut self.line, rest);
        let mut all = Vec::with_capacity(whole.len() + 64);
        for line in whole.split_inclusive(|byte| *byte == b'\n') {
            all.extend(format!("[{tid}] ").into_bytes());
            all.extend(line);
        }
        // There is no other place to report an error of the error stream.
        let _ = pieces(&all).try_for_each(|piece| std::io::stderr().write_all(piece));
    }

    /// Writes the unfinished line to the log.
    pub(crate) fn log_rest(&mut self, tid: Tid) {
        if !self.line.is_empty() {
            self.log_lines(tid, b"\n");
        }
    }
}
