//! Threads as the lists of waiters see them, for the models: a wake, and a deadline that may come
//! first.

use loom::sync::atomic::{AtomicBool, Ordering};
use upcall_thread::model::{ListedWait, Parker};

/// One wait.
#[derive(Debug)]
pub struct Contender {
    /// It has no deadline.
    patient: bool,
    drawn: AtomicBool,
    woken: AtomicBool,
    parker: Parker,
}

/// A thread that is about to wait; one that is not patient has a deadline, which passes at once.
pub fn contender(patient: bool) -> &'static Contender {
    // Records are never freed; loom's leak check does not know plain boxes.
    Box::leak(Box::new(Contender {
        patient,
        drawn: AtomicBool::new(false),
        woken: AtomicBool::new(false),
        parker: Parker::default(),
    }))
}

impl ListedWait for &'static Contender {
    fn draw(self) -> bool {
        self.patient
            || self.drawn.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn may_leave(self) -> bool {
        !self.patient
    }
}

impl Contender {
    /// Whoever drew the right wakes.
    pub fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.parker.unpark();
    }

    /// `true`: woken. `false`: the deadline passed.
    pub fn wait(&'static self) -> bool {
        if !self.patient && self.draw() {
            return false;
        }
        while !self.woken.load(Ordering::Acquire) {
            self.parker.park(None, || self.woken.load(Ordering::Acquire));
        }
        true
    }
}
