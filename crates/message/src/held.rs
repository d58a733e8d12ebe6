//! Messages that are held where they lie, for languages in which no closure bounds how long one is
//! looked at.
//!
//! While one is held its sender's queue is as it is within [`Group::receive`]: nobody looks at it,
//! and what lies behind waits. The message has its memory ([`ReceivedMessage`]), so that what still
//! looks at it when it is over finds it mapped, also if the queue, the group, or the thread is no
//! more.

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

/// A message where it lies, to be read by any thread. Its memory stays mapped as long as this
/// lives; but once the [`Held`] that it comes from has been dropped, it is the sender's again.
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
    /// Who has sent it.
    pub fn from(&self) -> Rank {
        self.from
    }

    /// The place of its kind among those that were registered, by its sender's word.
    pub fn kind(&self) -> u16 {
        self.kept.handler()
    }

    /// What it carries: [`Message::payload`].
    pub fn payload(&self) -> Span<'_> {
        self.kept.payload()
    }
}

/// A message that is held; dropped, it is disposed of, or stays the next one of its sender.
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
        // Of a group that was left nothing is taken any more.
        let Some(group) = self.group.upgrade().map(Group) else { return };
        let _busy = group.busy();
        if self.inbound.let_go() {
            group.let_go(&self.inbound, self.takes.then_some(&self.lying.kept));
        }
    }
}

impl Group {
    /// Takes the next message that may be what its kind carries, as `fits` says, and holds it where
    /// it lies until what this gives is dropped; then it is disposed of. One that does not fit is a
    /// violation, and the next one is taken. Meanwhile nothing else of the same sender is
    /// taken. If the group is left meanwhile the message is not disposed of, and stays readable.
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

    /// A message is held no longer, and disposed of if it is given.
    fn let_go(
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
        // What came meanwhile, and lies behind it, is told of at the end of this.
        if self.0.mask.is_on() {
            self.0.mask.note();
        }
    }
}
