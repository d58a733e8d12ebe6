//! Models of one slot for all, checked by loom: `make models`.
//!
//! Two requesters and the home: each request is run once, with the operation that was requested,
//! and its result is whole. A time-out may come at any moment, so a requester that still waits for
//! *received* sends again at each of its steps. Without a fault the models run the product's own
//! code. A fault replaces one of its operations by another order of the parts.
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use upcall_shm::one_slot::{Mark, OneSlot, WORDS};

/// The step that is left out, or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// A request that was overwritten is not sent again.
    NotResent,
    /// The home does not ignore a request that is marked as received.
    NotIgnored,
    /// The home is two threads.
    TwoHomes,
    /// A requester that sends again marks its request as asked again.
    AsksAnew,
    /// The operation is written after the mark.
    MarkFirst,
    /// The result is written after the mark.
    CompletedFirst,
}

const REQUESTERS: usize = 2;

/// Number of concurrent steps of each requester, and of probes of the home. The remaining steps are
/// taken in turns; a request that is not done after [`TURNS`] of these is lost.
#[derive(Clone, Copy)]
struct Size {
    steps: usize,
    looks: usize,
}

const TURNS: usize = 8;

/// The operation that a requester requests at its turn: words that belong together.
fn words(number: usize, turn: u32) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[0] = 10 * (number as u64 + 1) + u64::from(turn);
    words[WORDS - 1] = !words[0];
    words
}

struct Model {
    slot: OneSlot,
    fault: Fault,
    /// How often the requests of each requester were run.
    runs: [AtomicU32; REQUESTERS],
    wrong: Arc<AtomicBool>,
}

impl Model {
    fn is_wrong(&self) {
        self.wrong.store(true, SeqCst);
    }

    /// The operation. Its result is the next turn's words.
    fn run(&self, number: usize, asked: [u64; WORDS]) -> [u64; WORDS] {
        let turn = self.runs[number].fetch_add(1, SeqCst);
        if asked != words(number, turn) {
            self.is_wrong();
        }
        words(number, turn + 1)
    }

    fn look(&self) {
        match self.fault {
            Fault::NotIgnored | Fault::CompletedFirst => {}
            _ => {
                let _ = self.slot.look(|number, asked| self.run(number, asked));
                return;
            }
        }
        let Some(number) = self.slot.pointed() else { return };
        let buffer = self.slot.buffer(number);
        if buffer.mark() != Mark::Asked && self.fault != Fault::NotIgnored {
            return;
        }
        buffer.set_mark(Mark::Received);
        let reply = self.run(number, buffer.read());
        if self.fault == Fault::CompletedFirst {
            buffer.set_mark(Mark::Completed);
            return buffer.write(&reply);
        }
        buffer.write(&reply);
        buffer.set_mark(Mark::Completed);
    }

    fn send(&self, number: usize, asked: &[u64; WORDS]) {
        if self.fault != Fault::MarkFirst {
            return self.slot.send(number, asked);
        }
        self.slot.buffer(number).set_mark(Mark::Asked);
        self.slot.buffer(number).write(asked);
        self.slot.point_to(number);
    }

    fn resend(&self, number: usize) {
        match self.fault {
            Fault::NotResent => {}
            Fault::AsksAnew => {
                self.slot.buffer(number).set_mark(Mark::Asked);
                self.slot.resend(number);
            }
            _ => self.slot.resend(number),
        }
    }

    /// One step of a requester that has had `asks.had` replies.
    ///
    /// It sends the first request, or takes a reply if one is there and sends the next. Otherwise
    /// it sends again, since a time-out may come at any moment.
    fn step(&self, number: usize, asks: &mut Asks) {
        if asks.had == asks.all {
            return;
        }
        if !asks.asked {
            asks.asked = true;
            return self.send(number, &words(number, asks.had));
        }
        match self.slot.take(number) {
            Some(reply) => {
                asks.had += 1;
                if reply != words(number, asks.had) {
                    self.is_wrong();
                }
                asks.asked = false;
                self.step(number, asks);
            }
            None if !self.slot.is_received(number) => self.resend(number),
            None => {}
        }
    }
}

/// The progress of a requester.
#[derive(Clone, Copy)]
struct Asks {
    asked: bool,
    had: u32,
    all: u32,
}

/// Returns `true` if a request can be lost, run twice or torn, with this number of requests each.
fn is_wrong(fault: Fault, turns: [u32; REQUESTERS], size: Size) -> bool {
    let ever = Arc::new(AtomicBool::new(false));
    let found = ever.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(move || {
        let model = Arc::new(Model {
            slot: OneSlot::new(REQUESTERS),
            fault,
            runs: Default::default(),
            wrong: found.clone(),
        });
        let looks = || {
            let model = model.clone();
            thread::spawn(move || (0..size.looks).for_each(|_| model.look()))
        };
        let homes = [Some(looks()), (fault == Fault::TwoHomes).then(looks)];
        let asks = |number: usize| {
            let (model, mut asks) =
                (model.clone(), Asks { asked: false, had: 0, all: turns[number] });
            move || {
                (0..size.steps).for_each(|_| model.step(number, &mut asks));
                asks
            }
        };
        let other = (turns[1] > 0).then(|| thread::spawn(asks(1)));
        let first = asks(0)();
        let other = other.map(|other| other.join().unwrap());
        homes.into_iter().flatten().for_each(|home| home.join().unwrap());
        let mut all = [Some(first), other];
        for _ in 0..TURNS {
            for (number, asks) in all.iter_mut().enumerate() {
                asks.iter_mut().for_each(|asks| model.step(number, asks));
            }
            model.look();
        }
        let done = all.iter().flatten().all(|asks| asks.had == asks.all);
        if !done || [0, 1].map(|at| model.runs[at].load(SeqCst)) != turns {
            model.is_wrong();
        }
    });
    ever.load(SeqCst)
}

#[test]
fn each_request_is_run_once_though_others_overwrite_it() {
    assert!(!is_wrong(Fault::None, [1, 1], Size { steps: 3, looks: 2 }));
}

#[test]
fn a_pointer_that_is_late_finds_the_next_request_and_runs_it_once() {
    assert!(!is_wrong(Fault::None, [2, 0], Size { steps: 6, looks: 3 }));
}

#[test]
fn what_is_left_out_or_done_wrongly_is_found() {
    for (fault, turns, steps, looks) in [
        (Fault::NotResent, [1, 1], 1, 1),
        (Fault::NotIgnored, [1, 0], 1, 2),
        (Fault::TwoHomes, [1, 0], 1, 1),
        (Fault::AsksAnew, [1, 0], 2, 1),
        (Fault::MarkFirst, [1, 0], 1, 1),
        (Fault::CompletedFirst, [1, 0], 3, 1),
    ] {
        assert!(is_wrong(fault, turns, Size { steps, looks }), "{fault:?} is not found");
        assert!(!is_wrong(Fault::None, turns, Size { steps, looks }), "without {fault:?}");
    }
}
