//! No call waits for a processor that is busy while another of the same server sleeps (U14).
//!
//! A channel is rung for on its home processor only, and nobody rings while that is awake: it will
//! look soon, unless what it runs now takes long. So as long as one processor of a server runs
//! something and another sleeps, a timer is set, and wakes one that sleeps. That looks at the lanes
//! of all, serves what it finds, and goes back to sleep at once if that is nothing.
//!
//! # Why a call is always found
//! ```text
//!   a processor that runs calls                      one that goes to sleep
//!   a  state = Running, when it begins               1  announce
//!   b  light fence                                   2  heavy fence
//!   c  another sleeps and no timer is set: set it    3  another runs and no timer is set: set it
//! ```
//! c comes before each call that it runs. By the fences either c sees the sleeper or 3 sees the
//! state (Dekker). `set` is taken back only by a processor that was woken by the timer, which looks
//! at all lanes after that, and comes to 1 again before it sleeps. `tests/models/loom_watch.rs` is
//! the model.
//!
//! # Not for nothing
//! There is one timer for all. Each time that it brings nothing its interval is doubled, up to
//! [`LONGEST`]; so a processor that runs for an hour, or many short calls one after the other, cost
//! a sleeper one glance every 8 ms. When all sleep no timer is set.

use upcall_os::atomic::{AtomicBool, AtomicU32, Ordering};

/// So long a call waits at most for a processor that has begun something long, after a time in
/// which there was nothing to help with.
#[cfg(not(loom))]
pub const FIRST: std::time::Duration = std::time::Duration::from_millis(1);
/// How often the interval is doubled at most.
const DOUBLINGS: u32 = 3;
/// So long a call waits at most, if there was nothing to help with lately.
#[cfg(not(loom))]
pub const LONGEST: std::time::Duration = std::time::Duration::from_millis(1 << DOUBLINGS);

/// Whether the timer is set, and for how long; see the module.
#[derive(Debug, Default)]
pub struct Watch {
    set: AtomicBool,
    doubled: AtomicU32,
}

impl Watch {
    /// To be asked before a call is run, after a light fence, with whether another processor
    /// sleeps. Then the timer is to be set.
    #[inline]
    pub fn begins_to_run(&self, another_sleeps: impl FnOnce() -> bool) -> bool {
        !self.set.load(Ordering::Relaxed) && another_sleeps() && self.take()
    }

    /// To be asked by a processor that goes to sleep, after it has announced that and a heavy
    /// fence, with whether another one runs, and whether all the others sleep.
    pub fn goes_to_sleep(&self, another_runs: bool, all_sleep: bool) -> bool {
        if all_sleep {
            self.doubled.store(0, Ordering::Relaxed);
        }
        another_runs && self.take()
    }

    fn take(&self) -> bool {
        self.set.compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The timer has gone off, and woken the caller.
    pub fn has_gone_off(&self) {
        self.set.store(false, Ordering::SeqCst);
    }

    /// What the look was good for.
    pub fn brought(&self, something: bool) {
        let doubled =
            if something { 0 } else { (self.doubled.load(Ordering::Relaxed) + 1).min(DOUBLINGS) };
        self.doubled.store(doubled, Ordering::Relaxed);
    }

    /// How long the timer is to be set for.
    #[cfg(not(loom))]
    pub fn interval(&self) -> std::time::Duration {
        FIRST * (1 << self.doubled.load(Ordering::Relaxed).min(DOUBLINGS))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_set_once_and_less_often_while_it_brings_nothing() {
        let watch = Watch::default();
        assert!(!watch.begins_to_run(|| false), "nobody sleeps");
        assert!(
            watch.begins_to_run(|| true)
                && !watch.begins_to_run(|| true)
                && !watch.goes_to_sleep(true, false)
        );
        for expected in [1, 2, 4, 8, 8] {
            assert_eq!(watch.interval().as_millis(), expected);
            watch.has_gone_off();
            watch.brought(false);
            assert!(watch.goes_to_sleep(true, false));
        }
        watch.has_gone_off();
        watch.brought(true);
        assert_eq!(watch.interval(), FIRST);
        watch.brought(false);
        assert!(!watch.goes_to_sleep(false, true), "nobody runs");
        assert_eq!(watch.interval(), FIRST);
    }
}
