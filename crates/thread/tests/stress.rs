//! Everything at once, on more virtual processors than there are CPUs.
//!
//! A lost wake hangs the test; a thread that runs twice or on a wrong stack breaks its sums. The
//! test takes a second; `UPCALL_STRESS_SECONDS` sets another duration.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use upcall_thread as thread;
use upcall_thread::{
    Condvar, JoinHandle, Mutex, Processors, RwLock, Semaphore, Waiter, WaiterCell, block,
};

/// A small generator (Marsaglia's xorshift), so that a run can be repeated from its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

struct World {
    started: AtomicU64,
    ended: AtomicU64,
    counter: Mutex<u64>,
    expected: AtomicU64,
    tokens: Mutex<u64>,
    more_tokens: Condvar,
    cells: [WaiterCell; 4],
    parked: Mutex<Vec<thread::Thread>>,
    /// Two halves that are always equal.
    pair: RwLock<(u64, u64)>,
    permits: Semaphore,
    inside: AtomicU64,
}

const PERMITS: usize = 3;

impl World {
    fn new() -> Self {
        Self {
            started: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            counter: Mutex::default(),
            expected: AtomicU64::new(0),
            tokens: Mutex::default(),
            more_tokens: Condvar::new(),
            cells: Default::default(),
            parked: Mutex::default(),
            pair: RwLock::default(),
            permits: Semaphore::new(PERMITS),
            inside: AtomicU64::new(0),
        }
    }

    /// Reads or writes the pair, with a timeout or without.
    fn use_pair(&self, dice: &mut Dice) {
        let timeout = Duration::from_micros(dice.roll(100));
        match dice.roll(4) {
            0 => {
                if let Some(mut pair) = self.pair.try_write_for(timeout) {
                    pair.0 += 1;
                    thread::yield_now();
                    pair.1 += 1;
                }
            }
            1 => {
                let mut pair = self.pair.write();
                pair.0 += 1;
                pair.1 += 1;
            }
            2 => {
                if let Some(pair) = self.pair.try_read_for(timeout) {
                    thread::yield_now();
                    assert_eq!(pair.0, pair.1);
                }
            }
            _ => {
                let pair = self.pair.read();
                assert_eq!(pair.0, pair.1);
            }
        }
    }

    /// Takes permits, and checks that no more are out than exist.
    fn use_permits(&self, dice: &mut Dice) {
        let wants = dice.roll(PERMITS as u64) as usize + 1;
        let permits = match dice.roll(2) {
            0 => Some(self.permits.acquire_many(wants)),
            _ => self.permits.acquire_timeout(wants, Duration::from_micros(dice.roll(100))),
        };
        if let Some(permits) = permits {
            let inside = self.inside.fetch_add(wants as u64, Ordering::SeqCst) + wants as u64;
            assert!(inside <= PERMITS as u64);
            if dice.roll(2) == 0 {
                thread::yield_now();
            }
            self.inside.fetch_sub(wants as u64, Ordering::SeqCst);
            drop(permits);
        }
    }

