//! The suite `rpc`: calls between two processes.
//!
//! For each setting (placement and mode) and case, the contenders take turns, A B C A B C …, each
//! turn with a fresh server and client, and the cache line is probed between turns. What counts are
//! medians over the rounds, so that a move of the processors by the host, or one unlucky layout of
//! a process, decides nothing. Rounds go on until the case's share of the time is used.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::case::{BINDS, Case, Mode, Placement, SETTINGS, THREADS};
use crate::child::{Binds, Entry, Throughput};
pub use crate::contender::Contender;
use crate::contender::{LIMITS, PEERS, UPCALL};
pub use crate::error::RunError;
use crate::interrupted::Interrupted;
use crate::like::Like;
use crate::limits::{Descriptors, Eventfd, Futex, Limit, Look, Pipe, Socket};
use crate::line;
use crate::output;
use crate::pair::{Pair, Spec};
use crate::peers;
pub use crate::peers::UnknownPeer;
use crate::place::{self, Cpus};
use crate::process::ChildError;
use crate::programs::Programs;
use crate::progress::Progress;
use crate::record::{self, Label, Record, Turn};
use crate::scratch::Scratch;
use crate::socket::UnixSocket;
use crate::stats::Summary;
use crate::table;

/// The systems of this crate, for the table of the program that runs the benchmark (see
/// [`crate::child::child_main`]).
pub const SYSTEMS: [Entry; 6] = [
    Entry::of::<Limit<Look>>(),
    Entry::of::<Limit<Futex>>(),
    Entry::of::<Limit<Descriptors<Eventfd>>>(),
    Entry::of::<Limit<Descriptors<Pipe>>>(),
    Entry::of::<Limit<Descriptors<Socket>>>(),
    Entry::of::<UnixSocket>(),
];

/// Which peers take part.
pub type Peers = peers::Peers<Contender>;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program that answers to `bench-child` for `upcall`, the limits and `unix-socket`:
    /// normally this one.
    pub exe: PathBuf,
    /// Who else takes part.
    pub peers: Peers,
    /// Where the records go as a JSON array; `-` is standard output, which then has no table.
    pub json: Option<PathBuf>,
    /// Less time: for trying out, not for numbers.
    pub quick: bool,
    /// A part of the suite.
    pub only: Only,
}

/// A part of the suite. An empty list stands for everything.
#[derive(Debug, Clone, Default)]
pub struct Only {
    /// Contenders by name (the limits in `parked` are `limit-futex` and so on).
    pub systems: Vec<String>,
    /// Cases by name, `null-t32` and the like included.
    pub cases: Vec<String>,
    /// Placements.
    pub placements: Vec<Placement>,
    /// Modes.
    pub modes: Vec<Mode>,
}

impl Only {
    fn system(&self, name: &str) -> bool {
        self.systems.is_empty() || self.systems.iter().any(|s| s == name)
    }

    fn case(&self, name: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|c| c == name)
    }

    fn setting(&self, placement: Placement, mode: Mode) -> bool {
        (self.placements.is_empty() || self.placements.contains(&placement))
            && (self.modes.is_empty() || self.modes.contains(&mode))
    }

    /// # Errors
    /// A name of a case or a system that is none.
    fn check(&self) -> Result<(), RunError> {
        let cases = Measure::all().map(Measure::name).collect();
        let systems = LIMITS
            .iter()
            .chain([&UPCALL])
            .chain(&PEERS)
            .map(|contender| contender.name.to_owned())
            .collect();
        RunError::unless_known("case", &self.cases, cases)?;
        RunError::unless_known("system", &self.systems, systems)
    }

    fn is_all(&self) -> bool {
        self.systems.is_empty()
            && self.cases.is_empty()
            && self.placements.is_empty()
            && self.modes.is_empty()
    }
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// One record for each case, contender and setting.
    pub records: Vec<Record>,
    /// What servers cost while nobody calls.
    pub idle: Vec<Idle>,
    /// What a reader of the numbers should know: moved processors, absent settings.
    pub notes: Vec<String>,
    /// What could not be measured, and why.
    pub failures: Vec<String>,
}

