//! Models of a reply and the wake of its caller: `make models`.
//!
//! The real code is: the queues of a lane (`upcall_shm::ring`), the reply and the check whether the
//! caller sleeps (`upcall_sched::wake_check`), and the words of the sleep protocol. The kernel's
//! part is that of `kernel.rs`. A caller that sleeps for ever is a deadlock, which loom reports.
use crate::kernel::{Doorbell, Futex};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use upcall_sched::sleep;
use upcall_sched::wake_check::WakeCheck;
use upcall_shm::channel::{DEPTH, LaneControl};
use upcall_shm::ring::{RingReceiver, RingSender, SharedReceiver, SharedSender};
use upcall_shm::single::{SingleCaller, SingleServer};
use upcall_shm::slot::{Slot, SlotMessage};
use upcall_shm::station::StationLine;

fn message(call: u16) -> SlotMessage {
    SlotMessage::new(call, 0, 0)
}

/// A kernel thread's lane: `KernelLane::sleep_for_reply` against `ServerLane::reply`.
#[test]
fn a_reply_wakes_a_kernel_thread() {
    loom::model(|| {
        let slot = Arc::new(Slot::default());
        let lane = Arc::new((LaneControl::default(), Futex::new()));
        let (caller, server) = (SingleCaller::new(slot.clone()), SingleServer::new(slot));
        caller.send(&message(1));
        let of = lane.clone();
        let serving = thread::spawn(move || {
            let (mut image, check, sleeper) = (message(0), WakeCheck::default(), &of.0.sleeper);
            assert!(server.take(&mut image));
            check.reply(
                || server.reply(&image),
                || server.waits(),
                || {
                    if sleep::seems_asleep(sleeper) {
                        sleep::retract(sleeper);
                        of.1.wake();
                    }
                },
            );
            assert!(!check.is_owed());
        });
        let (sleeper, futex) = (&lane.0.sleeper, &lane.1);
        loop {
            sleep::announce(sleeper);
            if caller.waits() {
                break;
            }
            futex.wait(sleeper, 1);
            if caller.waits() {
                break;
            }
        }
        sleep::retract(sleeper);
        let mut image = message(0);
        assert!(caller.take(&mut image) && image.call() == 1);
        serving.join().unwrap();
    });
}

type Ring = std::sync::Arc<[Slot]>;

/// A virtual processor's lane, as its server and its caller see it.
struct Lane {
    requests: SharedReceiver<Ring>,
    replies: SharedSender<Ring>,
    check: WakeCheck,
    rung: AtomicU64,
    line: StationLine,
    doorbell: Doorbell,
}

impl Lane {
    /// `ServerLane::wake_caller`.
    fn wake_caller(&self) {
        if sleep::seems_asleep(&self.line.asleep) {
            let number = self.line.sleeps.load(Ordering::Relaxed);
            if sleep::first_ring(&self.rung, number) {
                self.doorbell.notify();
            }
        }
    }

    /// `ServerLane::serve_one`, on the lane's owner or on a processor that steals.
    fn serve_one(&self, is_owner: bool) {
        let mut image = message(0);
        // It fails if the other processor was faster.
        while !self.requests.take(&mut image) {}
        self.check.reply(
            || self.replies.send(&image),
            || is_owner && self.requests.waits(),
            || self.wake_caller(),
        );
    }

    /// `ServerLane::look`.
    fn look(&self) {
        self.check.pay(|| self.wake_caller());
    }
}

/// A caller's virtual processor that has sent two requests and sleeps until both are answered.
fn calls_of_a_virtual_processor(serve: &'static [fn(&Lane)]) {
    loom::model(move || {
        let ring = || -> Ring { (0..DEPTH).map(|_| Slot::default()).collect() };
        let (sent, answers) = (ring(), ring());
        let (requests, replies) =
            (RingSender::new(sent.clone()), RingReceiver::new(answers.clone()));
        let lane = Arc::new(Lane {
            requests: SharedReceiver::new(sent),
            replies: SharedSender::new(answers),
            check: WakeCheck::default(),
            rung: AtomicU64::new(u64::MAX),
            line: StationLine {
                asleep: Default::default(),
                cpu: Default::default(),
                tid: Default::default(),
                sleeps: Default::default(),
            },
            doorbell: Doorbell::new(),
        });
        (0..2).for_each(|call| requests.send(&message(call)));
        let serving: Vec<_> = serve
            .iter()
            .map(|&serve| {
                let lane = lane.clone();
                thread::spawn(move || serve(&lane))
            })
            .collect();
        let mut taken = 0;
        while taken < 2 {
            sleep::announce_another(&lane.line.asleep, &lane.line.sleeps);
            if !replies.waits() {
                lane.doorbell.wait();
            }
            sleep::retract(&lane.line.asleep);
            while replies.take().is_some() {
                taken += 1;
            }
        }
        serving.into_iter().for_each(|one| one.join().unwrap());
    });
}

/// The first reply puts its check off, and the second one makes it for both.
#[test]
fn the_last_reply_checks_for_those_before() {
    calls_of_a_virtual_processor(&[|lane| (0..2).for_each(|_| lane.serve_one(true))]);
}

/// One processor owns the lane, and another one steals: the check that the owner owes is made,
/// whichever of them replies last.
#[test]
fn a_thief_takes_no_debt_of_the_owner_away() {
    calls_of_a_virtual_processor(&[
        |lane| {
            lane.serve_one(true);
            lane.look();
        },
        |lane| lane.serve_one(false),
    ]);
}
