//! The few kernel calls that threads need: memory, guards, futex, membarrier, affinity.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;
use std::time::Instant;

/// Linux 6.13; not yet named by the C library's header.
const MADV_GUARD_INSTALL: i32 = 102;
const MEMBARRIER_CMD_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

/// The size of a page on x86-64.
pub(crate) const PAGE: usize = 4096;

fn done(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Maps `bytes` of zeroed private memory, for stacks: reserved, not committed, small pages only.
pub(crate) fn map(bytes: usize) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no existing
    // memory.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // A huge page behind 30 stacks would commit all of them at the first touch. Failing to say so
    // costs memory only. SAFETY: the range was mapped just above; the advice changes no
    // contents.
    let _ = unsafe { libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE) };
    NonNull::new(at.cast())
        .ok_or_else(|| io::Error::other("mmap returned address 0: raise vm.mmap_min_addr above 0"))
}

/// Makes a page fault on every access, without splitting the mapping.
///
/// # Safety
/// `at` begins one page of a mapping made by `map` that nothing uses.
pub(crate) unsafe fn install_guard(at: *mut u8) -> io::Result<()> {
    // SAFETY: the page is unused by the caller's promise, so losing its contents and access loses
    // nothing.
    done(unsafe { libc::madvise(at.cast(), PAGE, MADV_GUARD_INSTALL) })
}

/// Makes a page fault on every access, at the price of one more entry in the process's memory map.
///
/// # Safety
/// `at` begins one page of a mapping made by `map` that nothing uses.
pub(crate) unsafe fn protect(at: *mut u8) -> io::Result<()> {
    // SAFETY: the page is unused by the caller's promise.
    done(unsafe { libc::mprotect(at.cast(), PAGE, libc::PROT_NONE) })
}

/// Gives the memory of a range back to the kernel; it reads as zero afterwards.
///
/// # Safety
/// The range lies in a mapping made by `map`, and nothing relies on its contents.
pub(crate) unsafe fn discard(at: *mut u8, bytes: usize) {
    // SAFETY: by the caller's promise nothing relies on the contents. Failure leaves the memory in
    // use, which is harmless.
    let _ = unsafe { libc::madvise(at.cast(), bytes, libc::MADV_DONTNEED) };
}

/// Blocks the kernel thread while `word` holds `expected`, until a wake or `deadline`. May return
/// early.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, deadline: Option<Instant>) {
    let timeout = deadline.map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        libc::timespec {
            tv_sec: left.as_secs().min(i64::MAX as u64) as libc::time_t,
            tv_nsec: libc::c_long::from(left.subsec_nanos()),
        }
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is a live aligned u32 and the timeout is null or a live timespec; the call
    // writes neither.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, expected, timeout) };
}

/// Wakes one kernel thread that waits on `word`.
pub(crate) fn futex_wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address as a key only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 1) };
}

/// Registers the process for `membarrier`. `false`: the kernel does not offer it.
pub(crate) fn register_membarrier() -> bool {
    // SAFETY: the call has no memory operands.
    unsafe {
        libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0
    }
}

/// Runs a full memory barrier on every processor that runs a thread of this process.
pub(crate) fn membarrier() {
    // SAFETY: the call has no memory operands.
    let result =
        unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) };
    assert!(
        result == 0,
        "membarrier worked when it was registered and fails now: {}; a filter that was installed since has to permit it",
        io::Error::last_os_error()
    );
}

/// The processors that the calling kernel thread may run on.
pub(crate) fn affinity() -> io::Result<libc::cpu_set_t> {
    // SAFETY: a set of processors is plain bits, for which zero is a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is a live local of the size given.
    done(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) })?;
    Ok(set)
}

/// Restricts the calling kernel thread to the processors in `set`.
pub(crate) fn set_affinity(set: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: the set is live and of the size given.
    done(unsafe { libc::sched_setaffinity(0, size_of_val(set), set) })
}

