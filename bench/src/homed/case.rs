//! The measurements of objects with a home (Psyche, P9 to P13), and the methods.

use std::fmt;

use crate::error::RunError;

/// A kind of measurement. One turn of it is one child process with its other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// An operation of Table 1 by every method that can run it. Records have its name, and
    /// `…-dirty` if the home touches the object between the caller's operations.
    Op(Op),
    /// 1, 2, 4 and 8 callers at once, each a process, on one hot object: `throughput-counter-1` and
    /// so on, the time that one of their operations is outstanding. `throughput-counter-alone` is
    /// the same operation at home without other users.
    Throughput(Hot),
    /// The loss of a home that computes, and polls each microsecond or is interrupted by a signal,
    /// for each operation of one caller: `slowdown-enqueue-dequeue` and `slowdown-find-last-10`.
    /// `…-caller` is the time of an operation for that caller, and `…-quiet` the time of a step of
    /// the home's computation without requests.
    Slowdown,
    /// A chain of n lines, all of which the home dirties before each walk: `chain-1` to
    /// `chain-512`, by remote access, on a copy, by urgent and by ordinary invocation, and by the
    /// home itself.
    BreakEven,
}

/// An operation of Table 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Puts a number into a queue and takes one out.
    EnqueueDequeue,
    /// Searches a list of this length, from its beginning, for the last element.
    FindLast(u32),
    /// Allocates 4 KiB of the object's arena, fills them with zeros, and frees the previous ones.
    CreateSegment,
    /// Maps and unmaps 64 KiB, and passes a number through a queue in the object: at the home. By
    /// remote access the caller maps them itself.
    MapSegment,
    /// Starts and joins a kernel thread, and passes a number through a queue in the object: at the
    /// home. By remote access the caller starts it itself.
    CreateProcess,
}

/// An object that all callers use at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hot {
    /// A number, which is incremented.
    Counter,
    /// A queue: a number is put into it, and one taken out.
    Queue,
}

/// Numbers of callers.
pub const CALLERS: [usize; 4] = [1, 2, 4, 8];

/// Lengths of chains, in lines.
pub const CHAINS: [u32; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// Operations of the case `slowdown`.
pub const SLOWED: [Op; 2] = [Op::EnqueueDequeue, Op::FindLast(10)];

/// The systems of the records: methods to run an operation, and what they are compared with.
pub mod way {
    /// At the home, with the object's lock.
    pub const LOCAL: &str = "local";
    /// At the home, within an operation that holds the lock: the time without locking.
    pub const LOCAL_UNLOCKED: &str = "local-unlocked";
    /// On Rust's own types in private memory.
    pub const BARE: &str = "bare";
    /// By remote access, with the object's lock.
    pub const ACCESS: &str = "access";
    /// By remote access, within an operation that holds the lock.
    pub const ACCESS_UNLOCKED: &str = "access-unlocked";
    /// A read without the lock.
    pub const READ: &str = "read";
    /// On a copy of all memory that was ever in use, which is copied back, under the lock.
    pub const BULK: &str = "bulk";
    /// By a home that polls, between its other work.
    pub const URGENT: &str = "urgent";
    /// The cheapest of these except a copy, as `Homed::auto` determines; the home polls.
    pub const AUTO: &str = "auto";
    /// Urgently by a home that computes and polls each microsecond.
    pub const URGENT_COMPUTING: &str = "urgent-computing";
    /// The same after a pause without requests.
    pub const URGENT_COMPUTING_PAUSED: &str = "urgent-computing-paused";
    /// Urgently by a home that computes without a safe point, in a signal handler.
    pub const URGENT_SIGNAL: &str = "urgent-signal";
    /// The same after a pause.
    pub const URGENT_SIGNAL_PAUSED: &str = "urgent-signal-paused";
    /// Urgently by a thread of the home that sleeps when idle.
    pub const URGENT_BACKGROUND: &str = "urgent-background";
    /// By a thread of a virtual processor of the home, which polls.
    pub const INVOKE: &str = "invoke";
    /// By a kernel thread of the home that sleeps when idle.
    pub const INVOKE_BACKGROUND: &str = "invoke-background";
    /// Under a mutex of the C library that processes share.
    pub const MUTEX: &str = "pthread-mutex";
    /// Under a plain spin lock.
    pub const SPIN: &str = "spin-lock";

    /// All methods, in the order of the report.
    pub const ALL: [&str; 18] = [
        BARE,
        LOCAL_UNLOCKED,
        LOCAL,
        ACCESS_UNLOCKED,
        ACCESS,
        READ,
        BULK,
        URGENT,
        AUTO,
        URGENT_COMPUTING,
        URGENT_COMPUTING_PAUSED,
        URGENT_SIGNAL,
        URGENT_SIGNAL_PAUSED,
        URGENT_BACKGROUND,
        INVOKE,
        INVOKE_BACKGROUND,
        MUTEX,
        SPIN,
    ];
}

impl Op {
    /// All operations, in the order of the report.
    pub const ALL: [Op; 8] = [
        Op::EnqueueDequeue,
        Op::FindLast(5),
        Op::FindLast(10),
        Op::FindLast(100),
        Op::FindLast(1000),
        Op::CreateSegment,
        Op::MapSegment,
        Op::CreateProcess,
    ];

    /// The name in records and on the command line.
    pub fn name(self) -> String {
        match self {
            Op::EnqueueDequeue => "enqueue-dequeue".into(),
            Op::FindLast(length) => format!("find-last-{length}"),
            Op::CreateSegment => "create-segment".into(),
            Op::MapSegment => "map-segment".into(),
            Op::CreateProcess => "create-process".into(),
        }
    }

    /// Name of its record if the home touches the object between operations.
    pub fn dirty(self) -> String {
        format!("{}-dirty", self.name())
    }

    /// Returns `true` if the operation may block, and so is run by ordinary invocation only.
    pub fn may_block(self) -> bool {
        matches!(self, Op::MapSegment | Op::CreateProcess)
    }
}

impl Hot {
    /// The part of the name after `throughput-`.
    pub fn name(self) -> &'static str {
        match self {
            Hot::Counter => "counter",
            Hot::Queue => "queue",
        }
    }

    /// Name of the record of this number of callers.
    pub fn record(self, callers: usize) -> String {
        format!("throughput-{}-{callers}", self.name())
    }

    /// Name of the record of the home alone.
    pub fn alone(self) -> String {
        format!("throughput-{}-alone", self.name())
    }
}

