//! The kernel thread that runs ULPs, one at a time.

use crate::backtrace::KernelRegisters;
use crate::crash::{self, Crash};
use crate::interrupts::Interrupts;
use crate::layout::{ASK_EXIT, ASK_INTERRUPTED};
use crate::shared::SharedImage;
use crate::switch::{self, ARGS, CRASHED, Context, Host};
use crate::ulp::Ulp;
use std::cell::Cell;
use std::ptr::NonNull;
use std::time::Duration;
use std::{fmt, io, mem, ptr};

/// The processor's and the kernel's word that programs may set FS and GS (`HWCAP2_FSGSBASE`).
const FSGSBASE: u64 = 1 << 1;

/// See the module. One for each thread, on which it stays.
pub struct Worker {
    host: NonNull<Host>,
    /// What signals it had blocked: a ULP that ends may have blocked others.
    mask: libc::sigset_t,
    _stack: crash::Stack,
    interrupts: Option<Interrupts>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

/// Why a thread cannot run ULPs.
#[derive(Debug)]
pub enum NoWorker {
    /// The processor or the kernel does not let programs set FS (Linux 5.9, and FSGSBASE).
    NoFs,
    /// It is one already.
    Already,
    /// The kernel refused what is needed.
    Kernel(io::Error),
}

impl fmt::Display for NoWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFs => f.write_str("user-level processes need a processor with FSGSBASE and Linux 5.9: run the program with one process for each task"),
            Self::Already => f.write_str("this thread runs user-level processes already: use that worker, or another thread"),
            Self::Kernel(error) => write!(f, "crashes of user-level processes cannot be told apart from the host's: {error}"),
        }
    }
}

impl std::error::Error for NoWorker {}

/// What a ULP asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UlpRequest {
    /// What.
    pub what: u64,
    /// With what.
    pub args: [u64; ARGS],
}

/// Why a ULP does not run any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// It asks for something, and goes on when it is [answered](Ulp::answer) and resumed.
    Asks(UlpRequest),
    /// It was [interrupted](Worker::interrupt_every), and goes on where it was when it is resumed.
    /// Nothing that it tells the host is whole meanwhile, and nothing of what it asked for may be
    /// answered.
    Interrupted,
    /// It has ended by itself.
    Ended {
        /// What it gave to `exit`, or returned from `main`.
        status: i32,
    },
    /// It has crashed, and cannot go on.
    Crashed(Crash),
}

/// What signals this thread has blocked.
fn mask() -> libc::sigset_t {
    // SAFETY: all zeros are a valid one.
    let mut mask = unsafe { mem::zeroed() };
    // SAFETY: writes the mask, and changes nothing.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &raw mut mask) };
    mask
}

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

impl Worker {
    /// Makes this thread one that runs ULPs. From now on SIGSEGV, SIGBUS, SIGILL, SIGFPE and
    /// SIGABRT of this process end a ULP, if one runs on the thread that they come to.
    ///
    /// A ULP's libc tells the kernel about its thread as if it were the only one, so a thread that
    /// has run ULPs cannot be joined: use the process's first one, or one that lasts as long as the
    /// process.
    ///
    /// # Errors
    /// See [`NoWorker`].
    pub fn begin() -> Result<Self, NoWorker> {
        // SAFETY: reads a value that the kernel has given.
        if unsafe { libc::getauxval(libc::AT_HWCAP2) } & FSGSBASE == 0 {
            return Err(NoWorker::NoFs);
        }
        if IS_WORKER.get() {
            return Err(NoWorker::Already);
        }
        let stack = crash::Stack::new().map_err(NoWorker::Kernel)?;
        crash::handle().map_err(NoWorker::Kernel)?;
        // SAFETY: looked at above.
        let host = NonNull::from(Box::leak(Box::new(unsafe { Host::here() })));
        // SAFETY: Rust and libc use FS, and nothing uses GS on x86-64; the host lives until `drop`
        // has taken that back.
        unsafe { switch::set_gs(host.as_ptr()) };
        IS_WORKER.set(true);
        Ok(Self { host, mask: mask(), _stack: stack, interrupts: None })
    }

