//! The contenders of the suite `messages`, and their programs.

use std::path::Path;

use crate::built::{self, PeersError};
use crate::case::Mode;
use crate::peers::Peer;
use crate::programs::Programs;

/// The program that answers to `bench-messages NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// The program that runs the benchmark.
    Own,
    /// `upcall-message-peers`: Rust libraries.
    Rust,
    /// `upcall-ucx`.
    Ucx,
    /// `upcall-openmpi`. Open MPI's own command starts both sides together, because processes that
    /// were started separately do not share memory by it.
    OpenMpi,
}

/// A contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// Name in records and on the command line.
    pub name: &'static str,
    /// The program that contains it.
    pub program: Program,
    /// How it waits for messages by default.
    pub mode: Mode,
}

const fn contender(name: &'static str, program: Program) -> Contender {
    Contender { name, program, mode: Mode::Polling }
}

/// The floor.
pub const LIMIT: Contender = contender("limit", Program::Own);

/// Upcall. Each entry has its end in `bench/command/src/messages.rs`, and its row in the table
/// there.
pub const OURS: [Contender; 1] = [contender("upcall", Program::Own)];

/// The peers.
pub const PEERS: [Contender; 4] = [
    contender("ucx-am", Program::Ucx),
    contender("ucx-tag", Program::Ucx),
    contender("openmpi", Program::OpenMpi),
    contender("iceoryx2", Program::Rust),
];

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
/// None: every contender may be missing.
pub(super) fn programs(
    contenders: &mut Vec<Contender>,
    own: &Path,
) -> Result<Programs<Program>, PeersError> {
    let build = |program| match program {
        Program::Own => Ok(own.to_owned()),
        Program::Rust => built::message_peers(own),
        Program::Ucx => built::ucx(own),
        Program::OpenMpi => built::open_mpi(own),
    };
    let of = |contender: &Contender| (contender.program, contender.name);
    Programs::of(contenders, of, build, |_, _| true)
}
