//! The second part of the suite: what only ours has, or what is asked of ours alone (issue 5; UDM,
//! D14 and D15).
//!
//! One turn of a case is one child process, which measures it once with a second one ([`child`],
//! [`lab`](crate::lab)), so that those that are compared follow each other within a fraction of a
//! second. The cases take turns, round by round; the cache line is probed between turns; what
//! counts are medians over the rounds, and only turns of one placement of the processors, as in the
//! first part. This crate does not know ours: the program that runs the benchmark answers to
//! `bench-own-messages`.
//!
//! The paper's experiments ([`paper`]) are among the cases, but all of their turns count: what is
//! told of them are shares and multiples. `exactly-once` is a check and not a time. It comes once,
//! after everything else.

pub mod case;
pub mod child;
pub mod paper;
pub(super) mod paper_table;
pub(super) mod table;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use self::case::Own;
use self::child::{Finding, Task, arguments, read_at};
use super::options::Options;
use super::{Found, Runner};
use crate::case::{Mode, Placement};
use crate::error::RunError;
use crate::found::Throughput;
use crate::line;
use crate::process::{ChildError, Process};
use crate::record::{Label, Record, Turn};
use crate::stats::Summary;

/// Longest time for a child to say the next thing, over what it was asked to take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time for a child to end.
const END: Duration = Duration::from_secs(10);
/// What must be available for `stopped`, whose buffers are 1 GiB, in bytes.
const ENOUGH: u64 = 4 << 30;

/// How much of it.
#[derive(Default)]
struct Amounts {
    rounds: usize,
    /// Of `stopped`, which writes and reads all of its buffers each time.
    stopped_rounds: usize,
    time: Duration,
    /// Of the paper's experiments, which take longer than the others.
    paper_rounds: usize,
    /// Of a point of Figure 7.
    point: Duration,
    /// Searches of a run of Tpuz.
    searches: u64,
    /// Mebibytes.
    buffered: u64,
    /// Messages of `exactly-once`.
    messages: u64,
}

