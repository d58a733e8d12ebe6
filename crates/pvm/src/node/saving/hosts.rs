//! Hosts that are to come or to go while a machine is saved or restored: they wait.
//!
//! A task's request is in the checkpoint, and is carried out by the machine that goes on from it,
//! too. Requests of other shells and of hosts are not: they wait for an answer of this machine.

use super::super::Node;
use super::state::WaitingForHosts;
use crate::machine::saved::{WaitingHostChange, WaitingHosts, WaitingRequests};
use crate::node::coming::state::HostAsker;
use upcall_message::Petition;

/// Maximum number of hosts that wait to come by themselves. Further ones are refused.
const MOST_PETITIONS: usize = 16;

impl Node {
    /// Keeps a request for hosts until the machine goes on. Returns its asker if it need not wait.
    pub(in crate::node) fn defer_hosts(
        &mut self,
        asker: HostAsker,
        change: WaitingHostChange,
        names: &[String],
    ) -> Option<HostAsker> {
        if !self.defers() {
            return Some(asker);
        }
        // A task that waits for an answer asks for nothing else. Its process may.
        let mut waiting = self.saving.hosts.iter().filter_map(WaitingForHosts::asking_task);
        if let HostAsker::Task(tid) = asker
            && waiting.any(|one| one == tid)
        {
            return None;
        }
        let names = names.to_vec();
        self.saving.hosts.push(WaitingForHosts::Change { asker, change, names });
        None
    }

    /// Keeps the petition of a host until the machine goes on. Returns it if it need not wait.
    pub(in crate::node) fn defer_petition(&mut self, petition: Petition) -> Option<Petition> {
        if !self.defers() {
            return Some(petition);
        }
        let is_petition = |one: &&WaitingForHosts| matches!(one, WaitingForHosts::Petition(_));
        if self.saving.hosts.iter().filter(is_petition).count() >= MOST_PETITIONS {
            petition.refuse("the machine writes or restores a checkpoint: try again");
        } else {
            self.saving.hosts.push(WaitingForHosts::Petition(petition));
        }
        None
    }

    /// What a checkpoint has of the requests that wait.
    pub(super) fn waiting_requests(&self) -> WaitingRequests {
        let of_task = |one: &WaitingForHosts| match one {
            WaitingForHosts::Change { asker: HostAsker::Task(asker), change, names } => {
                Some(WaitingHosts { asker: *asker, change: *change, names: names.clone() })
            }
            WaitingForHosts::Change { .. } | WaitingForHosts::Petition(_) => None,
        };
        let hosts = self.saving.hosts.iter().filter_map(of_task).collect();
        WaitingRequests { spawns: self.saving.spawns.clone(), hosts }
    }

    /// In the first process: serves these when the machine goes on.
    pub(crate) fn with_waiting(mut self, waiting: WaitingRequests) -> Self {
        let WaitingRequests { spawns, hosts } = waiting;
        let change = |WaitingHosts { asker, change, names }| {
            let asker = HostAsker::Task(asker);
            WaitingForHosts::Change { asker, change, names }
        };
        self.saving.spawns = spawns;
        self.saving.hosts = hosts.into_iter().map(change).collect();
        self
    }

    /// Serves what has waited.
    pub(super) fn serve_waiting(&mut self) {
        for (spawner, plan, count, place) in std::mem::take(&mut self.saving.spawns) {
            self.spawn_at(spawner, plan, count as usize, place);
        }
        for one in std::mem::take(&mut self.saving.hosts) {
            match one {
                WaitingForHosts::Change { asker, change: WaitingHostChange::Add, names } => {
                    self.add_hosts(asker, &names);
                }
                WaitingForHosts::Change { asker, change: WaitingHostChange::Remove, names } => {
                    self.remove_hosts(asker, &names);
                }
                WaitingForHosts::Petition(petition) => self.heard_petition(petition),
            }
        }
    }
}
