//! Signals that would end a program: here they end one ULP, and not the process.

use crate::slot::UlpSlot;
use crate::switch;
use std::sync::OnceLock;
use std::{fmt, io, mem, ptr};

/// Signals that a program's own mistakes raise.
const SIGNALS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGTRAP];

/// The `si_code` of a signal from the kernel that gives no further detail.
const SI_KERNEL: i32 = 128;

/// The actions for these signals before ours.
static BEFORE: OnceLock<[libc::sigaction; SIGNALS.len()]> = OnceLock::new();

/// How a ULP crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The signal's number.
    pub signal: i32,
    /// For SIGSEGV and SIGBUS, the address that could not be accessed; for SIGILL and SIGFPE, the
    /// instruction; otherwise meaningless.
    pub address: u64,
    /// Address of the instruction.
    pub at: u64,
    /// The stack pointer.
    pub stack: u64,
    /// Origin of the signal, as in `sigaction(2)` (`si_code`).
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
            libc::SIGTRAP => "SIGTRAP",
            _ => "a signal",
        }
    }
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:#x}", self.name(), self.at)?;
        // The kernel does not report an address that is not canonical, and a signal that was sent
        // (with a code of 0 or less) has none.
        if matches!(self.signal, libc::SIGSEGV | libc::SIGBUS)
            && self.code > 0
            && self.code != SI_KERNEL
        {
            write!(f, ", which wanted {:#x}", self.address)?;
            // Code that all images share is in no slot; the stack is in one.
            match (
                UlpSlot::owner(self.address),
                UlpSlot::owner(self.at).or_else(|| UlpSlot::owner(self.stack)),
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

/// Restores the former action for a signal of the host's own.
///
/// The host itself has crashed, not a ULP. The signal comes again at once, and is then handled as
/// before.
pub(crate) extern "sysv64" fn own(signal: i32) {
    let at = SIGNALS.iter().position(|one| *one == signal);
    match at.zip(BEFORE.get()) {
        Some((at, before)) => {
            // SAFETY: the action was installed before.
            _ = unsafe { libc::sigaction(signal, &raw const before[at], ptr::null_mut()) }
        }
        // SAFETY: the default action has no handler.
        None => _ = unsafe { libc::signal(signal, libc::SIG_DFL) },
    }
    // The instruction is not executed again.
    if matches!(signal, libc::SIGABRT | libc::SIGSYS | libc::SIGTRAP) {
        // SAFETY: sends a signal to this thread, which is handled as before.
        unsafe { libc::raise(signal) };
    }
}

/// Installs the handler of crashes, which runs on the thread's alternate signal stack.
pub(crate) fn handle() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: all zeros are valid actions.
    let mut before: [libc::sigaction; SIGNALS.len()] = unsafe { mem::zeroed() };
    for (signal, before) in SIGNALS.into_iter().zip(&mut before) {
        // SAFETY: all zeros are a valid action.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = switch::crashed as *const () as usize;
        // The handler is left by a jump, so no signal may stay blocked.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // SAFETY: the handler has the signature that SA_SIGINFO asks for, and touches only this
        // thread's own data.
        if unsafe { libc::sigaction(signal, &raw const action, &raw mut *before) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let _ = BEFORE.set(before);
    Ok(())
}

/// The stack on which this thread's crashes are handled, for as long as this lives.
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
        // SAFETY: all zeros are a valid stack description.
        let mut before: libc::stack_t = unsafe { mem::zeroed() };
        // SAFETY: the memory lives until `drop` takes it back.
        if unsafe { libc::sigaltstack(&raw const stack, &raw mut before) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { _memory: memory, before })
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: nothing runs on our stack, since this runs on another one; the former one belongs
        // to its owner.
        unsafe { libc::sigaltstack(&raw const self.before, ptr::null_mut()) };
    }
}
