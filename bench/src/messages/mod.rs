//! The suite `messages`: UDM's Table 4 (D14), and figures that users of queues ask for besides, of
//! messages between two processes.
//!
//! A sender and a receiver run as processes on a processor each, and for the ping-pong also both on
//! one. The contenders:
//!
//! * `limit`: a bare queue in shared memory without any checks ([`floor`]).
//! * Upcall ([`contender::OURS`]).
//! * The peers: UCX's active messages and its tag matching, Open MPI, and iceoryx2's publish and
//!   subscribe.
//!
//! The cases are in [`case`]. The same program ([`driver`]) measures every system
//! ([`child::System`]): payloads are rewritten and checked, counts and sums are compared.
//!
//! One turn of a system is one pair of processes, which is measured in all cases, so that the
//! figures of one system are taken within half a second. All systems take turns, round by round,
//! and the cache line is probed between turns. The figures are medians over the rounds. If the host
//! moves the processors in between, only turns of one placement count where two processors are
//! compared.
//!
//! A second part measures what only Upcall provides ([`own`]).

pub mod case;
pub mod child;
pub mod contender;
mod driver;
mod floor;
pub mod own;
mod pair;
#[allow(unsafe_code)]
pub(crate) mod raw;
mod table;

use std::time::Duration;

use self::case::Case;
use self::child::Entry;
use self::contender::{Contender, LIMIT, OURS, PEERS, Program};
use self::own::case::Own;
use self::pair::{Pair, Spec};
use crate::case::Placement;
use crate::error::RunError;
pub use crate::found::Found;
use crate::process::ChildError;
use crate::programs::Programs;
use crate::record::{Label, Record};
use crate::report::{Idle, Report};
use crate::run::{Rounds, Run, Said, Series};
use crate::suite::{Offer, Only, Suite};
use crate::table::Table;

/// The systems of this crate, for the benchmark program's table (see [`child::child_main`]).
pub const SYSTEMS: [Entry; 1] = [Entry::of::<floor::Floor>()];

/// Approximate share of the first part in the time of a run that has both, in percent.
const FIRST: u32 = 25;

/// Durations of a run.
struct Plan {
    rounds: usize,
    /// One case in one turn, and the preceding warm-up.
    turn: Duration,
    warm_up: Duration,
    idle: Duration,
}

impl Plan {
    fn of(quick: bool) -> Plan {
        let ms = Duration::from_millis;
        match quick {
            true => Plan { rounds: 2, turn: ms(4), warm_up: ms(1), idle: ms(200) },
            false => Plan { rounds: 9, turn: ms(24), warm_up: ms(5), idle: ms(1000) },
        }
    }
}

/// A contender in a placement, with its cases.
struct Tester {
    contender: Contender,
    placement: Placement,
    cases: Vec<Case>,
}

/// A finding for each case of a tester that the contender supports.
type Turned = Vec<Option<Found>>;

/// The suite.
#[derive(Debug, Clone, Default)]
pub struct Messages {
    /// Number of messages of the case `exactly-once`; `None` for the default.
    pub messages: Option<u64>,
}

