//! Proves that every byte came through: compares what a walk read with what was read directly.
//!
//! A tree in use changes while it is read. So a file that differs is read again, both ways. If both
//! readings agree then, the file had changed, and that is reported; if not, the proof has failed.

use crate::direct;
use crate::tree::shown;
use crate::walk::{Problem, Seen, Transport, Walked, file};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Maximum number of times that a file that differs is read again, both ways.
const ATTEMPTS: u32 = 5;

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Number of files that are the same both ways.
    pub same: u64,
    /// Files that could be read neither directly nor by calls.
    pub unreadable: Vec<(Vec<u8>, Problem)>,
    /// Files that changed, appeared or disappeared between the two readings, and were the same when
    /// they were read again.
    pub changed: Vec<Vec<u8>>,
    /// Files that differ, and still differed when they were read again.
    pub wrong: Vec<Wrong>,
}

/// A file that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The path of the file.
    pub path: Vec<u8>,
    /// The difference.
    pub how: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", shown(&self.path), self.how)
    }
}

impl Proof {
    /// Returns `true` if nothing differs.
    pub fn holds(&self) -> bool {
        self.wrong.is_empty()
    }
}

/// What one way of reading found at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said<'a> {
    Contents(&'a Seen),
    Refused(&'a Problem),
    /// The walk did not find it.
    Nothing,
}

/// Compares `through`, read by calls, with `directly`, read below `root`. If a file has changed
/// since, updates `directly`.
///
/// # Errors
/// [`Problem::Broken`] if the transport failed while a difference was examined.
pub fn prove<T: Transport>(
    transport: &mut T,
    root: &Path,
    chunk: u32,
    directly: &mut Walked,
    through: &Walked,
) -> Result<Proof, Problem> {
    let mut proof = Proof::default();
    let mut differing = Vec::new();
    {
        let (mine, theirs) = (said(directly), said(through));
        let paths: std::collections::BTreeSet<&[u8]> =
            mine.keys().chain(theirs.keys()).copied().collect();
        for path in paths {
            let of = |all: &BTreeMap<&[u8], Said<'_>>| all.get(path).cloned().map(describe);
            match (
                mine.get(path).unwrap_or(&Said::Nothing),
                theirs.get(path).unwrap_or(&Said::Nothing),
            ) {
                (Said::Contents(a), Said::Contents(b)) if a == b => proof.same += 1,
                (Said::Refused(_), Said::Refused(why)) => {
                    proof.unreadable.push((path.to_vec(), (*why).clone()))
                }
                _ => differing.push((path.to_vec(), of(&mine), of(&theirs))),
            }
        }
    }
    for (path, mine, theirs) in differing {
        if settled(transport, root, chunk, &path, directly)? {
            proof.changed.push(path);
        } else {
            let not_met = || "not met".to_owned();
            let (mine, theirs) = (mine.unwrap_or_else(not_met), theirs.unwrap_or_else(not_met));
            proof.wrong.push(Wrong { path, how: format!("directly: {mine}; by calls: {theirs}") });
        }
    }
    Ok(proof)
}

/// Reads the file both ways until they agree.
fn settled<T: Transport>(
    transport: &mut T,
    root: &Path,
    chunk: u32,
    path: &[u8],
    directly: &mut Walked,
) -> Result<bool, Problem> {
    for _ in 0..ATTEMPTS {
        let theirs = match file(transport, path.to_vec(), chunk) {
            Ok(seen) => Some(seen),
            Err((_, Problem::Refused(_))) => None,
            Err((_, broken)) => return Err(broken),
        };
        let mine = direct::read_file(root, path).ok();
        if mine == theirs {
            match (mine, directly.files.iter().position(|f| f.path == path)) {
                (Some(now), Some(at)) => directly.files[at] = now,
                (None, Some(at)) => drop(directly.files.remove(at)),
                // The file was created after the tree was read, and the next walk finds it; that
                // difference is settled again.
                (Some(_) | None, None) => {}
            }
            return Ok(true);
        }
    }
    Ok(false)
}

fn said(walked: &Walked) -> BTreeMap<&[u8], Said<'_>> {
    let files = walked.files.iter().map(|f| (f.path.as_slice(), Said::Contents(f)));
    files
        .chain(walked.refused.iter().map(|(path, why)| (path.as_slice(), Said::Refused(why))))
        .collect()
}

fn describe(said: Said<'_>) -> String {
    match said {
        Said::Contents(seen) => format!("{} bytes, SHA-256 {}", seen.bytes, hex(&seen.sum)),
        Said::Refused(problem) => format!("refused ({problem})"),
        Said::Nothing => "not met".to_owned(),
    }
}

/// A digest in hexadecimal.
pub fn hex(sum: &[u8]) -> String {
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}
