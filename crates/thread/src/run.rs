//! Making kernel threads into virtual processors, and back.

use crate::block::block;
use crate::fresh::Fresh;
use crate::idle::Idle;
use crate::kernel;
use crate::overflow;
use crate::record::{Home, Rec};
use crate::recycle;
use crate::shared::{VpGroup, VpShared};
use crate::slot;
use crate::spin::SpinThenPark;
use crate::stack;
use crate::sync::{Apart, Fences};
use crate::vp::{Vp, here};
use crate::waiter::Waiter;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc;
use std::time::Instant;
use upcall_os::{membarrier, processor};

/// Runs `body` as the first thread on as many virtual processors as the process may use processors.
///
/// # Panics
/// As [`Processors::run`], and when that fails.
pub fn run<T>(body: impl FnOnce() -> T) -> T {
    match Processors::new().run(body) {
        Ok(result) => result,
        Err(error) => panic!("upcall-thread: cannot start the virtual processors: {error}"),
    }
}

/// The virtual processors to be: how many, where, and what they do when idle.
#[derive(Clone, Default)]
#[must_use = "nothing starts before run"]
pub struct Processors {
    count: Option<usize>,
    cpus: Vec<usize>,
    stack_size: Option<usize>,
    work_stack_size: Option<usize>,
    most_work: Option<usize>,
    idle: Option<Arc<dyn Idle>>,
}

/// One bit each in the word `hungry`.
const MOST: usize = 64;

impl Processors {
    /// As many as the process may use processors, not pinned, with 64 KiB stacks and
    /// [`SpinThenPark`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for `count` virtual processors, 1 to 64.
    pub fn count(mut self, count: usize) -> Self {
        self.count = Some(count);
        self
    }

    /// Pins virtual processor i to the i-th of these processors, beginning again at the end of the
    /// list. The caller, which is virtual processor 0, gets its own affinity back at the end.
    pub fn pin(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.cpus = cpus.into_iter().collect();
        self
    }

    /// The stack size of threads that ask for none, in bytes; see
    /// [`Builder::stack_size`](crate::Builder::stack_size).
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// The size in bytes of the stacks that outside work ([`Idle::work`]) runs on, in place of
    /// [`DEFAULT_WORK_STACK_SIZE`](crate::DEFAULT_WORK_STACK_SIZE), or of
    /// [`stack_size`](Self::stack_size) if that is larger. Only the pages that are used take
    /// memory.
    pub fn work_stack_size(mut self, bytes: usize) -> Self {
        self.work_stack_size = Some(bytes);
        self
    }

    /// How many pieces of outside work ([`Idle::work`]) each processor has under way at most: so
    /// many stacks it makes for them, besides those of threads that are spawned. At least one;
    /// without a limit if this is not called.
    pub fn most_work(mut self, pieces: usize) -> Self {
        self.most_work = Some(pieces);
        self
    }

    /// What a processor does when no thread is ready.
    pub fn idle(mut self, idle: Arc<dyn Idle>) -> Self {
        self.idle = Some(idle);
        self
    }

