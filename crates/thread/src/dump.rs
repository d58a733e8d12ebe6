//! A dump of all threads with their backtraces, to standard error, on SIGQUIT.
//!
//! Only a virtual processor knows its threads, and only between two of them. So the signal wakes a
//! kernel thread that asks each processor. Each processor answers within 64 switches, or at once if
//! it is idle; a processor that does not answer within two seconds is reported as busy. A suspended
//! thread takes its own backtrace, in an *interlude* on its own stack, which the processor switches
//! to and back from (`arch`). A process that has not called [`dump_on_quit`] can still be inspected
//! from outside, by `upcall threads PID`.

use crate::beacon;
use crate::record::{Cause, DONE, Rec, WaitState};
use crate::shared::VpShared;
use crate::vp::{Vp, here};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::fmt::Write;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use upcall_os::doorbell::Doorbell;
use upcall_os::poll::{PollSet, Report};
use upcall_os::signal;

/// Time that processors have to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Least free stack for a backtrace, in bytes. Taking one needs up to half of it.
const ROOM: usize = 8 * 1024;

/// Makes the process write all its threads to standard error when it gets SIGQUIT.
///
/// The signal is Ctrl-\ on a terminal, or `kill -QUIT PID`; the process runs on afterwards.
///
/// For each thread the dump shows number, name, state, what it waits for, and a backtrace. A
/// processor whose threads seldom yield for two seconds is named without its threads. A dump may
/// leave each thread with one or two more pages of its stack in use. This starts a kernel thread,
/// which sleeps until the signal. Further calls do nothing.
///
/// # Errors
/// The kernel's error if the signal cannot be handled, two descriptors are not available, or the
/// kernel thread cannot be started.
pub fn dump_on_quit() -> io::Result<()> {
    static WATCHING: Mutex<bool> = Mutex::new(false);
    let mut watching = WATCHING.lock().unwrap_or_else(PoisonError::into_inner);
    if *watching {
        return Ok(());
    }
    let (doorbell, rings) = (Doorbell::new()?, PollSet::new()?);
    rings.add(&doorbell, RINGS, Report::EachRing)?;
    let doorbell: &'static Doorbell = Box::leak(Box::new(doorbell));
    let wait = move || {
        loop {
            if rings.wait_any(None, RINGS).key {
                signal::write_to_stderr(dump().as_bytes());
            }
        }
    };
    std::thread::Builder::new().name("upcall-dump".to_owned()).spawn(wait)?;
    QUIT.store(ptr::from_ref(doorbell).cast_mut(), Ordering::Release);
    // SAFETY: the handler does one load and one system call.
    unsafe {
        signal::handle(
            libc::SIGQUIT,
            on_quit,
            libc::SA_RESTART | libc::SA_ONSTACK | libc::SA_SIGINFO,
        )
    }?;
    *watching = true;
    Ok(())
}

/// The key of the doorbell in the poll set that the kernel thread waits on.
const RINGS: u64 = 0;

/// The doorbell that the signal handler rings.
static QUIT: AtomicPtr<Doorbell> = AtomicPtr::new(ptr::null_mut());

extern "C" fn on_quit(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: stored before the handler was installed, and never freed.
    if let Some(doorbell) = unsafe { QUIT.load(Ordering::Acquire).as_ref() } {
        doorbell.notify();
    }
}

/// The answers of the processors.
static ANSWERS: Mutex<Vec<ProcessorDump>> = Mutex::new(Vec::new());
static ANSWERED: Condvar = Condvar::new();

struct ProcessorDump {
    of: *const VpShared,
    threads: Vec<DumpedThread>,
    not_started: usize,
}

// SAFETY: the pointer is only compared.
unsafe impl Send for ProcessorDump {}

struct DumpedThread {
    title: String,
    backtrace: Option<Backtrace>,
}

fn answers() -> MutexGuard<'static, Vec<ProcessorDump>> {
    ANSWERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks all processors and formats their answers.
