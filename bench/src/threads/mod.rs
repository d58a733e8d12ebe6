//! The suite `threads`: the operations of user-level threads, on one processor.
//!
//! For each case the systems take turns, A B C A B C …, and the cache line is probed between turns.
//! Each turn is a new process that is confined to the first processor. The figures are medians over
//! the rounds. Rounds go on until the case's share of the time is used.
//!
//! In a turn of threads alive, the first sample, which is the first time in a new process, is
//! reported separately from the later ones. If there are so many threads that one repetition takes
//! longer than a turn, there is only one, and the figures are of all rounds together.

pub mod case;
pub mod child;
mod contender;
pub mod library;
mod limit;
mod pthread;
mod table;
mod turn;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::case::Case;
use self::child::Entry;
pub use self::contender::Contender;
use self::contender::{LIMIT, PEERS, Program, UPCALL};
use self::turn::{Found, Spec};
use crate::built;
use crate::case::{Mode, Placement};
use crate::error::RunError;
use crate::process::ChildError;
use crate::record::{Label, Record, Turn};
use crate::report::{Idle, Report};
use crate::run::{Rounds, Run, Said, Series};
use crate::stats::{Summary, median};
use crate::suite::{Offer, Suite};
use crate::table::Table;

/// The systems of this crate, for the benchmark program's table (see [`child::child_main`]).
pub const SYSTEMS: [Entry; 2] = [limit::LIMIT, Entry::of::<pthread::Pthread>()];

/// Number of threads that wait in `idle`.
const IDLE_THREADS: u64 = 1000;

/// Maximum memory of each thread of `alive-…`, in KiB: two pages of its stack, and one for the
/// rest.
const KIB_EACH: u64 = 12;

/// Number of threads alive above which one round takes at least as long as a turn, and is not tried
/// beforehand.
const MOST_TRIED: u64 = 10_000;

/// Durations of a run.
struct Plan {
    /// The whole run without building.
    total: Duration,
    /// Approximate duration of the measurement in one turn.
    turn: Duration,
    most_rounds: usize,
}

impl Plan {
    fn of(quick: bool, peers: usize) -> Plan {
        let ms = Duration::from_millis;
        if quick {
            Plan { total: ms(4_000) + ms(2_000) * peers as u32, turn: ms(10), most_rounds: 3 }
        } else {
            Plan { total: ms(18_000) + ms(18_000) * peers as u32, turn: ms(50), most_rounds: 9 }
        }
    }
}

/// The suite.
#[derive(Debug, Clone)]
pub struct Threads {
    /// Numbers of threads that yield in turn, besides the two of `yield`.
    pub ready: Vec<u64>,
    /// Numbers of threads alive at once.
    pub alive: Vec<u64>,
}

impl Default for Threads {
    fn default() -> Threads {
        Threads { ready: Case::READY.to_vec(), alive: Case::ALIVE.to_vec() }
    }
}

impl Threads {
    /// Returns the suite's cases with these numbers, in the order of the report.
    fn all(&self) -> impl Iterator<Item = Case> {
        let sorted = |numbers: &[u64]| {
            numbers.iter().copied().filter(|&number| number > 0).collect::<BTreeSet<_>>()
        };
        let ready = sorted(&self.ready).into_iter().filter(|&threads| threads != 2);
        let alive = sorted(&self.alive).into_iter().map(Case::Alive);
        Case::TABLE.into_iter().chain(ready.map(Case::Yield)).chain(alive)
    }
}

/// Takes about 20 seconds without peers, and as much more for each peer. Keeps one processor busy.
impl Suite for Threads {
    const NAME: &'static str = "threads";
    const OFFERS: &'static [Offer] = &[
        Offer::System("Only this system; may be repeated"),
        Offer::Case("Only this case, for example `yield` or `alive-1m`; may be repeated"),
        Offer::Plot(
            "Draw the operations, and growth with the number of threads, into this folder, as SVG \
            files",
        ),
    ];
    const SAYS_BUSY: bool = false;
    const TABLES: &'static [&'static str] = &table::TABLES;
    type Peer = Contender;

    fn cases(&self) -> Vec<String> {
        self.all().map(Case::name).collect()
    }

    fn systems(&self) -> Vec<String> {
        let all = [UPCALL, LIMIT].into_iter().chain(PEERS);
        all.map(|contender| contender.name.to_owned()).collect()
    }

    fn measure(&self, peers: Vec<Contender>, run: &mut Run<'_>) -> Result<(), RunError> {
        let plan = Plan::of(run.quick, peers.len());
        let cases: Vec<Case> = self.all().filter(|case| run.only.case(&case.name())).collect();
        let all = [UPCALL, LIMIT].into_iter().chain(peers);
        let contenders: Vec<Contender> =
            all.filter(|contender| run.only.system(contender.name)).collect();
        let (programs, failures) = programs(&contenders, &cases, run.exe);
        run.report.failures = failures;
        let errors = run.dir.join("stderr");
        Runner { programs, contenders, errors, plan, hurried: 0 }.suite(&cases, run)
    }

    fn tables(report: &Report) -> Vec<Table> {
        table::tables(report)
    }
}

