//! The contenders of the suite `threads`, and their programs.

use super::case::Case;
use crate::peers::Peer;

/// The program that answers to `bench-threads NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// The program that runs the benchmark.
    Own,
    /// `upcall-thread-peers`: Rust libraries.
    Rust,
    /// `upcall-boost-fiber`.
    BoostFiber,
    /// `upcall-goroutines`.
    Go,
}

/// A contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// Name in records and on the command line.
    pub name: &'static str,
    /// The program that contains it.
    program: Program,
}

/// The floor.
pub const LIMIT: Contender = Contender { name: "limit", program: Program::Own };

/// Upcall.
pub const UPCALL: Contender = Contender { name: "upcall", program: Program::Own };

/// The peers.
pub const PEERS: [Contender; 5] = [
    Contender { name: "boost-fiber", program: Program::BoostFiber },
    Contender { name: "may", program: Program::Rust },
    Contender { name: "tokio", program: Program::Rust },
    Contender { name: "go", program: Program::Go },
    Contender { name: "pthread", program: Program::Own },
];

impl Peer for Contender {
    const ALL: &'static [Contender] = &PEERS;

    fn name(&self) -> &'static str {
        self.name
    }
}

impl Contender {
    /// The program in which it runs a case, if it takes part; `None` stands for `idle`. Not every
    /// case has an honest floor.
    pub fn program(&self, case: Option<Case>) -> Option<Program> {
        match case {
            // The kernel does not run its threads in turn: with 1000 of them a yield took less than
            // a switch does.
            Some(Case::Yield(3..)) if self.name == "pthread" => None,
            _ if self.name != LIMIT.name => Some(self.program),
            Some(Case::ProcedureCall | Case::LockUnlock) => Some(Program::Own),
            // Bare switches between stacks use a library that only the peers' program has.
            Some(Case::Yield(2) | Case::ForkJoin) => Some(Program::Rust),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_is_where_there_is_one() {
        let floors = Case::TABLE.map(|case| LIMIT.program(Some(case)).is_some());
        assert_eq!(floors, [true, false, true, true, true, false]);
        assert_eq!(
            [None, Some(Case::Alive(1)), Some(Case::Yield(10))].map(|case| LIMIT.program(case)),
            [None; 3]
        );
        assert_eq!(
            PEERS.map(|peer| peer.program(Some(Case::Yield(10))).is_some()),
            [true, true, true, true, false]
        );
        assert!(
            PEERS
                .iter()
                .all(|peer| Case::TABLE.iter().all(|&case| peer.program(Some(case)).is_some()))
        );
    }
}
