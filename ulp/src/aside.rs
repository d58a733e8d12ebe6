//! Calls that have to wait in the kernel, and for which nothing can be waited instead: helper threads run them, while the worker runs other ULPs (V10).
//!
//! All threads of a process have the same addresses and descriptors, so a call does there what it would have done here. A helper is started when none is idle, and ends when there was nothing to do for [`LAZY`].
//!
//! **No end is lost.** A helper first notes that a call is done, then rings (an eventfd); who looks first silences the bell, then takes the notes. So what is noted after that has its ring after that, too.
//!
//! **No interruption is lost.** `stop` is set first, and only then, under the call's lock, it is looked which helper runs it; a helper writes that down under the same lock before it begins. Where none is written down yet, the helper sees `stop` when it begins.
//! Else it gets a signal, and that finds it (`call.s` below) before the first look at `stop`, which then is seen; or between that and the system call, and the handler sets it behind, with EINTR; or in the system call, which the kernel ends with EINTR; or behind it, and the call is done.
//!
//! The way between look and system call is musl's, for its `pthread_cancel` (R. Felker).

use crate::ulp::Memory;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;
use std::{arch, fmt, io, mem, ptr, thread};

/// So many helpers at most: what is asked for beyond them waits.
const MOST: usize = 256;
/// So long an idle helper stays.
const LAZY: Duration = Duration::from_secs(2);
/// Of a helper's stack.
const STACK: usize = 64 << 10;
/// A call's number and its arguments.
pub(crate) const WORDS: usize = 7;

/// Those whose only effect is on what their arguments name: descriptors, and memory of the ULP's.
const CALLS: [i64; 29] = [
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
];

arch::global_asm!(
    // rdi: where `stop` is; rsi: the call's number and arguments. What the call returns.
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

/// See the module. When it is dropped helpers end as soon as they have nothing to do.
pub struct Aside(Arc<Shared>);

impl fmt::Debug for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aside").finish_non_exhaustive()
    }
}

struct Shared {
    work: Mutex<Work>,
    come: Condvar,
    bell: OwnedFd,
    /// Whether notes may be there: for those who look often.
    noted: AtomicBool,
}

#[derive(Default)]
struct Work {
    queue: VecDeque<Arc<Call>>,
    helpers: usize,
    idle: usize,
    /// The tokens of those that are done.
    notes: Vec<u64>,
    over: bool,
}

/// A call, until its ULP has its result.
pub(crate) struct Call {
    words: [u64; WORDS],
    token: u64,
    stop: AtomicU32,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// The thread that runs it.
    helper: Option<i32>,
    result: Option<i64>,
    /// Its ULP has ended, and its memory waits for the end of the call.
    keep: Option<Memory>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("number", &self.words[0]).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Aside {
    /// Without a helper yet. From now on the process handles the signal that stops calls, the last but one of real time.
    ///
    /// # Errors
    /// The kernel's: no descriptor can be had.
    pub fn begin() -> io::Result<Self> {
        static HANDLED: Once = Once::new();
        HANDLED.call_once(handle);
        // SAFETY: takes numbers, and gives a descriptor or -1.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if bell < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: made just now, and nobody else's.
        let bell = unsafe { OwnedFd::from_raw_fd(bell) };
        Ok(Self(Arc::new(Shared { work: Mutex::default(), come: Condvar::new(), bell, noted: AtomicBool::new(false) })))
    }

    /// Can be read (`poll(2)`) when something is [`done`](Self::done).
    pub fn descriptor(&self) -> i32 {
        self.0.bell.as_raw_fd()
    }

    /// Whether something may be [`done`](Self::done), without a call of the kernel's.
    pub fn has_done(&self) -> bool {
        self.0.noted.load(Ordering::Acquire)
    }

    /// The tokens of calls that were done since this was asked last. What has become of them their ULPs know ([`Ulp::aside`](crate::Ulp::aside)).
    pub fn done(&self) -> Vec<u64> {
        let mut count = [0_u8; 8];
        // SAFETY: as many bytes as the kernel is told.
        unsafe { libc::read(self.descriptor(), count.as_mut_ptr().cast(), count.len()) };
        let mut work = locked(&self.0.work);
        self.0.noted.store(false, Ordering::Relaxed);
        mem::take(&mut work.notes)
    }

    /// Has a helper run this call.
    pub(crate) fn run(&self, words: [u64; WORDS], token: u64) -> Result<Arc<Call>, i32> {
        if !CALLS.contains(&(words[0] as i64)) {
            return Err(libc::ENOSYS);
        }
        let call = Arc::new(Call { words, token, stop: AtomicU32::new(0), progress: Mutex::default() });
        let mut work = locked(&self.0.work);
        work.queue.push_back(call.clone());
        // Those that wait before it have an idle one each.
        if work.queue.len() > work.idle && work.helpers < MOST {
            let shared = self.0.clone();
            let new = thread::Builder::new().name("upcall-aside".into()).stack_size(STACK);
            match new.spawn(move || help(&shared)) {
                Ok(_) => work.helpers += 1,
                Err(error) if work.helpers == 0 => {
                    work.queue.pop_back();
                    return Err(error.raw_os_error().unwrap_or(libc::EAGAIN));
                }
                // One of those that are there will have time.
                Err(_) => {}
            }
        }
        drop(work);
        self.0.come.notify_one();
        Ok(call)
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        locked(&self.0.work).over = true;
        self.0.come.notify_all();
    }
}

impl Call {
    /// What the kernel has returned. `None`: nothing yet.
    pub(crate) fn result(&self) -> Option<i64> {
        locked(&self.progress).result
    }

