//! The contenders: their names, their programs, and the settings in which each runs.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::built::{self, PeersError};
use crate::case::{Mode, Placement};
use crate::peers::Peer;
use crate::programs::Programs;

/// The program that answers to `bench-child NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// The program that runs the benchmark.
    Own,
    /// `upcall-peers`, which has the heavy dependencies.
    Peers,
    /// `upcall-grpc-cpp`, which needs a library that cargo does not bring.
    GrpcCpp,
}

/// How a system treats data from a peer, which may be hostile. This follows from the system's
/// design and is not measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// The kernel copies each message, so the peer cannot change it during decoding.
    Copied,
    /// The peer can write at any time, and each word is checked where it is read. Upcall:
    /// docs/requirements.md lists the tests under U3.
    Checked,
    /// The peer can write at any time and is trusted. The limits do only what takes time.
    ///
    /// iceoryx2 adds an offset from its queue to the address of a segment without a bounds check
    /// (`data_segment.rs` of 0.10.0). shmipc compares offset and length with a bound by a 32-bit
    /// sum that may overflow (`manager.rs` of 0.2.1).
    Believed,
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Trust::Copied => "copied",
            Trust::Checked => "checked",
            Trust::Believed => "trusted",
        })
    }
}

/// A system that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// Name in records and on the command line.
    pub name: &'static str,
    /// The program that contains it.
    pub program: Program,
    /// How it treats data from a peer.
    pub trust: Trust,
    /// How its servers can wait.
    modes: &'static [Mode],
    /// `true` for a bare hand-off, which has both sides on one processor in either placement.
    pub hand_off: bool,
    /// Maximum number of calls that it can have outstanding.
    pub outstanding: usize,
    /// `true` if its binds are measured: it distinguishes a bind that opens a channel from later
    /// ones.
    pub binds: bool,
}

const fn contender(name: &'static str, program: Program, modes: &'static [Mode]) -> Contender {
    let trust = Trust::Copied;
    Contender {
        name,
        program,
        trust,
        modes,
        hand_off: false,
        outstanding: usize::MAX,
        binds: false,
    }
}

const fn hand_off(name: &'static str) -> Contender {
    let limit = contender(name, Program::Own, &[Mode::Parked]);
    Contender { trust: Trust::Believed, hand_off: true, outstanding: 1, ..limit }
}

/// The limits, in the order of the report.
pub const LIMITS: [Contender; 5] = [
    Contender { trust: Trust::Believed, ..contender("limit", Program::Own, &[Mode::Polling]) },
    hand_off("limit-futex"),
    hand_off("limit-eventfd"),
    hand_off("limit-pipe"),
    hand_off("limit-socket"),
];

/// Upcall.
pub const UPCALL: Contender = Contender {
    trust: Trust::Checked,
    binds: true,
    ..contender("upcall", Program::Own, &[Mode::Polling, Mode::Parked])
};

/// The peers. A peer whose server has no polling mode is measured only in `parked`.
pub const PEERS: [Contender; 9] = [
    contender("unix-socket", Program::Own, &[Mode::Parked]),
    Contender {
        trust: Trust::Believed,
        ..contender("iceoryx2", Program::Peers, &[Mode::Polling, Mode::Parked])
    },
    Contender {
        trust: Trust::Believed,
        outstanding: 1,
        ..contender("shmipc", Program::Peers, &[Mode::Parked])
    },
    contender("ipc-channel", Program::Peers, &[Mode::Parked]),
    contender("capnproto", Program::Peers, &[Mode::Parked]),
    contender("grpc", Program::Peers, &[Mode::Parked]),
    contender("grpc-c++", Program::GrpcCpp, &[Mode::Parked]),
    contender("zeromq", Program::Peers, &[Mode::Parked]),
    contender("tarpc", Program::Peers, &[Mode::Parked]),
];

impl Peer for Contender {
    const ALL: &'static [Contender] = &PEERS;

    fn name(&self) -> &'static str {
        self.name
    }
}

/// Returns the programs of `contenders`, and removes the C++ peers if their library is missing.
/// `own` is the running program.
///
/// # Errors
/// The program of most peers is missing, or no program is left.
pub(crate) fn programs(
    contenders: &mut Vec<Contender>,
    own: &Path,
) -> Result<Programs<Program>, PeersError> {
    let build = |program| match program {
        Program::Own => Ok(own.to_owned()),
        Program::Peers => built::peers(own),
        Program::GrpcCpp => built::grpc_cpp(own),
    };
    let may_miss = |program, rest: &[Contender]| program == Program::GrpcCpp && !rest.is_empty();
    Programs::of(contenders, |contender| (contender.program, contender.name), build, may_miss)
}

impl Contender {
    /// Returns `true` if it runs with a server that waits in this mode.
    pub fn runs(&self, mode: Mode) -> bool {
        self.modes.contains(&mode)
    }

    /// Returns the processors of server and client, out of all processors of the run.
    pub fn processors(&self, placement: Placement, all: &[usize]) -> [Vec<usize>; 2] {
        let first = all.get(..1).unwrap_or_default().to_vec();
        let second = all.get(1..2).map_or_else(|| first.clone(), <[usize]>::to_vec);
        match placement {
            _ if self.hand_off => [first.clone(), first],
            Placement::OneCore => [first.clone(), first],
            Placement::TwoCores => [second, first],
            Placement::Unpinned => [all.to_vec(), all.to_vec()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hand_off_stays_on_one_processor() {
        let all = [3, 5, 7];
        assert_eq!(LIMITS[0].processors(Placement::TwoCores, &all), [[5], [3]]);
        assert_eq!(LIMITS[1].processors(Placement::TwoCores, &all), [[3], [3]]);
        assert_eq!(LIMITS[1].processors(Placement::Unpinned, &all), [[3], [3]]);
        assert_eq!(UPCALL.processors(Placement::OneCore, &all), [[3], [3]]);
        assert_eq!(UPCALL.processors(Placement::Unpinned, &all), [all, all]);
    }
}