/// A bound server at rest.
#[derive(Debug, Clone, PartialEq)]
pub struct Idle {
    /// Who.
    pub system: &'static str,
    /// How its server waits.
    pub mode: Mode,
    /// CPU time of the server, nanoseconds per second.
    pub cpu_ns_per_s: f64,
    /// Memory of server and client, KiB (proportional set size).
    pub memory_kib: (u64, u64),
}

/// Times of a run.
struct Plan {
    /// For the whole run, building excluded.
    total: Duration,
    /// Of measuring in one turn, and of warming up before.
    turn: Duration,
    /// Sum of the gaps before the calls of one turn.
    gaps: Duration,
    warm_up: Duration,
    idle: Duration,
    most_rounds: usize,
    /// Binds of each kind that are measured in one turn, at least.
    binds: u64,
}

impl Plan {
    fn of(options: &Options, peers: usize) -> Plan {
        let ms = Duration::from_millis;
        if options.quick {
            let total = ms(10_000) + ms(6_000) * peers as u32;
            Plan {
                total,
                turn: ms(12),
                gaps: ms(30),
                warm_up: ms(3),
                idle: ms(200),
                most_rounds: 3,
                binds: 20,
            }
        } else {
            let total = ms(52_000) + ms(32_000) * peers as u32;
            Plan {
                total,
                turn: ms(50),
                gaps: ms(150),
                warm_up: ms(10),
                idle: ms(1000),
                most_rounds: 9,
                binds: 200,
            }
        }
    }

    /// The longest that calls counted for half a turn may take. Their count comes from the time
    /// that a few before them took; while other programs have the processors, they may take
    /// many times as long.
    fn most(&self) -> Duration {
        2 * self.turn
    }
}

/// What a group of turns measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Measure {
    Latency(Case),
    Throughput(usize),
    Bind,
}

impl Measure {
    fn all() -> impl Iterator<Item = Measure> {
        let latency = Case::ALL.into_iter().map(Measure::Latency);
        latency.chain(THREADS.into_iter().map(Measure::Throughput)).chain([Measure::Bind])
    }

    fn is_for(self, placement: Placement, mode: Mode) -> bool {
        match self {
            Measure::Latency(case) => case.is_for(placement, mode),
            Measure::Throughput(_) | Measure::Bind => placement != Placement::Unpinned,
        }
    }

    fn name(self) -> String {
        match self {
            Measure::Latency(case) => case.name().to_owned(),
            Measure::Throughput(callers) => format!("null-t{callers}"),
            Measure::Bind => BINDS[0].to_owned(),
        }
    }
}

enum Found {
    Latency(Summary),
    Throughput(Throughput),
    Binds(Binds),
}

