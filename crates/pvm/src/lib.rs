//! PVM 3.4 for user-level processes: message-passing programs, thousands of them in one process.
//!
//! Sources: UPVM, and PVM's own manual. A program is compiled and linked by `upvmcc` with its own
//! libpvm3 (`image/`), which holds its buffers and packs. The library asks the [`Node`](node) for
//! everything that concerns other tasks. The node's worker runs the tasks of one process one after
//! the other.
//!
//! Not supported yet: other hosts.
#![forbid(unsafe_code)]

mod asking;
mod balance;
mod calls;
pub mod compiler;
mod console;
mod door;
#[allow(dead_code, reason = "all that are ours or PVM's, also those that only libpvm3 uses")]
mod error;
mod machine;
/// For the simulator, which drives it too. Not a public interface.
#[doc(hidden)]
pub mod moves;
mod node;
#[allow(dead_code, reason = "some are for libpvm3 alone")]
mod ops;
mod output;
mod packed;
mod places;
mod processes;
mod programs;
mod remote;
mod report;
mod room;
mod services;
mod shown;
mod sizes;
mod start;
mod stream;
mod task;
mod tid;
pub mod tools;
mod transit;
mod wire;

pub use asking::{
    MachineRequestError, change_use, halt, kill, machines, memory, move_task, shown, signal, tid,
};
pub use balance::BalancerKind;
pub use door::ProcessChange;
pub use machine::TaskPlacement;
pub use moves::Pin as TaskPin;
pub use processes::run_member;
pub use room::make_room;
pub use shown::{
    MachineUse, MoveCost, ProcessState, ShownMachine, ShownProcess, ShownTask, StayingTask,
    TaskActivity, WantedMessage,
};
pub use sizes::{BadTaskSize, MemorySize, StackSize};
pub use start::{NotRun, Start};
pub use tid::{MOST_PROCESSES, Tid};

use calls::{Input, NodeCalls};
use console::Console;
use machine::Machine;
use node::{AtTerminal, Node, NodeControl};
use places::TaskPlaces;
use processes::Others;
use programs::Programs;
use remote::TaskSpec;
use report::report_line;
use sizes::TaskSizes;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;
use stream::{STDERR, STDOUT};
use upcall_os::lock::KernelMutex;
use upcall_ulp::arena::ArenaNumber;
use upcall_ulp::{SharedImage, Worker};

/// Runs a machine, with this process as its first, until all of its tasks have ended or one halts
/// it. Returns the worst status of the initial tasks: 128 plus the signal's number for a crash.
///
/// While it runs, the machine answers [`machines`], [`kill`], [`signal()`] and [`halt`] in other
/// processes.
///
/// This thread cannot be joined afterwards ([`Worker::begin`]): call `run` on the process's first
/// thread, and end by returning from `main`. The other processes are started as this program with
/// the arguments of [`run_member`].
pub fn run(start: &Start) -> Result<i32, NotRun> {
    run_with(start, || Ok(NodeControl::new(NodeCalls::new()?, None)))
}

/// Runs a machine with PVM's console, which reads `~/.pvmrc` and then the standard input. The
/// machine starts with what `start` says, whose `copies` may be 0. It does not end before the
/// console has read `quit`, `halt` or the end of its input.
///
/// Tasks find their standard input empty, because the console reads it.
pub fn console(start: &Start) -> Result<i32, NotRun> {
    run_with(start, || {
        let (calls, stdin) = (NodeCalls::new()?, std::io::stdin());
        let prompts = stdin.is_terminal();
        let from = rustix::io::fcntl_dupfd_cloexec(&stdin, 3)?;
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let first = std::fs::read_to_string(home.join(".pvmrc")).unwrap_or_default();
        let environment =
            std::env::vars_os().map(|(name, value)| (text(&name), text(&value))).collect();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let input = Input::start(from, calls.caller())?;
        let console = Console::new(node::CONSOLE, host, environment, &first);
        Ok(NodeControl::new(calls, Some(AtTerminal::new(console, input, prompts))))
    })
}

fn text(word: &OsStr) -> String {
    word.to_string_lossy().into_owned()
}

/// CPU time of the process after which a computing task is interrupted.
const LOOKS: Duration = Duration::from_millis(10);

/// The worker that runs the tasks of this process, with the functions that they share.
///
/// `arena`: the number of the process's arena, in all processes but the first.
fn worker(arena: Option<ArenaNumber>) -> Result<Worker, NotRun> {
    let worker = arena.map_or_else(Worker::begin, Worker::begin_in);
    let mut worker = worker.map_err(NotRun::Worker)?;
    // Loaded once per process, which may run several machines.
    static SHARED: KernelMutex<Option<SharedImage>> = KernelMutex::new(None);
    let mut shared = SHARED.lock();
    let shared = match *shared {
        Some(shared) => shared,
        None => {
            let file = include_bytes!(concat!(env!("OUT_DIR"), "/shared"));
            *shared.insert(SharedImage::load(file, &ops::DOORS).map_err(NotRun::Shared)?)
        }
    };
    worker.share(&shared);
    if let Err(error) = worker.interrupt_every(LOOKS) {
        report_line!(
            "upcall pvm: a task that only computes is not interrupted, so no signal and no `kill` \
             reaches it until it calls PVM: {error}"
        );
    }
    Ok(worker)
}

fn run_with(
    start: &Start,
    desk: impl FnOnce() -> std::io::Result<NodeControl>,
) -> Result<i32, NotRun> {
    let sizes = TaskSizes::of_run(start.stack, start.memory).map_err(NotRun::Size)?;
    // Comes first, because the other processes inherit the standard input that this replaces.
    let desk = desk().map_err(NotRun::Desk)?;
    let others = (start.processes > 1).then(|| Others::start(start, sizes)).transpose()?;
    let link = others.as_ref().map(Others::join).transpose()?;
    if link.is_some() {
        processes::settle(0);
    }
    let worker = worker(None)?;
    if let Some(reason) = worker.not_caught() {
        report_line!("upcall pvm: {reason}");
    }
    let machine = Machine::new(start.place.clone()).with_places(sizes.places());
    let places = TaskPlaces::new(0, start.processes).map_err(NotRun::Places)?;
    let programs = Programs::new(start.folders.clone());
    let node = Node::new(worker, programs, Some(machine), link, places).with_sizes(sizes);
    let mut node = node.with_balance(start.balance_plan()).at_desk(desk);
    if start.copies > 0 {
        let args = start.args.iter().map(|word| CString::new(word.as_bytes()));
        let args = args
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| NotRun::Program { name: start.program.clone(), code: error::BAD_PARAM })?;
        let plan = TaskSpec {
            program: start.program.clone().into(),
            args,
            parent: error::NO_PARENT,
            ..TaskSpec::default()
        };
        node.spawn(None, plan, start.copies);
    }
    let ended = node.run();
    // `upcall pvm halt` still ends this.
    [&STDOUT, &STDERR].into_iter().for_each(|stream| stream.flush());
    let worst = ended.map_err(|tasks| NotRun::Stuck { tasks })?;
    match node.refused {
        Some(code) => Err(NotRun::Program { name: start.program.clone(), code }),
        None => Ok(worst),
    }
}

/// Writes lines to standard error. After some seconds without a reader they are dropped.
///
/// For the error that [`run`] or [`console`] has returned: a machine that could not be started, or
/// whose tasks all wait, ends though standard error is full. At most 4096 bytes are written.
pub fn report(text: &str) {
    report::report(text);
    STDERR.flush();
}
