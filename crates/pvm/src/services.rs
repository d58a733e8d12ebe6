//! Services that concern all tasks of a machine: groups, mailboxes, contexts, notices of ends.
//!
//! They form one state machine in the machine's first process. Questions and events are arguments,
//! and the results are [`Effect`]s, so that the services can be tested without a task, and asked
//! from any process.

mod contexts;
mod effect;
mod groups;
mod mailboxes;
mod notices;

pub use self::effect::Effect;
use crate::error;
use crate::tid::Tid;
use crate::wire::{Packet, PacketReader};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a notice can be about.
#[derive(Clone, Copy)]
pub struct KnownTargets<'a> {
    /// Returns whether there is such a task.
    pub alive: &'a dyn Fn(Tid) -> bool,
    /// Returns the number of the host that a host's number or a task's id names, unless it has
    /// ended.
    pub host: &'a dyn Fn(i32) -> Option<i32>,
}

/// The state of all services.
#[derive(Debug, Default)]
pub struct Services {
    groups: groups::Groups,
    mailboxes: mailboxes::Mailboxes,
    contexts: contexts::Contexts,
    notices: notices::Notices,
}

/// The state of all services in a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedServices {
    groups: Vec<groups::SavedGroup>,
    mailboxes: mailboxes::SavedMailboxes,
    contexts: (Vec<(i32, Tid)>, i32),
    notices: notices::SavedNotices,
}

impl Services {
    /// The state for a checkpoint.
    pub fn save(&self) -> SavedServices {
        SavedServices {
            groups: self.groups.save(),
            mailboxes: self.mailboxes.save(),
            contexts: self.contexts.save(),
            notices: self.notices.save(),
        }
    }

    /// The services of a checkpoint. `None`: no services are in this state.
    ///
    /// Notices about hosts that are gone, or have joined since, come later: call
    /// [`host_ended`](Self::host_ended) and [`host_added`](Self::host_added).
    pub fn restore(saved: SavedServices) -> Option<Self> {
        Some(Self {
            groups: groups::Groups::restore(saved.groups)?,
            mailboxes: mailboxes::Mailboxes::restore(saved.mailboxes)?,
            contexts: contexts::Contexts::restore(saved.contexts)?,
            notices: notices::Notices::restore(saved.notices),
        })
    }

    /// Handles a task's question (`OP_…`, crate::ops). Exactly one answer is among the effects, now
    /// or later: `PvmBadMsg` for a malformed question, `PvmNotImpl` for an unknown one.
    pub fn ask(
        &mut self,
        from: Tid,
        op: u64,
        question: PacketReader<'_>,
        known: KnownTargets<'_>,
        effects: &mut Vec<Effect>,
    ) {
        let all = [
            self.groups.ask(from, op, question, effects),
            self.mailboxes.ask(from, op, question, effects),
            self.contexts.ask(from, op, question, effects),
            self.notices.ask(from, op, question, known, effects),
        ];
        if !all.contains(&true) {
            effects.push(Effect::Answer(from, error::NOT_IMPL, Packet::default()));
        }
    }

    /// Handles a task that has left the machine, ended or crashed. Its pending questions are
    /// dropped, it leaves its groups, and tasks that asked for a notice get one.
    pub fn ended(&mut self, tid: Tid, effects: &mut Vec<Effect>) {
        self.groups.ended(tid, effects);
        self.mailboxes.ended(tid);
        self.contexts.ended(tid);
        self.notices.ended(tid, effects);
    }

    /// The host with this number is part of the machine from now on.
    pub fn host_added(&mut self, host: i32, effects: &mut Vec<Effect>) {
        self.notices.host_added(host, effects);
    }

    /// Returns `true` if a task wants notices about hosts.
    pub fn watch_hosts(&self) -> bool {
        self.notices.watch_hosts()
    }

    /// The numbers of the hosts whose end is to be reported.
    pub fn watched_hosts(&self) -> BTreeSet<i32> {
        self.notices.watched_hosts()
    }

    /// Handles the end of the host with this number.
    pub fn host_ended(&mut self, host: i32, effects: &mut Vec<Effect>) {
        self.notices.host_ended(host, effects);
    }

    /// Describes what a task waits for that has asked for a service.
    pub fn waits(&self, tid: Tid) -> Option<String> {
        self.groups.waits(tid).or_else(|| self.mailboxes.waits_for(tid))
    }

    /// Removes mailbox entries whose owners have ended, of one class or of all.
    pub fn forget_orphans(&mut self, class: Option<&str>) {
        self.mailboxes.forget_orphans(class);
    }
}