    /// Locks the counter under a deadline while holding the pair.
    ///
    /// Whether or not that succeeds, everything is released.
    fn hurry(&self, dice: &mut Dice) {
        let soon = Instant::now() + Duration::from_micros(dice.roll(100));
        let added = thread::with_deadline(soon, || {
            let pair = self.pair.read();
            let mut counter = self.counter.lock();
            *counter += 1;
            assert_eq!(pair.0, pair.1);
        });
        if added.is_ok() {
            self.expected.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds one to the counter, and sometimes yields while it holds the lock.
    fn count(&self, dice: &mut Dice) {
        self.expected.fetch_add(1, Ordering::Relaxed);
        let mut counter = self.counter.lock();
        let before = *counter;
        if dice.roll(8) == 0 {
            thread::yield_now();
        }
        *counter = before + 1;
    }
}

fn live(world: &Arc<World>, mut dice: Dice, depth: u64) {
    world.started.fetch_add(1, Ordering::Relaxed);
    let place = thread::on_virtual_processor();
    let mut children: Vec<(u64, JoinHandle<u64>)> = Vec::new();
    for _ in 0..dice.roll(20) + 5 {
        match dice.roll(14) {
            0 | 1 if depth > 0 => {
                let seed = dice.roll(u64::MAX - 1) + 1;
                let inner = Arc::clone(world);
                let child = move || {
                    live(&inner, Dice(seed), depth - 1);
                    seed
                };
                if dice.roll(4) == 0 {
                    drop(thread::spawn(child));
                } else {
                    children.push((seed, thread::spawn(child)));
                }
            }
            2 => {
                if let Some((seed, child)) = children.pop() {
                    match child.join_timeout(Duration::from_micros(dice.roll(300))) {
                        Ok(ended) => assert_eq!(ended.unwrap(), seed),
                        Err(child) => children.push((seed, child)),
                    }
                }
            }
            3 => world.count(&mut dice),
            4 => {
                *world.tokens.lock() += 1;
                world.more_tokens.notify_one();
            }
            5 => {
                let timeout = Duration::from_micros(dice.roll(200));
                let (mut tokens, _) = world.more_tokens.wait_timeout(world.tokens.lock(), timeout);
                *tokens = tokens.saturating_sub(1);
            }
            6 => thread::sleep(Duration::from_micros(dice.roll(50))),
            7 => {
                let cell = &world.cells[dice.roll(4) as usize];
                // The next thread that comes here wakes this one; so does the feeder.
                block(|waiter| drop(cell.put(waiter)));
            }
            8 => {
                world.parked.lock().push(thread::current());
                thread::park_timeout(Duration::from_micros(dice.roll(100)));
            }
            9 => {
                let parked = world.parked.lock().pop();
                if let Some(parked) = parked {
                    parked.unpark();
                }
            }
            10 => world.use_pair(&mut dice),
            11 => world.use_permits(&mut dice),
            12 => world.hurry(&mut dice),
            _ => thread::yield_now(),
        }
        assert_eq!(
            thread::on_virtual_processor(),
            place,
            "a started thread stays on its processor"
        );
    }
    for (seed, child) in children {
        assert_eq!(child.join().unwrap(), seed);
    }
    world.ended.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn everything_at_once() {
    let seconds =
        std::env::var("UPCALL_STRESS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1.0);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut round = 0;
    while Instant::now() < end {
        round += 1;
        let world = Arc::new(World::new());
        let feeder = {
            let world = Arc::clone(&world);
            move || {
                while Arc::strong_count(&world) > 1 {
                    world.cells.iter().filter_map(WaiterCell::take).for_each(Waiter::wake);
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        };
        let feeder = std::thread::spawn(feeder);
        Processors::new()
            .count(1 + round % 4)
            .run(|| {
                let roots: Vec<_> = (1..=20_u64)
                    .map(|n| {
                        let world = Arc::clone(&world);
                        let seed = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ round as u64;
                        thread::spawn(move || live(&world, Dice(seed), 4))
                    })
                    .collect();
                roots.into_iter().for_each(|root| root.join().unwrap());
                // Waits for the detached threads.
                while world.ended.load(Ordering::Relaxed) < world.started.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_micros(100));
                }
                assert_eq!(*world.counter.lock(), world.expected.load(Ordering::Relaxed));
                world.parked.lock().clear();
                // The end of `run` abandons threads that have been spawned but not started, and
                // their references to the world with them. So wait for those threads too.
                let start = Instant::now();
                while Arc::strong_count(&world) > 2 && start.elapsed() < Duration::from_secs(60) {
                    thread::sleep(Duration::from_micros(100));
                }
                assert_eq!(Arc::strong_count(&world), 2, "a thread never ended");
            })
            .unwrap();
        drop(world);
        feeder.join().unwrap();
    }
}
