//! Who takes part, and in which program each one lives.

use std::path::Path;

use crate::built::{self, PeersError};
use crate::case::Mode;
use crate::peers::Peer;
use crate::programs::Programs;

/// Which program answers to `bench-messages NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// The program that runs the benchmark.
    Own,
    /// `upcall-message-peers`: libraries in Rust.
    Rust,
    /// `upcall-ucx`.
    Ucx,
    /// `upcall-openmpi`, whose two sides are started by Open MPI's own command, together: processes
    /// that were started each by itself do not share memory by it.
    OpenMpi,
}

/// One that takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// Its name in records and on the command line.
    pub name: &'static str,
    /// Where it lives.
    pub program: Program,
    /// How it waits for messages, by default.
    pub mode: Mode,
}

const fn contender(name: &'static str, program: Program) -> Contender {
    Contender { name, program, mode: Mode::Polling }
}

/// The floor.
pub const LIMIT: Contender = contender("limit", Program::Own);

/// Ours. Each has its end in `bench/command/src/messages.rs`, and its row in the table there.
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

/// The programs of `contenders`. Those without a program are taken out. `own` is the running
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
