//! The cases: numbers of hosts.

use std::fmt;
use std::str::FromStr;

/// Number of links that each host opens to others.
pub const LINKS: u32 = 2;
/// Number of messages on each link, in each direction.
pub const MESSAGES: u32 = 10;
/// Number of times that each link is cut.
pub const CUTS: u32 = 2;

/// A number of simulated hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case(u32);

impl Case {
    /// Every case, in the order of the report.
    pub const ALL: [Case; 5] = [Case(10), Case(100), Case(1_000), Case(10_000), Case(100_000)];
    /// Largest number of hosts of a quick run.
    pub(super) const QUICK: u32 = 1_000;
    /// Largest number of hosts that is measured more than once.
    pub(super) const LARGE: u32 = 10_000;

    /// The name in records and on the command line.
    pub fn name(self) -> String {
        format!("hosts-{}", self.0)
    }

    /// Number of hosts.
    pub fn hosts(self) -> u32 {
        self.0
    }

    /// Number of links of all hosts.
    pub fn links(self) -> u64 {
        u64::from(self.0 * LINKS)
    }

    /// Number of messages that arrive in a run.
    pub fn messages(self) -> u64 {
        self.links() * 2 * u64::from(MESSAGES)
    }

    /// Memory that a run needs at most, in bytes: 64 MiB, and 40 KiB for each link.
    pub(super) fn memory(self) -> u64 {
        (64 << 20) + self.links() * (40 << 10)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(name: &str) -> Result<Case, String> {
        let known = Case::ALL.into_iter().find(|case| case.name() == name);
        known.ok_or_else(|| {
            format!("no case `{name}`; there are {}", Case::ALL.map(Case::name).join(", "))
        })
    }
}
