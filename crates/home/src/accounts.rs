//! What was done with the objects of this user, for observers.
//!
//! All of it stands in the objects' memory, before their data. An observer gets that memory from
//! the kernel, through `/proc`, so it needs nothing from a home, which may be stopped or busy. Any
//! process that may write an object may have written these numbers, so they are treated as numbers
//! and nothing else.

use crate::account::Counts;
use crate::body::{BodyState, Front, NAMED};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use upcall_directory::names;
use upcall_os::memory;
use upcall_shm::hybrid::PLACES;

/// Where an object's name leads.
///
/// Two of these are equal if they lead to the same object, and not to another object that has taken
/// over the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedObject {
    /// The process that is its home.
    pub home: u32,
    /// The home's socket, which no two objects share.
    socket: PathBuf,
}

/// The objects whose homes are processes of this user.
///
/// They are found in the folder of names, which may still list an object whose home was killed.
pub fn objects() -> BTreeMap<String, NamedObject> {
    names::objects()
        .into_iter()
        .map(|(name, (home, socket))| (name, NamedObject { home, socket }))
        .collect()
}

/// An object that is observed.
pub struct PeerObject(Front);

impl std::fmt::Debug for PeerObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerObject")
    }
}

/// The condition of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Every operation that began has ended.
    Whole,
    /// An operation ended in the middle, and the home has not decided yet.
    Torn,
    /// The home has decided that the object cannot be used any more.
    Poisoned,
}

/// An object's counts and condition at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ObjectReading {
    /// Length of the data, in bytes; only pages that are touched take memory.
    pub bytes: u64,
    /// The condition of the object.
    pub condition: Condition,
    /// Number of operations that were run under its lock, by all parties and methods.
    pub changes: u64,
    /// The process that holds its lock.
    pub holder: Option<u32>,
    /// Each handle that may write: its process, and what it has done.
    pub holds: Vec<(u32, Counts)>,
    /// What handles that are gone had done.
    pub gone: Counts,
}

impl ObjectReading {
    /// The sum over all handles.
    pub fn all(&self) -> Counts {
        self.holds.iter().fold(self.gone, |all, (_, counts)| all.and(*counts))
    }
}

/// Finds the object with this name whose home is process `pid`.
///
/// Takes some µs for each descriptor that the process has. Returns `None` if the process has let go
/// of the object, or if the object is of another version.
///
/// # Errors
/// The process has ended, or its descriptors cannot be read: the process has made itself unreadable
/// (`PR_SET_DUMPABLE`), or is in another namespace.
pub fn of(pid: u32, name: &str) -> io::Result<Option<PeerObject>> {
    for file in memory::files_of(pid, &format!("{NAMED}{name}"))? {
        if let Some(front) = Front::join(file)? {
            return Ok(Some(PeerObject(front)));
        }
    }
    Ok(None)
}

impl PeerObject {
    /// Reads the counts and the condition.
    ///
    /// Never blocks, and needs nothing from the object's home.
    pub fn read(&self) -> ObjectReading {
        let front = &self.0;
        let parties = (1..PLACES).map(|place| front.party(place));
        ObjectReading {
            bytes: front.length(),
            condition: match front.state() {
                BodyState::Whole => Condition::Whole,
                BodyState::Torn => Condition::Torn,
                BodyState::Poisoned => Condition::Poisoned,
            },
            changes: front.sequence() / 2,
            holder: front.holder().and_then(|place| front.party(place).0),
            holds: parties.filter_map(|(process, counts)| Some((process?, counts))).collect(),
            gone: front.party(0).1,
        }
    }
}
