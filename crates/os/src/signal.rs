//! Signal handlers, their stack, and what they may write to.

use crate::pages::{self, PAGE};
use std::io;
use std::ptr::{self, NonNull};

/// A handler of a signal.
///
/// It gets the kernel's record of the signal, and the interrupted context.
pub type SignalHandler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

fn done(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The present action of a signal.
///
/// # Errors
/// There is no such signal.
pub fn action(signal: libc::c_int) -> io::Result<libc::sigaction> {
    // SAFETY: plain numbers and pointers, for which zero is a valid value.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed, and the answer goes to a live local.
    done(unsafe { libc::sigaction(signal, ptr::null(), &raw mut now) })?;
    Ok(now)
}

/// Makes `handler` the action of a signal.
///
/// # Safety
/// The handler does only what a signal handler may, at any point of the program.
///
/// # Errors
/// The signal cannot be handled.
pub unsafe fn handle(
    signal: libc::c_int,
    handler: SignalHandler,
    flags: libc::c_int,
) -> io::Result<()> {
    // SAFETY: plain numbers and pointers, for which zero is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = flags;
    // SAFETY: the action is live, and its handler is as the caller promised.
    done(unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) })
}

/// Passes a signal on to the handler before ours, or to the kernel's default.
///
/// # Safety
/// Called in a handler with its own arguments.
pub unsafe fn hand_on(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    before: Option<&libc::sigaction>,
) {
    match before {
        Some(before)
            if before.sa_sigaction != libc::SIG_DFL && before.sa_sigaction != libc::SIG_IGN =>
        {
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: the program installed it as a function of this type.
                let handler = unsafe {
                    std::mem::transmute::<libc::sighandler_t, SignalHandler>(before.sa_sigaction)
                };
                handler(signal, info, context);
            } else {
                // SAFETY: as above.
                let handler = unsafe {
                    std::mem::transmute::<libc::sighandler_t, extern "C" fn(libc::c_int)>(
                        before.sa_sigaction,
                    )
                };
                handler(signal);
            }
        }
        _ => {
            // SAFETY: the default action runs no code of this process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            // A fault is raised again when the handler returns; a signal of another process has to
            // be sent again. SAFETY: the kernel passed a valid record to the handler.
            if unsafe { (*info).si_code } <= 0 {
                // SAFETY: no memory operands.
                unsafe { libc::raise(signal) };
            }
        }
    }
}

/// Blocks a signal for the calling kernel thread.
///
/// # Errors
/// There is no such signal.
pub fn block(signal: libc::c_int) -> io::Result<()> {
    // SAFETY: a set of signals is integers only, for which zero is a value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for a write.
    done(unsafe { libc::sigemptyset(&raw mut set) })?;
    // SAFETY: `set` is valid for a write.
    done(unsafe { libc::sigaddset(&raw mut set, signal) })?;
    // SAFETY: `set` is valid for a read, and the former set is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Writes to standard error, also in a signal handler.
pub fn write_to_stderr(text: &[u8]) {
    // SAFETY: the bytes are live, and the kernel only reads them. If standard error is closed, the
    // text has no reader.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

/// The alternate stack of a kernel thread for signal handlers, until dropped.
#[derive(Debug)]
pub struct SignalStack {
    memory: NonNull<u8>,
}

/// Size of the stack, in bytes.
const SIGNAL_STACK: usize = 64 * 1024;

impl SignalStack {
    /// Gives the calling kernel thread an alternate stack.
    ///
    /// `None` if the thread has one already, or cannot have one.
    pub fn provide() -> Option<Self> {
        // SAFETY: plain numbers and pointers, for which zero is a valid value.
        let mut now: libc::stack_t = unsafe { std::mem::zeroed() };
        // SAFETY: nothing is changed, and the answer goes to a live local.
        done(unsafe { libc::sigaltstack(ptr::null(), &raw mut now) }).ok()?;
        if now.ss_flags & libc::SS_DISABLE == 0 {
            return None;
        }
        let memory = pages::reserve(PAGE + SIGNAL_STACK).ok()?;
        // SAFETY: the first page of a mapping made just now.
        let _ = unsafe { pages::protect(memory.as_ptr()) };
        let new = libc::stack_t {
            ss_sp: memory.as_ptr().wrapping_add(PAGE).cast(),
            ss_flags: 0,
            ss_size: SIGNAL_STACK,
        };
        let provided = Self { memory };
        // SAFETY: the memory stays mapped until `drop`, which withdraws it first.
        done(unsafe { libc::sigaltstack(&raw const new, ptr::null_mut()) }).ok()?;
        Some(provided)
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        let none = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: no handler runs on it: this is not a handler.
        let _ = unsafe { libc::sigaltstack(&raw const none, ptr::null_mut()) };
        // SAFETY: mapped by `provide`, and unused from here on.
        unsafe { pages::release(self.memory, PAGE + SIGNAL_STACK) };
    }
}
