//! What was done with the objects of this user, for people and programs that look on.
//!
//! All of it stands in the objects' memory, before their data, and who looks takes it from the
//! kernel, by `/proc`: that asks nothing of a home, which may be stopped or busy. Whoever may write
//! an object may have written it, so it is believed to be numbers and nothing else.

use crate::account::Counts;
use crate::body::{BodyState, Front, NAMED};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use upcall_directory::names;
use upcall_os::memory;
use upcall_shm::hybrid::PLACES;

/// Where an object's name leads. Two are equal if it is the same object, and not another one that
/// has the name now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedObject {
    /// The process that is its home.
    pub home: u32,
    /// Each object has one of its own.
    socket: PathBuf,
}

/// The objects that processes of this user are the homes of. From the folder of names; one whose
/// home was killed may be among them still.
pub fn objects() -> BTreeMap<String, NamedObject> {
    names::objects()
        .into_iter()
        .map(|(name, (home, socket))| (name, NamedObject { home, socket }))
        .collect()
}

/// An object, to look on.
pub struct PeerObject(Front);

impl std::fmt::Debug for PeerObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerObject")
    }
}

/// Whether an object can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Each operation began and ended.
    Whole,
    /// One has ended in the middle, and the home has not decided yet.
    Torn,
    /// The home has decided that it is of no use any more.
    Poisoned,
}

/// What stood there at a moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ObjectReading {
    /// Bytes of its data, of which only what is touched takes memory.
    pub bytes: u64,
    /// Whether it can be used.
    pub condition: Condition,
    /// So many operations were run under its lock, by whomever and in whatever way.
    pub changes: u64,
    /// The process of who has its lock.
    pub holder: Option<u32>,
    /// Each hold that may write: its process, and what it has done.
    pub holds: Vec<(u32, Counts)>,
    /// What those had done that are gone.
    pub gone: Counts,
}

impl ObjectReading {
    /// What all holds have done together.
    pub fn all(&self) -> Counts {
        self.holds.iter().fold(self.gone, |all, (_, counts)| all.and(*counts))
    }
}

/// The object of this name, whose home is this process. Takes some µs for each descriptor that the
/// process has. `None`: it has let go of it, or it is of another version.
///
/// # Errors
/// The process has ended, or may not be looked into: it has made itself unreadable
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
    /// What stands there now. Never blocks, and asks nothing of its home.
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