fn dump() -> String {
    answers().clear();
    let processors: Vec<_> = beacon::processors()
        .filter_map(|post| Some((VpShared::at(post.home), post.tid()?)))
        .collect();
    for (shared, _) in &processors {
        shared.dump_wanted.store(true, Ordering::SeqCst);
        // As in `VpShared::post`: the processor's last check before it sleeps finds the flag, or we
        // find it asleep.
        fence(Ordering::SeqCst);
        shared.idle.unpark(shared.index());
    }
    let until = Instant::now() + PATIENCE;
    let mut answers = answers();
    // Matched by processor and not counted, since a late answer to an earlier dump may be among
    // them.
    while !processors
        .iter()
        .all(|&(shared, _)| answers.iter().any(|answer| ptr::eq(answer.of, shared)))
    {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        answers = ANSWERED.wait_timeout(answers, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    let found = std::mem::take(&mut *answers);
    // A processor that answers late must not wait for the text to be written.
    drop(answers);
    let answers = found;
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(text, "\nuser-level threads of process {}:", std::process::id());
    for &(shared, tid) in processors.iter().rev() {
        shared.dump_wanted.store(false, Ordering::Relaxed);
        let _ = write!(text, "\nvirtual processor {} (kernel thread {tid})", shared.index());
        match answers.iter().find(|answer| ptr::eq(answer.of, shared)) {
            None => {
                let _ = writeln!(
                    text,
                    ": no answer within {PATIENCE:?}: its threads seldom yield, never yield, or \
                     are very many"
                );
            }
            Some(answer) => {
                let _ = writeln!(
                    text,
                    ": {} threads, and {} not started",
                    answer.threads.len(),
                    answer.not_started
                );
                answer.threads.iter().for_each(|seen| seen.show(&mut text));
            }
        }
    }
    text
}

impl DumpedThread {
    fn show(&self, text: &mut String) {
        let _ = writeln!(text, "\n{}", self.title);
        if let Some(backtrace) = &self.backtrace {
            for line in users_part(&backtrace.to_string()) {
                let _ = writeln!(text, "{line}");
            }
        }
    }
}

/// The lines of a backtrace without the scheduler's own frames at either end.
fn users_part(shown: &str) -> Vec<&str> {
    let frames = frames(shown);
    let end = frames.iter().position(|frame| frame.is_of(&OUTER)).unwrap_or(frames.len());
    let begin =
        frames[..end].iter().rposition(|frame| frame.is_of(&INNER)).map_or(0, |last| last + 1);
    frames[begin..end].iter().flat_map(|frame| frame.lines.iter().copied()).collect()
}

/// Origins of the scheduler's innermost frames: paths of functions and, for inlined ones, of files.
const INNER: [&str; 14] = [
    "std::backtrace",
    "upcall_thread::block::",
    "upcall_thread::dispatch::",
    "upcall_thread::dump::",
    "upcall_thread::switch::",
    "upcall_thread::vp::",
    "upcall_thread::waiter::",
    "crates/thread/src/block.rs:",
    "crates/thread/src/dispatch.rs:",
    "crates/thread/src/dump.rs:",
    "crates/thread/src/switch.rs:",
    "crates/thread/src/vp.rs:",
    "crates/thread/src/waiter.rs:",
    "crates/thread/src/arch/",
];
/// As above, for the frames that run a thread's closure.
const OUTER: [&str; 6] = [
    "upcall_thread::dispatch::enter_worker",
    "upcall_thread::spawn::run_packet",
    "upcall_thread::spawn::enter",
    "upcall_thread::run::",
    "std::panicking::catch_unwind",
    "core::panic::unwind_safe::AssertUnwindSafe",
];

/// One frame of a backtrace: `  12: path::of::function`, and the lines of its place.
struct DumpFrame<'a> {
    lines: Vec<&'a str>,
}

impl DumpFrame<'_> {
    fn is_of(&self, origins: &[&str]) -> bool {
        self.lines.iter().any(|line| origins.iter().any(|origin| line.contains(origin)))
    }
}

fn frames(shown: &str) -> Vec<DumpFrame<'_>> {
    let begins = |line: &str| {
        line.split_once(": ").is_some_and(|(number, _)| number.trim().parse::<u32>().is_ok())
    };
    let mut frames: Vec<DumpFrame<'_>> = Vec::new();
    for line in shown.lines() {
        match frames.last_mut() {
            Some(last) if !begins(line) => last.lines.push(line),
            _ => frames.push(DumpFrame { lines: vec![line] }),
        }
    }
    frames
}

