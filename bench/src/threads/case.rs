//! The cases of threads: the operations of Table I of URPC (Bershad et al., TOCS 1991), and their
//! behaviour with a growing number of threads.

use std::fmt;
use std::time::Duration;

/// One kind of operation.
///
/// A sample is the time of a batch of [`ops`](Case::ops) operations divided by their number,
/// because reading the clock takes as long as some of them do. Percentiles are over samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Case {
    /// A call of a function that is not inlined and only counts: the unit of the paper's table.
    ProcedureCall,
    /// Starting a thread that only counts: the spawn alone. The threads of a batch run and are
    /// joined after the measured time (the kernel may run a kernel thread at once, within the
    /// time).
    Fork,
    /// Starting such a thread and joining it, one after the other.
    ForkJoin,
    /// This number of ready threads yield in turn, each equally often: the time of one yield.
    /// `yield` without a number has two.
    Yield(u64),
    /// Locking and unlocking the system's own mutex, without contention.
    LockUnlock,
    /// Two threads, one mutex and one condition variable: A signals B and waits, B signals A and
    /// waits. One round trip.
    PingPong,
    /// This number of threads, each of which waits on one condition variable until all have
    /// arrived. A round is the time from the first spawn to the last join, divided by their number.
    ///
    /// A new process repeats the round. The figures are of every round but the first, when the
    /// system reuses the memory that it keeps. The first round, when all memory comes from the
    /// kernel, is reported separately, as is the memory.
    Alive(u64),
}

impl Case {
    /// The operations of the paper's table, in the order of the report.
    pub const TABLE: [Case; 6] = [
        Case::ProcedureCall,
        Case::Fork,
        Case::ForkJoin,
        Case::Yield(2),
        Case::LockUnlock,
        Case::PingPong,
    ];

    /// Numbers of threads that yield in turn, besides the table's two.
    pub const READY: [u64; 4] = [10, 100, 1_000, 10_000];

    /// Numbers of threads alive at once.
    pub const ALIVE: [u64; 7] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];

    /// The name in records and on the command line, as in `fork`, `yield-10` and `alive-100k`.
    pub fn name(self) -> String {
        match self {
            Case::Alive(threads) => format!("alive-{}", short(threads)),
            Case::Yield(threads) if threads != 2 => format!("yield-{}", short(threads)),
            case => case.kind().to_owned(),
        }
    }

    /// Returns the case of this name.
    pub fn named(name: &str) -> Option<Case> {
        let case = match name.split_once('-') {
            Some(("alive", threads)) => Case::Alive(long(threads)?),
            Some(("yield", threads)) => Case::Yield(long(threads)?),
            _ => Case::TABLE.into_iter().find(|case| case.name() == name)?,
        };
        (case.name() == name).then_some(case)
    }

    /// The name without a number of threads, which a child gets as a separate argument.
    pub fn kind(self) -> &'static str {
        match self {
            Case::ProcedureCall => "procedure-call",
            Case::Fork => "fork",
            Case::ForkJoin => "fork-join",
            Case::Yield(_) => "yield",
            Case::LockUnlock => "lock-unlock",
            Case::PingPong => "ping-pong",
            Case::Alive(_) => "alive",
        }
    }

    /// Returns the case of this kind with this number of threads.
    pub fn of(kind: &str, threads: u64) -> Option<Case> {
        let all = Case::TABLE.into_iter().chain([Case::Alive(threads)]);
        all.map(|case| if case == Case::Yield(2) { Case::Yield(threads) } else { case })
            .find(|case| case.kind() == kind)
    }

    /// Number of threads that exist at once, in the cases where it grows; otherwise at most 2.
    pub fn threads(self) -> u64 {
        match self {
            Case::Yield(threads) | Case::Alive(threads) => threads,
            _ => 2,
        }
    }

    /// Number of operations in one sample, a multiple of the number of threads. For the shortest
    /// operations it is large enough that two readings of the clock, 50 ns, are at most a fiftieth
    /// of the sample. For forks it is at most what the systems' queues hold without overflowing
    /// (Go's: 256).
    pub fn ops(self) -> u64 {
        match self {
            Case::ProcedureCall | Case::LockUnlock => 1000,
            Case::Fork | Case::ForkJoin => 200,
            Case::PingPong => 500,
            Case::Yield(threads) => threads * (1000 / threads).max(1),
            Case::Alive(threads) => threads * (200 / threads).max(1),
        }
    }

    /// Number of operations in this number of samples. The first sample of threads alive is of one
    /// round, so that it is the first time.
    pub fn ops_in(self, samples: u64) -> u64 {
        match self {
            Case::Alive(threads) if samples > 0 => threads + self.ops() * (samples - 1),
            case => case.ops() * samples,
        }
    }

    /// Returns `true` if the case is about threads that wait, all at once.
    pub fn is_alive(self) -> bool {
        matches!(self, Case::Alive(_))
    }

    /// Maximum time of a child, including other programs' use of the processor.
    pub fn patience(self) -> Duration {
        Duration::from_secs(20) + Duration::from_micros(220) * self.threads() as u32
    }

    /// Approximate duration of a round of all systems, as a multiple of one of the table's cases.
    pub(super) fn weight(self) -> f64 {
        match self {
            Case::Alive(threads) => (0.4 + 3e-5 * threads as f64).min(8.0),
            Case::Yield(threads) if threads != 2 => 0.4,
            _ => 1.0,
        }
    }

    /// The paper's figures for its own threads, and for Taos' kernel threads, in microseconds on a
    /// Firefly.
    pub fn paper_us(self) -> Option<(f64, f64)> {
        match self {
            Case::ProcedureCall => Some((7.0, 7.0)),
            Case::Fork => Some((43.0, 1192.0)),
            Case::ForkJoin => Some((102.0, 1574.0)),
            Case::Yield(2) => Some((37.0, 57.0)),
            Case::LockUnlock => Some((27.0, 27.0)),
            Case::PingPong => Some((53.0, 271.0)),
            Case::Yield(_) | Case::Alive(_) => None,
        }
    }

    /// The same figures in procedure calls.
    pub fn paper(self) -> Option<(f64, f64)> {
        let (urpc, taos) = Case::ProcedureCall.paper_us()?;
        self.paper_us().map(|us| (us.0 / urpc, us.1 / taos))
    }
}

