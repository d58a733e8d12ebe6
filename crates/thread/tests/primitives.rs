//! The other primitives, on one processor, across processors, and with kernel threads.
//!
//! Read-write locks, semaphores, barriers, one-time initialisation, scopes, thread-locals, and
//! waits with timeouts.
#![cfg(not(loom))]

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use upcall_thread as thread;
use upcall_thread::{
    Barrier, LazyLock, Mutex, Once, OnceLock, Processors, RwLock, RwLockWriteGuard, Semaphore,
    Waited, spawn, yield_now,
};

const SHORT: Duration = Duration::from_millis(5);
/// Divisor of the amount of work, under a checker that takes a thousand times as long.
const LESS: usize = if cfg!(miri) { 10 } else { 1 };

fn on<T>(processors: usize, body: impl FnOnce() -> T) -> T {
    Processors::new().count(processors).run(body).unwrap()
}

fn yield_often() {
    (0..20).for_each(|_| yield_now());
}

#[test]
fn a_writer_is_alone_and_readers_are_not() {
    for processors in [1, 2] {
        let lock = Arc::new(RwLock::new(0_u64));
        let (reading, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let kernel = {
            let lock = Arc::clone(&lock);
            std::thread::spawn(move || (0..200 / LESS).for_each(|_| *lock.write() += 1))
        };
        on(processors, || {
            thread::scope(|s| {
                for n in 0..30 / LESS {
                    let (lock, reading, most) = (&lock, &reading, &most);
                    s.spawn(move || {
                        for i in 0..100 / LESS {
                            if (i + n) % 5 == 0 {
                                let mut held = lock.write();
                                assert_eq!(
                                    reading.load(Ordering::SeqCst),
                                    0,
                                    "a reader is in together with the writer"
                                );
                                let before = *held;
                                yield_now();
                                *held = before + 1;
                            } else {
                                let held = lock.read();
                                most.fetch_max(
                                    reading.fetch_add(1, Ordering::SeqCst) + 1,
                                    Ordering::SeqCst,
                                );
                                let before = *held;
                                yield_now();
                                assert_eq!(*held, before, "a writer wrote while a reader was in");
                                reading.fetch_sub(1, Ordering::SeqCst);
                            }
                        }
                    });
                }
            });
        });
        kernel.join().unwrap();
        assert_eq!(*lock.read() as usize, 30 / LESS * (20 / LESS) + 200 / LESS);
        assert!(most.load(Ordering::SeqCst) > 1 || cfg!(miri), "readers were never in together");
    }
}

#[test]
#[cfg_attr(
    any(miri, upcall_kernel_threads),
    ignore = "depends on the order in which threads of one processor run"
)]
fn a_writer_does_not_starve_behind_readers() {
    on(1, || {
        let lock = RwLock::new(0);
        let wrote = AtomicBool::new(false);
        thread::scope(|s| {
            let first = lock.read();
            s.spawn(|| {
                *lock.write() = 1;
                wrote.store(true, Ordering::Relaxed);
            });
            yield_often();
            assert!(
                lock.try_read().is_none(),
                "a reader that comes later queues behind the writer"
            );
            let late = s.spawn(|| *lock.read());
            yield_often();
            assert!(!wrote.load(Ordering::Relaxed));
            drop(first);
            assert_eq!(late.join().unwrap(), 1);
        });
    });
}

#[test]
#[cfg_attr(
    any(miri, upcall_kernel_threads),
    ignore = "depends on the order in which threads of one processor run"
)]
fn a_reader_goes_on_when_the_writer_before_it_gives_up() {
    on(1, || {
        let lock = RwLock::new(7);
        thread::scope(|s| {
            let held = lock.read();
            let writer = s.spawn(|| lock.try_write_for(SHORT).is_none());
            yield_often();
            let reader = s.spawn(|| *lock.read());
            assert!(writer.join().unwrap());
            assert_eq!(reader.join().unwrap(), 7);
            assert!(lock.try_read().is_some(), "no thread waits any more");
            drop(held);
        });
    });
}

#[test]
#[cfg_attr(
    any(miri, upcall_kernel_threads),
    ignore = "depends on the order in which threads of one processor run"
)]
fn a_writer_becomes_a_reader_without_a_gap() {
    on(1, || {
        let lock = RwLock::new(0);
        thread::scope(|s| {
            let mut held = lock.write();
            let reader = s.spawn(|| *lock.read());
            let writer = s.spawn(|| *lock.write() = 9);
            yield_often();
            *held = 1;
            let held = RwLockWriteGuard::downgrade(held);
            assert_eq!(reader.join().unwrap(), 1);
            assert_eq!(*held, 1);
            drop(held);
            writer.join().unwrap();
        });
        assert_eq!(*lock.read(), 9);
    });
}

