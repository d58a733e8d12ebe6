//! What ends one ULP and not the process: a signal that would end a program.

use crate::slot::UlpSlot;
use crate::switch;
use std::sync::OnceLock;
use std::{fmt, io, mem, ptr};

/// Those that a program's own mistakes raise.
const SIGNALS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT];

/// The code of a signal from the kernel that says nothing more.
const SI_KERNEL: i32 = 128;

/// What handled them before.
static BEFORE: OnceLock<[libc::sigaction; SIGNALS.len()]> = OnceLock::new();

/// How a ULP has crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The signal's number.
    pub signal: i32,
    /// What it could not reach, for SIGSEGV and SIGBUS; for SIGILL and SIGFPE the instruction;
    /// else of no meaning.
    pub address: u64,
    /// The instruction.
    pub at: u64,
    /// The stack pointer.
    pub stack: u64,
    /// Where the signal is from, as `sigaction(2)` has it (`si_code`).
    pub code: i32,
}

impl Crash {
    /// The signal's name.
    pub fn name(&self) -> &'static str {
        match self.signal {
            libc::SIGSEGV => "SIGSEGV",
            libc::SIGBUS => "SIGBUS",
            libc::SIGILL => "SIGILL",
            libc::SIGFPE => "SIGFPE",
            libc::SIGABRT => "SIGABRT",
            _ => "a signal",
        }
    }
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:#x}", self.name(), self.at)?;
        // The kernel does not say which address it was where that can be none.
        if matches!(self.signal, libc::SIGSEGV | libc::SIGBUS) && self.code != SI_KERNEL {
            write!(f, ", which wanted {:#x}", self.address)?;
            // What all share is in no slot; the stack is.
            match (
                UlpSlot::of(self.address),
                UlpSlot::of(self.at).or_else(|| UlpSlot::of(self.stack)),
            ) {
                (Some(theirs), Some(own)) if theirs != own => {
                    write!(f, ", in another task's memory")?
                }
                _ if self.stack.abs_diff(self.address) < 1 << 16 => {
                    write!(f, ", at the end of its stack")?
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Not a ULP has crashed, but the host itself: what handled that before does so when it comes
/// again, just now.
pub(crate) extern "sysv64" fn own(signal: i32) {
    let at = SIGNALS.iter().position(|one| *one == signal);
    match at.zip(BEFORE.get()) {
        Some((at, before)) => {
            // SAFETY: an action that was there before.
            _ = unsafe { libc::sigaction(signal, &raw const before[at], ptr::null_mut()) }
        }
        // SAFETY: the default action has no handler.
        None => _ = unsafe { libc::signal(signal, libc::SIG_DFL) },
    }
    if signal == libc::SIGABRT {
        // SAFETY: a signal to this thread, which is handled as before.
        unsafe { libc::raise(signal) };
    }
}

/// Has the process's crashes handled, on the stack that the thread has for that.
pub(crate) fn handle() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: all zeros are a valid one.
    let mut before: [libc::sigaction; SIGNALS.len()] = unsafe { mem::zeroed() };
    for (signal, before) in SIGNALS.into_iter().zip(&mut before) {
        // SAFETY: all zeros are a valid one.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = switch::crashed as *const () as usize;
        // It is left by a jump, so nothing may stay blocked.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // SAFETY: the handler has the signature that SA_SIGINFO asks for, and touches nothing but
        // this thread's own.
        if unsafe { libc::sigaction(signal, &raw const action, &raw mut *before) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let _ = BEFORE.set(before);
    Ok(())
}

/// The stack on which this thread's crashes are handled; as long as this lives.
pub(crate) struct Stack {
    _memory: Box<[u8]>,
    before: libc::stack_t,
}

impl Stack {
    pub(crate) fn new() -> io::Result<Self> {
        let least = libc::MINSIGSTKSZ.max(rustix::param::page_size()) + (64 << 10);
        let mut memory = vec![0; least].into_boxed_slice();
        let stack =
            libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
        // SAFETY: all zeros are a valid one.
        let mut before: libc::stack_t = unsafe { mem::zeroed() };
        // SAFETY: the memory lives until it is taken back in `drop`.
        if unsafe { libc::sigaltstack(&raw const stack, &raw mut before) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { _memory: memory, before })
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: nothing runs on ours, for this runs on another one; the one before is its
        // owner's.
        unsafe { libc::sigaltstack(&raw const self.before, ptr::null_mut()) };
    }
}
