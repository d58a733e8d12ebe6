//! A server and a client whose only difference between two builds is the library (`against.py`).
//!
//! `against server NAME MODE CPU` serves until standard input ends.
//! `against client NAME MODE CPU MILLISECONDS` measures each case for this time, and writes a line
//! `CASE NANOSECONDS` with the median of one call. MODE is `polled` or `parked`. Each process runs
//! on one processor.
#![allow(missing_docs, reason = "a program")]

use std::error::Error;
use std::hint::black_box;
use std::io::{BufRead, stdin};
use std::time::{Duration, Instant};
use upcall::{Bytes, Pacing, Server};

include!(concat!(env!("OUT_DIR"), "/against.rs"));

struct Answers;

impl calls::Serve for Answers {
    fn null(&self) {}

    fn in_fixed(&self, data: &[u8; 200]) -> u64 {
        sum(data)
    }

    fn in_any(&self, data: Bytes<'_>) -> u64 {
        data.fold_words(0, u64::wrapping_add, |sum, byte| sum.wrapping_add(byte.into()))
    }
}

/// Returns the sum of the words of `data`, whose length is a multiple of eight.
#[inline(never)]
fn sum(data: &[u8]) -> u64 {
    data.as_chunks().0.iter().fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// Rewrites all of `data`, whose length is a multiple of eight. Returns the sum of its words.
#[inline(never)]
fn fill(data: &mut [u8], seed: u64) -> u64 {
    let mut sum = 0_u64;
    for (at, word) in data.as_chunks_mut().0.iter_mut().enumerate() {
        let value = seed.wrapping_add(at as u64);
        *word = value.to_le_bytes();
        sum = sum.wrapping_add(value);
    }
    sum
}

/// Returns the median time of one call, in nanoseconds. The clock is read once for `batch` calls.
fn measure(
    most: Duration,
    batch: u32,
    mut call: impl FnMut(u64) -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let mut samples = Vec::with_capacity(1 << 20);
    let (begun, mut seed) = (Instant::now(), 0);
    // The first eighth of the time warms up caches.
    let warm = most / 8;
    loop {
        let start = Instant::now();
        for _ in 0..batch {
            seed += 1;
            call(seed)?;
        }
        let took = start.elapsed();
        if begun.elapsed() > warm {
            samples.push(took.as_nanos() as f64 / f64::from(batch));
        }
        if begun.elapsed() > most {
            samples.sort_by(f64::total_cmp);
            return Ok(samples[samples.len() / 2]);
        }
    }
}

fn same(found: u64, expected: u64) -> Result<(), Box<dyn Error>> {
    if found == expected { Ok(()) } else { Err("the server read different bytes".into()) }
}

fn client(name: &str, pacing: Pacing, most: Duration) -> Result<(), Box<dyn Error>> {
    let calls = calls::Calls::bind(name)?;
    calls.set_pacing(pacing);
    let null = measure(most, 16, |_| Ok(calls.null()?))?;
    println!("null {null}");
    let mut small = [0; 200];
    let fixed = measure(most, 16, |seed| {
        let expected = fill(black_box(&mut small), seed);
        same(calls.in_fixed(&small)?, expected)
    })?;
    println!("200-bytes {fixed}");
    for (case, len) in [("4-kib", 4 << 10), ("64-kib", 64 << 10), ("1-mib", 1 << 20)] {
        let mut large = vec![0; len];
        let any = measure(most, 1, |seed| {
            let expected = fill(black_box(&mut large), seed);
            same(calls.in_any(&large)?, expected)
        })?;
        println!("{case} {any}");
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, role, name, mode, cpu, rest @ ..] = words.as_slice() else {
        return Err("see the source".into())
    };
    let pacing = if mode == "polled" { Pacing::Poll } else { Pacing::Sleep };
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu.parse()?);
    rustix::thread::sched_setaffinity(None, &set)?;
    if role == "client" {
        let most: u64 = rest.first().ok_or("no time")?.parse()?;
        return client(name, pacing, Duration::from_millis(most));
    }
    let server = Server::new().export(name, calls::export(Answers)).pacing(pacing).processors(1);
    let running = server.start()?;
    println!("ready");
    stdin().lock().lines().for_each(drop);
    drop(running);
    Ok(())
}
