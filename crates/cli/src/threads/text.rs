//! The output for people. Threads that do the same are shown together, so that ten thousand take
//! no more room than ten.

use super::backtrace;
use super::code::{BacktraceLine, ProcessCode};
use super::process::TargetProcess;
use super::snapshot::{ProcessorSnapshot, Snapshot};
use super::thread::{ShownThread, ShownWait, ThreadState, WaitKind};
use super::unwind::CallStack;
use crate::output::{FAINT, STRONG, counted};
use std::collections::{BTreeSet, HashMap};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Minimum number of threads that do the same to be shown together.
const MANY: usize = 4;
/// Number of threads of a group that are named.
const NAMED: usize = 3;

/// The thread that `processor` runs, or on whose stack it idles.
pub fn thread_of<'a>(
    processor: &ProcessorSnapshot,
    snapshot: &Snapshot,
    threads: &'a [ShownThread],
) -> Option<&'a ShownThread> {
    let mut records = snapshot.records.iter().filter(|record| record.number != 0);
    let record = records.find(|record| record.at == processor.current)?;
    threads.iter().find(|thread| thread.number == record.number)
}

/// What a thread waits for: "the mutex at 0x7f…".
pub fn what_for(wait: &ShownWait) -> String {
    let object = wait.object;
    match wait.kind {
        WaitKind::Thread => match &wait.thread {
            Some((number, Some(name))) => format!("the end of thread {number} {name:?}"),
            Some((number, None)) => format!("the end of thread {number}"),
            None => "the end of a thread that has gone".into(),
        },
        WaitKind::Mutex => format!("the mutex at 0x{object:x}"),
        WaitKind::Shares => format!("the read-write lock or semaphore at 0x{object:x}"),
        WaitKind::Condition => format!("the condition variable at 0x{object:x}"),
        WaitKind::Unpark => "an unpark".into(),
        WaitKind::Time => "a time".into(),
        WaitKind::BlockingWork => "blocking work".into(),
        WaitKind::EndOfRun => "the end of the virtual processors".into(),
        WaitKind::Other => "something outside, such as the reply to a call".into(),
    }
}

/// What several threads wait for: "3 mutexes".
fn what_all_for(waits: &[&ShownWait]) -> String {
    let different = waits.iter().map(|wait| wait.object).collect::<BTreeSet<_>>().len();
    let kind = match waits {
        [first, ..] if different > 1 => first.kind,
        [first, ..] => return what_for(first),
        [] => return String::new(),
    };
    match kind {
        WaitKind::Thread => format!("the ends of {different} threads"),
        WaitKind::Mutex => format!("{different} mutexes"),
        WaitKind::Shares => format!("{different} read-write locks or semaphores"),
        WaitKind::Condition => format!("{different} condition variables"),
        _ => waits.first().map(|wait| what_for(wait)).unwrap_or_default(),
    }
}

/// What a thread does, or several threads that do the same.
fn doing(threads: &[&ShownThread]) -> String {
    let (s, is, has) = if threads.len() == 1 { ("s", "is", "has") } else { ("", "are", "have") };
    let state = threads.first().map_or(ThreadState::Ready, |thread| thread.state);
    match state {
        ThreadState::Running => match threads {
            [ShownThread { processor: Some(processor), .. }] => {
                format!("runs on processor {processor}")
            }
            _ => format!("run{s}"),
        },
        ThreadState::Waiting | ThreadState::KernelWaiting => {
            let waits: Vec<_> =
                threads.iter().filter_map(|thread| thread.waits_for.as_ref()).collect();
            let mut text = match waits.first().map(|wait| wait.kind) {
                Some(WaitKind::Time) => format!("sleep{s}"),
                Some(WaitKind::Unpark) => format!("{is} parked"),
                _ => format!("wait{s} for {}", what_all_for(&waits)),
            };
            if let [ShownThread { kernel_thread: Some(_), processor: Some(processor), .. }] =
                threads
            {
                text += &format!("; processor {processor} idles on its stack");
            }
            text
        }
        ThreadState::Ready => format!("{is} ready to run"),
        ThreadState::NotStarted => format!("{has} not started"),
        ThreadState::IdleWorker => match threads {
            [ShownThread { kernel_thread: Some(_), processor: Some(processor), .. }] => {
                format!("is a worker without work; processor {processor} idles on its stack")
            }
            [_] => "is a worker without work".into(),
            _ => "are workers without work".into(),
        },
        ThreadState::Ended => format!("{has} ended, and {has} not been joined"),
        ThreadState::Abandoned => format!("never run{s} again: the virtual processors have ended"),
        ThreadState::KernelElsewhere => {
            let does = if s.is_empty() { "do" } else { "does" };
            format!("{does} not wait through Upcall's scheduler now: see the kernel threads below")
        }
        ThreadState::KernelOther => format!("run{s}, or wait{s} in the kernel"),
    }
}

fn title(thread: &ShownThread) -> String {
    let number = match thread.kernel_thread {
        Some(tid) if thread.state == ThreadState::KernelOther => format!("kernel thread {tid}"),
        _ => thread.number.to_string(),
    };
    match &thread.name {
        Some(name) => format!("{number} {name:?}"),
        None => number,
    }
}

/// Threads that are shown together.
#[derive(PartialEq, Eq, Hash)]
struct Likeness<'a> {
    state: ThreadState,
    kind: Option<WaitKind>,
    calls: &'a CallStack,
}