    /// From now on images find these functions at their doors.
    pub fn share(&mut self, shared: &SharedImage) {
        // SAFETY: this thread's host, and no ULP runs.
        unsafe { (*self.host.as_ptr()).doors = shared.doors() };
    }

    /// From now on a ULP that computes is interrupted each time when this thread has run for so
    /// long, so that the host looks at what came by then ([`StopReason::Interrupted`]); as the
    /// kernel counts that, by the 4 ms or so between two of its own looks. A thread that sleeps is
    /// not interrupted, and takes no processor time for this.
    ///
    /// By SIGVTALRM, whose handler the process has from now on. A call of the kernel's that a ULP
    /// itself makes may end with EINTR by it, where that is not made again by itself (`signal(7)`).
    ///
    /// # Errors
    /// There is a handler for SIGVTALRM already, or the kernel refuses a timer.
    pub fn interrupt_every(&mut self, time: Duration) -> io::Result<()> {
        self.interrupts = None;
        self.interrupts = Some(Interrupts::begin(time)?);
        self.mask = mask();
        Ok(())
    }

    /// Runs a ULP until it asks for something, is interrupted, or ends. That may be never: it is
    /// not preempted. One that has ended is not run, and tells the same again.
    ///
    /// # Panics
    /// The bytes of a [`Block`](crate::Block) are lent.
    // In line: a return from here would be predicted wrongly each time, for the ULP has called and
    // returned otherwise.
    #[inline(always)]
    pub fn resume(&mut self, ulp: &mut Ulp) -> StopReason {
        if let Some(ended) = &ulp.ended {
            return **ended;
        }
        crate::blocks::assert_none_is_lent();
        crate::debug::tell();
        // SAFETY: it does not run. Turns that were forgotten may have left a next one that is not
        // there any more.
        unsafe { (*ulp.context()).next = 0 };
        // SAFETY: GS points to this thread's host, as nobody can move either; the ULP has not
        // ended, its memory is mapped as long as it lives, and it is borrowed alone.
        unsafe { switch::resume(self.host.as_ptr(), ulp.context()) };
        self.stopped(ulp)
    }

    /// Why one stopped that ran just now.
    fn stopped(&self, ulp: &mut Ulp) -> StopReason {
        // SAFETY: it does not run, so nobody else uses this.
        let Context { what, args, reply, code, .. } = unsafe { &mut *ulp.context() };
        *reply = 0;
        let stopped = match *what {
            CRASHED => StopReason::Crashed(Crash {
                signal: args[0] as i32,
                address: args[1],
                at: args[2],
                stack: args[3],
                code: *code as i32,
            }),
            ASK_EXIT => StopReason::Ended { status: args[0] as i32 },
            ASK_INTERRUPTED => {
                ulp.rest.registers = Some(self.registers());
                return StopReason::Interrupted;
            }
            what => return StopReason::Asks(UlpRequest { what, args: *args }),
        };
        // SAFETY: the mask that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, ptr::null_mut()) };
        if let StopReason::Crashed(_) = stopped {
            ulp.rest.registers = Some(self.registers());
        }
        ulp.ended = Some(Box::new(stopped));
        stopped
    }

    /// Of the ULP that was stopped otherwise than by itself just now.
    fn registers(&self) -> KernelRegisters {
        // SAFETY: this thread's host, and no ULP runs.
        KernelRegisters(unsafe { (*self.host.as_ptr()).registers })
    }
}

/// ULPs that run in turns: who [yields](crate::ASK_YIELD) is followed by the next one, without the
/// host.
///
/// Source: UPVM, section 3.2: the run queue (V5 here), as far as those go who can run.
#[derive(Debug)]
pub struct UlpTurns<'a> {
    worker: &'a mut Worker,
    ulps: &'a mut [Ulp],
}

