//! Table 6 of UDM: the triangle puzzle beside another job, on four processors, one after the other,
//! in gangs, and co-scheduled. How long does it take, and how many messages are buffered?
//!
//! Source: UDM, section 5.3. The search is the real one, level by level, and its result is compared
//! with that of a single member, which shows that no message is lost. These times are the paper's:
//! slices of half a million cycles, handlers, intervals, and the extra cost of a message from the
//! buffer ([`synth`](crate::synth)). So is the cost of a switch to another job ([`SWITCH`]), which
//! is therefore not a finding. The paper does not state how long a job polls before it yields, nor
//! how exactly its processors' slices begin together: see [`PATIENCE`] and [`Workload::skew`].

use crate::dice::{Dice, mixed};
use crate::engine::{self, Cpu, Failure, Setup};
use crate::jobs::{Books, Job, MEMBERS, Member, Program, Step};
use crate::puzzle::Board;
use crate::synth::{Entry, SKEW};
use crate::turns::{Schedule, Turns};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Cost of a switch to the other job, in cycles: 0.9 % of a slice, as gangs beside null take in
/// UDM.
pub const SWITCH: u64 = 4500;

/// Time that a job polls before it yields, in cycles.
pub const PATIENCE: u64 = 1000;

/// Work of the jobs beside the search for each of its jumps. With a board of the paper's size it
/// comes to 119 million cycles, and 280 thousand messages.
const NULL: u64 = 176;
const REQUESTS: (u64, u64) = (280, 675);

/// The job that shares the processors with Tpuz.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// No job.
    Nobody,
    /// A job that computes and sends nothing.
    Null,
    /// Another search.
    Tpuz,
    /// Groups of this many requests.
    Synth(u64),
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Number of holes on a side of the board: 5, or 6 as in UDM, by the number of messages there.
    pub side: u32,
    /// The other job.
    pub other: Other,
    /// How they take turns.
    pub schedule: Schedule,
    /// When messages are buffered.
    pub entry: Entry,
    /// Number of words of a queue.
    pub home: usize,
    /// Delay of the slices on every second processor, in cycles.
    pub skew: u64,
    /// The seed of the intervals.
    pub seed: u64,
}

impl Workload {
    /// The parameters of the table.
    pub fn new(side: u32, other: Other, schedule: Schedule) -> Self {
        Self { side, other, schedule, entry: Entry::Mismatch, home: 64, skew: SKEW, seed: 1 }
    }
}

/// The messages of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Number of messages, without acknowledgements.
    pub messages: u64,
    /// Number of those that were buffered.
    pub buffered: u64,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Time until both jobs had ended, in cycles.
    pub time: u64,
    /// Messages of Tpuz, and of the other job.
    pub sent: [Sent; 2],
    /// Number of steps of the simulator.
    pub steps: u64,
}

/// Runs it.
///
/// # Errors
/// The violation that was found, which includes a search whose result differs from that of a single
/// member.
pub fn run(workload: Workload) -> Result<Ran, Failure> {
    let board = Arc::new(Board::new(workload.side));
    let alone = board.search();
    let other = match workload.other {
        Other::Nobody => Program::Null(0),
        Other::Null => Program::Null(alone.jumps * NULL),
        Other::Tpuz => Program::Tpuz,
        Other::Synth(group) => {
            Program::Synth(group, alone.jumps * REQUESTS.0 / REQUESTS.1 / MEMBERS as u64 / group)
        }
    };
    let programs = [Program::Tpuz, other];
    let running: Arc<[AtomicUsize]> = (0..MEMBERS).map(|_| AtomicUsize::new(0)).collect();
    let jobs =
        [0, 1].map(|number| Job::new(number, workload.entry, workload.home, running.clone()));
    let ended: Arc<[AtomicUsize]> = (0..MEMBERS).map(|_| AtomicUsize::new(0)).collect();
    let setup = Setup {
        dice: Dice::new(workload.seed),
        slices: vec![None; MEMBERS],
        trouble: None,
        most: u64::MAX,
    };
    let program = {
        let (jobs, ended, board) = (jobs.clone(), ended.clone(), board.clone());
        move |cpu: Cpu| {
            let seed = |job: usize| mixed(workload.seed + (2 * cpu.rank() + job) as u64);
            let members =
                [0, 1].map(|job| Member::new(&cpu, &jobs[job], programs[job], &board, seed(job)));
            let turns = Turns::new(workload.schedule, cpu.rank() as u64 % 2 * workload.skew);
            share(&cpu, &jobs, members, turns, &running[cpu.rank()]);
            ended[cpu.rank()].store(cpu.time() as usize, Ordering::Relaxed);
        }
    };
    let ledger = engine::run(setup, program, |_, _| Err("no domain can go on".into()))?;
    for (job, program) in jobs.iter().zip(programs) {
        let found = job.books().solutions;
        if program == Program::Tpuz && found != alone.solutions {
            let report = format!("{found} solutions, and one alone finds {}", alone.solutions);
            return Err(Failure { report, step: ledger.summary.steps });
        }
    }
    let sent = jobs.map(|job| {
        let Books { sent, buffered, .. } = *job.books();
        Sent { messages: sent, buffered }
    });
    let time = ended.iter().map(|time| time.load(Ordering::Relaxed)).max().unwrap_or(0) as u64;
    Ok(Ran { time, sent, steps: ledger.summary.steps })
}

/// Runs a processor until its members of both jobs have ended.
fn share(
    cpu: &Cpu,
    jobs: &[Arc<Job>; 2],
    mut members: [Member; 2],
    mut turns: Turns,
    running: &AtomicUsize,
) {
    let (mut alive, mut own, mut idle) = ([true; 2], 0, None);
    while alive != [false; 2] {
        let now = cpu.time();
        let batch = turns.ends == u64::MAX;
        let gives_way = alive[1 - own] && idle.is_some_and(|since| turns.yields(now - since));
        if now >= turns.ends
            || gives_way
            || batch && turns.job == 0 && jobs[0].books().ended == MEMBERS
        {
            turns.next(now);
        }
        let next = if alive[turns.job] || batch { turns.job } else { 1 - turns.job };
        if next != own {
            (own, idle) = (next, None);
            running.store(own, Ordering::Relaxed);
            cpu.spend(if batch { 1 } else { SWITCH });
            continue;
        }
        let member = &mut members[own];
        if !alive[own] {
            // The job goes on elsewhere.
            cpu.spend(SWITCH);
        } else if member.owed > 0 {
            let part = member.owed.min(turns.ends - now);
            cpu.spend(part);
            member.owed -= part;
        } else {
            match member.step() {
                Step::Did => idle = None,
                Step::Waits => _ = idle.get_or_insert(now),
                Step::Ended => alive[own] = false,
            }
        }
    }
}
