//! Models of interrupts: `make models`.
//!
//! The mask and the sleep protocol are the real code. The queues (a count for each sender) and the
//! kernel's part (`kernel`) are modelled. The signal runs its handler on the thread before any
//! access to its mask (`Between`), or while the thread computes. A thread that computes waits for
//! its signal: if no more can come, and it has not taken all messages, a message is lost. A sleep
//! that a signal ends early is left out: it only adds a probe.
use crate::kernel::Kernel;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
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
    /// The thread does not probe again after the announcement.
    NoSecondLook,
    /// The thread probes again, and then announces.
    LooksFirst,
    /// The announcement has no fence.
    NoFence,
    /// An interrupt that is kept off by an operation leaves no note.
    NoNote,
    /// An interrupt that is kept off by a section leaves no note for its end.
    NotDeferred,
    /// An operation that has slept ends as if the thread were announced.
    Unannounced,
    /// The clerk sees only that the set becomes readable, which it stays, and not each
    /// notification.
    FirstRing,
}

struct Shared {
    kernel: Kernel,
    /// Number of messages sent, by sender.
    launched: [AtomicU32; 2],
}

/// The thread that can be interrupted, and the data of its handler.
struct Thread {
    shared: Arc<Shared>,
    taken: [Cell<u32>; 2],
    /// The handler runs: the signal waits.
    handles: Cell<bool>,
    fault: Fault,
    lost: Outside<AtomicBool>,
}

impl Between for Thread {
    fn access(mask: &Mask<Self>) {
        let own = mask.between();
        if !own.handles.get() && own.shared.kernel.delivers() {
            own.handle(mask);
        }
    }
}

impl Thread {
    /// The handler of the signal.
    fn handle(&self, mask: &Mask<Self>) {
        self.handles.set(true);
        match self.fault {
            Fault::NoNote if mask.is_busy() => {}
            Fault::NotDeferred if mask.sections() > 0 => mask.note(),
            _ => mask.interrupt(|| self.serve(mask)),
        }
        self.handles.set(false);
    }

    fn take(&self) {
        self.taken
            .iter()
            .zip(&self.shared.launched)
            .for_each(|(taken, launched)| taken.set(launched.load(Ordering::Acquire)));
    }

    fn there(&self) -> bool {
        self.taken
            .iter()
            .zip(&self.shared.launched)
            .any(|(taken, launched)| launched.load(Ordering::Acquire) != taken.get())
    }

    fn announce(&self) {
        let kernel = &self.shared.kernel;
        if self.fault == Fault::NoFence {
            sleep::announce_without_fence(&kernel.asleep, &kernel.sleeps);
        } else {
            kernel.announce();
        }
    }

    /// `Group::serve`.
    fn serve(&self, mask: &Mask<Self>) {
        match self.fault {
            Fault::NoSecondLook => mask.serve(|| self.take(), || self.announce(), || false),
            Fault::LooksFirst => {
                let more = Cell::new(false);
                let look = || {
                    self.take();
                    more.set(self.there());
                };
                mask.serve(look, || self.announce(), || more.get());
            }
            _ => mask.serve(|| self.take(), || self.announce(), || self.there()),
        }
    }

    fn end_operation(&self, mask: &Mask<Self>) {
        let is_announced = || {
            self.fault == Fault::Unannounced
                || self.shared.kernel.asleep.load(Ordering::Relaxed) != 0
        };
        mask.end_operation(is_announced, || self.serve(mask));
    }

    /// `Group::busy`, and its end.
    fn operate(&self, mask: &Mask<Self>, operation: impl FnOnce()) {
        let counted = mask.begin_operation();
        operation();
        if counted {
            self.end_operation(mask);
        }
    }

    /// `Group::atomic`, and its end.
    fn section(&self, mask: &Mask<Self>, within: impl FnOnce()) {
        mask.begin_section();
        within();
        if mask.end_section() {
            mask.make_good();
            self.operate(mask, || ());
        }
    }

    fn has_all(&self, all: [u32; 2]) -> bool {
        [0, 1].map(|from| self.taken[from].get()) == all
    }

    /// `sleep_until`, until a message is there or no more will come.
    fn sleep(&self, all: [u32; 2]) {
        let kernel = &self.shared.kernel;
        while !self.has_all(all) {
            kernel.announce();
            if self.there() {
                return sleep::retract(&kernel.asleep);
            }
            if !kernel.sleep() {
                return self.lost.store(true, SeqCst);
            }
            sleep::retract(&kernel.asleep);
            if self.there() {
                return;
            }
        }
    }

    /// Computes, and does nothing else, until it has been interrupted for all messages.
    fn compute(&self, mask: &Mask<Self>, all: [u32; 2]) {
        while !self.has_all(all) {
            if !self.shared.kernel.next_signal() {
                return self.lost.store(true, SeqCst);
            }
            self.handle(mask);
        }
    }
}

