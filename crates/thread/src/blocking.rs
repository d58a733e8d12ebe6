//! Blocking work, run on other kernel threads so that the virtual processor is not blocked.
//!
//! A few kernel threads do nothing else. One is started when all are busy, up to
//! [`MOST_KERNEL_THREADS`]. A kernel thread that has been idle for ten seconds ends. The work and
//! its result stay in the frame of the thread that waits for them, so nothing is allocated and
//! borrowing is allowed.

use crate::block::{Published, wait};
use crate::current::Me;
use crate::record::Cause;
use crate::vp::here;
use crate::waiter::QueuedWait;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of pieces of blocking work that run at once.
///
/// Further ones wait until one is done, first come, first served.
pub const MOST_KERNEL_THREADS: usize = 512;

const KEEP: Duration = Duration::from_secs(10);

/// Runs `work` on a kernel thread of its own, and returns its result.
///
/// Only the calling thread waits; the others of its virtual processor run on. This is for system
/// calls that may block (files, sockets, `waitpid`), locks of `std`, and libraries that use either.
///
/// It costs two switches between kernel threads, some 10 to 100 µs, so it pays for work that may
/// take longer. At most [`MOST_KERNEL_THREADS`] pieces of work run at once in the process; further
/// ones wait their turn. On an ordinary kernel thread `work` just runs. Since `work` is on another
/// kernel thread, it finds other thread-locals, and cannot [`spawn`](crate::spawn).
/// [`with_deadline`](crate::with_deadline) does not cut the wait short, since `work` borrows.
///
/// ```
/// use upcall_thread as thread;
///
/// thread::run(|| {
///     let path = String::from("/proc/self/comm");
///     let name = thread::blocking(|| std::fs::read_to_string(&path));
///     assert!(name.is_ok());
/// });
/// ```
///
/// # Panics
/// If `work` panics, or when it is the first in line and no kernel thread can be started for it.
pub fn blocking<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if here().is_none() {
        return work();
    }
    let mut result = None;
    {
        let mut work = Some(work);
        let mut run = || {
            if let Some(work) = work.take() {
                result = Some(catch_unwind(AssertUnwindSafe(work)));
            }
        };
        let run: &mut (dyn FnMut() + Send) = &mut run;
        // SAFETY: only the lifetime changes. The calling thread stays in `wait` until the work has
        // run, even if it panicked: `BlockingJob` wakes it once, after its last use of the pointer,
        // and nothing cuts the wait short.
        let run: *mut (dyn FnMut() + Send) =
            unsafe { std::mem::transmute::<_, &mut (dyn FnMut() + Send + 'static)>(run) };
        wait(Me::find(), Cause::Blocking, ptr::null(), None, |mine| {
            let job = BlockingJob { run, waiting: mine };
            match AsideThreads::give(job) {
                Ok(()) => Published::Yes,
                Err(_) => Published::No,
            }
        });
    }
    match result {
        Some(Ok(result)) => result,
        Some(Err(payload)) => resume_unwind(payload),
        None => panic!(
            "upcall-thread: no kernel thread could be started for blocking work, and none is \
             there; the process has too many (see `ulimit -u`)"
        ),
    }
}

/// A piece of work, and the thread that waits for it.
struct BlockingJob {
    run: *mut (dyn FnMut() + Send),
    waiting: QueuedWait,
}

// SAFETY: the work is `Send`, and one kernel thread uses the pointer, while its owner waits.
unsafe impl Send for BlockingJob {}

struct AsideThreads {
    jobs: VecDeque<BlockingJob>,
    /// Number of kernel threads, and of those that are idle.
    there: usize,
    idle: usize,
}

static ASIDE: Mutex<AsideThreads> =
    Mutex::new(AsideThreads { jobs: VecDeque::new(), there: 0, idle: 0 });
static GIVEN: Condvar = Condvar::new();

fn aside() -> MutexGuard<'static, AsideThreads> {
    // No code panics while the lock is held.
    ASIDE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AsideThreads {
    /// Hands `job` to a kernel thread, now or later.
    ///
    /// Returns the job if there is no kernel thread and none can be started.
    fn give(job: BlockingJob) -> Result<(), BlockingJob> {
        let run = job.run;
        let mut aside = aside();
        aside.jobs.push_back(job);
        if aside.jobs.len() <= aside.idle {
            drop(aside);
            GIVEN.notify_one();
            return Ok(());
        }
        if aside.there == MOST_KERNEL_THREADS {
            return Ok(());
        }
        aside.there += 1;
        let number = aside.there;
        // Starting a kernel thread takes long, and other processors have work for those that are
        // there.
        drop(aside);
        if std::thread::Builder::new().name(format!("upcall-aside-{number}")).spawn(serve).is_ok() {
            return Ok(());
        }
        let mut aside = self::aside();
        aside.there -= 1;
        // Other kernel threads, if any, will get to the job; one of them may have taken it already.
        let mine =
            aside.jobs.iter().position(|queued| aside.there == 0 && ptr::addr_eq(queued.run, run));
        mine.and_then(|mine| aside.jobs.remove(mine)).map_or(Ok(()), Err)
    }
}

/// The body of a kernel thread that runs jobs.
fn serve() {
    let mut aside = aside();
    loop {
        while let Some(job) = aside.jobs.pop_front() {
            drop(aside);
            // SAFETY: the owner of the work waits for exactly this, and no other thread has the
            // pointer.
            let run = unsafe { &mut *job.run };
            run();
            job.waiting.wake();
            aside = self::aside();
        }
        aside.idle += 1;
        let (back, waited) =
            GIVEN.wait_timeout(aside, KEEP).unwrap_or_else(PoisonError::into_inner);
        aside = back;
        aside.idle -= 1;
        if waited.timed_out() && aside.jobs.is_empty() {
            aside.there -= 1;
            return;
        }
    }
}
