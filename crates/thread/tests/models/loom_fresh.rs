//! The queue of fresh threads.
//!
//! Each thread is taken once, by its owner or by a thief; and a hungry thief is called. Run by
//! `make models`.
//!
//! Under loom the asymmetric fences are SeqCst fences on both sides, which is what `membarrier`
//! turns them into.
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use loom::thread;
use upcall_thread::model::{Fences, Fresh, Linked, Parker, Pop};

struct Item {
    link: AtomicPtr<Item>,
    taken: AtomicUsize,
}

impl Linked for Item {
    fn link(&self) -> &AtomicPtr<Item> {
        &self.link
    }
}

fn item() -> &'static Item {
    Box::leak(Box::new(Item {
        link: AtomicPtr::new(std::ptr::null_mut()),
        taken: AtomicUsize::new(0),
    }))
}

fn take(item: &'static Item) {
    assert_eq!(item.taken.fetch_add(1, Ordering::Relaxed), 0, "taken twice");
}

fn drain(fresh: &Fresh<Item>) -> usize {
    let mut got = 0;
    loop {
        match fresh.pop() {
            Pop::Got(item) => {
                take(item);
                got += 1;
            }
            // The owner does not wait for a thief; what the thief leaves is counted after it has
            // ended.
            Pop::Empty | Pop::Busy => return got,
        }
    }
}

#[test]
fn each_is_taken_once() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let fresh = Arc::new(Fresh::new(Fences::Symmetric));
        fresh.push(item());
        fresh.push(item());
        let thief = {
            let fresh = Arc::clone(&fresh);
            thread::spawn(move || fresh.steal(8, take))
        };
        fresh.push(item());
        let got = drain(&fresh);
        let stolen = thief.join().unwrap();
        assert_eq!(got + stolen + drain(&fresh), 3);
        assert!(fresh.is_empty());
    });
}

#[test]
fn two_thieves() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let fresh = Arc::new(Fresh::new(Fences::Symmetric));
        fresh.push(item());
        fresh.push(item());
        let thieves: Vec<_> = (0..2)
            .map(|_| {
                let fresh = Arc::clone(&fresh);
                thread::spawn(move || fresh.steal(8, take))
            })
            .collect();
        let got = drain(&fresh);
        let stolen: usize = thieves.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!(got + stolen + drain(&fresh), 2);
    });
}

/// As `Vp::add_fresh` against `Vp::has_work`: a spawn and a processor going to sleep.
///
/// Either the processor sees the thread, or it is called. Otherwise it would sleep for ever, which
/// is a deadlock.
#[test]
fn a_hungry_processor_is_called() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(|| {
        let fresh = Arc::new(Fresh::new(Fences::Symmetric));
        let hungry = Arc::new(AtomicBool::new(false));
        let parker = Arc::new(Parker::default());
        let sleeper = {
            let (fresh, hungry, parker) =
                (Arc::clone(&fresh), Arc::clone(&hungry), Arc::clone(&parker));
            thread::spawn(move || {
                let mut announced = false;
                while fresh.is_empty() {
                    parker.park(None, || {
                        if announced {
                            if hungry.load(Ordering::SeqCst) {
                                return !fresh.is_empty();
                            }
                            announced = false;
                            return true;
                        }
                        hungry.store(true, Ordering::SeqCst);
                        announced = true;
                        fence(Ordering::SeqCst);
                        !fresh.is_empty()
                    });
                }
            })
        };
        fresh.push(item());
        fence(Ordering::SeqCst);
        if hungry.load(Ordering::Relaxed) && hungry.swap(false, Ordering::SeqCst) {
            parker.unpark();
        }
        sleeper.join().unwrap();
    });
}

/// A queue with two things in `late`, as if they had been pushed while a thief was in.
fn with_two_late() -> Arc<Fresh<Item>> {
    let fresh = Arc::new(Fresh::new(Fences::Symmetric));
    fresh.push(item());
    fresh.steal(8, |first| {
        take(first);
        fresh.push(item());
        fresh.push(item());
    });
    fresh
}

/// The last look of a processor that goes to sleep, while the owner moves what is in `late`.
#[test]
fn what_is_moved_is_seen_by_others() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let fresh = with_two_late();
        let looker = {
            let fresh = Arc::clone(&fresh);
            thread::spawn(move || {
                fence(Ordering::SeqCst);
                fresh.is_empty()
            })
        };
        fence(Ordering::SeqCst);
        assert!(matches!(fresh.pop(), Pop::Got(_)));
        assert!(!looker.join().unwrap(), "a thing was there all the time, and the look found none");
    });
}

/// The owner's own last look, while a thief moves what is in `late`.
#[test]
fn what_is_moved_is_seen_by_its_owner() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = None;
    model.check(|| {
        let fresh = with_two_late();
        let thief = {
            let fresh = Arc::clone(&fresh);
            thread::spawn(move || fresh.steal(1, take))
        };
        // The thief takes at most one.
        let empty = fresh.is_empty();
        thief.join().unwrap();
        assert!(!empty, "the owner would go to sleep over a thread");
    });
}
