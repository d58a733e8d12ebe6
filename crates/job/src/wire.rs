//! What supervisors are asked and answer, and tell each other, over their control sockets, in
//! postcard's encoding. Both ends are this user's.

use crate::members::SuspendMethod;
use crate::turns::{JobSchedule, Newcomer, TurnOrder};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// The version of these messages.
pub(crate) const VERSION: u32 = 1;

/// What a supervisor is asked.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum JobRequest {
    Show {
        version: u32,
    },
    Stop,
    Cont,
    Kill,
    /// Another supervisor's job wants to take turns, where this one leads.
    Join(Newcomer),
    /// It has carried out an order.
    Done {
        number: u64,
    },
    /// Whether its job is to run at all.
    Wants(bool),
    /// Where its members work.
    Busy(BTreeSet<u32>),
    /// It had not heard anything for too long, and lets all its members run.
    Loose,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum JobReply {
    Shown(Box<ShownJob>),
    Done,
    /// It is being ended; at the latest after so long by force.
    Ending {
        grace: Duration,
    },
    Refused(String),
    /// To who takes turns.
    Order(TurnOrder),
    /// It still leads.
    Still,
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobState {
    /// Its members run.
    Running,
    /// They are suspended until `cont`.
    Stopped,
    /// They are suspended, all or some, or not started yet, while others have their turn.
    Waiting,
    /// They are being ended.
    Ending,
}

/// A job, as it shows itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShownJob {
    /// Its name.
    pub name: String,
    /// Its supervisor.
    pub pid: u32,
    /// The program of its members.
    pub program: String,
    /// How many members it is started with.
    pub size: usize,
    /// Those that have not ended.
    pub members: Vec<ShownMember>,
    /// What it does.
    pub state: JobState,
    /// How it suspends its members.
    pub way: SuspendMethod,
    /// How it shares processors with other jobs; `None`: as the kernel sees fit.
    pub schedule: Option<JobSchedule>,
    /// The length of its turns.
    pub slice: Duration,
    /// Its supervisor lets the jobs take turns.
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
    /// Suspended by its supervisor.
    pub suspended: bool,
}

pub(crate) fn pack<T: Serialize>(message: &T) -> Vec<u8> {
    // Of these types it cannot fail but for memory.
    postcard::to_stdvec(message).unwrap_or_default()
}

pub(crate) fn unpack<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    postcard::from_bytes(bytes).map_err(|error| {
        format!("a control message cannot be read: {error}; is it another version's?")
    })
}
