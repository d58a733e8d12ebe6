//! The suite `homed`: operations on objects with a home by every way that there is, as Psyche's
//! section 5 measures them (P9 to P13).
//!
//! The home and those who use its object are processes, the home on one processor and one caller on
//! another; where several use it at once, see [`case::Case::Throughput`]. One turn of a [`case`] is
//! one child with its others, which measures all ways of it one after the other ([`child`],
//! [`lab`](crate::lab)), so that what is compared happens within a fraction of a second. The cases
//! take turns, round by round; the cache line is probed between turns; what counts are medians over
//! the rounds, and only turns of one placement of the processors. This crate does not know ours:
//! the program that runs the benchmark answers to `bench-homed`.
//!
//! What is drawn and told beside the paper's is computed from the records ([`paper`]).

pub mod case;
pub mod child;
pub mod paper;
#[allow(unsafe_code)]
pub mod raw;
mod table;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use self::case::{Case, way};
use self::child::{Finding, Task, arguments};
use crate::case::{Mode, Placement};
pub use crate::error::RunError;
use crate::found::Throughput;
use crate::interrupted::Interrupted;
use crate::like::Like;
use crate::line;
use crate::messages::Found;
use crate::output;
use crate::place::Cpus;
use crate::process::{ChildError, Process};
use crate::progress::Progress;
use crate::record::{Label, Record, Turn};
pub use crate::report::Report;
use crate::report::busy;
use crate::scratch::Scratch;
use crate::stats::Summary;

/// Longest time for a child to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time for a child to end.
const END: Duration = Duration::from_secs(10);

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program that answers to `bench-homed`: normally this one.
    pub exe: PathBuf,
    /// Where the records go as a JSON array; `-` is standard output, which then has no table.
    pub json: Option<PathBuf>,
    /// Less time: for trying out, not for numbers.
    pub quick: bool,
    /// Cases by name. An empty list stands for everything.
    pub cases: Vec<String>,
}

/// A case, and what its turns have come to.
struct Sheet {
    case: Case,
    turns: Vec<Turn<Vec<Finding>>>,
    out: bool,
}

/// Runs the suite, shows progress on standard error, prints tables on standard output and writes
/// the records where `options` say. Takes about a minute and a half; busies two processors
/// meanwhile. Leaves no process and no file behind.
///
/// # Errors
/// [`RunError`]. A case that fails is in the report's `failures` and does not stop the others.
pub fn run(options: &Options) -> Result<Report, RunError> {
    let wished = options.cases.iter().map(|name| name.parse()).collect::<Result<Vec<Case>, _>>()?;
    let cases: Vec<Case> =
        Case::all().into_iter().filter(|case| wished.is_empty() || wished.contains(case)).collect();
    let cpus = Cpus::allowed().map_err(RunError::System)?;
    let interrupted = Interrupted::watch().map_err(RunError::System)?;
    let scratch = Scratch::make()?;
    let note = busy();
    let (rounds, time) =
        if options.quick { (2, Duration::from_millis(2)) } else { (9, Duration::from_millis(15)) };
    let mut runner = Runner {
        cpus,
        exe: &options.exe,
        scratch: &scratch,
        interrupted: &interrupted.flag,
        report: Report::default(),
        line_ns: line::round_trip_ns(&cpus),
        progress: Progress::new(),
    };
    runner.suite(&cases, rounds, time)?;
    runner.progress.clear();
    let mut report = runner.report;
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
    exe: &'a Path,
    scratch: &'a Scratch,
    interrupted: &'a AtomicBool,
    report: Report,
    /// The latest probe.
    line_ns: f64,
    progress: Progress,
}

