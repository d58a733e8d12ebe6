//! A client's findings about calls and binds.

use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::child::{ClientSide, Outcome};
use crate::stats::{Clock, Summary};

/// The finding of one turn of a case.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Found {
    /// Durations of single operations.
    Times(Summary),
    /// Number of operations in a time.
    Rate(Throughput),
}

/// Durations of the two directions of a null call.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Halves {
    /// From before the call until the procedure runs.
    pub there: Summary,
    /// From the procedure until after the call.
    pub back: Summary,
}

impl Halves {
    /// Times `count` calls. `call` returns the value of [`Clock::read`] in the procedure.
    ///
    /// # Errors
    /// The first call that fails, or no call was made.
    pub fn time(
        count: usize,
        clock: &Clock,
        mut call: impl FnMut() -> Outcome<u64>,
    ) -> Outcome<Halves> {
        if count == 0 {
            return Err("a count of 0 has no percentiles".into());
        }
        let (mut there, mut back) = (vec![1; count], vec![1; count]);
        for (there, back) in there.iter_mut().zip(&mut back) {
            let begun = clock.read();
            let between = call()?;
            *there = between.wrapping_sub(begun);
            *back = clock.read().wrapping_sub(between);
        }
        let of = |samples: &mut [u64]| {
            let mean = samples.iter().map(|&sample| clock.ns(sample)).sum::<f64>() / count as f64;
            Summary::of(samples, clock, mean)
        };
        Ok(Halves { there: of(&mut there), back: of(&mut back) })
    }
}

/// Durations of binds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Binds {
    /// Binds that opened the channel.
    pub first: Summary,
    /// Binds that found the channel open.
    pub further: Summary,
}

impl Binds {
    /// Times `rounds` rounds, or fewer if they take longer than a second, as happens when other
    /// programs have the processors. `bind` binds and returns the binding, which stays open until
    /// it is dropped.
    ///
    /// # Errors
    /// The first bind that fails, or no round was made.
    pub fn time<B>(rounds: usize, mut bind: impl FnMut() -> Outcome<B>) -> Outcome<Binds> {
        const FURTHER: usize = 4;
        const MOST: Duration = Duration::from_secs(1);
        if rounds == 0 {
            return Err("a count of 0 has no percentiles".into());
        }
        let mut timed = || {
            let begun = Instant::now();
            bind().map(|bound| (begun.elapsed().as_nanos() as u64, bound))
        };
        let (mut first, mut further) =
            (Vec::with_capacity(rounds), Vec::with_capacity(rounds * FURTHER));
        let begun = Instant::now();
        for round in 0..rounds {
            if round > 0 && begun.elapsed() > MOST {
                break;
            }
            let (spent, opener) = timed()?;
            first.push(spent);
            let mut standing = vec![opener];
            for _ in 0..FURTHER {
                let (spent, bound) = timed()?;
                further.push(spent);
                standing.push(bound);
            }
            drop(standing);
            // The server cleans up after the round; the next round finds it idle.
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Binds {
            first: Summary::of_durations(&mut first),
            further: Summary::of_durations(&mut further),
        })
    }
}

/// Number of calls in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throughput {
    /// Number of completed calls.
    pub calls: u64,
    /// Time from the start of the first call to the end of the last one, in nanoseconds.
    pub elapsed_ns: u64,
}

impl Throughput {
    /// Creates a throughput of `calls` calls in `elapsed`.
    pub fn new(calls: u64, elapsed: Duration) -> Throughput {
        Throughput { calls, elapsed_ns: elapsed.as_nanos() as u64 }
    }

    /// Measures one caller, with one call at a time.
    ///
    /// # Errors
    /// The first call that fails.
    pub fn one_caller(client: &mut impl ClientSide, time: Duration) -> Outcome<Throughput> {
        let (begun, mut calls) = (Instant::now(), 0);
        while begun.elapsed() < time {
            for _ in 0..16 {
                client.null()?;
            }
            calls += 16;
        }
        Ok(Throughput::new(calls, begun.elapsed()))
    }

    /// Measures `callers` kernel threads on this processor, each with its own client from
    /// `connect`. All clients connect before the measured time begins.
    ///
    /// # Errors
    /// The first connection or call that fails.
    pub fn kernel_threads<C: ClientSide + Send>(
        callers: usize,
        time: Duration,
        mut connect: impl FnMut() -> Outcome<C>,
    ) -> Outcome<Throughput> {
        let clients = (0..callers).map(|_| connect()).collect::<Outcome<Vec<C>>>()?;
        let stop = AtomicBool::new(false);
        let begun = Instant::now();
        let calls: Outcome<u64> = thread::scope(|scope| {
            let run = |mut client: C| {
                let mut calls = 0;
                while !stop.load(Relaxed) {
                    client.null()?;
                    calls += 1;
                }
                Ok(calls)
            };
            let threads: Vec<_> =
                clients.into_iter().map(|client| scope.spawn(move || run(client))).collect();
            thread::sleep(time);
            stop.store(true, Relaxed);
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("a caller panicked".into())))
                .sum()
        });
        Ok(Throughput::new(calls?, begun.elapsed()))
    }
}
