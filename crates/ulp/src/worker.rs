//! The kernel thread that runs ULPs, one at a time.

use crate::arena::{self, ArenaNumber, NoArena};
use crate::backtrace::KernelRegisters;
use crate::catching::{Catching, NotCaught};
use crate::crash::{self, Crash};
use crate::interrupts::{Interrupts, thread_time};
use crate::layout::{ASK_EXIT, ASK_INTERRUPTED};
use crate::shared::SharedImage;
use crate::slot::UlpSlot;
use crate::switch::{self, ARGS, CRASHED, Context, Host};
use crate::ulp::Ulp;
use crate::words::NameWords;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fmt, io, mem, ptr};

/// Bit of `HWCAP2_FSGSBASE`: processor and kernel let programs set FS and GS.
const FSGSBASE: u64 = 1 << 1;

/// A kernel thread that runs ULPs. There is at most one for each thread, on which it stays.
pub struct Worker {
    host: NonNull<Host>,
    /// The signals that the thread had blocked, since a ULP that ends may have blocked others.
    mask: libc::sigset_t,
    _stack: crash::Stack,
    catching: Result<Catching, NotCaught>,
    interrupts: Option<Interrupts>,
    /// Mapped as long as images may read them.
    names: Option<NameWords>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

/// The reason why a thread cannot run ULPs.
#[derive(Debug)]
pub enum NoWorker {
    /// The processor or the kernel does not let programs set FS (that takes FSGSBASE and Linux
    /// 5.9).
    NoFs,
    /// The thread is a worker already.
    Already,
    /// The kernel refused something that is needed.
    Kernel(io::Error),
    /// There are no addresses for messages.
    Arena(NoArena),
}

impl fmt::Display for NoWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFs => f.write_str(
                "user-level processes need a processor with FSGSBASE and Linux 5.9: run the \
                 program with one process for each task",
            ),
            Self::Already => f.write_str(
                "this thread runs user-level processes already: use that worker, or another thread",
            ),
            Self::Kernel(error) => write!(
                f,
                "crashes of user-level processes cannot be told apart from the host's: {error}"
            ),
            Self::Arena(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NoWorker {}

/// A ULP's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UlpRequest {
    /// What the ULP asks for.
    pub what: u64,
    /// The arguments.
    pub args: [u64; ARGS],
}

/// Why a ULP stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The ULP asks for something. It goes on when it is [answered](Ulp::answer) and resumed.
    Asks(UlpRequest),
    /// The ULP was [interrupted](Worker::interrupt_every), and goes on where it was when it is
    /// resumed. Until then what it writes for the host may be incomplete, and its questions must
    /// not be answered.
    Interrupted,
    /// The ULP has ended by itself.
    Ended {
        /// The argument of `exit`, or the return value of `main`.
        status: i32,
    },
    /// The ULP has crashed, and cannot go on.
    Crashed(Crash),
}

/// The signals that this thread has blocked.
fn mask() -> libc::sigset_t {
    // SAFETY: all zeros are a valid mask.
    let mut mask = unsafe { mem::zeroed() };
    // SAFETY: writes the local mask, and changes nothing else.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &raw mut mask) };
    mask
}

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

impl Worker {
    /// Makes this thread a worker.
    ///
    /// From now on SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT and SIGTRAP of this process end a ULP,
    /// if one runs on the thread that gets the signal. SIGSYS reports the system calls of programs
    /// ([`not_caught`](Self::not_caught)).
    ///
    /// A ULP's libc registers its thread with the kernel as if it were the only one. So a thread
    /// that has run ULPs cannot be joined: use the process's first thread, or another thread that
    /// lasts as long as the process.
    ///
    /// Messages get addresses in arena 0, unless the process has an arena already.
    ///
    /// # Errors
    /// See [`NoWorker`].
    pub fn begin() -> Result<Self, NoWorker> {
        Self::begin_with(None)
    }

    /// As [`begin`](Self::begin), in a process whose messages get addresses in this arena.
    ///
    /// # Errors
    /// See [`NoWorker`].
    pub fn begin_in(number: ArenaNumber) -> Result<Self, NoWorker> {
        Self::begin_with(Some(number))
    }

