//! The cases of the suite `hosts`, and the systems that run them.

use std::fmt;
use std::path::Path;

use crate::built::{self, PeersError};
use crate::peers::Peer;
use crate::programs::Programs;

/// A measurement between two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// A call without argument and result.
    Null,
    /// The same number of null calls as in [`Case::SmallBesideLarge`], with nothing beside them.
    SmallAlone,
    /// Null calls while large arguments go to the same server, one after another.
    SmallBesideLarge,
    /// A call with an argument of 1 MiB, which the client writes and the server reads on each call.
    In1m,
    /// A bind and a first call without a ticket of an earlier connection, so that both sides prove
    /// themselves.
    Connect,
    /// A bind and a first call with a ticket of an earlier connection.
    Resume,
    /// A message of 8 bytes between members of a group, and the answer to it.
    MessageRound,
    /// A message of 8 bytes, of many that one member sends to the other one.
    Message8,
    /// A message of 64 KiB, of many.
    Message64k,
    /// A connection without calls. The figure is the processor time of both sides, in nanoseconds
    /// per second.
    Idle,
}

/// Length of the argument in [`Case::In1m`], in bytes.
pub const MIB: usize = 1 << 20;

/// Length of the large argument, in bytes: 256 MiB, with 4 KiB left for what a system puts before
/// it. 256 MiB is the most that one message of Upcall holds.
pub const LARGE: usize = (256 << 20) - (4 << 10);

/// Length of a long message, in bytes.
pub const KIB64: usize = 64 << 10;

impl Case {
    /// Every case, in the order of the report.
    pub const ALL: [Case; 10] = [
        Case::Null,
        Case::SmallAlone,
        Case::SmallBesideLarge,
        Case::In1m,
        Case::Connect,
        Case::Resume,
        Case::MessageRound,
        Case::Message8,
        Case::Message64k,
        Case::Idle,
    ];

    /// The name in records and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Case::Null => "null",
            Case::SmallAlone => "small-alone",
            Case::SmallBesideLarge => "small-beside-large",
            Case::In1m => "in-1m",
            Case::Connect => "connect",
            Case::Resume => "resume",
            Case::MessageRound => "message-round",
            Case::Message8 => "message-8",
            Case::Message64k => "message-64k",
            Case::Idle => "idle",
        }
    }

    /// The command to the client ([`super::child`]); `None` where it does nothing.
    pub fn command(self, quick: bool) -> Option<String> {
        let (millis, calls, large, binds) =
            if quick { (20, 100, 1 << 20, 3) } else { (200, 10_000, LARGE, 25) };
        let (large_batch, small_batch) = if quick { (1000, 16) } else { (40_000, 256) };
        match self {
            Case::Null | Case::In1m | Case::MessageRound => Some(format!("time {self} {millis}")),
            Case::Message8 => Some(format!("messages 8 {large_batch} {binds}")),
            Case::Message64k => Some(format!("messages {KIB64} {small_batch} {binds}")),
            Case::SmallAlone => Some(format!("small {calls} 0")),
            Case::SmallBesideLarge => Some(format!("small {calls} {large}")),
            Case::Connect | Case::Resume => Some(format!("{self} {binds}")),
            Case::Idle => None,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The program that answers to `bench-hosts NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// The program that runs the benchmark.
    Own,
    /// `upcall-host-peers`, which has the heavy dependencies.
    Peers,
}

/// A system that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// Name in records and on the command line.
    pub name: &'static str,
    /// The program that contains it.
    pub program: Program,
    /// Port of its server.
    pub port: u16,
    /// The cases that it has no part in.
    lacks: &'static [Case],
}

/// The least that the same bytes take: bare TCP for small calls, and rustls over it with the same
/// identities for all other cases.
pub const LIMIT: Contender = Contender {
    name: "limit",
    program: Program::Own,
    port: 7700,
    lacks: &[Case::Idle, Case::Message8],
};

/// Upcall.
pub const UPCALL: Contender =
    Contender { name: "upcall", program: Program::Own, port: 7710, lacks: &[] };

/// The cases of groups, of which the peers have none.
const MESSAGES: [Case; 3] = [Case::MessageRound, Case::Message8, Case::Message64k];

/// The peers. `capnproto` is in the clear, so nothing of it can be resumed.
pub const PEERS: [Contender; 2] = [
    Contender { name: "grpc", program: Program::Peers, port: 7720, lacks: &MESSAGES },
    Contender {
        name: "capnproto",
        program: Program::Peers,
        port: 7730,
        lacks: &[Case::Resume, MESSAGES[0], MESSAGES[1], MESSAGES[2]],
    },
];

impl Contender {
    /// Returns `true` if it runs a case.
    pub fn takes_part(&self, case: Case) -> bool {
        !self.lacks.contains(&case)
    }
}

impl Peer for Contender {
    const ALL: &'static [Contender] = &PEERS;

    fn name(&self) -> &'static str {
        self.name
    }
}

/// Finds the programs of `contenders`, and removes the contenders without one. `own` is the running
/// program.
///
/// # Errors
/// None: every peer may be missing.
pub(super) fn programs(
    contenders: &mut Vec<Contender>,
    own: &Path,
) -> Result<Programs<Program>, PeersError> {
    let build = |program| match program {
        Program::Own => Ok(own.to_owned()),
        Program::Peers => built::host_peers(own),
    };
    Programs::of(contenders, |one| (one.program, one.name), build, |_, _| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_has_a_command_unless_nothing_is_called() {
        let commands = Case::ALL.map(|case| case.command(true));
        assert_eq!(commands[0].as_deref(), Some("time null 20"));
        assert_eq!(commands.last(), Some(&None));
        assert!(UPCALL.takes_part(Case::Idle) && !LIMIT.takes_part(Case::Idle));
    }
}