/// Takes about two minutes, one and a half of them for Upcall's own cases, and a quarter of a
/// minute more for each peer. Keeps two processors busy.
impl Suite for Messages {
    const NAME: &'static str = "messages";
    const OFFERS: &'static [Offer] = &[
        Offer::System("Only this system; may be repeated"),
        Offer::Case("Only this case, for example `send-0` or `upcall-idle`; may be repeated"),
        Offer::Placement("Only this placement: `two-cores` or `one-core`"),
        Offer::Plot(
            "Draw UDM's Figure 7 (synth-N), Table 6 (tpuz) and Table 5 (buffered), beside the \
            paper's figures, into this folder, as SVG files",
        ),
    ];
    const TABLES: &'static [&'static str] = &table::TABLES;
    type Peer = Contender;

    fn cases(&self) -> Vec<String> {
        Case::all().map(Case::name).chain(Own::ALL.map(|own| own.name().to_owned())).collect()
    }

    fn systems(&self) -> Vec<String> {
        let all = [LIMIT].into_iter().chain(OURS).chain(PEERS);
        all.map(|contender| contender.name.to_owned()).collect()
    }

    fn measure(&self, peers: Vec<Contender>, run: &mut Run<'_>) -> Result<(), RunError> {
        let only = run.only;
        let mut contenders = [&[LIMIT][..], &OURS, &peers].concat();
        // Upcall's own cases need no other system.
        let others = Case::all().any(|case| only.case(&case.name()));
        contenders.retain(|contender| only.system(contender.name) && others);
        let programs = contender::programs(&mut contenders, run.exe)?;
        programs.say(&mut run.report);
        let own = own_cases(only);
        let runner = Runner { programs, plan: Plan::of(run.quick) };
        if only.cases.is_empty() && only.placements.is_empty() {
            runner.idle(&contenders, run)?;
        }
        runner.suite(&contenders, if own.is_empty() { 100 } else { FIRST }, run)?;
        let percent = if run.report.records.is_empty() { 0 } else { FIRST };
        own::measure(&own, self.messages, percent, run)
    }

    fn tables(report: &Report) -> Vec<Table> {
        table::tables(report)
    }
}

/// Returns the cases of a placement.
fn cases(only: &Only, placement: Placement) -> Vec<Case> {
    let wished = |case: &Case| {
        only.placement(placement) && case.is_for(placement) && only.case(&case.name())
    };
    Case::all().filter(wished).collect()
}

/// Returns Upcall's own cases.
fn own_cases(only: &Only) -> Vec<Own> {
    let ours =
        only.placement(Placement::TwoCores) && OURS.iter().any(|ours| only.system(ours.name));
    Own::ALL.into_iter().filter(|own| ours && only.case(own.name())).collect()
}

/// The durations and programs of the first part.
struct Runner {
    programs: Programs<Program>,
    plan: Plan,
}

impl Runner {
    /// Measures the first part, which ends at `percent` of the run.
    fn suite(
        &self,
        contenders: &[Contender],
        percent: u32,
        run: &mut Run<'_>,
    ) -> Result<(), RunError> {
        let mut testers: Vec<Series<Tester, Turned>> = Vec::new();
        for placement in [Placement::TwoCores, Placement::OneCore] {
            let cases = cases(run.only, placement);
            if cases.is_empty() || !run.has_room(placement) {
                continue;
            }
            let tester = |&contender| Tester { contender, placement, cases: cases.clone() };
            testers.extend(contenders.iter().map(tester).map(Series::of));
        }
        let most = self.plan.rounds;
        let say = |round, tester: &Tester| Said {
            what: format!("round {round} of {most}"),
            detail: format!("{}, {}", tester.contender.name, tester.placement),
            fault: String::new(),
        };
        let turn = |run: &mut Run<'_>, tester: &mut Tester| self.turn(tester, run).map(Some);
        run.rounds(&Rounds::count(most, 0..percent), &mut testers, say, turn)?;
        let two = testers.iter_mut().filter(|one| one.of.placement == Placement::TwoCores);
        run.leave_like("two-cores", two);
        run.report.records.extend(testers.iter().flat_map(recorded));
        Ok(())
    }

    /// Measures all cases by one pair.
    fn turn(&self, tester: &Tester, run: &mut Run<'_>) -> Result<Turned, ChildError> {
        let mut pair = self.pair(tester.contender, tester.placement, run)?;
        let mut found = Vec::new();
        for &case in &tester.cases {
            pair.measure(case, self.plan.warm_up)?;
            found.push(pair.measure(case, self.plan.turn)?);
        }
        pair.end()?;
        Ok(found)
    }

