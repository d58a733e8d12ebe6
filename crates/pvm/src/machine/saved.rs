//! What the first process knows, in a checkpoint.
//!
//! Saved is what cannot be derived. What is read is not trusted: a state that no machine can be in
//! is refused as a whole.

use super::{Machine, Slots, TaskEntry, TaskPlacement};
use crate::checkpoint::CheckpointHosts;
use crate::hosts::SpawnPlace;
use crate::output::OutputTarget;
use crate::remote::TaskSpec;
use crate::services::{SavedServices, Services};
use crate::tid::Tid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use upcall_message::Rank;

/// A spawn that begins when the machine goes on: the spawner, the number of tasks, and where.
pub(crate) type WaitingSpawn = (Option<Tid>, TaskSpec, u32, SpawnPlace);

/// A task's request for a change of hosts, which begins when the machine goes on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WaitingHosts {
    pub(crate) asker: Tid,
    pub(crate) change: WaitingHostChange,
    pub(crate) names: Vec<String>,
}

/// What a request wants of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WaitingHostChange {
    Add,
    Remove,
}

/// What waits until the machine goes on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct WaitingRequests {
    pub(crate) spawns: Vec<WaitingSpawn>,
    pub(crate) hosts: Vec<WaitingHosts>,
}

/// The state of the whole machine, except for the tasks themselves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedMachine {
    services: SavedServices,
    tasks: Vec<(Tid, TaskEntry)>,
    next_slot: u32,
    place: TaskPlacement,
    placed: u64,
    worst: i32,
    waiting: WaitingRequests,
}

impl Machine {
    /// The state for a checkpoint. No task is being started, and no end is to be announced.
    pub(crate) fn save(&self, waiting: WaitingRequests) -> SavedMachine {
        SavedMachine {
            services: self.services.save(),
            tasks: self.tasks.iter().map(|(tid, entry)| (*tid, entry.clone())).collect(),
            next_slot: self.slots.next,
            place: self.place.clone(),
            placed: self.placed as u64,
            worst: self.worst,
            waiting,
        }
    }

    /// Returns `true` if tasks are being started.
    pub(crate) fn is_starting(&self) -> bool {
        !self.requests.is_empty()
    }
}

impl SavedMachine {
    /// The tasks, each with the process in which it ran.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = (Tid, Rank)> {
        self.tasks.iter().map(|(tid, entry)| (*tid, entry.rank))
    }

    /// What has waited for the end of the checkpoint.
    pub(crate) fn take_waiting(&mut self) -> WaitingRequests {
        std::mem::take(&mut self.waiting)
    }

    /// The machine, with slots for `count` tasks, whose tasks run in these processes. A `console`
    /// catches no output any more.
    ///
    /// `None`: no machine is in this state.
    pub(crate) fn restore(
        self,
        count: u32,
        ranks: &BTreeMap<Tid, Rank>,
        console: Tid,
    ) -> Option<Machine> {
        let mut slots = Slots { count, next: self.next_slot, ..Slots::default() };
        let mut tasks = BTreeMap::new();
        for (tid, entry) in self.tasks {
            let is_free = entry.slot < count && slots.taken.insert(entry.slot);
            let rank = *ranks.get(&tid).filter(|_| is_free)?;
            let catcher = entry.catcher.filter(|catcher| catcher.to != console);
            // The places of the tasks are announced again.
            let entry = TaskEntry { rank, catcher, epoch: 0, ..entry };
            tasks.insert(tid, entry).is_none().then_some(())?;
        }
        (self.next_slot < count).then_some(())?;
        Some(Machine {
            services: Services::restore(self.services)?,
            tasks,
            slots,
            place: self.place,
            placed: u32::try_from(self.placed).ok()? as usize,
            worst: self.worst,
            ..Machine::default()
        })
    }
}

impl WaitingRequests {
    /// The requests as they go on in a machine with these hosts. Those of askers that are gone are
    /// dropped. A `console` is gone, and tasks have the log in place of its streams.
    pub(crate) fn in_another_machine(
        self,
        console: Tid,
        is_gone: impl Fn(Tid) -> bool,
        hosts: &CheckpointHosts<'_>,
    ) -> Self {
        let Self { mut spawns, hosts: mut changes } = self;
        spawns.retain(|(spawner, ..)| !spawner.is_some_and(&is_gone));
        for (_, plan, _, place) in &mut spawns {
            if plan.output.to == OutputTarget::Task(console) {
                plan.output = crate::output::Output::log();
            }
            *place = hosts.place(*place);
        }
        changes.retain(|change| !is_gone(change.asker));
        Self { spawns, hosts: changes }
    }
}
