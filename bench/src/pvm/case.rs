//! The cases of user-level processes and PVM's tasks: those of UPVM's section 4, and the same with
//! more tasks.

use std::fmt;
use std::str::FromStr;

use crate::error::RunError;

/// Numbers of ULPs in the cases `switch-N`.
pub const SWITCHES: [usize; 5] = [1, 16, 256, 1000, 4000];

/// Payload sizes of the cases `one-way-N`, in bytes: the paper's.
pub const BYTES: [usize; 6] = [0, 1, 512, 1000, 10_000, 100_000];

/// Numbers of tasks in the cases `ring-N`: the paper's, and many more.
pub const RINGS: [usize; 9] = [2, 4, 6, 8, 10, 14, 20, 24, 1000];

/// Numbers of tasks in the cases `laplace-N`.
pub const LAPLACES: [usize; 8] = [1, 2, 4, 8, 11, 16, 32, 64];

/// Numbers of tasks that are started at once in the cases `start-N`.
pub const STARTS: [usize; 2] = [1, 100];

/// Numbers of waiting tasks in the cases `idle-N`.
pub const IDLES: [usize; 2] = [24, 1000];

/// Sizes of the task in the cases `move-N`.
pub const MOVES: [&str; 4] = ["100k", "1m", "64m", "1g"];

/// Numbers of tasks in the cases `checkpoint-N` and `restart-N`.
pub const SAVES: [usize; 4] = [1, 10, 100, 1000];

/// Numbers of tasks in the cases `laplace-paper-N`.
pub const PAPERS: [usize; 2] = [1, 64];

/// Time of a sweep by one task in the cases `laplace-paper-N`, in milliseconds: the paper's.
pub const PAPER_SWEEP_MS: u32 = 23;

/// The ways in which the cases `balance-WAY` distribute tasks: evenly by hand, all of the heavy
/// ones in one process, and the same with balancing.
pub const BALANCES: [&str; 3] = ["ideal", "off", "on"];

