//! Interrupts a ULP that computes, at intervals, so that its host can handle what has arrived.
//!
//! That may be a request to end the ULP, its alarm, or questions of others.
//!
//! The kernel counts the worker's processor time, and sends the thread SIGVTALRM each time an
//! interval of it has passed. So a switch between ULPs need not start or stop anything, and a
//! sleeping worker is left alone. When the signal finds a ULP in its own code, the kernel has saved
//! all registers on that ULP's stack. From there the image's handler asks the host, as any function
//! does ([`ASK_INTERRUPTED`](crate::layout::ASK_INTERRUPTED)). When it has the answer, the handler
//! returns, and the kernel restores the registers. Nothing of this is kept in the host: the ULP
//! waits as others do. Elsewhere (in the host, at the gate, in shared code) the signal does
//! nothing; the next one comes soon.
//!
//! The ULP may be in the middle of writing to its table. So the host then reads nothing there
//! except letters that are counted: each is complete before it is counted. Signals for the ULP are
//! noted. They are handled where no function of the library is under way
//! ([`Ulp::is_in_own_code`](crate::Ulp::is_in_own_code)), or, as always, when the ULP next waits
//! for something.
//!
//! The signal also measures how long each ULP has run: the thread's processor time since the last
//! signal is taken for that of the ULP that runs now, or of the host
//! ([`TABLE_TIME`](crate::layout::TABLE_TIME)). So a switch costs nothing for it. The sum of all is
//! exact, and each ULP's time is right on average. What an image knows better is in
//! `image/usage.c`.
//!
//! The kernel's frame names the thread's alternate signal stack, and returning would restore it.
//! That stack belongs to another thread if the ULP goes on with another worker, so the frame's
//! entry is changed to a value that the kernel ignores.

use crate::layout::TABLE_TIME;
use crate::switch::{self, Context, Host};
use std::arch::asm;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{io, mem, ptr};

const SIGNAL: i32 = libc::SIGVTALRM;

/// The timer that interrupts the thread that created it, for as long as this lives.
pub(crate) struct Interrupts(libc::timer_t);

impl Interrupts {
    pub(crate) fn begin(every: Duration) -> io::Result<Self> {
        handle()?;
        // The parent of the process may have blocked the signal.
        // SAFETY: all zeros are a valid mask.
        let mut own: libc::sigset_t = unsafe { mem::zeroed() };
        // SAFETY: passes a local mask and a signal's number.
        unsafe { libc::sigaddset(&raw mut own, SIGNAL) };
        // SAFETY: as above; the handler is installed.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const own, ptr::null_mut()) };
        // SAFETY: all zeros are a valid event.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = SIGNAL;
        // SAFETY: asks the kernel for a number.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer = ptr::null_mut();
        // SAFETY: the event is complete, and the timer's identifier is written to a local variable.
        if unsafe {
            libc::timer_create(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut event, &raw mut timer)
        } < 0
        {
            return Err(io::Error::last_os_error());
        }
        let this = Self(timer);
        let time =
            libc::timespec { tv_sec: every.as_secs() as i64, tv_nsec: every.subsec_nanos().into() };
        let times = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: the timer is ours.
        if unsafe { libc::timer_settime(timer, 0, &raw const times, ptr::null_mut()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(this)
    }
}

/// Processor time of this thread, in nanoseconds.
///
/// Uses no thread-locals, so that the handler may call it while those are a ULP's.
pub(crate) fn thread_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the local variable, and preserves all registers but these. There is
    // always such a clock.
    unsafe {
        asm!(
            "syscall",
            inout("rax") libc::SYS_clock_gettime => _,
            in("rdi") libc::CLOCK_THREAD_CPUTIME_ID,
            in("rsi") &raw mut time,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Assigns the processor time since the last call to the ULP that runs, or else to the host.
///
/// The handler calls this, and may interrupt it: each change is one instruction, and no time is
/// assigned twice.
///
/// # Safety
/// `host` is this thread's.
pub(crate) unsafe extern "sysv64" fn assign(host: *const Host) {
    let now = thread_time();
    // SAFETY: the caller's promise.
    let assigned = unsafe { &(*host).assigned };
    let time = now.saturating_sub(assigned.fetch_max(now, Ordering::Relaxed));
    // SAFETY: as above.
    let running = unsafe { (*host).current } as *const Context;
    if running.is_null() {
        return;
    }
    // SAFETY: the ULP that runs has a context, whose table is never changed.
    let table = unsafe { (*running).table };
    // SAFETY: the table is mapped as long as the ULP lives, and nothing else writes this word.
    let word = unsafe { AtomicU64::from_ptr((table + TABLE_TIME * 8) as *mut u64) };
    word.fetch_add(time, Ordering::Relaxed);
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        // SAFETY: the timer is ours, and no longer used. A signal that it has sent still finds the
        // handler.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Installs the handler, for the rest of the process's life.
fn handle() -> io::Result<()> {
    // SAFETY: all zeros are a valid action.
    let mut before: libc::sigaction = unsafe { mem::zeroed() };
    let mut action = before;
    action.sa_sigaction = switch::interrupted as *const () as usize;
    // The handler may run for long, and nest within others that were interrupted.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_NODEFER;
    // SAFETY: reads the present action.
    if unsafe { libc::sigaction(SIGNAL, ptr::null(), &raw mut before) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if ![libc::SIG_DFL, libc::SIG_IGN, action.sa_sigaction].contains(&before.sa_sigaction) {
        return Err(io::Error::other(
            "the program has a handler of its own for SIGVTALRM, by which user-level processes \
             are interrupted",
        ));
    }
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and touches only this
    // thread's own data.
    if unsafe { libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
