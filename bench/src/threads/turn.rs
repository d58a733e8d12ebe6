//! One turn of one system: a process of its own, which does what it is asked for and ends.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::case::Case;
use super::child::Answer;
use crate::place;
use crate::process::{ChildError, Process};

/// Longest time for a child to end that has answered: it may have gigabytes to give back.
const END: Duration = Duration::from_secs(20);

/// What to start.
#[derive(Debug, Clone)]
pub struct Spec<'a> {
    /// The program.
    pub exe: &'a Path,
    /// The system.
    pub system: &'a str,
    /// Which operation; none for `idle`.
    pub case: Option<Case>,
    /// Threads at once.
    pub threads: u64,
    /// Operations of one sample.
    pub ops: u64,
    /// How many samples.
    pub samples: u64,
    /// The processor.
    pub cpu: usize,
    /// Where its standard error goes.
    pub errors: &'a Path,
}

/// What a child has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Each sample, and the most memory at a time.
    Samples {
        /// Nanoseconds.
        ns: Vec<u64>,
        /// VmHWM before the system began.
        base_kib: u64,
        /// VmHWM.
        peak_kib: u64,
    },
    /// The child cannot do this, and why.
    Unsupported(String),
}

/// Runs a child to its end.
///
/// # Errors
/// [`ChildError`], also when the child has not done all of its work.
pub fn take(spec: &Spec<'_>, interrupted: &AtomicBool) -> Result<Found, ChildError> {
    let case = spec.case.map_or("idle", Case::kind);
    let mut command = Command::new(spec.exe);
    command.args(["bench-threads", spec.system, case]);
    command.args([spec.threads, spec.ops, spec.samples].map(|count| count.to_string()));
    // The reason stands in the line before a backtrace, and the harness shows the last lines.
    command.env("RUST_BACKTRACE", "0");
    let errors = spec.errors.to_owned();
    // A child inherits the processors of its starter. Only so are all of them confined alike,
    // whatever they are written in.
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
        Err(_) => return Err(process.fault(&format!("answered by `{line}`, which is no answer"))),
    };
    process.end(END, interrupted)?;
    Ok(found)
}