    /// Measures the cost of each receiver while nothing is sent.
    fn idle(&self, contenders: &[Contender], run: &mut Run<'_>) -> Result<(), RunError> {
        for &contender in contenders.iter().filter(|contender| **contender != LIMIT) {
            run.progress.say("idle", contender.name);
            let found = self.rest(contender, run);
            let idle = run.unless_failed("idle", found)?;
            run.report.idle.extend(idle);
        }
        Ok(())
    }

    fn rest(&self, contender: Contender, run: &mut Run<'_>) -> Result<Idle, ChildError> {
        let placement =
            if run.cpus.second.is_some() { Placement::TwoCores } else { Placement::OneCore };
        let mut pair = self.pair(contender, placement, run)?;
        pair.measure(Case::OneWay(0), self.plan.warm_up)?;
        let (cpu_ns_per_s, memory_kib) = pair.rest(self.plan.idle)?;
        pair.end()?;
        let Contender { name: system, mode, .. } = contender;
        Ok(Idle { system: system.to_owned(), mode, cpu_ns_per_s, memory_kib: memory_kib.into() })
    }

    fn pair<'a>(
        &self,
        contender: Contender,
        placement: Placement,
        run: &mut Run<'a>,
    ) -> Result<Pair<'a>, ChildError> {
        let exe = self.programs.path(contender.program);
        let cpus = (run.cpus.first, run.other(placement));
        let spec = Spec { exe, contender, placement, cpus, dir: run.folder() };
        Pair::start(&spec, run.interrupted)
    }
}

/// Makes the records of a tester.
fn recorded(Series { of: tester, turns, .. }: &Series<Tester, Turned>) -> Vec<Record> {
    let Contender { name: system, mode, .. } = tester.contender;
    let record = |(at, case): (usize, &Case)| {
        let (case, placement) = (&case.name(), tester.placement);
        let label = Label { suite: Messages::NAME, case, system, placement, mode };
        label.found(1, turns, |found| found[at])
    };
    tester.cases.iter().enumerate().filter_map(record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found::Throughput;
    use crate::record::Turn;
    use crate::stats::Summary;

    #[test]
    fn every_case_of_a_turn_has_a_record() {
        let times = Found::Times(Summary::flat(5.0, 10));
        let rate = Found::Rate(Throughput { calls: 1000, elapsed_ns: 10_000 });
        let turn = |line| Turn { found: vec![Some(times), None, Some(rate)], lines: (line, line) };
        let (contender, placement) = (LIMIT, Placement::TwoCores);
        let tester =
            Tester { contender, placement, cases: vec![Case::Send(4), Case::Send(16), Case::Rate] };
        let mut series = Series::of(tester);
        series.turns = vec![turn(90.0), turn(110.0)];
        let records = recorded(&series);
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
        series.turns.clear();
        assert!(recorded(&series).is_empty());
    }

    #[test]
    fn a_part_of_the_suite() {
        let only = Only { cases: vec!["send-0".into(), "one-way-8".into()], ..Only::default() };
        assert_eq!(cases(&only, Placement::TwoCores), [Case::Send(0), Case::OneWay(8)]);
        assert_eq!(cases(&only, Placement::OneCore), [Case::OneWay(8)]);
        assert!(own_cases(&only).is_empty() && own_cases(&Only::default()) == Own::ALL);
        let only = Only {
            cases: vec!["stopped".into()],
            systems: vec!["upcall".into()],
            ..Only::default()
        };
        assert_eq!(own_cases(&only), [Own::Stopped]);
        assert!(cases(&only, Placement::TwoCores).is_empty());
        assert!(own_cases(&Only { systems: vec!["limit".into()], ..only }).is_empty());
        let only = Only { placements: vec![Placement::OneCore], ..Only::default() };
        let count = |placement| cases(&only, placement).len();
        assert_eq!((count(Placement::TwoCores), count(Placement::OneCore)), (0, 4));
        assert!(own_cases(&only).is_empty());
    }
}
