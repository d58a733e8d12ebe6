//! Interrupts: a function that runs on a kernel thread in the middle of whatever that computes,
//! when another thread of the process says so.
//!
//! A thread says for how long it can be interrupted, and by what ([`interruptible`]); others
//! interrupt it ([`Interruptible::interrupt`]). The signal is SIGURG: by default it is ignored, so
//! one that comes late, or to a thread that was not to be interrupted, does nothing. Signals of one
//! number that wait are one signal, so what interrupts must say elsewhere what there is to do.
//!
//! # Why no interrupt is lost
//! One that is asked for after [`interruptible`] has begun, and before it ends, runs the function
//! after that moment: the kernel keeps the signal until it has called the handler, and calls it
//! again if the signal came while it ran. The asker names the thread, and the thread cannot be
//! another one of that number: the number is good as long as `interruptible` has not returned,
//! which a lock sees to.

use crate::lock::KernelMutex;
use std::cell::Cell;
use std::ffi::c_int;
use std::io;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};
use std::sync::{Arc, OnceLock};

/// The caller's word that what runs in interrupts is fit for it.
#[derive(Clone, Copy, Debug)]
pub struct Promise(());

impl Promise {
    /// Gives it.
    ///
    /// # Safety
    /// What the promise is given for runs in a signal handler, between any two instructions of a
    /// thread. So it neither allocates nor frees, takes no lock, does not panic, calls only what
    /// POSIX names async-signal-safe, and touches nothing that the thread which it interrupts
    /// may be changing, other than by atomics.
    pub unsafe fn given() -> Self {
        Self(())
    }
}

/// A thread that can be interrupted, for others.
#[derive(Debug)]
pub struct Interruptible {
    /// Its number, while it can be.
    thread: KernelMutex<Option<libc::pid_t>>,
}

impl Interruptible {
    /// Has its function run soon, if it can still be interrupted. Never blocks for long.
    pub fn interrupt(&self) {
        let thread = self.thread.lock();
        if let Some(thread) = *thread {
            let process = std::process::id();
            // SAFETY: a system call on numbers. The thread is one of this process, and lives: it
            // takes the lock before it goes on.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, SIGNAL) };
        }
    }
}

const SIGNAL: c_int = libc::SIGURG;

/// What runs in an interrupt of a thread, and what ran before that.
struct InterruptFrame {
    run: *const dyn Fn(),
    before: *const InterruptFrame,
}

thread_local! {
    /// The innermost of those that run now.
    static TOP: Cell<*const InterruptFrame> = const { Cell::new(ptr::null()) };
}

/// Runs `body`, which is told by what others interrupt it; whenever they do, `run`. May be nested:
/// an interrupt runs all functions of its thread, the innermost first.
///
/// # Errors
/// The program has a handler of its own for SIGURG.
///
/// # Panics
/// Those of `body`. One of `run` ends the process.
pub fn interruptible<R>(
    _promise: Promise,
    run: &dyn Fn(),
    body: impl FnOnce(Arc<Interruptible>) -> R,
) -> io::Result<R> {
    install()?;
    // SAFETY: a system call without arguments.
    let number = unsafe { libc::gettid() };
    // SAFETY: only the lifetime is changed, of a reference that `frame` below is the only one to
    // have; it is taken out of reach before `run` ends, by `ending`, also if `body` panics.
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
    // A handler that runs on this thread from here on sees the frame whole.
    compiler_fence(Ordering::SeqCst);
    let result = body(thread);
    drop(ending);
    Ok(result)
}

/// Takes a frame away.
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

/// Blocks the signal for this thread, or lets it through. Whether it was blocked.
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
    // SAFETY: a signal's action is integers and an address that may be none.
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
    // On the thread's own stack: the one for faults is a few pages.
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` is valid for a read, and its function is a handler that keeps to what
    // handlers may do.
    if unsafe { libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The handler. A panic in it ends the process: it cannot leave a function of C.
extern "C" fn handle(_: c_int) {
    // SAFETY: the address of this thread's word, which always is one.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: valid for a read, by this thread.
    let before = unsafe { errno.read() };
    let mut at = TOP.get();
    // SAFETY: a frame that is in reach lies on this thread's stack, in a function that has not
    // returned.
    while let Some(frame) = unsafe { at.as_ref() } {
        // SAFETY: as the frame, and the caller of `interruptible` borrows the function for as long.
        // It is fit for a handler, by the promise.
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
        // It is over.
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
