//! Calls in which the kernel has no part, or less than usual.

use crate::client::{Outcome, done};
use crate::interfaces::trial::Trial;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use std::error::Error;
use std::io::Write;
use upcall::Pacing;
use upcall_os::processor::Processors;

/// Makes so many calls on a kernel thread whose every system call but `write` is death, and says so by a `write`: from that thread itself, or from `users`
/// user-level threads of which it is the virtual processor. The process is then of no more use.
pub(crate) fn without_kernel(trial: &Trial, calls: u64, users: usize) -> Outcome {
    trial.set_pacing(Pacing::Poll);
    let forbid = forbid_all_but_write()?;
    let run = || {
        Processors::only(0).confine()?;
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
    std::thread::scope(|scope| scope.spawn(run).join()).map_err(|_| "the calling thread panicked")??;
    done()
}

fn forbid_all_but_write() -> Result<BpfProgram, Box<dyn Error>> {
    // The number of `write` on this machine.
    const WRITE: i64 = 1;
    let filter =
        SeccompFilter::new([(WRITE, vec![])].into(), SeccompAction::KillThread, SeccompAction::Allow, TargetArch::x86_64)?;
    Ok(filter.try_into()?)
}

fn call_without(trial: &Trial, forbid: &BpfProgram, calls: impl Fn(&Trial) -> bool) -> std::io::Result<()> {
    // Whatever is set up at first calls, stacks and memory included.
    assert!(all_go_well(trial, 1000) && calls(trial));
    let mut out = std::io::stdout().lock();
    seccompiler::apply_filter(forbid).map_err(std::io::Error::other)?;
    let went_well = calls(trial);
    // The end of the kernel thread takes system calls, so it does not come to that.
    out.write_all(if went_well { b"ok without\n" } else { b"ok failed\n" }).and_then(|()| out.flush())
}

fn all_go_well(trial: &Trial, calls: u64) -> bool {
    (0..calls).all(|i| trial.null().is_ok() && trial.add(i as u32, 1) == Ok(i as u32 + 1))
}

/// From now on this process has no asynchronous requests, as in many a sandbox.
///
/// # Errors
/// The filter is refused.
pub fn without_io_submit() -> Result<(), Box<dyn Error>> {
    // The numbers of `io_setup` and `io_submit` on this machine, and `EPERM`.
    let denied = [(206, vec![]), (209, vec![])].into();
    let filter = SeccompFilter::new(denied, SeccompAction::Allow, SeccompAction::Errno(1), TargetArch::x86_64)?;
    let filter: BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter(&filter)?)
}
