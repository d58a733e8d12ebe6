//! The suite `pvm`: the experiments of UPVM's section 4, by user-level processes and by PVM's and
//! MPI's processes.
//!
//! One C program is run by all systems (bench/pvm), once for ours and PVM, once for MPI: each run
//! of it is one turn, which tells a line of figures. Who takes part ([`contender`]):
//!
//! * `upcall`: tasks in one process on one processor. `upcall-2`: in two processes, each on a
//!   processor of its own, neighbours together; `upcall-2-interleave`: neighbours apart.
//! * `limit`: a procedure call, and two processes with a pair of pipes (Figure 2).
//! * The peers: Debian's PVM by its daemon and directly, Open MPI and MPICH, which spin where each
//!   process has a processor, and Open MPI with `mpi_yield_when_idle` where all have one together.
//!
//! In each round all contenders of a case take turns before the next case, and the cache line is
//! probed between turns. What counts are medians over the rounds. Of those on two processors only
//! turns count of one placement of the processors ([`Like`]). Payloads are written afresh and
//! checked by the programs; one that finds something wrong ends with an error, which is reported.

pub mod bars;
pub mod case;
pub mod child;
pub mod contender;
mod machine;
mod options;
pub mod paper;
mod programs;
mod run;
mod table;

use std::time::Duration;

use self::case::Case;
use self::contender::{Contender, OURS, PEERS};
pub use self::options::{Only, Options, Peers};
use self::programs::Programs;
use self::run::{Found, Turns};
use crate::case::Placement;
pub use crate::error::RunError;
use crate::interrupted::Interrupted;
use crate::like::Like;
use crate::line;
use crate::output;
use crate::place::Cpus;
use crate::process::ChildError;
use crate::progress::Progress;
use crate::record::{Label, Record, Turn, tenths};
use crate::report::{Report, busy};
use crate::scratch::Scratch;
use crate::stats::{Summary, median};

/// A contender in a case.
struct Series {
    contender: Contender,
    case: Case,
    turns: Vec<Turn<Found>>,
    /// It cannot go on.
    out: bool,
}

/// Runs the suite, shows progress on standard error, prints tables on standard output and writes
/// the records where `options` say. Takes a minute and a half without peers and six to eight with
/// all, and busies two processors meanwhile. Leaves no process and no file behind.
///
/// # Errors
/// [`RunError`]. A contender that fails in a case is in the report's `failures`, and stops neither
/// others nor its own other cases.
pub fn run(options: &Options) -> Result<Report, RunError> {
    options.only.check()?;
    let cpus = Cpus::allowed().map_err(RunError::System)?;
    let mut report = Report { notes: busy().into_iter().collect(), ..Report::default() };
    let peers = options.peers.names();
    let peers = PEERS.into_iter().filter(|peer| peers.contains(&peer.name));
    let mut contenders: Vec<Contender> = OURS.into_iter().chain(peers).collect();
    contenders.retain(|contender| Case::all().any(|case| options.only.has(contender, case)));
    let all = contenders.len();
    contenders
        .retain(|contender| contender.placement == Placement::OneCore || cpus.second.is_some());
    if contenders.len() < all {
        report.notes.push(
            "this process may use one processor only: nothing of two-cores was measured".to_owned(),
        );
    }
    let interrupted = Interrupted::watch().map_err(RunError::System)?;
    let scratch = Scratch::make()?;
    let programs = Programs::of(&mut contenders, &options.exe, &scratch.dir)?;
    report.notes.extend(programs.notes.iter().cloned());
    report.failures.extend(programs.failures.iter().cloned());

    let series = Case::all().flat_map(|case| {
        let of = contenders.iter().filter(move |contender| options.only.has(contender, case));
        of.map(move |&contender| Series { contender, case, turns: Vec::new(), out: false })
    });
    let mut series: Vec<Series> = series.collect();
    let (rounds, millis, idle) = if options.quick { (1, 20, 200) } else { (3, 300, 2000) };
    let [time, idle] = [millis, idle].map(Duration::from_millis);
    let turns = Turns {
        exe: &options.exe,
        upcall: &options.upcall,
        dir: &scratch.dir,
        cpus,
        programs: &programs,
        interrupted: &interrupted.flag,
        time,
        idle,
        machine: None,
        pairs: 0,
    };
    all_turns(&mut series, turns, rounds, &mut report)?;
    recorded(&mut series, &mut report);
    if report.records.is_empty() && report.failures.is_empty() && report.notes.is_empty() {
        return Err(RunError::Nothing);
    }
    let json = options.json.as_deref();
    output::asides(json, &report.notes, &report.failures);
    output::table(json, |out, colour| table::print(&report, out, colour))?;
    output::records(json, &report.records)?;
    Ok(report)
}

