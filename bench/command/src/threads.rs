//! Upcall's threads as one of the systems of the suite `threads`.

use std::time::Duration;
use upcall::thread::{self, Condvar, JoinHandle, Mutex, MutexGuard, Processors};
use upcall_bench::child::Outcome;
use upcall_bench::threads::child::Work;
use upcall_bench::threads::library::Library;

/// Upcall's threads on one virtual processor.
pub struct Upcall;

impl Library for Upcall {
    const NAME: &'static str = "upcall";
    type Handle = JoinHandle<u64>;
    type Mutex = Mutex<u64>;
    type Guard<'a> = MutexGuard<'a, u64>;
    type Condvar = Condvar;

    fn enter(cpu: usize, body: impl FnOnce() -> Work + Send + 'static) -> Outcome<Work> {
        Ok(Processors::new().count(1).pin([cpu]).run(body)?)
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
        mutex.lock()
    }

    fn condvar() -> Condvar {
        Condvar::new()
    }

    #[inline(always)]
    fn wait<'a>(condvar: &Condvar, guard: Self::Guard<'a>) -> Self::Guard<'a> {
        condvar.wait(guard)
    }

    #[inline(always)]
    fn notify_one(condvar: &Condvar) {
        condvar.notify_one();
    }

    fn notify_all(condvar: &Condvar) {
        condvar.notify_all();
    }
}
