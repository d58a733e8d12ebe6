//! Model of the clerk's checks that go on as long as something waits: `make models`.
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use upcall_sched::rechecks::Rechecks;

/// The clerk ends its checks while two others leave something behind. Who begins the checks makes
/// the clerk check; so in the end the clerk checks, or nothing waits.
#[test]
fn nothing_waits_without_checks() {
    loom::model(|| {
        let scene = Arc::new((AtomicU32::new(0), Rechecks::default()));
        assert!(scene.1.begin());
        let leaves = || {
            let scene = scene.clone();
            move || {
                scene.0.fetch_add(1, Ordering::Relaxed);
                scene.1.begin()
            }
        };
        let (first, second) = (thread::spawn(leaves()), leaves());
        let clerk = scene.clone();
        let clerk =
            thread::spawn(move || clerk.1.next(|| clerk.0.load(Ordering::Relaxed) > 0).is_some());
        let second = second();
        let (first, goes_on) = (first.join().unwrap(), clerk.join().unwrap());
        assert!(first || second || goes_on);
        assert!(!scene.1.begin(), "they have begun");
    });
}
