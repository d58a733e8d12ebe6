//! Model of the clerk's checks that go on as long as a piece waits: `make models`.
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use upcall_sched::rechecks::{Rechecks, write_and_read};

#[derive(Default)]
struct Scene {
    waiting: AtomicU32,
    runs: AtomicU32,
    checks: Rechecks,
}

impl Scene {
    fn submits(&self) -> bool {
        let add = || self.waiting.store(1, Ordering::Relaxed);
        write_and_read(add, || self.runs.load(Ordering::Relaxed) == 1) && self.checks.begin()
    }

    fn says_that_it_runs(&self) -> bool {
        let say = || self.runs.store(1, Ordering::Release);
        write_and_read(say, || self.waits()) && self.checks.begin()
    }

    fn waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 1
    }
}

/// The clerk ends its checks while a piece is submitted, and a processor that has polled begins to
/// run something else. A side that begins the checks makes the clerk check, so in the end the
/// clerk checks.
#[test]
fn no_piece_waits_without_checks() {
    loom::model(|| {
        let scene = Arc::new(Scene::default());
        assert!(scene.checks.begin());
        let (submitter, clerk) = (scene.clone(), scene.clone());
        let submitter = thread::spawn(move || submitter.submits());
        let clerk = thread::spawn(move || clerk.checks.next(|| clerk.waits()).is_some());
        let runs = scene.says_that_it_runs();
        let (submits, goes_on) = (submitter.join().unwrap(), clerk.join().unwrap());
        assert!(submits || runs || goes_on);
        assert!(!scene.checks.begin(), "they have begun");
    });
}
