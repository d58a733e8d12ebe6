//! Who takes part: the names, which program each one lives in, and the settings in which each runs.

use std::fmt;
use std::str::FromStr;

use crate::case::{Mode, Placement};

/// Which program answers to `bench-child NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// The program that runs the benchmark.
    Own,
    /// `upcall-peers`, which has the heavy dependencies.
    Peers,
}

/// One that takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// Its name in records and on the command line.
    pub name: &'static str,
    /// Where it lives.
    pub program: Program,
    polls: bool,
    parks: bool,
    /// A bare hand-off, which has both sides on one processor in either placement.
    pub hand_off: bool,
    /// How many calls it can have outstanding at once.
    pub outstanding: usize,
    /// Its binds are measured: it tells one that opens a channel from one that finds it open.
    pub binds: bool,
}

const fn contender(name: &'static str, program: Program, polls: bool, parks: bool) -> Contender {
    Contender { name, program, polls, parks, hand_off: false, outstanding: usize::MAX, binds: false }
}

const fn hand_off(name: &'static str) -> Contender {
    Contender { hand_off: true, outstanding: 1, ..contender(name, Program::Own, false, true) }
}

/// The floors, in the order of the report.
pub const LIMITS: [Contender; 4] =
    [contender("limit", Program::Own, true, false), hand_off("limit-futex"), hand_off("limit-eventfd"), hand_off("limit-pipe")];

/// Ours.
pub const UPCALL: Contender = Contender { binds: true, ..contender("upcall", Program::Own, true, true) };

/// The peers. A peer without a mode in which its server polls takes part in `parked` only.
pub const PEERS: [Contender; 6] = [
    contender("unix-socket", Program::Own, false, true),
    contender("iceoryx2", Program::Peers, true, true),
    contender("capnproto", Program::Peers, false, true),
    contender("grpc", Program::Peers, false, true),
    contender("zeromq", Program::Peers, false, true),
    contender("tarpc", Program::Peers, false, true),
];

impl Contender {
    /// Whether it runs with a server that waits like this.
    pub fn runs(&self, mode: Mode) -> bool {
        match mode {
            Mode::Polling => self.polls,
            Mode::Parked => self.parks,
        }
    }

    /// The processors of server and client, from the run's first and second.
    pub fn processors(&self, placement: Placement, first: usize, second: usize) -> (usize, usize) {
        if placement == Placement::OneCore || self.hand_off { (first, first) } else { (second, first) }
    }
}

/// Which peers take part: `none`, `all`, or names with commas between.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Peers {
    /// Upcall and the limits only.
    #[default]
    None,
    /// All that there are.
    All,
    /// These.
    List(Vec<Contender>),
}

/// A peer's name that is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPeer(String);

impl fmt::Display for UnknownPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<_> = PEERS.iter().map(|peer| peer.name).collect();
        write!(f, "no peer `{}`; give `none`, `all`, or some of {} with commas between", self.0, known.join(", "))
    }
}

impl std::error::Error for UnknownPeer {}

impl FromStr for Peers {
    type Err = UnknownPeer;

    fn from_str(s: &str) -> Result<Self, UnknownPeer> {
        match s {
            "none" => Ok(Peers::None),
            "all" => Ok(Peers::All),
            list => {
                let find = |name: &str| PEERS.iter().find(|peer| peer.name == name).copied();
                let peers = list.split(',').map(|name| find(name).ok_or_else(|| UnknownPeer(name.to_owned())));
                peers.collect::<Result<_, _>>().map(Peers::List)
            }
        }
    }
}

impl Peers {
    /// Those meant, in the order of the report.
    pub(crate) fn contenders(&self) -> Vec<Contender> {
        let meant = |peer: &Contender| match self {
            Peers::None => false,
            Peers::All => true,
            Peers::List(list) => list.contains(peer),
        };
        PEERS.iter().copied().filter(meant).collect()
    }

    /// Their names.
    pub fn names(&self) -> Vec<&'static str> {
        self.contenders().iter().map(|peer| peer.name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read() {
        let names = |s: &str| s.parse::<Peers>().unwrap().names();
        assert!(names("none").is_empty());
        assert_eq!(names("all").len(), PEERS.len());
        assert_eq!(names("tarpc,iceoryx2"), ["iceoryx2", "tarpc"]);
        let error = "iceoryx".parse::<Peers>().unwrap_err().to_string();
        assert!(error.contains("no peer `iceoryx`") && error.contains("zeromq"), "{error}");
    }

    #[test]
    fn a_hand_off_stays_on_one_processor() {
        assert_eq!(LIMITS[0].processors(Placement::TwoCores, 0, 1), (1, 0));
        assert_eq!(LIMITS[1].processors(Placement::TwoCores, 0, 1), (0, 0));
        assert_eq!(UPCALL.processors(Placement::OneCore, 0, 1), (0, 0));
    }
}
