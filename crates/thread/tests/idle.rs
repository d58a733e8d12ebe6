//! The interface to `sched`.
//!
//! Covers the context of the idle loop, the thread that runs the work, and what idling costs.
#![cfg(not(loom))]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::{Duration, Instant};
use upcall_thread as thread;
use upcall_thread::{
    Found, Idle, Parker, Processors, SpinThenPark, ThreadId, Ticket, Vp, Waiter, WaiterCell, block,
};

type Job = Box<dyn FnOnce() + Send>;

/// Work comes from one list, and waiters that `poll` is to wake from another.
struct Mock {
    jobs: StdMutex<VecDeque<Job>>,
    waiters: StdMutex<Vec<Waiter>>,
    parkers: [Parker; 2],
    polls: AtomicUsize,
    worked_by: StdMutex<Vec<ThreadId>>,
}

impl Mock {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            jobs: StdMutex::default(),
            waiters: StdMutex::default(),
            parkers: Default::default(),
            polls: AtomicUsize::new(0),
            worked_by: StdMutex::default(),
        })
    }

    fn has_jobs(&self) -> bool {
        !self.jobs.lock().unwrap().is_empty()
    }

    fn add(&self, job: impl FnOnce() + Send + 'static) {
        self.jobs.lock().unwrap().push_back(Box::new(job));
        self.parkers.iter().for_each(Parker::unpark);
    }
}

impl Idle for Mock {
    fn poll(&self, vp: &Vp) -> Found {
        self.polls.fetch_add(1, Ordering::Relaxed);
        let waiters = std::mem::take(&mut *self.waiters.lock().unwrap());
        if !waiters.is_empty() {
            waiters.into_iter().for_each(Waiter::wake);
            return Found::Woke;
        }
        if vp.has_stack() && self.has_jobs() { Found::Work } else { Found::Nothing }
    }

    fn work(&self, _: &Vp) {
        self.worked_by.lock().unwrap().push(thread::current().id());
        let job = self.jobs.lock().unwrap().pop_front();
        if let Some(job) = job {
            job();
        }
    }

    fn rest(&self, vp: &Vp, round: u32, deadline: Option<Instant>) {
        if round > 10 {
            let work = || vp.has_work() || vp.has_stack() && self.has_jobs();
            self.parkers[vp.index()].park(deadline, work);
        }
    }

    fn unpark(&self, vp: usize) {
        self.parkers[vp].unpark();
    }
}

#[test]
fn a_blocked_thread_polls_for_itself_and_returns_without_a_switch() {
    let mock = Mock::new();
    let inner = Arc::clone(&mock);
    Processors::new()
        .count(1)
        .idle(Arc::clone(&mock) as _)
        .run(|| {
            for _ in 0..100 {
                let before = inner.polls.load(Ordering::Relaxed);
                block(|waiter| inner.waiters.lock().unwrap().push(waiter));
                assert_eq!(inner.polls.load(Ordering::Relaxed), before + 1);
            }
        })
        .unwrap();
    assert!(mock.worked_by.lock().unwrap().is_empty(), "no worker was needed");
}

#[test]
fn polling_is_for_idle_processors() {
    let mock = Mock::new();
    let inner = Arc::clone(&mock);
    Processors::new()
        .count(1)
        .idle(Arc::clone(&mock) as _)
        .run(|| {
            let other = thread::spawn(|| (0..1000).for_each(|_| thread::yield_now()));
            while !other.is_finished() {
                thread::yield_now();
            }
            other.join().unwrap();
            // A thread that blocks while another one is ready does not poll either.
            for _ in 0..100 {
                let cell = Arc::new(WaiterCell::new());
                let waker = Arc::clone(&cell);
                let other = thread::spawn(move || drop(waker.take()));
                block(|waiter| drop(cell.put(waiter)));
                other.join().unwrap();
            }
            assert_eq!(inner.polls.load(Ordering::Relaxed), 0);
        })
        .unwrap();
}

