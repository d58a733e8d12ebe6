//! Upcall in the suite `urpc`.

use crate::parts;
use crate::rpc::{Answers, name_in, tests};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use upcall::{Pacing, Server};
use upcall_bench::child::{Outcome, Ready};
use upcall_bench::stats::{Clock, Summary, median};
use upcall_bench::urpc::case::Part;
use upcall_bench::urpc::child::{Calls, ClientSide, Setting, System, WINDOW, Waits};

/// Upcall.
pub struct Upcall;

fn pacing(waits: Waits) -> Pacing {
    match waits {
        Waits::Default => Pacing::default(),
        Waits::Polling => Pacing::Poll,
    }
}

impl System for Upcall {
    type Client = Client;

    fn serve(setting: &Setting, ready: Ready) -> Outcome<()> {
        let server = Server::new()
            .export(&name_in(&setting.dir), tests::export(Answers))
            .pacing(pacing(setting.waits));
        let server = server.processors(setting.config.servers.max(1)).start()?;
        let stop = ready.announce_stoppable();
        stop.wait();
        server.stop();
        Ok(())
    }

    fn connect(setting: &Setting) -> Outcome<Client> {
        Ok(Client { tests: tests::Tests::bind(&name_in(&setting.dir))?, setting: setting.clone() })
    }

    fn part(part: Part, clock: &Clock, samples: &mut [f64]) -> Outcome<()> {
        parts::measure(part, clock, samples)
    }
}
/// A binding, and where to call from.
pub struct Client {
    tests: tests::Tests,
    setting: Setting,
}

impl ClientSide for Client {
    fn calls(&mut self, threads: usize, time: Duration, clock: &Clock) -> Outcome<Calls> {
        let Setting { config, waits, cpus, .. } = &self.setting;
        let processors = upcall::thread::processors(config.clients, pacing(*waits))?;
        let processors = match waits {
            Waits::Default => processors,
            Waits::Polling => processors.pin(cpus.iter().copied()),
        };
        let tests = &self.tests;
        processors.run(|| {
            // Lanes are opened, pages faulted in, and each side learns how long the other takes.
            callers(tests, threads, |counts| untimed_calls(tests, time / 8, counts))?;
            let (calls, per_s) =
                callers(tests, threads, |counts| untimed_calls(tests, time, counts))?;
            let mut samples =
                callers(tests, threads, |counts| timed_calls(tests, time, clock, counts))?;
            let latency = Summary::of(&mut samples, clock, threads as f64 * 1e9 / per_s);
            Ok(Calls { calls, per_s, latency })
        })?
    }
}

/// Maximum number of timed calls in a turn.
const MOST_SAMPLES: usize = 200_000;
/// Number of calls between two readings of the clock.
const CALLS: usize = 32;

/// A thread's calls so far. The alignment is two lines, because processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

impl Count {
    /// Only the counter's own thread adds to it.
    #[inline]
    fn add(&self, calls: u64) {
        self.0.store(self.0.load(Relaxed) + calls, Relaxed);
    }
}

/// Returns the number of calls of all threads so far.
fn sum(counts: &[Count]) -> u64 {
    counts.iter().map(|count| count.0.load(Relaxed)).sum()
}

/// Lets `threads` threads call until the first one has finished `first`, which counts its own
/// calls.
fn callers<T>(
    tests: &tests::Tests,
    threads: usize,
    first: impl FnOnce(&[Count]) -> Outcome<T>,
) -> Outcome<T> {
    let stop = Arc::new(AtomicBool::new(false));
    let counts: Arc<[Count]> = (0..threads).map(|_| Count::default()).collect();
    let others: Vec<_> = (1..threads)
        .map(|own| {
            let (tests, stop, counts) = (tests.clone(), stop.clone(), counts.clone());
            upcall::thread::spawn(move || -> Result<(), String> {
                while !stop.load(Relaxed) {
                    tests.null().map_err(|error| error.to_string())?;
                    counts[own].add(1);
                }
                Ok(())
            })
        })
        .collect();
    let done = first(&counts);
    stop.store(true, Relaxed);
    for thread in others {
        thread.join().map_err(|_| "a caller panicked")??;
    }
    done
}

/// Calls for about `time`. Returns the number of calls of all threads, and their rate per second in
/// the median window.
fn untimed_calls(tests: &tests::Tests, time: Duration, counts: &[Count]) -> Outcome<(u64, f64)> {
    let mut windows = Vec::new();
    let begun = Instant::now();
    let (mut since, mut before) = (begun, sum(counts));
    while begun.elapsed() < time || windows.is_empty() {
        for _ in 0..CALLS {
            tests.null()?;
        }
        counts[0].add(CALLS as u64);
        let now = Instant::now();
        if now - since >= WINDOW {
            let all = sum(counts);
            windows.push((all - before) as f64 / (now - since).as_secs_f64());
            (since, before) = (now, all);
        }
    }
    Ok((sum(counts), median(&windows)))
}

/// Calls for about `time`. Returns the clock's sample of each call.
fn timed_calls(
    tests: &tests::Tests,
    time: Duration,
    clock: &Clock,
    counts: &[Count],
) -> Outcome<Vec<u64>> {
    // Not zero: pages must exist before timing begins.
    let mut samples = vec![1; MOST_SAMPLES];
    let (begun, mut calls) = (Instant::now(), 0);
    for part in samples.chunks_mut(CALLS) {
        clock.time_each(part, || tests.null())?;
        calls += part.len();
        if begun.elapsed() >= time {
            break;
        }
    }
    counts[0].add(calls as u64);
    samples.truncate(calls);
    Ok(samples)
}
