//! Upcall as one of the systems of the suite `rpc`.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use upcall::{Bytes, Pacing, Server};
use upcall_bench::case::{BIG, Mode, Placement};
use upcall_bench::child::{Binds, ClientSide, Halves, Outcome, Place, Ready, System, Throughput};
use upcall_bench::lrpc::{DEFAULT, ONE};
use upcall_bench::payload::{Checksum, answer};
use upcall_bench::stats::Clock;

upcall::interface!("wit/tests.wit");

/// Upcall, as a system of the harness.
pub struct Upcall<W>(PhantomData<W>);

/// A way of waiting.
pub trait Waits: Send + 'static {
    /// Name of the system.
    const NAME: &'static str;
    /// `true` if a single caller is a kernel thread. Several callers are user-level threads.
    const KERNEL: bool;
    /// Pacing of server and client.
    fn pacing(place: &Place) -> Pacing;

    /// Number of virtual processors of a server that may use this number of processors.
    fn processors(cpus: usize) -> usize {
        cpus
    }
}

/// Waits as the mode says.
pub struct AsTold;

/// Waits in the default way.
pub struct ByDefault;

/// Waits in the default way, with one virtual processor regardless of the number of processors.
pub struct OneByDefault;

impl Waits for AsTold {
    const NAME: &'static str = "upcall";
    const KERNEL: bool = false;

    fn pacing(place: &Place) -> Pacing {
        match (place.placement, place.mode) {
            // Like a program without settings.
            (Placement::Unpinned, _) => Pacing::default(),
            (_, Mode::Polling) => Pacing::Poll,
            (_, Mode::Parked) => Pacing::Sleep,
        }
    }

    fn processors(_: usize) -> usize {
        1
    }
}

impl Waits for ByDefault {
    const NAME: &'static str = DEFAULT;
    const KERNEL: bool = true;

    fn pacing(_: &Place) -> Pacing {
        Pacing::default()
    }
}

/// The server's implementation of the interface.
pub(super) struct Answers;

impl tests::Serve for Answers {
    fn null(&self) {}

    fn add(&self, a: i32, b: i32) -> i32 {
        answer::add(a, b)
    }

    fn big_in(&self, data: &[u8; BIG]) -> u64 {
        answer::bytes_in(data)
    }

    fn big_in_out(&self, data: &[u8; BIG]) -> [u8; BIG] {
        answer::big_in_out(data)
    }

    fn stamp(&self) -> u64 {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        CLOCK.get_or_init(Clock::calibrated).read()
    }

    fn bytes_in(&self, data: Bytes<'_>) -> u64 {
        let word = |mut sum: Checksum, word: u64| {
            sum.word(word);
            sum
        };
        // All measured sizes are whole words.
        data.fold_words(Checksum::default(), word, |sum, _| sum).value()
    }
}

/// Returns the pair's own name in the directory of names.
pub(super) fn name_in(dir: &Path) -> String {
    let path = dir.to_string_lossy();
    let clean: String = path.chars().rev().filter(char::is_ascii_alphanumeric).take(40).collect();
    format!("bench-{clean}")
}

impl Waits for OneByDefault {
    const NAME: &'static str = ONE;
    const KERNEL: bool = true;

    fn pacing(_: &Place) -> Pacing {
        Pacing::default()
    }

    fn processors(_: usize) -> usize {
        1
    }
}

impl<W: Waits> System for Upcall<W> {
    const NAME: &'static str = W::NAME;
    type Client = Client<W>;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        let server = Server::new()
            .export(&name_in(&place.dir), tests::export(Answers))
            .pacing(W::pacing(place));
        let server = server.processors(W::processors(place.cpus.len())).start()?;
        let stop = ready.announce_stoppable();
        stop.wait();
        server.stop();
        Ok(())
    }

    fn connect(place: &Place) -> Outcome<Client<W>> {
        let tests = tests::Tests::bind(&name_in(&place.dir))?;
        tests.set_pacing(W::pacing(place));
        Ok(Client {
            tests,
            pacing: W::pacing(place),
            name: name_in(&place.dir),
            waits: PhantomData,
        })
    }
}

