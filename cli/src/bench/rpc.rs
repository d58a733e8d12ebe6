//! Upcall as one of the systems of the suite `rpc`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use upcall::{Bytes, Pacing, Server};
use upcall_bench::case::{BIG, Mode};
use upcall_bench::child::{Binds, ClientSide, Outcome, Place, Ready, System, Throughput};
use upcall_bench::payload::{Checksum, answer};

upcall::interface!("wit/tests.wit");

/// Upcall, as a system of the harness.
pub struct Upcall;

/// The server's side of the interface.
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

    fn bytes_in(&self, data: Bytes<'_>) -> u64 {
        let word = |mut sum: Checksum, word: u64| {
            sum.word(word);
            sum
        };
        // The sizes measured are whole words.
        data.fold_words(Checksum::default(), word, |sum, _| sum).value()
    }
}

/// The pair's own name in the folder of names.
pub(super) fn name_in(dir: &Path) -> String {
    let path = dir.to_string_lossy();
    let clean: String = path.chars().rev().filter(char::is_ascii_alphanumeric).take(40).collect();
    format!("bench-{clean}")
}

fn pacing(mode: Mode) -> Pacing {
    match mode {
        Mode::Polling => Pacing::Poll,
        Mode::Parked => Pacing::Sleep,
    }
}

impl System for Upcall {
    const NAME: &'static str = "upcall";
    type Client = Client;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        let server = Server::new().export(&name_in(&place.dir), tests::export(Answers)).pacing(pacing(place.mode)).start()?;
        let stop = ready.announce_stoppable();
        stop.wait();
        server.stop();
        Ok(())
    }

    fn connect(place: &Place) -> Outcome<Client> {
        let tests = tests::Tests::bind(&name_in(&place.dir))?;
        tests.set_pacing(pacing(place.mode));
        Ok(Client { tests, mode: place.mode, name: name_in(&place.dir) })
    }
}

pub struct Client {
    tests: tests::Tests,
    mode: Mode,
    name: String,
}

impl ClientSide for Client {
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

    /// User-level threads on one virtual processor, as a program with many callers would have them.
    fn throughput(&mut self, callers: usize, time: Duration) -> Option<Outcome<Throughput>> {
        Some(threads(&self.tests, self.mode, callers, time))
    }

    fn bind(&mut self, rounds: usize) -> Option<Outcome<Binds>> {
        // The channel stands as long as a binding does.
        self.tests = tests::Tests::local(Answers);
        let binds = Binds::time(rounds, || Ok(tests::Tests::bind(&self.name)?));
        Some(binds.and_then(|binds| {
            self.tests = tests::Tests::bind(&self.name)?;
            self.tests.set_pacing(pacing(self.mode));
            Ok(binds)
        }))
    }
}

fn threads(tests: &tests::Tests, mode: Mode, callers: usize, time: Duration) -> Outcome<Throughput> {
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
    upcall::thread::processors(1, pacing(mode))?.run(run)?
}
