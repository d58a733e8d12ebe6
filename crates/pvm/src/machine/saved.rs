//! What the first process knows, in a checkpoint.
//!
//! Saved is what cannot be derived. What is read is not trusted: a state that no machine can be in
//! is refused as a whole.

use super::{Machine, Slots, TaskEntry, TaskPlacement};
use crate::output::OutputTarget;
use crate::remote::TaskSpec;
use crate::services::{SavedServices, Services};
use crate::tid::Tid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use upcall_message::Rank;

/// A spawn that begins when the machine goes on: the spawner, and the number of tasks.
pub(crate) type WaitingSpawn = (Option<Tid>, TaskSpec, u32);

/// The state of the whole machine, except for the tasks themselves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedMachine {
    services: SavedServices,
    tasks: Vec<(Tid, TaskEntry)>,
    next_slot: u32,
    place: TaskPlacement,
    placed: u64,
    worst: i32,
    pub(crate) spawns: Vec<WaitingSpawn>,
}

impl Machine {
    /// The state for a checkpoint. No task is being started, and no end is to be announced.
    pub(crate) fn save(&self, spawns: Vec<WaitingSpawn>) -> SavedMachine {
        SavedMachine {
            services: self.services.save(),
            tasks: self.tasks.iter().map(|(tid, entry)| (*tid, entry.clone())).collect(),
            next_slot: self.slots.next,
            place: self.place.clone(),
            placed: self.placed as u64,
            worst: self.worst,
            spawns,
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

/// Spawns whose tasks have the machine's own streams, or the log, in place of a console's.
pub(crate) fn without_console(spawns: Vec<WaitingSpawn>, console: Tid) -> Vec<WaitingSpawn> {
    let all = spawns.into_iter().filter(|(spawner, ..)| *spawner != Some(console));
    all.map(|(spawner, mut plan, count)| {
        if plan.output.to == OutputTarget::Task(console) {
            plan.output = crate::output::Output::log();
        }
        (spawner, plan, count)
    })
    .collect()
}
