//! A process in which one system call that takes a resource is refused.
//!
//! If a party is started with the word `supervised`, its test answers each of its system calls that
//! take memory, descriptors, threads or watches ([`upcall_os::seccomp`]). The test counts the calls
//! and refuses one, as a kernel without that resource would; the kernel does the others. A test
//! runs once for each number until a run ends before the number is reached.
//!
//! Some calls are never refused. `brk`: its failure looks different, and `malloc` then uses `mmap`.
//! A mapping of at most 32 KiB and a guard of one page in a new thread: they are the alternative
//! signal stack of Rust's standard library, which aborts if it cannot have one. Mappings of files
//! that are not shared: they are libraries that the linker loads.

use crate::outcome::say;
use crate::party::Party;
use crate::place::Place;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, pidfd_getfd, pidfd_open, prlimit,
};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_os::seccomp::{PendingSyscall, Reply, SeccompListener, listen};

/// What a system call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Memory,
    Descriptor,
    Thread,
    /// One of the machine's asynchronous requests.
    Request,
    /// A place in a set of descriptors that are waited for.
    Watch,
    /// The descriptors of a message, if it has any.
    Message,
}

/// System calls by number on x86-64, with their names and what they take.
const CALLS: [(u32, &str, Takes); 28] = [
    (9, "mmap", Takes::Memory),
    (10, "mprotect", Takes::Memory),
    (25, "mremap", Takes::Memory),
    (77, "ftruncate", Takes::Memory),
    (285, "fallocate", Takes::Memory),
    (319, "memfd_create", Takes::Descriptor),
    (2, "open", Takes::Descriptor),
    (32, "dup", Takes::Descriptor),
    (41, "socket", Takes::Descriptor),
    (43, "accept", Takes::Descriptor),
    (53, "socketpair", Takes::Descriptor),
    (55, "getsockopt", Takes::Descriptor),
    (72, "fcntl", Takes::Descriptor),
    (257, "openat", Takes::Descriptor),
    (283, "timerfd_create", Takes::Descriptor),
    (288, "accept4", Takes::Descriptor),
    (289, "signalfd4", Takes::Descriptor),
    (290, "eventfd2", Takes::Descriptor),
    (291, "epoll_create1", Takes::Descriptor),
    (292, "dup3", Takes::Descriptor),
    (293, "pipe2", Takes::Descriptor),
    (434, "pidfd_open", Takes::Descriptor),
    (438, "pidfd_getfd", Takes::Descriptor),
    (56, "clone", Takes::Thread),
    (435, "clone3", Takes::Thread),
    (206, "io_setup", Takes::Request),
    (233, "epoll_ctl", Takes::Watch),
    (47, "recvmsg", Takes::Message),
];

/// Which calls are counted, and which of them are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Refuses none.
    Nothing,
    /// Refuses the call with this number, from 1, of those that take a resource.
    One(usize),
    /// Refuses as `One` does, with the other error that the kernel has for the call: the whole
    /// machine lacks the resource.
    OneOfMachine(usize),
    /// Refuses the mapping of private memory with this number; most of them are stacks.
    PrivateMemory(usize),
    /// Refuses all calls from this number on that take a descriptor, a thread, or shared memory.
    From(usize),
    /// Makes the descriptor table full during one receipt of a message, whose descriptors are lost.
    Receipt(usize),
}

#[derive(Debug)]
struct State {
    rule: Rule,
    seen: usize,
    refused: Option<&'static str>,
    /// The process, and its limit of descriptors before it was lowered.
    lowered: Option<(Pid, Rlimit)>,
}

/// The supervisor's side, which decides what a process is refused.
#[derive(Clone, Debug)]
pub struct Shortage {
    state: Arc<KernelMutex<State>>,
    stderr: PathBuf,
}

impl Shortage {
    /// Starts a party under supervision, with `rule` for its start.
    ///
    /// # Panics
    /// If the party cannot be started, or the kernel has no such filters.
    pub fn start(place: &Place, arguments: &str, rule: Rule) -> (Party, Self) {
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let stderr = place.path().join(format!("stderr-{number}"));
        let command = place.command(&format!("supervised {arguments}"));
        let errors =
            File::options().read(true).write(true).create_new(true).open(&stderr).expect("a file");
        let mut party = Party::with_errors(command, arguments, errors);
        let fd = party.hear().numbers("a listener")[0] as i32;
        let process = Pid::from_raw(party.pid() as i32).expect("a process number");
        let pidfd = pidfd_open(process, PidfdFlags::empty()).expect("a descriptor of the party");
        let listener = SeccompListener::from(
            pidfd_getfd(&pidfd, fd, PidfdGetfdFlags::empty()).expect("the party's listener"),
        );
        let state =
            Arc::new(KernelMutex::new(State { rule, seen: 0, refused: None, lowered: None }));
        let shortage = Self { state: state.clone(), stderr };
        // The thread ends with the last thread of the party.
        std::thread::spawn(move || {
            while let Ok(Some(waiting)) = listener.next() {
                let reply = locked(&state).decide(process, &waiting);
                listener.answer(&waiting, reply);
            }
        });
        party.say("go");
        (party, shortage)
    }

    /// Sets the rule from now on, and restarts the count of calls at 0.
    pub fn set(&self, rule: Rule) {
        let mut state = locked(&self.state);
        state.raise();
        (state.rule, state.seen, state.refused) = (rule, 0, None);
    }

