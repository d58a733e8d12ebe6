//! A single slot: one call at a time, with the reply in the request's line.
//!
//! A line that its reader writes next moves between processors as a whole, in one transfer each
//! way. With a request line and a reply line, each writer would have to claim its line again on
//! each call, which costs half as much again. So a kernel thread, which has one call at a time,
//! uses a single slot. A virtual processor, which has many, uses the rings of
//! [`ring`](crate::ring).
//!
//! ```text
//!             lap 1          lap 2         lap 3          lap 4
//!  caller   request 0 ──►              request 1 ──►                 …
//!  server               ◄── reply 0                 ◄── reply 1
//! ```
//!
//! The request of call n has lap 2n + 1, and its reply has lap 2n + 2 (`turns`). Each side counts
//! the calls for itself, so the lap in the slot shows whose turn it is.

use crate::slot::{Slot, SlotMessage};
use std::cell::Cell;
use std::ops::Deref;
use upcall_os::atomic::{AtomicU64, Ordering};

/// The laps of the request and of the reply of a call.
#[inline(always)]
fn turns(call: u64) -> (u16, u16) {
    ((2 * call + 1) as u16, (2 * call + 2) as u16)
}

/// The calling end of a single slot; see the module.
#[derive(Debug)]
pub struct SingleCaller<S> {
    slot: S,
    calls: Cell<u64>,
}

impl<S: Deref<Target = Slot>> SingleCaller<S> {
    /// The calling end of a new slot, through which nothing was sent yet.
    pub fn new(slot: S) -> Self {
        Self { slot, calls: Cell::new(0) }
    }

    /// Sends a request. The reply to the previous request was taken.
    #[inline]
    pub fn send(&self, image: &SlotMessage) {
        self.slot.write(image, turns(self.calls.get()).0);
    }

    /// Returns `true` if the reply is there.
    #[inline]
    pub fn waits(&self) -> bool {
        self.slot.holds(turns(self.calls.get()).1)
    }

    /// Takes the reply into `image`. Returns `false` if it is not there yet.
    #[inline]
    pub fn take(&self, image: &mut SlotMessage) -> bool {
        let there = self.slot.read(turns(self.calls.get()).1, image);
        self.calls.set(self.calls.get() + u64::from(there));
        there
    }
}

/// The serving end of a single slot, for several processors of one domain.
#[derive(Debug)]
pub struct SingleServer<S> {
    slot: S,
    taken: AtomicU64,
    answered: AtomicU64,
}

impl<S: Deref<Target = Slot>> SingleServer<S> {
    /// The serving end of a new slot, from which nothing was taken yet.
    pub fn new(slot: S) -> Self {
        Self { slot, taken: AtomicU64::new(0), answered: AtomicU64::new(0) }
    }

    /// Returns `true` if a request waits.
    #[inline]
    pub fn waits(&self) -> bool {
        self.slot.holds(turns(self.taken.load(Ordering::Relaxed)).0)
    }

    /// The tag of the waiting request.
    ///
    /// A deceitful sender can change it before the request is taken.
    #[inline]
    pub fn peek_tag(&self) -> Option<u16> {
        self.slot.tag(turns(self.taken.load(Ordering::Relaxed)).0)
    }

    /// Takes the request into `image`.
    ///
    /// Returns `false` if there is none, or another processor was faster.
    ///
    /// As for [`SharedReceiver::take`](crate::ring::SharedReceiver::take), the claim comes after
    /// the copy.
    #[inline]
    pub fn take(&self, image: &mut SlotMessage) -> bool {
        let call = self.taken.load(Ordering::Relaxed);
        self.slot.read(turns(call).0, image)
            && self
                .taken
                .compare_exchange(call, call + 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Takes the request into `image` without a locked operation.
    ///
    /// Returns `false` if there is none.
    ///
    /// The caller knows that no other processor takes at the same time.
    #[inline]
    pub fn take_alone(&self, image: &mut SlotMessage) -> bool {
        let call = self.taken.load(Ordering::Relaxed);
        let there = self.slot.read(turns(call).0, image);
        self.taken.store(call + u64::from(there), Ordering::Relaxed);
        there
    }

    /// Copies the request into `image`, and leaves it there.
    ///
    /// Returns `false` if there is none.
    #[inline]
    pub fn peek(&self, image: &mut SlotMessage) -> bool {
        self.slot.read(turns(self.taken.load(Ordering::Relaxed)).0, image)
    }

    /// Takes the [peeked](Self::peek) request.
    ///
    /// The caller knows that no other processor takes at the same time. The peeked copy is the
    /// request: a deceitful sender may have changed the slot since.
    #[inline]
    pub fn take_peeked(&self) {
        let call = self.taken.load(Ordering::Relaxed);
        self.taken.store(call + 1, Ordering::Relaxed);
    }

    /// Replies to the request that was taken.
    #[inline]
    pub fn reply(&self, image: &SlotMessage) {
        let call = self.answered.load(Ordering::Relaxed);
        self.answered.store(call + 1, Ordering::Relaxed);
        self.slot.write(image, turns(call).1);
    }

    /// Number of requests taken and not answered.
    ///
    /// It is 0 or 1 unless the caller breaks the protocol.
    #[inline]
    pub fn under_way(&self) -> i64 {
        // In this order, an answer that comes between makes the difference smaller, never larger.
        let taken = self.taken.load(Ordering::Acquire);
        taken.wrapping_sub(self.answered.load(Ordering::Relaxed)).cast_signed()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// More laps than a slot's lap number can count. Miri, which takes a minute for that, runs
    /// fewer.
    const LAPS: u64 = if cfg!(miri) { 300 } else { 70_000 };

    #[test]
    fn a_single_slot_goes_to_and_fro() {
        let slot = Arc::new(Slot::default());
        let (caller, server) = (SingleCaller::new(slot.clone()), SingleServer::new(slot));
        let mut got = SlotMessage::new(0, 0, 0);
        for call in 0..LAPS {
            assert!(!server.waits() && !server.take(&mut got) && server.under_way() == 0);
            caller.send(&SlotMessage::new(call as u16, 1, 0));
            assert!(!caller.waits() && !caller.take(&mut got));
            if call % 2 == 0 {
                assert!(server.take(&mut got));
            } else {
                assert!(server.peek(&mut got) && server.under_way() == 0);
                server.take_peeked();
            }
            assert_eq!((got.call(), server.under_way()), (call as u16, 1));
            server.reply(&SlotMessage::new(call as u16, 2, 0));
            assert!(caller.take(&mut got));
            assert_eq!(got.tag(), 2);
        }
    }
}
