//! All threads with their backtraces, on standard error, when somebody sends SIGQUIT.
//!
//! Only a virtual processor knows its threads, and only between two of them. So the signal wakes a
//! kernel thread that asks each processor; each answers at the next of every 64th change of
//! threads, or at once if it is idle; and one that has not within two seconds is said to be busy.
//! The backtrace of a suspended thread is taken by that thread itself: an *interlude* on its own
//! stack, which the processor switches to and back from (`arch`). For a process that has not asked
//! for this, `upcall threads PID` looks from outside.

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

/// How long processors have to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// A thread with less stack left than this gets no backtrace: taking one needs up to half of it.
const ROOM: usize = 8 * 1024;

/// Has the process write all its threads to standard error when it gets SIGQUIT (Ctrl-\ on a
/// terminal; `kill -QUIT PID`), and go on.
///
/// For each thread: number, name, state, what it waits for, and a backtrace. A processor whose
/// threads hardly give way for two seconds is named, without its threads. A dump may leave each
/// thread with a page or two more of its stack in use. Starts a kernel thread, which sleeps until
/// the signal. Calling it again does nothing.
///
/// # Errors
/// What the kernel says if the signal cannot be handled, there are no two descriptors left, or the
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

/// The number of the doorbell in the set that the kernel thread waits for.
const RINGS: u64 = 0;

/// Rung by the handler of the signal.
static QUIT: AtomicPtr<Doorbell> = AtomicPtr::new(ptr::null_mut());

extern "C" fn on_quit(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: stored before the handler was installed, and never freed.
    if let Some(doorbell) = unsafe { QUIT.load(Ordering::Acquire).as_ref() } {
        doorbell.notify();
    }
}

/// What processors have answered.
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

/// Asks all processors, and puts down what they answer.
fn dump() -> String {
    answers().clear();
    let processors: Vec<_> = beacon::processors()
        .filter_map(|post| Some((VpShared::at(post.home), post.tid()?)))
        .collect();
    for (shared, _) in &processors {
        shared.dump_wanted.store(true, Ordering::SeqCst);
        // As `VpShared::post`: the processor's last look before it sleeps finds the flag, or we
        // find it asleep.
        fence(Ordering::SeqCst);
        shared.idle.unpark(shared.index());
    }
    let until = Instant::now() + PATIENCE;
    let mut answers = answers();
    // By whose they are, not by how many: one that came too late for an earlier dump may be among
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
    // A processor that answers late must not wait until all is written.
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
                    ": no answer within {PATIENCE:?}: its threads seldom give way, or never, or are very many"
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

/// Where frames of the scheduler come from: a function's path, or, for one that was inlined, the
/// place.
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
/// As above, for what runs a thread's closure.
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
    /// What an interlude has found.
    static FOUND: Cell<Option<Backtrace>> = const { Cell::new(None) };
}

impl Vp {
    #[inline(always)]
    pub(crate) fn dump_if_wanted(&self) {
        if self.shared.is_dump_wanted() && self.has_room() {
            self.dump();
        }
    }

    /// Whether the stack that this runs on has room for a dump; if not, another one will have.
    #[cold]
    fn has_room(&self) -> bool {
        let here = 0_u8;
        let left = (&raw const here).addr().wrapping_sub(self.current().bottom.get().addr());
        left >= ROOM + ROOM / 2
    }

    /// Whether an idle processor should go to a worker's stack, since the one that it idles on has
    /// no room for the dump that is wanted.
    pub(crate) fn dump_wants_a_stack(&self) -> bool {
        self.shared.is_dump_wanted()
            && self.current().state.get().cause != Cause::Work
            && self.group.work_stack_size >= 2 * ROOM
            && !self.has_room()
    }

    /// Answers for the threads of this processor.
    #[cold]
    fn dump(&self) {
        self.shared.dump_wanted.store(false, Ordering::Relaxed);
        // One that has ended may be taken for another thread, on another processor, at any time.
        // `word` first: see `start::begin`.
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

    /// The backtrace of a thread that is suspended here.
    fn backtrace(&self, rec: Rec) -> Option<Backtrace> {
        extern "C" fn capture() -> ! {
            FOUND.set(Some(Backtrace::force_capture()));
            here().expect("interludes are played on virtual processors only").end_interlude()
        }
        let left = rec.sp.get().addr().saturating_sub(rec.bottom.get().addr());
        if left < ROOM {
            return None;
        }
        // SAFETY: it has a home, so it has started; it is not the one that runs; there is room; a
        // capture neither blocks nor yields.
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
