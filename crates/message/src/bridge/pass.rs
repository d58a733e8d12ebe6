//! Passes: how a member knows that the leader has admitted a late member that connects to it, and
//! how the leader knows that it has invited a process that applies.
//!
//! # Design
//! - The leader draws a random key. It derives a *member key* for each member, and gives it to the
//!   member with the list of members.
//! - A late member gets a *pass* for each member to which it connects: a code of its rank under the
//!   key of that member (HMAC-SHA256). It shows each pass to that member only.
//! - The leader makes an [`Invitation`] for each batch of ranks that it expects: a code of these
//!   ranks and of the batch's number, under its own key. So it checks an applicant without a list
//!   of secrets, and an invitation to a batch that was given up is good for no other one.
//! - So a member checks a rank by itself. Nothing has to be announced, and no order of arrival
//!   matters. A member knows passes for itself and, if it joined late, for its own rank. Neither
//!   opens a pair for another rank with another member.
//!
//! Passes travel on the links between members: protected between hosts, and to processes of this
//! user within a host.

use crate::Rank;
use crate::invitation::Invitation;
use ring::hmac::{HMAC_SHA256, Key, sign, verify};
use std::io;
use std::ops::Range;
use upcall_os::random;

/// Length of a key and of a pass, in bytes.
const LENGTH: usize = 32;

/// The key under which passes for one member are made.
pub(super) type MemberKey = [u8; LENGTH];

/// What a late member shows to one member.
pub(super) type Pass = [u8; LENGTH];

/// Makes the keys and passes of a group: the leader has it.
pub(super) struct PassIssuer(MemberKey);

impl PassIssuer {
    /// Makes passes that no process can guess.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub(super) fn new() -> io::Result<Self> {
        random::bytes().map(Self)
    }

    /// The key of a member.
    pub(super) fn key_of(&self, member: Rank) -> MemberKey {
        code(&self.0, member)
    }

    /// The invitation to a batch with these ranks.
    pub(super) fn invitation(&self, ranks: &Range<Rank>, batch: u64) -> Invitation {
        Invitation(code_of(&self.0, &bytes_of_batch(ranks, batch)))
    }

    /// Returns `true` if this is the invitation to the batch.
    ///
    /// Takes as long for any invitation.
    pub(super) fn invites(&self, ranks: &Range<Rank>, batch: u64, shown: &Invitation) -> bool {
        let key = Key::new(HMAC_SHA256, &self.0);
        verify(&key, &bytes_of_batch(ranks, batch), &shown.0).is_ok()
    }

    /// The pass that a late member shows to a member.
    pub(super) fn pass(&self, late: Rank, member: Rank) -> Pass {
        code(&self.key_of(member), late)
    }
}

/// What the leader has given to this member.
pub(super) struct Passes {
    /// The key of this member.
    pub(super) own: MemberKey,
    /// By rank: the passes that this member shows to others. Empty if it is one of the first.
    pub(super) shown: Vec<Option<Pass>>,
}

impl Passes {
    /// Returns `true` if the leader has admitted a member with this rank, which shows this pass.
    pub(super) fn admit(&self, late: Rank, pass: &Pass) -> bool {
        verify(&Key::new(HMAC_SHA256, &self.own), &bytes_of(late), pass).is_ok()
    }

    /// The pass that this member shows to another one.
    pub(super) fn shown_to(&self, member: Rank) -> Option<Pass> {
        self.shown.get(member).copied().flatten()
    }
}

fn code(key: &MemberKey, rank: Rank) -> [u8; LENGTH] {
    code_of(key, &bytes_of(rank))
}

fn code_of(key: &MemberKey, bytes: &[u8]) -> [u8; LENGTH] {
    let code = sign(&Key::new(HMAC_SHA256, key), bytes);
    let mut bytes = [0; LENGTH];
    bytes.copy_from_slice(code.as_ref());
    bytes
}

fn bytes_of(rank: Rank) -> [u8; 8] {
    (rank as u64).to_le_bytes()
}

/// The bytes of a batch are longer than those of a rank: no code of one is a code of the other.
fn bytes_of_batch(ranks: &Range<Rank>, batch: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    let all = [ranks.start as u64, ranks.end as u64, batch];
    for (bytes, one) in bytes.chunks_exact_mut(8).zip(all) {
        bytes.copy_from_slice(&one.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_good_for_one_rank_at_one_member() {
        let issuer = PassIssuer::new().unwrap();
        let member = Passes { own: issuer.key_of(1), shown: Vec::new() };
        assert!(member.admit(5, &issuer.pass(5, 1)));
        assert!(!member.admit(6, &issuer.pass(5, 1)), "another rank");
        assert!(!member.admit(5, &issuer.pass(5, 2)), "another member");
        assert!(!member.admit(5, &PassIssuer::new().unwrap().pass(5, 1)), "another group");
        assert!(!member.admit(5, &issuer.key_of(1)) && !member.admit(5, &[0; LENGTH]));
        assert_eq!(member.shown_to(0), None);
    }

    #[test]
    fn an_invitation_is_good_for_one_batch() {
        let issuer = PassIssuer::new().unwrap();
        let invitation = issuer.invitation(&(1..3), 7);
        assert!(issuer.invites(&(1..3), 7, &invitation));
        for (ranks, batch) in [(1..3, 8), (1..4, 7), (2..3, 7), (1..2, 7)] {
            assert!(!issuer.invites(&ranks, batch, &invitation), "{ranks:?}, {batch}");
        }
        assert!(!PassIssuer::new().unwrap().invites(&(1..3), 7, &invitation), "another group");
        for known in [issuer.key_of(1), issuer.pass(1, 3), [0; LENGTH]] {
            assert!(!issuer.invites(&(1..3), 7, &Invitation(known)));
        }
    }
}
