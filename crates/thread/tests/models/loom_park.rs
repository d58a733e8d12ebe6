//! The inbox with the parking protocol: a wake that races with going to sleep is never lost.
//!
//! Run by `make models`.
use loom::sync::Arc;
use loom::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use loom::thread;
use upcall_thread::model::{Inbox, Linked, Parker};

struct Item {
    link: AtomicPtr<Item>,
    written: AtomicUsize,
}

impl Linked for Item {
    fn link(&self) -> &AtomicPtr<Item> {
        &self.link
    }
}

fn item() -> &'static Item {
    // Records are never freed; loom's leak check does not know plain boxes.
    Box::leak(Box::new(Item {
        link: AtomicPtr::new(std::ptr::null_mut()),
        written: AtomicUsize::new(0),
    }))
}

#[derive(Default)]
struct Processor {
    inbox: Inbox<Item>,
    parker: Parker,
}

impl Processor {
    /// As `VpShared::post`.
    fn post(&self, item: &'static Item) {
        item.written.store(1, Ordering::Relaxed);
        if self.inbox.push(item) {
            self.parker.unpark();
        }
    }

    /// As the idle loop: runs until `count` threads have been made ready.
    fn idle(&self, count: usize) {
        let mut got = 0;
        while got < count {
            if !self.inbox.is_empty() {
                self.inbox.drain(|item| {
                    assert_eq!(
                        item.written.load(Ordering::Relaxed),
                        1,
                        "the wake brings what was done before it"
                    );
                    got += 1;
                });
                continue;
            }
            // A sleep that never ends is a deadlock, which loom reports.
            self.parker.park(None, || !self.inbox.is_empty());
        }
    }
}

#[test]
fn one_waker() {
    loom::model(|| {
        let processor = Arc::new(Processor::default());
        let waker = Arc::clone(&processor);
        let waker = thread::spawn(move || waker.post(item()));
        processor.idle(1);
        waker.join().unwrap();
    });
}

#[test]
fn two_wakers_of_which_one_may_leave_the_unpark_to_the_other() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let processor = Arc::new(Processor::default());
        let wakers: Vec<_> = (0..2)
            .map(|_| {
                let processor = Arc::clone(&processor);
                thread::spawn(move || processor.post(item()))
            })
            .collect();
        processor.idle(2);
        wakers.into_iter().for_each(|w| w.join().unwrap());
    });
}

#[test]
fn one_waker_twice() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(|| {
        let processor = Arc::new(Processor::default());
        let waker = Arc::clone(&processor);
        let waker = thread::spawn(move || {
            waker.post(item());
            waker.post(item());
        });
        processor.idle(2);
        waker.join().unwrap();
    });
}

/// A thread publishes its waiter while it runs; the wake comes before it has blocked, or after.
/// Since only the home processor takes threads from the inbox, and it is busy running that thread,
/// an early wake waits there.
#[test]
fn wake_before_block() {
    loom::model(|| {
        let processor = Arc::new(Processor::default());
        let published = Arc::new(AtomicPtr::new(std::ptr::null_mut()));
        let waker = {
            let (processor, published) = (Arc::clone(&processor), Arc::clone(&published));
            thread::spawn(move || {
                let waiter: *mut Item = published.load(Ordering::Acquire);
                // SAFETY: null or a leaked item.
                match unsafe { waiter.as_ref() } {
                    Some(waiter) => {
                        processor.post(waiter);
                        true
                    }
                    None => false,
                }
            })
        };
        // As `block()`: publish, then look for the next thread, which may be this one.
        published.store(std::ptr::from_ref(item()).cast_mut(), Ordering::Release);
        if waker.join().unwrap() {
            processor.idle(1);
        }
    });
}

/// The same, with the processor going idle while the waker has not posted yet.
#[test]
fn wake_during_block() {
    loom::model(|| {
        let processor = Arc::new(Processor::default());
        let waiter = item();
        let waker = {
            let processor = Arc::clone(&processor);
            thread::spawn(move || processor.post(waiter))
        };
        processor.idle(1);
        waker.join().unwrap();
        assert!(processor.inbox.is_empty(), "made ready once");
    });
}
