//! Interrupts: functions that run on a computing thread at another's request.
//!
//! A thread declares how long it can be interrupted, and by what function ([`interruptible`]);
//! others interrupt it ([`Interruptible::interrupt`]). The signal is SIGURG. By default it is
//! ignored, so a signal that is late, or that reaches a thread which is not to be interrupted, does
//! nothing. Pending signals of one number are one signal, so the interrupting thread must record
//! elsewhere what there is to do.
//!
//! # Why no interrupt is lost
//! An interrupt that is requested after [`interruptible`] has begun, and before it ends, runs the
//! function after the request. The kernel keeps the signal until it has called the handler, and
//! calls it again if the signal arrived while it ran. The requesting thread names the thread by its
//! number, and the number cannot be another thread's: it is valid as long as `interruptible` has
//! not returned, which a lock ensures.

use crate::lock::KernelMutex;
use std::cell::Cell;
use std::ffi::c_int;
use std::io;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};
use std::sync::{Arc, OnceLock};

/// The caller's promise that a function may run in interrupts.
#[derive(Clone, Copy, Debug)]
pub struct Promise(());

impl Promise {
    /// Gives the promise.
    ///
    /// # Safety
    /// The function for which the promise is given runs in a signal handler, between any two
    /// instructions of a thread. So it neither allocates nor frees, takes no lock, does not panic,
    /// and calls only what POSIX names async-signal-safe. Other than by atomics, it accesses
    /// nothing that the interrupted thread may be changing.
    pub unsafe fn given() -> Self {
        Self(())
    }
}

/// A handle by which other threads interrupt a thread.
#[derive(Debug)]
pub struct Interruptible {
    /// The number of the thread, while it can be interrupted.
    thread: KernelMutex<Option<libc::pid_t>>,
}

impl Interruptible {
    /// Makes the thread run its function soon, if it can still be interrupted.
    ///
    /// Never blocks for long.
    pub fn interrupt(&self) {
        let thread = self.thread.lock();
        if let Some(thread) = *thread {
            let process = std::process::id();
            // SAFETY: a system call on numbers. The thread is one of this process, and alive: it
            // takes the lock before it goes on.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, SIGNAL) };
        }
    }
}

const SIGNAL: c_int = libc::SIGURG;

/// The function of a thread's interrupts, and the frame around it.
struct InterruptFrame {
    run: *const dyn Fn(),
    before: *const InterruptFrame,
}

thread_local! {
    /// The innermost frame.
    static TOP: Cell<*const InterruptFrame> = const { Cell::new(ptr::null()) };
}

/// Runs `body`, and `run` whenever another thread interrupts this one.
///
/// `body` gets the handle by which others do so. Calls may be nested: an interrupt runs all
/// functions of its thread, the innermost first.
///
/// # Errors
/// The program has a handler of its own for SIGURG.
///
/// # Panics
/// Those of `body`. A panic of `run` ends the process.
pub fn interruptible<R>(
    _promise: Promise,
    run: &dyn Fn(),
    body: impl FnOnce(Arc<Interruptible>) -> R,
) -> io::Result<R> {
    install()?;
    // SAFETY: a system call without arguments.
    let number = unsafe { libc::gettid() };
    // SAFETY: only the lifetime of the reference is changed. `frame` below is the only holder of
    // the result, and `ending` makes it unreachable before `run` ends, even if `body` panics.
    let run: *const dyn Fn() =
        unsafe { std::mem::transmute::<*const (dyn Fn() + '_), *const (dyn Fn() + 'static)>(run) };
    let frame = InterruptFrame { run, before: TOP.get() };
    let thread = Arc::new(Interruptible { thread: KernelMutex::new(Some(number)) });
    let ending = FrameGuard {
        before: frame.before,
        thread: thread.clone(),
        blocked: mask(libc::SIG_UNBLOCK),
    };
    TOP.set(&raw const frame);
    // A handler that runs on this thread from here on sees the complete frame.
    compiler_fence(Ordering::SeqCst);
    let result = body(thread);
    drop(ending);
    Ok(result)
}

/// Removes a frame when dropped.
struct FrameGuard {
    before: *const InterruptFrame,
    thread: Arc<Interruptible>,
    blocked: bool,
}

impl Drop for FrameGuard {
    fn drop(&mut self) {
        *self.thread.thread.lock() = None;
        compiler_fence(Ordering::SeqCst);
        TOP.set(self.before);
        compiler_fence(Ordering::SeqCst);
        if self.blocked {
            mask(libc::SIG_BLOCK);
        }
    }
}