impl<'a> UlpTurns<'a> {
    /// Of these, in this order, but for those that have ended.
    pub fn new(worker: &'a mut Worker, ulps: &'a mut [Ulp]) -> Self {
        let live = ulps.iter().enumerate().filter(|(_, ulp)| ulp.ended.is_none());
        let all = live.map(|(index, ulp)| (index as u64, ulp.context())).collect::<Vec<_>>();
        for (at, &(index, context)) in all.iter().enumerate() {
            let before = all[at.checked_sub(1).unwrap_or(all.len() - 1)].1;
            let after = all[(at + 1) % all.len()].1;
            // SAFETY: none of these runs, and all are borrowed alone.
            let context = unsafe { &mut *context };
            (context.index, context.next, context.previous) = (index, after as u64, before as u64);
        }
        Self { worker, ulps }
    }

    /// Runs them, this one first, until one asks for something else than its turn to end, or ends:
    /// which, and why. `None`: that one has ended already.
    pub fn go(&mut self, first: usize) -> Option<(usize, StopReason)> {
        let ulp = self.ulps.get(first).filter(|ulp| ulp.ended.is_none())?;
        crate::blocks::assert_none_is_lent();
        crate::debug::tell();
        // SAFETY: as in `Worker::resume`, for each of these: none has ended that is still in a
        // turn.
        unsafe { switch::resume(self.worker.host.as_ptr(), ulp.context()) };
        // SAFETY: the host is this thread's, and no ULP runs.
        let last = unsafe { (*self.worker.host.as_ptr()).last } as *const Context;
        // SAFETY: the switch has put one of these contexts there.
        let index = unsafe { (*last).index } as usize;
        let ulp = self.ulps.get_mut(index)?;
        let stopped = self.worker.stopped(ulp);
        if ulp.ended.is_some() {
            Self::leave(ulp);
        }
        Some((index, stopped))
    }

    /// What this one has asked for is done, with this result. False: there is none.
    pub fn answer(&mut self, index: usize, reply: i64) -> bool {
        self.ulps.get_mut(index).map(|ulp| ulp.answer(reply)).is_some()
    }

    /// One of them.
    pub fn ulp(&self, index: usize) -> Option<&Ulp> {
        self.ulps.get(index)
    }

    /// The one whose turn comes after this one's, which has not ended.
    pub fn after(&self, index: usize) -> Option<usize> {
        let ulp = self.ulps.get(index).filter(|ulp| ulp.ended.is_none())?;
        // SAFETY: none runs.
        let next = unsafe { (*ulp.context()).next } as *const Context;
        // SAFETY: it is of one of these, or the same one.
        Some(unsafe { (*next).index } as usize)
    }

    /// One that has ended has no turn any more.
    fn leave(ulp: &Ulp) {
        // SAFETY: none of them runs.
        let Context { next, previous, .. } = unsafe { &mut *ulp.context() };
        let (next, previous) = (std::mem::take(next), std::mem::take(previous));
        if next == ulp.context() as u64 {
            return;
        }
        // SAFETY: its neighbours' contexts, which live as long as their ULPs, which are borrowed.
        unsafe { (*(next as *mut Context)).previous = previous };
        // SAFETY: as above.
        unsafe { (*(previous as *mut Context)).next = next };
    }
}

impl Drop for UlpTurns<'_> {
    fn drop(&mut self) {
        for ulp in &*self.ulps {
            // SAFETY: none runs.
            let context = unsafe { &mut *ulp.context() };
            (context.next, context.previous) = (0, 0);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.interrupts = None;
        // SAFETY: no ULP runs on this thread any more; handlers find no host, as on any other
        // thread.
        unsafe { switch::set_gs(ptr::null_mut()) };
        // SAFETY: made of a box in `begin`, and used by nobody any more.
        drop(unsafe { Box::from_raw(self.host.as_ptr()) });
        IS_WORKER.set(false);
    }
}
