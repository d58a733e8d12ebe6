//! Models of operations by signal: `make models`.
//!
//! A home that computes runs the requests of other processes in the handler of its signal
//! (`crates/home/src/interrupts.rs`), each request once and under the object's lock, which the home
//! itself holds now and then, and another process. The mask and the sleep protocol are the real
//! code; the kernel's part is that of `loom_mask`. Modelled are the lanes (a count for each
//! requester), the lock (a word; `loom_hybrid` has the lock itself), and the timer, which expires
//! once the other process has released the lock. The signal comes before any access to the mask,
//! anywhere in the home's code, or while the home computes.
//!
//! A home that computes waits for its signal: if no more can come, and it has not run all requests,
//! a request is lost.
use crate::kernel::Kernel;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::cell::Cell;
use std::sync::Arc as Outside;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use upcall_sched::mask::{Between, Mask};
use upcall_sched::sleep;

/// A step that is left out, or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The home's own operations do not keep interrupts off.
    OperationsLetIn,
    /// They let interrupts in before they release the lock.
    LetsInFirst,
    /// A poll does not keep interrupts off.
    PollsLetIn,
    /// A section does not keep interrupts off.
    SectionsLetIn,
    /// An interrupt that is kept off by an operation leaves no note.
    NoNote,
    /// An interrupt that is kept off by a section leaves no note for its end.
    NotDeferred,
    /// No timer is set for a request that was left because another process holds the lock.
    NoTimer,
    /// No timer is set by a home that gives its own code a turn.
    RestsForGood,
    /// A request that was left once is not tried again.
    LeftForGood,
    /// A handler goes on until it has run all requests, even while another process holds the lock.
    Insists,
}

/// The holder of the lock.
const FREE: u32 = 0;
const HOME: u32 = 1;
const OTHER: u32 = 2;

struct Shared {
    kernel: Kernel,
    /// Number of requests sent, by requester.
    asked: [AtomicU32; 2],
    lock: AtomicU32,
    /// The object: the number of operations that were run on it.
    object: UnsafeCell<u32>,
    /// Set once the other process has had the lock and releases it.
    over: Mutex<bool>,
    freed: Condvar,
}

impl Shared {
    fn try_lock(&self, who: u32) -> Result<u32, u32> {
        self.lock.compare_exchange(FREE, who, Ordering::Acquire, Ordering::Relaxed)
    }

    fn operate(&self) {
        // SAFETY: the caller holds the lock; the model checks exactly that.
        self.object.with_mut(|object| unsafe { *object += 1 });
    }

    fn unlock(&self) {
        self.lock.store(FREE, Ordering::Release);
    }

    /// Another process, with an operation of its own if the lock is free. Returns the number of
    /// operations that it has run.
    fn operate_elsewhere(&self) -> u32 {
        let had = self.try_lock(OTHER).is_ok();
        if had {
            self.operate();
            self.unlock();
        }
        *self.over.lock().unwrap() = true;
        self.freed.notify_all();
        had.into()
    }

    fn wait_for_other(&self) {
        let mut over = self.over.lock().unwrap();
        while !*over {
            over = self.freed.wait(over).unwrap();
        }
    }
}

/// The home's thread, and the data of its handler.
struct Home {
    shared: Arc<Shared>,
    answered: [Cell<u32>; 2],
    /// See `ServedLane::left`.
    left: [Cell<bool>; 2],
    /// Set while the timer runs.
    timer: Cell<bool>,
    /// Number of requests that it has run.
    runs: Cell<u32>,
    /// The handler runs: the signal waits.
    handles: Cell<bool>,
    in_section: Cell<bool>,
    /// Set if its own code gets a turn after each request.
    tires: bool,
    fault: Fault,
    wrong: Outside<AtomicBool>,
}

impl Between for Home {
    fn access(mask: &Mask<Self>) {
        mask.between().any_time(mask);
    }
}

impl Home {
    fn is_wrong(&self) {
        self.wrong.store(true, SeqCst);
    }

    /// A point at which a signal may come.
    fn any_time(&self, mask: &Mask<Self>) {
        if !self.handles.get() && self.shared.kernel.delivers() {
            self.handle(mask);
        }
    }

    /// The handler of the signal.
    fn handle(&self, mask: &Mask<Self>) {
        self.handles.set(true);
        match self.fault {
            Fault::NoNote if mask.is_busy() => {}
            Fault::NotDeferred if mask.sections() > 0 => mask.note(),
            _ => mask.interrupt(|| {
                if self.in_section.get() {
                    self.is_wrong();
                }
                self.serve(mask);
            }),
        }
        self.handles.set(false);
    }

    fn waits(&self, lane: usize) -> bool {
        self.answered[lane].get() < self.shared.asked[lane].load(Ordering::Acquire)
    }

