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
    /// It has broken the protocol: it named an unknown kind of message, or sent a payload that its
    /// kind does not carry (UDM: protection-violation). No more messages of it are taken.
    Violation {
        /// The member.
        rank: Rank,
        /// How it broke the protocol.
        what: String,
    },
}
