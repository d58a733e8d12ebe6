//! The suite `messages`: what UDM's Table 4 has (D14), and what users of queues ask for besides, of
//! messages between two processes.
//!
//! A sender and a receiver, each a process on a processor of its own, and for the ping-pong also
//! both on one. Who takes part:
//!
//! * `limit`: a bare queue in shared memory that checks nothing ([`floor`]).
//! * Ours ([`contender::OURS`]).
//! * The peers: UCX's active messages and its tag matching, Open MPI, and iceoryx2's publish and
//!   subscribe.
//!
//! The cases are in [`case`]. All are measured by one program ([`driver`]), which every system is
//! under ([`child::System`]): payloads are written afresh and checked, counts and sums are
//! compared.
//!
//! One turn of a system is one pair of processes, which are measured in all cases, so that what is
//! compared of one system happens within half a second. All systems take turns, round by round, and
//! the cache line is probed between turns. What counts are medians over the rounds. If the host
//! moves the processors meanwhile, only turns of one placement count where two processors are
//! compared.
//!
//! A second part measures what only ours has ([`own`]).

pub mod case;
pub mod child;
pub mod contender;
mod driver;
mod floor;
mod options;
pub mod own;
mod pair;
mod programs;
#[allow(unsafe_code)]
pub(crate) mod raw;
mod table;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use self::case::Case;
use self::child::Entry;
use self::contender::{Contender, LIMIT, OURS};
pub use self::options::{Only, Options, Peers};
pub use self::pair::Found;
use self::pair::{Pair, Spec};
use self::programs::Programs;
use crate::case::Placement;
pub use crate::error::RunError;
use crate::found::Throughput;
use crate::interrupted::Interrupted;
use crate::like::Like;
use crate::line;
use crate::output;
use crate::place::Cpus;
use crate::process::ChildError;
use crate::progress::Progress;
use crate::record::{Label, Record, Turn};
use crate::report::busy;
use crate::scratch::Scratch;
use crate::stats::Summary;

/// The systems of this crate, for the table of the program that runs the benchmark (see
/// [`child::child_main`]).
pub const SYSTEMS: [Entry; 1] = [Entry::of::<floor::Floor>()];

/// The share of the first part in the time of a run that has both, in percent, about.
const FIRST: u32 = 25;

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// One record for each case, system and placement.
    pub records: Vec<Record>,
    /// Those of them that are of the second part.
    pub own: Vec<Record>,
    /// What receivers cost while nothing is sent.
    pub idle: Vec<Idle>,
    /// What a reader of the numbers should know.
    pub notes: Vec<String>,
    /// What could not be measured, and why.
    pub failures: Vec<String>,
}

/// A receiver at rest.
#[derive(Debug, Clone, PartialEq)]
pub struct Idle {
    /// Who.
    pub system: &'static str,
    /// CPU time of the receiver, nanoseconds per second.
    pub cpu_ns_per_s: f64,
    /// Memory of sender and receiver, KiB (proportional set size).
    pub memory_kib: (u64, u64),
}

/// Times of a run.
struct Plan {
    rounds: usize,
    /// Of one case in one turn, and of warming up before.
    turn: Duration,
    warm_up: Duration,
    idle: Duration,
}

impl Plan {
    fn of(options: &Options) -> Plan {
        let ms = Duration::from_millis;
        match options.quick {
            true => Plan { rounds: 2, turn: ms(4), warm_up: ms(1), idle: ms(200) },
            false => Plan { rounds: 9, turn: ms(24), warm_up: ms(5), idle: ms(1000) },
        }
    }
}

/// A contender at a place, and what its turns have come to: a finding for each case that it can do.
struct Tester {
    contender: Contender,
    placement: Placement,
    cases: Vec<Case>,
    turns: Vec<Turn<Vec<Option<Found>>>>,
    out: bool,
}

