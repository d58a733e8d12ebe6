//! The second part of the suite: what only Upcall provides, or has aims for Upcall alone (UDM, D14
//! and D15).
//!
//! One turn of a case is one child process, which measures it once with a second one ([`child`],
//! [`lab`](crate::lab)), so that compared measurements are within a fraction of a second. The cases
//! take turns, round by round, and the cache line is probed between turns. The figures are medians
//! over the rounds, of turns of one placement of the processors only, as in the first part. This
//! crate does not depend on Upcall: the benchmark program answers to `bench-own-messages`.
//!
//! The paper's experiments ([`paper`]) are among the cases, but all of their turns count, because
//! their figures are shares and multiples. `exactly-once` is a check and not a time. It runs once,
//! after everything else.

pub mod case;
pub mod child;
pub mod paper;
pub(super) mod paper_table;
pub(super) mod table;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use self::case::Own;
use self::child::{Finding, Task, arguments, read_at};
use crate::case::{Mode, Placement};
use crate::error::RunError;
use crate::process::{ChildError, Process};
use crate::record::{Label, Record, Turn};
use crate::run::{Rounds, Run, Said, Series};

/// Maximum time between two lines of a child, beyond its requested duration.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum time for a child to end.
const END: Duration = Duration::from_secs(10);
/// Memory that `stopped` needs, whose buffers are 1 GiB, in bytes.
const ENOUGH: u64 = 4 << 30;

/// The amounts of work of a run.
#[derive(Default)]
struct Amounts {
    rounds: usize,
    /// Rounds of `stopped`, which writes and reads all of its buffers each time.
    stopped_rounds: usize,
    time: Duration,
    /// Rounds of the paper's experiments, which take longer than the others.
    paper_rounds: usize,
    /// Duration of a point of Figure 7.
    point: Duration,
    /// Number of searches of a run of Tpuz.
    searches: u64,
    /// Size of the buffers of `stopped`, in mebibytes.
    buffered: u64,
    /// Number of messages of `exactly-once`.
    messages: u64,
}

impl Amounts {
    fn of(quick: bool, messages: Option<u64>) -> Amounts {
        let ms = Duration::from_millis;
        let (usual, amounts) = match quick {
            true => {
                let amounts = Amounts {
                    rounds: 2,
                    stopped_rounds: 1,
                    time: ms(5),
                    buffered: 64,
                    ..Amounts::default()
                };
                (100_000, Amounts { paper_rounds: 1, point: ms(10), ..amounts })
            }
            false => {
                let amounts = Amounts {
                    rounds: 9,
                    stopped_rounds: 5,
                    time: ms(50),
                    buffered: 1024,
                    ..Amounts::default()
                };
                (10_000_000, Amounts { paper_rounds: 3, point: ms(250), searches: 16, ..amounts })
            }
        };
        Amounts { messages: messages.unwrap_or(usual), ..amounts }
    }

    fn rounds(&self, case: Own) -> usize {
        match case {
            Own::Stopped => self.stopped_rounds,
            Own::Once => 1,
            // The result is the same each time.
            Own::Simulated | Own::TpuzSimulated => 1,
            _ if case.is_papers() => self.paper_rounds,
            _ => self.rounds,
        }
    }

    fn task(&self, case: Own, cpus: [usize; 2]) -> Task {
        let (time, count) = match case {
            // A window is a segment full of messages.
            Own::Buffered => (self.time * 4, 0),
            Own::Stopped => (self.time * 2, self.buffered),
            Own::Once => (self.time, self.messages),
            Own::Synth(_) => (self.point, 0),
            Own::Tpuz | Own::TpuzSimulated => (self.time, self.searches),
            _ => (self.time, 0),
        };
        Task { case, cpus, time, count, group: 0 }
    }
}

/// Measures these cases. `percent` of the run was done before.
pub(super) fn measure(
    cases: &[Own],
    messages: Option<u64>,
    percent: u32,
    run: &mut Run<'_>,
) -> Result<(), RunError> {
    if cases.is_empty() {
        return Ok(());
    }
    let Some(second) = run.cpus.second else {
        let note = "this process may use one processor only: nothing of ours alone was measured";
        run.report.notes.push(note.to_owned());
        return Ok(());
    };
    let (amounts, cpus) = (Amounts::of(run.quick, messages), [run.cpus.first, second]);
    let series =
        cases.iter().map(|&case| Series { most: amounts.rounds(case), ..Series::of(case) });
    let mut series: Vec<Series<Own, Vec<Finding>>> = series.collect();
    if let Some(stopped) = series.iter_mut().find(|one| one.of == Own::Stopped) {
        let available = available_memory().unwrap_or(u64::MAX);
        if amounts.buffered << 20 >= 1 << 30 && available < ENOUGH {
            run.report.notes.push(format!(
                "stopped was not measured: its buffers are 1 GiB, and {} MiB of memory are \
                available",
                available >> 20
            ));
            stopped.leave();
        }
    }
    let rounds = amounts.rounds;
    let say = |round, case: &Own| Said {
        what: format!("ours alone, round {round} of {rounds}"),
        detail: case.name().to_owned(),
        fault: String::new(),
    };
    let mut turn =
        |run: &mut Run<'_>, case: &mut Own| one(run, &amounts.task(*case, cpus)).map(Some);
    let (mut once, mut series): (Vec<_>, Vec<_>) =
        series.into_iter().partition(|one| one.of == Own::Once);
    run.rounds(&Rounds::count(rounds, percent..100), &mut series, say, &mut turn)?;
    run.rounds(&Rounds::count(1, 100..100), &mut once, say, turn)?;
    let (papers, mut series): (Vec<_>, Vec<_>) =
        series.into_iter().partition(|one| one.of.is_papers());
    run.leave_like("ours alone", &mut series);
    let all = series.iter().chain(&once).chain(&papers);
    run.report.records.extend(all.flat_map(|one| recorded(&one.turns)));
    Ok(())
}