#[test]
#[cfg_attr(
    any(miri, upcall_kernel_threads),
    ignore = "depends on the order in which threads of one processor run"
)]
fn a_semaphore_counts_and_is_fair() {
    for processors in [1, 2] {
        on(processors, || {
            let semaphore = Semaphore::new(3);
            let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
            thread::scope(|s| {
                for _ in 0..20 {
                    s.spawn(|| {
                        for _ in 0..50 {
                            let _permit = semaphore.acquire();
                            most.fetch_max(
                                inside.fetch_add(1, Ordering::SeqCst) + 1,
                                Ordering::SeqCst,
                            );
                            yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    });
                }
            });
            assert_eq!((most.load(Ordering::SeqCst), semaphore.available()), (3, 3));
        });
    }
    on(1, || {
        let semaphore = Semaphore::new(1);
        thread::scope(|s| {
            let one = semaphore.acquire();
            let many = s.spawn(|| semaphore.acquire_many(3).count());
            yield_often();
            semaphore.release(1);
            assert!(
                semaphore.try_acquire(1).is_none(),
                "a request for few permits does not overtake a request for many"
            );
            assert!(semaphore.acquire_timeout(1, SHORT).is_none());
            semaphore.release(1);
            drop(one);
            assert_eq!(many.join().unwrap(), 3);
        });
        assert_eq!(semaphore.available(), 3);
        semaphore.acquire_many(2).forget();
        assert_eq!(semaphore.available(), 1);
    });
}

#[test]
fn a_barrier_lets_all_go_together_again_and_again() {
    for processors in [1, 2] {
        on(processors, || {
            const PARTIES: usize = 7;
            let (barrier, arrived, leaders) =
                (Barrier::new(PARTIES), AtomicUsize::new(0), AtomicUsize::new(0));
            thread::scope(|s| {
                for _ in 0..PARTIES {
                    s.spawn(|| {
                        for round in 1..=20 {
                            arrived.fetch_add(1, Ordering::SeqCst);
                            let result = barrier.wait();
                            assert!(arrived.load(Ordering::SeqCst) >= round * PARTIES);
                            leaders.fetch_add(usize::from(result.is_leader()), Ordering::SeqCst);
                            barrier.wait();
                        }
                    });
                }
            });
            assert_eq!(leaders.load(Ordering::SeqCst), 20);
        });
    }
}

#[test]
#[cfg_attr(
    any(miri, upcall_kernel_threads),
    ignore = "depends on the order in which threads of one processor run"
)]
fn a_party_that_gives_up_has_not_come() {
    on(1, || {
        let barrier = Barrier::new(2);
        assert!(barrier.wait_timeout(SHORT).is_none());
        assert!(thread::with_deadline(Instant::now() + SHORT, || barrier.wait()).is_err());
        thread::scope(|s| {
            let other = s.spawn(|| barrier.wait().is_leader());
            yield_often();
            assert!(!other.is_finished(), "one party has arrived, not three");
            assert!(barrier.wait_timeout(SHORT).is_some_and(|result| result.is_leader()));
            assert!(!other.join().unwrap());
        });
    });
}

#[test]
fn what_is_done_once_is_done_once() {
    for processors in [1, 2] {
        on(processors, || {
            let (cell, made) = (OnceLock::new(), AtomicUsize::new(0));
            thread::scope(|s| {
                let waiting = s.spawn(|| *cell.wait());
                for _ in 0..20 {
                    s.spawn(|| {
                        let value = cell.get_or_init(|| {
                            made.fetch_add(1, Ordering::SeqCst);
                            thread::sleep(Duration::from_millis(1));
                            42
                        });
                        assert_eq!(*value, 42);
                    });
                }
                assert_eq!(waiting.join().unwrap(), 42);
            });
            assert_eq!(made.load(Ordering::SeqCst), 1);
            assert_eq!(cell.set(1), Err(1));
            assert_eq!(cell.into_inner(), Some(42));
        });
    }
}

