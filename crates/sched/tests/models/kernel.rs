//! The kernel's part in models: a futex, a doorbell, and a [`Kernel`] for models of interrupts.
//!
//! The [`Kernel`] has the set of doorbells, which reports each notification to the sleeper and to
//! the clerk, and the signal, which is kept until it can be delivered. It also has the words of the
//! sleep protocol, and the senders that notify by it.

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex};
use upcall_sched::sleep;

/// A futex: compares and sleeps in one step, as the kernel does under its bucket lock.
pub struct Futex {
    lock: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    pub fn new() -> Self {
        Self { lock: Mutex::new(()), woken: Condvar::new() }
    }

    pub fn wait(&self, word: &AtomicU32, expected: u32) {
        let mut guard = self.lock.lock().unwrap();
        if word.load(Ordering::SeqCst) == expected {
            guard = self.woken.wait(guard).unwrap();
        }
        drop(guard);
    }

    pub fn wake(&self) {
        let _guard = self.lock.lock().unwrap();
        self.woken.notify_all();
    }
}

/// A doorbell: a notification before the wait is kept, and a wait takes all of them.
pub struct Doorbell {
    rung: Mutex<bool>,
    told: Condvar,
}

impl Doorbell {
    pub fn new() -> Self {
        Self { rung: Mutex::new(false), told: Condvar::new() }
    }

    pub fn notify(&self) {
        *self.rung.lock().unwrap() = true;
        self.told.notify_all();
    }

    pub fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.told.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// The poll set, which becomes readable when a doorbell is notified.
#[derive(Default)]
struct Set {
    /// For the sleeper. No thread reads the doorbells, so it stays set until a thread has waited.
    readable: bool,
    /// Set by each notification since the clerk last received one.
    edge: bool,
    /// Number of senders that may still notify.
    senders: usize,
}

/// The signal for the thread.
#[derive(Default)]
struct Signal {
    pending: bool,
    /// Set if no further signal will come: the clerk has received all notifications.
    last: bool,
}

/// The kernel in a model of interrupts; see the module.
pub struct Kernel {
    pub asleep: AtomicU32,
    pub sleeps: AtomicU64,
    set: Mutex<Set>,
    rung: Condvar,
    signal: Mutex<Signal>,
    signalled: Condvar,
}

impl Kernel {
    /// Creates a kernel for this number of senders.
    pub fn new(senders: usize) -> Self {
        Self {
            asleep: AtomicU32::new(0),
            sleeps: AtomicU64::new(0),
            set: Mutex::new(Set { senders, ..Set::default() }),
            rung: Condvar::new(),
            signal: Mutex::default(),
            signalled: Condvar::new(),
        }
    }

    fn notify(&self) {
        let mut set = self.set.lock().unwrap();
        (set.readable, set.edge) = (true, true);
        self.rung.notify_all();
    }

    /// A sender of `messages` messages, each counted in its word: `Ringer::launched` after each.
    pub fn send(&self, launched: &AtomicU32, messages: u32) {
        let rung = AtomicU64::new(0);
        for message in 1..=messages {
            launched.store(message, Ordering::Release);
            sleep::no_fence();
            if sleep::seems_asleep(&self.asleep)
                && sleep::first_ring(&rung, self.sleeps.load(Ordering::Relaxed))
            {
                self.notify();
            }
        }
        self.set.lock().unwrap().senders -= 1;
        self.rung.notify_all();
    }

    /// The clerk. An edge of a set that another thread has waited for in between is lost. A `deaf`
    /// clerk sees only that the set becomes readable.
    pub fn watch(&self, deaf: bool) {
        let mut heard = false;
        loop {
            let mut set = self.set.lock().unwrap();
            while !set.edge && set.senders > 0 {
                set = self.rung.wait(set).unwrap();
            }
            let last = !std::mem::take(&mut set.edge);
            let hears = !last && set.readable && !(deaf && heard);
            heard = set.readable;
            drop(set);
            if last || hears {
                let mut signal = self.signal.lock().unwrap();
                (signal.pending, signal.last) = (signal.pending || hears, last);
                self.signalled.notify_all();
            }
            if last {
                return;
            }
        }
    }

    /// Delivers the pending signal. Returns `true` if there was one.
    pub fn delivers(&self) -> bool {
        std::mem::take(&mut self.signal.lock().unwrap().pending)
    }

    /// Waits for the next signal. Returns `false` if no more will come.
    pub fn next_signal(&self) -> bool {
        let mut signal = self.signal.lock().unwrap();
        while !signal.pending && !signal.last {
            signal = self.signalled.wait(signal).unwrap();
        }
        std::mem::take(&mut signal.pending)
    }

    /// `Post::announce_to_be_rung_for`.
    pub fn announce(&self) {
        assert!(sleep::announce_to_all(&self.asleep, &self.sleeps));
    }

    /// Sleeps until a doorbell is notified. Returns `false` if none will be.
    #[allow(dead_code, reason = "not all who compute sleep")]
    pub fn sleep(&self) -> bool {
        let mut set = self.set.lock().unwrap();
        while !set.readable && set.senders > 0 {
            set = self.rung.wait(set).unwrap();
        }
        std::mem::take(&mut set.readable)
    }
}
