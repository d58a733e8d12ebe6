//! The suite `pvm`: the experiments of UPVM's section 4, by user-level processes and by PVM's and
//! MPI's processes.
//!
//! All systems run the same C program (bench/pvm), compiled for Upcall and PVM, and for MPI. Each
//! run of the program is one turn, which prints a line of figures. The contenders ([`contender`]):
//!
//! * `upcall`: tasks in one process on one processor. `upcall-2`: in two processes, each on a
//!   processor of its own, neighbours together; `upcall-2-interleave`: neighbours apart.
//! * `limit`: a procedure call, and two processes with a pair of pipes (Figure 2).
//! * The peers: Debian's PVM through its daemon and directly, Open MPI and MPICH, which spin where
//!   each process has a processor, and Open MPI with `mpi_yield_when_idle` where all share one; and
//!   AMPI, whose ranks are user-level threads: of one process, or of two (`ampi-2`).
//!
//! Checkpoints, restarts and the processor that goes are asked for by the harness, with commands of
//! `upcall pvm` beside the running program ([`saved`], [`away`]).
//!
//! In each round all contenders of a case take turns before the next case, and the cache line is
//! probed between turns. The figures are medians over the rounds. On two processors, only turns of
//! one placement of the processors count ([`Like`]). The programs rewrite and check payloads; a
//! program that finds a wrong one ends with an error, which is reported.

pub mod ampi;
mod away;
mod bars;
pub mod case;
pub mod child;
pub mod contender;
pub(crate) mod machine;
pub mod paper;
pub(crate) mod programs;
pub(crate) mod run;
mod saved;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use self::case::Case;
use self::contender::{Contender, Named, OURS, PEERS};
use self::programs::Programs;
use self::run::{Found, Turns};
use crate::case::Placement;
use crate::error::RunError;
use crate::like::Like;
use crate::record::{Label, Record, Turn, tenths};
use crate::report::Report;
use crate::run::{Rounds, Run, Said, Series};
use crate::stats::{Summary, median};
use crate::suite::{Offer, Only, Suite};
use crate::table::Table;

/// The suite.
#[derive(Debug, Clone)]
pub struct Pvm {
    /// The command `upcall`, which runs `pvm run`.
    pub upcall: PathBuf,
}

/// Takes five minutes without peers and ten to twelve with all. Keeps two processors busy. A
/// contender that fails in a case stops neither the others nor its own other cases.
impl Suite for Pvm {
    const NAME: &'static str = "pvm";
    const OFFERS: &'static [Offer] = &[
        Offer::System("Only this system, for example `upcall-2` or `pvm-direct`; may be repeated"),
        Offer::Case("Only this case, for example `ring-24` or `start-100`; may be repeated"),
        Offer::Placement("Only this placement: `two-cores` or `one-core`"),
        Offer::Plot(
            "Draw switches, messages, the ring and Laplace's equation, beside the paper's \
            figures, and checkpoints, into this folder, as SVG files",
        ),
    ];
    const TABLES: &'static [&'static str] = &table::TABLES;
    type Peer = Named;

    fn cases(&self) -> Vec<String> {
        Case::all().map(Case::name).collect()
    }

    fn systems(&self) -> Vec<String> {
        let mut systems: Vec<String> = Vec::new();
        for one in OURS.iter().chain(&PEERS) {
            if !systems.iter().any(|name| name == one.name) {
                systems.push(one.name.to_owned());
            }
        }
        systems
    }

    fn measure(&self, peers: Vec<Named>, run: &mut Run<'_>) -> Result<(), RunError> {
        let only = run.only;
        let peers = PEERS.into_iter().filter(|peer| peers.contains(&Named(peer.name)));
        let mut contenders: Vec<Contender> = OURS.into_iter().chain(peers).collect();
        contenders.retain(|contender| Case::all().any(|case| has(only, contender, case)));
        contenders.retain(|contender| run.has_room(contender.placement));
        let programs = Programs::of(&mut contenders, run.exe, run.dir)?;
        run.report.notes.extend(programs.notes.iter().cloned());
        run.report.failures.extend(programs.failures.iter().cloned());
        let all = Case::all().flat_map(|case| {
            let of = contenders.iter().filter(move |contender| has(only, contender, case));
            of.map(move |&contender| (contender, case))
        });
        let mut series: Vec<Measured> = all.map(Series::of).collect();
        let (rounds, millis, idle) = if run.quick { (1, 20, 200) } else { (3, 300, 2000) };
        let [time, idle] = [millis, idle].map(Duration::from_millis);
        let mut turns = Turns {
            upcall: &self.upcall,
            programs: &programs,
            time,
            idle,
            machine: None,
            grid: None,
            sums: BTreeMap::new(),
        };
        let say = |round, (contender, case): &(Contender, Case)| Said {
            what: format!("round {round} of {rounds}, {case}"),
            detail: format!("{}, {}", contender.name, contender.placement),
            fault: case.name(),
        };
        let turn = |run: &mut Run<'_>, (contender, case): &mut (Contender, Case)| {
            turns.take(contender, *case, run).map(Some)
        };
        run.rounds(&Rounds::count(rounds, 0..100), &mut series, say, turn)?;
        recorded(&mut series, &mut run.report);
        Ok(())
    }

    fn tables(report: &Report) -> Vec<Table> {
        table::tables(report)
    }
}

/// A contender in a case.
type Measured = Series<(Contender, Case), Found>;

/// Returns `true` if a contender is measured in a case.
fn has(only: &Only, contender: &Contender, case: Case) -> bool {
    only.system(contender.name)
        && only.case(&case.name())
        && only.placement(contender.placement)
        && contender.takes_part(case)
}

