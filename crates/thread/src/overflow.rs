//! Reports a stack overflow, with the thread's name and stack size, before the process dies.
//!
//! A call that overflows its stack ends the whole server, not only itself. The signal handler must
//! not unwind. It must not abandon the stack either, since the frames on it may hold a lock, such
//! as the allocator's, which all other threads would wait for.
//!
//! The access to the guard page raises SIGSEGV. The handler runs on the kernel thread's alternate
//! signal stack, finds out whose guard page it was, and writes a line to standard error by one
//! system call. Then the signal takes its former course: the next handler (that of `std`, for the
//! stacks of kernel threads, or the program's own), or death by SIGSEGV where it happened, so that
//! a core file shows the place.

use crate::record::Rec;
use crate::slot;
use crate::vp::here;
use std::fmt::Write;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};
use upcall_os::pages::PAGE;
use upcall_os::signal;

/// The previous action for the signal. Set once, before the handler is installed.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Installs the handler, for the rest of the process's life.
///
/// If the kernel refuses, nothing is installed; an overflow then ends the process without a
/// message.
pub(crate) fn watch() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let Ok(before) = signal::action(libc::SIGSEGV) else { return };
        BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
        let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // SAFETY: the handler does only what a signal handler may: it reads memory that is never
        // freed, writes to its own frame and to standard error, and passes the signal on.
        let _ = unsafe { signal::handle(libc::SIGSEGV, on_fault, flags) };
    });
}

extern "C" fn on_fault(
    number: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid record of the signal.
    let about = unsafe { &*info };
    // SAFETY: a fault has an address; for any other signal these bytes are some other number.
    let at = unsafe { about.si_addr() };
    if let Some(rec) = here().map(|vp| vp.current())
        && guards(rec, at.addr())
    {
        tell(rec);
    }
    // SAFETY: set once, before this handler was installed, and never freed.
    let before = unsafe { BEFORE.load(Ordering::Acquire).as_ref() };
    // SAFETY: the arguments are passed as the kernel gave them, to the handler that would have had
    // them.
    unsafe { signal::hand_on(number, info, context, before) };
}

/// Returns `true` if `address` lies in the guard page of the thread's stack.
fn guards(rec: Rec, address: usize) -> bool {
    let bottom = rec.bottom.get().addr();
    bottom != 0 && (bottom - PAGE..bottom).contains(&address)
}

/// Text in a fixed place, since nothing may be allocated here.
struct FixedText {
    bytes: [u8; 512],
    used: usize,
}

impl Write for FixedText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        // Text that does not fit is cut off.
        for (place, &byte) in self.bytes[self.used..].iter_mut().zip(text.as_bytes()) {
            *place = byte;
            self.used += 1;
        }
        Ok(())
    }
}

fn tell(rec: Rec) {
    let mut line = FixedText { bytes: [0; 512], used: 0 };
    let number = rec.id.get();
    let size = slot::size(rec) / 1024;
    if rec.is_worker() {
        // Writing to a `FixedText` does not fail.
        let _ = writeln!(
            line,
            "\na handler (thread number {number}) has overflowed its stack of {size} KiB; give \
             handlers more: upcall::Server::stack_size, or \
             upcall::thread::Processors::work_stack_size"
        );
        return signal::write_to_stderr(&line.bytes[..line.used]);
    }
    let name = rec.extra().and_then(|extra| extra.name());
    // Writing to a `FixedText` does not fail.
    let _ = match name {
        Some(name) => write!(line, "\nthread '{name}' (number {number})"),
        None => write!(line, "\na thread without a name (number {number})"),
    };
    let _ = writeln!(
        line,
        " has overflowed its stack of {size} KiB; give it more: \
         upcall::thread::Builder::stack_size, or Processors::stack_size for all threads"
    );
    signal::write_to_stderr(&line.bytes[..line.used]);
}
