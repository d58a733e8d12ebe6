//! The mutex's protocol: one holder at a time, and every waiter gets its turn.
//! `RUSTFLAGS="--cfg loom" cargo test -p upcall-thread --release --test loom_lock`
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicPtr, Ordering};
use loom::thread;
use upcall_thread::model::{Entry, Linked, Parker, RawLock};

/// A thread, as the lock sees it, with a flag and a parker for its wake.
#[repr(align(8))]
struct Contender {
    link: AtomicPtr<Contender>,
    woken: loom::sync::atomic::AtomicBool,
    parker: Parker,
}

impl Linked for Contender {
    fn link(&self) -> &AtomicPtr<Contender> {
        &self.link
    }
}

struct Guarded {
    lock: RawLock<Contender>,
    value: UnsafeCell<usize>,
}

// SAFETY: the value is touched by the holder of the lock; loom checks it.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

fn contender() -> &'static Contender {
    Box::leak(Box::new(Contender {
        link: AtomicPtr::new(std::ptr::null_mut()),
        woken: loom::sync::atomic::AtomicBool::new(false),
        parker: Parker::default(),
    }))
}

impl Guarded {
    fn add_one(&self, me: &'static Contender) {
        if !self.lock.try_acquire() && self.lock.enter(me) == Entry::Queued {
            while !me.woken.load(Ordering::Acquire) {
                me.parker.park(None, || me.woken.load(Ordering::Acquire));
            }
        }
        // SAFETY: this contender holds the lock.
        self.value.with_mut(|value| unsafe { *value += 1 });
        if let Some(next) = self.lock.release() {
            next.woken.store(true, Ordering::Release);
            next.parker.unpark();
        }
    }
}

fn contend(others: usize, preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let guarded = Arc::new(Guarded { lock: RawLock::new(), value: UnsafeCell::new(0) });
        let threads: Vec<_> = (0..others)
            .map(|_| {
                let guarded = Arc::clone(&guarded);
                thread::spawn(move || guarded.add_one(contender()))
            })
            .collect();
        guarded.add_one(contender());
        threads.into_iter().for_each(|t| t.join().unwrap());
        // SAFETY: all contenders have ended.
        assert_eq!(guarded.value.with(|value| unsafe { *value }), others + 1);
    });
}

#[test]
fn two_contenders() {
    contend(1, 5);
}

#[test]
fn three_contenders() {
    contend(2, 2);
}