    fn begin_with(number: Option<ArenaNumber>) -> Result<Self, NoWorker> {
        // SAFETY: reads a value that the kernel has given.
        if unsafe { libc::getauxval(libc::AT_HWCAP2) } & FSGSBASE == 0 {
            return Err(NoWorker::NoFs);
        }
        if IS_WORKER.get() {
            return Err(NoWorker::Already);
        }
        arena::begin(number).map_err(NoWorker::Arena)?;
        let stack = crash::Stack::new().map_err(NoWorker::Kernel)?;
        crash::handle().map_err(NoWorker::Kernel)?;
        // SAFETY: checked above.
        let host = NonNull::from(Box::leak(Box::new(unsafe { Host::here() })));
        // SAFETY: Rust and libc use FS, and nothing uses GS on x86-64; the host lives until `drop`
        // has reset GS.
        unsafe { switch::set_gs(host.as_ptr()) };
        // SAFETY: the host is this thread's; `drop` stops the catching before it frees the host.
        let catching = unsafe { Catching::begin(host.as_ptr()) };
        IS_WORKER.set(true);
        let mask = mask();
        let mut new = Self { host, mask, _stack: stack, catching, interrupts: None, names: None };
        new.note_mask();
        Ok(new)
    }

    /// Why system calls that programs make themselves are not caught here, if they are not.
    ///
    /// Where they are, each goes by the table of calls, as calls by libc's functions do. Otherwise
    /// the kernel takes it for one of the whole process.
    pub fn not_caught(&self) -> Option<&NotCaught> {
        self.catching.as_ref().err()
    }

    /// Makes these functions available to images, at their doors.
    pub fn share(&mut self, shared: &SharedImage) {
        // SAFETY: the host is this thread's, and no ULP runs.
        unsafe { (*self.host.as_ptr()).doors = shared.doors() };
    }

    /// Lets images read these words.
    pub fn show(&mut self, names: &NameWords) {
        // SAFETY: the host is this thread's, and no ULP runs.
        unsafe { (*self.host.as_ptr()).names = names.address() };
        self.names = Some(names.clone());
    }

    /// Interrupts a ULP that computes each time that this thread has run for `time`.
    ///
    /// So the host can handle what has arrived by then ([`StopReason::Interrupted`]). The kernel
    /// counts the time in steps of about 4 ms, the interval between two of its own checks. A thread
    /// that sleeps is not interrupted, and takes no processor time for this.
    ///
    /// The signal also measures the processor time of each ULP, which programs ask for (`clock`,
    /// `times`, `getrusage`).
    ///
    /// The signal is SIGVTALRM, whose handler the process has from now on. It may end a system call
    /// that a ULP itself makes with EINTR, unless the kernel restarts that call (`signal(7)`).
    ///
    /// # Errors
    /// There is a handler for SIGVTALRM already, or the kernel refuses a timer.
    pub fn interrupt_every(&mut self, time: Duration) -> io::Result<()> {
        self.interrupts = None;
        // The time so far belongs to no ULP.
        // SAFETY: the host is this thread's.
        let assigned = unsafe { &(*self.host.as_ptr()).assigned };
        assigned.fetch_max(thread_time(), Ordering::Relaxed);
        self.interrupts = Some(Interrupts::begin(time)?);
        self.note_mask();
        Ok(())
    }

    /// Notes which signals the thread has blocked.
    fn note_mask(&mut self) {
        self.mask = mask();
        // SAFETY: the kernel's mask is the first word of libc's, which is longer.
        let word = unsafe { (&raw const self.mask).cast::<u64>().read() };
        // SAFETY: the host is this thread's, and no ULP runs.
        unsafe { (*self.host.as_ptr()).mask = word };
    }