/// Runs a child and returns its findings.
fn one(run: &mut Run<'_>, task: &Task) -> Result<Vec<Finding>, ChildError> {
    let mut command = Command::new(run.exe);
    // Without a backtrace the reason is the last line; the harness shows the last lines.
    command.args(arguments(task)).env("RUST_BACKTRACE", "0").env("TMPDIR", run.dir);
    let who = format!("upcall, {}", task.case);
    let mut process = Process::start(command, who, run.dir.join("own.stderr"))?;
    let (begun, mut told) = (Instant::now(), None);
    // The thirteen runs of Tpuz have a single answer.
    let patience = if task.case == Own::Tpuz { 4 * PATIENCE } else { PATIENCE };
    loop {
        let deadline = Instant::now() + task.time + patience;
        let line = process.line(task.case.name(), deadline, run.interrupted)?;
        if let Some(done) = read_at(&line) {
            let tenths = 10 * done / task.count.max(1);
            let what = match told.take().filter(|(before, _)| *before == tenths) {
                Some((_, what)) => what,
                None => so_far(task, done, begun.elapsed()),
            };
            run.progress.say(&what, &format!("{done} are through"));
            told = Some((tenths, what));
            continue;
        }
        return process.finding(&line, END, run.interrupted);
    }
}

/// Describes the progress of a long check, and the estimated remaining time.
fn so_far(task: &Task, done: u64, spent: Duration) -> String {
    let left = spent.mul_f64(task.count.saturating_sub(done) as f64 / done.max(1) as f64);
    let percent = 100 * done / task.count.max(1);
    format!(
        "{}, {percent} % of {} messages, about {} s left",
        task.case,
        task.count,
        left.as_secs() + 1
    )
}

/// Returns the memory available without swapping, in bytes, limited by a container's maximum.
pub(crate) fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kib: u64 = text.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse().ok()
    })?;
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse().ok());
    Some((kib * 1024).min(limit.unwrap_or(u64::MAX)))
}

/// Makes the records of a case.
fn recorded(turns: &[Turn<Vec<Finding>>]) -> Vec<Record> {
    let mut names: Vec<&str> = Vec::new();
    for finding in turns.iter().flat_map(|turn| &turn.found) {
        if !names.contains(&&*finding.case) {
            names.push(&finding.case);
        }
    }
    let of = |case: &str| {
        let (placement, mode) = (Placement::TwoCores, mode(case));
        let label = Label { suite: "messages", case, system: "upcall", placement, mode };
        let is = |finding: &&Finding| finding.case == case;
        let record = label.found(1, turns, |found| found.iter().find(is).map(|one| one.found))?;
        let all = turns.iter().flat_map(|turn| &turn.found).filter(is);
        let buffered = all.filter_map(|finding| finding.buffered).reduce(|a, b| a + b);
        Some(Record { buffered, ..record })
    };
    names.into_iter().filter_map(of).collect()
}

/// Returns how the receiver waits.
fn mode(case: &str) -> Mode {
    if case == Own::Asleep.name() { Mode::Parked } else { Mode::Polling }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Summary;

    #[test]
    fn every_finding_has_a_record() {
        let times = |ns| Summary { p99_ns: 2.0 * ns, p999_ns: 3.0 * ns, ..Summary::flat(ns, 10) };
        let turn = |ns, line| Turn {
            found: vec![
                Finding::times("upcall-asleep", times(ns)),
                Finding::rate("stopped-nothing", 100, Duration::from_nanos(500)),
            ],
            lines: (line, line),
        };
        let records = recorded(&[turn(5.0, 90.0), turn(7.0, 110.0)]);
        let told: Vec<_> = records
            .iter()
            .map(|record| (record.case.as_str(), record.p50_ns, record.mode))
            .collect();
        assert_eq!(
            told,
            [("upcall-asleep", 6.0, Mode::Parked), ("stopped-nothing", 5.0, Mode::Polling)]
        );
        assert!(
            records.iter().all(|record| record.line_ns == Some(100.0) && record.system == "upcall")
        );
        assert!(recorded(&[]).is_empty());
    }

    #[test]
    fn it_says_how_long_it_takes() {
        let task =
            Task { case: Own::Once, cpus: [0, 1], time: Duration::ZERO, count: 1000, group: 0 };
        assert_eq!(
            so_far(&task, 250, Duration::from_secs(10)),
            "exactly-once, 25 % of 1000 messages, about 31 s left"
        );
        assert!(available_memory().is_none_or(|bytes| bytes > 1 << 20));
    }
}
