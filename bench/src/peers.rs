//! Selection of the peers that take part, in the form of the command line.

use std::fmt;
use std::str::FromStr;

/// A kind of peer, one for each suite.
pub trait Peer: Copy + PartialEq + Send + Sync + 'static {
    /// All peers, in the order of the report.
    const ALL: &'static [Self];

    /// Returns the name in records and on the command line.
    fn name(&self) -> &'static str;
}

/// The peer type of a suite without peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPeer {}

impl Peer for NoPeer {
    const ALL: &'static [NoPeer] = &[];

    fn name(&self) -> &'static str {
        match *self {}
    }
}

/// The peers that take part: `none`, `all`, or names separated by commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peers<P> {
    /// Upcall and the limits only.
    None,
    /// All peers.
    All,
    /// The listed peers.
    List(Vec<P>),
}

/// A name that no peer has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPeer {
    found: String,
    known: Vec<&'static str>,
}

impl fmt::Display for UnknownPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known.join(", ");
        write!(
            f,
            "no peer `{}`; give `none`, `all`, or some of {known}, separated by commas",
            self.found
        )
    }
}

impl std::error::Error for UnknownPeer {}

impl<P: Peer> FromStr for Peers<P> {
    type Err = UnknownPeer;

    fn from_str(s: &str) -> Result<Self, UnknownPeer> {
        match s {
            "none" => Ok(Peers::None),
            "all" => Ok(Peers::All),
            list => {
                let find = |name: &str| P::ALL.iter().find(|peer| peer.name() == name).copied();
                let unknown = |name: &str| UnknownPeer {
                    found: name.to_owned(),
                    known: P::ALL.iter().map(P::name).collect(),
                };
                let peers = list.split(',').map(|name| find(name).ok_or_else(|| unknown(name)));
                peers.collect::<Result<_, _>>().map(Peers::List)
            }
        }
    }
}

impl<P: Peer> Peers<P> {
    /// Returns the selected peers, in the order of the report.
    pub(crate) fn meant(&self) -> Vec<P> {
        let meant = |peer: &P| match self {
            Peers::None => false,
            Peers::All => true,
            Peers::List(list) => list.contains(peer),
        };
        P::ALL.iter().copied().filter(meant).collect()
    }

    /// Returns the names of the selected peers.
    pub fn names(&self) -> Vec<&'static str> {
        self.meant().iter().map(P::name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::Contender;

    #[test]
    fn peers_are_read() {
        let names = |s: &str| s.parse::<Peers<Contender>>().unwrap().names();
        assert!(names("none").is_empty());
        assert_eq!(names("all").len(), Contender::ALL.len());
        assert_eq!(names("tarpc,iceoryx2"), ["iceoryx2", "tarpc"]);
        let error = "iceoryx".parse::<Peers<Contender>>().unwrap_err().to_string();
        assert!(error.contains("no peer `iceoryx`") && error.contains("zeromq"), "{error}");
    }
}
