//! The form for programs: one object, stable; fields may be added. Its description is in the
//! command's help.

use super::backtrace;
use super::code::{Code, Frame};
use super::process::Process;
use super::snapshot::Snapshot;
use super::text::what_for;
use super::thread::{Kind, State, Thread};
use serde::{Serialize, Serializer};
use std::io::{self, BufWriter, Write};

/// For `upcall threads --help`.
pub const DESCRIPTION: &str = "\
JSON: one object. Addresses are text (\"0x7f…\"). Fields may be added.
  pid, program, stopped_microseconds, notes[] (what had to be left out)
  processors[]  index, kernel_thread, thread (a number, or null), idle
  threads[]     number, name (or null), kind (user, kernel),
                state: running, waiting, ready, not-started, idle-worker, ended, abandoned (its processors have ended), or
                  elsewhere (a kernel thread that does not wait through Upcall now),
                waits_for: null or {kind, object, thread, text}; kind: thread, mutex, shares (a read-write lock or a
                  semaphore), condition, unpark, time, blocking-work, end-of-run, other,
                processor (an index, or null), kernel_thread (or null),
                backtrace[]: {address, function, file, line}, the innermost call first; what is not known is null
                cut: null, or why the backtrace ends early";

#[derive(Serialize)]
struct Whole<'a> {
    pid: u32,
    program: &'a str,
    stopped_microseconds: u128,
    notes: &'a [String],
    processors: Vec<Processor>,
    #[serde(serialize_with = "one_by_one")]
    threads: Rows<'a>,
}

#[derive(Serialize)]
struct Processor {
    index: u32,
    kernel_thread: u32,
    thread: Option<u64>,
    idle: bool,
}

#[derive(Serialize)]
struct Row<'a> {
    number: u64,
    name: Option<&'a str>,
    kind: &'static str,
    state: &'static str,
    waits_for: Option<Wait>,
    processor: Option<u32>,
    kernel_thread: Option<u32>,
    backtrace: Vec<Call>,
    cut: Option<&'a str>,
}

#[derive(Serialize)]
struct Wait {
    kind: &'static str,
    object: Option<String>,
    thread: Option<u64>,
    text: String,
}

#[derive(Serialize)]
struct Call {
    address: String,
    function: Option<String>,
    file: Option<String>,
    line: Option<u32>,
}

/// The threads, each of which becomes a row only when it is written: there may be many.
struct Rows<'a> {
    threads: &'a [Thread],
    code: &'a Code<'a>,
    backtraces: bool,
    all: bool,
}

fn one_by_one<S: Serializer>(rows: &Rows<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(rows.threads.iter().map(|thread| rows.row(thread)))
}

impl<'a> Rows<'a> {
    fn row(&self, thread: &'a Thread) -> Row<'a> {
        let frames = match (self.backtraces, self.all) {
            (false, _) => Vec::new(),
            (true, true) => backtrace::calls_of(&thread.calls, self.code),
            (true, false) => backtrace::shown(&thread.calls, self.code, thread.state),
        };
        let call = |Frame { address, function, file, line }| Call {
            address: hex(address),
            function,
            file,
            line,
        };
        Row {
            number: thread.number,
            name: thread.name.as_deref(),
            kind: if matches!(thread.state, State::KernelWaiting | State::KernelElsewhere) {
                "kernel"
            } else {
                "user"
            },
            state: state(thread.state),
            waits_for: thread.waits_for.as_ref().map(|wait| Wait {
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

fn state(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::Waiting | State::KernelWaiting => "waiting",
        State::Ready => "ready",
        State::NotStarted => "not-started",
        State::IdleWorker => "idle-worker",
        State::Ended => "ended",
        State::Abandoned => "abandoned",
        State::KernelElsewhere => "elsewhere",
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Thread => "thread",
        Kind::Mutex => "mutex",
        Kind::Shares => "shares",
        Kind::Condition => "condition",
        Kind::Unpark => "unpark",
        Kind::Time => "time",
        Kind::BlockingWork => "blocking-work",
        Kind::EndOfRun => "end-of-run",
        Kind::Other => "other",
    }
}

/// Writes it to standard output.
pub fn print(
    process: &Process,
    snapshot: &Snapshot,
    threads: &[Thread],
    code: &Code<'_>,
    backtraces: bool,
    all: bool,
) -> io::Result<()> {
    let processor = |processor: &super::snapshot::Processor| {
        let thread = super::text::thread_of(processor, snapshot, threads);
        Processor {
            index: processor.index,
            kernel_thread: processor.kernel_thread,
            thread: thread.map(|thread| thread.number),
            idle: thread.is_some_and(|thread| thread.state != State::Running),
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
    crate::told::write_json(&mut out, &whole)?;
    writeln!(out)?;
    out.flush()
}
