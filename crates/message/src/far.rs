//! Members on other hosts, as the code of one host sees them. [`crate::bridge`] implements them.

use crate::Rank;
use crate::error::ExpectError;
use crate::invitation::{Invitation, InvitedHost};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use upcall_os::doorbell::Doorbell;
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_shm::span::WritableSpan;

/// Length from which messages are long, in bytes: next to moving them, a system call takes little.
pub(crate) const LONG: usize = 16 << 10;

/// All members on other hosts.
pub(crate) trait FarMembers: fmt::Debug + Send + Sync {
    /// Expects the members with these ranks to join from now on, from this host.
    ///
    /// # Errors
    /// See [`ExpectError`].
    fn expect(&self, ranks: Range<Rank>, from: InvitedHost) -> Result<Invitation, ExpectError>;

    /// Does not expect them any more.
    fn expect_no_more(&self, ranks: &Range<Rank>);

    /// Ends what this member has in common with these members, also if they have not joined yet.
    fn expel(&self, ranks: &Range<Rank>);

    /// The way to a member; `None` if it is on this host.
    fn of(&self, rank: Rank) -> Option<Arc<dyn FarMember>>;

    /// Leaves them.
    ///
    /// # Blocking
    /// Until they have all that was sent to them, for as long as a cut may last.
    fn leave(&self);
}

/// The way to a member on another host.
pub(crate) trait FarMember: fmt::Debug + Send + Sync {
    /// Takes over the receiving end of the queue in which this member sends to it.
    ///
    /// The arguments are descriptors of the queue's memory and of its doorbell.
    ///
    /// # Errors
    /// This process lacks a resource for it.
    fn carry(&self, queue: BorrowedFd<'_>, doorbell: BorrowedFd<'_>) -> io::Result<CarriedQueue>;

    /// To be called after each message and report in the queue.
    fn launched(&self, safe_doorbell: &SafeDoorbell, doorbell: &Doorbell);

    /// Sends a long message past the queue, after what waits there, if the receiver has room.
    ///
    /// `write` writes the payload, all of `len` bytes. The sender then counts the message in the
    /// queue. With [`RoomWait::Shortly`] it waits for room, but not longer than the receiver takes
    /// for a few messages.
    fn send_past(
        &self,
        message: (u16, usize),
        wait: RoomWait,
        write: &mut dyn FnMut(WritableSpan<'_>),
    ) -> SentPast;

    /// To be called while this member waits for room in the queue.
    fn make_room(&self);

    /// The same as [`launched`](Self::launched) in an interrupt: takes no lock and allocates
    /// nothing.
    fn launched_in_interrupt(&self, safe_doorbell: &SafeDoorbell, doorbell: &Doorbell);

    /// Maximum length of a message, in bytes.
    fn most(&self) -> usize;

    /// Returns `true` if it has ended.
    fn has_ended(&self) -> bool;

    /// Returns `false` if it is to join later, and has not.
    fn has_joined(&self) -> bool;
}

/// Whether a sender waits for room before a message goes through the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoomWait {
    Never,
    Shortly,
}

/// Whether a message has gone past the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentPast {
    Yes,
    /// It has to go through the queue.
    No,
}

/// The result of [`FarMember::carry`].
pub(crate) enum CarriedQueue {
    /// What is in the queue is sent.
    Yes,
    /// The member has ended.
    Ended,
    /// The member has not joined yet.
    Absent,
}