/// Makes the records of the turns that may be compared.
fn recorded(series: &mut [Measured], report: &mut Report) {
    let (mut all, mut left) = (0, 0);
    for case in Case::all() {
        let two = |one: &&mut Measured| {
            let (contender, of) = one.of;
            of == case && contender.placement == Placement::TwoCores
        };
        let probes = series
            .iter_mut()
            .filter(two)
            .map(|one| one.turns.iter().map(|turn| turn.lines).collect());
        let like = Like::of(&probes.collect::<Vec<Vec<_>>>());
        for one in series.iter_mut().filter(two) {
            all += one.turns.len();
            one.turns.retain(|turn| like.has(turn.lines));
            left += one.turns.len();
        }
    }
    if left < all {
        report.notes.push(format!(
            "the host moved the processors: only {left} of {all} turns on two of them count, \
            those of each case that were alike"
        ));
    }
    report.records.extend(series.iter().filter(|one| !one.turns.is_empty()).map(record));
}

fn record(Series { of: (contender, case), turns, .. }: &Measured) -> Record {
    let name = case.name();
    let Contender { name: system, placement, mode, .. } = *contender;
    let label = Label { suite: Pvm::NAME, case: &name, system, placement, mode };
    let times: Vec<Turn<Summary>> =
        turns.iter().map(|turn| Turn { found: turn.found.times, lines: turn.lines }).collect();
    let over = |of: fn(&Found) -> Option<f64>| {
        let all: Option<Vec<f64>> = turns.iter().map(|turn| of(&turn.found)).collect();
        all.map(|all| tenths(median(&all)))
    };
    let of_case = label.latency(&times);
    let alone_ns = match case {
        // The part that is lost is a turn's own: another turn may run on faster processors.
        Case::ProcessorAway => {
            let part = over(|found| Some(1e3 * found.alone_ns? / found.times.mean_ns));
            part.map(|part| tenths(part / 1e3 * of_case.mean_ns))
        }
        _ => over(|found| found.alone_ns),
    };
    Record {
        // Idle tasks complete no operations.
        per_s: if matches!(case, Case::Idle(_)) { 0.0 } else { of_case.per_s },
        bare_ns: over(|found| found.bare_ns),
        memcpy_ns: over(|found| found.memcpy_ns),
        alone_ns,
        pause_ns: over(|found| found.pause_ns),
        bytes_each: over(|found| found.bytes_each).map(f64::round),
        ..of_case
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(contender: Contender, case: Case, turns: &[(f64, f64)]) -> Measured {
        let turn = |&(ns, line): &(f64, f64)| {
            let times = Summary::flat(ns, 5);
            let found = Found { bare_ns: Some(3.0), memcpy_ns: Some(1.0), ..Found::of(times) };
            Turn { found, lines: (line, line) }
        };
        Series { turns: turns.iter().map(turn).collect(), ..Series::of((contender, case)) }
    }

    #[test]
    fn turns_of_one_placement_count_on_two_processors() {
        let near = [(100.0, 90.0), (900.0, 450.0), (110.0, 95.0)];
        let mut all = [
            series(PEERS[5], Case::OneWay(1000), &near),
            series(OURS[3], Case::OneWay(1000), &near),
            series(OURS[2], Case::OneWay(1000), &near),
        ];
        let mut report = Report::default();
        recorded(&mut all, &mut report);
        let told: Vec<_> = report
            .records
            .iter()
            .map(|r| (r.system.as_str(), r.p50_ns, r.samples, r.bare_ns))
            .collect();
        assert_eq!(
            told,
            [
                ("openmpi", 105.0, 10, Some(3.0)),
                ("upcall-2", 105.0, 10, Some(3.0)),
                ("upcall", 110.0, 15, Some(3.0))
            ]
        );
        assert!(report.notes[0].contains("only 4 of 6 turns"), "{:?}", report.notes);
    }

    #[test]
    fn the_form_is_the_agreed_one() {
        let json =
            serde_json::to_string(&record(&series(OURS[2], Case::OneWay(0), &[(150.0, 90.0)])))
                .unwrap();
        assert_eq!(
            json,
            "{\"suite\":\"pvm\",\"case\":\"one-way-0\",\"system\":\"upcall\",\
             \"placement\":\"one-core\",\"mode\":\"parked\",\
             \"p50_ns\":150.0,\"p99_ns\":150.0,\"p999_ns\":150.0,\"mean_ns\":150.0,\
             \"per_s\":6666666.7,\"samples\":5,\
             \"line_ns\":90.0,\"bare_ns\":3.0,\"memcpy_ns\":1.0}"
        );
        assert_eq!(record(&series(OURS[2], Case::Idle(24), &[(0.0, 90.0)])).per_s, 0.0);
    }

    #[test]
    fn what_a_processor_away_costs_is_a_part_of_its_own_turn() {
        let mut one = series(OURS[3], Case::ProcessorAway, &[(100.0, 9.0); 3]);
        for (turn, (mean_ns, alone_ns)) in
            one.turns.iter_mut().zip([(100.0, 90.0), (200.0, 190.0), (400.0, 392.0)])
        {
            turn.found.times.mean_ns = mean_ns;
            turn.found.alone_ns = Some(alone_ns);
        }
        let record = record(&one);
        let part = record.alone_ns.unwrap() / record.mean_ns;
        assert!((part - 0.95).abs() < 1e-3, "{part}");
    }

    #[test]
    fn a_part_of_the_suite() {
        let only = Only {
            systems: vec!["pvm".into()],
            cases: vec!["ring-2".into()],
            placements: vec![Placement::OneCore],
        };
        let all = OURS.iter().chain(&PEERS);
        let all = all.flat_map(|one| Case::all().filter(|case| has(&only, one, *case)));
        assert_eq!(all.count(), 1);
    }
}
