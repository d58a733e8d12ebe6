//! Events that a member receives about other members.

use crate::Rank;

/// What happened to another member.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A member has joined that the group had [room for](crate::GroupBuilder::room_for). The event
    /// comes before its first message.
    Joined {
        /// The member.
        rank: Rank,
    },
    /// It has ended or left the group. All messages that it had sent were taken before; messages to
    /// it may not have been.
    Ended {
        /// The member.
        rank: Rank,
    },
    /// Two other members have lost each other, and both live. On several hosts the link of two
    /// members may be cut for longer than their patience
    /// ([`GroupBuilder::reconnect_within`](crate::GroupBuilder::reconnect_within)), while this
    /// member still reaches both.
    ///
    /// The event comes once for each two members, when both have reported the loss to this member;
    /// for a member of this host, it is enough that the other one has. It does not come if the end
    /// of one of the two is known by then, and that end may still follow. Messages with both go on.
    /// No later barrier, reduction or collective operation holds: see
    /// [`RunError::Parted`](crate::RunError::Parted).
    Parted {
        /// The member with the lower rank.
        one: Rank,
        /// The other member.
        other: Rank,
    },
    /// It has broken the protocol: it named an unknown kind of message, or sent a payload that its
    /// kind does not carry (UDM: protection-violation). No more messages of it are taken.
    Violation {
        /// The member.
        rank: Rank,
        /// How it broke the protocol.
        what: String,
    },
}