#[test]
fn threads_that_only_yield_do_not_shut_out_work() {
    for yielders in [1, 3] {
        let mock = Mock::new();
        let inner = Arc::clone(&mock);
        Processors::new()
            .count(1)
            .idle(Arc::clone(&mock) as _)
            .run(|| {
                let done = Arc::new(AtomicUsize::new(0));
                let set = Arc::clone(&done);
                inner.add(move || set.store(1, Ordering::Relaxed));
                let threads: Vec<_> = (0..yielders)
                    .map(|_| {
                        let done = Arc::clone(&done);
                        thread::spawn(move || {
                            while done.load(Ordering::Relaxed) == 0 {
                                thread::yield_now();
                            }
                        })
                    })
                    .collect();
                threads.into_iter().for_each(|t| t.join().unwrap());
            })
            .unwrap();
    }
}

#[test]
fn one_worker_runs_all_work_that_does_not_block() {
    let mock = Mock::new();
    let inner = Arc::clone(&mock);
    Processors::new()
        .count(1)
        .idle(Arc::clone(&mock) as _)
        .run(|| {
            let done = Arc::new(AtomicUsize::new(0));
            for _ in 0..100 {
                let done = Arc::clone(&done);
                inner.add(move || {
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
            while done.load(Ordering::Relaxed) < 100 {
                thread::sleep(Duration::from_millis(1));
            }
            let workers = inner.worked_by.lock().unwrap();
            assert_eq!(workers.len(), 100);
            assert!(workers.iter().all(|id| *id == workers[0]), "in place, by one worker");
            assert_ne!(workers[0], thread::current().id());
        })
        .unwrap();
}

#[test]
fn work_that_blocks_gets_another_worker_and_workers_are_reused() {
    let mock = Mock::new();
    let inner = Arc::clone(&mock);
    Processors::new()
        .count(1)
        .idle(Arc::clone(&mock) as _)
        .run(|| {
            for _round in 0..3 {
                let gate = Arc::new((thread::Mutex::new(0_usize), thread::Condvar::new()));
                for _ in 0..10 {
                    let gate = Arc::clone(&gate);
                    inner.add(move || {
                        let mut arrived = gate.0.lock();
                        *arrived += 1;
                        gate.1.notify_all();
                        // All ten are in `work` at once.
                        drop(gate.1.wait_while(arrived, |n| *n < 10));
                    });
                }
                drop(gate.1.wait_while(gate.0.lock(), |n| *n < 10));
            }
            thread::sleep(Duration::from_millis(1));
            let mut workers = inner.worked_by.lock().unwrap().clone();
            assert_eq!(workers.len(), 30);
            workers.sort();
            workers.dedup();
            assert!((10..=12).contains(&workers.len()), "{} workers", workers.len());
        })
        .unwrap();
}

#[test]
fn work_beyond_the_ceiling_waits_until_a_worker_comes_back() {
    let mock = Mock::new();
    let inner = Arc::clone(&mock);
    Processors::new()
        .count(1)
        .most_work(4)
        .idle(Arc::clone(&mock) as _)
        .run(|| {
            let (inside, most, done) = (
                Arc::new(AtomicUsize::new(0)),
                Arc::new(AtomicUsize::new(0)),
                Arc::new(AtomicUsize::new(0)),
            );
            for _ in 0..40 {
                let (inside, most, done) = (inside.clone(), most.clone(), done.clone());
                inner.add(move || {
                    most.fetch_max(inside.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(1));
                    inside.fetch_sub(1, Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
            // Threads that are spawned have stacks of their own.
            let others: Vec<_> = (0..10)
                .map(|_| thread::spawn(|| thread::sleep(Duration::from_millis(5))))
                .collect();
            others.into_iter().for_each(|other| other.join().unwrap());
            while done.load(Ordering::Relaxed) < 40 {
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(most.load(Ordering::Relaxed), 4);
        })
        .unwrap();
}

#[test]
fn workers_that_nobody_wants_give_their_stacks_to_others() {
    let mock = Mock::new();
    let inner = Arc::clone(&mock);
    Processors::new()
        .count(1)
        // Stacks of one size are handed from workers to threads and back.
        .work_stack_size(thread::DEFAULT_STACK_SIZE)
        .idle(Arc::clone(&mock) as _)
        .run(|| {
            let stacks = Arc::new(StdMutex::new(Vec::new()));
            let note = |stacks: &StdMutex<Vec<usize>>| {
                let local = 0_u8;
                stacks.lock().unwrap().push(std::ptr::from_ref(&local).addr());
            };
            let gate = Arc::new((thread::Mutex::new(0_usize), thread::Condvar::new()));
            for _ in 0..600 {
                let (gate, stacks) = (gate.clone(), stacks.clone());
                inner.add(move || {
                    note(&stacks);
                    let mut arrived = gate.0.lock();
                    *arrived += 1;
                    gate.1.notify_all();
                    drop(gate.1.wait_while(arrived, |n| *n < 600));
                });
            }
            drop(gate.1.wait_while(gate.0.lock(), |n| *n < 600));
            let of_workers = std::mem::take(&mut *stacks.lock().unwrap());
            // Of the threads that run at once now, the number whose stack was a worker's.
            let taken_over = || {
                let of_threads = Arc::new(StdMutex::new(Vec::new()));
                let threads = (0..500).map(|_| {
                    let of_threads = of_threads.clone();
                    thread::spawn(move || {
                        note(&of_threads);
                        thread::sleep(Duration::from_millis(20));
                    })
                });
                threads.collect::<Vec<_>>().into_iter().for_each(|other| other.join().unwrap());
                of_threads
                    .lock()
                    .unwrap()
                    .iter()
                    .filter(|&&stack: &&usize| {
                        of_workers.iter().any(|worker| worker.abs_diff(stack) < 16 << 10)
                    })
                    .count()
            };
            let before = taken_over();
            thread::sleep(Duration::from_millis(2500));
            let after = taken_over();
            assert!(
                before < 10 && after > 30,
                "{before}, then {after} of 500 threads had the stack of a worker"
            );
        })
        .unwrap();
}

#[test]
fn a_panic_in_work_ends_that_work_only() {
    let mock = Mock::new();
    let inner = Arc::clone(&mock);
    Processors::new()
        .count(1)
        .idle(Arc::clone(&mock) as _)
        .run(|| {
            let done = Arc::new(AtomicUsize::new(0));
            inner.add(|| panic!("this piece of work"));
            let set = Arc::clone(&done);
            inner.add(move || {
                set.fetch_add(1, Ordering::Relaxed);
            });
            while done.load(Ordering::Relaxed) == 0 {
                thread::sleep(Duration::from_millis(1));
            }
        })
        .unwrap();
}

#[test]
fn work_that_arrives_while_parked_wakes_the_processor() {
    let mock = Mock::new();
    let inner = Arc::clone(&mock);
    Processors::new()
        .count(2)
        .idle(Arc::clone(&mock) as _)
        .run(|| {
            for _ in 0..50 {
                let outside = Arc::clone(&inner);
                let (send, receive) =
                    (Arc::new(StdMutex::new(None)), Arc::new(AtomicUsize::new(0)));
                let (slot, got) = (Arc::clone(&send), Arc::clone(&receive));
                let feeder = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_micros(300));
                    outside.add(move || {
                        got.store(1, Ordering::SeqCst);
                        // The waiter may not be there yet.
                        loop {
                            let waiter: Option<Waiter> = slot.lock().unwrap().take();
                            match waiter {
                                Some(waiter) => return waiter.wake(),
                                None => thread::yield_now(),
                            }
                        }
                    });
                });
                block(|waiter| *send.lock().unwrap() = Some(waiter));
                assert_eq!(receive.load(Ordering::SeqCst), 1);
                feeder.join().unwrap();
            }
        })
        .unwrap();
}

#[test]
fn wakes_from_kernel_threads_are_not_lost() {
    // A lost wake hangs the test.
    Processors::new()
        .count(2)
        .idle(Arc::new(SpinThenPark::with_spins(2, 0)))
        .run(|| {
            let (send, receive) = std::sync::mpsc::channel::<Waiter>();
            let waker = std::thread::spawn(move || receive.into_iter().for_each(Waiter::wake));
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let send = send.clone();
                    thread::spawn(move || {
                        (0..2000).for_each(|_| block(|waiter| send.send(waiter).unwrap()))
                    })
                })
                .collect();
            threads.into_iter().for_each(|t| t.join().unwrap());
            drop(send);
            waker.join().unwrap();
        })
        .unwrap();
}

#[test]
fn a_waiter_in_a_cell_is_woken_by_whoever_takes_it() {
    static CELL: WaiterCell = WaiterCell::new();
    Processors::new()
        .count(2)
        .run(|| {
            assert!(CELL.take().is_none());
            let waker = std::thread::spawn(|| {
                for _ in 0..1000 {
                    loop {
                        if let Some(waiter) = CELL.take() {
                            break waiter.wake();
                        }
                        std::thread::yield_now();
                    }
                }
            });
            for _ in 0..1000 {
                block(|waiter| assert!(CELL.put(waiter).is_none()));
            }
            waker.join().unwrap();
            // A cell that is dropped with a waiter inside wakes it.
            block(|waiter| drop(WaiterCell::new().put(waiter)));
        })
        .unwrap();
}

#[test]
fn a_stale_ticket_wakes_nobody() {
    Processors::new()
        .count(1)
        .run(|| {
            let mut kept: Option<Ticket> = None;
            thread::block_until(Some(Instant::now() + Duration::from_millis(1)), |ticket| {
                kept = Some(ticket)
            });
            assert!(!kept.unwrap().wake());
            let mut early = None;
            let woken = thread::block_until(None, |ticket| {
                early = Some(ticket.wake());
            });
            assert_eq!((woken, early), (thread::Waited::Woken, Some(true)));
        })
        .unwrap();
}

/// Counts what idling does by itself.
struct Counted {
    inner: SpinThenPark,
    rests: AtomicUsize,
}

impl Idle for Counted {
    fn poll(&self, vp: &Vp) -> Found {
        self.inner.poll(vp)
    }

    fn work(&self, vp: &Vp) {
        self.inner.work(vp);
    }

    fn rest(&self, vp: &Vp, round: u32, deadline: Option<Instant>) {
        self.rests.fetch_add(1, Ordering::Relaxed);
        self.inner.rest(vp, round, deadline);
    }

    fn unpark(&self, vp: usize) {
        self.inner.unpark(vp);
    }
}

#[test]
fn an_idle_process_uses_no_processor_time() {
    /// Number of voluntary context switches of this kernel thread.
    fn sleeps() -> i64 {
        // SAFETY: zeros are a valid rusage.
        let mut used: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the rusage is live.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut used) };
        used.ru_nvcsw
    }
    const SPINS: usize = 100;
    let counted = Arc::new(Counted {
        inner: SpinThenPark::with_spins(1, SPINS as u32),
        rests: AtomicUsize::new(0),
    });
    let inner = Arc::clone(&counted);
    Processors::new()
        .count(1)
        .idle(counted)
        .run(|| {
            let (slept, rested) = (sleeps(), inner.rests.load(Ordering::Relaxed));
            for _ in 0..10 {
                thread::sleep(Duration::from_millis(100));
            }
            let (slept, rested) = (sleeps() - slept, inner.rests.load(Ordering::Relaxed) - rested);
            // Each sleep is one kernel sleep, after a bounded spin. A few more have other causes.
            assert!(
                (10..40).contains(&slept),
                "ten sleeps of the thread, {slept} of its kernel thread"
            );
            assert!(rested <= 10 * 2 * (SPINS + 2), "{rested} rounds of idling in ten sleeps");
        })
        .unwrap();
}