fn groups<'a>(threads: &'a [ShownThread], fold: bool) -> Vec<Vec<&'a ShownThread>> {
    let mut known: HashMap<Likeness<'_>, usize> = HashMap::new();
    let mut groups: Vec<Vec<&ShownThread>> = Vec::new();
    for thread in threads {
        let kind = thread.waits_for.as_ref().map(|wait| wait.kind);
        let place = *known
            .entry(Likeness { state: thread.state, kind, calls: &thread.calls })
            .or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.push(thread),
            None => groups.push(vec![thread]),
        }
    }
    let each = |group: Vec<&'a ShownThread>| {
        if fold && group.len() >= MANY {
            vec![group]
        } else {
            group.into_iter().map(|thread| vec![thread]).collect()
        }
    };
    groups.into_iter().flat_map(each).collect()
}

/// Writes the text to the standard output.
pub fn print(
    process: &TargetProcess,
    snapshot: &Snapshot,
    threads: &[ShownThread],
    code: &ProcessCode<'_>,
    backtraces: bool,
    all: bool,
) -> io::Result<()> {
    let mut out = BufWriter::new(anstream::stdout().lock());
    let (other, known): (Vec<_>, Vec<_>) = groups(threads, !all)
        .into_iter()
        .partition(|group| group[0].state == ThreadState::KernelOther);
    let (kernel, user): (Vec<_>, Vec<_>) = known.into_iter().partition(|group| {
        matches!(group[0].state, ThreadState::KernelWaiting | ThreadState::KernelElsewhere)
    });
    writeln!(
        out,
        "{STRONG}process {} ({}): {} on {}{STRONG:#} {FAINT}(stopped for {:.1} ms){FAINT:#}",
        process.pid,
        process.program.escape_debug(),
        counted(user.iter().map(Vec::len).sum(), "user-level thread"),
        counted(snapshot.processors.len(), "virtual processor"),
        snapshot.stopped.as_secs_f64() * 1e3
    )?;
    for processor in &snapshot.processors {
        let does = match thread_of(processor, snapshot, threads) {
            Some(thread) if thread.state == ThreadState::Running => {
                format!("runs thread {}", title(thread))
            }
            Some(thread) => format!("idles on the stack of thread {}", title(thread)),
            None => "is between two threads".into(),
        };
        writeln!(
            out,
            "processor {} {does} {FAINT}(kernel thread {}){FAINT:#}",
            processor.index, processor.kernel_thread
        )?;
    }
    for group in &user {
        section(&mut out, group, code, backtraces, all)?;
    }
    if !kernel.is_empty() {
        writeln!(
            out,
            "\n{STRONG}kernel threads that wait, or have waited, through Upcall{STRONG:#}"
        )?;
    }
    for group in &kernel {
        section(&mut out, group, code, backtraces, all)?;
    }
    if !other.is_empty() {
        writeln!(out, "\n{STRONG}other kernel threads{STRONG:#}")?;
    }
    for group in &other {
        section(&mut out, group, code, backtraces, all)?;
    }
    for note in &snapshot.notes {
        writeln!(out, "\nnote: {}", note.escape_debug())?;
    }
    out.flush()
}

fn section(
    out: &mut impl Write,
    group: &[&ShownThread],
    code: &ProcessCode<'_>,
    backtraces: bool,
    all: bool,
) -> io::Result<()> {
    match group {
        [thread] => writeln!(out, "\n{STRONG}{}{STRONG:#} {}", title(thread), doing(group))?,
        _ => {
            let first: Vec<_> = group.iter().take(NAMED).map(|thread| title(thread)).collect();
            let last = group.last().map(|thread| title(thread)).unwrap_or_default();
            let between = if group.len() > NAMED + 1 { ", …, " } else { ", " };
            writeln!(
                out,
                "\n{STRONG}{} threads{STRONG:#} {}: {}{between}{last}",
                group.len(),
                doing(group),
                first.join(", ")
            )?;
        }
    }
    let Some(thread) = group.first().filter(|_| backtraces) else { return Ok(()) };
    let frames = match all {
        true => backtrace::calls_of(&thread.calls, code),
        // These have no calls of the program.
        false if matches!(thread.state, ThreadState::IdleWorker | ThreadState::Ended) => Vec::new(),
        false => backtrace::shown(&thread.calls, code, thread.state),
    };
    let here = std::env::current_dir().unwrap_or_default();
    for frame in &frames {
        line(out, frame, &here)?;
    }
    match &thread.calls.cut {
        Some(why) => writeln!(out, "    {FAINT}… cut: {}{FAINT:#}", why.escape_debug()),
        None => Ok(()),
    }
}

fn line(out: &mut impl Write, frame: &BacktraceLine, here: &Path) -> io::Result<()> {
    match &frame.function {
        Some(function) => write!(out, "    {function}")?,
        None => write!(out, "    0x{:x}", frame.address)?,
    }
    if let Some(file) = &frame.file {
        let file = Path::new(file);
        let file = file.strip_prefix(here).unwrap_or(file).display();
        match frame.line {
            Some(line) => write!(out, " {FAINT}{file}:{line}{FAINT:#}")?,
            None => write!(out, " {FAINT}{file}{FAINT:#}")?,
        }
    }
    writeln!(out)
}
