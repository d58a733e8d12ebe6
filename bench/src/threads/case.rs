//! What is measured: the operations of Table I of URPC (Bershad et al., TOCS 1991), and many threads alive at once.

use std::fmt;
use std::time::Duration;

/// One kind of operation.
///
/// A sample is the time of a batch of [`ops`](Case::ops) operations divided by their number, because reading the clock
/// takes as long as some of them do. Percentiles are over samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Case {
    /// A call of a function that is not inlined and only counts: the unit of the paper's table.
    ProcedureCall,
    /// Starting a thread that only counts: the spawn alone. The threads of a batch run and are joined behind its end,
    /// outside of the time (the kernel may run a kernel thread at once, inside of it).
    Fork,
    /// Starting such a thread and joining it, one after the other.
    ForkJoin,
    /// Two threads that yield to each other: the time of one yield.
    Yield,
    /// Locking and unlocking the system's own mutex, which nobody else wants.
    LockUnlock,
    /// Two threads, one mutex and one condition variable: A signals B and waits, B signals A and waits. One round trip.
    PingPong,
    /// 100 000 threads, of which each waits on one condition variable until all have come. A sample is the time from the first
    /// spawn to the last join, divided by their number. A fresh process does it twice: what counts is the second time, when the
    /// system has the memory that it keeps; the first, when all comes from the kernel, stands beside it, and the peak of memory.
    Alive100k,
    /// As before, 1 000 000.
    Alive1m,
}

impl Case {
    /// Every case, in the order of the report.
    pub const ALL: [Case; 8] = [
        Case::ProcedureCall,
        Case::Fork,
        Case::ForkJoin,
        Case::Yield,
        Case::LockUnlock,
        Case::PingPong,
        Case::Alive100k,
        Case::Alive1m,
    ];

    /// The name in records and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Case::ProcedureCall => "procedure-call",
            Case::Fork => "fork",
            Case::ForkJoin => "fork-join",
            Case::Yield => "yield",
            Case::LockUnlock => "lock-unlock",
            Case::PingPong => "ping-pong",
            Case::Alive100k => "alive-100k",
            Case::Alive1m => "alive-1m",
        }
    }

    /// Operations of one sample. For the shortest so many that two readings of the clock, 50 ns, are a fiftieth of the sample
    /// or less; for forks no more than the queues of the systems hold without overflowing (Go's: 256).
    pub fn ops(self) -> u64 {
        match self {
            Case::ProcedureCall | Case::Yield | Case::LockUnlock => 1000,
            Case::Fork | Case::ForkJoin => 200,
            Case::PingPong => 500,
            Case::Alive100k => 100_000,
            Case::Alive1m => 1_000_000,
        }
    }

    /// Whether it is about many threads at once: two samples a process.
    pub fn is_alive(self) -> bool {
        matches!(self, Case::Alive100k | Case::Alive1m)
    }

    /// The longest that a child may take for it, other programs' use of the processor included.
    pub fn patience(self) -> Duration {
        Duration::from_secs(if self.is_alive() { 240 } else { 20 })
    }

    /// What the paper found, in procedure calls (of 7 µs, on a Firefly).
    pub fn paper(self) -> Option<f64> {
        let us = match self {
            Case::ProcedureCall => 7.0,
            Case::Fork => 43.0,
            Case::ForkJoin => 102.0,
            Case::Yield => 37.0,
            Case::LockUnlock => 27.0,
            Case::PingPong => 53.0,
            Case::Alive100k | Case::Alive1m => return None,
        };
        Some(us / 7.0)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_multiples() {
        let rounded = Case::ALL.map(|case| case.paper().map(|times| times.round() as u32));
        assert_eq!(rounded, [Some(1), Some(6), Some(15), Some(5), Some(4), Some(8), None, None]);
    }
}
