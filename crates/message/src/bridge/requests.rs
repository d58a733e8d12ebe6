//! The requests on a new connection of another host, and their answers.

use super::pass::{MemberKey, Pass};
use crate::Rank;
use crate::invitation::Invitation;
use crate::member::Roster;
use crate::place::MachineKey;
use crate::wire::{GroupId, Listed, ProcessKey, VERSION, Welcome, pack, unpack};
use serde::{Deserialize, Serialize};
use upcall_net::{FrameBody, FrameHeader, FrameKind, OutMessage, Wire};

/// A request on a new connection.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FarRequest {
    /// To the leader: asks to become a member.
    Apply {
        version: u32,
        group: String,
        size: u32,
        /// Number of members that may join after the group has formed.
        room: u32,
        rank: Option<u32>,
        kinds: Vec<(String, String)>,
        process: ProcessKey,
        socket: String,
        machine: MachineKey,
        /// The port at which it listens, at the address from which it has connected.
        port: u16,
    },
    /// To another member: opens the pair.
    Open {
        version: u32,
        group: GroupId,
        from: u32,
        to: u32,
        /// Number of this attempt to open the pair, from 1.
        attempt: u32,
        /// The port at which a late member listens, at the address from which it has connected.
        port: u16,
        /// Maximum length of a message that the client takes, in bytes.
        most: u64,
        /// What a late member shows to a member that was there before it.
        pass: Option<Pass>,
    },
    /// To the leader of a group that has formed: asks to join it.
    ApplyLate {
        version: u32,
        group: String,
        rank: u32,
        /// Number of members, with those that may join later.
        total: u32,
        kinds: Vec<(String, String)>,
        process: ProcessKey,
        socket: String,
        machine: MachineKey,
        /// The port at which it listens, at the address from which it has connected.
        port: u16,
        /// What the leader has made for the batch of this rank.
        invitation: Invitation,
    },
    /// To the leader of a group that has formed: asks it for something.
    Petition { version: u32, bytes: Vec<u8> },
}

/// The beginning of a request, which is the same in all versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum RequestStart {
    Apply { version: u32 },
    Open { version: u32 },
    ApplyLate { version: u32 },
    Petition { version: u32 },
}

/// Why bytes are no request of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRequest {
    /// They are no request of any version.
    Broken,
    /// The client has another version.
    Version(RequestStart),
}

impl FarRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// See [`NoRequest`].
    pub(super) fn read(bytes: &[u8]) -> Result<Self, NoRequest> {
        let start = postcard::take_from_bytes(bytes).map_err(|_| NoRequest::Broken)?;
        let (start, _): (RequestStart, _) = start;
        let (RequestStart::Apply { version }
        | RequestStart::Open { version }
        | RequestStart::ApplyLate { version }
        | RequestStart::Petition { version }) = start;
        match version {
            VERSION => unpack(bytes).map_err(|_| NoRequest::Broken),
            _ => Err(NoRequest::Version(start)),
        }
    }
}

/// The answer to [`FarRequest::Open`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum PairReply {
    Yes {
        /// Maximum length of a message that the server takes, in bytes.
        most: u64,
    },
    No(String),
    /// The server leaves its group. For the client it has ended.
    Left,
}

/// The leader's answer to a late member.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum LateWelcome {
    Admitted {
        group: GroupId,
        /// By rank. `None`: the member has not joined, or has ended.
        members: Vec<Option<Listed>>,
        /// The key under which later members have their passes for this one.
        key: MemberKey,
        /// By rank: what it shows to the members that were there before it.
        passes: Vec<Option<Pass>>,
    },
    Refused(String),
}

/// The answer to [`FarRequest::Petition`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum PetitionReply {
    Answer(Vec<u8>),
    Refused(String),
}

/// Reads the answer to [`FarRequest::Apply`]. In a group that grows, the member's key follows.
pub(super) fn read_welcome(bytes: &[u8]) -> Result<(Welcome, Option<MemberKey>), String> {
    match unpack(bytes) {
        Ok(both) => Ok(both),
        // A leader of another version sends nothing after its refusal.
        Err(_) => Ok((unpack(bytes)?, None)),
    }
}

/// A request to open a pair. `port`: where this member listens.
pub(super) fn open_request(
    roster: &Roster,
    to: Rank,
    attempt: u32,
    (port, most): (u16, usize),
    pass: Option<Pass>,
) -> Option<OutMessage> {
    let (version, group, from) = (VERSION, roster.group, roster.rank as u32);
    let (to, most) = (to as u32, most as u64);
    let request = FarRequest::Open { version, group, from, to, attempt, port, most, pass };
    let head = FrameHeader { call: 1, ..FrameHeader::of(FrameKind::Ask) };
    let body = FrameBody::from(&*pack(&request).ok()?);
    Some(OutMessage { head, body, owner: None })
}

/// The answer to a request.
pub(super) fn answer_of(call: u32, reply: &impl Serialize) -> Option<OutMessage> {
    let head = FrameHeader { call, ..FrameHeader::of(FrameKind::Answer) };
    let body = FrameBody::from(&*pack(reply).ok()?);
    Some(OutMessage { head, body, owner: None })
}

/// Sends an answer.
pub(super) fn answer(wire: &Wire, call: u32, reply: &impl Serialize) {
    // A connection that has ended needs no answer.
    drop(answer_of(call, reply).and_then(|answer| wire.try_send(0, answer)));
}
