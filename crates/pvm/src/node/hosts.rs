//! Other hosts of the machine: what a process does about them ([`hosts`](crate::hosts)).

use super::Node;
use super::seats::NOBODY;
use crate::hosts::changes::HostState;
use crate::hosts::{MachineHosts, Partitions, SpawnPlace};
use crate::late::LateItem;
use crate::places::TaskLocation;
use crate::remote::{ControlMessage, LateMessage, MachineLink, SentCounts, TaskSpec};
use crate::report::report_line;
use crate::services::Effect;
use crate::tid::Tid;
use crate::unsent::MachineMessage;
use crate::wire::Packet;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use upcall_message::Rank;

/// The mark of a daemon in a number.
const DAEMON: i32 = i32::MIN;

impl Node {
    /// The node, in a machine whose hosts may be out of reach for this time.
    pub(super) fn with_patience(mut self, patience: Duration) -> Self {
        self.partitions = Partitions::new(patience);
        self
    }

    /// In the first process: handles that process `from` does not reach another one.
    pub(super) fn are_parted(&mut self, from: Rank, rank: Rank) {
        let is_lost = |rank: &Rank| self.link.as_ref().is_none_or(|link| link.is_lost(*rank));
        let is_sound = rank != 0 && rank < self.hosts.size() && from != rank;
        if !is_sound || [from, rank].iter().any(is_lost) {
            return;
        }
        if let Some(until) = self.partitions.add(from, rank, Instant::now()) {
            self.at(until, NOBODY);
        }
        self.part_hold(from, rank);
    }

    /// A process as errors name it.
    pub(super) fn named_process(&self, rank: Rank) -> String {
        if self.hosts.count() > 1 {
            format!("process {rank} on host {}", self.hosts.name(self.hosts.of(rank)))
        } else {
            format!("process {rank} ({})", self.process(rank))
        }
    }

    /// In the first process: ends one of two processes that do not reach each other.
    #[inline]
    pub(super) fn end_partitions(&mut self) {
        if !self.partitions.is_empty() {
            self.expel();
        }
    }

    #[cold]
    fn expel(&mut self) {
        let Self { partitions, link: Some(link), .. } = self else { return };
        for [stays, ends] in partitions.due(Instant::now(), |rank| link.is_lost(rank)) {
            let (host, other) = (self.hosts.name(self.hosts.of(ends)), self.hosts.of(stays));
            let other = self.hosts.name(other);
            report_line!(
                "upcall pvm: process {ends} on host {host} and process {stays} on host {other} do \
                 not reach each other: process {ends} is ended"
            );
            self.tell(ends, ControlMessage::Halt);
        }
    }

    /// In the first process: returns `true` if process `from` may say this about a task: the task
    /// runs there. Where tasks move, only ends and departures are checked: a question may be on its
    /// way while its task moves.
    pub(super) fn is_of_sender(&self, from: Rank, control: &ControlMessage) -> bool {
        let (number, is_checked) = match control {
            ControlMessage::Ask { tid, .. }
            | ControlMessage::Spawn { tid, .. }
            | ControlMessage::Entered { tid }
            | ControlMessage::Spared { tid, .. } => (*tid, self.hosts.are_several()),
            ControlMessage::Left { tid, .. } | ControlMessage::Ended { tid, .. } => (*tid, true),
            _ => return true,
        };
        let rank = |tid: Tid| match self.places.place(tid) {
            TaskLocation::Console => Some(0),
            _ => self.machine.as_ref()?.rank(tid),
        };
        !is_checked || Tid::of(number).and_then(rank) == Some(from)
    }

    /// The host of this process.
    pub(super) fn own_host(&self) -> usize {
        self.hosts.of(self.places.rank())
    }

    /// Numbers of messages that were sent to processes of other hosts.
    pub(super) fn sent_afar(&self) -> SentCounts {
        match &self.link {
            Some(link) if self.hosts.are_several() && self.machine.is_none() => link.sent_afar(),
            _ => Vec::new(),
        }
    }

    /// In the first process: carries out the effects of what has happened in process `from`, which
    /// had sent so many messages before.
    pub(super) fn effects_after(&mut self, effects: Vec<Effect>, from: Rank, sent: &SentCounts) {
        if sent.is_empty() {
            return self.effects(effects);
        }
        for effect in effects {
            let after = match &effect {
                Effect::Message { to, .. } => self.place_afar(*to, sent),
                Effect::Answer(..) => None,
            };
            match (effect, after) {
                (Effect::Message { from: source, to, tag, context, data }, Some((rank, count))) => {
                    let late = LateMessage { after: from, count, source, to, tag, context, data };
                    self.tell(rank, ControlMessage::Late(late));
                }
                (effect, _) => self.effects(vec![effect]),
            }
        }
    }

    /// The process of a task, with the number of messages that were sent to it.
    fn place_afar(&self, to: Tid, sent: &SentCounts) -> Option<(Rank, u64)> {
        let TaskLocation::There(rank) = self.places.place(to) else { return None };
        sent.iter().find(|(one, _)| *one == rank).copied()
    }

