//! Who takes part, and in which program each one lives.

use crate::case::Mode;
use crate::peers::Peer;

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
