//! The check, after a reply, whether the caller sleeps.
//!
//! ```text
//!   server                                  caller (sleep.rs)
//!   publish the reply                       announce: word = 1
//!   fence                                   fence
//!   word is 1: wake the caller              no reply: sleep until woken
//! ```
//! # Why the fence is needed
//! This is the protocol of [`sleep`](crate::sleep). Between the store that publishes the reply and
//! the load of the caller's word there is no other fence, and no read-modify-write that could stand
//! for one. A reply is published by a release store (`upcall_shm::slot`). Where several processors
//! reply on one lane, the counter of the ring is updated before that store, not after it. Without
//! the fence x86-64, too, may load the word before the reply is visible. Then the caller finds no
//! reply, the server reads 0, and the wake is lost.
//!
//! A caller could make the fence for both sides
//! ([`announce_to_all`](crate::sleep::announce_to_all)). That would be a system call for each
//! sleep, and a caller that hands its processor over sleeps in each call.
//!
//! # The check that is put off
//! A server with more requests in the lane will reply again, and leaves the fence out. The exact
//! check is then *owed*. The next reply with a fence pays it, or the idle loop does.
//!
//! The next reply may be another processor's, and its fence may be earlier than the reply that owes
//! the check. So the debt is taken by a read-modify-write, and the fence follows it. The processor
//! that takes the debt has then seen the reply, and its check counts for that reply. A debt that is
//! set later stays, and is paid by the processor that set it. To clear the debt after the fence, by
//! a store, is not enough: the store may hit a debt whose reply became visible after the check.
//!
//! `tests/models/loom_reply.rs` is the model. It runs these functions on the queues of a lane.

use upcall_os::atomic::{AtomicBool, Ordering, fence, fence_after_update};

/// The state of one lane's check; see the module.
#[derive(Debug, Default)]
pub struct WakeCheck {
    owed: AtomicBool,
}

impl WakeCheck {
    /// Publishes a reply and wakes its caller if that sleeps.
    ///
    /// `more` returns `true` if this processor will reply on the lane again, or [pay](Self::pay).
    /// `wake_sleeper` loads the caller's word, and wakes the caller if that word is set.
    #[inline(always)]
    pub fn reply(
        &self,
        publish: impl FnOnce(),
        more: impl FnOnce() -> bool,
        wake_sleeper: impl FnOnce(),
    ) {
        publish();
        if more() {
            wake_sleeper();
            // Release: the processor that takes the debt has seen the reply.
            self.owed.store(true, Ordering::Release);
            return;
        }
        if self.is_owed() {
            self.take();
        } else {
            fence(Ordering::SeqCst);
        }
        wake_sleeper();
    }

    /// Returns `true` if a check was put off and not yet made.
    #[inline]
    pub fn is_owed(&self) -> bool {
        self.owed.load(Ordering::Relaxed)
    }

    /// Makes the check that was put off, if one was.
    #[inline]
    pub fn pay(&self, wake_sleeper: impl FnOnce()) {
        if self.is_owed() && self.take() {
            wake_sleeper();
        }
    }

    /// Takes the debt, and makes a fence. Returns `true` if there was one to take.
    #[inline]
    fn take(&self) -> bool {
        let was_owed = self.owed.swap(false, Ordering::Acquire);
        fence_after_update();
        was_owed
    }
}
