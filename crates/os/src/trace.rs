//! Another process seen from outside: its memory, and its held threads.
//!
//! A kernel thread is *held*, as a debugger does it, by `PTRACE_SEIZE` and `PTRACE_INTERRUPT`,
//! which send no signal that the process could see. It goes on when its [`HeldThread`] is dropped,
//! and at the latest when the kernel thread that holds it ends, in any way: kill -9 of the holder
//! releases it too. A signal that was on its way when the thread stopped is delivered then,
//! real-time signals included. (This is why the crate `nix` is not used: it knows no real-time
//! signals here, and would lose them.)
//!
//! A holder cannot hide one thing: a few system calls (`epoll_wait`, `semop`, … see signal(7))
//! return `EINTR` after any stop.

use std::io;
use std::marker::PhantomData;
use std::ptr;

/// Maximum number of spans of one [`read`]: the kernel's `IOV_MAX`.
pub const MOST_SPANS: usize = 1024;

/// A range of memory of another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessSpan {
    /// Its address in that process.
    pub at: u64,
    /// Its length in bytes.
    pub len: usize,
}

/// Copies `spans` of process `pid` into `into`, by one system call.
///
/// They follow one another in `into`. Returns the number of bytes copied. The copy ends early,
/// without an error, at the first byte that cannot be read, unless that is the very first.
///
/// # Errors
/// `EFAULT` if the first byte cannot be read, `ESRCH` if there is no such process, `EPERM` if the
/// caller may not trace it.
///
/// # Panics
/// There are more than [`MOST_SPANS`] spans, or `into` has another length than the spans together.
pub fn read(pid: u32, spans: &[ProcessSpan], into: &mut [u8]) -> io::Result<usize> {
    assert!(
        spans.len() <= MOST_SPANS,
        "{} spans in one call; {MOST_SPANS} are possible",
        spans.len()
    );
    let total: usize = spans.iter().map(|span| span.len).sum();
    assert_eq!(total, into.len(), "the buffer is not as large as the spans together");
    let remote: Vec<_> = spans
        .iter()
        .map(|span| libc::iovec {
            iov_base: ptr::without_provenance_mut(span.at as usize),
            iov_len: span.len,
        })
        .collect();
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: the kernel writes into the one local vector, which is `into`; it checks the remote
    // ones itself.
    let copied = unsafe {
        libc::process_vm_readv(
            pid as libc::pid_t,
            &raw const local,
            1,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

/// The registers of a held kernel thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registers {
    /// The general registers in the order of DWARF on x86-64 (System V ABI, figure 3.36): rax,
    /// rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15.
    pub general: [u64; 16],
    /// The instruction pointer.
    pub instruction: u64,
    /// The number of the system call that the thread is in, if any.
    pub system_call: Option<u64>,
}

/// State of a kernel thread that is to be held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HoldState {
    /// It has not stopped yet: it runs, or is in a system call that cannot be interrupted.
    Coming,
    /// It is stopped.
    Stopped,
    /// It has ended.
    Gone,
}

/// A kernel thread of another process, held or about to be.
///
/// Dropping it releases the thread if it has stopped. A thread that has not is released when the
/// kernel thread that called [`seize`](Self::seize) ends. So hold threads on a kernel thread of its
/// own.
#[derive(Debug)]
pub struct HeldThread {
    tid: libc::pid_t,
    hold: HoldState,
    /// The signal to deliver when the thread goes on; 0 for none.
    signal: libc::c_int,
    /// Only the kernel thread that seized it may operate on it.
    not_send: PhantomData<*const ()>,
}

fn request(request: libc::c_uint, tid: libc::pid_t, data: usize) -> io::Result<()> {
    let no_address = ptr::null_mut::<libc::c_void>();
    // SAFETY: the requests that are made through here take numbers for data and write nothing to
    // this process.
    let done = unsafe {
        libc::ptrace(request, tid, no_address, ptr::without_provenance_mut::<libc::c_void>(data))
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl HeldThread {
    /// Asks the kernel thread `tid` to stop. It does so soon; see [`look`](Self::look).
    ///
    /// # Errors
    /// `ESRCH` if it has ended. `EPERM` if the caller may not trace it, if another process does, or
    /// if it has ended and waits to be waited for.
    pub fn seize(tid: u32) -> io::Result<Self> {
        let tid = tid as libc::pid_t;
        request(libc::PTRACE_SEIZE, tid, 0)?;
        // From here on a drop releases the thread.
        let held = Self { tid, hold: HoldState::Coming, signal: 0, not_send: PhantomData };
        request(libc::PTRACE_INTERRUPT, tid, 0)?;
        Ok(held)
    }

    /// Number of the kernel thread.
    pub fn tid(&self) -> u32 {
        self.tid as u32
    }

    /// Polls whether the thread has stopped. Never blocks.
    pub fn look(&mut self) -> HoldState {
        if self.hold != HoldState::Coming {
            return self.hold;
        }
        let mut status = 0;
        // SAFETY: the kernel writes the status to the local variable.
        let known =
            unsafe { libc::waitpid(self.tid, &raw mut status, libc::WNOHANG | libc::__WALL) };
        self.hold = match known {
            0 => HoldState::Coming,
            tid if tid == self.tid && libc::WIFSTOPPED(status) => {
                // Either the requested stop, or that of a signal which was faster: then the thread
                // is stopped as well.
                if status >> 16 != libc::PTRACE_EVENT_STOP {
                    self.signal = libc::WSTOPSIG(status);
                }
                HoldState::Stopped
            }
            _ => HoldState::Gone,
        };
        self.hold
    }

    /// The registers of a stopped thread.
    ///
    /// # Errors
    /// `ESRCH` if it has not stopped, or was killed in between.
    pub fn registers(&self) -> io::Result<Registers> {
        let mut all = std::mem::MaybeUninit::<libc::user_regs_struct>::uninit();
        // SAFETY: the kernel writes one such struct to this place.
        let done = unsafe {
            libc::ptrace(
                libc::PTRACE_GETREGS,
                self.tid,
                ptr::null_mut::<libc::c_void>(),
                all.as_mut_ptr(),
            )
        };
        if done == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has reported that it wrote it.
        let r = unsafe { all.assume_init() };
        let general = [
            r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11,
            r.r12, r.r13, r.r14, r.r15,
        ];
        Ok(Registers {
            general,
            instruction: r.rip,
            system_call: (r.orig_rax != u64::MAX).then_some(r.orig_rax),
        })
    }
}

impl Drop for HeldThread {
    fn drop(&mut self) {
        if self.look() == HoldState::Stopped {
            // Fails only if the thread was killed in between.
            let _ = request(libc::PTRACE_DETACH, self.tid, self.signal as usize);
        }
    }
}

#[cfg(all(test, not(miri)))]
pub(crate) mod tests {
    use super::*;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    /// A process that is killed on drop.
    pub(crate) struct Killed(pub(crate) Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn state(pid: u32) -> String {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat[stat.rfind(')').unwrap()..].split_whitespace().nth(1).unwrap().into()
    }

    #[test]
    fn memory_is_read_up_to_the_first_hole() {
        let there = [7_u8; 100];
        let me = std::process::id();
        let at = there.as_ptr().addr() as u64;
        let mut into = [0; 120];
        let spans = [
            ProcessSpan { at, len: 60 },
            ProcessSpan { at: at + 60, len: 40 },
            ProcessSpan { at: 8, len: 20 },
        ];
        assert_eq!(read(me, &spans, &mut into).unwrap(), 100);
        assert_eq!(into[..100], there);
        let hole = read(me, &spans[2..], &mut into[..20]).unwrap_err();
        assert_eq!(hole.raw_os_error(), Some(libc::EFAULT));
        assert_eq!(read(me, &[], &mut []).unwrap(), 0);
    }

    #[test]
    fn a_held_process_stands_still_and_goes_on() {
        let child = Killed(Command::new("sleep").arg("100").spawn().expect("`sleep` is there"));
        let mut held = match HeldThread::seize(child.0.id()) {
            Ok(held) => held,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                return eprintln!("skipped: not permitted to trace here");
            }
            Err(error) => panic!("{error}"),
        };
        let until = Instant::now() + Duration::from_secs(10);
        while held.look() == HoldState::Coming {
            assert!(Instant::now() < until, "it does not stop");
            std::thread::yield_now();
        }
        assert_eq!((held.look(), state(child.0.id()).as_str()), (HoldState::Stopped, "t"));
        assert_ne!(held.registers().unwrap().instruction, 0);
        drop(held);
        while state(child.0.id()) != "S" {
            assert!(Instant::now() < until, "it does not go on: {}", state(child.0.id()));
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_has_ended_is_not_held() {
        let mut child = Command::new("true").spawn().expect("`true` is there");
        child.wait().unwrap();
        assert_eq!(HeldThread::seize(child.id()).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