impl Amounts {
    fn of(options: &Options) -> Amounts {
        let ms = Duration::from_millis;
        let (usual, amounts) = match options.quick {
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
        Amounts { messages: options.messages.unwrap_or(usual), ..amounts }
    }

    fn rounds(&self, case: Own) -> usize {
        match case {
            Own::Stopped => self.stopped_rounds,
            Own::Once => 0,
            // The same each time.
            Own::Simulated | Own::TpuzSimulated => 1,
            _ if case.is_papers() => self.paper_rounds,
            _ => self.rounds,
        }
    }

    fn task(&self, case: Own, cpus: [usize; 2]) -> Task {
        let (time, count) = match case {
            // A window of it is a segment full of messages.
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

/// A case, and what its turns have come to.
struct Sheet {
    case: Own,
    turns: Vec<Turn<Vec<Finding>>>,
    out: bool,
}

impl Runner<'_> {
    /// Measures these cases; `percent` of the run was done before.
    pub(super) fn own(
        &mut self,
        options: &Options,
        cases: &[Own],
        percent: u32,
    ) -> Result<(), RunError> {
        if cases.is_empty() {
            return Ok(());
        }
        let Some(second) = self.cpus.second else {
            self.report.notes.push(
                "this process may use one processor only: nothing of ours alone was measured"
                    .to_owned(),
            );
            return Ok(());
        };
        let (amounts, cpus) = (Amounts::of(options), [self.cpus.first, second]);
        let mut sheets: Vec<Sheet> =
            cases.iter().map(|&case| Sheet { case, turns: Vec::new(), out: false }).collect();
        if let Some(sheet) = sheets.iter_mut().find(|sheet| sheet.case == Own::Stopped) {
            let available = available_memory().unwrap_or(u64::MAX);
            if amounts.buffered << 20 >= 1 << 30 && available < ENOUGH {
                let note = format!(
                    "stopped was not measured: its buffers are 1 GiB, and {} MiB of memory are available",
                    available >> 20
                );
                self.report.notes.push(note);
                sheet.out = true;
            }
        }
        for round in 0..amounts.rounds {
            self.progress.percent =
                percent + (100 - percent) * round as u32 / amounts.rounds as u32;
            for sheet in
                sheets.iter_mut().filter(|sheet| !sheet.out && round < amounts.rounds(sheet.case))
            {
                self.progress.say(
                    &format!("ours alone, round {} of {}", round + 1, amounts.rounds),
                    sheet.case.name(),
                );
                self.sheet(sheet, &options.exe, &amounts.task(sheet.case, cpus))?;
            }
        }
        let (mut once, sheets): (Vec<_>, Vec<_>) =
            sheets.into_iter().partition(|sheet| sheet.case == Own::Once);
        for sheet in &mut once {
            self.sheet(sheet, &options.exe, &amounts.task(sheet.case, cpus))?;
        }
        let (papers, mut sheets): (Vec<_>, Vec<_>) =
            sheets.into_iter().partition(|sheet| sheet.case.is_papers());
        let probes: Vec<Vec<_>> = sheets
            .iter()
            .map(|sheet| sheet.turns.iter().map(|turn| turn.lines).collect())
            .collect();
        let like = self.like("ours alone", &probes);
        sheets.iter_mut().for_each(|sheet| sheet.turns.retain(|turn| like.has(turn.lines)));
        let records =
            sheets.iter().chain(&once).chain(&papers).flat_map(|sheet| recorded(&sheet.turns));
        self.report.own.extend(records.clone());
        self.report.records.extend(records);
        Ok(())
    }

    /// A turn of a case.
    fn sheet(&mut self, sheet: &mut Sheet, exe: &Path, task: &Task) -> Result<(), RunError> {
        let before = self.line_ns;
        let found = self.one(exe, task);
        self.line_ns = line::round_trip_ns(&self.cpus);
        match found {
            Ok(found) => sheet.turns.push(Turn { found, lines: (before, self.line_ns) }),
            Err(ChildError::Interrupted) => return Err(RunError::Interrupted),
            Err(error) => {
                self.report.failures.push(error.to_string());
                sheet.out = true;
            }
        }
        Ok(())
    }

    /// What a child finds.
    fn one(&mut self, exe: &Path, task: &Task) -> Result<Vec<Finding>, ChildError> {
        let mut command = Command::new(exe);
        // The reason stands in the line before a backtrace, and the harness shows the last lines.
        command.args(arguments(task)).env("RUST_BACKTRACE", "0").env("TMPDIR", &self.scratch.dir);
        let mut process = Process::start(
            command,
            format!("upcall, {}", task.case),
            self.scratch.dir.join("own.stderr"),
        )?;
        let (begun, mut told) = (Instant::now(), None);
        // Its thirteen runs are told of together.
        let patience = if task.case == Own::Tpuz { 4 * PATIENCE } else { PATIENCE };
        loop {
            let line = process.line(
                task.case.name(),
                Instant::now() + task.time + patience,
                self.interrupted,
            )?;
            if let Some(done) = read_at(&line) {
                let tenths = 10 * done / task.count.max(1);
                let what = match told.take().filter(|(before, _)| *before == tenths) {
                    Some((_, what)) => what,
                    None => so_far(task, done, begun.elapsed()),
                };
                self.progress.say(&what, &format!("{done} are through"));
                told = Some((tenths, what));
                continue;
            }
            let found = serde_json::from_str(&line);
            let found = found
                .map_err(|_| process.fault(&format!("answered by `{line}`, which is no answer")))?;
            process.end(END, self.interrupted)?;
            return Ok(found);
        }
    }
}

/// How far a long check is, and how much longer it takes if it goes on like this.
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

/// Memory that can be had without swapping, in bytes: the machine's, or what a container may have.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kib: u64 = text.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse().ok()
    })?;
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse().ok());
    Some((kib * 1024).min(limit.unwrap_or(u64::MAX)))
}

/// The records of a case.
fn recorded(turns: &[Turn<Vec<Finding>>]) -> Vec<Record> {
    let mut names: Vec<&str> = Vec::new();
    for finding in turns.iter().flat_map(|turn| &turn.found) {
        if !names.contains(&&*finding.case) {
            names.push(&finding.case);
        }
    }
    let of = |case: &str| {
        let label = Label {
            suite: "messages",
            case,
            system: "upcall",
            placement: Placement::TwoCores,
            mode: mode(case),
        };
        let (mut times, mut rates): (Vec<Turn<Summary>>, Vec<Turn<Throughput>>) =
            Default::default();
        for Turn { found, lines } in turns {
            match found.iter().find(|finding| finding.case == case).map(|finding| finding.found) {
                Some(Found::Times(found)) => times.push(Turn { found, lines: *lines }),
                Some(Found::Rate(found)) => rates.push(Turn { found, lines: *lines }),
                None => {}
            }
        }
        let record =
            if rates.is_empty() { label.latency(&times) } else { label.throughput(1, &rates) };
        let all = turns.iter().flat_map(|turn| &turn.found).filter(|finding| finding.case == case);
        let buffered = all.filter_map(|finding| finding.buffered).reduce(|a, b| a + b);
        Record { buffered, ..record }
    };
    names.into_iter().map(of).collect()
}

/// How the receiver waits.
fn mode(case: &str) -> Mode {
    if case == Own::Asleep.name() { Mode::Parked } else { Mode::Polling }
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