/// Runs the suite, shows progress on standard error, prints a table on standard output and writes
/// the records where `options` say. Takes at most about a minute without peers, and half a minute
/// more for each peer; busies two processors meanwhile. Leaves no process and no file behind.
///
/// # Errors
/// [`RunError`]. A contender that fails is in the report's `failures` and does not stop the others.
pub fn run(options: &Options) -> Result<Report, RunError> {
    options.only.check()?;
    let cpus = Cpus::allowed().map_err(RunError::System)?;
    let wanted = |c: &Contender| options.only.system(c.name);
    let peers = options.peers.meant();
    let mut contenders: Vec<Contender> =
        LIMITS.into_iter().chain([UPCALL]).chain(peers.iter().copied()).filter(wanted).collect();
    let programs = Programs::of(&mut contenders, &options.exe)?;
    let mut groups = Vec::new();
    for (placement, mode) in SETTINGS {
        if !options.only.setting(placement, mode) {
            continue;
        }
        groups.extend(
            Measure::all()
                .filter(|m| m.is_for(placement, mode) && options.only.case(&m.name()))
                .map(|m| (placement, mode, m)),
        );
    }

    let interrupted = Interrupted::watch().map_err(RunError::System)?;
    let scratch = Scratch::make()?;
    let plan = Plan::of(options, peers.len());
    let mut runner = Runner {
        cpus,
        allowed: place::allowed().map_err(RunError::System)?,
        contenders,
        programs: &programs,
        scratch: &scratch,
        interrupted: &interrupted.flag,
        plan: &plan,
        report: Report {
            notes: programs.notes.clone(),
            failures: programs.failures.clone(),
            ..Report::default()
        },
        line_ns: f64::NAN,
        pairs: 0,
        hurried: 0,
        progress: Progress::new(),
    };
    runner.suite(&groups, options.only.is_all())?;
    runner.progress.clear();
    let mut report = runner.report;
    if report.records.is_empty() && report.failures.is_empty() {
        return Err(RunError::Nothing);
    }
    record::name_best_limits(&mut report.records);

    let json = options.json.as_deref();
    output::asides(json, &report.notes, &report.failures);
    output::table(json, |out, colour| table::print(&report, out, colour))?;
    // A file without a wish for certain cases has the suite's cases, and no others; binds are then
    // in the table only.
    let wished = |record: &Record| {
        !BINDS.contains(&&*record.case) || options.only.cases.contains(&record.case.to_string())
    };
    let records: Vec<Record> =
        report.records.iter().filter(|record| wished(record)).cloned().collect();
    output::records(json, &records)?;
    Ok(report)
}

/// A run under way.
struct Runner<'a> {
    cpus: Cpus,
    /// All processors that this process may run on.
    allowed: Vec<usize>,
    contenders: Vec<Contender>,
    programs: &'a Programs,
    scratch: &'a Scratch,
    interrupted: &'a AtomicBool,
    plan: &'a Plan,
    report: Report,
    /// The latest probe.
    line_ns: f64,
    pairs: u32,
    /// Groups that had time for one round only.
    hurried: usize,
    progress: Progress,
}

impl<'a> Runner<'a> {
    fn suite(
        &mut self,
        groups: &[(Placement, Mode, Measure)],
        with_idle: bool,
    ) -> Result<(), RunError> {
        let begun = Instant::now();
        let weight = |(_, mode, measure): &(Placement, Mode, Measure)| {
            let running = |binds: bool| {
                self.contenders.iter().filter(|c| c.runs(*mode) && (c.binds || !binds)).count()
                    as f64
            };
            match measure {
                // What everything else is told in, and the shortest: its ratios need the most
                // rounds.
                Measure::Latency(Case::Null) => 3.0 * running(false),
                // Most of the time is gaps.
                Measure::Latency(Case::NullGap(_)) => 1.5 * running(false),
                Measure::Latency(_) => running(false),
                Measure::Throughput(_) => 0.5 * running(false),
                Measure::Bind => running(true),
            }
        };
        let weights: Vec<f64> = groups.iter().map(weight).collect();
        let whole: f64 = weights.iter().sum();
        let mut left = whole;
        self.line_ns = line::round_trip_ns(&self.cpus);
        if with_idle {
            self.idle()?;
        }
        for (&(placement, mode, measure), weight) in groups.iter().zip(weights) {
            if placement == Placement::TwoCores && self.cpus.second.is_none() {
                let note =
                    "this process may use one processor only: nothing of two-cores was measured";
                if !self.report.notes.iter().any(|n| n == note) {
                    self.report.notes.push(note.to_owned());
                }
                continue;
            }
            let time = self
                .plan
                .total
                .saturating_sub(begun.elapsed())
                .mul_f64(weight / left.max(weight).max(1e-9));
            self.progress.percent = (100.0 * (1.0 - left / whole)) as u32;
            left -= weight;
            self.group(placement, mode, measure, time)?;
        }
        if self.hurried > 0 {
            self.report.notes.push(format!(
                "{} of {} cases had time for one round only: their figures are of one turn each, not medians of several",
                self.hurried,
                groups.len()
            ));
        }
        Ok(())
    }

