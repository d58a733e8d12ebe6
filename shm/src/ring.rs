//! A ring of slots: one direction of a lane, without locks and without shared indices.
//!
//! Source: URPC's bidirectional shared-memory queue (section 3.2.1), with the locks taken away: the paper's rule that nobody ever spins on a
//! busy queue is kept by having no queue that can be busy. Each side counts for itself; a slot says by its lap whether it holds
//! the message of that count. The receiver reads in order.
//!
//! # Why a ring cannot overflow
//! A lane of depth N has at most N calls outstanding; the caller keeps count. Request p goes to slot p mod N. When it is
//! written, fewer than N calls are outstanding, so of the N calls before it at least one, say q, has its reply. The server takes requests in order, so
//! it has taken p − N ≤ q, and had copied it out before it replied. Replies: each answers a request, and a new request is sent only after a reply was
//! taken, so at most N replies are untaken. A peer that breaks this garbles its own lane; every value is checked after it was copied.

use crate::slot::{Image, Slot};
use std::cell::Cell;
use std::ops::Deref;
use upcall_os::atomic::{AtomicU64, Ordering};

#[inline]
fn lap(position: u64, depth: usize) -> u16 {
    // Depth is a power of two, so this is a shift.
    (position / depth as u64 + 1) as u16
}

#[inline]
fn slot(slots: &[Slot], position: u64) -> &Slot {
    &slots[position as usize & (slots.len() - 1)]
}

fn checked<S: Deref<Target = [Slot]>>(slots: S) -> S {
    assert!(slots.len().is_power_of_two(), "a ring's depth is a power of two, not {}", slots.len());
    slots
}

/// The sending end, for one sender.
#[derive(Debug)]
pub struct Sender<S> {
    slots: S,
    next: Cell<u64>,
}

impl<S: Deref<Target = [Slot]>> Sender<S> {
    /// The sending end of a ring that nothing was sent through yet.
    ///
    /// # Panics
    /// The number of slots is not a power of two.
    pub fn new(slots: S) -> Self {
        Self { slots: checked(slots), next: Cell::new(0) }
    }

    /// Sends a message. Never blocks; the caller keeps within the depth (see the module).
    #[inline]
    pub fn send(&self, image: &Image) {
        let position = self.next.get();
        self.next.set(position + 1);
        slot(&self.slots, position).write(image, lap(position, self.slots.len()));
    }

    /// How many messages fit.
    pub fn depth(&self) -> usize {
        self.slots.len()
    }
}

/// The sending end, for several senders of one domain. They do not wait for each other; the receiver takes their messages in the order in which they
/// reserved, so one that is held up between reserving and publishing (some ten instructions) delays those behind it.
#[derive(Debug)]
pub struct SharedSender<S> {
    slots: S,
    next: AtomicU64,
}

impl<S: Deref<Target = [Slot]>> SharedSender<S> {
    /// The sending end of a ring that nothing was sent through yet.
    ///
    /// # Panics
    /// The number of slots is not a power of two.
    pub fn new(slots: S) -> Self {
        Self { slots: checked(slots), next: AtomicU64::new(0) }
    }

    /// Sends a message. Never blocks.
    #[inline]
    pub fn send(&self, image: &Image) {
        let position = self.next.fetch_add(1, Ordering::Relaxed);
        slot(&self.slots, position).write(image, lap(position, self.slots.len()));
    }

    /// How many messages were sent, or are about to be.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct Receiver<S> {
    slots: S,
    next: Cell<u64>,
}

impl<S: Deref<Target = [Slot]>> Receiver<S> {
    /// The receiving end of a ring that nothing was taken from yet.
    ///
    /// # Panics
    /// The number of slots is not a power of two.
    pub fn new(slots: S) -> Self {
        Self { slots: checked(slots), next: Cell::new(0) }
    }

    /// Whether a message waits. One load of a line that stays in this processor's cache until the sender writes it.
    #[inline]
    pub fn waits(&self) -> bool {
        let position = self.next.get();
        slot(&self.slots, position).holds(lap(position, self.slots.len()))
    }

    /// Takes the next message. What it says is the peer's word: nothing of it has been checked.
    #[inline]
    pub fn take(&self) -> Option<Image> {
        let position = self.next.get();
        let image = slot(&self.slots, position).read(lap(position, self.slots.len()))?;
        self.next.set(position + 1);
        // Under load the next message is there or soon will be; its line can travel while this one is worked on.
        slot(&self.slots, position + 2).prefetch();
        Some(image)
    }
}

/// The receiving end, for several processors of one domain. None waits for another: who loses the race for a message goes on to
/// something else.
#[derive(Debug)]
pub struct SharedReceiver<S> {
    slots: S,
    next: AtomicU64,
}

impl<S: Deref<Target = [Slot]>> SharedReceiver<S> {
    /// The receiving end of a ring that nothing was taken from yet.
    ///
    /// # Panics
    /// The number of slots is not a power of two.
    pub fn new(slots: S) -> Self {
        Self { slots: checked(slots), next: AtomicU64::new(0) }
    }

    /// Whether a message waits. One load of a line that stays in this processor's cache until the sender writes it.
    #[inline]
    pub fn waits(&self) -> bool {
        let position = self.next.load(Ordering::Relaxed);
        slot(&self.slots, position).holds(lap(position, self.slots.len()))
    }

    /// Takes the next message; `None` if there is none, or another processor was faster.
    ///
    /// The copy is made first and claimed then. The sender writes the slot again only after this message's reply, hence only after somebody claimed it; so a
    /// copy that could be torn is one whose claim fails.
    #[inline]
    pub fn take(&self) -> Option<Image> {
        let position = self.next.load(Ordering::Relaxed);
        let image = slot(&self.slots, position).read(lap(position, self.slots.len()))?;
        slot(&self.slots, position + 2).prefetch();
        // Acquire, release: what the winner of position n did to private state happens before the winner of n + 1.
        let claim = self.next.compare_exchange(position, position + 1, Ordering::AcqRel, Ordering::Relaxed);
        claim.is_ok().then_some(image)
    }

    /// How many messages were taken.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn slots(depth: usize) -> Arc<[Slot]> {
        (0..depth).map(|_| Slot::default()).collect()
    }

    #[test]
    fn messages_come_in_order_over_many_laps() {
        let ring = slots(4);
        let (sender, receiver) = (Sender::new(ring.clone()), Receiver::new(ring));
        for round in 0..70_000u64 {
            let burst = round % 5;
            for i in 0..burst.min(4) {
                sender.send(&Image::new(round as u16, i as u16, 0));
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
        Sender::new(slots(3));
    }
}
