//! Runs calls that have to wait in the kernel on helper threads.
//!
//! This is for calls where the host cannot wait for a descriptor or a time instead. While a helper
//! runs a call, the worker runs other ULPs (UPVM; V10 here).
//!
//! All threads of a process have the same addresses and descriptors, so a call does on a helper
//! what it would have done on the worker. A helper is started when none is idle, and ends when it
//! has had nothing to do for [`LAZY`].
//!
//! [`helping`](crate::helping) explains how calls and helpers wait for each other, how a call is
//! interrupted, and why none of that is lost. The interrupting signal finds the helper in one of
//! these places:
//!
//! 1. before the check of `stop` (`upcall_ulp_aside_look` below), which then sees it;
//! 2. between the check and the system call: the handler moves the helper past the call, with
//!    EINTR;
//! 3. in the system call, which the kernel ends with EINTR;
//! 4. past the system call: the call is done.
//!
//! The code from the check to the system call follows musl's for its `pthread_cancel` (R. Felker).

use crate::helping::{HelperPool, HelperRun};
use crate::ulp::UlpMemory;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Once};
use std::time::Duration;
use std::{arch, fmt, io, mem, ptr, thread};

/// Maximum number of helpers. Further calls wait.
const MOST: usize = 256;
/// Time after which an idle helper ends.
const LAZY: Duration = Duration::from_secs(2);
/// Size of a helper's stack, in bytes.
const STACK: usize = 64 << 10;
/// Number of words of a call: its number and six arguments.
pub(crate) const WORDS: usize = 7;

/// Calls that affect only what their arguments name: descriptors, and the ULP's memory.
const CALLS: [i64; 42] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_openat,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync,
    libc::SYS_syncfs,
    libc::SYS_msync,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_connect,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_vmsplice,
    libc::SYS_copy_file_range,
    libc::SYS_sync_file_range,
    libc::SYS_readahead,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_mq_timedsend,
    libc::SYS_mq_timedreceive,
    libc::SYS_futex,
];

arch::global_asm!(
    // rdi: the address of `stop`; rsi: the call's number and arguments. Returns what the call
    // returns.
    ".pushsection .text.upcall_ulp_aside, \"ax\"",
    ".hidden upcall_ulp_aside_call",
    ".hidden upcall_ulp_aside_look",
    ".hidden upcall_ulp_aside_enter",
    ".hidden upcall_ulp_aside_stopped",
    ".globl upcall_ulp_aside_call",
    ".globl upcall_ulp_aside_look",
    ".globl upcall_ulp_aside_enter",
    ".globl upcall_ulp_aside_stopped",
    "upcall_ulp_aside_call:",
    "mov r11, rdi",
    "mov rax, [rsi]",
    "mov rdi, [rsi + 8]",
    "mov rdx, [rsi + 24]",
    "mov r10, [rsi + 32]",
    "mov r8, [rsi + 40]",
    "mov r9, [rsi + 48]",
    "mov rsi, [rsi + 16]",
    "upcall_ulp_aside_look:",
    "cmp dword ptr [r11], 0",
    "jne upcall_ulp_aside_stopped",
    "upcall_ulp_aside_enter:",
    "syscall",
    "ret",
    "upcall_ulp_aside_stopped:",
    "mov rax, -{interrupted}",
    "ret",
    ".popsection",
    interrupted = const libc::EINTR,
);

unsafe extern "sysv64" {
    fn upcall_ulp_aside_call(stop: *const AtomicU32, words: *const [u64; WORDS]) -> i64;
    static upcall_ulp_aside_look: u8;
    static upcall_ulp_aside_enter: u8;
    static upcall_ulp_aside_stopped: u8;
}

/// The pool of helpers; see the module comment.
///
/// When it is dropped, helpers end as soon as they have nothing to do.
pub struct Aside(Arc<AsideState>);

impl fmt::Debug for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aside").finish_non_exhaustive()
    }
}

struct AsideState {
    pool: HelperPool<Arc<AsideCall>>,
    /// Rung after each note.
    doorbell: OwnedFd,
}

/// A call, until its ULP has taken the result.
pub(crate) struct AsideCall {
    words: [u64; WORDS],
    token: u64,
    /// Keeps the memory of a ULP that has ended.
    run: HelperRun<UlpMemory>,
}

impl fmt::Debug for AsideCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsideCall").field("number", &self.words[0]).finish_non_exhaustive()
    }
}

impl Aside {
    /// Creates a pool without helpers.
    ///
    /// From now on the process handles the signal that interrupts calls, the last but one real-time
    /// signal.
    ///
    /// # Errors
    /// The kernel's error if there is no descriptor left.
    pub fn begin() -> io::Result<Self> {
        static HANDLED: Once = Once::new();
        HANDLED.call_once(handle);
        // SAFETY: takes numbers, and returns a descriptor or -1.
        let doorbell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if doorbell < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was made just now, and nothing else owns it.
        let doorbell = unsafe { OwnedFd::from_raw_fd(doorbell) };
        Ok(Self(Arc::new(AsideState { pool: HelperPool::new(MOST), doorbell })))
    }

