//! One turn of one system: a process that runs a task and ends.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::case::Case;
use super::child::Answer;
use crate::place;
use crate::process::{ChildError, Process};

/// Maximum time for a child to end after it has answered: it may have gigabytes to free.
const END: Duration = Duration::from_secs(20);

/// The turn to run.
#[derive(Debug, Clone)]
pub struct Spec<'a> {
    /// The program.
    pub exe: &'a Path,
    /// The system.
    pub system: &'a str,
    /// The operation; `None` for `idle`.
    pub case: Option<Case>,
    /// Number of threads at once.
    pub threads: u64,
    /// Number of operations in one sample.
    pub ops: u64,
    /// Number of samples.
    pub samples: u64,
    /// The processor.
    pub cpu: usize,
    /// File for its standard error.
    pub errors: &'a Path,
}

/// The finding of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The samples, and the peak memory.
    Samples {
        /// The samples, in nanoseconds.
        ns: Vec<u64>,
        /// VmHWM before the system began, in KiB.
        base_kib: u64,
        /// VmHWM, in KiB.
        peak_kib: u64,
    },
    /// The child cannot run this task, with the reason.
    Unsupported(String),
}

/// Runs a child to its end.
///
/// # Errors
/// [`ChildError`], also if the child has not completed all of its work.
pub fn take(spec: &Spec<'_>, interrupted: &AtomicBool) -> Result<Found, ChildError> {
    let case = spec.case.map_or("idle", Case::kind);
    let mut command = Command::new(spec.exe);
    command.args(["bench-threads", spec.system, case]);
    command.args([spec.threads, spec.ops, spec.samples].map(|count| count.to_string()));
    // Without a backtrace the reason is the last line; the harness shows the last lines.
    command.env("RUST_BACKTRACE", "0");
    let errors = spec.errors.to_owned();
    // A child inherits the processors of its parent. Only this confines all children alike, in any
    // language.
    let started = place::on(spec.cpu, || Process::start(command, spec.system.to_owned(), errors));
    let mut process =
        started.map_err(|error| ChildError::Start { exe: spec.exe.to_owned(), error })??;
    let patience = spec.case.map_or(Duration::from_secs(20), Case::patience);
    let line = process.line(case, Instant::now() + patience, interrupted)?;
    let found = match serde_json::from_str(&line) {
        Ok(Answer::Unsupported { unsupported }) => Found::Unsupported(unsupported),
        Ok(Answer::Done { samples_ns, done, base_kib, peak_kib }) => {
            let asked = spec.case.map_or(spec.ops * spec.samples, |case| case.ops_in(spec.samples));
            if done != asked || samples_ns.len() as u64 != spec.samples {
                let samples = samples_ns.len();
                return Err(process.fault(&format!(
                    "did {done} of {asked} operations, in {samples} of {} samples",
                    spec.samples
                )));
            }
            Found::Samples { ns: samples_ns, base_kib, peak_kib }
        }
        Err(_) => return Err(process.fault(&format!("gave the invalid answer `{line}`"))),
    };
    process.end(END, interrupted)?;
    Ok(found)
}
