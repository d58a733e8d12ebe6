//! A ring of slots: one direction of a lane, without locks or shared indices.
//!
//! Source: URPC's bidirectional shared-memory queue (section 3.2.1), without the locks. The paper's
//! rule that no processor ever spins on a busy queue is kept by having no queue that can be busy.
//! Each side counts for itself, and the lap in a slot shows whether the slot holds the message of
//! that count. The receiver reads in order.
//!
//! # Why a ring cannot overflow
//! A lane of depth N has at most N calls outstanding; the caller keeps count. Request p goes to
//! slot p mod N. When it is written, fewer than N calls are outstanding, so of the N calls before
//! it at least one, say q, has its reply. The server takes requests in order, so it has taken p − N
//! ≤ q, and had copied it out before it replied. Replies: each answers a request, and a new request
//! is sent only after a reply was taken, so at most N replies are untaken. A peer that breaks this
//! garbles its own lane; every value is checked after it was copied.

use crate::slot::{Slot, SlotMessage};
use std::cell::Cell;
use std::ops::Deref;
use upcall_os::atomic::{AtomicU64, Ordering};

/// The slots, and how a position maps to them.
#[derive(Debug)]
struct SlotRing<S> {
    slots: S,
    /// The binary logarithm of the depth: a position shifted by it is the lap.
    shift: u32,
}

impl<S: Deref<Target = [Slot]>> SlotRing<S> {
    fn new(slots: S) -> Self {
        assert!(
            slots.len().is_power_of_two(),
            "a ring's depth is a power of two, not {}",
            slots.len()
        );
        Self { shift: slots.len().trailing_zeros(), slots }
    }

    /// The slot of a position, and the lap that makes it valid.
    #[inline(always)]
    fn at(&self, position: u64) -> (&Slot, u16) {
        (
            &self.slots[position as usize & (self.slots.len() - 1)],
            ((position >> self.shift) + 1) as u16,
        )
    }

    #[inline(always)]
    fn write(&self, position: u64, image: &SlotMessage) {
        let (slot, lap) = self.at(position);
        slot.write(image, lap);
    }

    #[inline(always)]
    fn read(&self, position: u64, image: &mut SlotMessage) -> bool {
        let (slot, lap) = self.at(position);
        slot.read(lap, image)
    }

    #[inline(always)]
    fn holds(&self, position: u64) -> bool {
        let (slot, lap) = self.at(position);
        slot.holds(lap)
    }

    /// Prefetches a slot. Under load the message after the next is there or soon will be, and its
    /// line can travel while the next one is worked on.
    #[inline(always)]
    fn prefetch(&self, position: u64) {
        self.at(position).0.prefetch();
    }
}

/// The sending end, for one sender.
#[derive(Debug)]
pub struct RingSender<S> {
    ring: SlotRing<S>,
    next: Cell<u64>,
}

impl<S: Deref<Target = [Slot]>> RingSender<S> {
    /// The sending end of a new ring, through which nothing was sent yet.
    ///
    /// # Panics
    /// The number of slots is not a power of two.
    pub fn new(slots: S) -> Self {
        Self { ring: SlotRing::new(slots), next: Cell::new(0) }
    }

    /// Sends a message.
    ///
    /// Never blocks; the caller keeps within the depth (see the module).
    #[inline]
    pub fn send(&self, image: &SlotMessage) {
        let position = self.next.get();
        self.next.set(position + 1);
        self.ring.write(position, image);
    }

    /// Number of messages that fit.
    pub fn depth(&self) -> usize {
        self.ring.slots.len()
    }
}

/// The sending end, for several senders of one domain.
///
/// Senders do not wait for each other. The receiver takes their messages in the order in which they
/// reserved a slot, so a sender that is held up between reserving and publishing (some ten
/// instructions) delays those behind it.
#[derive(Debug)]
pub struct SharedSender<S> {
    ring: SlotRing<S>,
    next: AtomicU64,
}

impl<S: Deref<Target = [Slot]>> SharedSender<S> {
    /// The sending end of a new ring, through which nothing was sent yet.
    ///
    /// # Panics
    /// The number of slots is not a power of two.
    pub fn new(slots: S) -> Self {
        Self { ring: SlotRing::new(slots), next: AtomicU64::new(0) }
    }

    /// Sends a message. Never blocks.
    #[inline]
    pub fn send(&self, image: &SlotMessage) {
        let position = self.next.fetch_add(1, Ordering::Relaxed);
        self.ring.write(position, image);
    }

    /// Sends a message without a locked operation.
    ///
    /// The caller knows that no other processor sends at the same time.
    #[inline]
    pub fn send_alone(&self, image: &SlotMessage) {
        let position = self.next.load(Ordering::Relaxed);
        self.next.store(position + 1, Ordering::Relaxed);
        self.ring.write(position, image);
    }

    /// Number of messages that were sent, or are about to be.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }
}

