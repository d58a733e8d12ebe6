//! The suite `threads`: the operations of user-level threads, on one processor.
//!
//! For each case the systems take turns, A B C A B C …, each turn a fresh process that is confined
//! to the first processor, and the cache line is probed between turns. What counts are medians over
//! the rounds. A turn of threads alive has its first sample, the first time in a fresh process, for
//! itself; those after it are the other times. Of as many threads as take longer than a turn there
//! is one of these, and all rounds' together are what counts. Rounds go on until the case's share
//! of the time is used.

pub mod case;
pub mod child;
mod contender;
pub mod library;
mod limit;
mod options;
mod pthread;
mod table;
mod turn;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use self::case::Case;
use self::child::Entry;
pub use self::contender::Contender;
use self::contender::{LIMIT, Program, UPCALL};
pub use self::options::{Only, Options, Peers};
use self::turn::{Found, Spec};
use crate::built;
use crate::case::{Mode, Placement};
pub use crate::error::RunError;
use crate::interrupted::Interrupted;
use crate::line;
use crate::output;
pub use crate::peers::UnknownPeer;
use crate::place::Cpus;
use crate::process::ChildError;
use crate::progress::Progress;
use crate::record::{Label, Record, Turn};
use crate::scratch::Scratch;
use crate::stats::{Summary, median};

/// The systems of this crate, for the table of the program that runs the benchmark (see
/// [`child::child_main`]).
pub const SYSTEMS: [Entry; 2] = [limit::LIMIT, Entry::of::<pthread::Pthread>()];

/// Threads that wait in `idle`.
const IDLE_THREADS: u64 = 1000;

/// What `alive-…` may take of a machine's memory for each thread: two pages of its stack, and one
/// for the rest.
const KIB_EACH: u64 = 12;

/// Where more threads than these are alive, one time takes as long as a turn or longer, and is not
/// tried before.
const MOST_TRIED: u64 = 10_000;

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// One record for each case and system.
    pub records: Vec<Record>,
    /// What a thousand threads cost that wait.
    pub idle: Vec<Idle>,
    /// What a reader of the numbers should know, also which system cannot run which case.
    pub notes: Vec<String>,
    /// What could not be measured, and why.
    pub failures: Vec<String>,
}

/// A process in which a thousand threads wait.
#[derive(Debug, Clone, PartialEq)]
pub struct Idle {
    /// Who.
    pub system: &'static str,
    /// CPU time, nanoseconds per second.
    pub cpu_ns_per_s: f64,
    /// The most memory at a time, KiB.
    pub peak_kib: u64,
}

/// Times of a run.
struct Plan {
    /// For the whole run, building excluded.
    total: Duration,
    /// Of measuring in one turn, about.
    turn: Duration,
    most_rounds: usize,
}

impl Plan {
    fn of(options: &Options, peers: usize) -> Plan {
        let ms = Duration::from_millis;
        if options.quick {
            Plan { total: ms(4_000) + ms(2_000) * peers as u32, turn: ms(10), most_rounds: 3 }
        } else {
            Plan { total: ms(18_000) + ms(18_000) * peers as u32, turn: ms(50), most_rounds: 9 }
        }
    }
}

/// Runs the suite, shows progress on standard error, prints a table on standard output and writes
/// the records where `options` say. Takes about a third of a minute without peers, and as much more
/// for each peer; busies one processor meanwhile. Leaves no process and no file behind.
///
/// # Errors
/// [`RunError`]. A system that fails is in the report's `failures` and does not stop the others.
pub fn run(options: &Options) -> Result<Report, RunError> {
    let cases = options.cases()?;
    let cpus = Cpus::allowed().map_err(RunError::System)?;
    let peers = options.peers.meant();
    let all = [UPCALL, LIMIT].into_iter().chain(peers.iter().copied());
    let contenders: Vec<Contender> =
        all.filter(|contender| options.only.system(contender.name)).collect();

    let (programs, failures) = programs(&contenders, &cases, &options.exe);

    let interrupted = Interrupted::watch().map_err(RunError::System)?;
    let scratch = Scratch::make()?;
    let mut runner = Runner {
        cpus,
        programs,
        contenders,
        errors: scratch.dir.join("stderr"),
        interrupted: &interrupted.flag,
        plan: Plan::of(options, peers.len()),
        report: Report { failures, ..Report::default() },
        line_ns: f64::NAN,
        hurried: 0,
        progress: Progress::new(),
    };
    runner.suite(&cases, options.only.is_all())?;
    runner.progress.clear();
    let report = runner.report;
    if report.records.is_empty() && report.failures.is_empty() && report.notes.is_empty() {
        return Err(RunError::Nothing);
    }

    let json = options.json.as_deref();
    output::asides(json, &report.notes, &report.failures);
    output::table(json, |out, colour| table::print(&report, out, colour))?;
    output::records(json, &report.records)?;
    Ok(report)
}

