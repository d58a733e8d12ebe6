//! Messages of supervisors and their clients, in postcard's encoding.
//!
//! They travel over the supervisors' control sockets. Both ends are this user's.

use crate::members::SuspendMethod;
use crate::turns::{JobSchedule, Newcomer, TurnOrder};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// The version of these messages.
pub(crate) const VERSION: u32 = 1;

/// A request to a supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum JobRequest {
    Show {
        version: u32,
    },
    Stop,
    Cont,
    Kill,
    /// Another supervisor's job wants to take turns; this supervisor leads.
    Join(Newcomer),
    /// The follower has carried out an order.
    Done {
        number: u64,
    },
    /// Whether its job is to run at all.
    Wants(bool),
    /// The processors on which its members work.
    Busy(BTreeSet<u32>),
    /// The follower received nothing for too long, and lets all its members run.
    Loose,
}

/// A supervisor's reply.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum JobReply {
    Shown(Box<ShownJob>),
    Done,
    /// The job is being ended; after `grace` at the latest, by force.
    Ending {
        grace: Duration,
    },
    Refused(String),
    /// To a follower: what its job may do.
    Order(TurnOrder),
    /// To a follower: this supervisor still leads.
    Still,
}

/// What a job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobState {
    /// Its members run.
    Running,
    /// They are suspended until `cont`.
    Stopped,
    /// Some or all members are suspended, or not started yet, while other jobs have their turn.
    Waiting,
    /// They are being ended.
    Ending,
}

/// A job, as its supervisor reports it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShownJob {
    /// Name of the job.
    pub name: String,
    /// Process of its supervisor.
    pub pid: u32,
    /// The program of its members.
    pub program: String,
    /// Number of members that it is started with.
    pub size: usize,
    /// Members that have not ended.
    pub members: Vec<ShownMember>,
    /// What it is doing.
    pub state: JobState,
    /// How it suspends its members.
    pub way: SuspendMethod,
    /// How it shares processors with other jobs; `None` if only the kernel schedules it.
    pub schedule: Option<JobSchedule>,
    /// Length of its turns.
    pub slice: Duration,
    /// `true` if its supervisor leads the jobs that take turns.
    pub leads: bool,
}

/// A member of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShownMember {
    /// Its rank.
    pub rank: usize,
    /// Its process.
    pub pid: u32,
    /// The processor that it runs on, if it was given one.
    pub processor: Option<u32>,
    /// `true` if its supervisor has suspended it.
    pub suspended: bool,
}

pub(crate) fn pack<T: Serialize>(message: &T) -> Vec<u8> {
    // For these types it fails only if there is no memory.
    postcard::to_stdvec(message).unwrap_or_default()
}

pub(crate) fn unpack<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    postcard::from_bytes(bytes).map_err(|error| {
        format!("a control message cannot be read: {error}; is it from another version?")
    })
}