/// Blocks or unblocks the signal for this thread. Returns `true` if it was blocked.
fn mask(how: c_int) -> bool {
    // SAFETY: a set of signals is integers only, for which zero is a value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for a write.
    unsafe { libc::sigemptyset(&raw mut set) };
    // SAFETY: `set` is valid for a write, and the signal is one.
    unsafe { libc::sigaddset(&raw mut set, SIGNAL) };
    let mut before = set;
    // SAFETY: both sets are valid, one for a read and one for a write.
    unsafe { libc::pthread_sigmask(how, &raw const set, &raw mut before) };
    // SAFETY: `before` is a set.
    unsafe { libc::sigismember(&raw const before, SIGNAL) == 1 }
}

/// Installs the handler, once in a process.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), String>> = OnceLock::new();
    INSTALLED
        .get_or_init(|| try_install().map_err(|error| error.to_string()))
        .clone()
        .map_err(io::Error::other)
}

fn try_install() -> io::Result<()> {
    // SAFETY: a signal's action is integers and an address that may be zero.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `action` is valid for a write.
    if unsafe { libc::sigaction(SIGNAL, ptr::null(), &raw mut action) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction) {
        return Err(io::Error::other(
            "the program has a handler of its own for SIGURG, by which threads are interrupted",
        ));
    }
    action.sa_sigaction = handle as extern "C" fn(c_int) as libc::sighandler_t;
    // On the thread's own stack: the stack for faults has only a few pages.
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` is valid for a read, and its function does only what a handler may do.
    if unsafe { libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The handler. A panic in it ends the process, since it cannot leave a C function.
extern "C" fn handle(_: c_int) {
    // SAFETY: returns the address of this thread's `errno`, which always exists.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: valid for a read, by this thread.
    let before = unsafe { errno.read() };
    let mut at = TOP.get();
    // SAFETY: a reachable frame lies on this thread's stack, in a function that has not returned.
    while let Some(frame) = unsafe { at.as_ref() } {
        // SAFETY: as the frame; the caller of `interruptible` borrows the function for as long. By
        // the promise it may run in a handler.
        let run = unsafe { &*frame.run };
        run();
        at = frame.before;
    }
    // SAFETY: valid for a write, by this thread.
    unsafe { errno.write(before) };
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    fn promise() -> Promise {
        // SAFETY: the functions below add to atomics.
        unsafe { Promise::given() }
    }

    #[test]
    fn a_thread_that_computes_is_interrupted() {
        let (outer, inner) = (AtomicU64::new(0), AtomicU64::new(0));
        let once = |interrupts: &Interruptible, count: &AtomicU64| {
            let end = Instant::now() + Duration::from_secs(20);
            let before = count.load(SeqCst);
            std::thread::scope(|scope| {
                scope.spawn(|| interrupts.interrupt());
                while count.load(SeqCst) == before {
                    assert!(Instant::now() < end, "no interrupt came");
                }
            });
        };
        let run_outer = || _ = outer.fetch_add(1, SeqCst);
        let run_inner = || _ = inner.fetch_add(1, SeqCst);
        let thread = interruptible(promise(), &run_outer, |thread| {
            once(&thread, &outer);
            assert_eq!(inner.load(SeqCst), 0);
            interruptible(promise(), &run_inner, |_| once(&thread, &inner)).unwrap();
            let (before, found) = (inner.load(SeqCst), outer.load(SeqCst));
            once(&thread, &outer);
            assert!(inner.load(SeqCst) == before && outer.load(SeqCst) > found);
            thread
        })
        .unwrap();
        // It can no longer be interrupted.
        let before = outer.load(SeqCst);
        thread.interrupt();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(outer.load(SeqCst), before);
    }

    #[test]
    fn a_panic_ends_it_as_a_return_does() {
        let count = AtomicU64::new(0);
        let handle = OnceLock::new();
        let run = || _ = count.fetch_add(1, SeqCst);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            interruptible(promise(), &run, |thread| {
                handle.set(thread).unwrap();
                panic!("meant")
            })
        }));
        assert!(ended.is_err() && TOP.get().is_null());
        handle.get().unwrap().interrupt();
        assert_eq!(count.load(SeqCst), 0);
    }

    #[test]
    fn what_is_under_way_goes_on_after_it() {
        let count = AtomicU64::new(0);
        let run = || _ = count.fetch_add(1, SeqCst);
        interruptible(promise(), &run, |thread| {
            std::thread::scope(|scope| {
                scope.spawn(|| (0..100).for_each(|_| thread.interrupt()));
                // Sums that a lost register would spoil.
                let sums = || {
                    (0..200)
                        .map(|row| (0..2000).map(|at| f64::from(row * at).sqrt()).sum())
                        .collect::<Vec<f64>>()
                };
                assert_eq!(sums(), sums());
            });
        })
        .unwrap();
        assert!(count.load(SeqCst) > 0);
    }
}
