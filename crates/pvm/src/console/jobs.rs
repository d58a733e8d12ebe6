//! Jobs: the tasks that one command has spawned with their output shown here or written to a file,
//! and all tasks that these spawn.

use crate::tid::Tid;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;

/// Where a job's output goes.
#[derive(Debug)]
pub(super) enum Sink {
    Here,
    File(File),
}

#[derive(Debug)]
struct ConsoleJob {
    sink: Sink,
    /// The running tasks, each with its unfinished line.
    tasks: BTreeMap<Tid, Vec<u8>>,
    /// Whether tasks of the job are still being started.
    starts: bool,
}

/// All jobs of a console.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    all: BTreeMap<i32, ConsoleJob>,
    last: i32,
}

impl Jobs {
    /// Begins a job whose tasks are being started. Returns its number.
    pub(super) fn begin(&mut self, sink: Sink) -> i32 {
        self.last += 1;
        self.all.insert(self.last, ConsoleJob { sink, tasks: BTreeMap::new(), starts: true });
        self.last
    }

    /// Ends the start of a job. `any`: whether at least one task was started.
    pub(super) fn started(&mut self, number: i32, any: bool, out: &mut Vec<u8>) {
        if let Some(job) = self.all.get_mut(&number) {
            job.starts = false;
            if any { self.end_if_over(number, out) } else { _ = self.all.remove(&number) }
        }
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (i32, Vec<Tid>)> {
        self.all.iter().map(|(number, job)| (*number, job.tasks.keys().copied().collect()))
    }

    pub(super) fn new_task(&mut self, number: i32, tid: Tid) {
        if let Some(job) = self.all.get_mut(&number) {
            job.tasks.entry(tid).or_default();
        }
    }

    /// Adds output of a task, and prints the complete lines.
    pub(super) fn printed(
        &mut self,
        number: i32,
        tid: Tid,
        bytes: &[u8],
        label: bool,
        out: &mut Vec<u8>,
    ) {
        let Some(job) = self.all.get_mut(&number) else { return };
        let Some(line) = job.tasks.get_mut(&tid) else { return };
        line.extend(bytes);
        let Some(end) = line.iter().rposition(|byte| *byte == b'\n') else { return };
        let rest = line.split_off(end + 1);
        let whole = std::mem::replace(line, rest);
        job.sink.put(
            whole
                .split_inclusive(|byte| *byte == b'\n')
                .map(|line| labelled(number, tid, line, label)),
            out,
        );
    }

    pub(super) fn task_ended(&mut self, number: i32, tid: Tid, label: bool, out: &mut Vec<u8>) {
        let Some(job) = self.all.get_mut(&number) else { return };
        let Some(mut line) = job.tasks.remove(&tid) else { return };
        if !line.is_empty() {
            line.push(b'\n');
        }
        let rest = Some(line)
            .filter(|line| !line.is_empty())
            .map(|line| labelled(number, tid, &line, label));
        let mark = label.then(|| labelled(number, tid, b"EOF\n", true));
        job.sink.put(rest.into_iter().chain(mark), out);
        self.end_if_over(number, out);
    }

    fn end_if_over(&mut self, number: i32, out: &mut Vec<u8>) {
        if self.all.get(&number).is_some_and(|job| job.tasks.is_empty() && !job.starts) {
            self.all.remove(&number);
            out.extend(format!("[{number}] finished\n").into_bytes());
        }
    }
}

fn labelled(number: i32, tid: Tid, line: &[u8], label: bool) -> Vec<u8> {
    let mut text = if label { format!("[{number}:{tid}] ").into_bytes() } else { Vec::new() };
    text.extend(line);
    text
}

impl Sink {
    fn put(&mut self, lines: impl Iterator<Item = Vec<u8>>, out: &mut Vec<u8>) {
        let all = lines.flatten().collect::<Vec<_>>();
        match self {
            Self::Here => out.extend(all),
            Self::File(file) => {
                if let Err(error) = file.write_all(&all) {
                    out.extend(
                        format!(
                            "a job's file cannot be written: {error}; its output is shown here \
                             from now on\n"
                        )
                        .into_bytes(),
                    );
                    out.extend(all);
                    *self = Self::Here;
                }
            }
        }
    }
}
