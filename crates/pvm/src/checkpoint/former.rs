//! What former versions of the format had in another form.
//!
//! | version | what has changed since |
//! |---|---|
//! | 3 | the head had the name of the home twice, and not how tasks are balanced |

use super::{CheckpointHead, SavedHost};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// The head of version 3.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HeadOf3 {
    host: String,
    seconds: u64,
    processes: u32,
    hosts: Vec<SavedHost>,
    stack: String,
    memory: String,
    folder: OsString,
    folders: Vec<OsString>,
}

impl From<HeadOf3> for CheckpointHead {
    fn from(head: HeadOf3) -> Self {
        let HeadOf3 { host: _, seconds, processes, hosts, stack, memory, folder, folders } = head;
        let (balancer, least) = (None, processes);
        Self { seconds, processes, balancer, least, hosts, stack, memory, folder, folders }
    }
}

#[cfg(test)]
impl HeadOf3 {
    /// The head as a machine of that version has written it.
    pub(super) fn of(head: &CheckpointHead) -> Self {
        let CheckpointHead { seconds, processes, hosts, stack, memory, folder, folders, .. } =
            head.clone();
        let host = hosts[0].name.clone();
        Self { host, seconds, processes, hosts, stack, memory, folder, folders }
    }
}