/// Round by round.
fn all_turns(
    series: &mut [Series],
    mut turns: Turns<'_>,
    rounds: usize,
    report: &mut Report,
) -> Result<(), RunError> {
    let mut progress = Progress::new();
    let (cpus, count) = (turns.cpus, series.len());
    let mut before = line::round_trip_ns(&cpus);
    for round in 0..rounds {
        for (at, one) in series.iter_mut().enumerate().filter(|(_, one)| !one.out) {
            progress.percent = (100 * (round * count + at) / (rounds * count)) as u32;
            let Series { contender, case, .. } = *one;
            let detail = format!("{}, {}", contender.name, contender.placement);
            progress.say(&format!("round {} of {rounds}, {case}", round + 1), &detail);
            let found = turns.take(&contender, case);
            let after = line::round_trip_ns(&cpus);
            match found {
                Ok(found) => one.turns.push(Turn { found, lines: (before, after) }),
                Err(ChildError::Interrupted) => return Err(RunError::Interrupted),
                Err(error) => {
                    report.failures.push(format!("{case}: {error}"));
                    one.out = true;
                }
            }
            before = after;
        }
    }
    progress.clear();
    Ok(())
}

/// Records of the turns that may be compared.
fn recorded(series: &mut [Series], report: &mut Report) {
    let (mut all, mut left) = (0, 0);
    for case in Case::all() {
        let two =
            |one: &&mut Series| one.case == case && one.contender.placement == Placement::TwoCores;
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
            "the host moved the processors: only {left} of {all} turns on two of them count, those of each case that were alike"
        ));
    }
    report.records.extend(series.iter().filter(|one| !one.turns.is_empty()).map(record));
}

fn record(Series { contender, case, turns, .. }: &Series) -> Record {
    let name = case.name();
    let Contender { name: system, placement, mode, .. } = *contender;
    let label = Label { suite: "pvm", case: &name, system, placement, mode };
    let times: Vec<Turn<Summary>> =
        turns.iter().map(|turn| Turn { found: turn.found.times, lines: turn.lines }).collect();
    let over = |of: fn(&Found) -> Option<f64>| {
        let all: Option<Vec<f64>> = turns.iter().map(|turn| of(&turn.found)).collect();
        all.map(|all| tenths(median(&all)))
    };
    let of_case = label.latency(&times);
    Record {
        // Of one that is idle none is done.
        per_s: if matches!(case, Case::Idle(_)) { 0.0 } else { of_case.per_s },
        bare_ns: over(|found| found.bare_ns),
        memcpy_ns: over(|found| found.memcpy_ns),
        alone_ns: over(|found| found.alone_ns),
        bytes_each: over(|found| found.bytes_each).map(f64::round),
        ..of_case
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(contender: Contender, case: Case, turns: &[(f64, f64)]) -> Series {
        let turn = |&(ns, line): &(f64, f64)| {
            let times = Summary { p50_ns: ns, p99_ns: ns, p999_ns: ns, mean_ns: ns, count: 5 };
            let found = Found {
                times,
                bare_ns: Some(3.0),
                memcpy_ns: Some(1.0),
                alone_ns: None,
                bytes_each: None,
            };
            Turn { found, lines: (line, line) }
        };
        Series { contender, case, turns: turns.iter().map(turn).collect(), out: false }
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
            "{\"suite\":\"pvm\",\"case\":\"one-way-0\",\"system\":\"upcall\",\"placement\":\"one-core\",\"mode\":\"parked\",\
             \"p50_ns\":150.0,\"p99_ns\":150.0,\"p999_ns\":150.0,\"mean_ns\":150.0,\"per_s\":6666666.7,\"samples\":5,\
             \"line_ns\":90.0,\"bare_ns\":3.0,\"memcpy_ns\":1.0}"
        );
        assert_eq!(record(&series(OURS[2], Case::Idle(24), &[(0.0, 90.0)])).per_s, 0.0);
    }
}
