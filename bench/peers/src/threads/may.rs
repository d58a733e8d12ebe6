//! May: coroutines with stacks, scheduled by one worker. It is used like `std`'s threads.

use std::time::Duration;

use may::coroutine::{self, JoinHandle};
use may::sync::{Condvar, Mutex, MutexGuard};
use upcall_bench::child::Outcome;
use upcall_bench::threads::child::Work;
use upcall_bench::threads::library::{Library, permitted};

pub struct May;

impl Library for May {
    const NAME: &'static str = "may";
    type Handle = JoinHandle<u64>;
    type Mutex = Mutex<u64>;
    type Guard<'a> = MutexGuard<'a, u64>;
    type Condvar = Condvar;

    fn enter(_: usize, body: impl FnOnce() -> Work + Send + 'static) -> Outcome<Work> {
        may::config().set_workers(1);
        may::go!(body).join().map_err(|_| "a coroutine panicked".into())
    }

    /// Every stack has a guard page, and a stack and its guard page are two maps.
    fn holds(threads: u64) -> Result<(), String> {
        permitted(threads, &[("vm/max_map_count", 2)])
    }

    #[inline(always)]
    fn spawn(body: impl FnOnce() -> u64 + Send + 'static) -> JoinHandle<u64> {
        may::go!(body)
    }

    #[inline(always)]
    fn join(handle: JoinHandle<u64>) -> u64 {
        handle.join().unwrap()
    }

    #[inline(always)]
    fn yield_now() {
        coroutine::yield_now();
    }

    fn sleep(time: Duration) {
        coroutine::sleep(time);
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
