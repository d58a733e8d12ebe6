//! The child's side of the suite `pvm`: what the benchmark program has to provide, and its
//! arguments.
//!
//! ```text
//! EXE bench-pvm run CPUS PROGRAM [ARGS]  becomes the program, confined to these processors
//! EXE bench-pvm compile ARGS             compiles an Upcall task, with the compiler's arguments
//! EXE bench-pvm switch ULPS SECONDS DIR  switches between this number of ULPs; DIR is for files
//! EXE bench-pvm switch-process SECONDS   switches between two processes
//! EXE bench-pvm echo                     is the other one of these
//! EXE bench-pvm procedure-call SECONDS   calls a procedure
//! ```
//! A child that measures prints one line, a [`Summary`] as JSON beside the case's name, and ends. A
//! child dies with the harness, however the harness ends; so does a program that it becomes.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::case::Case;
use crate::child::{Outcome, exit};
use crate::place;
use crate::stats::{Clock, Summary};
use crate::threads::child::next;

/// The system under test.
pub trait System {
    /// Compiles and links a task. `args` are the arguments of the C compiler.
    ///
    /// # Errors
    /// Compiling failed.
    fn compile(args: &[OsString]) -> Outcome<()>;

    /// Measures the nanoseconds of a switch from one of `ulps` ULPs to the next, for `time`. There
    /// is one sample for each turn of all of them.
    ///
    /// # Errors
    /// The measurement failed.
    fn switch(ulps: usize, time: Duration, dir: &Path) -> Outcome<Vec<f64>>;
}

/// The output of a program: a line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// The case, as a check.
    pub case: String,
    /// Its times; absent for `idle-N`.
    #[serde(flatten)]
    pub times: Option<Summary>,
    /// Time without writing and checking the payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bare_ns: Option<f64>,
    /// Time of a copy of as many bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memcpy_ns: Option<f64>,
    /// Time of a sweep of a grid's blocks by one task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone_ns: Option<f64>,
    /// Number of rows and columns of a grid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grid: Option<u32>,
    /// A sum of the grid that was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum: Option<String>,
    /// The moments at which runs ended, in nanoseconds of the system's monotonic clock.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ends_ns: Vec<i64>,
    /// Number of sweeps of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweeps: Option<u32>,
}

/// Runs this process as a child of the harness. `args` are the arguments after `bench-pvm`. Errors
/// go to standard error, which the harness shows.
pub fn child_main<S: System>(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    exit(run::<S>(&args.into_iter().collect::<Vec<_>>()))
}

const USAGE: &str = "bench-pvm run CPUS PROGRAM [ARGS] | compile ARGS | switch ULPS SECONDS DIR | \
    switch-process SECONDS | echo \
                     | procedure-call SECONDS";

fn run<S: System>(args: &[OsString]) -> Outcome<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let usage = || format!("usage: {USAGE}");
    let (what, rest) = args.split_first().ok_or_else(usage)?;
    let words: Vec<_> = rest.iter().map(|word| word.to_string_lossy()).collect();
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    let time = |text: &str| {
        let seconds =
            text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        seconds.ok_or_else(|| format!("{text}: no number of seconds"))
    };
    match (what.to_str().unwrap_or_default(), &words[..]) {
        ("run", [cpus, program, ..]) => {
            place::confine(&place::numbers(cpus).ok_or("CPUS is not a list of numbers")?)?;
            // MPICH stops when its input ends.
            let error = Command::new(program).args(&rest[2..]).stdin(Stdio::null()).exec();
            Err(format!("{program}: {error}").into())
        }
        ("compile", [_, ..]) => S::compile(rest),
        ("switch", [ulps, seconds, dir]) => {
            let ulps =
                ulps.parse().ok().filter(|ulps| *ulps > 0).ok_or("ULPS: not a number above 0")?;
            tell(Case::Switch(ulps), S::switch(ulps, time(seconds)?, Path::new(dir))?)
        }
        ("switch-process", [seconds]) => tell(Case::SwitchProcess, processes(time(seconds)?)?),
        ("procedure-call", [seconds]) => tell(Case::ProcedureCall, calls(time(seconds)?)?),
        ("echo", []) => echo(),
        _ => Err(usage().into()),
    }
}

fn tell(case: Case, samples: Vec<f64>) -> Outcome<()> {
    if samples.is_empty() {
        return Err("there was no time for a sample".into());
    }
    let times = Some(Summary::of_nanoseconds(samples));
    println!(
        "{}",
        serde_json::to_string(&Told {
            case: case.name(),
            times,
            bare_ns: None,
            memcpy_ns: None,
            alone_ns: None,
            grid: None,
            sum: None,
            ends_ns: Vec::new(),
            sweeps: None,
        })?
    );
    Ok(())
}

