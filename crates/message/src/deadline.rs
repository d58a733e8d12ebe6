//! How long a sender waits.

use crate::far::RoomWait;
use std::time::Instant;

/// How long a sender waits for room.
#[derive(Clone, Copy)]
pub(crate) enum SendDeadline {
    None,
    Until(Instant),
    Endless,
}

impl SendDeadline {
    /// Whether the sender waits before a long message goes through the queue.
    pub(crate) fn for_room(self) -> RoomWait {
        match self {
            Self::None | Self::Until(_) => RoomWait::Never,
            Self::Endless => RoomWait::Shortly,
        }
    }

    /// Returns `true` if the sender waits no longer.
    pub(crate) fn is_over(self) -> bool {
        match self {
            Self::None => true,
            Self::Until(end) => Instant::now() >= end,
            Self::Endless => false,
        }
    }
}
