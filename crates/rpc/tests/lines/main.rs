//! No line of memory is shared between two pairs of processors that call each other.
//!
//! *What.* URPC, section 4 (figures 3 and 4): with two client processors and two server processors,
//! null calls gain only 33 %, because two locks cover half of the path. With fewer than four
//! processors that cannot be measured, so the test counts instead: which lines of 64 bytes do both
//! pairs touch (a client's virtual processor, and the server's that serves it), at least once by a
//! write, while both make null calls? A lock that both take would be such a line. Such lines must
//! move from one pair to the other almost never ([`SELDOM`]).
//!
//! *How.* The compiler calls a hook before each access to memory (AddressSanitizer's
//! instrumentation without its runtime: loads, stores, read-modify-writes, copies), in all crates
//! of this project and in the generic or inlined code of others ([`hooks`]). Client and server are
//! schedulers of one process. The channel is mapped twice in it; a line of a shared file is
//! identified by its place in the file ([`report`]). The four processors run in turns, as if the
//! machine had four ([`turns`]).
//!
//! The test first shows that the instrument works: it must find a counter that both pairs write on
//! purpose, and in each pair the lines that the two exchange.
//!
//! *Limits.* Not seen: the precompiled, non-generic code of the standard library and the C library
//! (on this path: the clock, and the number of the processor; a use of the allocator would fail the
//! test); assembly (switches of stacks: each touches two stacks and the record of a thread);
//! prefetches; what the kernel touches; the neighbour that a processor may fetch with a line. One
//! process shares more than two would: the domain and its station. The addresses of heap objects
//! change from run to run, and so does whether two objects share a line. The test does not report
//! which accesses would miss a cache, and what that costs.
//!
//! `make lines` runs this. Otherwise it is empty.

#![cfg(upcall_count_lines)]
#![feature(sanitize, thread_local)]

mod hooks;
mod report;
mod turns;

use hooks::{COUNTING, TURNS};
use report::{Found, Who};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};
use upcall_rpc::{
    Binding, Call, Dispatch, Export, Extent, Interface, Limits, Pacing, Procedure, Replied, Server,
};

/// Number of virtual processors on each side.
const SIDE: usize = 2;

/// Number of calls that each client processor makes before counting starts, and minimum number
/// while counting.
const WARM: u64 = 1_000;
const CALLS: u64 = 4_000;

/// Maximum time for either.
const LONGEST: Duration = Duration::from_secs(300);

const fn null(name: &'static str) -> Procedure {
    let (limits, nothing) =
        (Limits { string: 0, list: 0, values: 0 }, Extent { fixed: 0, tail: 0 });
    let (name, signature) =
        (std::borrow::Cow::Borrowed(name), std::borrow::Cow::Borrowed("func()"));
    Procedure { name, signature, hash: 0, args: nothing, results: nothing, calls: 5, limits }
}

/// A null procedure for each client processor, so that the server knows which one it serves.
static NULLS: Interface = Interface {
    id: std::borrow::Cow::Borrowed("test:lines/nulls@1.0.0"),
    procedures: std::borrow::Cow::Borrowed(&[null("null0"), null("null1")]),
    parts: std::borrow::Cow::Borrowed(&[]),
    source: std::borrow::Cow::Borrowed(""),
    limits: std::borrow::Cow::Borrowed(""),
};

/// Counters in two lines each, because processors fetch lines in pairs.
#[repr(align(128))]
struct Apart([AtomicU64; SIDE]);

impl Apart {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; SIDE])
    }

    /// Only the counter's owner calls this.
    fn add(&self, which: usize) {
        self.0[which].store(self.0[which].load(Relaxed) + 1, Relaxed);
    }

    fn get(&self) -> [u64; SIDE] {
        self.0.each_ref().map(|count| count.load(Relaxed))
    }
}

/// Number of calls of each client processor that each server processor served.
static SERVED: [Apart; SIDE] = [const { Apart::new() }; SIDE];

/// A counter that both pairs write in the run that shows that the instrument sees such a line.
static PLANTED: AtomicU64 = AtomicU64::new(0);

struct Nulls {
    planted: bool,
}

impl Dispatch for Nulls {
    fn dispatch(&self, call: Call<'_>) -> Replied {
        if let Some(server) = upcall_thread::on_virtual_processor() {
            hooks::hear_as(Who::Server(server).table());
            SERVED[server].add(usize::from(call.procedure()));
        }
        if self.planted {
            PLANTED.fetch_add(1, Relaxed);
        }
        call.respond(|_| Ok(()))
    }
}

/// The parameters of one run.
struct Trial {
    name: &'static str,
    /// Number of calling threads on each client processor.
    callers: usize,
    planted: bool,
}

fn served() -> [[u64; SIDE]; SIDE] {
    SERVED.each_ref().map(Apart::get)
}

/// Number of answered calls of each client processor.
fn answered() -> [u64; SIDE] {
    let served = served();
    [0, 1].map(|client| served.iter().map(|by| by[client]).sum())
}