    /// The contenders of one group in turn, round by round, for about `time`.
    #[expect(clippy::too_many_lines, reason = "one entry for each case")]
    fn group(
        &mut self,
        placement: Placement,
        mode: Mode,
        measure: Measure,
        time: Duration,
    ) -> Result<(), RunError> {
        let case = measure.name();
        let mut contenders = self.in_group(placement, mode, measure);
        let mut latency: Vec<Vec<Turn<Summary>>> = vec![Vec::new(); contenders.len()];
        let mut throughput: Vec<Vec<Turn<Throughput>>> = vec![Vec::new(); contenders.len()];
        let mut binds: Vec<[Vec<Turn<Summary>>; 2]> = vec![Default::default(); contenders.len()];
        let mut probes: Vec<Vec<(f64, f64)>> = vec![Vec::new(); contenders.len()];
        let begun = Instant::now();
        let mut rounds = 0;
        while rounds < self.plan.most_rounds {
            for (at, place) in contenders.iter_mut().enumerate() {
                let Some(contender) = *place else { continue };
                self.progress.say(
                    &format!("{placement}, {mode}: {case}"),
                    &format!("round {} {}", rounds + 1, contender.name),
                );
                let before = self.line_ns;
                let found = self.turn(&contender, placement, mode, measure);
                self.line_ns = line::round_trip_ns(&self.cpus);
                let lines = (before, self.line_ns);
                if let Ok(Some(_)) = found {
                    probes[at].push(lines);
                }
                match found {
                    Ok(Some(Found::Latency(found))) => latency[at].push(Turn { found, lines }),
                    Ok(Some(Found::Throughput(found))) => {
                        throughput[at].push(Turn { found, lines })
                    }
                    Ok(Some(Found::Binds(Binds { first, further }))) => {
                        for (turns, found) in binds[at].iter_mut().zip([first, further]) {
                            turns.push(Turn { found, lines });
                        }
                    }
                    Ok(None) => *place = None,
                    Err(ChildError::Interrupted) => return Err(RunError::Interrupted),
                    Err(error) => {
                        self.report.failures.push(format!("{case}: {error}"));
                        *place = None;
                    }
                }
            }
            rounds += 1;
            let spent = begun.elapsed();
            if spent + spent / rounds as u32 > time {
                break;
            }
        }
        self.hurried += usize::from(rounds == 1);
        let like = if placement == Placement::TwoCores {
            self.like(placement, mode, &case, &probes)
        } else {
            Like::all()
        };
        latency.iter_mut().for_each(|turns| turns.retain(|turn| like.has(turn.lines)));
        throughput.iter_mut().for_each(|turns| turns.retain(|turn| like.has(turn.lines)));
        binds.iter_mut().flatten().for_each(|turns| turns.retain(|turn| like.has(turn.lines)));
        let named = |case, system| Label { suite: "rpc", case, system, placement, mode };
        let label = |system| named(&case, system);
        let names = self.in_group(placement, mode, measure);
        for (at, contender) in names.into_iter().flatten().enumerate() {
            if !latency[at].is_empty() {
                self.report.records.push(label(contender.name).latency(&latency[at]));
            }
            if let (Measure::Throughput(callers), false) = (measure, throughput[at].is_empty()) {
                self.report
                    .records
                    .push(label(contender.name).throughput(callers, &throughput[at]));
            }
            for (case, turns) in
                BINDS.into_iter().zip(&binds[at]).filter(|(_, turns)| !turns.is_empty())
            {
                self.report.records.push(named(case, contender.name).latency(turns));
            }
        }
        Ok(())
    }