/// The programs that are needed, built if need be; and why those contenders cannot go on whose
/// program is not there.
fn programs(
    contenders: &[Contender],
    cases: &[Case],
    own: &Path,
) -> (HashMap<Program, PathBuf>, Vec<String>) {
    let mut tried: HashMap<Program, Result<PathBuf, String>> =
        HashMap::from([(Program::Own, Ok(own.to_owned()))]);
    let mut failures = Vec::new();
    // Floors that a peers' program has are not worth building it for.
    for contender in contenders.iter().filter(|&&contender| contender != LIMIT) {
        let Some(program) = cases.iter().find_map(|&case| contender.program(Some(case))) else {
            continue;
        };
        let path = tried.entry(program).or_insert_with(|| {
            let path = match program {
                Program::Own => Ok(own.to_owned()),
                Program::Rust => built::thread_peers(own),
                Program::BoostFiber => built::boost_fiber(own),
                Program::Go => built::goroutines(own),
            };
            path.map_err(|error| error.to_string())
        });
        if let Err(error) = path {
            failures.push(format!("{}: {error}", contender.name));
        }
    }
    (
        tried.into_iter().filter_map(|(program, path)| Some((program, path.ok()?))).collect(),
        failures,
    )
}

/// A run under way.
struct Runner<'a> {
    cpus: Cpus,
    /// Those that there are.
    programs: HashMap<Program, PathBuf>,
    contenders: Vec<Contender>,
    errors: PathBuf,
    interrupted: &'a AtomicBool,
    plan: Plan,
    report: Report,
    /// The latest probe.
    line_ns: f64,
    /// Cases that had time for one round only.
    hurried: usize,
    progress: Progress,
}

/// What the turns of one system in one case have come to.
struct Tally {
    contender: Contender,
    /// Samples of one turn.
    samples: u64,
    turns: Vec<Turn<Vec<u64>>>,
    /// An operation of the first sample of each turn, nanoseconds.
    first: Vec<f64>,
    peak_kib: u64,
    /// The part of it that came after the system had begun.
    grown_kib: u64,
    /// It cannot go on.
    out: bool,
}

