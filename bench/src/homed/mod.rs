//! The suite `homed`: operations on objects with a home by every method, as in Psyche's section 5
//! (P9 to P13).
//!
//! The home and the users of its object are processes, the home on one processor and one caller on
//! another; for several users at once, see [`case::Case::Throughput`]. One turn of a [`case`] is
//! one child with its other processes, which measures all methods of the case one after the other
//! ([`child`], [`lab`](crate::lab)), so that compared measurements are within a fraction of a
//! second. The cases take turns, round by round, and the cache line is probed between turns. The
//! figures are medians over the rounds, of turns of one placement of the processors only. This
//! crate does not depend on Upcall: the benchmark program answers to `bench-homed`.
//!
//! The figures that are drawn and reported beside the paper's are computed from the records
//! ([`paper`]).

pub mod case;
pub mod child;
pub mod paper;
#[allow(unsafe_code)]
pub mod raw;
mod table;

use std::process::Command;
use std::time::{Duration, Instant};

use self::case::{Case, way};
use self::child::{Finding, Task, arguments};
use crate::case::{Mode, Placement};
use crate::error::RunError;
use crate::peers::NoPeer;
use crate::process::{ChildError, Process};
use crate::record::{Label, Record, Turn};
use crate::report::Report;
use crate::run::{Rounds, Run, Said, Series};
use crate::suite::{Offer, Suite};
use crate::table::Table;

/// Maximum time for a child to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum time for a child to end.
const END: Duration = Duration::from_secs(10);

/// The suite.
#[derive(Debug, Clone, Default)]
pub struct Homed;

/// Takes about a minute and a half. Keeps two processors busy.
impl Suite for Homed {
    const NAME: &'static str = "homed";
    const OFFERS: &'static [Offer] = &[
        Offer::Case("Only this case, for example `find-last-10` or `break-even`; may be repeated"),
        Offer::Plot(
            "Draw Table 1, Figures 3 to 5, throughput and break-even, beside the paper's figures, \
            into this folder, as SVG files",
        ),
    ];
    const TABLES: &'static [&'static str] = &table::TABLES;
    type Peer = NoPeer;

    fn cases(&self) -> Vec<String> {
        Case::all().into_iter().map(Case::name).collect()
    }

    fn measure(&self, _: Vec<NoPeer>, run: &mut Run<'_>) -> Result<(), RunError> {
        let Some(second) = run.cpus.second else {
            let note = "this process may use one processor only: nothing was measured";
            run.report.notes.push(note.to_owned());
            return Ok(());
        };
        let (rounds, millis) = if run.quick { (2, 2) } else { (9, 15) };
        let (cpus, time) = ([run.cpus.first, second], Duration::from_millis(millis));
        let cases = Case::all().into_iter().filter(|case| run.only.case(&case.name()));
        let mut series: Vec<_> = cases.map(Series::of).collect();
        let say = |round, case: &Case| Said {
            what: format!("round {round} of {rounds}"),
            detail: case.name(),
            fault: String::new(),
        };
        let turn = |run: &mut Run<'_>, &mut case: &mut Case| {
            turn(&Task { case, cpus, time, group: 0 }, run).map(Some)
        };
        run.rounds(&Rounds::count(rounds, 0..100), &mut series, say, turn)?;
        run.leave_like("", &mut series);
        run.report.records.extend(series.iter().flat_map(|one| recorded(&one.turns)));
        Ok(())
    }

    fn tables(report: &Report) -> Vec<Table> {
        table::tables(report)
    }
}

/// Runs a child and returns its findings.
fn turn(task: &Task, run: &Run<'_>) -> Result<Vec<Finding>, ChildError> {
    let mut command = Command::new(run.exe);
    // Without a backtrace the reason is the last line; the harness shows the last lines.
    command.args(arguments(task)).env("RUST_BACKTRACE", "0").env("TMPDIR", run.dir);
    let mut process = Process::start(command, task.case.name(), run.dir.join("homed.stderr"))?;
    let line = process.line("its case", Instant::now() + PATIENCE, run.interrupted)?;
    process.finding(&line, END, run.interrupted)
}

/// Makes the records of a case.
fn recorded(turns: &[Turn<Vec<Finding>>]) -> Vec<Record> {
    let mut names: Vec<(&str, &str)> = Vec::new();
    for finding in turns.iter().flat_map(|turn| &turn.found) {
        let name = (&*finding.case, &*finding.system);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let of = |(case, system): (&str, &str)| {
        let (placement, mode) = (Placement::TwoCores, mode(system));
        let label = Label { suite: Homed::NAME, case, system, placement, mode };
        let is = |finding: &&Finding| (&*finding.case, &*finding.system) == (case, system);
        let callers = turns.iter().flat_map(|turn| &turn.found).find(is)?.callers;
        label.found(callers, turns, |found| found.iter().find(is).map(|one| one.found))
    };
    names.into_iter().filter_map(of).collect()
}

/// Returns how the home waits.
fn mode(system: &str) -> Mode {
    if [way::URGENT_BACKGROUND, way::INVOKE_BACKGROUND].contains(&system) {
        Mode::Parked
    } else {
        Mode::Polling
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found::Throughput;
    use crate::stats::Summary;

    #[test]
    fn every_finding_has_a_record() {
        let times = |ns| Summary { p99_ns: 2.0 * ns, p999_ns: 3.0 * ns, ..Summary::flat(ns, 10) };
        let turn = |ns, line| Turn {
            found: vec![
                Finding::times("find-last-5", way::ACCESS, times(ns)),
                Finding::times("find-last-5", way::URGENT_BACKGROUND, times(ns)),
                Finding::rate(
                    "throughput-counter-8",
                    way::SPIN,
                    8,
                    Throughput::new(100, Duration::from_nanos(500)),
                ),
            ],
            lines: (line, line),
        };
        let records = recorded(&[turn(5.0, 90.0), turn(7.0, 110.0)]);
        let told: Vec<_> = records
            .iter()
            .map(|record| (record.system.as_str(), record.p50_ns, record.mode))
            .collect();
        assert_eq!(
            told,
            [
                ("access", 6.0, Mode::Polling),
                ("urgent-background", 6.0, Mode::Parked),
                ("spin-lock", 40.0, Mode::Polling)
            ]
        );
        assert!(
            records.iter().all(|record| record.line_ns == Some(100.0) && record.suite == "homed")
        );
        assert!(recorded(&[]).is_empty());
    }
}