#[test]
fn what_panics_was_not_done() {
    on(1, || {
        let once = Once::new();
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            once.call_once(|| panic!("no"))
        }));
        std::panic::set_hook(hook);
        assert!(outcome.is_err() && !once.is_completed());
        assert_eq!(once.wait_timeout(SHORT), Waited::TimedOut);
        once.call_once(|| {});
        assert!(once.is_completed());
        once.call_once(|| unreachable!());
    });
    static LAZY: LazyLock<String> = LazyLock::new(|| "made".to_owned());
    assert_eq!(&*LAZY, "made");
}

#[test]
fn a_scope_waits_for_its_threads_and_lends() {
    for processors in [1, 2] {
        on(processors, || {
            let mut squares = vec![0_usize; 100];
            let sum = thread::scope(|s| {
                let handles: Vec<_> = squares
                    .iter_mut()
                    .enumerate()
                    .map(|(n, square)| {
                        s.spawn(move || {
                            if n % 3 == 0 {
                                thread::sleep(Duration::from_millis(1));
                            }
                            *square = n * n;
                            n
                        })
                    })
                    .collect();
                // Half are joined, half are left to the scope.
                handles.into_iter().step_by(2).map(|handle| handle.join().unwrap()).sum::<usize>()
            });
            assert_eq!(sum, (0..100).step_by(2).sum());
            assert!(squares.iter().enumerate().all(|(n, &square)| square == n * n));
        });
    }
}

#[test]
fn a_scope_panics_if_a_thread_did_that_nobody_joined() {
    on(1, || {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let joined = thread::scope(|s| s.spawn(|| panic!("joined")).join().is_err());
        let left = std::panic::catch_unwind(|| {
            thread::scope(|s| {
                s.spawn(|| panic!("left"));
            });
        });
        std::panic::set_hook(hook);
        assert!(joined && left.is_err());
    });
}

thread::thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
    static NAMES: RefCell<Vec<String>> = RefCell::new(vec!["first".to_owned()]);
}

#[test]
fn each_thread_has_its_own_values() {
    for processors in [1, 2] {
        on(processors, || {
            thread::scope(|s| {
                for n in 1..50 / LESS {
                    s.spawn(move || {
                        assert_eq!(NUMBER.replace(n), 0);
                        NAMES.with_borrow_mut(|names| names.push(n.to_string()));
                        yield_often();
                        assert_eq!(NUMBER.get(), n);
                        NAMES.with_borrow(|names| assert_eq!(names[1], n.to_string()));
                    });
                }
            });
        });
    }
    std::thread::spawn(|| assert_eq!((NUMBER.replace(3), NUMBER.get()), (0, 3))).join().unwrap();
    assert_eq!(NUMBER.get(), 0);
}

#[test]
fn values_of_a_thread_are_dropped_when_it_ends() {
    struct Counted;
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    impl Drop for Counted {
        fn drop(&mut self) {
            // A drop may use other values, and block.
            NUMBER.set(1);
            yield_now();
            assert!(COUNTED.try_with(|_| ()).is_err(), "the value is being dropped");
            DROPPED.fetch_add(1, Ordering::SeqCst);
        }
    }
    thread::thread_local! {
        static COUNTED: Counted = Counted;
    }
    on(2, || {
        let threads: Vec<_> = (0..10).map(|_| spawn(|| COUNTED.with(|_| ()))).collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(DROPPED.load(Ordering::SeqCst), 10, "before the joiner runs on");
    });
    std::thread::spawn(|| COUNTED.with(|_| ())).join().unwrap();
    assert_eq!(DROPPED.load(Ordering::SeqCst), 11, "a kernel thread's too");
}

#[test]
fn every_wait_can_time_out() {
    for processors in [0, 1, 2] {
        let body = || {
            let begun = Instant::now();
            let mutex = Mutex::new(());
            let held = mutex.lock();
            assert!(mutex.try_lock_for(SHORT).is_none());
            drop(held);
            assert!(
                mutex.try_lock_for(SHORT).is_some(),
                "a waiter that gave up left nothing behind"
            );
            let lock = RwLock::new(());
            let held = lock.write();
            assert!(lock.try_read_for(SHORT).is_none());
            assert!(lock.try_write_until(Instant::now() + SHORT).is_none());
            drop(held);
            assert!(lock.try_write().is_some());
            assert!(Semaphore::new(0).acquire_timeout(1, SHORT).is_none());
            assert!(Barrier::new(2).wait_timeout(SHORT).is_none());
            assert_eq!(Once::new().wait_timeout(SHORT), Waited::TimedOut);
            assert!(OnceLock::<u8>::new().wait_timeout(SHORT).is_none());
            assert_eq!(thread::park_timeout(SHORT), Waited::TimedOut);
            assert!(begun.elapsed() >= SHORT * 8);
        };
        if processors == 0 { body() } else { on(processors, body) }
    }
}

