//! Invitations: what a process shows to join a group that has formed.

use crate::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Length of an invitation, in bytes.
pub(crate) const LENGTH: usize = 32;

/// The secret with which processes join a group that has formed.
///
/// [`Group::expect`](crate::Group::expect) makes an invitation for the ranks that it expects, and
/// their processes show it ([`GroupBuilder::late`](crate::GroupBuilder::late)). It is given to them
/// over a channel that no other process reads: words of a command are none.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation(pub(crate) [u8; LENGTH]);

impl Invitation {
    /// Number of characters of the [text](Self::text).
    pub const TEXT: usize = 2 * LENGTH;

    /// The invitation as hexadecimal digits.
    pub fn text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads what [`text`](Self::text) has written. `None`: the text is no invitation.
    pub fn of_text(text: &str) -> Option<Self> {
        let digit = |at: usize| char::from(text.as_bytes()[at]).to_digit(16);
        if text.len() != Self::TEXT {
            return None;
        }
        let mut bytes = [0; LENGTH];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::try_from(digit(2 * at)? << 4 | digit(2 * at + 1)?).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Invitation(…)")
    }
}

/// The ranks that join together with an invitation.
#[derive(Clone, Debug)]
pub(crate) struct InvitedRanks {
    pub(crate) ranks: Range<Rank>,
    pub(crate) invitation: Invitation,
}

/// The host from which invited processes come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvitedHost {
    /// Any host that is admitted.
    Any,
    /// The host with this proved identity. `None`: this machine, which has no identity.
    Only(Option<String>),
}

impl InvitedHost {
    /// Returns `true` if a process of the host with this identity may come.
    pub(crate) fn admits(&self, identity: Option<&str>) -> bool {
        match self {
            Self::Any => true,
            Self::Only(host) => host.as_deref() == identity,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_is_read_as_it_was_written_and_not_shown() {
        let invitation = Invitation(std::array::from_fn(|at| at as u8 * 7));
        assert_eq!(Invitation::of_text(&invitation.text()), Some(invitation.clone()));
        assert!(!format!("{invitation:?}").contains(&invitation.text()[..8]));
        let text = invitation.text();
        for wrong in ["", &text[1..], &format!("{text}0"), &text.replacen('0', "g", 1)] {
            assert_eq!(Invitation::of_text(wrong), None, "{wrong}");
        }
        assert_eq!(Invitation::of_text(&"é".repeat(LENGTH)), None);
    }

    #[test]
    fn an_invited_host_is_the_one_that_was_proved() {
        let one = InvitedHost::Only(Some("aa".into()));
        assert!(one.admits(Some("aa")) && !one.admits(Some("ab")) && !one.admits(None));
        let here = InvitedHost::Only(None);
        assert!(here.admits(None) && !here.admits(Some("aa")));
        assert!(InvitedHost::Any.admits(None) && InvitedHost::Any.admits(Some("aa")));
    }
}