    /// A descriptor that is readable (`poll(2)`) when there are [`done`](Self::done) calls.
    pub fn descriptor(&self) -> i32 {
        self.0.doorbell.as_raw_fd()
    }

    /// Returns `true` if there may be [`done`](Self::done) calls, without a system call.
    pub fn has_done(&self) -> bool {
        self.0.pool.is_noted()
    }

    /// Takes the tokens of the calls that are done.
    ///
    /// [`Ulp::aside`](crate::Ulp::aside) of each ULP has the result.
    pub fn done(&self) -> Vec<u64> {
        let mut count = [0_u8; 8];
        // SAFETY: the kernel writes at most as many bytes as `count` has.
        unsafe { libc::read(self.descriptor(), count.as_mut_ptr().cast(), count.len()) };
        self.0.pool.take_notes()
    }

    /// Passes this call to a helper.
    pub(crate) fn run(&self, words: [u64; WORDS], token: u64) -> Result<Arc<AsideCall>, i32> {
        if !CALLS.contains(&(words[0] as i64)) {
            return Err(libc::ENOSYS);
        }
        let call = Arc::new(AsideCall { words, token, run: HelperRun::new() });
        let start = || {
            let shared = self.0.clone();
            let new = thread::Builder::new().name("upcall-aside".into()).stack_size(STACK);
            new.spawn(move || help(&shared)).map(drop)
        };
        self.0
            .pool
            .add(call.clone(), start)
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))?;
        Ok(call)
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.0.pool.end();
    }
}

impl AsideCall {
    /// The kernel's result; `None` if the call is not done yet.
    pub(crate) fn result(&self) -> Option<i64> {
        self.run.result()
    }

    /// Ends the call with EINTR as soon as the kernel allows it, if it is not done.
    pub(crate) fn interrupt(&self) {
        self.run.interrupt(stop);
    }

    /// Keeps the memory that the call may write to until it is done, since its ULP ends.
    pub(crate) fn keep(&self, memory: UlpMemory) {
        if let Some(result) = self.run.keep(memory, stop) {
            self.close_made(result);
        }
    }

    /// Closes the descriptor that the call has made, since its ULP has ended before it had it.
    fn close_made(&self, result: i64) {
        if result >= 0 && [libc::SYS_openat, libc::SYS_accept4].contains(&(self.words[0] as i64)) {
            // SAFETY: the kernel has just made the descriptor, and nothing else knows its number.
            unsafe { libc::close(result as i32) };
        }
    }
}

fn stop(helper: i32) {
    // SAFETY: sends a signal to a thread of this process, which handles it.
    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), helper, signal()) };
}

/// The body of a helper.
fn help(AsideState { pool, doorbell }: &AsideState) {
    // SAFETY: asks the kernel for a number.
    let own = unsafe { libc::gettid() };
    hear_one_signal();
    while let Some(call) = pool.next(LAZY) {
        let left = call.run.carry_out(own, -i64::from(libc::EINTR), |stop| {
            let stop = ptr::from_ref(stop).cast();
            // SAFETY: the call is one of `CALLS`. `stop` is a word that lives as long as this, and
            // the memory that the call may write to is a ULP's, which stays mapped until the call
            // is done (`keep`).
            unsafe { upcall_ulp_aside_call(stop, &raw const call.words) }
        });
        if let Some(result) = left {
            call.close_made(result);
        }
        pool.note(call.token);
        let one = 1_u64.to_ne_bytes();
        // SAFETY: the kernel reads as many bytes as `one` has. The counter cannot be full.
        unsafe { libc::write(doorbell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

fn signal() -> i32 {
    libc::SIGRTMAX() - 1
}

/// Blocks all signals but this one and those of crashes; the others are for other threads.
fn hear_one_signal() {
    // SAFETY: all zeros are a valid mask.
    let mut mask: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: the mask is a local variable.
    unsafe { libc::sigfillset(&raw mut mask) };
    for heard in [signal(), libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT]
    {
        // SAFETY: as above.
        unsafe { libc::sigdelset(&raw mut mask, heard) };
    }
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut()) };
}

fn handle() {
    // SAFETY: all zeros are a valid action.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = stopped as *const () as usize;
    // Without SA_RESTART, so that calls end.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and changes only where the
    // thread continues.
    unsafe { libc::sigaction(signal(), &raw const action, ptr::null_mut()) };
}

/// The signal handler; see the module comment.
///
/// Thread-locals may be a ULP's here, if another process sent the signal.
extern "C" fn stopped(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let from = (&raw const upcall_ulp_aside_look).addr();
    let to = (&raw const upcall_ulp_aside_enter).addr();
    // SAFETY: the kernel passes a valid context to the handler.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = &mut registers[libc::REG_RIP as usize];
    if (from..=to).contains(&(*at as usize)) {
        *at = (&raw const upcall_ulp_aside_stopped).addr() as i64;
    }
}
