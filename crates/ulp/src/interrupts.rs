//! A ULP that computes is interrupted now and then, so that its host sees what has come meanwhile:
//! who wants to end it, its alarm, what others ask.
//!
//! The kernel counts the worker's processor time, and sends the thread SIGVTALRM each time when so
//! much of it is over. So nothing is to be begun or ended at a switch, and a worker that sleeps is
//! left alone. Where the signal finds a ULP in its own code the kernel has put all registers onto
//! that ULP's stack, and the image's handler asks the host from there, as any function asks
//! ([`ASK_INTERRUPTED`](crate::layout::ASK_INTERRUPTED)); when that is answered the handler
//! returns, and the kernel gives the registers back. Nothing of it is the host's: the ULP waits, as
//! others do. Elsewhere (in the host, at the gate, in what all share) the signal does nothing; the
//! next one comes soon.
//!
//! The ULP may be in the midst of telling the host something, so what lies in its table is not
//! looked at then, but for letters that are counted: each is whole before it is. Signals for it are
//! noted, and handled where none of the library's functions is under way
//! ([`Ulp::is_in_own_code`](crate::Ulp::is_in_own_code)), or, as always, when it waits for
//! something next.
//!
//! The kernel's frame says which other stack the thread had for signals, and would give that back:
//! it is another's if the ULP goes on with another worker. So what is there is made something that
//! the kernel takes for none.

use crate::switch;
use std::time::Duration;
use std::{io, mem, ptr};

const SIGNAL: i32 = libc::SIGVTALRM;

/// As long as this lives. Of the thread that has begun it.
pub(crate) struct Interrupts(libc::timer_t);

impl Interrupts {
    pub(crate) fn begin(every: Duration) -> io::Result<Self> {
        handle()?;
        // Whoever has started the process may have blocked it.
        // SAFETY: all zeros are a valid one.
        let mut own: libc::sigset_t = unsafe { mem::zeroed() };
        // SAFETY: a mask of this function's, and a signal's number.
        unsafe { libc::sigaddset(&raw mut own, SIGNAL) };
        // SAFETY: as above; the handler is there.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const own, ptr::null_mut()) };
        // SAFETY: all zeros are a valid one.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = SIGNAL;
        // SAFETY: asks the kernel for a number.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer = ptr::null_mut();
        // SAFETY: the event is complete, and the timer's name is written.
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
        // SAFETY: a timer of ours.
        if unsafe { libc::timer_settime(timer, 0, &raw const times, ptr::null_mut()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(this)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        // SAFETY: a timer of ours, which nobody uses any more. A signal that it has sent finds the
        // handler still there.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// The process has our handler, and keeps it.
fn handle() -> io::Result<()> {
    // SAFETY: all zeros are a valid one.
    let mut before: libc::sigaction = unsafe { mem::zeroed() };
    let mut action = before;
    action.sa_sigaction = switch::interrupted as *const () as usize;
    // It may run for long, within others that were interrupted.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_NODEFER;
    // SAFETY: asks for what is there.
    if unsafe { libc::sigaction(SIGNAL, ptr::null(), &raw mut before) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if ![libc::SIG_DFL, libc::SIG_IGN, action.sa_sigaction].contains(&before.sa_sigaction) {
        return Err(io::Error::other(
            "the program has a handler of its own for SIGVTALRM, by which user-level processes are interrupted",
        ));
    }
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and touches nothing but this
    // thread's own.
    if unsafe { libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