#[test]
fn a_join_that_timed_out_may_be_tried_again() {
    for processors in [1, 2] {
        on(processors, || {
            let gate = Arc::new(Semaphore::new(0));
            let theirs = Arc::clone(&gate);
            let mut handle = spawn(move || {
                theirs.acquire().forget();
                "done"
            });
            for _ in 0..3 {
                handle = handle.join_timeout(Duration::from_millis(1)).expect_err("it waits");
            }
            gate.release(1);
            assert_eq!(handle.join().unwrap(), "done");
        });
    }
}

#[test]
fn joins_that_time_out_race_with_ends() {
    on(2, || {
        for n in 0..(2000 / LESS / LESS) as u64 {
            let nap = Duration::from_nanos(n % 97 * 1000);
            let mut handle = spawn(move || {
                let until = Instant::now() + nap;
                while Instant::now() < until {
                    yield_now();
                }
                n
            });
            let result = loop {
                match handle.join_timeout(nap) {
                    Ok(result) => break result,
                    Err(back) => handle = back,
                }
            };
            assert_eq!(result.unwrap(), n);
        }
    });
}

#[test]
fn a_deadline_cuts_a_wait_short_and_drops_what_was_held() {
    for processors in [0, 1, 2] {
        let body = || {
            let (outer, inner) = (Mutex::new(0), Mutex::new(0));
            let held = inner.lock();
            let begun = Instant::now();
            let outcome = thread::with_deadline(begun + SHORT, || {
                let mut guard = outer.lock();
                *guard += 1;
                assert!(thread::deadline().is_some());
                *inner.lock()
            });
            assert_eq!(outcome, Err(thread::DeadlinePassed));
            assert!(begun.elapsed() >= SHORT && thread::deadline().is_none());
            assert_eq!(outer.try_lock().as_deref(), Some(&1), "the guard was dropped");
            drop(held);
            assert!(inner.try_lock().is_some(), "and no waiter is left in the other's list");
            // A wait that ends in time is not cut, and the body's own result comes through.
            assert_eq!(
                thread::with_deadline(Instant::now() + Duration::from_secs(60), || *inner.lock()),
                Ok(0)
            );
        };
        if processors == 0 { body() } else { on(processors, body) }
    }
}

#[test]
fn of_nested_deadlines_the_earliest_counts() {
    on(1, || {
        let far = Instant::now() + Duration::from_secs(60);
        let outcome = thread::with_deadline(Instant::now() + SHORT, || {
            let inner = thread::with_deadline(far, || thread::sleep(Duration::from_secs(60)));
            unreachable!("the outer deadline cut it short, not the inner: {inner:?}")
        });
        assert_eq!(outcome, Err(thread::DeadlinePassed));
        let outcome = thread::with_deadline(far, || {
            thread::with_deadline(Instant::now() + SHORT, thread::park)
        });
        assert_eq!(outcome, Ok(Err(thread::DeadlinePassed)));
    });
}