    /// `serve_lanes_in_interrupt`.
    fn take(&self) {
        for lane in 0..2 {
            if self.fault == Fault::LeftForGood && self.left[lane].get() {
                continue;
            }
            self.left[lane].set(false);
            if !self.waits(lane) {
                continue;
            }
            match self.shared.try_lock(HOME) {
                Ok(_) => {
                    self.shared.operate();
                    self.runs.set(self.runs.get() + 1);
                    self.answered[lane].set(self.answered[lane].get() + 1);
                    self.shared.unlock();
                }
                Err(holder) => {
                    if holder == HOME {
                        self.is_wrong();
                    }
                    self.left[lane].set(true);
                    self.timer.set(self.fault != Fault::NoTimer);
                }
            }
        }
    }

    fn serve(&self, mask: &Mask<Self>) {
        let (turns, before) = (Cell::new(0), self.runs.get());
        let is_tired = || self.tires && self.runs.get() > before;
        let announce = || {
            if is_tired() {
                self.timer.set(self.fault != Fault::RestsForGood);
            } else {
                self.shared.kernel.announce();
            }
        };
        let more = || {
            turns.set(turns.get() + 1);
            if turns.get() > 8 {
                self.is_wrong();
                return false;
            }
            !is_tired()
                && (0..2).any(|lane| {
                    (self.fault == Fault::Insists || !self.left[lane].get()) && self.waits(lane)
                })
        };
        mask.serve(|| self.take(), announce, more);
    }

    fn begin(&self, mask: &Mask<Self>, fault: Fault) -> bool {
        self.fault != fault && mask.begin_operation()
    }

    fn end(&self, mask: &Mask<Self>, counted: bool) {
        if counted {
            mask.end_operation(
                || self.shared.kernel.asleep.load(Ordering::Relaxed) != 0,
                || self.serve(mask),
            );
        }
    }

    fn lock(&self) {
        while self.shared.try_lock(HOME).is_err() {
            self.shared.wait_for_other();
        }
    }

    /// `Handle::access`.
    fn operate(&self, mask: &Mask<Self>) {
        let counted = self.begin(mask, Fault::OperationsLetIn);
        self.lock();
        self.any_time(mask);
        self.shared.operate();
        let first = counted && self.fault == Fault::LetsInFirst;
        self.end(mask, first);
        self.any_time(mask);
        self.shared.unlock();
        self.end(mask, counted && !first);
    }

    /// `Serving::poll`.
    fn poll(&self, mask: &Mask<Self>) {
        let counted = self.begin(mask, Fault::PollsLetIn);
        for lane in 0..2 {
            if self.waits(lane) {
                let request = self.answered[lane].get();
                self.lock();
                self.shared.operate();
                self.runs.set(self.runs.get() + 1);
                self.shared.unlock();
                self.any_time(mask);
                self.answered[lane].set(request + 1);
            }
        }
        self.end(mask, counted);
    }

    /// `Serving::mask`, and its end.
    fn section(&self, mask: &Mask<Self>, within: impl FnOnce()) {
        let lets_in = self.fault == Fault::SectionsLetIn;
        if !lets_in {
            mask.begin_section();
        }
        self.in_section.set(true);
        within();
        self.any_time(mask);
        self.in_section.set(false);
        if !lets_in && mask.end_section() {
            mask.make_good();
            let counted = mask.begin_operation();
            self.end(mask, counted);
        }
    }

    /// Computes, and does nothing else, until it has been interrupted for all requests.
    fn compute(&self, mask: &Mask<Self>, all: [u32; 2]) {
        while [0, 1].map(|lane| self.answered[lane].get()) != all {
            if self.timer.take() {
                self.shared.wait_for_other();
            } else if !self.shared.kernel.next_signal() {
                return self.is_wrong();
            }
            self.handle(mask);
        }
    }
}

/// What the home does before it computes.
type Does = fn(&Home, &Mask<Home>) -> u32;

