//! Mutex and condition variable: on one processor, across processors, and with kernel threads.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use upcall_thread as thread;
use upcall_thread::{Condvar, Mutex, Processors, Waited};

fn on<T>(processors: usize, body: impl FnOnce() -> T) -> T {
    Processors::new().count(processors).run(body).unwrap()
}

/// Divisor of the amount of work, under a checker that takes a thousand times as long.
const LESS: usize = if cfg!(miri) { 10 } else { 1 };

#[test]
fn a_mutex_excludes() {
    for processors in [1, 2, 3] {
        let count = on(processors, || {
            let count = Arc::new(Mutex::new(0_u64));
            let threads: Vec<_> = (0..50 / LESS)
                .map(|n| {
                    let count = Arc::clone(&count);
                    thread::spawn(move || {
                        for i in 0..200 / LESS {
                            let mut held = count.lock();
                            let before = *held;
                            if (i + n) % 3 == 0 {
                                thread::yield_now();
                            }
                            *held = before + 1;
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|t| t.join().unwrap());
            *count.lock()
        });
        assert_eq!(count as usize, 50 / LESS * (200 / LESS));
    }
}

#[test]
#[cfg_attr(
    any(miri, upcall_kernel_threads),
    ignore = "depends on the order in which threads of one processor run"
)]
fn a_mutex_is_first_come_first_served() {
    on(1, || {
        let order = Arc::new(Mutex::new(Vec::new()));
        let held = order.lock();
        let threads: Vec<_> = (0..20)
            .map(|n| {
                let order = Arc::clone(&order);
                thread::spawn(move || order.lock().push(n))
            })
            .collect();
        for _ in 0..100 {
            thread::yield_now();
        }
        assert!(order.try_lock().is_none());
        drop(held);
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*order.lock(), (0..20).collect::<Vec<_>>());
    });
}

#[test]
fn a_panic_unlocks() {
    on(2, || {
        let mutex = Arc::new(Mutex::new(1));
        let inner = Arc::clone(&mutex);
        let panicked = thread::spawn(move || {
            let mut held = inner.lock();
            *held = 2;
            panic!("with the lock held");
        });
        assert!(panicked.join().is_err());
        assert_eq!(*mutex.lock(), 2);
    });
}

#[test]
fn ping_pong_across_processors_and_kernel_threads() {
    fn play(table: &(Mutex<usize>, Condvar), mine: usize, players: usize, rounds: usize) {
        for _ in 0..rounds {
            let mut turn = table.0.lock();
            while *turn % players != mine {
                turn = table.1.wait(turn);
            }
            *turn += 1;
            drop(turn);
            table.1.notify_all();
        }
    }
    const ROUNDS: usize = 300 / LESS;
    let table = Arc::new((Mutex::new(0), Condvar::new()));
    // Player 0 is an ordinary kernel thread; 1 to 3 are user-level, on either of two processors.
    let outside = {
        let table = Arc::clone(&table);
        std::thread::spawn(move || play(&table, 0, 4, ROUNDS))
    };
    on(2, || {
        let players: Vec<_> = (1..4)
            .map(|mine| {
                let table = Arc::clone(&table);
                thread::spawn(move || play(&table, mine, 4, ROUNDS))
            })
            .collect();
        players.into_iter().for_each(|p| p.join().unwrap());
    });
    outside.join().unwrap();
    assert_eq!(*table.0.lock(), 4 * ROUNDS);
}

#[test]
fn a_wait_with_timeout_ends_either_way() {
    for processors in [1, 2] {
        on(processors, || {
            let pair = Arc::new((Mutex::new(false), Condvar::new()));
            let start = Instant::now();
            let (held, waited) = pair.1.wait_timeout(pair.0.lock(), Duration::from_millis(5));
            assert_eq!(waited, Waited::TimedOut);
            assert!(start.elapsed() >= Duration::from_millis(5));
            drop(held);

            let notifier = Arc::clone(&pair);
            let notifier = thread::spawn(move || {
                *notifier.0.lock() = true;
                notifier.1.notify_one();
            });
            let mut held = pair.0.lock();
            while !*held {
                let waited;
                (held, waited) = pair.1.wait_timeout(held, Duration::from_secs(20));
                assert_eq!(waited, Waited::Woken);
            }
            drop(held);
            notifier.join().unwrap();
        });
    }
}

/// Consumers take every token although some keep giving up: those use up no notification.
#[test]
fn timeouts_race_with_notifications() {
    on(2, || {
        const TOKENS: usize = if cfg!(miri) { 40 } else { 2000 };
        let shared = Arc::new((Mutex::new(0_usize), Condvar::new(), AtomicUsize::new(0)));
        let consumers: Vec<_> = (0..8_u64)
            .map(|n| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    while shared.2.load(Ordering::Relaxed) < TOKENS {
                        let timeout = Duration::from_micros(20 + n * 13);
                        let (mut tokens, _) = shared.1.wait_timeout(shared.0.lock(), timeout);
                        if *tokens > 0 {
                            *tokens -= 1;
                            shared.2.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        for n in 0..TOKENS {
            *shared.0.lock() += 1;
            shared.1.notify_one();
            if n % 7 == 0 {
                thread::sleep(Duration::from_micros(30));
            }
        }
        consumers.into_iter().for_each(|c| c.join().unwrap());
        assert_eq!(*shared.0.lock(), 0);
    });
}

#[test]
fn kernel_threads_lock_and_wait_without_a_processor() {
    const EACH: usize = 1000 / LESS / LESS;
    let pair = Arc::new((Mutex::new(0), Condvar::new()));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let pair = Arc::clone(&pair);
            std::thread::spawn(move || {
                for _ in 0..EACH {
                    *pair.0.lock() += 1;
                }
                pair.1.notify_all();
            })
        })
        .collect();
    let held = pair.1.wait_while(pair.0.lock(), |n| *n < 4 * EACH);
    assert_eq!(*held, 4 * EACH);
    drop(held);
    let (_, waited) = pair.1.wait_timeout(pair.0.lock(), Duration::from_millis(3));
    assert_eq!(waited, Waited::TimedOut);
    threads.into_iter().for_each(|t| t.join().unwrap());
    thread::yield_now();
    thread::sleep(Duration::from_millis(1));
    thread::current().unpark();
    thread::park();
}