#[test]
fn every_wait_without_a_timeout_can_be_cut_short() {
    fn cut(wait: impl FnOnce()) {
        let begun = Instant::now();
        assert!(thread::with_deadline(begun + SHORT, wait).is_err());
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    for processors in [1, 2] {
        on(processors, || {
            let mutex = Mutex::new(());
            let lock = RwLock::new(());
            let semaphore = Semaphore::new(0);
            let condvar = thread::Condvar::new();
            let (sender, receiver) = thread::mpsc::sync_channel(0);
            let (held, written) = (mutex.lock(), lock.write());
            cut(|| drop(mutex.lock()));
            cut(|| drop(lock.read()));
            cut(|| drop(lock.write()));
            cut(|| drop(semaphore.acquire()));
            cut(|| drop(condvar.wait(Mutex::new(()).lock())));
            cut(|| assert!(Barrier::new(2).wait().is_leader()));
            cut(|| Once::new().wait());
            cut(|| sender.send(1).unwrap());
            assert!(receiver.try_recv().is_err(), "what was not sent is not there");
            cut(|| assert!(receiver.recv().is_err()));
            cut(thread::park);
            cut(|| thread::sleep(Duration::from_secs(60)));
            let gate = Arc::new(Semaphore::new(0));
            let theirs = Arc::clone(&gate);
            let sleeper = spawn(move || theirs.acquire().forget());
            let id = sleeper.thread().id();
            cut(move || drop(sleeper.join()));
            gate.release(1);
            drop((held, written, id));
        });
    }
}

#[test]
fn a_notification_of_a_thread_that_is_cut_short_goes_to_another() {
    for processors in [1, 2] {
        on(processors, || {
            let (mutex, condvar) = (Mutex::new(()), thread::Condvar::new());
            let waiting = AtomicUsize::new(0);
            let wait = || {
                let held = mutex.lock();
                waiting.fetch_add(1, Ordering::SeqCst);
                drop(condvar.wait(held));
            };
            thread::scope(|s| {
                let cut =
                    s.spawn(|| thread::with_deadline(Instant::now() + SHORT * 6, wait).is_err());
                while waiting.load(Ordering::SeqCst) < 1 {
                    yield_now();
                }
                let other = s.spawn(wait);
                while waiting.load(Ordering::SeqCst) < 2 {
                    yield_now();
                }
                // The oldest waiter is notified, and its deadline passes while it waits for the
                // mutex.
                let held = mutex.lock();
                condvar.notify_one();
                thread::sleep(SHORT * 12);
                assert!(!other.is_finished(), "the mutex is held");
                drop(held);
                let was_cut = cut.join().unwrap();
                if !was_cut {
                    // The machine was so slow that the deadline came before the notification, or so
                    // fast that the deadline did not pass.
                    condvar.notify_one();
                }
                let ended = other.join_timeout(Duration::from_secs(20));
                condvar.notify_all();
                assert!(
                    ended.is_ok(),
                    "the notification was lost with the thread that was cut short"
                );
            });
        });
    }
}

#[test]
#[cfg_attr(
    any(miri, upcall_kernel_threads),
    ignore = "depends on the order in which threads of one processor run"
)]
fn values_made_by_the_drop_of_a_result_are_dropped_too() {
    struct Counted;
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    impl Drop for Counted {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::SeqCst);
        }
    }
    thread::thread_local! {
        static COUNTED: Counted = Counted;
    }
    struct Uses;
    impl Drop for Uses {
        fn drop(&mut self) {
            COUNTED.with(|_| ());
        }
    }
    on(1, || {
        drop(spawn(|| Uses));
        yield_often();
        assert_eq!(DROPPED.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn destructors_that_wait_are_not_cut_short() {
    on(1, || {
        struct Waits<'a>(&'a Semaphore, &'a AtomicBool);
        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                self.0.acquire().forget();
                self.1.store(true, Ordering::Relaxed);
            }
        }
        let (gate, done) = (Semaphore::new(0), AtomicBool::new(false));
        thread::scope(|s| {
            s.spawn(|| {
                thread::sleep(SHORT * 3);
                gate.release(1);
            });
            let outcome = thread::with_deadline(Instant::now() + SHORT, || {
                let _waits = Waits(&gate, &done);
                thread::park();
            });
            assert!(outcome.is_err() && done.load(Ordering::Relaxed));
        });
    });
}

#[test]
fn blocking_work_lets_other_threads_go_on() {
    on(1, || {
        let (ticks, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        let text = "borrowed".to_owned();
        let length = thread::scope(|s| {
            s.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    ticks.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let length = thread::blocking(|| {
                assert!(thread::on_virtual_processor().is_none());
                std::thread::sleep(Duration::from_millis(50));
                text.len()
            });
            done.store(true, Ordering::Relaxed);
            length
        });
        assert_eq!(length, 8);
        assert!(ticks.load(Ordering::Relaxed) > 5, "the other thread stood still: {ticks:?}");
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let outcome = std::panic::catch_unwind(|| thread::blocking(|| panic!("carried")));
        std::panic::set_hook(hook);
        assert_eq!(outcome.unwrap_err().downcast_ref(), Some(&"carried"));
    });
    assert_eq!(thread::blocking(|| 7), 7, "on a kernel thread it just runs");
}

#[test]
fn more_blocking_work_than_kernel_threads_waits_its_turn() {
    const PIECES: usize = if cfg!(miri) { 5 } else { thread::MOST_KERNEL_THREADS * 2 };
    on(2, || {
        let count = AtomicUsize::new(0);
        thread::scope(|s| {
            for _ in 0..PIECES {
                s.spawn(|| {
                    thread::blocking(|| {
                        std::thread::sleep(Duration::from_millis(1));
                        count.fetch_add(1, Ordering::Relaxed);
                    });
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), PIECES);
    });
}
