//! What a member learns of another one.

use crate::Rank;

/// What happened to another member.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It has ended, or has left the group. All that it had sent was taken before; what was sent to
    /// it may not have been.
    Ended {
        /// The member.
        rank: Rank,
    },
    /// It does not keep to the protocol, or names a kind of message that there is not, or carries
    /// what that kind does not (UDM: protection-violation). Nothing more is taken from it.
    Violation {
        /// The member.
        rank: Rank,
        /// How.
        what: String,
    },
}
