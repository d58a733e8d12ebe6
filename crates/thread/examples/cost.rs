//! Measures the cost of the basic operations.
//!
//! `cargo run --release -p upcall-thread --example cost [CPU]...` runs one virtual processor on
//! each CPU named, by default on CPU 0. It prints nanoseconds: of several short runs the fastest,
//! as the least disturbed. The rows are those of URPC's Table I.

use std::sync::Arc;
use std::time::Instant;
use upcall_thread as thread;

const RUNS: usize = 15;

fn least(operations: u32, mut run: impl FnMut(u32)) -> f64 {
    (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            run(operations);
            start.elapsed().as_nanos() as f64 / f64::from(operations)
        })
        .fold(f64::INFINITY, f64::min)
}

fn fork_join(n: u32) {
    for _ in 0..n {
        thread::spawn(|| {}).join().unwrap();
    }
}

fn yield_between_two(n: u32) {
    let other = thread::spawn(move || (0..n / 2).for_each(|_| thread::yield_now()));
    (0..n / 2).for_each(|_| thread::yield_now());
    other.join().unwrap();
}

fn lock_unlock(n: u32) {
    let mutex = std::hint::black_box(thread::Mutex::new(0_u32));
    for _ in 0..n {
        *mutex.lock() += 1;
    }
}

/// One round trip per `n`: each side notifies the other and waits.
fn ping_pong(n: u32) {
    let shared = Arc::new((thread::Mutex::new(false), thread::Condvar::new()));
    let play = move |shared: &(thread::Mutex<bool>, thread::Condvar), mine: bool| {
        let mut turn = shared.0.lock();
        for _ in 0..n {
            while *turn != mine {
                turn = shared.1.wait(turn);
            }
            *turn = !mine;
            shared.1.notify_one();
        }
    };
    let theirs = Arc::clone(&shared);
    let other = thread::spawn(move || play(&theirs, true));
    play(&shared, false);
    other.join().unwrap();
}

/// Starts and ends `n` threads that are all alive at once.
fn alive(n: u32) {
    let gate = Arc::new((thread::Mutex::new(0_u32), thread::Condvar::new()));
    let threads: Vec<_> = (0..n)
        .map(|_| {
            let gate = Arc::clone(&gate);
            thread::spawn(move || {
                let mut arrived = gate.0.lock();
                *arrived += 1;
                if *arrived == n {
                    gate.1.notify_all();
                }
                while *arrived < n {
                    arrived = gate.1.wait(arrived);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

fn main() -> std::io::Result<()> {
    let mut cpus: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    if cpus.is_empty() {
        cpus.push(0);
    }
    thread::Processors::new().count(cpus.len()).pin(cpus).run(|| {
        println!("fork+join            {:8.1} ns", least(100_000, fork_join));
        println!("yield                {:8.1} ns", least(200_000, yield_between_two));
        println!("lock+unlock          {:8.1} ns", least(1_000_000, lock_unlock));
        println!("ping-pong round trip {:8.1} ns", least(50_000, ping_pong));
        let start = Instant::now();
        alive(100_000);
        println!(
            "100 000 alive, each  {:8.1} ns (first time)",
            start.elapsed().as_nanos() as f64 / 1e5
        );
        let start = Instant::now();
        alive(100_000);
        println!("100 000 alive, each  {:8.1} ns (again)", start.elapsed().as_nanos() as f64 / 1e5);
    })
}
