//! Task ids, as PVM lays them out: a host's number, and one within that.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Bits of the number within a host.
const LOCAL: u32 = 18;
/// The bit that marks what is no task: a host's own id.
const DAEMON: i32 = i32::MIN;

/// A task's id: for programs a number that they compare and hand on. It names the same task
/// wherever that has moved to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Tid(i32);

impl Tid {
    /// The highest number within a host.
    pub const MOST: u32 = (1 << LOCAL) - 1;

    /// Of a task, by the number of the process that it was started in and its own there, from 1.
    pub const fn new(host: u32, local: u32) -> Self {
        Self((((host + 1) << LOCAL) | local) as i32)
    }

    /// As a program has it. `None`: that is no task's.
    pub fn of(number: i32) -> Option<Self> {
        (number > 0 && number as u32 >> LOCAL > 0 && number as u32 & Self::MOST > 0)
            .then_some(Self(number))
    }

    /// As programs have it.
    pub const fn number(self) -> i32 {
        self.0
    }

    /// The number of the process that it was started in.
    pub const fn host(self) -> u32 {
        (self.0 as u32 >> LOCAL) - 1
    }

    /// Its number there.
    pub const fn local(self) -> u32 {
        self.0 as u32 & Self::MOST
    }
}

/// What messages come from that the machine itself sends: a daemon's id, in PVM.
pub const HOST: i32 = DAEMON | THIS_HOST;
/// The one host's id that programs are told of.
pub const THIS_HOST: i32 = 1 << LOCAL;

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{:x}", self.0)
    }
}

impl fmt::Debug for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_pvms() {
        let tid = Tid::new(0, 2);
        assert_eq!((tid.to_string().as_str(), tid.host(), tid.local()), ("t40002", 0, 2));
        assert_eq!(Tid::of(tid.number()), Some(tid));
        assert!([0, -1, HOST, 0x3_FFFF, 0x4_0000].map(Tid::of).iter().all(Option::is_none));
        assert_eq!(HOST as u32, 0x8004_0000);
    }
}