    /// It ends as soon as the kernel lets it, with EINTR, if it is not done.
    pub(crate) fn interrupt(&self) {
        self.stop.store(1, Ordering::SeqCst);
        // Under the lock, so that the helper is with this call still.
        let progress = locked(&self.progress);
        if let Some(helper) = progress.helper {
            let number = signal();
            // SAFETY: a signal to a thread of this process, which handles it.
            unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), helper, number) };
        }
    }

    /// Its ULP ends: the memory that it may write to stays as long as it is not done.
    pub(crate) fn keep(&self, memory: Memory) {
        let mut progress = locked(&self.progress);
        if progress.result.is_none() {
            progress.keep = Some(memory);
            drop(progress);
            self.interrupt();
        }
    }

    fn carry_out(&self, helper: i32) {
        locked(&self.progress).helper = Some(helper);
        let result = loop {
            // SAFETY: one of `CALLS`; `stop` lives as long as this, and what memory it may write to is a ULP's, which is mapped until it is done (`keep`).
            let result = unsafe { upcall_ulp_aside_call(&raw const self.stop, &raw const self.words) };
            // What was sent to stop the call before may come late.
            if result != -i64::from(libc::EINTR) || self.stop.load(Ordering::SeqCst) != 0 {
                break result;
            }
        };
        let mut progress = locked(&self.progress);
        (progress.helper, progress.result) = (None, Some(result));
        let memory = progress.keep.take();
        drop(progress);
        drop(memory);
    }
}

/// A helper's life.
fn help(shared: &Shared) {
    // SAFETY: asks the kernel for a number.
    let own = unsafe { libc::gettid() };
    hear_one_signal();
    loop {
        let mut work = locked(&shared.work);
        let call = loop {
            if let Some(call) = work.queue.pop_front() {
                break call;
            }
            if work.over {
                return;
            }
            work.idle += 1;
            let (again, waited) = shared.come.wait_timeout(work, LAZY).unwrap_or_else(PoisonError::into_inner);
            work = again;
            work.idle -= 1;
            if waited.timed_out() && work.queue.is_empty() {
                work.helpers -= 1;
                return;
            }
        };
        drop(work);
        call.carry_out(own);
        let mut work = locked(&shared.work);
        work.notes.push(call.token);
        shared.noted.store(true, Ordering::Release);
        drop(work);
        let one = 1_u64.to_ne_bytes();
        // SAFETY: as many bytes as the kernel is told; it cannot be full.
        unsafe { libc::write(shared.bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

fn signal() -> i32 {
    libc::SIGRTMAX() - 1
}

/// All others are for threads that know what to do with them.
fn hear_one_signal() {
    // SAFETY: all zeros are a valid one.
    let mut mask: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: a mask of this function's.
    unsafe { libc::sigfillset(&raw mut mask) };
    for heard in [signal(), libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT] {
        // SAFETY: as above.
        unsafe { libc::sigdelset(&raw mut mask, heard) };
    }
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut()) };
}

fn handle() {
    // SAFETY: all zeros are a valid one.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = stopped as *const () as usize;
    // Without SA_RESTART: calls end.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and touches nothing but where the thread goes on.
    unsafe { libc::sigaction(signal(), &raw const action, ptr::null_mut()) };
}

/// See the module. Thread-locals may be a ULP's here, if the signal is none of ours.
extern "C" fn stopped(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let from = (&raw const upcall_ulp_aside_look).addr();
    let to = (&raw const upcall_ulp_aside_enter).addr();
    // SAFETY: the kernel hands it to the handler.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = &mut registers[libc::REG_RIP as usize];
    if (from..=to).contains(&(*at as usize)) {
        *at = (&raw const upcall_ulp_aside_stopped).addr() as i64;
    }
}
