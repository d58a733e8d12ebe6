//! The operations on the table, and the contenders that run them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::case::{Mode, Placement};
use crate::peers::Peer;

/// An operation on an existing entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Case {
    /// Gets the value of a key, and checks that it belongs to the key.
    Get,
    /// Puts another value under a key.
    Put,
    /// Like `get`, with 16 requests at once. The figure is a sixteenth of the time until all are
    /// answered.
    Get16,
    /// Like `put`, with 16 requests at once.
    Put16,
}

impl Case {
    /// Every case, in the order of the report.
    pub const ALL: [Case; 4] = [Case::Get, Case::Put, Case::Get16, Case::Put16];

    /// The name in records and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Case::Get => "get",
            Case::Put => "put",
            Case::Get16 => "get-16",
            Case::Put16 => "put-16",
        }
    }

    /// Returns the case of a name.
    pub fn named(name: &str) -> Option<Case> {
        Case::ALL.into_iter().find(|case| case.name() == name)
    }

    /// Number of operations requested at once.
    pub fn depth(self) -> usize {
        if matches!(self, Case::Get | Case::Put) { 1 } else { 16 }
    }

    /// Returns `true` if the case changes the table.
    pub fn puts(self) -> bool {
        matches!(self, Case::Put | Case::Put16)
    }

    /// Returns the same operation, one at a time.
    pub fn single(self) -> Case {
        if self.puts() { Case::Put } else { Case::Get }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// Name in records and on the command line.
    pub name: &'static str,
    /// The store of its table. Contenders of one store share the table.
    pub store: &'static str,
    /// The method of its operations, as its store names it.
    pub way: &'static str,
    /// How the process that serves the operation waits.
    pub mode: Mode,
    /// The program that it requires, and Debian's package of the program.
    pub package: Option<[&'static str; 2]>,
}

const fn ours(name: &'static str, way: &'static str, mode: Mode) -> Contender {
    Contender { name, store: "upcall", way, mode, package: None }
}

const fn peer(
    name: &'static str,
    store: &'static str,
    way: &'static str,
    package: [&'static str; 2],
) -> Contender {
    Contender { name, store, way, mode: Mode::Parked, package: Some(package) }
}

/// Upcall. No other process is asked where the caller runs the operation itself.
pub const OURS: [Contender; 5] = [
    ours("upcall-read", "read", Mode::Polling),
    ours("upcall-access", "access", Mode::Polling),
    ours("upcall-urgent", "urgent", Mode::Parked),
    ours("upcall-invoke", "invoke", Mode::Parked),
    ours("upcall-auto", "auto", Mode::Polling),
];

const REDIS: [&str; 2] = ["redis-server", "redis-server"];
const MEMCACHED: [&str; 2] = ["memcached", "memcached"];

/// The peers. Their clients sleep until an answer arrives, as is usual.
pub const PEERS: [Contender; 2] =
    [peer("redis", "redis", "sleep", REDIS), peer("memcached", "memcached", "sleep", MEMCACHED)];

/// The peers with clients that poll for an answer, if they have a processor of their own.
const SPINNING: [Contender; 2] = [
    peer("redis-spin", "redis", "spin", REDIS),
    peer("memcached-spin", "memcached", "spin", MEMCACHED),
];

/// Returns all contenders.
pub(super) fn all() -> impl Iterator<Item = Contender> {
    OURS.into_iter().chain(PEERS.into_iter().flat_map(with_spinning))
}

/// Returns a peer, and the same peer with a client that polls.
pub(super) fn with_spinning(peer: Contender) -> impl Iterator<Item = Contender> {
    [peer]
        .into_iter()
        .chain(SPINNING.into_iter().filter(move |spinning| spinning.store == peer.store))
}

impl Peer for Contender {
    const ALL: &'static [Contender] = &PEERS;

    fn name(&self) -> &'static str {
        self.name
    }
}

impl Contender {
    /// Returns `true` if it runs a case. Upcall sends no requests that could be combined.
    pub fn takes_part(&self, case: Case) -> bool {
        self.package.is_some() || case.depth() == 1 && !(self.way == "read" && case.puts())
    }

    /// Returns `true` if it is measured in this placement: a client that polls on the server's
    /// processor keeps the server from answering.
    pub fn is_for(&self, placement: Placement) -> bool {
        placement == Placement::TwoCores || self.way != "spin"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_which_case() {
        let all = |contender: Contender| Case::ALL.map(|case| contender.takes_part(case));
        assert_eq!(OURS.map(all)[..2], [[true, false, false, false], [true, true, false, false]]);
        assert_eq!(PEERS.map(all), [[true; 4]; 2]);
        let names: Vec<_> = super::all().map(|contender| contender.name).collect();
        assert_eq!(names[5..], ["redis", "redis-spin", "memcached", "memcached-spin"]);
        assert_eq!(
            with_spinning(PEERS[0]).filter(|peer| peer.is_for(Placement::OneCore)).count(),
            1
        );
        assert!(
            Case::ALL
                .iter()
                .all(|case| Case::named(case.name()) == Some(*case) && case.single().depth() == 1)
        );
    }
}
