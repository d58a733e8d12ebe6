//! Calls by who gives a processor, and by others.

use crate::interfaces::trial::Trial;
use crate::object::compute;
use crate::outcome::{Outcome, say, show};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use upcall::{CallError, Pacing};
use upcall_os::processor::CpuSet;

/// So long after it has said that everybody has a lane, the first calls are made, and the donor's
/// so long after those.
pub const CALLS_AFTER: Duration = Duration::from_millis(300);
const DONOR_AFTER: Duration = Duration::from_millis(50);

/// Calls `compute` from kernel threads on processor 1, which give nothing, and a little later from
/// user-level threads of one virtual processor on processor 0, each of which computes `after` it
/// has its reply. Before, the server is brought to processor 0, `brought_after` the start, which
/// takes the kernel threads 50 ms. Says when everybody has a lane, before these calls; and for each
/// call which in order it was and where it ran: first those of the user-level threads, then the
/// others.
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
                    // All of them at once, so that each has a lane.
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
                    // The server is brought here once, and stays until it sleeps again after that:
                    // it sleeps here, if nobody calls it any more.
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

/// Has one kernel thread call something that computes for so many milliseconds, and another call
/// nothing again and again meanwhile. Says how many of these there were, and how many microseconds
/// the longest took.
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