    /// Refuses nothing from now on, but remembers what was refused.
    pub fn relent(&self) {
        let mut state = locked(&self.state);
        state.raise();
        state.rule = Rule::Nothing;
    }

    /// Refuses nothing from now on. Returns the first call that was refused, if any.
    pub fn lift(&self) -> Option<&'static str> {
        let refused = locked(&self.state).refused;
        self.set(Rule::Nothing);
        refused
    }

    /// Number of counted calls since the rule was set.
    pub fn seen(&self) -> usize {
        locked(&self.state).seen
    }

    /// Everything that the party has written to its standard error.
    pub fn complaints(&self) -> String {
        read(&self.stderr)
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

fn locked(state: &KernelMutex<State>) -> MutexGuard<'_, State> {
    state.lock()
}

impl State {
    fn decide(&mut self, process: Pid, waiting: &PendingSyscall) -> Reply {
        self.raise();
        let Some(&(_, name, takes)) = CALLS.iter().find(|(number, ..)| *number == waiting.number)
        else {
            return Reply::Continue;
        };
        let counts = match (self.rule, takes) {
            (Rule::Nothing, _) => false,
            (Rule::Receipt(_), takes) => takes == Takes::Message,
            (Rule::PrivateMemory(_), _) => {
                waiting.number == 9 && is_private(waiting.arguments[3]) && is_counted(waiting)
            }
            (Rule::From(_), Takes::Memory) => is_shared_memory(waiting),
            (_, Takes::Message) => false,
            _ => is_counted(waiting),
        };
        if !counts {
            return Reply::Continue;
        }
        self.seen += 1;
        let is_refused = match self.rule {
            Rule::Nothing => false,
            Rule::One(nth)
            | Rule::OneOfMachine(nth)
            | Rule::PrivateMemory(nth)
            | Rule::Receipt(nth) => self.seen == nth,
            Rule::From(first) => self.seen >= first,
        };
        if !is_refused {
            return Reply::Continue;
        }
        self.refused.get_or_insert(name);
        if takes == Takes::Message {
            self.lower(process);
            return Reply::Continue;
        }
        Reply::Fail(error_number(takes, matches!(self.rule, Rule::OneOfMachine(_))))
    }

    /// Leaves the process no free number for a descriptor.
    fn lower(&mut self, process: Pid) {
        let numbers = format!("/proc/{}/fd", process.as_raw_nonzero());
        let free = |number: &u64| std::fs::symlink_metadata(format!("{numbers}/{number}")).is_err();
        let lowest = (0..).find(free).unwrap_or(0);
        let before = rustix::process::getrlimit(Resource::Nofile);
        let lowered = Rlimit { current: Some(lowest), maximum: before.maximum };
        self.lowered =
            prlimit(Some(process), Resource::Nofile, lowered).ok().map(|before| (process, before));
    }

    fn raise(&mut self) {
        if let Some((process, before)) = self.lowered.take() {
            // The process may have ended.
            let _ = prlimit(Some(process), Resource::Nofile, before);
        }
    }
}

/// Flags of `mmap`.
const ANONYMOUS: u64 = 0x20;

fn is_private(flags: u64) -> bool {
    const MAP_TYPE: u64 = 0xf;
    const MAP_PRIVATE: u64 = 2;
    flags & MAP_TYPE == MAP_PRIVATE
}

fn is_shared_memory(waiting: &PendingSyscall) -> bool {
    match waiting.number {
        9 => !is_private(waiting.arguments[3]),
        77 | 285 => true,
        _ => false,
    }
}

fn is_counted(waiting: &PendingSyscall) -> bool {
    const F_DUPFD: u64 = 0;
    const F_DUPFD_CLOEXEC: u64 = 1030;
    const SO_PEERPIDFD: u64 = 77;
    const PROT_NONE: u64 = 0;
    let [_, len, third, flags, ..] = waiting.arguments;
    match waiting.number {
        9 if is_private(flags) => flags & ANONYMOUS != 0 && len > 32 << 10,
        10 => !(len <= 4096 && third == PROT_NONE),
        55 => third == SO_PEERPIDFD,
        72 => matches!(len, F_DUPFD | F_DUPFD_CLOEXEC),
        _ => true,
    }
}

fn error_number(takes: Takes, is_machines: bool) -> i32 {
    const EAGAIN: i32 = 11;
    const ENOMEM: i32 = 12;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const ENOSPC: i32 = 28;
    match (takes, is_machines) {
        (Takes::Memory | Takes::Message, _) => ENOMEM,
        (Takes::Descriptor, false) => EMFILE,
        (Takes::Descriptor, true) => ENFILE,
        (Takes::Thread | Takes::Request, _) => EAGAIN,
        (Takes::Watch, false) => ENOMEM,
        (Takes::Watch, true) => ENOSPC,
    }
}

/// The party's side: makes the test answer this process's system calls, and waits until the test
/// does.
///
/// # Errors
/// If the kernel has no such filters.
pub fn be_supervised() -> std::io::Result<()> {
    let numbers = CALLS.map(|(number, ..)| number);
    // The first use of either takes resources, which are not to be counted.
    let mut line = String::with_capacity(16);
    drop(std::io::stdin().lock());
    let listener = listen(&numbers)?;
    say(Ok(vec![listener.as_fd().as_raw_fd().to_string()]));
    std::io::stdin().read_line(&mut line).map(drop)
}
