//! The output for programs: one JSON object. Fields may be added, and none is removed. The help of
//! the command describes it.

use super::backtrace;
use super::code::{BacktraceLine, ProcessCode};
use super::process::TargetProcess;
use super::snapshot::Snapshot;
use super::text::what_for;
use super::thread::{ShownThread, ThreadState, WaitKind};
use serde::{Serialize, Serializer};
use std::io::{self, BufWriter, Write};

/// For `upcall threads --help`.
pub const DESCRIPTION: &str = "\
JSON: one object. Addresses are text (\"0x7f…\"). Fields may be added.
  pid, program, stopped_microseconds, notes[] (what had to be left out)
  processors[]  index, kernel_thread, thread (a number, or null), idle
  threads[]     number (0: a kernel thread as the kernel knows it), name (or null), kind (user,
                kernel),
                state: running, waiting, ready, not-started, idle-worker, ended, abandoned (its
                  processors have ended), or elsewhere (a kernel thread that does not wait through
                  Upcall now),
                waits_for: null or {kind, object, thread, text}; kind: thread, mutex, shares (a
                  read-write lock or a semaphore), condition, unpark, time, blocking-work,
                  end-of-run, other,
                processor (an index, or null), kernel_thread (or null),
                backtrace[]: {address, function, file, line}, the innermost call first; null
                  stands for what is unknown,
                cut: null, or why the backtrace ends early";

#[derive(Serialize)]
struct Whole<'a> {
    pid: u32,
    program: &'a str,
    stopped_microseconds: u128,
    notes: &'a [String],
    processors: Vec<ProcessorRow>,
    #[serde(serialize_with = "one_by_one")]
    threads: Rows<'a>,
}

#[derive(Serialize)]
struct ProcessorRow {
    index: u32,
    kernel_thread: u32,
    thread: Option<u64>,
    idle: bool,
}

#[derive(Serialize)]
struct ThreadRow<'a> {
    number: u64,
    name: Option<&'a str>,
    kind: &'static str,
    state: &'static str,
    waits_for: Option<WaitRow>,
    processor: Option<u32>,
    kernel_thread: Option<u32>,
    backtrace: Vec<JsonFrame>,
    cut: Option<&'a str>,
}

#[derive(Serialize)]
struct WaitRow {
    kind: &'static str,
    object: Option<String>,
    thread: Option<u64>,
    text: String,
}

#[derive(Serialize)]
struct JsonFrame {
    address: String,
    function: Option<String>,
    file: Option<String>,
    line: Option<u32>,
}

/// The threads. Each becomes a row only when it is written, because there may be many.
struct Rows<'a> {
    threads: &'a [ShownThread],
    code: &'a ProcessCode<'a>,
    backtraces: bool,
    all: bool,
}

fn one_by_one<S: Serializer>(rows: &Rows<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(rows.threads.iter().map(|thread| rows.row(thread)))
}

impl<'a> Rows<'a> {
    fn row(&self, thread: &'a ShownThread) -> ThreadRow<'a> {
        let frames = match (self.backtraces, self.all) {
            (false, _) => Vec::new(),
            (true, true) => backtrace::calls_of(&thread.calls, self.code),
            (true, false) => backtrace::shown(&thread.calls, self.code, thread.state),
        };
        let call = |BacktraceLine { address, function, file, line }| JsonFrame {
            address: hex(address),
            function,
            file,
            line,
        };
        ThreadRow {
            number: thread.number,
            name: thread.name.as_deref(),
            kind: if matches!(
                thread.state,
                ThreadState::KernelWaiting
                    | ThreadState::KernelElsewhere
                    | ThreadState::KernelOther
            ) {
                "kernel"
            } else {
                "user"
            },
            state: state(thread.state),
            waits_for: thread.waits_for.as_ref().map(|wait| WaitRow {
                kind: kind(wait.kind),
                object: (wait.object != 0).then(|| hex(wait.object)),
                thread: wait.thread.as_ref().map(|(number, _)| *number),
                text: what_for(wait),
            }),
            processor: thread.processor,
            kernel_thread: thread.kernel_thread,
            backtrace: frames.into_iter().map(call).collect(),
            cut: thread.calls.cut.as_deref().filter(|_| self.backtraces),
        }
    }
}

fn hex(address: u64) -> String {
    format!("0x{address:x}")
}

fn state(state: ThreadState) -> &'static str {
    match state {
        ThreadState::Running => "running",
        ThreadState::Waiting | ThreadState::KernelWaiting => "waiting",
        ThreadState::Ready => "ready",
        ThreadState::NotStarted => "not-started",
        ThreadState::IdleWorker => "idle-worker",
        ThreadState::Ended => "ended",
        ThreadState::Abandoned => "abandoned",
        ThreadState::KernelElsewhere | ThreadState::KernelOther => "elsewhere",
    }
}

fn kind(kind: WaitKind) -> &'static str {
    match kind {
        WaitKind::Thread => "thread",
        WaitKind::Mutex => "mutex",
        WaitKind::Shares => "shares",
        WaitKind::Condition => "condition",
        WaitKind::Unpark => "unpark",
        WaitKind::Time => "time",
        WaitKind::BlockingWork => "blocking-work",
        WaitKind::EndOfRun => "end-of-run",
        WaitKind::Other => "other",
    }
}

/// Writes the object to the standard output.
pub fn print(
    process: &TargetProcess,
    snapshot: &Snapshot,
    threads: &[ShownThread],
    code: &ProcessCode<'_>,
    backtraces: bool,
    all: bool,
) -> io::Result<()> {
    let processor = |processor: &super::snapshot::ProcessorSnapshot| {
        let thread = super::text::thread_of(processor, snapshot, threads);
        ProcessorRow {
            index: processor.index,
            kernel_thread: processor.kernel_thread,
            thread: thread.map(|thread| thread.number),
            idle: thread.is_some_and(|thread| thread.state != ThreadState::Running),
        }
    };
    let whole = Whole {
        pid: process.pid,
        program: &process.program,
        stopped_microseconds: snapshot.stopped.as_micros(),
        notes: &snapshot.notes,
        processors: snapshot.processors.iter().map(processor).collect(),
        threads: Rows { threads, code, backtraces, all },
    };
    let mut out = BufWriter::new(io::stdout().lock());
    crate::output::write_json(&mut out, &whole)?;
    writeln!(out)?;
    out.flush()
}