/// Runs the suite, shows progress on standard error, prints tables on standard output and writes
/// the records where `options` say. Takes about two minutes, of which ours alone is one and a half,
/// and a quarter more for each peer; busies two processors meanwhile. Leaves no process and no file
/// behind.
///
/// # Errors
/// [`RunError`]. A contender that fails is in the report's `failures` and does not stop the others.
pub fn run(options: &Options) -> Result<Report, RunError> {
    options.only.check()?;
    let cpus = Cpus::allowed().map_err(RunError::System)?;
    let wanted = |contender: &Contender| {
        options.only.system(contender.name) && options.only.with_contenders()
    };
    let all = [&[LIMIT][..], &OURS, &options.peers.meant()].concat();
    let mut contenders: Vec<Contender> = all.into_iter().filter(wanted).collect();
    let programs = Programs::of(&mut contenders, &options.exe);
    let interrupted = Interrupted::watch().map_err(RunError::System)?;
    let scratch = Scratch::make()?;
    let note = busy();
    let own = options.only.own();
    let mut runner = Runner {
        cpus,
        programs: &programs,
        scratch: &scratch,
        interrupted: &interrupted.flag,
        plan: Plan::of(options),
        report: Report {
            notes: programs.notes.clone(),
            failures: programs.failures.clone(),
            ..Report::default()
        },
        line_ns: line::round_trip_ns(&cpus),
        pairs: 0,
        first: if own.is_empty() { 100 } else { FIRST },
        progress: Progress::new(),
    };
    if options.only.with_idle() {
        runner.idle(&contenders)?;
    }
    runner.suite(&contenders, &options.only)?;
    runner.own(options, &own, if runner.report.records.is_empty() { 0 } else { FIRST })?;
    runner.progress.clear();
    let mut report = runner.report;
    if report.records.is_empty() && report.failures.is_empty() && report.notes.is_empty() {
        return Err(RunError::Nothing);
    }
    report.notes.extend(note);
    let json = options.json.as_deref();
    output::asides(json, &report.notes, &report.failures);
    output::table(json, |out, colour| table::print(&report, out, colour))?;
    output::records(json, &report.records)?;
    Ok(report)
}

/// A run under way.
struct Runner<'a> {
    cpus: Cpus,
    programs: &'a Programs,
    scratch: &'a Scratch,
    interrupted: &'a AtomicBool,
    plan: Plan,
    report: Report,
    /// The latest probe.
    line_ns: f64,
    pairs: u32,
    /// How much of the run is the first part, in percent.
    first: u32,
    progress: Progress,
}

impl<'a> Runner<'a> {
    fn suite(&mut self, contenders: &[Contender], only: &Only) -> Result<(), RunError> {
        let mut testers = Vec::new();
        for placement in [Placement::TwoCores, Placement::OneCore] {
            let cases = only.cases(placement);
            if placement == Placement::TwoCores && self.cpus.second.is_none() && !cases.is_empty() {
                self.report.notes.push(
                    "this process may use one processor only: nothing of two-cores was measured"
                        .to_owned(),
                );
                continue;
            }
            let tester = |&contender| Tester {
                contender,
                placement,
                cases: cases.clone(),
                turns: Vec::new(),
                out: cases.is_empty(),
            };
            testers.extend(contenders.iter().map(tester));
        }
        for round in 0..self.plan.rounds {
            self.progress.percent = self.first * round as u32 / self.plan.rounds as u32;
            for tester in testers.iter_mut().filter(|tester| !tester.out) {
                let name = format!("{}, {}", tester.contender.name, tester.placement);
                self.progress.say(&format!("round {} of {}", round + 1, self.plan.rounds), &name);
                let before = self.line_ns;
                let found = self.turn(tester);
                self.line_ns = line::round_trip_ns(&self.cpus);
                match found {
                    Ok(found) => tester.turns.push(Turn { found, lines: (before, self.line_ns) }),
                    Err(ChildError::Interrupted) => return Err(RunError::Interrupted),
                    Err(error) => {
                        self.report.failures.push(error.to_string());
                        tester.out = true;
                    }
                }
            }
        }
        self.leave_like(&mut testers);
        for tester in &testers {
            self.report.records.extend(recorded(tester));
        }
        Ok(())
    }

    /// All cases by one pair.
    fn turn(&mut self, tester: &Tester) -> Result<Vec<Option<Found>>, ChildError> {
        let mut pair = self.pair(tester.contender, tester.placement)?;
        let mut found = Vec::new();
        for &case in &tester.cases {
            pair.measure(case, self.plan.warm_up)?;
            found.push(pair.measure(case, self.plan.turn)?);
        }
        pair.end()?;
        Ok(found)
    }

    /// What each receiver costs while nothing is sent.
    fn idle(&mut self, contenders: &[Contender]) -> Result<(), RunError> {
        let placement =
            if self.cpus.second.is_some() { Placement::TwoCores } else { Placement::OneCore };
        for &contender in contenders.iter().filter(|contender| **contender != LIMIT) {
            self.progress.say("idle", contender.name);
            let rest = |runner: &mut Self| {
                let mut pair = runner.pair(contender, placement)?;
                pair.measure(Case::OneWay(0), runner.plan.warm_up)?;
                let found = pair.rest(runner.plan.idle)?;
                pair.end()?;
                Ok(found)
            };
            match rest(self) {
                Ok((cpu_ns_per_s, memory_kib)) => {
                    self.report.idle.push(Idle { system: contender.name, cpu_ns_per_s, memory_kib })
                }
                Err(ChildError::Interrupted) => return Err(RunError::Interrupted),
                Err(error) => self.report.failures.push(format!("idle: {error}")),
            }
        }
        Ok(())
    }

