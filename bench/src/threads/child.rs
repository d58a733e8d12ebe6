//! The child's side: the protocol that all systems speak, whatever they are written in.
//!
//! ```text
//! PROGRAM bench-threads SYSTEM CASE THREADS OPS SAMPLES
//! ```
//! runs `CASE` of `SYSTEM` in `SAMPLES` batches of `OPS` operations, of each of `THREADS` threads
//! alike, prints one line of JSON, and ends well:
//!
//! | line | meaning |
//! |---|---|
//! | `{"samples_ns":[…],"done":N,"base_kib":B,"peak_kib":K}` | how long each batch took; operations whose effect was found, which must be `OPS` × `SAMPLES`; the most memory at a time (VmHWM), before the system had begun and in all |
//! | `{"unsupported":"why"}` | the system or the machine cannot do this |
//!
//! What goes wrong goes to standard error, and the child ends badly. `CASE` is a
//! [kind](Case::kind), or `idle`. `THREADS` matters to three of them:
//!
//! * `yield`: so many yield in turn. `OPS` is a multiple of it.
//! * `alive`: so many are alive at once. `OPS` is a multiple of it, and the first batch is of
//!   `THREADS` operations only: the first time is told by itself.
//! * `idle`: `OPS` is `THREADS`, which wait on a condition variable, and each sample is not a
//!   duration but the CPU time of the whole process, in nanoseconds, in a second in which its first
//!   thread sleeps by the system's own sleep.
//!
//! Whoever starts a child has confined it to one processor. A child asks the kernel to kill it when
//! the harness dies.

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

/// What a child is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// Which operation; none for `idle`.
    pub case: Option<Case>,
    /// Threads at once, in the cases that are about their number and in `idle`.
    pub threads: u64,
    /// Operations of one sample.
    pub ops: u64,
    /// How many samples.
    pub samples: usize,
    /// The one processor that this process runs on.
    pub cpu: usize,
}

impl Task {
    /// How often a sample of `alive` has all of its threads.
    pub fn rounds(&self, sample: usize) -> u64 {
        if sample == 0 { 1 } else { self.ops / self.threads }
    }
}

/// What a child has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// Each sample.
    pub samples_ns: Vec<u64>,
    /// Operations whose effect was found.
    pub done: u64,
}

impl Work {
    /// A sample that began at `begun` and ends now.
    pub fn lap(&mut self, begun: Instant) {
        self.samples_ns.push(begun.elapsed().as_nanos() as u64);
    }
}

/// What a system makes of a task.
pub enum Finding {
    /// Done.
    Done(Work),
    /// It cannot be done, and why.
    Unsupported(String),
}

/// A child's line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Answer {
    /// As above.
    Done {
        /// Each sample.
        samples_ns: Vec<u64>,
        /// Operations whose effect was found.
        done: u64,
        /// VmHWM before the system began.
        base_kib: u64,
        /// VmHWM.
        peak_kib: u64,
    },
    /// As above.
    Unsupported {
        /// Why.
        unsupported: String,
    },
}

/// A row of the table of systems.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The system's name.
    pub name: &'static str,
    /// Does what it is asked for.
    pub run: fn(&Task) -> Outcome<Finding>,
}

/// Runs this process as a child of the harness. `args` are those after `bench-threads`; `systems`
/// is what this program can be. Errors go to standard error, which the harness shows.
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

/// The most memory that this process has had at a time.
fn peak_kib() -> Outcome<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    peak.ok_or_else(|| "no VmHWM in /proc/self/status".into())
}

/// CPU time of all threads of this process so far, in nanoseconds.
pub fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Calls a function as a task says: the case `procedure-call`, which is the same for every system
/// in this language.
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

/// Nothing but a call: each result is the next one's argument, so the count proves that every call
/// was made.
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
        assert!(
            matches!(serde_json::from_str(line), Ok(Answer::Unsupported { unsupported }) if unsupported == "too many")
        );
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
