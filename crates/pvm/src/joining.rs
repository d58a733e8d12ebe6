//! Hosts that join a machine by themselves: a scheduler has started `upcall pvm join` there.
//!
//! The host asks the first process for its order, by a petition to the group
//! (`upcall_message::petition`). It gives the token that the machine was started with. The link
//! has proved that it is a trusted host, or a process of this user.
//!
//! The connection may be cut before the answer arrives, and then the host asks again, with the same
//! key. So it gets the order that it had, and no second one. A host may also ask with another key
//! while none of its processes is there: it has lost its first order, and gets another one.
//!
//! The order comes with an invitation (`upcall_message::Invitation`), which is worth something on
//! the host only that has asked, by its proved identity. So no other trusted host takes its place:
//! neither one without the token, nor one with it that asks in the same name.

use crate::error;
use crate::hosts::{MemberOrder, own_name};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// Minimum length of a token, in bytes.
const SHORTEST: usize = 16;

/// Maximum length of a token, in bytes.
const LONGEST: usize = 256;

/// Version of the request and of its answer.
const VERSION: u32 = 3;

/// What a host names its request by. No other host knows it.
pub(crate) type PetitionKey = [u8; 16];

/// A host that joins a machine by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoiningHost {
    /// The address at which the machine's processes meet, HOST:PORT.
    pub rendezvous: String,
    /// The machine's token.
    pub token: String,
    /// The host's name in the machine. `None`: its own.
    pub name: Option<String>,
    /// Number of its processes.
    pub processes: usize,
    /// Time for which the machine is waited for.
    pub within: Duration,
}

/// Checks a text that is to be a machine's token.
///
/// # Errors
/// Describes why it is none.
pub fn check_token(token: &str) -> Result<(), String> {
    let is_plain = token.bytes().all(|byte| byte.is_ascii_graphic());
    match token.len() {
        SHORTEST..=LONGEST if is_plain => Ok(()),
        _ => Err(format!(
            "a token has {SHORTEST} to {LONGEST} characters, without spaces: random ones are best"
        )),
    }
}

/// What a host asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JoinPetition {
    version: u32,
    token: String,
    pub(crate) name: String,
    pub(crate) processes: u32,
    pub(crate) key: PetitionKey,
}

/// Why a petition is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PetitionRefusal {
    /// It cannot be read.
    Malformed,
    Version(u32),
    /// The machine has no token, or another one.
    Token,
}

impl PetitionRefusal {
    pub(crate) fn text(self) -> String {
        match self {
            Self::Malformed => "the request cannot be read".into(),
            Self::Version(version) => format!(
                "the machine speaks version {VERSION} of the protocol, and this command version \
                 {version}: use the same version of Upcall on all hosts"
            ),
            Self::Token => {
                "the machine has another token, or none: give the file that the machine was \
                 started with (--token-file)"
                    .into()
            }
        }
    }
}

impl JoinPetition {
    /// The petition of a host.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub(crate) fn of(host: &JoiningHost) -> io::Result<Vec<u8>> {
        let petition = Self {
            version: VERSION,
            token: host.token.clone(),
            name: host.name.clone().unwrap_or_else(own_name),
            processes: u32::try_from(host.processes).unwrap_or(u32::MAX),
            key: upcall_os::random::bytes()?,
        };
        postcard::to_stdvec(&petition).map_err(io::Error::other)
    }

    /// Reads a petition to the machine with this token.
    ///
    /// # Errors
    /// See [`PetitionRefusal`].
    pub(crate) fn read(bytes: &[u8], token: Option<&str>) -> Result<Self, PetitionRefusal> {
        let (version, _) =
            postcard::take_from_bytes::<u32>(bytes).map_err(|_| PetitionRefusal::Malformed)?;
        if version != VERSION {
            return Err(PetitionRefusal::Version(version));
        }
        let petition: Self = postcard::from_bytes(bytes).map_err(|_| PetitionRefusal::Malformed)?;
        match token {
            Some(token) if are_same(token.as_bytes(), petition.token.as_bytes()) => Ok(petition),
            _ => Err(PetitionRefusal::Token),
        }
    }
}

/// Compares two secrets in a time that does not depend on where they differ.
fn are_same(one: &[u8], other: &[u8]) -> bool {
    let differs = one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other));
    one.len() == other.len() && std::hint::black_box(differs) == 0
}

/// The answer to a petition: the words of the order, and the invitation.
pub(crate) fn answer_of(order: &MemberOrder) -> Vec<u8> {
    // For these types this does not fail.
    postcard::to_stdvec(&(order.words(), &order.invitation)).unwrap_or_default()
}

/// Reads the answer to a petition. `None`: it is none.
pub(crate) fn order_of(answer: &[u8]) -> Option<MemberOrder> {
    let (words, invitation) = postcard::from_bytes::<(Vec<String>, _)>(answer).ok()?;
    MemberOrder::of(&words, invitation)
}

/// The text for a host that cannot come, for PVM's error.
pub(crate) fn refusal_of(code: i32) -> &'static str {
    match code {
        error::DUP_HOST => "the machine has a host with this name: give another one (--name)",
        error::BAD_PARAM => {
            "this is not the name of a host: give letters, digits, dots and hyphens"
        }
        error::OUT_OF_RES => {
            "the machine has no room for as many processes: start it with more (--room)"
        }
        _ => "the machine cannot take in the host now",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_petition_needs_the_token() {
        let token = "0123456789abcdef";
        let of = |version, token: &str| {
            let (token, name) = (token.into(), "b".into());
            let petition = JoinPetition { version, token, name, processes: 2, key: [7; 16] };
            postcard::to_stdvec(&petition).unwrap()
        };
        let read = |bytes: &[u8], token| JoinPetition::read(bytes, token).map(|one| one.processes);
        assert_eq!(read(&of(VERSION, token), Some(token)), Ok(2));
        for (bytes, own, refusal) in [
            (of(VERSION, token), None, PetitionRefusal::Token),
            (of(VERSION, "0123456789abcdeg"), Some(token), PetitionRefusal::Token),
            (of(VERSION, "0123456789abcde"), Some(token), PetitionRefusal::Token),
            (of(VERSION, ""), Some(""), PetitionRefusal::Token),
            (of(7, token), Some(token), PetitionRefusal::Version(7)),
            (vec![VERSION as u8, 9], Some(token), PetitionRefusal::Malformed),
            (Vec::new(), Some(token), PetitionRefusal::Malformed),
        ] {
            // A machine never has an empty token.
            let own = own.filter(|own: &&str| check_token(own).is_ok());
            assert_eq!(read(&bytes, own), Err(refusal));
        }
    }

    #[test]
    fn a_token_is_long_enough_and_has_no_spaces() {
        assert!(check_token("0123456789abcdef").is_ok());
        for wrong in ["", "short", "0123456789 abcdef", "0123456789abcde\n"] {
            assert!(check_token(wrong).is_err());
        }
        assert!(check_token(&"x".repeat(257)).is_err());
    }
}