impl Runner<'_> {
    fn suite(&mut self, cases: &[Case], rounds: usize, time: Duration) -> Result<(), RunError> {
        let Some(second) = self.cpus.second else {
            self.report
                .notes
                .push("this process may use one processor only: nothing was measured".to_owned());
            return Ok(());
        };
        let mut sheets: Vec<Sheet> =
            cases.iter().map(|&case| Sheet { case, turns: Vec::new(), out: false }).collect();
        for round in 0..rounds {
            self.progress.percent = 100 * round as u32 / rounds as u32;
            for sheet in sheets.iter_mut().filter(|sheet| !sheet.out) {
                self.progress.say(&format!("round {} of {rounds}", round + 1), &sheet.case.name());
                let task =
                    Task { case: sheet.case, cpus: [self.cpus.first, second], time, group: 0 };
                let before = self.line_ns;
                let found = self.turn(&task);
                self.line_ns = line::round_trip_ns(&self.cpus);
                match found {
                    Ok(found) => sheet.turns.push(Turn { found, lines: (before, self.line_ns) }),
                    Err(ChildError::Interrupted) => return Err(RunError::Interrupted),
                    Err(error) => {
                        self.report.failures.push(error.to_string());
                        sheet.out = true;
                    }
                }
            }
        }
        self.leave_like(&mut sheets);
        self.report.records.extend(sheets.iter().flat_map(|sheet| recorded(&sheet.turns)));
        Ok(())
    }

    /// What a child finds.
    fn turn(&self, task: &Task) -> Result<Vec<Finding>, ChildError> {
        let mut command = Command::new(self.exe);
        // The reason stands in the line before a backtrace, and the harness shows the last lines.
        command.args(arguments(task)).env("RUST_BACKTRACE", "0").env("TMPDIR", &self.scratch.dir);
        let mut process =
            Process::start(command, task.case.name(), self.scratch.dir.join("homed.stderr"))?;
        let line = process.line("its case", Instant::now() + PATIENCE, self.interrupted)?;
        let found = serde_json::from_str(&line);
        let found = found
            .map_err(|_| process.fault(&format!("answered by `{line}`, which is no answer")))?;
        process.end(END, self.interrupted)?;
        Ok(found)
    }

    /// Leaves the turns that may be compared, if the host moved the processors meanwhile; says so
    /// in the report.
    fn leave_like(&mut self, sheets: &mut [Sheet]) {
        let probes: Vec<Vec<_>> = sheets
            .iter()
            .map(|sheet| sheet.turns.iter().map(|turn| turn.lines).collect())
            .collect();
        let like = Like::of(&probes);
        let all = probes.iter().flatten().count();
        let (least, most) = Like::span(probes.iter().flatten());
        sheets.iter_mut().for_each(|sheet| sheet.turns.retain(|turn| like.has(turn.lines)));
        let left = sheets.iter().map(|sheet| sheet.turns.len()).sum::<usize>();
        if left < all {
            let (from, to) =
                Like::span(sheets.iter().flat_map(|sheet| &sheet.turns).map(|turn| &turn.lines));
            self.report.notes.push(format!(
                "the line took {least:.0} to {most:.0} ns; only the {left} of {all} turns beside {from:.0} to {to:.0} ns count"
            ));
        } else if like.moved() {
            self.report.notes.push(format!(
                "the line took {least:.0} to {most:.0} ns, and not like turns are compared"
            ));
        }
    }
}

/// The records of a case.
fn recorded(turns: &[Turn<Vec<Finding>>]) -> Vec<Record> {
    let mut names: Vec<(&str, &str)> = Vec::new();
    for finding in turns.iter().flat_map(|turn| &turn.found) {
        let name = (&*finding.case, &*finding.system);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let of = |(case, system): (&str, &str)| {
        let label = Label {
            suite: "homed",
            case,
            system,
            placement: Placement::TwoCores,
            mode: mode(system),
        };
        let (mut times, mut rates): (Vec<Turn<Summary>>, Vec<Turn<Throughput>>) =
            Default::default();
        let mut callers = 1;
        for Turn { found, lines } in turns {
            match found.iter().find(|finding| (&*finding.case, &*finding.system) == (case, system))
            {
                Some(Finding { found: Found::Times(found), .. }) => {
                    times.push(Turn { found: *found, lines: *lines })
                }
                Some(Finding { found: Found::Rate(found), callers: count, .. }) => {
                    rates.push(Turn { found: *found, lines: *lines });
                    callers = *count;
                }
                None => {}
            }
        }
        if rates.is_empty() { label.latency(&times) } else { label.throughput(callers, &rates) }
    };
    names.into_iter().map(of).collect()
}

/// How the home waits.
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

    #[test]
    fn every_finding_has_a_record() {
        let times = |ns| Summary {
            p50_ns: ns,
            p99_ns: 2.0 * ns,
            p999_ns: 3.0 * ns,
            mean_ns: ns,
            count: 10,
        };
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
