//! The state of each thread, from its record, from the processors, and from the calls on its stack.
//!
//! The record (of version 1) lacks four states:
//! * ended and not joined: only the scheduler's first function is on the thread's stack;
//! * a worker that idles on its own stack: the worker's loop has called the idle loop;
//! * about to wait, or woken and about to run: a processor has the thread, and the idle loop is not
//!   on its stack;
//! * woken, and not run since: the thread is shown as waiting until it runs.

use super::backtrace::{DISPATCH, calls_of, is_function};
use super::code::ProcessCode;
use super::memory::u64_at;
use super::snapshot::{ProcessorSnapshot, Snapshot, StackCopies, ThreadRecord, WORK};
use super::unwind::{self, CallStack, UnwindRegisters, unwind};
use std::collections::{HashMap, HashSet};

/// A thread as it is shown.
pub struct ShownThread {
    pub number: u64,
    pub name: Option<String>,
    pub state: ThreadState,
    pub waits_for: Option<ShownWait>,
    /// The processor on which the thread runs, or has run and will run again.
    pub processor: Option<u32>,
    /// The kernel thread that the thread is, or that runs it or idles on its stack.
    pub kernel_thread: Option<u32>,
    pub calls: CallStack,
}

/// The states of threads, in the order in which they are shown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ThreadState {
    Running,
    Waiting,
    Ready,
    NotStarted,
    /// A worker without work.
    IdleWorker,
    /// The thread has ended, and has not been joined.
    Ended,
    /// The thread's processors have ended, so it never runs again.
    Abandoned,
    /// A kernel thread that waits through the crate.
    KernelWaiting,
    /// A kernel thread that has waited through the crate before and does something else now.
    KernelElsewhere,
    /// A kernel thread as the kernel knows it, which does not wait through the crate.
    KernelOther,
}

/// What a thread waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShownWait {
    pub kind: WaitKind,
    /// The address of the object that is waited for, or 0.
    pub object: u64,
    /// The number and the name of the thread whose end is waited for.
    pub thread: Option<(u64, Option<String>)>,
}

/// The kinds of waits; see `Cause` in `crates/thread/src/record.rs`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WaitKind {
    Thread,
    Mutex,
    Shares,
    Condition,
    Unpark,
    Time,
    BlockingWork,
    /// The end of the processors, for which a processor's first thread waits.
    EndOfRun,
    Other,
}

impl WaitKind {
    fn of(cause: u8) -> Self {
        match cause {
            1 => Self::Thread,
            2 => Self::Mutex,
            3 => Self::Shares,
            4 => Self::Condition,
            5 => Self::Unpark,
            6 => Self::Time,
            7 => Self::BlockingWork,
            _ => Self::Other,
        }
    }

    fn has_object(self) -> bool {
        matches!(self, Self::Thread | Self::Mutex | Self::Shares | Self::Condition)
    }
}

/// All threads, in the order of their states and then of their numbers.
pub fn all(snapshot: &Snapshot, code: &ProcessCode<'_>) -> Vec<ShownThread> {
    let by_record: HashMap<u64, &ThreadRecord> =
        snapshot.records.iter().filter(|record| record.number != 0).map(|r| (r.at, r)).collect();
    let live: HashSet<u32> = snapshot.processors.iter().map(|processor| processor.index).collect();
    let mut threads: Vec<_> = snapshot
        .records
        .iter()
        .map(|record| {
            let calls = calls(record, &snapshot.stacks, code);
            let running =
                snapshot.processors.iter().find(|processor| processor.current == record.at);
            let running = running.filter(|_| record.number != 0);
            let (state, kind) = state(record, running, &live, &calls, code);
            let waits_for = kind.map(|kind| {
                let object = if kind.has_object() { record.object } else { 0 };
                let thread = by_record.get(&object).filter(|_| kind == WaitKind::Thread);
                ShownWait {
                    kind,
                    object,
                    thread: thread.map(|thread| (thread.number, thread.name.clone())),
                }
            });
            ShownThread {
                number: record.number,
                name: record.name.clone(),
                state,
                waits_for,
                processor: record.home,
                kernel_thread: match (running, record.home) {
                    (Some(processor), _) => Some(processor.kernel_thread),
                    (None, None) => record.on.map(|(tid, _)| tid),
                    (None, Some(_)) => None,
                },
                calls,
            }
        })
        .collect();
    threads.sort_by_key(|thread| (thread.state, thread.number));
    threads
}