/// Waits until each client processor has made `calls` more. Returns `true` if they came in time.
fn await_calls(calls: u64) -> bool {
    let (start, before) = (Instant::now(), answered());
    while answered().iter().zip(before).any(|(now, before)| now - before < calls) {
        if start.elapsed() > LONGEST {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Warms up, then counts during some calls. It runs on a kernel thread that is not recorded, so its
/// own accesses are not counted.
fn count() -> Option<Found> {
    let begun = await_calls(WARM) && hooks::hears_all();
    TURNS.store(begun, SeqCst);
    let warm = begun && await_calls(WARM);
    turns::take_passed_over();
    let before = served();
    COUNTING.store(true, SeqCst);
    let made = warm && await_calls(CALLS);
    COUNTING.store(false, SeqCst);
    let (after, passed_over) = (served(), turns::take_passed_over());
    TURNS.store(false, SeqCst);
    // By then, an access that was under way is recorded.
    std::thread::sleep(Duration::from_millis(20));
    let calls =
        [0, 1].map(|server| [0, 1].map(|client| after[server][client] - before[server][client]));
    made.then(|| Found::now(calls, passed_over))
}

/// Calls until `over` is set, on the client processor that this thread is on.
fn call(binding: &Binding, over: &AtomicBool) {
    let client = upcall_thread::on_virtual_processor().expect("a user-level thread");
    hooks::hear_as(Who::Client(client).table());
    while !over.load(Relaxed) {
        binding.call::<(), ()>(client as u16, &()).expect("a null call");
    }
}

/// Makes calls from each client processor, with `callers` threads.
fn call_from_both(binding: &Binding, callers: usize, over: &Arc<AtomicBool>) {
    let begun = Arc::new(AtomicUsize::new(0));
    let caller = || {
        let (binding, over, begun) = (binding.clone(), over.clone(), begun.clone());
        upcall_thread::spawn(move || {
            begun.fetch_add(1, SeqCst);
            call(&binding, &over);
        })
    };
    let mut threads = Vec::new();
    for others in 1..=callers {
        threads.push(caller());
        // While this loop runs, this processor runs no thread, so the other one takes it.
        while begun.load(SeqCst) < others {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    for _ in 1..callers {
        threads.push(caller());
        // The new thread begins at once, here.
        upcall_thread::yield_now();
    }
    call(binding, over);
    threads.into_iter().for_each(|thread| thread.join().expect("a caller"));
}

fn run(trial: &Trial) -> Found {
    let name = format!("lines-{}-{}", trial.name.replace(' ', "-"), std::process::id());
    let export = Export::new(&NULLS, Nulls { planted: trial.planted });
    hooks::forget();
    let server = Server::new()
        .export(&name, export)
        .pacing(Pacing::Poll)
        .processors(SIDE)
        .start()
        .expect("a server");
    let idle =
        upcall_sched::PollingIdle::new(SIDE, Pacing::Poll).expect("what processors sleep on");
    let client = upcall_thread::Processors::new().count(SIDE).idle(Arc::new(idle));
    let over = Arc::new(AtomicBool::new(false));
    let found = std::thread::scope(|scope| {
        let counts = scope.spawn(|| {
            let found = count();
            over.store(true, SeqCst);
            found
        });
        let done = client.run(|| {
            let binding = Binding::bind(&name, &NULLS).expect("a binding");
            call_from_both(&binding, trial.callers, &over);
        });
        done.expect("virtual processors");
        hooks::hear_no_more();
        counts.join().expect("the counting")
    });
    server.stop();
    found.unwrap_or_else(|| {
        panic!("{}: too few calls in {LONGEST:?}; by server and client: {:?}", trial.name, served())
    })
}

const TRIALS: [Trial; 2] = [
    Trial { name: "one caller each", callers: 1, planted: false },
    Trial { name: "four callers each", callers: 4, planted: false },
];

/// Maximum number of lines that may move from one pair to the other in 1000 calls. A server
/// processor now and then looks at the lanes of others, and takes what it finds there
/// (crates/sched/src/idle.rs). Each call moves two lines within its pair; a line that two lanes
/// have in common would move over 2000 times.
const SELDOM: u64 = 250;

#[test]
fn pairs_share_no_line_that_is_written_but_seldom() {
    let planted = run(&Trial { name: "planted", callers: 1, planted: true });
    assert!(planted.shares(&PLANTED), "the instrument does not see a line that both pairs write");
    let mut wrong = Vec::new();
    for trial in &TRIALS {
        let found = run(trial);
        println!("\n{}: {}", trial.name, found.report());
        assert!(
            !found.shares(&PLANTED) && found.allocations == 0,
            "{}: what is not part of a call was counted",
            trial.name
        );
        // At least a request and a reply: the two mappings of a channel count as one.
        assert!(
            [0, 1].iter().all(|&pair| found.moved(pair) >= 2),
            "{}: a pair shares nothing in itself",
            trial.name
        );
        let crossings = found.crossings_in_1000_calls();
        if crossings > SELDOM {
            wrong.push(format!(
                "{}: {crossings} crossings in 1000 calls, {SELDOM} are allowed",
                trial.name
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("; "));
}