/// Returns `true` if a request can be lost or doubled, or the home be held up, within this number
/// of preemptions.
///
/// `all` is the number of requests of each requester. `beside` adds another process that holds the
/// lock for a while; with `tires` the home's own code gets a turn after each request.
fn is_wrong(
    fault: Fault,
    preemptions: usize,
    all: [u32; 2],
    (beside, tires): (bool, bool),
    does: Does,
) -> bool {
    let (wrong, ever) =
        (Outside::new(AtomicBool::new(false)), Outside::new(AtomicBool::new(false)));
    let found = ever.clone();
    let mut model = loom::model::Builder::new();
    // The bound from the environment is the builder's default.
    model.preemption_bound =
        Some(model.preemption_bound.map_or(preemptions, |most| preemptions.min(most)));
    model.check(move || {
        wrong.store(false, SeqCst);
        let shared = Arc::new(Shared {
            kernel: Kernel::new(all.iter().filter(|&&requests| requests > 0).count()),
            asked: [AtomicU32::new(0), AtomicU32::new(0)],
            lock: AtomicU32::new(FREE),
            object: UnsafeCell::new(0),
            over: Mutex::new(!beside),
            freed: Condvar::new(),
        });
        let of = shared.clone();
        let clerk = thread::spawn(move || of.kernel.watch(false));
        let of = shared.clone();
        let other = beside.then(|| thread::spawn(move || of.operate_elsewhere()));
        let those = [0, 1].into_iter().filter(|&own| all[own] > 0).map(|own| {
            let of = shared.clone();
            thread::spawn(move || of.kernel.send(&of.asked[own], all[own]))
        });
        let those: Vec<_> = those.collect();
        let home = Home {
            shared: shared.clone(),
            answered: Default::default(),
            left: Default::default(),
            timer: Cell::default(),
            runs: Cell::default(),
            handles: Cell::default(),
            in_section: Cell::default(),
            tires,
            fault,
            wrong: wrong.clone(),
        };
        let mask = Mask::new(home);
        let home = mask.between();
        // `Serving::interruptible`.
        mask.begin();
        home.end(&mask, true);
        let own = does(home, &mask);
        home.compute(&mask, all);
        mask.end();
        sleep::retract(&shared.kernel.asleep);
        those.into_iter().for_each(|one| one.join().unwrap());
        clerk.join().unwrap();
        let elsewhere = other.map_or(0, |other| other.join().unwrap());
        // SAFETY: all other threads have been joined.
        let done = shared.object.with(|object| unsafe { *object });
        let once =
            home.runs.get() == all.iter().sum::<u32>() && done == home.runs.get() + own + elsewhere;
        ever.fetch_or(wrong.load(SeqCst) || !once, SeqCst);
    });
    found.load(SeqCst)
}

fn check(preemptions: usize, all: [u32; 2], beside: bool, does: Does) {
    assert!(!is_wrong(Fault::None, preemptions, all, (beside, false), does));
}

fn computes(_: &Home, _: &Mask<Home>) -> u32 {
    0
}

fn operates(home: &Home, mask: &Mask<Home>) -> u32 {
    home.operate(mask);
    1
}

fn polls(home: &Home, mask: &Mask<Home>) -> u32 {
    home.poll(mask);
    0
}

fn has_a_section(home: &Home, mask: &Mask<Home>) -> u32 {
    home.section(mask, || ());
    0
}

fn operates_in_a_section(home: &Home, mask: &Mask<Home>) -> u32 {
    home.section(mask, || home.operate(mask));
    1
}

#[test]
fn a_home_that_computes_is_interrupted_for_each_request() {
    check(3, [2, 0], false, computes);
    check(1, [1, 1], false, computes);
}

#[test]
#[ignore = "long"]
fn long_a_home_that_computes_is_interrupted_for_each_request_of_two() {
    check(2, [1, 1], false, computes);
}

#[test]
fn what_comes_while_the_home_has_the_lock_is_run_when_it_is_free() {
    check(3, [1, 0], false, operates);
    check(2, [2, 0], false, operates);
}

#[test]
fn what_comes_in_a_section_is_run_at_its_end() {
    check(3, [1, 0], false, has_a_section);
    check(2, [2, 0], false, operates_in_a_section);
}

#[test]
fn polls_and_interrupts_run_each_once() {
    check(3, [1, 0], false, polls);
    check(2, [2, 0], false, polls);
}

#[test]
fn another_one_that_has_the_lock_delays_and_no_more() {
    check(2, [1, 0], true, computes);
    check(1, [2, 0], true, computes);
    check(2, [1, 0], true, operates);
    check(2, [1, 0], true, polls);
}

#[test]
#[ignore = "long"]
fn long_another_one_that_has_the_lock_delays_two_requests_and_no_more() {
    check(2, [2, 0], true, computes);
}

#[test]
fn a_home_that_has_its_own_turn_is_come_again_for() {
    for does in [computes as Does, operates, has_a_section, polls] {
        assert!(!is_wrong(Fault::None, 2, [2, 0], (false, true), does));
    }
    assert!(!is_wrong(Fault::None, 2, [1, 0], (true, true), computes));
}

#[test]
fn faults_are_found() {
    for (fault, all, beside, does) in [
        (Fault::OperationsLetIn, [1, 0], false, operates as Does),
        (Fault::LetsInFirst, [1, 0], false, operates),
        (Fault::PollsLetIn, [1, 0], false, polls),
        (Fault::SectionsLetIn, [1, 0], false, has_a_section),
        (Fault::NoNote, [1, 0], false, operates),
        (Fault::NotDeferred, [1, 0], false, has_a_section),
        (Fault::NoTimer, [1, 0], true, computes),
        (Fault::LeftForGood, [1, 0], true, computes),
        (Fault::Insists, [1, 0], true, computes),
    ] {
        assert!(is_wrong(fault, 2, all, (beside, false), does), "{fault:?} is not found");
    }
    assert!(
        is_wrong(Fault::RestsForGood, 2, [2, 0], (false, true), computes),
        "RestsForGood is not found"
    );
}
