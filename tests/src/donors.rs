//! Calls by threads that donate a processor, beside calls by threads that do not.

use crate::interfaces::trial::Trial;
use crate::object::compute;
use crate::outcome::{Outcome, say, show};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use upcall::{CallError, Pacing};
use upcall_os::processor::CpuSet;

/// Time from the report that all have a lane to the first calls, and from those to the donor's
/// calls.
pub const CALLS_AFTER: Duration = Duration::from_millis(300);
const DONOR_AFTER: Duration = Duration::from_millis(50);

/// Calls `compute` from kernel threads on processor 1, which donate nothing, and a little later
/// from user-level threads of one virtual processor on processor 0. Each user-level thread computes
/// for `after` once it has its reply. Before that, the server is brought to processor 0,
/// `brought_after` the start, which takes the kernel threads 50 ms.
///
/// Reports when all have a lane, before these calls. Then reports for each call its place in the
/// order and where it ran: first those of the user-level threads, then the others.
pub(crate) fn turns(
    trial: &Trial,
    others: usize,
    own: usize,
    [time, after, brought_after]: [Duration; 3],
) -> Outcome {
    let call = move |trial: &Trial| trial.compute(time.as_millis() as u32);
    let ready = Barrier::new(others + 2);
    let (own, others) = std::thread::scope(|scope| {
        trial.set_pacing(Pacing::Poll);
        let ready = &ready;
        let others: Vec<_> = (0..others)
            .map(|_| {
                scope.spawn(move || {
                    let _ = CpuSet::only(1).confine();
                    // All call at once, so that each has a lane.
                    trial.nap(50)?;
                    ready.wait();
                    std::thread::sleep(CALLS_AFTER);
                    call(trial)
                })
            })
            .collect();
        let own =
            scope.spawn(move || -> Result<Vec<_>, Box<dyn std::error::Error + Send + Sync>> {
                CpuSet::only(0).confine()?;
                let run = upcall::thread::processors(1, Pacing::Adaptive)?.run(|| {
                    // This call brings the server here once. It stays until it next sleeps, which
                    // it does here if it gets no more calls.
                    upcall::thread::sleep(brought_after);
                    trial.null()?;
                    ready.wait();
                    upcall::thread::sleep(CALLS_AFTER + DONOR_AFTER);
                    let call = |_| {
                        let trial = trial.clone();
                        upcall::thread::spawn(move || {
                            let turn = call(&trial);
                            compute(after);
                            turn
                        })
                    };
                    let threads: Vec<_> = (0..own).map(call).collect();
                    threads
                        .into_iter()
                        .map(|thread| thread.join().expect("it does not panic"))
                        .collect::<Result<_, CallError>>()
                });
                Ok(run??)
            });
        ready.wait();
        say(Ok(Vec::new()));
        (
            own.join(),
            others.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>(),
        )
    });
    let mut turns = own.map_err(|_| "a scheduler panicked")?.map_err(|error| error.to_string())?;
    for other in others {
        turns.push(other.map_err(|_| "a caller panicked")??);
    }
    Ok(turns
        .into_iter()
        .flat_map(|(order, place)| [order.to_string(), place.to_string()])
        .collect())
}

/// Makes one kernel thread call a procedure that computes for `ms` milliseconds, while another
/// makes null calls. Reports the number of null calls, and the longest time of one in microseconds.
pub(crate) fn beside_a_long_call(trial: &Trial, ms: u32) -> Outcome {
    std::thread::scope(|scope| {
        let long = scope.spawn(|| trial.compute(ms));
        std::thread::sleep(Duration::from_millis(20));
        let (mut calls, mut longest) = (0, Duration::ZERO);
        while !long.is_finished() {
            let start = Instant::now();
            trial.null()?;
            longest = longest.max(start.elapsed());
            calls += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        long.join().map_err(|_| "a caller panicked")??;
        show([calls, longest.as_micros() as u64])
    })
}
