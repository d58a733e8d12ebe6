//! What the first process keeps of hosts that come and go.

use crate::door::Visitor;
use crate::hosts::HostRecruiter;
use crate::hosts::changes::HostChanges;
use crate::joining::PetitionKey;
use crate::tid::Tid;
use rustix::process::Pid;
use std::collections::BTreeMap;

/// Hosts that come and go, in the first process.
#[derive(Default)]
pub(crate) struct NodeHosts {
    pub(crate) recruiter: Option<HostRecruiter>,
    pub(crate) changes: HostChanges<HostAsker>,
    /// The commands that have started processes of hosts, by the host's index.
    pub(crate) commands: BTreeMap<usize, Pid>,
    /// The petitions of hosts that come by themselves and have got an order.
    pub(crate) orders: BTreeMap<usize, AnsweredPetition>,
    /// Number of hosts at the machine's start.
    pub(crate) first: usize,
}

/// A petition that was answered.
pub(crate) struct AnsweredPetition {
    pub(crate) key: PetitionKey,
    /// The proved identity of the host that has asked.
    pub(crate) host: Option<String>,
    /// The order.
    pub(crate) answer: Vec<u8>,
}

/// Where the answer to a request goes.
#[derive(Debug)]
pub(crate) enum HostAsker {
    /// A task, or the console.
    Task(Tid),
    Visitor(Visitor, Vec<String>),
}
