//! Catches the system calls that a ULP's program makes itself.
//!
//! Most calls of a program go through functions of libc that the archive replaces. It makes a
//! system call itself by another function of libc, or by inline assembly. Such a call would be one
//! of the whole process: `setsid` would change all ULPs, and `exit_group` would end them. So each
//! goes by the one table of calls (`image/calls.def`), whose default is to refuse.
//!
//! The kernel catches them (Syscall User Dispatch, Linux 5.11): each system call of the worker's
//! thread whose instruction lies below [`ALLOWED`] is not made, but reported by SIGSYS. All slots
//! lie there, and neither the host nor its libraries. So the host's own calls pass, at no switch of
//! anything. The kernel's frame is on the ULP's stack, as at an interrupt
//! ([`interrupts`](crate::interrupts)). From there the image's handler looks the call up in the
//! table, and returns its result through the frame.
//!
//! The archive itself makes its calls by an instruction of the host's ([`switch::call`]), whose
//! address is in the ULP's table. An image's libc makes some calls before the image can answer for
//! them. They pass: a fresh ULP sets [`Host::catches`](switch::Host) so. Its image sets it back, as
//! does each return to the host.
//!
//! Calls of a process or thread that this thread starts are not caught. This is no boundary against
//! hostile code, which could change that byte: ULPs are not protected from each other.

use crate::layout::LAST;
use crate::switch::{self, CATCHES, Host};
use std::{fmt, io, mem, ptr};

/// The kernel's names, which crate `libc` lacks.
const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
const PR_SYS_DISPATCH_OFF: u64 = 0;
const PR_SYS_DISPATCH_ON: u64 = 1;

/// System calls from here to [`ALLOWED_END`] are the host's.
const ALLOWED: u64 = LAST;
const ALLOWED_END: u64 = 1 << 47;

/// The reason why system calls of ULPs' programs are not caught.
#[derive(Debug)]
pub enum NotCaught {
    /// The kernel cannot, or may not.
    Kernel(io::Error),
    /// The process has a handler for SIGSYS.
    Handled,
    /// The host lies where its own system calls would be caught: it is not position-independent.
    Fixed,
}

impl fmt::Display for NotCaught {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "system calls that a task makes without its library are not checked, and act on its \
             whole process: ",
        )?;
        match self {
            Self::Kernel(error) => {
                write!(f, "the kernel does not report them ({error}); Linux 5.11 or later does")
            }
            Self::Handled => f.write_str(
                "the program has a handler of its own for SIGSYS, by which the kernel reports them",
            ),
            Self::Fixed => f.write_str("link the host program as a position-independent one"),
        }
    }
}

impl std::error::Error for NotCaught {}

/// System calls on this thread are caught until the [end](Catching::end).
pub(crate) struct Catching(());

impl Catching {
    /// Begins to catch what is called in slots while `host` says so.
    ///
    /// # Safety
    /// `host` is this thread's, and lives until the [end](Self::end).
    pub(crate) unsafe fn begin(host: *const Host) -> Result<Self, NotCaught> {
        let own = [switch::call as *const () as u64, libc::getpid as *const () as u64];
        if own.iter().any(|address| !(ALLOWED..ALLOWED_END).contains(address)) {
            return Err(NotCaught::Fixed);
        }
        handle()?;
        // SAFETY: the caller's promise.
        let catches = unsafe { &raw const (*host).catches };
        dispatch(PR_SYS_DISPATCH_ON, ALLOWED, ALLOWED_END - ALLOWED, catches)
            .map_err(NotCaught::Kernel)?;
        Ok(Self(()))
    }
}

impl Catching {
    /// Lets all system calls pass again.
    pub(crate) fn end(&self) {
        let _ = dispatch(PR_SYS_DISPATCH_OFF, 0, 0, ptr::null());
    }
}

fn dispatch(mode: u64, allowed: u64, length: u64, catches: *const u8) -> io::Result<()> {
    // SAFETY: takes numbers, and the address of a byte that lives as long as calls are caught.
    match unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, mode, allowed, length, catches) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Installs the handler, for the rest of the process's life.
fn handle() -> Result<(), NotCaught> {
    let failed = || NotCaught::Kernel(io::Error::last_os_error());
    // SAFETY: all zeros are a valid action.
    let mut before: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: reads the present action.
    if unsafe { libc::sigaction(libc::SIGSYS, ptr::null(), &raw mut before) } < 0 {
        return Err(failed());
    }
    let own = switch::caught as *const () as usize;
    if ![libc::SIG_DFL, libc::SIG_IGN, own].contains(&before.sa_sigaction) {
        return Err(NotCaught::Handled);
    }
    // SAFETY: all zeros are a valid action.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = own;
    // The image's handler may run for long, make caught calls itself, and be left by a jump.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and touches only this
    // thread's own data.
    if unsafe { libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut()) } < 0 {
        return Err(failed());
    }
    // The parent of the process may have blocked the signal, which would end the process then.
    // SAFETY: all zeros are a valid mask.
    let mut signal: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: passes a local mask and a signal's number.
    unsafe { libc::sigaddset(&raw mut signal, libc::SIGSYS) };
    // SAFETY: as above; the handler is installed.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const signal, ptr::null_mut()) };
    Ok(())
}

const _: () = assert!(CATCHES == 1, "the kernel's SYSCALL_DISPATCH_FILTER_BLOCK");
