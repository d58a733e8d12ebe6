//! One client of many servers.

use crate::interfaces::trial::Trial;
use crate::outcome::{Outcome, show};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use upcall::Pacing;

/// Counts of the calls to one server.
#[derive(Default)]
struct Tally {
    calls: AtomicU64,
    longest_us: AtomicU64,
}

/// Calls each of the servers in turn for `time`, from `users` user-level threads, or from the
/// kernel thread if `users` is 0. Reports the number of calls in all, the number to the server that
/// had the fewest, and the longest time of one in microseconds.
pub(crate) fn everywhere(names: &str, time: Duration, users: usize) -> Outcome {
    let trials = names.split(',').map(Trial::bind).collect::<Result<Vec<_>, _>>()?;
    let servers: Arc<Vec<(Trial, Tally)>> =
        Arc::new(trials.into_iter().map(|trial| (trial, Tally::default())).collect());
    let end = Instant::now() + time;
    if users == 0 {
        call_in_turn(&servers, 0, end)?;
    } else {
        let servers = servers.clone();
        upcall::thread::processors(1, Pacing::Adaptive)?.run(|| {
            let start = |first| {
                let servers = servers.clone();
                upcall::thread::spawn(move || {
                    call_in_turn(&servers, first, end).map_err(|error| error.to_string())
                })
            };
            let threads: Vec<_> = (0..users).map(start).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| "a caller panicked".to_owned())?)
        })??;
    }
    let calls = || servers.iter().map(|(_, tally)| tally.calls.load(Ordering::Relaxed));
    let longest = servers.iter().map(|(_, tally)| tally.longest_us.load(Ordering::Relaxed)).max();
    show([calls().sum(), calls().min().unwrap_or(0), longest.unwrap_or(0)])
}

fn call_in_turn(
    servers: &[(Trial, Tally)],
    first: usize,
    end: Instant,
) -> Result<(), upcall::CallError> {
    for (trial, tally) in servers.iter().cycle().skip(first % servers.len()) {
        let start = Instant::now();
        if start >= end {
            break;
        }
        assert_eq!(trial.add(2, 3)?, 5);
        tally.calls.fetch_add(1, Ordering::Relaxed);
        tally.longest_us.fetch_max(start.elapsed().as_micros() as u64, Ordering::Relaxed);
    }
    Ok(())
}
