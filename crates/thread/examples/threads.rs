//! Dining philosophers, each a thread.
//!
//! Shows spawning, mutexes, a condition variable with a timeout, and how threads spread over the
//! virtual processors:
//! `cargo run --release -p upcall-thread --example threads [PHILOSOPHERS] [MEALS]`.

use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_thread as thread;
use upcall_thread::{Condvar, Mutex};

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse().expect("a number"));
    let philosophers: usize = arguments.next().unwrap_or(10_000).max(2);
    let meals: usize = arguments.next().unwrap_or(20);

    thread::run(|| {
        let forks: Arc<Vec<Mutex<usize>>> =
            Arc::new((0..philosophers).map(|_| Mutex::new(0)).collect());
        let finished = Arc::new((Mutex::new(0_usize), Condvar::new()));
        let start = Instant::now();
        let table: Vec<_> = (0..philosophers)
            .map(|seat| {
                let (forks, finished) = (Arc::clone(&forks), Arc::clone(&finished));
                thread::Builder::new().name(format!("philosopher {seat}")).spawn(move || {
                    // The lower fork first, so that there is no cycle of waits.
                    let (left, right) = (seat, (seat + 1) % philosophers);
                    let (first, second) = (left.min(right), left.max(right));
                    for _ in 0..meals {
                        let mut first = forks[first].lock();
                        let mut second = forks[second].lock();
                        *first += 1;
                        *second += 1;
                        thread::yield_now();
                    }
                    *finished.0.lock() += 1;
                    finished.1.notify_one();
                    thread::on_virtual_processor()
                })
            })
            .collect();

        let mut done = finished.0.lock();
        let mut report_at = start + Duration::from_millis(10);
        while *done < philosophers {
            (done, _) = finished.1.wait_until(done, report_at);
            if Instant::now() < report_at && *done < philosophers {
                continue;
            }
            report_at = Instant::now() + Duration::from_millis(10);
            println!(
                "{:4} ms: {} of {philosophers} have eaten",
                start.elapsed().as_millis(),
                *done
            );
        }
        drop(done);

        let mut places = std::collections::BTreeMap::new();
        for philosopher in table {
            let place = philosopher
                .expect("memory for a stack")
                .join()
                .expect("no panic")
                .expect("on a processor");
            *places.entry(place).or_insert(0_usize) += 1;
        }
        for (place, count) in places {
            println!("virtual processor {place} seated {count}");
        }
        assert!(forks.iter().all(|fork| *fork.lock() == 2 * meals));
    });
}