    /// Runs a ULP until it asks for something, is interrupted, or ends.
    ///
    /// That may be never, since it is not preempted. A ULP that has ended is not run; the same
    /// reason is returned again.
    ///
    /// # Panics
    /// If the bytes of a [`Block`](crate::Block) are lent.
    // Inlined: a return from here would be mispredicted each time, since the ULP has called and
    // returned in another order.
    #[inline(always)]
    pub fn resume(&mut self, ulp: &mut Ulp) -> StopReason {
        if let Some(ended) = &ulp.ended {
            return **ended;
        }
        crate::blocks::assert_none_is_lent();
        crate::debug::tell();
        // SAFETY: the ULP does not run. A `UlpTurns` that was forgotten may have left a `next` that
        // is gone.
        unsafe { (*ulp.context()).next = 0 };
        // SAFETY: GS points to this thread's host, since neither can move to another thread. The
        // ULP has not ended, its memory is mapped as long as it lives, and it is borrowed uniquely.
        unsafe { switch::resume(self.host.as_ptr(), ulp.context()) };
        self.stopped(ulp)
    }

    /// Returns why a ULP that just ran has stopped.
    #[inline]
    fn stopped(&self, ulp: &mut Ulp) -> StopReason {
        // SAFETY: the ULP does not run, so nothing else uses its context.
        let Context { what, args, reply, .. } = unsafe { &mut *ulp.context() };
        *reply = 0;
        if matches!(*what, CRASHED | ASK_EXIT | ASK_INTERRUPTED) {
            return self.broken_off(ulp);
        }
        let args = args.each_mut().map(|word| {
            // SAFETY: the word is borrowed uniquely.
            let word = unsafe { AtomicU64::from_ptr(word) };
            // By itself, as in `Ulp::letter`.
            word.load(Ordering::Relaxed)
        });
        StopReason::Asks(UlpRequest { what: *what, args })
    }

    /// The same, for a ULP that has crashed, ended or been interrupted.
    #[cold]
    fn broken_off(&self, ulp: &mut Ulp) -> StopReason {
        // SAFETY: the ULP does not run, so nothing else uses its context.
        let Context { what, args, code, .. } = unsafe { &mut *ulp.context() };
        let stopped = match *what {
            CRASHED => {
                let (at, stack) = out_of_call(args[2], args[3]);
                let (signal, address, code) = (args[0] as i32, args[1], *code as i32);
                StopReason::Crashed(Crash { signal, address, at, stack, code })
            }
            ASK_EXIT => StopReason::Ended { status: args[0] as i32 },
            _ => {
                ulp.rest.registers = Some(self.registers());
                return StopReason::Interrupted;
            }
        };
        // SAFETY: restores the mask that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, ptr::null_mut()) };
        if let StopReason::Crashed(_) = stopped {
            ulp.rest.registers = Some(self.registers());
        }
        ulp.ended = Some(Box::new(stopped));
        stopped
    }

    /// The registers of a ULP that has just crashed or been interrupted.
    fn registers(&self) -> KernelRegisters {
        // SAFETY: the host is this thread's, and no ULP runs.
        let mut registers = unsafe { (*self.host.as_ptr()).registers };
        let [at, stack] = [libc::REG_RIP, libc::REG_RSP].map(|one| one as usize);
        (registers[at], registers[stack]) = out_of_call(registers[at], registers[stack]);
        KernelRegisters(registers)
    }
}

/// Where a ULP is, and its stack pointer. In a system call: where the ULP made it.
fn out_of_call(at: u64, stack: u64) -> (u64, u64) {
    if !switch::is_in_call(at) || UlpSlot::of(stack).is_none() {
        return (at, stack);
    }
    // SAFETY: the image has called the host's instruction, so that its return address is there.
    (unsafe { (stack as *const u64).read() }, stack + 8)
}

/// ULPs that run in turns.
///
/// A ULP that [yields](crate::ASK_YIELD) is followed by the next one, without the host.
///
/// Source: UPVM, section 3.2: the run queue (V5 here), for the ULPs that can run.
#[derive(Debug)]
pub struct UlpTurns<'a> {
    worker: &'a mut Worker,
    ulps: &'a mut [Ulp],
}

