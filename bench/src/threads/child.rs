//! The child's side of the suite `threads`: the protocol of all systems, in any language.
//!
//! ```text
//! PROGRAM bench-threads SYSTEM CASE THREADS OPS SAMPLES
//! ```
//! runs `CASE` of `SYSTEM` in `SAMPLES` batches of `OPS` operations, equally many of each of
//! `THREADS` threads, prints one line of JSON, and exits successfully:
//!
//! | line | meaning |
//! |---|---|
//! | `{"samples_ns":[…],"done":N,"base_kib":B,"peak_kib":K}` | the figures |
//! | `{"unsupported":"why"}` | the system or the machine cannot run this |
//!
//! `samples_ns` has the duration of each batch. `done` is the number of operations whose effect was
//! found, which must be `OPS` × `SAMPLES`. `peak_kib` is the peak memory of the process (VmHWM),
//! and `base_kib` is its value before the system began.
//!
//! Errors go to standard error, with an unsuccessful exit. `CASE` is a [kind](Case::kind), or
//! `idle`. `THREADS` matters in three of them:
//!
//! * `yield`: the number of threads that yield in turn. `OPS` is a multiple of it.
//! * `alive`: the number of threads alive at once. `OPS` is a multiple of it, and the first batch
//!   is of `THREADS` operations only: the first time is reported separately.
//! * `idle`: `OPS` is `THREADS`, the number of threads that wait on a condition variable. A sample
//!   is not a duration but the CPU time of the whole process, in nanoseconds, in a second in which
//!   its first thread sleeps by the system's own sleep.
//!
//! The harness confines a child to one processor when it starts it. A child asks the kernel to kill
//! it when the harness dies.

use std::ffi::OsString;
use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::case::Case;
use crate::child::{Outcome, entry, exit};
use crate::place::Cpus;

/// The arguments of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// The operation; `None` for `idle`.
    pub case: Option<Case>,
    /// Number of threads at once, in the cases that depend on it and in `idle`.
    pub threads: u64,
    /// Number of operations in one sample.
    pub ops: u64,
    /// Number of samples.
    pub samples: usize,
    /// The one processor that this process runs on.
    pub cpu: usize,
}

impl Task {
    /// Number of rounds of all threads in a sample of `alive`.
    pub fn rounds(&self, sample: usize) -> u64 {
        if sample == 0 { 1 } else { self.ops / self.threads }
    }
}

/// The work of a child.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// Each sample.
    pub samples_ns: Vec<u64>,
    /// Number of operations whose effect was found.
    pub done: u64,
}

impl Work {
    /// Adds a sample that began at `begun` and ends now.
    pub fn lap(&mut self, begun: Instant) {
        self.samples_ns.push(begun.elapsed().as_nanos() as u64);
    }
}

/// The result of a task.
pub enum Finding {
    /// The task was completed.
    Done(Work),
    /// The task cannot be run, with the reason.
    Unsupported(String),
}

/// A child's line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Answer {
    /// The task was completed.
    Done {
        /// Each sample.
        samples_ns: Vec<u64>,
        /// Number of operations whose effect was found.
        done: u64,
        /// VmHWM before the system began, in KiB.
        base_kib: u64,
        /// VmHWM, in KiB.
        peak_kib: u64,
    },
    /// The task cannot be run.
    Unsupported {
        /// The reason.
        unsupported: String,
    },
}

/// A row of the table of systems.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The system's name.
    pub name: &'static str,
    /// Runs a task.
    pub run: fn(&Task) -> Outcome<Finding>,
}

/// Runs this process as a child of the harness.
///
/// `args` are the arguments after `bench-threads`; `systems` lists the systems that this program
/// provides. Errors go to standard error, which the harness shows.
pub fn child_main(args: impl IntoIterator<Item = OsString>, systems: &[Entry]) -> ExitCode {
    exit(run(args, systems))
}

const USAGE: &str = "bench-threads SYSTEM CASE|idle THREADS OPS SAMPLES";

fn run(args: impl IntoIterator<Item = OsString>, systems: &[Entry]) -> Outcome<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let args: Vec<String> =
        args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let [system, case, threads, ops, samples] = &args[..] else {
        return Err(format!("usage: {USAGE}").into());
    };
    let system = entry(systems, "system", system, |system| system.name)?;
    let number = |what: &str, word: &str| {
        word.parse().map_err(|_| format!("{what} {word}: not a number; usage: {USAGE}"))
    };
    let threads: u64 = number("THREADS", threads)?;
    let case = match Case::of(case, threads) {
        None if case != "idle" => return Err(format!("no case `{case}`; usage: {USAGE}").into()),
        case => case,
    };
    let (ops, samples) = (number("OPS", ops)?, number("SAMPLES", samples)? as usize);
    if threads == 0 {
        return Err(format!("no thread does nothing; usage: {USAGE}").into());
    }
    let base_kib = peak_kib()?;
    let answer =
        match (system.run)(&Task { case, threads, ops, samples, cpu: Cpus::allowed()?.first })? {
            Finding::Done(Work { samples_ns, done }) => {
                Answer::Done { samples_ns, done, base_kib, peak_kib: peak_kib()? }
            }
            Finding::Unsupported(why) => Answer::Unsupported { unsupported: why },
        };
    println!("{}", serde_json::to_string(&answer)?);
    Ok(())
}

/// Returns the peak memory of this process, in KiB.
pub(crate) fn peak_kib() -> Outcome<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    peak.ok_or_else(|| "no VmHWM in /proc/self/status".into())
}

/// Returns the CPU time of all threads of this process so far, in nanoseconds.
pub fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs the case `procedure-call`, which is the same for every system in this language.
pub fn procedure_calls(task: &Task) -> Work {
    let mut work = Work::default();
    for _ in 0..task.samples {
        let begun = Instant::now();
        for _ in 0..task.ops {
            work.done = next(work.done);
        }
        work.lap(begun);
    }
    work
}

/// Only a call: each result is the next call's argument, so the count proves that every call was
/// made.
#[inline(never)]
pub(crate) fn next(count: u64) -> u64 {
    count + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_back() {
        let line = r#"{"samples_ns":[1,2],"done":20,"base_kib":100,"peak_kib":300}"#;
        assert!(matches!(
            serde_json::from_str(line),
            Ok(Answer::Done { done: 20, base_kib: 100, peak_kib: 300, .. })
        ));
        let line = r#"{"unsupported":"too many"}"#;
        assert!(matches!(
            serde_json::from_str(line),
            Ok(Answer::Unsupported { unsupported }) if unsupported == "too many"
        ));
        assert!(peak_kib().unwrap() > 100);
    }

    #[test]
    fn mistakes_are_told() {
        let told =
            |args: &[&str]| run(args.iter().map(OsString::from), &[]).unwrap_err().to_string();
        assert!(told(&["x"]).contains("usage: bench-threads"));
        assert!(told(&["x", "yield", "2", "1", "1"]).contains("no system `x`"));
    }

    #[test]
    fn calls_are_counted() {
        let work = procedure_calls(&Task { case: None, threads: 1, ops: 100, samples: 3, cpu: 0 });
        assert_eq!((work.done, work.samples_ns.len()), (300, 3));
    }
}
