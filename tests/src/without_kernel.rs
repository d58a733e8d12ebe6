//! Calls without the kernel, or with less of it than usual.

use crate::interfaces::trial::Trial;
use crate::outcome::{Outcome, done};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::error::Error;
use std::io::Write;
use upcall::Pacing;
use upcall_os::processor::CpuSet;

/// Makes `calls` calls on a kernel thread that any system call kills, except a `write` to standard
/// output, by which the thread reports at the end. If `users` is above 0, that many user-level
/// threads call, and the kernel thread is their virtual processor. Afterwards the process is of no
/// use.
pub(crate) fn without_kernel(trial: &Trial, calls: u64, users: usize) -> Outcome {
    trial.set_pacing(Pacing::Poll);
    let forbid = forbid_all_but_reports()?;
    let run = || {
        CpuSet::only(0).confine()?;
        if users == 0 {
            return call_without(trial, &forbid, |trial| all_go_well(trial, calls));
        }
        upcall::thread::processors(1, Pacing::Poll)?.run(|| {
            call_without(trial, &forbid, |trial| {
                let start = |_| {
                    let trial = trial.clone();
                    upcall::thread::spawn(move || all_go_well(&trial, calls / users as u64))
                };
                let threads: Vec<_> = (0..users).map(start).collect();
                threads.into_iter().all(|thread| thread.join().is_ok_and(|well| well))
            })
        })?
    };
    std::thread::scope(|scope| scope.spawn(run).join())
        .map_err(|_| "the calling thread panicked")??;
    done()
}

fn forbid_all_but_reports() -> Result<BpfProgram, Box<dyn Error>> {
    // The number of `write` on x86-64.
    const WRITE: i64 = 1;
    // A doorbell is rung by a `write`, too, but to another descriptor.
    let to_stdout = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 1)?;
    let rules = [(WRITE, vec![SeccompRule::new(vec![to_stdout])?])].into();
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::KillThread,
        SeccompAction::Allow,
        TargetArch::x86_64,
    )?;
    Ok(filter.try_into()?)
}

/// Makes the next system call of this kernel thread end the process, except the call that gives
/// back stacks.
///
/// # Errors
/// If the filter is refused.
pub(crate) fn forbid_here() -> Result<(), Box<dyn Error>> {
    // The number of `madvise` on x86-64. Once a second idle workers give back the used part of
    // their stacks.
    const MADVISE: i64 = 28;
    let filter = SeccompFilter::new(
        [(MADVISE, vec![])].into(),
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        TargetArch::x86_64,
    )?;
    let filter: BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter(&filter)?)
}

/// Makes `calls` calls to a server whose virtual processor dies, with the whole process, at any
/// further system call.
pub(crate) fn to_server_without_kernel(trial: &Trial, calls: u64) -> Outcome {
    trial.set_pacing(Pacing::Poll);
    CpuSet::only(0).confine()?;
    if !all_go_well(trial, 1000) {
        return Err("calls before the filter fail".into());
    }
    trial.forbid_kernel()?;
    for i in 0..calls {
        trial.null().map_err(|error| format!("call {i} after the filter: {error}"))?;
        if trial.add(i as u32, 1)? != i as u32 + 1 {
            return Err(format!("call {i} after the filter: a wrong sum").into());
        }
    }
    done()
}

fn call_without(
    trial: &Trial,
    forbid: &BpfProgram,
    calls: impl Fn(&Trial) -> bool,
) -> std::io::Result<()> {
    // The first calls set up everything, including stacks and memory.
    assert!(all_go_well(trial, 1000) && calls(trial));
    let mut out = std::io::stdout().lock();
    seccompiler::apply_filter(forbid).map_err(std::io::Error::other)?;
    let went_well = calls(trial);
    // The report comes now: the end of the kernel thread takes system calls, which kill it.
    out.write_all(if went_well { b"ok without\n" } else { b"ok failed\n" })
        .and_then(|()| out.flush())
}

fn all_go_well(trial: &Trial, calls: u64) -> bool {
    (0..calls).all(|i| trial.null().is_ok() && trial.add(i as u32, 1) == Ok(i as u32 + 1))
}

/// System calls by name, with their numbers on x86-64.
const NUMBERS: [(&str, i64); 11] = [
    ("mprotect", 10),
    ("mremap", 25),
    ("madvise", 28),
    ("prctl", 157),
    ("sched_setaffinity", 203),
    ("sched_getaffinity", 204),
    ("io_setup", 206),
    ("io_submit", 209),
    ("membarrier", 324),
    ("sched_setattr", 314),
    ("sched_yield", 24),
];

/// A filter under which these calls, separated by commas, fail with `EPERM`, or with `ENOSYS` if
/// the name ends in an exclamation mark. If the name ends in a plus sign, the call ends the
/// process.
fn denying(names: &str) -> Result<BpfProgram, Box<dyn Error>> {
    const EPERM: u32 = 1;
    const ENOSYS: u32 = 38;
    let action = match names.chars().last() {
        Some('!') => SeccompAction::Errno(ENOSYS),
        Some('+') => SeccompAction::KillProcess,
        _ => SeccompAction::Errno(EPERM),
    };
    let denied = names.trim_end_matches(['!', '+']).split(',').map(|name| {
        let number = NUMBERS
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| format!("no call {name:?} is known here"))?;
        Ok((number.1, vec![]))
    });
    let denied = denied.collect::<Result<_, Box<dyn Error>>>()?;
    Ok(SeccompFilter::new(denied, SeccompAction::Allow, action, TargetArch::x86_64)?.try_into()?)
}

/// Refuses these calls from now on to all threads of this process, as many sandboxes do. See
/// [`denying`].
///
/// # Errors
/// If a name is not known, or the filter is refused.
pub fn without(names: &str) -> Outcome {
    seccompiler::apply_filter_all_threads(&denying(names)?)?;
    done()
}