impl<'a> UlpTurns<'a> {
    /// Puts these ULPs in turn, in this order, except for those that have ended.
    pub fn new(worker: &'a mut Worker, ulps: &'a mut [Ulp]) -> Self {
        let live = ulps.iter().enumerate().filter(|(_, ulp)| ulp.ended.is_none());
        let all = live.map(|(index, ulp)| (index as u64, ulp.context())).collect::<Vec<_>>();
        for (at, &(index, context)) in all.iter().enumerate() {
            let before = all[at.checked_sub(1).unwrap_or(all.len() - 1)].1;
            let after = all[(at + 1) % all.len()].1;
            // SAFETY: none of these ULPs runs, and all are borrowed uniquely.
            let context = unsafe { &mut *context };
            (context.index, context.next, context.previous) = (index, after as u64, before as u64);
        }
        Self { worker, ulps }
    }

    /// Runs the ULPs, `first` first, until one ends or asks for something other than to yield.
    ///
    /// Returns that ULP and the reason, or `None` if `first` has ended already.
    pub fn go(&mut self, first: usize) -> Option<(usize, StopReason)> {
        let ulp = self.ulps.get(first).filter(|ulp| ulp.ended.is_none())?;
        crate::blocks::assert_none_is_lent();
        crate::debug::tell();
        // SAFETY: as in `Worker::resume`, for each ULP: none that is still in turn has ended.
        unsafe { switch::resume(self.worker.host.as_ptr(), ulp.context()) };
        // SAFETY: the host is this thread's, and no ULP runs.
        let last = unsafe { (*self.worker.host.as_ptr()).last } as *const Context;
        // SAFETY: the switch has stored one of these contexts there.
        let index = unsafe { (*last).index } as usize;
        let ulp = self.ulps.get_mut(index)?;
        let stopped = self.worker.stopped(ulp);
        if ulp.ended.is_some() {
            Self::leave(ulp);
        }
        Some((index, stopped))
    }

    /// Answers the question of a ULP. Returns `false` if there is no such ULP.
    pub fn answer(&mut self, index: usize, reply: i64) -> bool {
        self.ulps.get_mut(index).map(|ulp| ulp.answer(reply)).is_some()
    }

    /// One of the ULPs.
    pub fn ulp(&self, index: usize) -> Option<&Ulp> {
        self.ulps.get(index)
    }

    /// The ULP whose turn comes after that of `index`, which has not ended.
    pub fn after(&self, index: usize) -> Option<usize> {
        let ulp = self.ulps.get(index).filter(|ulp| ulp.ended.is_none())?;
        // SAFETY: none of the ULPs runs.
        let next = unsafe { (*ulp.context()).next } as *const Context;
        // SAFETY: `next` is the context of one of these ULPs, perhaps the same one.
        Some(unsafe { (*next).index } as usize)
    }

    /// Takes a ULP that has ended out of turn.
    fn leave(ulp: &Ulp) {
        // SAFETY: none of the ULPs runs.
        let Context { next, previous, .. } = unsafe { &mut *ulp.context() };
        let (next, previous) = (std::mem::take(next), std::mem::take(previous));
        if next == ulp.context() as u64 {
            return;
        }
        // SAFETY: these are the neighbours' contexts, which live as long as their ULPs, and those
        // are borrowed.
        unsafe { (*(next as *mut Context)).previous = previous };
        // SAFETY: as above.
        unsafe { (*(previous as *mut Context)).next = next };
    }
}

impl Drop for UlpTurns<'_> {
    fn drop(&mut self) {
        for ulp in &*self.ulps {
            // SAFETY: none of the ULPs runs.
            let context = unsafe { &mut *ulp.context() };
            (context.next, context.previous) = (0, 0);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.interrupts = None;
        if let Ok(catching) = &self.catching {
            catching.end();
        }
        // SAFETY: no ULP runs on this thread any more; handlers find no host, as on any other
        // thread.
        unsafe { switch::set_gs(ptr::null_mut()) };
        // SAFETY: `begin` made it from a box, and nothing uses it any more.
        drop(unsafe { Box::from_raw(self.host.as_ptr()) });
        IS_WORKER.set(false);
    }
}
