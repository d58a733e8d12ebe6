//! What is measured of objects with a home (Psyche, P9 to P13), and by which ways.

use std::fmt;

use crate::error::RunError;

/// One kind of measurement: one turn of it is one child process with its others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// An operation of Table 1 by every way that can do it. Records are called like it, and
    /// `…-dirty` where the home touches the object between the caller's operations.
    Op(Op),
    /// 1, 2, 4 and 8 callers at once, each a process, on one hot object: `throughput-counter-1` and
    /// so on, the time that one of their operations is outstanding; and `throughput-counter-alone`,
    /// the same operation at home while nobody else is there.
    Throughput(Hot),
    /// What a home that computes, and polls each microsecond, or is interrupted by signal, loses
    /// for each operation of one caller: `slowdown-enqueue-dequeue` and `slowdown-find-last-10`;
    /// and what the operation takes the caller meanwhile, `…-caller`; and a step of what it
    /// computes while nobody asks, `…-quiet`.
    Slowdown,
    /// A chain of n lines, all of which the home dirties before each walk: `chain-1` to
    /// `chain-512`, by remote access, on a copy, by urgent and by ordinary invocation; and by the
    /// home itself.
    BreakEven,
}

/// An operation of Table 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A number is put into a queue, and one taken out.
    EnqueueDequeue,
    /// The last element of a list of so many is looked for, from the first one on.
    FindLast(u32),
    /// 4 KiB of the object's arena are had, filled with zeros, and those before given back.
    CreateSegment,
    /// 64 KiB are mapped and unmapped, and a number goes through a queue in the object: at the
    /// home. By remote access the caller maps them itself.
    MapSegment,
    /// A kernel thread is started and joined, and a number goes through a queue in the object: at
    /// the home. By remote access the caller starts it itself.
    CreateProcess,
}

/// An object that all want at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hot {
    /// A number, counted up.
    Counter,
    /// A queue: a number is put into it, and one taken out.
    Queue,
}

/// Numbers of callers.
pub const CALLERS: [usize; 4] = [1, 2, 4, 8];

/// Lines of a chain.
pub const CHAINS: [u32; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// Operations of the case `slowdown`.
pub const SLOWED: [Op; 2] = [Op::EnqueueDequeue, Op::FindLast(10)];

/// The systems of the records: ways to run an operation, and what they are compared with.
pub mod way {
    /// At the home, with the object's lock.
    pub const LOCAL: &str = "local";
    /// At the home, within an operation that has the lock: what it would take without.
    pub const LOCAL_UNLOCKED: &str = "local-unlocked";
    /// On Rust's own types in private memory.
    pub const BARE: &str = "bare";
    /// Where the object is, with its lock.
    pub const ACCESS: &str = "access";
    /// The same within an operation that has the lock.
    pub const ACCESS_UNLOCKED: &str = "access-unlocked";
    /// A look without the lock.
    pub const READ: &str = "read";
    /// On a copy of all that was ever in use, which is copied back, under the lock.
    pub const BULK: &str = "bulk";
    /// Run by the home in between, which polls.
    pub const URGENT: &str = "urgent";
    /// Whichever of these is cheapest but a copy, as `Homed::auto` finds out; the home polls.
    pub const AUTO: &str = "auto";
    /// Urgently by a home that computes, and polls each microsecond.
    pub const URGENT_COMPUTING: &str = "urgent-computing";
    /// The same after a pause, in which nobody asks.
    pub const URGENT_COMPUTING_PAUSED: &str = "urgent-computing-paused";
    /// Urgently by a home that computes without a safe point, in a signal.
    pub const URGENT_SIGNAL: &str = "urgent-signal";
    /// The same after a pause.
    pub const URGENT_SIGNAL_PAUSED: &str = "urgent-signal-paused";
    /// Urgently by a thread of the home that sleeps when idle.
    pub const URGENT_BACKGROUND: &str = "urgent-background";
    /// Run by the home as a thread of a virtual processor, which polls.
    pub const INVOKE: &str = "invoke";
    /// Run by a kernel thread of the home that sleeps when idle.
    pub const INVOKE_BACKGROUND: &str = "invoke-background";
    /// Under a mutex of the C library, shared by processes.
    pub const MUTEX: &str = "pthread-mutex";
    /// Under a plain spin lock.
    pub const SPIN: &str = "spin-lock";

    /// All, in the order of the report.
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
    /// Every one, in the order of the report.
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

    /// The record of it where the home touches the object between.
    pub fn dirty(self) -> String {
        format!("{}-dirty", self.name())
    }

    /// Whether it may block, and so is run by ordinary invocation only.
    pub fn may_block(self) -> bool {
        matches!(self, Op::MapSegment | Op::CreateProcess)
    }
}

impl Hot {
    /// The name behind `throughput-`.
    pub fn name(self) -> &'static str {
        match self {
            Hot::Counter => "counter",
            Hot::Queue => "queue",
        }
    }

    /// The record of so many callers.
    pub fn record(self, callers: usize) -> String {
        format!("throughput-{}-{callers}", self.name())
    }

    /// The record of the home alone.
    pub fn alone(self) -> String {
        format!("throughput-{}-alone", self.name())
    }
}

/// The record of what the home loses for an operation.
pub fn slowdown(op: Op) -> String {
    format!("slowdown-{}", op.name())
}

/// That of what the operation takes its caller meanwhile.
pub fn slowdown_caller(op: Op) -> String {
    format!("slowdown-{}-caller", op.name())
}

/// That of a step of the home, with its safe point, while nobody asks: on a thread that polls
/// (`urgent-computing`), on a virtual processor (`invoke`), without a safe point, while signals may
/// come (`urgent-signal`), and without one (`bare`).
pub fn slowdown_quiet(op: Op) -> String {
    format!("slowdown-{}-quiet", op.name())
}

/// The record of a walk over so many lines.
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

    /// How many processes there are besides the home.
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
