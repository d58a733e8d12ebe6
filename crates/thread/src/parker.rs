//! One kernel thread's place to sleep, and the argument that no wake is lost.
//!
//! # Protocol
//! ```text
//! sleeper (the virtual processor)          waker (any kernel thread)
//! 1  state := PARKED                       a  put the work where the sleeper looks
//! 2  SeqCst fence                             (inbox, doorbell, …)
//! 3  last look at all sources of work      b  SeqCst fence
//! 4  nothing: wait while state = PARKED    c  if state = PARKED: state := RUNNING,
//! 5  state := RUNNING                         and wake the futex
//! ```
//! # Why no wake is lost
//! The two fences are totally ordered. If 2 comes before b, then c sees the store of 1 (or a later
//! one): it wakes. The kernel compares the word and goes to sleep in one step, so a wake between 3
//! and 4 makes 4 return at once. If b comes before 2, then 3 sees the store of a. So either the
//! waker wakes or the sleeper does not sleep. A wake that comes after 5 finds RUNNING and costs one
//! load; its work was seen at 3, or will be seen by the look that follows 5. A wake for a sleeper
//! that has just left is spurious, which the loop around it permits.
//!
//! The fences suffice for this. The accesses of `state` are SeqCst nevertheless, because loom 0.7
//! does not conclude that a store which follows the value read by another thread's exchange also
//! follows that exchange, and so reports a wake that reads its own old RUNNING. On this path the
//! price of the stronger order does not matter.
//!
//! `tests/models/loom_park.rs` runs this with the inbox under loom.

use crate::sync::{Futex, Ordering, fence};
use std::time::Instant;

const RUNNING: u32 = 0;
const PARKED: u32 = 1;

/// A place for one kernel thread to sleep until another wakes it.
#[derive(Debug)]
pub struct Parker {
    state: Futex,
}

impl Default for Parker {
    fn default() -> Self {
        Self { state: Futex::new(RUNNING) }
    }
}

impl Parker {
    /// Blocks the calling kernel thread until [`unpark`](Self::unpark) or `deadline`.
    ///
    /// Returns at once if `last_look` finds work.
    pub fn park(&self, deadline: Option<Instant>, last_look: impl FnOnce() -> bool) {
        self.state.word.store(PARKED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !last_look() {
            self.state.wait(PARKED, deadline);
        }
        self.state.word.store(RUNNING, Ordering::SeqCst);
    }

    /// Wakes the sleeper if it sleeps or is about to.
    ///
    /// The caller has put the work in place before; see the module comment.
    pub fn unpark(&self) {
        fence(Ordering::SeqCst);
        if self.state.word.load(Ordering::SeqCst) == PARKED
            && self.state.word.swap(RUNNING, Ordering::SeqCst) == PARKED
        {
            self.state.wake();
        }
    }
}