/// Number of round trips in one sample.
const TRIPS: u32 = 20;

/// Measures two processes that read and write one byte in turn, through a pair of pipes
/// (Ousterhout, 1990).
fn processes(time: Duration) -> Outcome<Vec<f64>> {
    let mut other = Command::new(std::env::current_exe()?);
    let mut other =
        other.args(["bench-pvm", "echo"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (Some(to), Some(from)) = (other.stdin.take(), other.stdout.take()) else {
        unreachable!("both are piped")
    };
    let (to, from) = (OwnedFd::from(to), OwnedFd::from(from));
    let mut byte = [0];
    let mut trip = |number: u32| {
        rustix::io::write(&to, &[number as u8])?;
        if rustix::io::read(&from, &mut byte)? != 1 || byte[0] != !(number as u8) {
            return Err(io::Error::other("the other process sent something else"));
        }
        Ok(())
    };
    (0..200).try_for_each(&mut trip)?;
    let mut samples = Vec::new();
    let first = Instant::now();
    while first.elapsed() < time || samples.len() < 5 {
        let begun = Instant::now();
        (0..TRIPS).try_for_each(&mut trip)?;
        samples.push(begun.elapsed().as_nanos() as f64 / f64::from(2 * TRIPS));
    }
    drop(to);
    other.wait()?;
    Ok(samples)
}

fn echo() -> Outcome<()> {
    let (input, output) = (File::from(io::stdin().as_fd().try_clone_to_owned()?), io::stdout());
    let mut byte = [0];
    while rustix::io::read(&input, &mut byte)? == 1 {
        rustix::io::write(&output, &[!byte[0]])?;
    }
    Ok(())
}

/// Number of calls of a procedure in one sample.
const CALLS: u64 = 1000;

fn calls(time: Duration) -> Outcome<Vec<f64>> {
    let (clock, mut count) = (Clock::calibrated(), 0);
    let (mut samples, mut ticks) = (Vec::new(), [1; 100]);
    let first = Instant::now();
    while first.elapsed() < time || samples.is_empty() {
        clock.time_each(&mut ticks, || {
            (0..CALLS).for_each(|_| count = next(count));
            Ok::<(), Infallible>(())
        })?;
        samples.extend(ticks.iter().map(|ticks| clock.ns(*ticks) / CALLS as f64));
    }
    if count == CALLS * samples.len() as u64 {
        Ok(samples)
    } else {
        Err("calls are missing".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl System for Nothing {
        fn compile(_: &[OsString]) -> Outcome<()> {
            Err("no compiler".into())
        }
        fn switch(ulps: usize, _: Duration, _: &Path) -> Outcome<Vec<f64>> {
            Err(format!("{ulps} ULPs").into())
        }
    }

    #[test]
    fn mistakes_are_told() {
        let told = |line: &str| {
            run::<Nothing>(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
                .unwrap_err()
                .to_string()
        };
        assert!(told("queen").contains("usage: bench-pvm") && told("run 0").contains("usage:"));
        assert!(
            told("run a true").contains("not a list")
                && told("run 99999 true").contains("no such processor")
        );
        assert!(
            told("switch 0 1 d").contains("above 0")
                && told("switch-process -1").contains("-1: no number of seconds")
        );
        assert_eq!(told("switch 3 0.1 d"), "3 ULPs");
        assert_eq!(told("compile x.c"), "no compiler");
    }

    #[test]
    fn a_procedure_is_called() {
        let found = calls(Duration::from_millis(1)).unwrap();
        assert!(found.len() >= 100 && found.iter().all(|ns| *ns >= 0.0));
    }

    #[test]
    fn what_programs_print_is_read() {
        let line = concat!(
            r#"{"case":"one-way-1","p50_ns":1.5,"p99_ns":2.0,"p999_ns":3.0,"mean_ns":1.6,"#,
            r#""count":7,"batch":3,"bare_ns":0.5,"memcpy_ns":0.1}"#
        );
        let told: Told = serde_json::from_str(line).unwrap();
        assert_eq!(
            (told.times.unwrap().count, told.bare_ns, told.memcpy_ns),
            (7, Some(0.5), Some(0.1))
        );
        let told: Told = serde_json::from_str(r#"{"case":"idle-24"}"#).unwrap();
        assert_eq!((told.case.as_str(), told.times), ("idle-24", None));
    }
}