std::thread_local! {
    /// What an interlude found.
    static FOUND: Cell<Option<Backtrace>> = const { Cell::new(None) };
}

impl Vp {
    #[inline(always)]
    pub(crate) fn dump_if_wanted(&self) {
        if self.shared.is_dump_wanted() && self.has_room() {
            self.dump();
        }
    }

    /// Returns `true` if the current stack has room for a dump. If not, the dump waits for another
    /// stack.
    #[cold]
    fn has_room(&self) -> bool {
        let here = 0_u8;
        let left = (&raw const here).addr().wrapping_sub(self.current().bottom.get().addr());
        left >= ROOM + ROOM / 2
    }

    /// Returns `true` if an idle processor should move to a worker's stack.
    ///
    /// The stack that it idles on has no room for the dump that is wanted.
    pub(crate) fn dump_wants_a_stack(&self) -> bool {
        self.shared.is_dump_wanted()
            && self.current().state.get().cause != Cause::Work
            && self.group.work_stack_size >= 2 * ROOM
            && !self.has_room()
    }

    /// Lists the threads of this processor as its answer.
    #[cold]
    fn dump(&self) {
        self.shared.dump_wanted.store(false, Ordering::Relaxed);
        // The record of a thread that has ended may be reused for another thread, on another
        // processor, at any time. `word` is read first: see `start::begin`.
        let lives = |rec: &Rec| {
            rec.word.load(Ordering::Acquire) & DONE == 0
                && self.shared.is_home_of(rec)
                && rec.id.get() != 0
        };
        let mine = beacon::records().filter(lives);
        let threads = mine.map(|rec| self.see(rec)).collect();
        let answer =
            ProcessorDump { of: self.shared, threads, not_started: self.shared.fresh.len() };
        answers().push(answer);
        ANSWERED.notify_one();
    }

    fn see(&self, rec: Rec) -> DumpedThread {
        let runs = ptr::eq(rec, self.current());
        let number = rec.id.get();
        let name = rec.extra().and_then(|extra| extra.name());
        let name = name.map_or_else(String::new, |name| format!(" '{name}'"));
        let state = match rec.state.get() {
            WaitState { blocking: false, .. } if runs => "runs".to_owned(),
            WaitState { blocking: false, cause: Cause::Work } => {
                "is a worker without work".to_owned()
            }
            WaitState { blocking: false, .. } => "is ready".to_owned(),
            WaitState { cause, .. } => format!("waits for {}", what(cause, rec.object.get())),
        };
        let backtrace = if runs { Some(Backtrace::force_capture()) } else { self.backtrace(rec) };
        let note =
            if backtrace.is_none() { " (too little stack left for a backtrace)" } else { "" };
        DumpedThread { title: format!("thread {number}{name} {state}{note}"), backtrace }
    }

    /// The backtrace of a thread that is suspended on this processor.
    fn backtrace(&self, rec: Rec) -> Option<Backtrace> {
        extern "C" fn capture() -> ! {
            FOUND.set(Some(Backtrace::force_capture()));
            here().expect("interludes are played on virtual processors only").end_interlude()
        }
        let left = rec.sp.get().addr().saturating_sub(rec.bottom.get().addr());
        if left < ROOM {
            return None;
        }
        // SAFETY: the thread has a home, so it has started; it is not the running thread; its stack
        // has room; and a capture neither blocks nor yields.
        unsafe { self.interlude(rec, capture) };
        FOUND.take()
    }
}

/// What a thread waits for, in words.
fn what(cause: Cause, object: *const ()) -> String {
    match cause {
        Cause::Other => "a message, or something else outside of this crate".to_owned(),
        Cause::Join => {
            // SAFETY: for a join the object is a record, which is never freed.
            let target = unsafe { object.cast::<crate::record::Record>().as_ref() };
            target
                .map_or_else(String::new, |target| format!("the end of thread {}", target.id.get()))
        }
        Cause::Lock => format!("the mutex at {object:p}"),
        Cause::Shares => format!("the read-write lock or semaphore at {object:p}"),
        Cause::Condition => format!("the condition variable at {object:p}"),
        Cause::Park => "an unpark".to_owned(),
        Cause::Sleep => "a time".to_owned(),
        Cause::Blocking => "blocking work done aside".to_owned(),
        Cause::Work => "work".to_owned(),
    }
}