/// Finds the required programs, building them if needed, and says why contenders without a program
/// are skipped.
fn programs(
    contenders: &[Contender],
    cases: &[Case],
    own: &Path,
) -> (HashMap<Program, PathBuf>, Vec<String>) {
    let mut tried: HashMap<Program, Result<PathBuf, String>> =
        HashMap::from([(Program::Own, Ok(own.to_owned()))]);
    let mut failures = Vec::new();
    // A peers' program is not built only for the floors that it contains.
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

/// The contenders, the durations and the programs.
struct Runner {
    /// The available programs.
    programs: HashMap<Program, PathBuf>,
    contenders: Vec<Contender>,
    errors: PathBuf,
    plan: Plan,
    /// Number of cases that had time for only one round.
    hurried: usize,
}

/// One system in one case.
struct Tally {
    contender: Contender,
    /// Number of samples of one turn, which the first turn determines.
    samples: Option<u64>,
}

/// The findings of one turn.
#[derive(Clone)]
struct Turned {
    /// The samples without the first ones, in nanoseconds.
    ns: Vec<u64>,
    /// The first sample, in nanoseconds.
    first: u64,
    peak_kib: u64,
    /// Growth of the peak after the system began, in KiB.
    grown_kib: u64,
}

impl Runner {
    fn suite(&mut self, cases: &[Case], run: &mut Run<'_>) -> Result<(), RunError> {
        let begun = Instant::now();
        if run.only.is_all() {
            self.idle(run)?;
        }
        let whole: f64 = cases.iter().map(|case| case.weight()).sum();
        let mut left = whole;
        for case in cases {
            let time = self.plan.total.saturating_sub(begun.elapsed());
            let time = time.mul_f64(case.weight() / left);
            let percent = |left: f64| (100.0 * (1.0 - left / whole)) as u32;
            let part = percent(left)..percent(left - case.weight());
            left -= case.weight();
            self.case(*case, &Rounds { most: self.plan.most_rounds, time, part }, run)?;
        }
        if self.hurried > 0 {
            run.report.notes.push(format!(
                "{} of {} cases had time for one round only: their figures are of one turn each",
                self.hurried,
                cases.len()
            ));
        }
        Ok(())
    }

    /// Measures the systems of one case in turn, round by round.
    fn case(&mut self, case: Case, rounds: &Rounds, run: &mut Run<'_>) -> Result<(), RunError> {
        if let Some(why) = too_large(case) {
            run.report.notes.push(format!("{case} was not run: {why}"));
            return Ok(());
        }
        let mut series: Vec<Series<Tally, Turned>> = self
            .with_program(Some(case))
            .map(|contender| Series::of(Tally { contender, samples: None }))
            .collect();
        let say = |round, tally: &Tally| Said {
            what: case.name(),
            detail: format!("round {round} {}", tally.contender.name),
            fault: case.name(),
        };
        let turn = |run: &mut Run<'_>, tally: &mut Tally| self.turn(case, tally, run);
        let done = run.rounds(rounds, &mut series, say, turn)?;
        series.retain(|one| !one.turns.is_empty());
        self.hurried += usize::from(done == 1 && !series.is_empty());
        run.report.records.extend(series.iter().map(|one| recorded(case, one)));
        Ok(())
    }

    /// Returns the contenders whose program for a case is available; `None` stands for `idle`.
    fn with_program(&self, case: Option<Case>) -> impl Iterator<Item = Contender> {
        let there = move |contender: &&Contender| {
            contender.program(case).is_some_and(|program| self.programs.contains_key(&program))
        };
        self.contenders.iter().filter(there).copied()
    }

    /// Runs one turn. The first turn determines the number of samples that fill its time.
    fn turn(
        &self,
        case: Case,
        tally: &mut Tally,
        run: &mut Run<'_>,
    ) -> Result<Option<Turned>, ChildError> {
        let alive = case.is_alive();
        let mut take = |samples| {
            let found = self.take(&tally.contender, Some(case), case.ops(), samples, run)?;
            if let Found::Unsupported(why) = &found {
                let name = tally.contender.name;
                run.report.notes.push(format!("{case}, {name}: not run: {why}"));
            }
            Ok(found)
        };
        let samples = match tally.samples {
            Some(samples) => samples,
            None if alive && case.threads() > MOST_TRIED => 1,
            None => {
                let tried = if alive { 2 } else { 8 };
                let Found::Samples { ns, .. } = take(tried)? else { return Ok(None) };
                let counted = &ns[usize::from(alive)..];
                let each = median(&counted.iter().map(|&ns| ns as f64).collect::<Vec<_>>());
                let fill = (self.plan.turn.as_nanos() as f64 / each.max(1.0)) as u64;
                if alive { fill.clamp(1, 200) } else { fill.clamp(10, 2000) }
            }
        };
        tally.samples = Some(samples);
        // The first tenth of the samples warms up. Of threads alive the first sample is a figure of
        // its own.
        let warm_up = if alive { 1 } else { samples.div_ceil(10) };
        let Found::Samples { mut ns, base_kib, peak_kib } = take(warm_up + samples)? else {
            return Ok(None);
        };
        let grown_kib = peak_kib.saturating_sub(base_kib);
        let counted = ns.split_off(warm_up as usize);
        Ok(Some(Turned { ns: counted, first: ns[0], peak_kib, grown_kib }))
    }

    fn take(
        &self,
        contender: &Contender,
        case: Option<Case>,
        ops: u64,
        samples: u64,
        run: &Run<'_>,
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
            cpu: run.cpus.first,
            errors: &self.errors,
        };
        turn::take(&spec, run.interrupted)
    }

    /// Measures the cost of an idle process with waiting threads.
    fn idle(&self, run: &mut Run<'_>) -> Result<(), RunError> {
        for contender in self.with_program(None) {
            let system = contender.name;
            run.progress.say("idle", system);
            let found = self.take(&contender, None, IDLE_THREADS, 1, run);
            match run.unless_failed("idle", found)? {
                Some(Found::Samples { ns, peak_kib, .. }) => run.report.idle.push(Idle {
                    system: system.to_owned(),
                    mode: Mode::Parked,
                    cpu_ns_per_s: ns[0] as f64,
                    memory_kib: vec![peak_kib],
                }),
                Some(Found::Unsupported(why)) => {
                    run.report.notes.push(format!("idle, {system}: not run: {why}"));
                }
                None => {}
            }
        }
        Ok(())
    }
}