/// The set that holds one processor.
pub(crate) fn only(cpu: usize) -> io::Result<libc::cpu_set_t> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("processor {cpu} is beyond the kernel's limit"),
        ));
    }
    // SAFETY: a set of processors is plain bits, for which zero is a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the index is below the size of the set, checked above.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    Ok(set)
}

/// The kernel's number of the calling kernel thread.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: the call has no operands.
    unsafe { libc::gettid() }.unsigned_abs()
}

/// What a signal does now.
pub(crate) fn signal_action(signal: libc::c_int) -> io::Result<libc::sigaction> {
    // SAFETY: plain numbers and pointers, for which zero is a valid value.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed, and the answer goes to a live local.
    done(unsafe { libc::sigaction(signal, ptr::null(), &raw mut now) })?;
    Ok(now)
}

pub(crate) type SignalHandler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Has `handler` run for a signal.
///
/// # Safety
/// The handler does only what a signal handler may, wherever the signal comes.
pub(crate) unsafe fn set_signal_handler(
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

/// Has a signal take the course that it took before our handler: the handler of then, or what the
/// kernel does without one.
///
/// # Safety
/// Called in a handler with its own arguments.
pub(crate) unsafe fn hand_on(
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
            // SAFETY: the default action is no code.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            // A fault comes again when the handler returns; what another process sent has to be
            // sent again. SAFETY: the kernel passed a valid record to the handler.
            if unsafe { (*info).si_code } <= 0 {
                // SAFETY: no memory operands.
                unsafe { libc::raise(signal) };
            }
        }
    }
}

/// Writes to standard error, from anywhere, a signal handler included.
pub(crate) fn write_to_stderr(text: &[u8]) {
    // SAFETY: the bytes are live; the kernel only reads them. Where standard error is closed nobody
    // is there to tell.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

/// The kernel thread's alternate stack for signal handlers, while this lives. `None`: it has one
/// already, or cannot have one.
pub(crate) struct SignalStack {
    memory: NonNull<u8>,
}

const SIGNAL_STACK: usize = 64 * 1024;

impl SignalStack {
    pub(crate) fn provide() -> Option<Self> {
        // SAFETY: plain numbers and pointers, for which zero is a valid value.
        let mut now: libc::stack_t = unsafe { std::mem::zeroed() };
        // SAFETY: nothing is changed, and the answer goes to a live local.
        done(unsafe { libc::sigaltstack(ptr::null(), &raw mut now) }).ok()?;
        if now.ss_flags & libc::SS_DISABLE == 0 {
            return None;
        }
        let memory = map(PAGE + SIGNAL_STACK).ok()?;
        // SAFETY: the first page of a mapping made just now.
        let _ = unsafe { protect(memory.as_ptr()) };
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
        // SAFETY: mapped by `provide`, and used by nobody any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), PAGE + SIGNAL_STACK) };
    }
}

/// Something to be told of, from a signal handler too.
pub(crate) struct Event {
    file: std::os::fd::OwnedFd,
}

impl Event {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the call has no memory operands.
        let file = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self { file: unsafe { std::os::fd::FromRawFd::from_raw_fd(file) } })
    }

    /// Ends the wait, or the next one.
    pub(crate) fn tell(&self) {
        let one = 1_u64;
        // SAFETY: eight live bytes. A counter that is full tells as well.
        let _ = unsafe {
            libc::write(std::os::fd::AsRawFd::as_raw_fd(&self.file), (&raw const one).cast(), 8)
        };
    }

    /// Blocks the kernel thread until it is told.
    pub(crate) fn wait(&self) {
        let mut count = 0_u64;
        // SAFETY: eight live bytes of our own. A wait that a signal ends early is harmless.
        let _ = unsafe {
            libc::read(std::os::fd::AsRawFd::as_raw_fd(&self.file), (&raw mut count).cast(), 8)
        };
    }
}
