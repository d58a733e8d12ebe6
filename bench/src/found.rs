//! What a client finds of calls and binds.

use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::child::{ClientSide, Outcome};
use crate::stats::{Clock, Summary};

/// What one turn found of one case.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Found {
    /// What each of them took.
    Times(Summary),
    /// How many there were.
    Rate(Throughput),
}

/// How long the two ways of a null call took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Halves {
    /// From before the call to the procedure.
    pub there: Summary,
    /// From the procedure to after the call.
    pub back: Summary,
}

impl Halves {
    /// Takes the times of `count` calls by `call`, which returns what [`Clock::read`] said in the
    /// procedure.
    ///
    /// # Errors
    /// The first call that fails, or no call at all.
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

/// How long binds took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Binds {
    /// Those that opened the channel.
    pub first: Summary,
    /// Those that found it open.
    pub further: Summary,
}

impl Binds {
    /// Takes the times of `rounds` rounds; of fewer if they take longer than a second, as they do
    /// when other programs have the processors. `bind` binds and returns what stands as long as
    /// it is kept.
    ///
    /// # Errors
    /// The first bind that fails, or no round at all.
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
            // The server tidies up after the round; the next one finds it at rest.
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Binds {
            first: Summary::of_durations(&mut first),
            further: Summary::of_durations(&mut further),
        })
    }
}

/// Calls made in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throughput {
    /// Calls that came back.
    pub calls: u64,
    /// From the first call's start to the last one's end, nanoseconds.
    pub elapsed_ns: u64,
}

impl Throughput {
    /// `calls` calls in `elapsed`.
    pub fn new(calls: u64, elapsed: Duration) -> Throughput {
        Throughput { calls, elapsed_ns: elapsed.as_nanos() as u64 }
    }

    /// One caller, one call at a time.
    ///
    /// # Errors
    /// The first failed call.
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

    /// `callers` kernel threads on this processor, each with a client of its own from `connect`.
    /// The clients are connected before the time begins.
    ///
    /// # Errors
    /// The first failed connection or call.
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