    /// Makes the calling kernel thread virtual processor 0, starts the others, and runs `body` as
    /// the first thread.
    ///
    /// `body` runs on the kernel thread's own stack. When it returns, so does this, as soon as each
    /// processor next changes threads. Threads that have not ended by then never run again, as when
    /// a process ends: nothing they own is dropped, their stacks are not reused, and a lock or a
    /// permit that is handed to one of them, because it was waiting for it, is lost. Join those
    /// that matter. Each call of `run` leaves about 1 KiB behind, and as much for each processor,
    /// which a late waker might still look at.
    ///
    /// # Errors
    /// `InvalidInput` for a count outside of 1 to 64, a processor that does not exist, or a stack
    /// size above 256 MiB; what the kernel says if a kernel thread cannot be started or pinned,
    /// or no stack for outside work can be had.
    ///
    /// # Panics
    /// On a virtual processor; with whatever `body` panics with.
    pub fn run<T>(self, body: impl FnOnce() -> T) -> io::Result<T> {
        assert!(
            here().is_none(),
            "upcall-thread: run was called inside of run; spawn a thread instead"
        );
        let available = || std::thread::available_parallelism().map_or(1, usize::from).min(MOST);
        let count = self.count.unwrap_or_else(available);
        if count == 0 || count > MOST {
            let message =
                format!("{count} virtual processors were asked for; 1 to {MOST} are possible");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        #[cfg(any(miri, upcall_kernel_threads))]
        if count > 0 {
            return Ok(crate::outside::run(body));
        }
        let group = self.group(count)?;
        let affinity = (!self.cpus.is_empty()).then(processor::CpuSet::allowed).transpose()?;
        let stoppers = self.start_others(group)?;
        let first = match pin(&self.cpus, 0) {
            Ok(()) => Ok(run_first(group, body)),
            Err(error) => Err(error),
        };
        for (stop, processor) in stoppers {
            stop.wake();
            // A processor's own code does not panic: it would abort.
            let _ = processor.join();
        }
        if let Some(before) = affinity {
            before.confine()?;
        }
        first.map(|outcome| outcome.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    fn group(&self, count: usize) -> io::Result<&'static VpGroup> {
        let idle = self.idle.clone().unwrap_or_else(|| Arc::new(SpinThenPark::new(count)));
        let fences = if count > 1 { fences() } else { Fences::Asymmetric };
        let stack_size = self.stack_size.unwrap_or(stack::DEFAULT_STACK_SIZE);
        let default_class = slot::class_for(stack_size, 0)?;
        let work_stack_size =
            self.work_stack_size.unwrap_or(stack_size.max(stack::DEFAULT_WORK_STACK_SIZE));
        let work_class = slot::class_for(work_stack_size, 0)?;
        // What is refused is refused here, and not in the midst of a call.
        stack::probe(work_class)?;
        let member = |index| VpShared {
            home: Home { index },
            idle: Arc::clone(&idle),
            dump_wanted: AtomicBool::new(false),
            fresh: Fresh::new(fences),
            inbox: Apart::default(),
        };
        Ok(Box::leak(Box::new(VpGroup {
            members: (0..count).map(member).collect(),
            fences,
            stack_size,
            default_class,
            work_stack_size,
            work_class,
            most_workers: self.most_work.unwrap_or(usize::MAX),
            hungry: Apart(AtomicU64::new(0)),
        })))
    }

    /// Starts all processors but the first. Each one's root thread blocks until the waiter returned
    /// here wakes it, and meanwhile does what a blocked thread does: its processor runs other
    /// threads, or idles.
    fn start_others(
        &self,
        group: &'static VpGroup,
    ) -> io::Result<Vec<(Waiter, std::thread::JoinHandle<()>)>> {
        let mut started = Vec::new();
        for index in 1..group.members.len() {
            let (ready, is_ready) = mpsc::channel();
            let cpus = self.cpus.clone();
            let processor = std::thread::Builder::new().name(format!("upcall-vp-{index}")).spawn(
                move || {
                    if let Err(error) = pin(&cpus, index) {
                        let _ = ready.send(Err(error));
                        return;
                    }
                    let vp = Vp::enter(group, index, kernel::mine());
                    // The receiver waits for exactly this message.
                    block(|stop| drop(ready.send(Ok(stop))));
                    vp.leave();
                },
            )?;
            let stop = is_ready
                .recv()
                .map_err(|_| io::Error::other("a virtual processor ended before it began"))??;
            started.push((stop, processor));
        }
        Ok(started)
    }
}

impl Vp {
    /// Makes the calling kernel thread a virtual processor, with `root` as the thread that it is
    /// running.
    fn enter(group: &'static VpGroup, index: usize, root: Rec) -> &'static Vp {
        let vp: &'static Vp = Box::leak(Box::new(Vp::new(group, index, root)));
        root.set_home(Some(vp.shared.address()));
        vp.post.put_up();
        overflow::watch();
        Vp::make_here(Some(vp));
        vp.shared.idle.begin(vp);
        vp
    }

    /// The calling kernel thread is an ordinary one again. Its threads that have not ended never
    /// run again.
    fn leave(&self) {
        self.hunger.stop();
        self.workers.take_all().for_each(recycle::release);
        self.stacks.empty();
        stack::trim(Instant::now(), true);
        self.shared.idle.end(self);
        self.current().set_home(None);
        self.post.take_down();
        drop(self.signal_stack.take());
        Vp::make_here(None);
    }
}

fn run_first<T>(group: &'static VpGroup, body: impl FnOnce() -> T) -> std::thread::Result<T> {
    let vp = Vp::enter(group, 0, kernel::mine());
    let outcome = catch_unwind(AssertUnwindSafe(body));
    vp.leave();
    outcome
}

fn pin(cpus: &[usize], index: usize) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let cpu = cpus[index % cpus.len()];
    if cpu >= processor::MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("processor {cpu} is beyond the kernel's limit"),
        ));
    }
    processor::CpuSet::only(cpu).confine().map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot pin virtual processor {index} to processor {cpu}: {error}"),
        )
    })
}

fn fences() -> Fences {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    if *REGISTERED.get_or_init(membarrier::register_for_this_process) {
        Fences::Asymmetric
    } else {
        Fences::Symmetric
    }
}

impl std::fmt::Debug for Processors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Processors")
            .field("count", &self.count)
            .field("cpus", &self.cpus)
            .field("stack_size", &self.stack_size)
            .field("work_stack_size", &self.work_stack_size)
            .finish_non_exhaustive()
    }
}
