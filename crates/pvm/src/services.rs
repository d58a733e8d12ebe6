//! What concerns all tasks of a virtual machine: groups, mailboxes, contexts, notices of ends.
//!
//! It is one state machine, of the process that the machine began in: what it is asked and told are
//! arguments, what comes of it is its [`Effect`]s, so that it can be tested without a task, and
//! asked from any process.

mod contexts;
mod effect;
mod groups;
mod mailboxes;
mod notices;

pub use self::effect::Effect;
use crate::error;
use crate::tid::Tid;
use crate::wire::{Packet, PacketReader};

/// See the module.
#[derive(Debug, Default)]
pub struct Services {
    groups: groups::Groups,
    mailboxes: mailboxes::Mailboxes,
    contexts: contexts::Contexts,
    notices: notices::Notices,
}

impl Services {
    /// A task asks (`OP_…`, crate::ops); the answer is among the effects now or later, once. A
    /// question that cannot be read is answered by `PvmBadMsg`, an unknown one by `PvmNotImpl`.
    ///
    /// `alive` tells whether there is such a task.
    pub fn ask(
        &mut self,
        from: Tid,
        op: u64,
        question: PacketReader<'_>,
        alive: &dyn Fn(Tid) -> bool,
        effects: &mut Vec<Effect>,
    ) {
        let known = [
            self.groups.ask(from, op, question, effects),
            self.mailboxes.ask(from, op, question, effects),
            self.contexts.ask(from, op, question, effects),
            self.notices.ask(from, op, question, alive, effects),
        ];
        if !known.contains(&true) {
            effects.push(Effect::Answer(from, error::NOT_IMPL, Packet::default()));
        }
    }

    /// A task has left the machine or ended, or crashed: what it waited for is answered to nobody,
    /// it leaves its groups, and who wanted to know is told.
    pub fn ended(&mut self, tid: Tid, effects: &mut Vec<Effect>) {
        self.groups.ended(tid, effects);
        self.mailboxes.ended(tid);
        self.contexts.ended(tid);
        self.notices.ended(tid, effects);
    }

    /// What a task that has asked for a service waits for, in words.
    pub fn waits(&self, tid: Tid) -> Option<String> {
        self.groups.waits(tid).or_else(|| self.mailboxes.waits_for(tid))
    }

    /// Entries of mailboxes go whose owners have ended, of one class or all.
    pub fn forget_orphans(&mut self, class: Option<&str>) {
        self.mailboxes.forget_orphans(class);
    }
}