/// What the thread does before it computes.
type Does = fn(&Thread, &Mask<Thread>, [u32; 2]);

/// Returns `true` if a message can be lost, within this number of preemptions. `all` is the number
/// of messages of each sender. Cases with more messages get fewer preemptions, or they would take
/// minutes.
fn is_lost(fault: Fault, preemptions: usize, all: [u32; 2], does: Does) -> bool {
    let (lost, ever) = (Outside::new(AtomicBool::new(false)), Outside::new(AtomicBool::new(false)));
    let found = ever.clone();
    let mut model = loom::model::Builder::new();
    // The bound from the environment is the builder's default.
    model.preemption_bound =
        Some(model.preemption_bound.map_or(preemptions, |most| preemptions.min(most)));
    model.check(move || {
        lost.store(false, SeqCst);
        let shared = Arc::new(Shared {
            kernel: Kernel::new(all.iter().filter(|&&messages| messages > 0).count()),
            launched: [AtomicU32::new(0), AtomicU32::new(0)],
        });
        let of = shared.clone();
        let clerk = thread::spawn(move || of.kernel.watch(fault == Fault::FirstRing));
        let senders = [0, 1].into_iter().filter(|&own| all[own] > 0).map(|own| {
            let of = shared.clone();
            thread::spawn(move || of.kernel.send(&of.launched[own], all[own]))
        });
        let senders: Vec<_> = senders.collect();
        let own = Thread {
            shared: shared.clone(),
            taken: Default::default(),
            handles: Cell::new(false),
            fault,
            lost: lost.clone(),
        };
        let mask = Mask::new(own);
        let own = mask.between();
        // `Group::interruptible`.
        mask.begin();
        own.end_operation(&mask);
        does(own, &mask, all);
        own.compute(&mask, all);
        mask.end();
        sleep::retract(&shared.kernel.asleep);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        clerk.join().unwrap();
        ever.fetch_or(lost.load(SeqCst), SeqCst);
    });
    found.load(SeqCst)
}

fn check(preemptions: usize, all: [u32; 2], does: Does) {
    assert!(!is_lost(Fault::None, preemptions, all, does));
}

fn computes(_: &Thread, _: &Mask<Thread>, _: [u32; 2]) {}

/// A thread that takes the messages that are there, as `Group::poll` does.
fn polls(own: &Thread, mask: &Mask<Thread>, _: [u32; 2]) {
    own.operate(mask, || own.take());
}

fn waits(own: &Thread, mask: &Mask<Thread>, all: [u32; 2]) {
    own.operate(mask, || own.sleep(all));
}

fn has_a_section(own: &Thread, mask: &Mask<Thread>, _: [u32; 2]) {
    own.section(mask, || ());
}

/// An operation in a section, and a section in an operation.
fn has_both(own: &Thread, mask: &Mask<Thread>, _: [u32; 2]) {
    own.section(mask, || own.operate(mask, || ()));
    own.operate(mask, || own.section(mask, || ()));
}

fn waits_in_a_section(own: &Thread, mask: &Mask<Thread>, all: [u32; 2]) {
    own.section(mask, || own.operate(mask, || own.sleep(all)));
}

#[test]
fn one_who_computes_is_interrupted_for_each_message() {
    check(3, [2, 0], computes);
}

#[test]
fn what_comes_in_an_operation_is_taken_at_its_end() {
    check(3, [1, 0], polls);
    check(2, [2, 0], polls);
}

#[test]
fn one_who_has_slept_in_an_operation_is_interrupted_after_it() {
    check(3, [1, 0], waits);
    check(2, [2, 0], waits);
}

#[test]
fn what_comes_in_a_section_is_taken_at_its_end() {
    check(3, [1, 0], has_a_section);
    check(2, [2, 0], has_a_section);
    check(2, [2, 0], waits_in_a_section);
}

#[test]
fn what_comes_in_both_is_taken_at_the_end_of_both() {
    check(2, [2, 0], has_both);
}

#[test]
fn two_senders_are_heard() {
    check(1, [1, 1], computes);
    check(1, [1, 1], polls);
}

#[test]
#[ignore = "long"]
fn long_two_senders_are_heard() {
    check(2, [1, 1], computes);
    check(2, [1, 1], polls);
}

/// Each fault loses a message.
#[test]
fn faults_are_found() {
    for (fault, all, does) in [
        (Fault::NoSecondLook, [1, 0], computes as Does),
        (Fault::LooksFirst, [1, 0], computes),
        (Fault::NoFence, [1, 0], computes),
        (Fault::NoNote, [1, 0], polls),
        (Fault::NotDeferred, [1, 0], has_a_section),
        (Fault::Unannounced, [2, 0], waits),
        (Fault::FirstRing, [2, 0], computes),
    ] {
        assert!(is_lost(fault, 2, all, does), "{fault:?} is not found");
    }
}