/// Formats a number with a letter for thousands or millions, if it is a multiple of them.
fn short(number: u64) -> String {
    match number {
        _ if number > 0 && number.is_multiple_of(1_000_000) => format!("{}m", number / 1_000_000),
        _ if number > 0 && number.is_multiple_of(1_000) => format!("{}k", number / 1_000),
        _ => number.to_string(),
    }
}

/// Parses the form that [`short`] makes.
fn long(number: &str) -> Option<u64> {
    let (digits, unit) = match (number.strip_suffix('m'), number.strip_suffix('k')) {
        (Some(digits), _) => (digits, 1_000_000),
        (_, Some(digits)) => (digits, 1_000),
        _ => (number, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_multiples() {
        let rounded = Case::TABLE.map(|case| {
            case.paper().map(|(urpc, taos)| (urpc.round() as u32, taos.round() as u32))
        });
        assert_eq!(rounded, [(1, 1), (6, 170), (15, 225), (5, 8), (4, 4), (8, 39)].map(Some));
        assert_eq!((Case::Yield(10).paper(), Case::Alive(1).paper()), (None, None));
    }

    #[test]
    fn names_say_how_many_threads() {
        let names = [
            Case::Yield(2),
            Case::Yield(10_000),
            Case::Alive(1),
            Case::Alive(1_500),
            Case::Alive(2_000_000),
        ];
        assert_eq!(
            names.map(Case::name),
            ["yield", "yield-10k", "alive-1", "alive-1500", "alive-2m"]
        );
        assert!(
            names
                .into_iter()
                .chain(Case::TABLE)
                .all(|case| Case::named(&case.name()) == Some(case))
        );
        assert_eq!(
            ["alive-1000", "alive-", "alive-k", "yield-2", "join"].map(Case::named),
            [None; 5]
        );
        assert_eq!(names.map(|case| Case::of(case.kind(), case.threads())), names.map(Some));
        assert_eq!(Case::of("fork", 7), Some(Case::Fork));
        assert_eq!(Case::of("alive-1m", 1), None);
    }

    #[test]
    fn every_thread_does_its_share() {
        for threads in Case::READY.into_iter().chain(Case::ALIVE).chain([2, 3, 333]) {
            for case in [Case::Yield(threads), Case::Alive(threads)] {
                assert!(case.ops() >= threads && case.ops().is_multiple_of(threads), "{case}");
            }
        }
        assert_eq!(
            (Case::Alive(10).ops_in(3), Case::Alive(1_000).ops_in(2), Case::Fork.ops_in(2)),
            (410, 2_000, 400)
        );
    }
}