/// A case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Case {
    /// A call of a procedure that does nothing: the paper's unit for switches.
    ProcedureCall,
    /// Half of a round trip of one byte through two pipes between two kernel processes (Figure 2).
    SwitchProcess,
    /// A switch from one of this number of ULPs to the next, each of which yields.
    Switch(usize),
    /// Half of a null call between two processes by Upcall, both of which poll continuously: the
    /// unit for a hop between processes.
    CallOneWay,
    /// Half of a round trip of a message with this number of bytes, which are written, packed,
    /// unpacked and checked (Figures 3 and 4).
    OneWay(usize),
    /// A hop of a message of one int around a ring of this number of tasks (Figures 5 and 6).
    Ring(usize),
    /// A sweep of the paper's grid by this number of tasks together (Figure 7).
    Laplace(usize),
    /// Time from the call that starts this number of tasks until all have sent a message from their
    /// `main`, divided by the number.
    Start(usize),
    /// Processor time and memory of this number of tasks that wait for a message.
    Idle(usize),
    /// The pause of a task of this size that moves between two processes; the mean is the time from
    /// the request to the answer.
    Move(&'static str),
    /// A message to a task that moves each 10 ms.
    MovingMessages,
    /// A checkpoint of this number of tasks, each with 100 KiB of its own: from the start of the
    /// command until the file is on the disk.
    Checkpoint(usize),
    /// The start of as many tasks from such a file, until all have found their memory as it was.
    Restart(usize),
    /// A sweep by this number of tasks of a grid that takes one task as long as in the paper.
    LaplacePaper(usize),
    /// A sweep by 16 tasks, half of which have four times as much to compute, in two processes. The
    /// median is of the second half of the runs, the mean of all.
    Balance(&'static str),
    /// A sweep by 16 tasks in two processes, one of which loses its processor for a third of the
    /// time.
    ProcessorAway,
}

impl Case {
    /// Every case, in the order of the report.
    pub fn all() -> impl Iterator<Item = Case> {
        let switches = [Case::ProcedureCall, Case::SwitchProcess]
            .into_iter()
            .chain(SWITCHES.map(Case::Switch));
        let messages = [Case::CallOneWay]
            .into_iter()
            .chain(BYTES.map(Case::OneWay))
            .chain(RINGS.map(Case::Ring));
        let tasks = STARTS.map(Case::Start).into_iter().chain(IDLES.map(Case::Idle));
        let moves = MOVES.map(Case::Move).into_iter().chain([Case::MovingMessages]);
        let saves = SAVES.map(Case::Checkpoint).into_iter().chain(SAVES.map(Case::Restart));
        let laplaces = LAPLACES.map(Case::Laplace);
        let papers = PAPERS.map(Case::LaplacePaper).into_iter();
        let balances = BALANCES.map(Case::Balance).into_iter().chain([Case::ProcessorAway]);
        let begun = switches.chain(messages).chain(laplaces).chain(tasks);
        begun.chain(moves).chain(saves).chain(papers).chain(balances)
    }

    /// The name in records and on the command line.
    pub fn name(self) -> String {
        match self {
            Case::ProcedureCall => "procedure-call".to_owned(),
            Case::SwitchProcess => "switch-process".to_owned(),
            Case::Switch(ulps) => format!("switch-{ulps}"),
            Case::CallOneWay => "call-one-way".to_owned(),
            Case::OneWay(bytes) => format!("one-way-{bytes}"),
            Case::Ring(tasks) => format!("ring-{tasks}"),
            Case::Laplace(tasks) => format!("laplace-{tasks}"),
            Case::Start(tasks) => format!("start-{tasks}"),
            Case::Idle(tasks) => format!("idle-{tasks}"),
            Case::Move(size) => format!("move-{size}"),
            Case::MovingMessages => "moving-messages".to_owned(),
            Case::Checkpoint(tasks) => format!("checkpoint-{tasks}"),
            Case::Restart(tasks) => format!("restart-{tasks}"),
            Case::LaplacePaper(tasks) => format!("laplace-paper-{tasks}"),
            Case::Balance(how) => format!("balance-{how}"),
            Case::ProcessorAway => "processor-away".to_owned(),
        }
    }

    /// Number of processes that run the case with MPI.
    pub fn processes(self) -> usize {
        match self {
            Case::Ring(tasks) | Case::Laplace(tasks) => tasks,
            Case::LaplacePaper(tasks) | Case::Idle(tasks) => tasks,
            _ => 2,
        }
    }

    /// Returns the arguments of the programs of bench/pvm: a mode and its number. `None` for cases
    /// that are measured otherwise.
    pub fn words(self) -> Option<[String; 2]> {
        let (mode, number) = match self {
            Case::ProcedureCall | Case::SwitchProcess | Case::Switch(_) | Case::CallOneWay => {
                return None;
            }
            Case::Move(size) => return Some(["move".to_owned(), size.to_owned()]),
            Case::MovingMessages => return Some(["moving", "messages"].map(str::to_owned)),
            Case::Balance(how) => return Some(["balance", how].map(str::to_owned)),
            Case::ProcessorAway => return Some(["processor", "away"].map(str::to_owned)),
            Case::LaplacePaper(tasks) => ("laplace-paper", tasks),
            Case::OneWay(bytes) => ("one-way", bytes),
            Case::Ring(tasks) => ("ring", tasks),
            Case::Laplace(tasks) => ("laplace", tasks),
            Case::Start(tasks) => ("start", tasks),
            Case::Idle(tasks) => ("idle", tasks),
            Case::Checkpoint(tasks) => ("checkpoint", tasks),
            Case::Restart(tasks) => ("restart", tasks),
        };
        Some([mode.to_owned(), number.to_string()])
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name())
    }
}

impl FromStr for Case {
    type Err = RunError;

    fn from_str(s: &str) -> Result<Case, RunError> {
        let found = Case::all().find(|case| case.name() == s);
        found.ok_or_else(|| RunError::Unknown {
            what: "case",
            found: s.to_owned(),
            known: Case::all().map(Case::name).collect(),
        })
    }
}

/// Returns the million floating-point operations per second in a Laplace case, from the time of a
/// sweep: four for each point inside the grid of 128 x 128.
pub fn mflops(sweep_ns: f64) -> f64 {
    4.0 * 126.0 * 126.0 / sweep_ns * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for case in Case::all() {
            assert_eq!(case.name().parse::<Case>().ok(), Some(case));
        }
        let told = "ring-3".parse::<Case>().unwrap_err().to_string();
        assert!(
            told.contains("no case `ring-3`") && told.contains("ring-1000, laplace-1"),
            "{told}"
        );
    }

    #[test]
    fn programs_name_cases_as_we_do() {
        let all = Case::all().filter_map(|case| Some((case.name(), case.words()?.join("-"))));
        assert!(all.inspect(|(name, words)| assert_eq!(name, words)).count() > 20);
        assert_eq!((Case::Ring(24).processes(), Case::OneWay(1000).processes()), (24, 2));
        assert!((mflops(63_504.0) - 1000.0).abs() < 1e-9);
    }
}
