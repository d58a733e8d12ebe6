//! The child's side of the suite `links`.
//!
//! ```text
//! EXE bench-links CASE
//! ```
//! runs the simulator once, prints one line of JSON, and exits successfully:
//! `{"messages":M,"cpu_ns":N,"base_kib":B,"peak_kib":K}`. `messages` is the number of messages that
//! have arrived, `cpu_ns` the processor time of the run, `peak_kib` the peak memory of the process
//! (VmHWM), and `base_kib` that before the run. Errors go to standard error, with an unsuccessful
//! exit. The child dies with the harness.

use std::ffi::OsString;
use std::process::ExitCode;

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::case::Case;
use crate::child::{Outcome, exit};
use crate::threads::child::{cpu_ns, peak_kib};

/// The cost of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// Number of messages that have arrived.
    pub messages: u64,
    /// Processor time, in nanoseconds.
    pub cpu_ns: u64,
    /// Peak memory of the process before the run, in KiB.
    pub base_kib: u64,
    /// Peak memory of the process, in KiB.
    pub peak_kib: u64,
}

/// Runs this process as a child of the harness. `args` are the arguments after `bench-links`;
/// `simulate` runs a case and returns the number of messages that have arrived.
pub fn child_main(
    args: impl IntoIterator<Item = OsString>,
    simulate: impl FnOnce(Case) -> Outcome<u64>,
) -> ExitCode {
    exit(run(args, simulate))
}

fn run(
    args: impl IntoIterator<Item = OsString>,
    simulate: impl FnOnce(Case) -> Outcome<u64>,
) -> Outcome<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let args: Vec<String> =
        args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let [case] = &args[..] else { return Err("usage: bench-links CASE".into()) };
    let case: Case = case.parse()?;
    let (base_kib, begun) = (peak_kib()?, cpu_ns());
    let messages = simulate(case)?;
    let (cpu_ns, peak_kib) = (cpu_ns() - begun, peak_kib()?);
    let growth = Growth { messages, cpu_ns, base_kib, peak_kib };
    println!("{}", serde_json::to_string(&growth)?);
    Ok(())
}