    /// Who takes part in a group. The bare hand-offs all run `null`; later only the best of them
    /// does.
    fn in_group(
        &self,
        placement: Placement,
        mode: Mode,
        measure: Measure,
    ) -> Vec<Option<Contender>> {
        let best = self
            .report
            .records
            .iter()
            .filter(|r| (r.placement, r.mode, r.case.as_str()) == (placement, mode, "null"))
            .filter(|r| r.system.starts_with("limit-"))
            .min_by(|a, b| a.p50_ns.total_cmp(&b.p50_ns));
        let runs = |c: &&Contender| {
            let several = match measure {
                Measure::Throughput(callers) => callers,
                Measure::Latency(_) => 1,
                Measure::Bind if c.binds => 1,
                Measure::Bind => return false,
            };
            let beaten = c.hand_off
                && measure != Measure::Latency(Case::Null)
                && best.is_some_and(|best| best.system != c.name);
            c.runs(mode) && several <= c.outstanding && !beaten
        };
        self.contenders.iter().filter(runs).copied().map(Some).collect()
    }

    fn turn(
        &mut self,
        contender: &Contender,
        placement: Placement,
        mode: Mode,
        measure: Measure,
    ) -> Result<Option<Found>, ChildError> {
        let mut pair = self.pair(contender, placement, mode)?;
        let found = match measure {
            Measure::Latency(case) => {
                // The first calls bind, fault pages in and so on; the second few warm up and say
                // how long a call is.
                let most = self.plan.most();
                if let Some(gap) = case.gap() {
                    pair.latency(Case::Null, 4, most)?;
                    let count = gaps_in(self.plan.gaps, gap);
                    pair.latency(case, 4, most)?;
                    let found = pair.latency(case, count, 4 * self.plan.gaps + most)?;
                    pair.end()?;
                    return Ok(Some(Found::Latency(found)));
                }
                let first = pair.latency(case, 4, most)?.mean_ns;
                let warm =
                    pair.latency(case, calls_in(self.plan.warm_up, first, 4, 2_000), most)?.mean_ns;
                Found::Latency(pair.latency(
                    case,
                    calls_in(self.plan.turn, warm, 50, 300_000),
                    most,
                )?)
            }
            Measure::Throughput(callers) => {
                let warm = pair.throughput(callers, self.plan.warm_up)?;
                match warm {
                    None => return pair.end().map(|()| None),
                    Some(_) => match pair.throughput(callers, self.plan.turn)? {
                        None => return pair.end().map(|()| None),
                        Some(found) => Found::Throughput(found),
                    },
                }
            }
            Measure::Bind => match pair.bind(self.plan.binds / 10)?.is_some() {
                // The first few warm up, as above.
                true => match pair.bind(self.plan.binds)? {
                    Some(found) => Found::Binds(found),
                    None => return pair.end().map(|()| None),
                },
                false => return pair.end().map(|()| None),
            },
        };
        pair.end()?;
        Ok(Some(found))
    }

    /// What each server costs while a client is bound and nobody calls.
    fn idle(&mut self) -> Result<(), RunError> {
        let contenders: Vec<_> =
            self.contenders.iter().filter(|c| !c.name.starts_with("limit")).copied().collect();
        for contender in contenders {
            for mode in [Mode::Polling, Mode::Parked] {
                if !contender.runs(mode) {
                    continue;
                }
                self.progress.say("idle", contender.name);
                match self.rest(&contender, mode) {
                    Ok(idle) => self.report.idle.push(idle),
                    Err(ChildError::Interrupted) => return Err(RunError::Interrupted),
                    Err(error) => self.report.failures.push(format!("idle: {error}")),
                }
            }
        }
        Ok(())
    }

    fn rest(&mut self, contender: &Contender, mode: Mode) -> Result<Idle, ChildError> {
        let placement =
            if self.cpus.second.is_some() { Placement::TwoCores } else { Placement::OneCore };
        let mut pair = self.pair(contender, placement, mode)?;
        pair.latency(Case::Null, 100, self.plan.most())?;
        let memory_kib = pair.memory_kib()?;
        std::thread::sleep(self.plan.idle / 4); // time to go to rest
        let cpu_ns_per_s = pair.idle_ns_per_s(self.plan.idle)?;
        pair.end()?;
        Ok(Idle { system: contender.name, mode, cpu_ns_per_s, memory_kib })
    }