fn state(
    record: &ThreadRecord,
    running: Option<&ProcessorSnapshot>,
    live: &HashSet<u32>,
    calls: &CallStack,
    code: &ProcessCode<'_>,
) -> (ThreadState, Option<WaitKind>) {
    let Some(home) = record.home else {
        return match (record.outside, record.blocking) {
            _ if record.number == 0 => (ThreadState::KernelOther, None),
            (false, _) => (ThreadState::NotStarted, None),
            (true, true) => (ThreadState::KernelWaiting, Some(WaitKind::of(record.cause))),
            (true, false) => (ThreadState::KernelElsewhere, None),
        };
    };
    if !live.contains(&home) {
        return (ThreadState::Abandoned, None);
    }
    if record.blocking {
        if running.is_some() {
            let calls: Vec<_> = calls_of(calls, code);
            let caller_of = |name| {
                let place = calls.iter().position(|frame| is_function(frame, &DISPATCH, name))?;
                calls.get(place + 1)
            };
            if caller_of("find").is_some_and(|frame| is_function(frame, &DISPATCH, "serve")) {
                return (ThreadState::IdleWorker, None);
            }
            // The thread is on its way into a wait or out of one, or looks for outside work in
            // between. It counts as running if its functions have names.
            let has_names = calls.iter().any(|frame| frame.function.is_some());
            if has_names && caller_of("find").is_none() {
                return (ThreadState::Running, None);
            }
        }
        let stays = record.outside && home > 0 && WaitKind::of(record.cause) == WaitKind::Other;
        return (
            ThreadState::Waiting,
            Some(if stays { WaitKind::EndOfRun } else { WaitKind::of(record.cause) }),
        );
    }
    if running.is_some() {
        (ThreadState::Running, None)
    } else if record.cause == WORK {
        (ThreadState::IdleWorker, None)
    } else if calls.cut.is_none() && calls.at.len() == 2 {
        // The first function of a thread, which also ends it, and the caller of that function.
        (ThreadState::Ended, None)
    } else {
        (ThreadState::Ready, None)
    }
}

fn calls(record: &ThreadRecord, stacks: &StackCopies, code: &ProcessCode<'_>) -> CallStack {
    let stack = |address: u64| {
        record.parts.iter().find_map(|part| {
            let (start, bytes) = stacks.part(part);
            let place = usize::try_from(address.checked_sub(start)?).ok()?;
            (place.checked_add(8)? <= bytes.len()).then(|| u64_at(bytes, place))
        })
    };
    let cut = |why: &str| CallStack { at: Vec::new(), cut: Some(why.into()) };
    match record.on {
        Some((_, Some(registers))) => running(record, unwind::running(&registers), &stack, code),
        Some((_, None)) => cut(
            "its kernel thread has not stopped: it is in a system call that nothing interrupts, or \
             gets no processor",
        ),
        None if record.home.is_none() => CallStack::default(),
        None if record.parts.is_empty() => cut("its saved stack pointer is not in its stack"),
        None => match unwind::suspended(record.stack_pointer, &stack) {
            Some(place) => unwind(code, place, &stack),
            None => cut("its stack cannot be read"),
        },
    }
}

/// Unwinds a running thread from its registers.
///
/// In the middle of a switch the call frame information is wrong. There, either the words that were
/// pushed, at most four, have to be popped first, or the stack is the new thread's already and its
/// saved words are still valid. The attempt that reaches the end of the stack is the right one.
fn running(
    record: &ThreadRecord,
    place: UnwindRegisters,
    stack: &impl Fn(u64) -> Option<u64>,
    code: &ProcessCode<'_>,
) -> CallStack {
    let first = unwind(code, place.clone(), stack);
    if first.cut.is_none() {
        return first;
    }
    let saved = unwind::suspended(record.stack_pointer, stack);
    let others = (1..=4).map(|words| place.popped(words)).chain(saved);
    others
        .map(|place| unwind(code, place, stack))
        .find(|calls| calls.cut.is_none())
        .unwrap_or(first)
}
