//! Models of the duty to probe a processor's lanes: `make models`.

use crate::kernel::Doorbell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;
use upcall_sched::duty::Duty;
use upcall_sched::sleep;

/// The substitute's index.
const SUBSTITUTE: usize = 1;

struct Scene {
    duty: Duty,
    /// Words of the home processor, and of its substitute.
    words: [AtomicU32; 2],
    sleeps: [AtomicU64; 2],
    bells: [Doorbell; 2],
    /// The home processor's doorbells wake the substitute as well.
    joined: AtomicBool,
    generation: AtomicU64,
    request: AtomicBool,
    served: AtomicBool,
}

impl Scene {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            duty: Duty::default(),
            words: std::array::from_fn(|_| AtomicU32::new(0)),
            sleeps: std::array::from_fn(|_| AtomicU64::new(0)),
            bells: std::array::from_fn(|_| Doorbell::new()),
            joined: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            request: AtomicBool::new(false),
            served: AtomicBool::new(false),
        })
    }

    fn ring_home(&self) {
        self.bells[0].notify();
        if self.joined.load(Ordering::SeqCst) {
            self.bells[1].notify();
        }
    }

    /// Like `Domain::changed`.
    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.bells.iter().for_each(Doorbell::notify);
    }

    fn call(&self) {
        self.request.store(true, Ordering::Release);
        if sleep::must_wake(&self.words[0]) {
            self.ring_home();
        }
    }

    /// Probes once. Returns `true` if the request is served by now.
    fn look(&self) -> bool {
        if self.request.load(Ordering::Acquire) && !self.served.swap(true, Ordering::SeqCst) {
            // The model is over: a processor that sleeps returns.
            self.changed();
        }
        self.served.load(Ordering::SeqCst)
    }

    fn take_over(&self) {
        let given = self.duty.take_over(SUBSTITUTE, None, &self.words[0], || {
            self.joined.store(true, Ordering::SeqCst);
            true
        });
        assert!(given);
        self.changed();
    }

    /// The home processor, after its handler has returned.
    fn home(&self) {
        loop {
            if self.duty.is_taken() {
                let leave = |by| {
                    assert_eq!(by, SUBSTITUTE);
                    self.joined.store(false, Ordering::SeqCst);
                };
                if self.duty.take_back(&self.words[0], leave) {
                    self.changed();
                }
            }
            let generation = self.generation.load(Ordering::Acquire);
            if self.look() {
                return;
            }
            sleep::announce_another(&self.words[0], &self.sleeps[0]);
            if self.generation.load(Ordering::Acquire) == generation
                && !self.request.load(Ordering::Acquire)
            {
                self.bells[0].wait();
            }
            sleep::retract(&self.words[0]);
        }
    }

    /// The substitute, as long as it has the duty.
    fn substitute(&self) {
        loop {
            let generation = self.generation.load(Ordering::Acquire);
            if self.duty.substitute() != Some(SUBSTITUTE) || self.look() {
                return;
            }
            self.duty.announce(SUBSTITUTE, &self.words[0], &self.sleeps[0], || {});
            sleep::announce_another(&self.words[1], &self.sleeps[1]);
            if self.generation.load(Ordering::Acquire) == generation
                && !self.request.load(Ordering::Acquire)
            {
                self.bells[1].wait();
            }
            sleep::retract(&self.words[1]);
            self.duty.retract(SUBSTITUTE, &self.words[0], || {});
        }
    }
}

/// loom reports a deadlock if the request is not found.
#[test]
fn a_request_is_found_while_the_duty_goes_over_and_comes_back() {
    loom::model(|| {
        let scene = Scene::new();
        let (home, caller) = (scene.clone(), scene.clone());
        let home = thread::spawn(move || home.home());
        let caller = thread::spawn(move || caller.call());
        scene.take_over();
        scene.substitute();
        home.join().unwrap();
        caller.join().unwrap();
        assert!(scene.served.load(Ordering::SeqCst));
    });
}

/// The home processor stays blocked.
#[test]
fn a_request_is_found_by_the_substitute_alone() {
    loom::model(|| {
        let scene = Scene::new();
        let caller = scene.clone();
        let caller = thread::spawn(move || caller.call());
        scene.take_over();
        scene.substitute();
        assert!(scene.served.load(Ordering::SeqCst));
        caller.join().unwrap();
    });
}

/// Two processors claim requests of a lane. The first one was alone with the lane, and may still
/// claim without a locked operation.
#[test]
fn no_request_is_claimed_twice_when_a_processor_is_alone_no_more() {
    loom::model(|| {
        let duty = Arc::new(Duty::default());
        let alone = Arc::new(AtomicBool::new(true));
        let next = Arc::new(AtomicU32::new(0));
        let claim = |next: &AtomicU32| {
            let at = next.load(Ordering::Relaxed);
            next.compare_exchange(at, at + 1, Ordering::AcqRel, Ordering::Relaxed).ok()
        };
        let home = {
            let (duty, alone, next) = (duty.clone(), alone.clone(), next.clone());
            thread::spawn(move || {
                duty.touch(|| {
                    if !alone.load(Ordering::Relaxed) {
                        return claim(&next);
                    }
                    let at = next.load(Ordering::Relaxed);
                    next.store(at + 1, Ordering::Relaxed);
                    Some(at)
                })
            })
        };
        alone.store(false, Ordering::Release);
        fence(Ordering::SeqCst);
        let even = duty.steps().is_multiple_of(2);
        let other = even.then(|| claim(&next)).flatten();
        let own = home.join().unwrap();
        assert!(own.is_none() || own != other, "{own:?} was claimed twice");
    });
}