    fn pair(&mut self, contender: Contender, placement: Placement) -> Result<Pair<'a>, ChildError> {
        self.pairs += 1;
        let sender = self.cpus.first;
        let receiver =
            self.cpus.second.filter(|_| placement == Placement::TwoCores).unwrap_or(sender);
        let exe = self.programs.path(contender.program);
        let dir: PathBuf = self.scratch.dir.join(self.pairs.to_string());
        Pair::start(
            &Spec { exe, contender, placement, cpus: (sender, receiver), dir },
            self.interrupted,
        )
    }

    /// Leaves the turns that may be compared, where two processors are.
    fn leave_like(&mut self, testers: &mut [Tester]) {
        let two = |tester: &&mut Tester| tester.placement == Placement::TwoCores;
        let probes: Vec<Vec<_>> = testers
            .iter_mut()
            .filter(two)
            .map(|tester| tester.turns.iter().map(|turn| turn.lines).collect())
            .collect();
        let like = self.like("two-cores", &probes);
        testers
            .iter_mut()
            .filter(two)
            .for_each(|tester| tester.turns.retain(|turn| like.has(turn.lines)));
    }

    /// Which turns of `what` may be compared, by their probes, if the host moved the processors
    /// meanwhile; says so in the report.
    fn like(&mut self, what: &str, probes: &[Vec<(f64, f64)>]) -> Like {
        let like = Like::of(probes);
        let all = probes.iter().flatten().count();
        let (least, most) = Like::span(probes.iter().flatten());
        let left: Vec<_> = probes.iter().flatten().filter(|lines| like.has(**lines)).collect();
        if left.len() < all {
            let (from, to) = Like::span(left.iter().copied());
            self.report.notes.push(format!(
                "{what}: the line took {least:.0} to {most:.0} ns; only the {} of {all} turns beside {from:.0} to {to:.0} ns count",
                left.len()
            ));
        } else if like.moved() {
            self.report.notes.push(format!(
                "{what}: the line took {least:.0} to {most:.0} ns, and not like turns are compared"
            ));
        }
        like
    }
}

/// The records of a tester.
fn recorded(tester: &Tester) -> Vec<Record> {
    let mut records = Vec::new();
    for (at, case) in tester.cases.iter().enumerate().filter(|_| !tester.turns.is_empty()) {
        let name = case.name();
        let Contender { name: system, mode, .. } = tester.contender;
        let label =
            Label { suite: "messages", case: &name, system, placement: tester.placement, mode };
        let (mut times, mut rates): (Vec<Turn<Summary>>, Vec<Turn<Throughput>>) =
            Default::default();
        for Turn { found, lines } in &tester.turns {
            match found[at] {
                Some(Found::Times(found)) => times.push(Turn { found, lines: *lines }),
                Some(Found::Rate(found)) => rates.push(Turn { found, lines: *lines }),
                None => {}
            }
        }
        records.extend((!times.is_empty()).then(|| label.latency(&times)));
        records.extend((!rates.is_empty()).then(|| label.throughput(1, &rates)));
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_of_a_turn_has_a_record() {
        let times = Found::Times(Summary {
            p50_ns: 5.0,
            p99_ns: 6.0,
            p999_ns: 7.0,
            mean_ns: 5.0,
            count: 10,
        });
        let rate = Found::Rate(Throughput { calls: 1000, elapsed_ns: 10_000 });
        let turn = |line| Turn { found: vec![Some(times), None, Some(rate)], lines: (line, line) };
        let (contender, placement) = (LIMIT, Placement::TwoCores);
        let tester = Tester {
            contender,
            placement,
            cases: vec![Case::Send(4), Case::Send(16), Case::Rate],
            turns: vec![turn(90.0), turn(110.0)],
            out: false,
        };
        let records = recorded(&tester);
        let told: Vec<_> = records
            .iter()
            .map(|record| (record.case.as_str(), record.p50_ns, record.per_s))
            .collect();
        assert_eq!(told, [("send-4", 5.0, 2e8), ("rate-8", 10.0, 1e8)]);
        assert!(
            records
                .iter()
                .all(|record| record.line_ns == Some(100.0) && record.suite == "messages")
        );
        assert!(recorded(&Tester { turns: Vec::new(), ..tester }).is_empty());
    }
}