/// The receiving end, for one receiver.
#[derive(Debug)]
pub struct RingReceiver<S> {
    ring: SlotRing<S>,
    next: Cell<u64>,
}

impl<S: Deref<Target = [Slot]>> RingReceiver<S> {
    /// The receiving end of a new ring, from which nothing was taken yet.
    ///
    /// # Panics
    /// The number of slots is not a power of two.
    pub fn new(slots: S) -> Self {
        Self { ring: SlotRing::new(slots), next: Cell::new(0) }
    }

    /// Returns `true` if a message waits.
    ///
    /// It is one load of a line that stays in this processor's cache until the sender writes it.
    #[inline]
    pub fn waits(&self) -> bool {
        let position = self.next.get();
        self.ring.holds(position)
    }

    /// Takes the next message. It comes from the peer and is unchecked.
    #[inline]
    pub fn take(&self) -> Option<SlotMessage> {
        let mut image = SlotMessage::new(0, 0, 0);
        self.take_into(&mut image).then_some(image)
    }

    /// Takes the next message into `image`. Returns `false` if there is none.
    ///
    /// Values that the message does not have stay as they were.
    #[inline]
    pub fn take_into(&self, image: &mut SlotMessage) -> bool {
        let position = self.next.get();
        if !self.ring.read(position, image) {
            return false;
        }
        self.next.set(position + 1);
        true
    }

    /// Prefetches the line of the message `after_next` places after the next one.
    ///
    /// This helps if the message is there or nearly so. Otherwise its line must be taken from the
    /// sender twice.
    #[inline]
    pub fn prefetch(&self, after_next: u64) {
        self.ring.prefetch(self.next.get() + after_next);
    }
}

/// The receiving end, for several processors of one domain.
///
/// None waits for another: a processor that loses the race for a message goes on to something else.
#[derive(Debug)]
pub struct SharedReceiver<S> {
    ring: SlotRing<S>,
    next: AtomicU64,
}

impl<S: Deref<Target = [Slot]>> SharedReceiver<S> {
    /// The receiving end of a new ring, from which nothing was taken yet.
    ///
    /// # Panics
    /// The number of slots is not a power of two.
    pub fn new(slots: S) -> Self {
        Self { ring: SlotRing::new(slots), next: AtomicU64::new(0) }
    }

    /// Returns `true` if a message waits.
    ///
    /// It is one load of a line that stays in this processor's cache until the sender writes it.
    #[inline]
    pub fn waits(&self) -> bool {
        let position = self.next.load(Ordering::Relaxed);
        self.ring.holds(position)
    }

    /// Takes the next message into `image`.
    ///
    /// Returns `false` if there is none, or if another processor was faster.
    ///
    /// The copy is made first and claimed then. The sender writes the slot again only after this
    /// message's reply, hence only after some processor claimed the message. So a copy that could
    /// be torn is one whose claim fails.
    #[inline]
    pub fn take(&self, image: &mut SlotMessage) -> bool {
        let position = self.next.load(Ordering::Relaxed);
        if !self.ring.read(position, image) {
            return false;
        }
        self.ring.prefetch(position + 2);
        // AcqRel: what the winner of a position did to private state happens before the next
        // position is won.
        self.next
            .compare_exchange(position, position + 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes the next message into `image` without a locked operation.
    ///
    /// The caller knows that no other processor takes at the same time.
    #[inline]
    pub fn take_alone(&self, image: &mut SlotMessage) -> bool {
        let position = self.next.load(Ordering::Relaxed);
        if !self.ring.read(position, image) {
            return false;
        }
        self.ring.prefetch(position + 2);
        self.next.store(position + 1, Ordering::Relaxed);
        true
    }

    /// Number of messages taken.
    ///
    /// Loads after this see what came before the last message was taken.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn slots(depth: usize) -> Arc<[Slot]> {
        (0..depth).map(|_| Slot::default()).collect()
    }

    /// More laps than a slot's lap number can count. Miri, which takes a minute for that, runs
    /// fewer.
    const LAPS: u64 = if cfg!(miri) { 300 } else { 70_000 };

    #[test]
    fn messages_come_in_order_over_many_laps() {
        let ring = slots(4);
        let (sender, receiver) = (RingSender::new(ring.clone()), RingReceiver::new(ring));
        for round in 0..LAPS {
            let burst = round % 5;
            for i in 0..burst.min(4) {
                sender.send(&SlotMessage::new(round as u16, i as u16, 0));
            }
            for i in 0..burst.min(4) {
                let image = receiver.take().unwrap();
                assert_eq!((image.call(), image.tag()), (round as u16, i as u16));
            }
            assert!(receiver.take().is_none());
        }
    }

    #[test]
    #[should_panic(expected = "power of two")]
    fn an_odd_depth_is_refused() {
        RingSender::new(slots(3));
    }
}
