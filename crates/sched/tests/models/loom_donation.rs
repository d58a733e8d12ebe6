//! A model of donation: `make models`.
//!
//! Callers move a sleeping server to their CPU and wake it. It serves the waiting calls, sleeps,
//! and goes back where it belongs at a sleep that follows no donation. The kernel is a word for the
//! CPU to which the server is confined.
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use upcall_sched::placed::{NOWHERE, Placed};
use upcall_sched::sleep;

const TID: u32 = 7;
const HOME: u32 = 99;

/// A sleeper that follows the protocol: a notification before the wait is kept.
#[derive(Default)]
struct Sleeper {
    asleep: AtomicU32,
    sleeps: AtomicU64,
    rung: Mutex<bool>,
    told: Condvar,
}

impl Sleeper {
    fn notify(&self) {
        *self.rung.lock().unwrap() = true;
        self.told.notify_all();
    }

    fn sleep_unless(&self, is_there: impl Fn() -> bool) -> bool {
        sleep::announce_another(&self.asleep, &self.sleeps);
        let sleeps = !is_there();
        if sleeps {
            let mut rung = self.rung.lock().unwrap();
            while !*rung {
                rung = self.told.wait(rung).unwrap();
            }
            *rung = false;
        }
        sleep::retract(&self.asleep);
        sleeps
    }
}

#[derive(Default)]
struct Lane {
    calls: AtomicU32,
    replies: AtomicU32,
    /// The last call for which the caller notified in the belief that the server is where it was
    /// moved to.
    believes: AtomicU32,
    /// The CPU where the server is to park, plus one: the wish of a caller that may not move it.
    near: AtomicU32,
    caller: Sleeper,
}

struct Scene {
    server: Sleeper,
    /// The CPU that the server reports.
    cpu: AtomicU32,
    /// The CPU to which the kernel confines it.
    confined: Mutex<Option<u32>>,
    lanes: Vec<Lane>,
}

impl Scene {
    fn runs_at(&self) -> u32 {
        self.confined.lock().unwrap().unwrap_or(HOME)
    }

    /// A caller on a CPU with the number of its lane. `alone` is set if no other caller moves the
    /// server.
    fn call(&self, lane: u32, calls: u32, moves: Moves, alone: bool) {
        let (placed, Lane { calls: requests, replies, believes, near, caller }) =
            (Placed::default(), &self.lanes[lane as usize]);
        for call in 1..=calls {
            requests.store(call, Ordering::Release);
            if sleep::must_wake(&self.server.asleep) {
                let said = self.cpu.load(Ordering::Relaxed);
                let is_here = match moves {
                    Moves::Caller => placed.is_at(TID, lane, Some(said)),
                    Moves::Server => said == lane,
                };
                match moves {
                    _ if is_here && alone => believes.store(call, Ordering::Relaxed),
                    _ if is_here => {}
                    Moves::Caller => {
                        *self.confined.lock().unwrap() = Some(lane);
                        placed.set(TID, lane, true);
                    }
                    Moves::Server => near.store(lane + 1, Ordering::Relaxed),
                }
                self.server.notify();
            }
            while replies.load(Ordering::Acquire) != call {
                caller.sleep_unless(|| replies.load(Ordering::Acquire) == call);
            }
        }
    }

    fn waits(&self) -> bool {
        self.lanes
            .iter()
            .any(|lane| lane.calls.load(Ordering::Acquire) != lane.replies.load(Ordering::Relaxed))
    }

    fn serve(&self, calls: u32) {
        let (mut confined, mut donated) = (false, false);
        loop {
            let mut last = None;
            for lane in &self.lanes {
                let call = lane.calls.load(Ordering::Acquire);
                if call != lane.replies.load(Ordering::Relaxed) {
                    last = Some(lane);
                    lane.replies.store(call, Ordering::Release);
                    if sleep::must_wake(&lane.caller.asleep) {
                        lane.caller.notify();
                    }
                }
            }
            if self.lanes.iter().all(|lane| lane.replies.load(Ordering::Relaxed) == calls) {
                return;
            }
            let wish = last.map_or(0, |lane| lane.near.load(Ordering::Relaxed));
            if wish > 0 {
                confined = true;
                *self.confined.lock().unwrap() = Some(wish - 1);
                self.cpu.store(wish - 1, Ordering::Relaxed);
            } else if confined && !donated {
                confined = false;
                *self.confined.lock().unwrap() = None;
                self.cpu.store(NOWHERE, Ordering::Relaxed);
            }
            donated = false;
            if self.server.sleep_unless(|| self.waits()) {
                for (at, lane) in (0..).zip(&self.lanes) {
                    let call = lane.calls.load(Ordering::Acquire);
                    let believed = call != lane.replies.load(Ordering::Relaxed)
                        && lane.believes.load(Ordering::Relaxed) == call;
                    assert!(
                        !believed || self.runs_at() == at,
                        "it was woken for call {call}, but not where the caller believes it to be"
                    );
                }
                let (before, here) = (self.cpu.load(Ordering::Relaxed), self.runs_at());
                self.cpu.store(here, Ordering::Relaxed);
                let by_another = self.confined.lock().unwrap().is_some();
                if (before != here || !confined) && by_another {
                    (donated, confined) = (true, true);
                }
            } else {
                self.cpu.store(self.runs_at(), Ordering::Relaxed);
            }
        }
    }
}

/// The side that moves the server to a caller.
#[derive(Clone, Copy)]
enum Moves {
    /// The caller, when it wakes the server.
    Caller,
    /// The server, when it parks: the caller may not.
    Server,
}

fn all_calls_are_answered<const N: usize>(callers: [Moves; N], calls: u32) {
    loom::model(move || {
        let scene = Arc::new(Scene {
            server: Sleeper::default(),
            cpu: AtomicU32::new(HOME),
            confined: Mutex::new(None),
            lanes: callers.iter().map(|_| Lane::default()).collect(),
        });
        let calling: Vec<_> = (0..)
            .zip(callers)
            .map(|(lane, moves)| {
                let scene = scene.clone();
                thread::spawn(move || scene.call(lane, calls, moves, N == 1))
            })
            .collect();
        scene.serve(calls);
        calling.into_iter().for_each(|calling| calling.join().unwrap());
        fence(Ordering::SeqCst);
    });
}

/// loom reports a deadlock if a wake is lost. The server asserts that its waker knows where it is.
#[test]
fn one_donor_finds_the_server_where_it_believes_it_to_be() {
    all_calls_are_answered([Moves::Caller], 3);
}

#[test]
fn a_caller_finds_the_server_where_that_has_parked() {
    all_calls_are_answered([Moves::Server], 3);
}

#[test]
fn calls_of_a_donor_and_of_a_caller_that_may_not_bring_are_answered() {
    all_calls_are_answered([Moves::Caller, Moves::Server], 1);
}

#[test]
fn calls_of_two_donors_are_answered() {
    all_calls_are_answered([Moves::Caller; 2], 1);
}
