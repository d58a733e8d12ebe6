//! Threads as the lists of waiters see them, for the models.
//!
//! A wake may end a wait, or a deadline that may come first.

use loom::sync::atomic::{AtomicBool, Ordering};
use upcall_thread::model::{ListedWait, Parker};

/// One wait.
#[derive(Debug)]
pub struct Contender {
    /// The wait has no deadline.
    patient: bool,
    drawn: AtomicBool,
    woken: AtomicBool,
    parker: Parker,
}

/// Creates a thread that is about to wait.
///
/// If it is not patient it has a deadline, which passes at once.
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
    /// Wakes the thread. The caller has claimed the right to do so.
    pub fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.parker.unpark();
    }

    /// Waits. Returns `true` if woken, `false` if the deadline passed.
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
