//! Kernel threads: what a program has without a thread system. `std`'s threads, mutex and condition
//! variable use the kernel's threads and futexes.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::child::Work;
use super::library::{Library, permitted};
use crate::child::Outcome;

/// Kernel threads.
pub struct Pthread;

/// Limits on the number of threads, and how much of each limit a thread uses: its stack and the
/// stack's guard page are two maps.
const LIMITS: [(&str, u64); 3] =
    [("kernel/pid_max", 1), ("kernel/threads-max", 1), ("vm/max_map_count", 2)];

impl Library for Pthread {
    const NAME: &'static str = "pthread";
    type Handle = JoinHandle<u64>;
    type Mutex = Mutex<u64>;
    type Guard<'a> = MutexGuard<'a, u64>;
    type Condvar = Condvar;

    fn enter(_: usize, body: impl FnOnce() -> Work + Send + 'static) -> Outcome<Work> {
        Ok(body())
    }

    fn holds(threads: u64) -> Result<(), String> {
        permitted(threads, &LIMITS)
    }

    #[inline(always)]
    fn spawn(body: impl FnOnce() -> u64 + Send + 'static) -> JoinHandle<u64> {
        thread::spawn(body)
    }

    #[inline(always)]
    fn join(handle: JoinHandle<u64>) -> u64 {
        handle.join().unwrap()
    }

    #[inline(always)]
    fn yield_now() {
        thread::yield_now();
    }

    fn sleep(time: Duration) {
        thread::sleep(time);
    }

    fn mutex(data: u64) -> Mutex<u64> {
        Mutex::new(data)
    }

    #[inline(always)]
    fn lock(mutex: &Mutex<u64>) -> MutexGuard<'_, u64> {
        mutex.lock().unwrap()
    }

    fn condvar() -> Condvar {
        Condvar::new()
    }

    #[inline(always)]
    fn wait<'a>(condvar: &Condvar, guard: Self::Guard<'a>) -> Self::Guard<'a> {
        condvar.wait(guard).unwrap()
    }

    #[inline(always)]
    fn notify_one(condvar: &Condvar) {
        condvar.notify_one();
    }

    fn notify_all(condvar: &Condvar) {
        condvar.notify_all();
    }
}