impl Runner<'_> {
    fn suite(&mut self, cases: &[Case], with_idle: bool) -> Result<(), RunError> {
        let begun = Instant::now();
        self.line_ns = line::round_trip_ns(&self.cpus);
        if with_idle {
            self.idle()?;
        }
        let whole: f64 = cases.iter().map(|case| case.weight()).sum();
        let mut left = whole;
        for case in cases {
            let time =
                self.plan.total.saturating_sub(begun.elapsed()).mul_f64(case.weight() / left);
            self.progress.percent = (100.0 * (1.0 - left / whole)) as u32;
            left -= case.weight();
            self.case(*case, time)?;
        }
        if self.hurried > 0 {
            self.report.notes.push(format!(
                "{} of {} cases had time for one round only: their figures are of one turn each",
                self.hurried,
                cases.len()
            ));
        }
        Ok(())
    }

    /// The systems of one case in turn, round by round, for about `time`.
    fn case(&mut self, case: Case, time: Duration) -> Result<(), RunError> {
        if let Some(why) = too_large(case) {
            self.report.notes.push(format!("{case} was not run: {why}"));
            return Ok(());
        }
        let takes_part = |c: &&Contender| {
            c.program(Some(case)).is_some_and(|program| self.programs.contains_key(&program))
        };
        let contenders: Vec<Contender> =
            self.contenders.iter().filter(takes_part).copied().collect();
        let tally = |contender| Tally {
            contender,
            samples: 1,
            turns: Vec::new(),
            first: Vec::new(),
            peak_kib: 0,
            grown_kib: 0,
            out: false,
        };
        let mut tallies: Vec<Tally> = contenders.into_iter().map(tally).collect();
        let begun = Instant::now();
        let mut rounds = 0;
        while rounds < self.plan.most_rounds && tallies.iter().any(|tally| !tally.out) {
            for tally in tallies.iter_mut().filter(|tally| !tally.out) {
                self.progress
                    .say(&case.name(), &format!("round {} {}", rounds + 1, tally.contender.name));
                match self.turn(case, rounds == 0, tally) {
                    Ok(()) => {}
                    Err(ChildError::Interrupted) => return Err(RunError::Interrupted),
                    Err(error) => {
                        self.report.failures.push(format!("{case}: {error}"));
                        tally.out = true;
                    }
                }
            }
            rounds += 1;
            let spent = begun.elapsed();
            if spent + spent / rounds as u32 > time {
                break;
            }
        }
        let counted: Vec<_> = tallies.iter().filter(|tally| !tally.turns.is_empty()).collect();
        self.hurried += usize::from(rounds == 1 && !counted.is_empty());
        self.report.records.extend(counted.into_iter().map(|tally| recorded(case, tally)));
        Ok(())
    }

    /// One turn. The first finds out how many samples fill its time.
    fn turn(&mut self, case: Case, first: bool, tally: &mut Tally) -> Result<(), ChildError> {
        let alive = case.is_alive();
        if first && !(alive && case.threads() > MOST_TRIED) {
            let tried = if alive { 2 } else { 8 };
            match self.take(&tally.contender, Some(case), case.ops(), tried)? {
                Found::Samples { ns, .. } => {
                    let counted = &ns[usize::from(alive)..];
                    let each = median(&counted.iter().map(|&ns| ns as f64).collect::<Vec<_>>());
                    let fill = (self.plan.turn.as_nanos() as f64 / each.max(1.0)) as u64;
                    tally.samples = if alive { fill.clamp(1, 200) } else { fill.clamp(10, 2000) };
                }
                Found::Unsupported(why) => {
                    self.unsupported(case, tally, &why);
                    return Ok(());
                }
            }
        }
        // The first tenth of the samples warms up. Of threads alive the first sample counts by
        // itself.
        let warm_up = if alive { 1 } else { tally.samples.div_ceil(10) };
        let before = self.line_ns;
        let found = self.take(&tally.contender, Some(case), case.ops(), warm_up + tally.samples)?;
        self.line_ns = line::round_trip_ns(&self.cpus);
        match found {
            Found::Samples { ns, base_kib, peak_kib } => {
                tally.turns.push(Turn {
                    found: ns[warm_up as usize..].to_vec(),
                    lines: (before, self.line_ns),
                });
                tally.first.push(ns[0] as f64 / case.ops_in(1) as f64);
                tally.peak_kib = tally.peak_kib.max(peak_kib);
                tally.grown_kib = tally.grown_kib.max(peak_kib.saturating_sub(base_kib));
            }
            Found::Unsupported(why) => self.unsupported(case, tally, &why),
        }
        Ok(())
    }

    fn unsupported(&mut self, case: Case, tally: &mut Tally, why: &str) {
        self.report.notes.push(format!("{case}, {}: not run: {why}", tally.contender.name));
        tally.out = true;
    }

    fn take(
        &self,
        contender: &Contender,
        case: Option<Case>,
        ops: u64,
        samples: u64,
    ) -> Result<Found, ChildError> {
        let Some(exe) = contender.program(case).and_then(|program| self.programs.get(&program))
        else {
            unreachable!("only those are asked whose program is there");
        };
        let threads = case.map_or(IDLE_THREADS, Case::threads);
        let spec = Spec {
            exe,
            system: contender.name,
            case,
            threads,
            ops,
            samples,
            cpu: self.cpus.first,
            errors: &self.errors,
        };
        turn::take(&spec, self.interrupted)
    }

    /// What a process costs in which threads wait and nothing happens.
    fn idle(&mut self) -> Result<(), RunError> {
        for contender in self.contenders.clone() {
            if contender.program(None).is_none_or(|program| !self.programs.contains_key(&program)) {
                continue;
            }
            self.progress.say("idle", contender.name);
            match self.take(&contender, None, IDLE_THREADS, 1) {
                Ok(Found::Samples { ns, peak_kib, .. }) => {
                    self.report.idle.push(Idle {
                        system: contender.name,
                        cpu_ns_per_s: ns[0] as f64,
                        peak_kib,
                    });
                }
                Ok(Found::Unsupported(why)) => {
                    self.report.notes.push(format!("idle, {}: not run: {why}", contender.name))
                }
                Err(ChildError::Interrupted) => return Err(RunError::Interrupted),
                Err(error) => self.report.failures.push(format!("idle: {error}")),
            }
        }
        Ok(())
    }
}

fn recorded(case: Case, tally: &Tally) -> Record {
    let name = case.name();
    let label = Label {
        suite: "threads",
        case: &name,
        system: tally.contender.name,
        placement: Placement::OneCore,
        mode: Mode::Polling,
    };
    let summary = |mut ns: Vec<u64>| Summary::of_batches(&mut ns, case.ops());
    if !case.is_alive() {
        let turns: Vec<_> = tally
            .turns
            .iter()
            .map(|turn| Turn { found: summary(turn.found.clone()), lines: turn.lines })
            .collect();
        return label.latency(&turns);
    }
    // A turn may have one sample that counts, so the turns are summarised together, once for the
    // probes of each.
    let together =
        summary(tally.turns.iter().flat_map(|turn| turn.found.iter().copied()).collect());
    let turns: Vec<_> =
        tally.turns.iter().map(|turn| Turn { found: together, lines: turn.lines }).collect();
    let first_ns = Some(median(&tally.first));
    let bytes_each = Some((1024.0 * tally.grown_kib as f64 / case.threads() as f64).round());
    Record {
        samples: together.count,
        peak_kib: Some(tally.peak_kib),
        bytes_each,
        first_ns,
        ..label.latency(&turns)
    }
}

/// Why a case should not be tried on this machine: a process that takes more memory than there is
/// takes others with it.
fn too_large(case: Case) -> Option<String> {
    let needed = if case.is_alive() { KIB_EACH * case.threads() } else { 0 };
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let free: u64 = meminfo.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse().ok()
    })?;
    let gib = |kib: u64| kib as f64 / f64::from(1 << 20);
    (free < needed).then(|| {
        format!(
            "{} threads may take {:.1} GiB of memory, and {:.1} GiB are free",
            case.threads(),
            gib(needed),
            gib(free)
        )
    })
}
