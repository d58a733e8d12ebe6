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
    /// The orders of hosts that come by themselves, each with the key of its request.
    pub(crate) orders: BTreeMap<usize, (PetitionKey, Vec<u8>)>,
    /// Number of hosts at the machine's start.
    pub(crate) first: usize,
}

/// Where the answer to a request goes.
#[derive(Debug)]
pub(crate) enum HostAsker {
    /// A task, or the console.
    Task(Tid),
    Visitor(Visitor, Vec<String>),
}