pub struct Client<W> {
    tests: tests::Tests,
    pacing: Pacing,
    name: String,
    waits: PhantomData<W>,
}

impl<W: Waits> ClientSide for Client<W> {
    fn null(&mut self) -> Outcome<()> {
        Ok(self.tests.null()?)
    }

    fn add(&mut self, a: i32, b: i32) -> Outcome<i32> {
        Ok(self.tests.add(a, b)?)
    }

    fn big_in(&mut self, data: &[u8; BIG]) -> Outcome<u64> {
        Ok(self.tests.big_in(data)?)
    }

    fn big_in_out(&mut self, data: &[u8; BIG]) -> Outcome<[u8; BIG]> {
        Ok(self.tests.big_in_out(data)?)
    }

    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        Ok(self.tests.bytes_in(data)?)
    }

    /// Runs user-level threads on one virtual processor, as a program with many callers would.
    fn throughput(&mut self, callers: usize, time: Duration) -> Option<Outcome<Throughput>> {
        if W::KERNEL {
            return (callers == 1).then(|| Throughput::one_caller(self, time));
        }
        Some(threads(&self.tests, self.pacing, callers, time))
    }

    fn bind(&mut self, rounds: usize) -> Option<Outcome<Binds>> {
        // The channel lives as long as a binding.
        self.tests = tests::Tests::local(Answers);
        let binds = Binds::time(rounds, || Ok(tests::Tests::bind(&self.name)?));
        Some(binds.and_then(|binds| {
            self.tests = tests::Tests::bind(&self.name)?;
            self.tests.set_pacing(self.pacing);
            Ok(binds)
        }))
    }

    fn mix(
        &mut self,
        others: &[PathBuf],
        first: usize,
        time: Duration,
    ) -> Option<Outcome<Throughput>> {
        Some(self.mixed(others, first, time))
    }

    fn halves(&mut self, count: usize, clock: &Clock) -> Option<Outcome<Halves>> {
        Some(Halves::time(count, clock, || Ok(self.tests.stamp()?)))
    }
}

impl<W> Client<W> {
    fn mixed(&self, others: &[PathBuf], first: usize, time: Duration) -> Outcome<Throughput> {
        let all: Vec<_> =
            others.iter().map(|dir| tests::Tests::bind(&name_in(dir))).collect::<Result<_, _>>()?;
        all.iter().for_each(|tests| tests.set_pacing(self.pacing));
        let mut all = [&self.tests].into_iter().chain(&all).cycle();
        let (begun, mut calls) = (Instant::now(), 0);
        while begun.elapsed() < time {
            for call in 0..16 {
                // Spread, so that the calls to one server are not consecutive.
                let own = (call * 7) % 16 < first;
                let tests = if own { &self.tests } else { all.next().ok_or("no server")? };
                tests.null()?;
            }
            calls += 16;
        }
        Ok(Throughput::new(calls, begun.elapsed()))
    }
}

fn threads(
    tests: &tests::Tests,
    pacing: Pacing,
    callers: usize,
    time: Duration,
) -> Outcome<Throughput> {
    let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let run = || {
        let begun = Instant::now();
        let threads: Vec<_> = (0..callers)
            .map(|_| {
                let (tests, stop, calls) = (tests.clone(), stop.clone(), calls.clone());
                upcall::thread::spawn(move || {
                    let mut own = 0;
                    let outcome = loop {
                        if stop.load(Relaxed) {
                            break Ok(());
                        }
                        if let Err(error) = tests.null() {
                            stop.store(true, Relaxed);
                            break Err(error.to_string());
                        }
                        own += 1;
                        if own % 64 == 0 && begun.elapsed() >= time {
                            stop.store(true, Relaxed);
                        }
                    };
                    calls.fetch_add(own, Relaxed);
                    outcome
                })
            })
            .collect();
        for thread in threads {
            thread.join().map_err(|_| "a caller panicked")??;
        }
        Ok(Throughput::new(calls.load(Relaxed), begun.elapsed()))
    };
    upcall::thread::processors(1, pacing)?.run(run)?
}
