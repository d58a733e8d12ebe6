//! Turns kernel threads into virtual processors, and back.

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

/// Runs `body` as the first thread, on one virtual processor for each CPU that is available.
///
/// # Panics
/// As [`Processors::run`], and when that returns an error.
pub fn run<T>(body: impl FnOnce() -> T) -> T {
    match Processors::new().run(body) {
        Ok(result) => result,
        Err(error) => panic!("upcall-thread: cannot start the virtual processors: {error}"),
    }
}

/// The virtual processors to start: how many, where, and what they do when idle.
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

/// Maximum number of virtual processors: each has one bit in the word `hungry`.
const MOST: usize = 64;

impl Processors {
    /// One virtual processor for each CPU that is available, with the default settings.
    ///
    /// The processors are not pinned; stacks are 64 KiB, and the idle policy is [`SpinThenPark`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for `count` virtual processors, 1 to 64.
    pub fn count(mut self, count: usize) -> Self {
        self.count = Some(count);
        self
    }

    /// Pins virtual processor i to the i-th of these CPUs.
    ///
    /// At the end of the list it starts again from the first. The caller, which is virtual
    /// processor 0, gets its own affinity back at the end.
    pub fn pin(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.cpus = cpus.into_iter().collect();
        self
    }

    /// Sets the stack size of threads that ask for none, in bytes.
    ///
    /// See [`Builder::stack_size`](crate::Builder::stack_size).
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// Sets the size of the stacks that outside work ([`Idle::work`]) runs on, in bytes.
    ///
    /// The default is [`DEFAULT_WORK_STACK_SIZE`](crate::DEFAULT_WORK_STACK_SIZE), or
    /// [`stack_size`](Self::stack_size) if that is larger. Only the pages that are used take
    /// memory.
    pub fn work_stack_size(mut self, bytes: usize) -> Self {
        self.work_stack_size = Some(bytes);
        self
    }

    /// Limits the pieces of outside work ([`Idle::work`]) that each processor has under way.
    ///
    /// A processor makes that many stacks for them, besides those of threads that are spawned. The
    /// limit is at least one; by default there is none.
    pub fn most_work(mut self, pieces: usize) -> Self {
        self.most_work = Some(pieces);
        self
    }

    /// Sets what a processor does when no thread is ready.
    pub fn idle(mut self, idle: Arc<dyn Idle>) -> Self {
        self.idle = Some(idle);
        self
    }

    /// Starts the virtual processors and runs `body` as the first thread.
    ///
    /// The calling kernel thread becomes virtual processor 0, and `body` runs on its own stack.
    /// When `body` returns, so does this, as soon as each processor next changes threads. Threads
    /// that have not ended by then never run again, as when a process ends: nothing they own is
    /// dropped, and their stacks are not reused. A lock or a permit that is handed to one of them,
    /// because it was waiting for it, is lost. Join the threads that matter. Each call of `run`
    /// leaves about 1 KiB behind, and as much for each processor, which a late waker might still
    /// read.
    ///
    /// # Errors
    /// `InvalidInput` for a count outside 1 to 64, a CPU that does not exist, or a stack size above
    /// 256 MiB. The kernel's error if a kernel thread cannot be started or pinned, or there is no
    /// stack for outside work.
    ///
    /// # Panics
    /// If the caller is on a virtual processor, or if `body` panics.
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
            // The code of a processor itself does not panic: it would abort.
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
        // A refusal happens here, and not in the middle of a call.
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

    /// Starts all processors but the first.
    ///
    /// The root thread of each blocks until the waiter returned here wakes it. Until then its
    /// processor does what it does for any blocked thread: it runs other threads, or idles.
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
    /// Makes the calling kernel thread a virtual processor, with `root` as its running thread.
    fn enter(group: &'static VpGroup, index: usize, root: Rec) -> &'static Vp {
        let vp: &'static Vp = Box::leak(Box::new(Vp::new(group, index, root)));
        root.set_home(Some(vp.shared.address()));
        vp.post.put_up();
        overflow::watch();
        Vp::make_here(Some(vp));
        vp.shared.idle.begin(vp);
        vp
    }

    /// Makes the calling kernel thread an ordinary one again.
    ///
    /// Threads of the processor that have not ended never run again.
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