    /// Delivers what had to wait for messages of other processes. A task gets everything in its
    /// order. To be called when messages were handled, or a process has ended.
    #[cold]
    pub(super) fn deliver_late(&mut self) {
        let Self { link: Some(link), arrivals, late, moving, .. } = self else { return };
        let mut waiting = BTreeSet::new();
        let is_due = |item: &mut LateItem| {
            let has_come = match item {
                // All messages for a task that has stopped are here, by the marks of its move.
                LateItem::Message(one) if moving.stopped.contains_key(&one.to) => true,
                LateItem::Message(one) => {
                    link.has_taken(one.after, one.count) && !arrivals.has_kept_of(one.after)
                }
                LateItem::Answer { .. } => true,
            };
            let is_due = has_come && !waiting.contains(&item.receiver());
            if !is_due {
                waiting.insert(item.receiver());
            }
            is_due
        };
        for item in late.extract_if(.., is_due).collect::<Vec<_>>() {
            match item {
                LateItem::Message(LateMessage { source, to, tag, context, data, .. }) => {
                    self.message(MachineMessage { source, to, tag, context, data });
                }
                LateItem::Answer { tid, code, packet } => self.give_answer(tid, code, &packet),
            }
        }
    }

    /// Handles an answer of the first process. It must not overtake a message: a task that catches
    /// output ends when the answer says that no other task writes any.
    pub(super) fn answered(&mut self, tid: i32, code: i32, packet: Vec<u8>) {
        let Some(tid) = Tid::of(tid) else { return };
        match self.late.iter().any(|item| item.receiver() == tid) {
            true => self.late.push(LateItem::Answer { tid, code, packet }),
            false => self.give_answer(tid, code, &packet),
        }
    }

    fn give_answer(&mut self, tid: Tid, code: i32, packet: &[u8]) {
        if let Some(seat) = self.seat(tid.number()) {
            self.reply(seat, code, &Packet::default().bytes(packet));
        }
    }

    /// Reports a program that is not on this host. The first process knows only the files of its
    /// own.
    pub(super) fn report_missing(&mut self, plan: &TaskSpec) {
        let own = self.own_host();
        if own == 0 {
            return;
        }
        let (host, program) = (self.hosts.name(own), plan.program.to_string_lossy());
        let why = self.programs.refusal(&plan.program, false).unwrap_or_else(|| {
            format!("{program} is no program that can run as a task: it must be on each host")
        });
        report_line!("upcall pvm: on host {host}: {why}");
    }

    /// In the first process: passes a question to the services.
    pub(super) fn ask_services(
        &mut self,
        tid: Tid,
        op: u64,
        question: &[u8],
        effects: &mut Vec<Effect>,
    ) {
        let Self { machine: Some(machine), hosts, link, .. } = self else { return };
        let host = |number: i32, rank: Option<Rank>| {
            let host = hosts.numbered(number & !DAEMON).or(rank.map(|rank| hosts.of(rank)))?;
            has_process(hosts, link.as_ref(), host).then(|| hosts.number(host))
        };
        machine.ask(tid, op, question, &host, effects);
    }

    /// In the first process: handles the end of a host, if this process was its last one.
    /// Returns what had become of the host before.
    pub(super) fn lose_host(&mut self, rank: Rank, effects: &mut Vec<Effect>) -> HostState {
        let host = self.hosts.of(rank);
        if !self.hosts.are_several() {
            return HostState::Stays;
        }
        let is_over = !has_process(&self.hosts, self.link.as_ref(), host);
        let before = self.host_lost_process(host, is_over);
        let was_there = matches!(before, HostState::Stays | HostState::Goes);
        if let Some(machine) = self.machine.as_mut().filter(|_| is_over && was_there) {
            machine.host_ended(self.hosts.number(host), effects);
            if before == HostState::Stays {
                report_line!("upcall pvm: host {} has ended", self.hosts.name(host));
            }
        }
        before
    }

    /// The machine's hosts that have not ended: number and name.
    pub(super) fn host_list(&self) -> Vec<(i32, String)> {
        let living = |host: &usize| {
            matches!(self.state_of_host(*host), HostState::Stays | HostState::Goes)
                && has_process(&self.hosts, self.link.as_ref(), *host)
        };
        let all = (0..self.hosts.count()).filter(living);
        all.map(|host| (self.hosts.number(host), self.hosts.name(host).into())).collect()
    }

    /// The same, for a task, with the number of hosts.
    pub(super) fn packed_hosts(&self) -> (i32, Packet) {
        let all = self.host_list();
        let add = |packet: Packet, (number, name): &(i32, String)| {
            packet.int(*number).text(&crate::wire::written(name))
        };
        (all.len() as i32, all.iter().fold(Packet::default(), add))
    }

    /// The number of the host of a task, or of a host's number. As PVM does, takes an id that is
    /// none for that of a task where ids of that form are given.
    pub(super) fn host_of_task(&self, number: i32) -> i32 {
        let of_task = || Tid::of(number).map_or(0, |tid| self.hosts.of(self.places.process(tid)));
        self.hosts.number(self.hosts.numbered(number & !DAEMON).unwrap_or_else(of_task))
    }

    /// The place that a spawner names, which is on this host: `.` and the names of hosts.
    pub(super) fn spawn_place(&self, name: &str, is_complement: bool) -> SpawnPlace {
        let name = if name.is_empty() { "." } else { name };
        match (self.hosts.named(name, self.own_host()), is_complement) {
            (Some(host), false) => SpawnPlace::On(host as u32),
            (Some(host), true) => SpawnPlace::Except(host as u32),
            (None, false) => SpawnPlace::Nowhere,
            (None, true) => SpawnPlace::Any,
        }
    }
}

/// Returns `true` if a process of a host has not ended.
fn has_process(hosts: &MachineHosts, link: Option<&MachineLink>, host: usize) -> bool {
    hosts.ranks(host).any(|rank| !link.is_some_and(|link| link.is_lost(rank)))
}