fn recorded(case: Case, Series { of: tally, turns, .. }: &Series<Tally, Turned>) -> Record {
    let name = case.name();
    let (placement, mode) = (Placement::OneCore, Mode::Polling);
    let system = tally.contender.name;
    let label = Label { suite: Threads::NAME, case: &name, system, placement, mode };
    let summary = |mut ns: Vec<u64>| Summary::of_batches(&mut ns, case.ops());
    let latency = |of: &dyn Fn(&Turned) -> Summary| {
        let turn = |turn: &Turn<Turned>| Turn { found: of(&turn.found), lines: turn.lines };
        label.latency(&turns.iter().map(turn).collect::<Vec<_>>())
    };
    if !case.is_alive() {
        return latency(&|turned| summary(turned.ns.clone()));
    }
    // A turn may have only one sample that counts, so the turns are summarised together, once for
    // the probes of each.
    let all = || turns.iter().map(|turn| &turn.found);
    let together = summary(all().flat_map(|turned| turned.ns.iter().copied()).collect());
    let first = all().map(|turned| turned.first as f64 / case.ops_in(1) as f64);
    let most = |of: fn(&Turned) -> u64| all().map(of).max().unwrap_or_default();
    let grown = most(|turned| turned.grown_kib);
    Record {
        samples: together.count,
        peak_kib: Some(most(|turned| turned.peak_kib)),
        bytes_each: Some((1024.0 * grown as f64 / case.threads() as f64).round()),
        first_ns: Some(median(&first.collect::<Vec<_>>())),
        ..latency(&|_| together)
    }
}

/// Returns why a case should not be tried on this machine: a process that needs more memory than is
/// available brings down others.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_threads_make_cases() {
        let suite = Threads { ready: vec![100, 2], alive: vec![1_000_000, 5] };
        let cases: Vec<Case> = suite.all().collect();
        assert_eq!(cases[..6], Case::TABLE);
        assert_eq!(cases[6..], [Case::Yield(100), Case::Alive(5), Case::Alive(1_000_000)]);
    }
}