/// Name of the record of the home's loss per operation.
pub fn slowdown(op: Op) -> String {
    format!("slowdown-{}", op.name())
}

/// Name of the record of the caller's time per operation in `slowdown`.
pub fn slowdown_caller(op: Op) -> String {
    format!("slowdown-{}-caller", op.name())
}

/// Name of the record of a step of the home, with its safe point, without requests: on a thread
/// that polls (`urgent-computing`), on a virtual processor (`invoke`), without a safe point while
/// signals may arrive (`urgent-signal`), and without a safe point (`bare`).
pub fn slowdown_quiet(op: Op) -> String {
    format!("slowdown-{}-quiet", op.name())
}

/// Name of the record of a walk over this number of lines.
pub fn chain(lines: u32) -> String {
    format!("chain-{lines}")
}

impl Case {
    /// Every case, in the order of the report.
    pub fn all() -> Vec<Case> {
        let others = [
            Case::Throughput(Hot::Counter),
            Case::Throughput(Hot::Queue),
            Case::Slowdown,
            Case::BreakEven,
        ];
        Op::ALL.map(Case::Op).into_iter().chain(others).collect()
    }

    /// The name on the command line.
    pub fn name(self) -> String {
        match self {
            Case::Op(op) => op.name(),
            Case::Throughput(hot) => format!("throughput-{}", hot.name()),
            Case::Slowdown => "slowdown".into(),
            Case::BreakEven => "break-even".into(),
        }
    }

    /// Number of processes besides the home.
    pub fn callers(self) -> usize {
        match self {
            Case::Throughput(_) => CALLERS[CALLERS.len() - 1],
            _ => 1,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name())
    }
}

impl std::str::FromStr for Case {
    type Err = RunError;

    fn from_str(s: &str) -> Result<Case, RunError> {
        let known = || Case::all().into_iter().map(Case::name).collect();
        let unknown = || RunError::Unknown { what: "case", found: s.to_owned(), known: known() };
        Case::all().into_iter().find(|case| case.name() == s).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for case in Case::all() {
            assert_eq!(case.name().parse::<Case>().ok(), Some(case));
        }
        let told = "find-last-7".parse::<Case>().unwrap_err().to_string();
        assert!(
            told.contains("no case `find-last-7`") && told.contains("enqueue-dequeue, find-last-5"),
            "{told}"
        );
    }
}
