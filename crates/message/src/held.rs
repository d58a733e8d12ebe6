//! Messages that are held in shared memory while they are read.
//!
//! This is for languages in which no closure bounds how long a message is read.
//!
//! While a message is held, its sender's queue is as it is within [`Group::receive`]: no other code
//! reads it, and the messages behind it wait. The message keeps its memory mapped
//! ([`ReceivedMessage`]). So a reader that outlives the hold still finds it mapped, even if the
//! queue, the group, or the thread has gone.

use crate::group::{Group, Membership};
use crate::inbound::Inbound;
use crate::message::Message;
use crate::proto::receiving;
use crate::receiving::Driver;
use crate::{NothingThere, Rank};
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use upcall_os::atomic::AtomicU64;
use upcall_os::fault::{Point, point};
use upcall_shm::direct::ReceivedMessage;
use upcall_shm::region::RegionView;
use upcall_shm::span::Span;

/// A message in shared memory, to be read by any thread.
///
/// Its memory stays mapped while this lives; but once the [`Held`] that it comes from has been
/// dropped, the sender may reuse the memory.
pub struct Lying {
    from: Rank,
    kept: ReceivedMessage<RegionView<[AtomicU64]>>,
}

impl fmt::Debug for Lying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lying({} bytes of member {})", self.payload().len(), self.from)
    }
}

impl Lying {
    /// The sender.
    pub fn from(&self) -> Rank {
        self.from
    }

    /// Index of its kind among the registered kinds, as the sender set it.
    pub fn kind(&self) -> u16 {
        self.kept.handler()
    }

    /// Its payload: [`Message::payload`].
    pub fn payload(&self) -> Span<'_> {
        self.kept.payload()
    }
}

/// A message that is held. When this is dropped, the message is disposed of, or stays the next one
/// of its sender.
pub struct Held {
    group: Weak<Membership>,
    inbound: Rc<Inbound>,
    lying: Arc<Lying>,
    takes: bool,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({:?})", self.lying)
    }
}

impl Held {
    /// The message.
    pub fn lying(&self) -> &Arc<Lying> {
        &self.lying
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // After the group was left, no messages are taken.
        let Some(group) = self.group.upgrade().map(Group) else { return };
        let _busy = group.busy();
        if self.inbound.let_go() {
            group.let_go(&self.inbound, self.takes.then_some(&self.lying.kept));
        }
    }
}

impl Group {
    /// Takes the next message that `fits` its kind, and holds it in shared memory.
    ///
    /// The hold ends when the returned value is dropped; then the message is disposed of. A message
    /// that does not fit is a violation, and the next one is taken. No other message of the same
    /// sender is taken while this one is held. If the group is left during that time, the message
    /// is not disposed of, and stays readable.
    ///
    /// # Errors
    /// [`NothingThere`].
    pub fn receive_held(
        &self,
        fits: impl Fn(&Message<'_, '_>) -> bool,
    ) -> Result<Held, NothingThere> {
        self.hold(true, fits)
    }

    /// Holds the message that [`receive_held`](Self::receive_held) would take, which stays.
    ///
    /// # Errors
    /// [`NothingThere`].
    pub fn peek_held(&self, fits: impl Fn(&Message<'_, '_>) -> bool) -> Result<Held, NothingThere> {
        self.hold(false, fits)
    }

    fn hold(
        &self,
        takes: bool,
        fits: impl Fn(&Message<'_, '_>) -> bool,
    ) -> Result<Held, NothingThere> {
        let _busy = self.busy();
        loop {
            let turn = self.0.senders.turn();
            let (inbound, kind, kept) = self.next(|arrived, inbound| {
                let fits = fits(&Message::new(inbound.from(), &arrived));
                (inbound.clone(), arrived.handler(), fits.then(|| arrived.keep()))
            })?;
            let Some(kept) = kept else {
                self.violates_by(inbound.from(), kind);
                continue;
            };
            if !takes {
                self.0.senders.keep_turn(turn);
            }
            inbound.hold();
            let lying = Arc::new(Lying { from: inbound.from(), kept });
            return Ok(Held { group: Rc::downgrade(&self.0), inbound, lying, takes });
        }
    }

    /// Ends the hold of a message, and disposes of it if it is `taken`.
    pub(crate) fn let_go(
        &self,
        inbound: &Rc<Inbound>,
        taken: Option<&ReceivedMessage<RegionView<[AtomicU64]>>>,
    ) {
        if let (Some(kept), Some(mut queue)) = (taken, inbound.queue()) {
            point(Point::MemberReads);
            if queue.dispose_of(kept) {
                self.0.taken.set(self.0.taken.get() + 1);
                self.has_changed();
            }
        }
        if inbound.has_ended() {
            receiving::nothing_there(&Driver(self), inbound);
        }
        // Messages that came in the meantime, behind this one, are notified at the end of this
        // operation.
        if self.0.mask.is_on() {
            self.0.mask.note();
        }
    }
}
