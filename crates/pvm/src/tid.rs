//! Task ids, with PVM's layout: a host's number, and a number within the host.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum number of processes of a machine.
pub const MOST_PROCESSES: u32 = 256;

/// Size of the number within a host, in bits.
const LOCAL: u32 = 18;
/// The bit that marks a host's own id.
const DAEMON: i32 = i32::MIN;

/// A task's id. Programs compare it and pass it on. It still names the task after the task has
/// moved.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i32", into = "i32")]
pub struct Tid(i32);

impl Tid {
    /// Maximum number of a task within a host.
    pub(crate) const MOST: u32 = (1 << LOCAL) - 1;
    /// The lowest number that is no task's in a machine of the most processes.
    pub(crate) const END: i32 = ((MOST_PROCESSES + 1) << LOCAL) as i32;

    /// The id of a task, from the number of the process in which it was started and its number
    /// there, from 1.
    pub const fn new(host: u32, local: u32) -> Self {
        Self((((host + 1) << LOCAL) | local) as i32)
    }

    /// Parses a number of a program. `None`: it is not a task's id.
    pub fn of(number: i32) -> Option<Self> {
        (number > 0 && number as u32 >> LOCAL > 0 && number as u32 & Self::MOST > 0)
            .then_some(Self(number))
    }

    /// The number that programs use.
    pub const fn number(self) -> i32 {
        self.0
    }

    /// Returns `true` if the number has the form of a task's id in PVM, even if there never was
    /// such a host.
    pub(crate) const fn has_form(number: i32) -> bool {
        number > 0 && number as u32 & Self::MOST > 0
    }

    /// The number of the process that has given the name. The task may run elsewhere, so only
    /// [`places`](crate::places) asks for it.
    pub(crate) const fn birth(self) -> u32 {
        (self.0 as u32 >> LOCAL) - 1
    }
}

/// A number that came from another process or from a file.
impl TryFrom<i32> for Tid {
    type Error = &'static str;

    fn try_from(number: i32) -> Result<Self, Self::Error> {
        Self::of(number).filter(|_| number < Self::END).ok_or("the number is no task's id")
    }
}

impl From<Tid> for i32 {
    fn from(tid: Tid) -> Self {
        tid.number()
    }
}

const _: () = assert!(Tid::END as u64 == crate::ops::NAMES && 1 << LOCAL == crate::ops::NAME_FIRST);

/// The sender of the machine's own messages: a daemon's id, in PVM.
pub const HOST: i32 = DAEMON | THIS_HOST;
/// The id of the one host, as programs see it.
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
        assert_eq!((tid.to_string().as_str(), tid.birth()), ("t40002", 0));
        assert_eq!(Tid::new(MOST_PROCESSES - 1, Tid::MOST).number(), Tid::END - 1);
        assert_eq!(Tid::of(tid.number()), Some(tid));
        assert!([0, -1, HOST, 0x3_FFFF, 0x4_0000].map(Tid::of).iter().all(Option::is_none));
        assert_eq!(HOST as u32, 0x8004_0000);
        let read =
            |number: i32| postcard::from_bytes::<Tid>(&postcard::to_stdvec(&number).unwrap()).ok();
        assert_eq!(read(tid.number()), Some(tid));
        assert!([0, -1, HOST, Tid::END, i32::MAX].map(read).iter().all(Option::is_none));
    }
}
