//! What is done to the table, by whom, and in which way.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::case::{Mode, Placement};
use crate::peers::Peer;

/// One kind of operation, on an entry that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Case {
    /// The value of a key; it is looked at for being the key's own.
    Get,
    /// Another value for a key.
    Put,
    /// As `get`, 16 requests at once. What is told is a sixteenth of the time until all are
    /// answered.
    Get16,
    /// As `put`, likewise.
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

    /// The case of a name.
    pub fn named(name: &str) -> Option<Case> {
        Case::ALL.into_iter().find(|case| case.name() == name)
    }

    /// Operations that are asked for at once.
    pub fn depth(self) -> usize {
        if matches!(self, Case::Get | Case::Put) { 1 } else { 16 }
    }

    /// Whether it changes the table.
    pub fn puts(self) -> bool {
        matches!(self, Case::Put | Case::Put16)
    }

    /// The same, one at a time.
    pub fn single(self) -> Case {
        if self.puts() { Case::Put } else { Case::Get }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One that takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// Its name in records and on the command line.
    pub name: &'static str,
    /// Whose table it is; those of one share it.
    pub store: &'static str,
    /// How it is done, in a word of the store's.
    pub way: &'static str,
    /// How whoever is asked waits for that.
    pub mode: Mode,
    /// The program that has to be there, and Debian's package of it.
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

/// Ours. Nobody is asked where the caller does it itself.
pub const OURS: [Contender; 5] = [
    ours("upcall-read", "read", Mode::Polling),
    ours("upcall-access", "access", Mode::Polling),
    ours("upcall-urgent", "urgent", Mode::Parked),
    ours("upcall-invoke", "invoke", Mode::Parked),
    ours("upcall-auto", "auto", Mode::Polling),
];

const REDIS: [&str; 2] = ["redis-server", "redis-server"];
const MEMCACHED: [&str; 2] = ["memcached", "memcached"];

/// The peers. Their clients sleep until there is an answer, as clients do.
pub const PEERS: [Contender; 2] =
    [peer("redis", "redis", "sleep", REDIS), peer("memcached", "memcached", "sleep", MEMCACHED)];

/// The same with clients that look for an answer all the time, where they have a processor of their
/// own.
const SPINNING: [Contender; 2] = [
    peer("redis-spin", "redis", "spin", REDIS),
    peer("memcached-spin", "memcached", "spin", MEMCACHED),
];

/// Those that there are.
pub(super) fn all() -> impl Iterator<Item = Contender> {
    OURS.into_iter().chain(PEERS.into_iter().flat_map(with_spinning))
}

/// A peer, and the same with a client that spins.
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
    /// Whether it has a case. Ours sends no requests that could be put together.
    pub fn takes_part(&self, case: Case) -> bool {
        self.package.is_some() || case.depth() == 1 && !(self.way == "read" && case.puts())
    }

    /// Whether it is measured there: who spins on the server's processor keeps it from answering.
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