    fn pair(
        &mut self,
        contender: &Contender,
        placement: Placement,
        mode: Mode,
    ) -> Result<Pair<'a>, ChildError> {
        self.pairs += 1;
        let [server, client] = contender.processors(placement, &self.allowed);
        let spec = Spec {
            exe: self.programs.path(contender.program),
            system: contender.name,
            placement,
            mode,
            cpus: (&server, &client),
            dir: self.scratch.dir.join(self.pairs.to_string()),
        };
        Pair::start(&spec, self.interrupted)
    }

    /// Which turns of a case count, if the host moved the processors meanwhile; says so in the
    /// report.
    fn like(
        &mut self,
        placement: Placement,
        mode: Mode,
        case: &str,
        probes: &[Vec<(f64, f64)>],
    ) -> Like {
        let like = Like::of(probes);
        let turns = || probes.iter().flatten();
        let (all, counted) = (turns().count(), turns().filter(|turn| like.has(**turn)).count());
        let span = |probes: &mut dyn Iterator<Item = &(f64, f64)>| {
            let (least, most) = Like::span(probes);
            format!("{least:.0} to {most:.0} ns")
        };
        let found = span(&mut turns());
        if counted < all {
            let kept = span(&mut turns().filter(|turn| like.has(**turn)));
            self.report.notes.push(format!(
                "{placement}, {mode}, {case}: the line took {found}; only the {counted} of {all} turns beside {kept} count"
            ));
        } else if like.moved() {
            self.report
                .notes
                .push(format!("{placement}, {mode}, {case}: the line took {found}, and not like turns are compared"));
        }
        like
    }
}

/// Calls that fill `time` at `ns` each, half of them timed, within limits.
pub(crate) fn calls_in(time: Duration, ns: f64, least: u64, most: u64) -> u64 {
    ((time.as_nanos() as f64 / 2.0 / ns.max(1.0)) as u64).clamp(least, most)
}

/// Number of calls whose gaps fill `time`.
fn gaps_in(time: Duration, gap: Duration) -> u64 {
    let gaps = time.as_nanos() / gap.as_nanos().max(1);
    u64::try_from(gaps).unwrap_or(u64::MAX).clamp(20, 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_fill_the_time_within_limits() {
        let (us, ms) = (Duration::from_micros, Duration::from_millis);
        assert_eq!([us(20), ms(1), ms(50)].map(|gap| gaps_in(ms(200), gap)), [1000, 200, 20]);
    }

    #[test]
    fn counts_fill_the_time_within_limits() {
        let ms = Duration::from_millis;
        assert_eq!(calls_in(ms(50), 250.0, 50, 300_000), 100_000);
        assert_eq!(calls_in(ms(50), 5e6, 50, 300_000), 50);
        assert_eq!(calls_in(ms(50), 0.0, 50, 300_000), 300_000);
    }

    #[test]
    fn a_part_of_the_suite() {
        let only =
            Only { cases: vec!["null-t32".into()], modes: vec![Mode::Parked], ..Only::default() };
        assert!(only.system("anyone") && only.case("null-t32") && !only.case("null"));
        assert!(
            only.setting(Placement::OneCore, Mode::Parked)
                && !only.setting(Placement::OneCore, Mode::Polling)
        );
        assert!(!only.is_all() && Only::default().is_all());
        assert!(only.check().is_ok() && Only::default().check().is_ok());
    }

    #[test]
    fn names_that_are_none_are_told_with_those_that_are() {
        let told = |only: Only| only.check().unwrap_err().to_string();
        let case = told(Only { cases: vec!["null".into(), "nul".into()], ..Only::default() });
        assert!(
            case.contains("no case `nul`") && case.contains("null-t32") && case.contains("in-1m"),
            "{case}"
        );
        let system = told(Only { systems: vec!["corba".into()], ..Only::default() });
        assert!(
            system.contains("no system `corba`") && system.contains("upcall, unix-socket"),
            "{system}"
        );
    }
}
