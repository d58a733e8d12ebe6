//! Hosts that come to the machine or leave it while it runs: the first process's part, and that of
//! the others ([`hosts`](crate::hosts)).

pub(in crate::node) mod state;

use self::state::{AnsweredPetition, HostAsker};
use super::Node;
use super::balancing::HostLeave;
use super::seats::NOBODY;
use crate::door::MachineReply;
use crate::error;
use crate::hosts::changes::{HostState, RequestDone, RequestedHost, TO_GO};
use crate::hosts::{HostComes, HostRecruiter, HostStarter, MachineHosts, MemberOrder};
use crate::joining::{JoinPetition, answer_of, refusal_of};
use crate::machine::Machine;
use crate::machine::saved::WaitingHostChange;
use crate::places::TaskPlaces;
use crate::remote::ControlMessage;
use crate::report::report_line;
use crate::tid::Tid;
use crate::wire::{Packet, PacketReader, exact};
use std::time::{Duration, Instant};
use upcall_message::{Petition, Rank};
use upcall_ulp::arena::ArenaNumber;

/// Time within which a host comes.
const WITHIN: Duration = Duration::from_secs(60);

/// Time within which a host comes whose processes are started by hand.
const BY_HAND: Duration = Duration::from_secs(3600);

/// Maximum number of hosts of one request.
const MOST_AT_ONCE: i32 = 256;

/// Maximum number of tasks that are named in one message.
const NAMED: usize = 4096;

/// A host that is to come.
struct WantedHost {
    name: String,
    processes: usize,
}

impl WantedHost {
    /// Reads NAME[:PROCESSES]. Options, as PVM's files of hosts have them, are none here.
    fn of(text: &str) -> Option<Self> {
        let text = text.trim();
        let (name, processes) = match text.rsplit_once(':') {
            Some((name, processes)) => (name, processes.parse().ok()?),
            None => (text, 1),
        };
        Some(Self { name: name.into(), processes })
    }
}

impl Node {
    /// The node, which can start processes of hosts that come later.
    pub(crate) fn with_recruiter(mut self, recruiter: Option<HostRecruiter>) -> Self {
        let patience = recruiter.as_ref().map_or(Duration::MAX, |one| one.start.patience);
        self.coming.recruiter = recruiter;
        self.coming.first = self.hosts.count();
        self.with_patience(patience)
    }

    /// Returns `true` if no host comes or goes.
    pub(super) fn are_hosts_settled(&self) -> bool {
        self.coming.changes.is_quiet()
    }

    /// What becomes of a host, as the first process knows.
    pub(super) fn state_of_host(&self, host: usize) -> HostState {
        self.coming.changes.state(host)
    }

    /// Those of these processes in which tasks can start: if possible, of those that are not
    /// evacuated.
    pub(super) fn that_take_tasks(&self, mut ranks: Vec<Rank>) -> Vec<Rank> {
        let is_lost = |rank| self.link.as_ref().is_some_and(|link| link.is_lost(rank));
        let stays = |rank| self.state_of_host(self.hosts.of(rank)) == HostState::Stays;
        ranks.retain(|rank| !is_lost(*rank) && stays(*rank));
        let is_free = |rank: &Rank| !self.is_evacuated(*rank);
        let free = ranks.iter().copied().filter(is_free).collect::<Vec<_>>();
        if free.is_empty() { ranks } else { free }
    }

    /// In the first process: a task or the console wants hosts to come. The question is their
    /// number, and for each a text.
    pub(super) fn asked_for_hosts(&mut self, tid: Tid, question: &[u8]) {
        match hosts_of(question) {
            Some(all) => self.add_hosts(HostAsker::Task(tid), &all),
            None => self.answer(tid, error::BAD_MSG, Packet::default()),
        }
    }

    /// In the first process: a task or the console wants hosts to go.
    pub(super) fn asked_to_remove(&mut self, tid: Tid, question: &[u8]) {
        match hosts_of(question) {
            Some(all) => self.remove_hosts(HostAsker::Task(tid), &all),
            None => self.answer(tid, error::BAD_MSG, Packet::default()),
        }
    }

    /// In the first process: lets hosts come. The answer comes when each is there, or has failed.
    pub(super) fn add_hosts(&mut self, asker: HostAsker, all: &[String]) {
        let Some(asker) = self.defer_hosts(asker, WaitingHostChange::Add, all) else { return };
        let request = self.coming.changes.request(asker, all.len());
        for (at, text) in all.iter().enumerate() {
            let asked = (request, at);
            let begun = match WantedHost::of(text) {
                Some(wanted) => self.start_host(wanted, asked),
                None => Err(error::BAD_PARAM),
            };
            if let Err(code) = begun {
                self.coming.changes.result(asked, code);
            }
        }
        self.work_at_hosts();
    }

    /// Begins to add a host whose processes this one has started.
    fn start_host(&mut self, wanted: WantedHost, asked: RequestedHost) -> Result<(), i32> {
        let (host, order) = self.expect_host(wanted, HostComes::Started, Some(asked))?;
        let Some(recruiter) = &self.coming.recruiter else { return Err(error::CANT_START) };
        let caller = self.desk.as_ref().map(|desk| desk.caller()).ok_or(error::CANT_START)?;
        match recruiter.recruit(host, &order, caller) {
            Ok(command) => {
                self.coming.commands.extend(command.map(|command| (host, command)));
                Ok(())
            }
            Err(why) => {
                self.give_up_host(host, &why.to_string());
                Err(error::CANT_START)
            }
        }
    }

    /// Gives a host its number, ranks and arenas, and makes them known to all.
    fn expect_host(
        &mut self,
        wanted: WantedHost,
        how: HostComes<'_>,
        asked: Option<RequestedHost>,
    ) -> Result<(usize, MemberOrder), i32> {
        let Self { coming, link: Some(link), machine: Some(machine), .. } = self else {
            return Err(error::CANT_START);
        };
        let Some(recruiter) = &coming.recruiter else { return Err(error::CANT_START) };
        let WantedHost { name, processes } = wanted;
        let known = self.hosts.named(&name, 0);
        let is_there = |host: usize| match coming.changes.state(host) {
            HostState::Comes => true,
            HostState::Failed => false,
            HostState::Stays | HostState::Goes => {
                self.hosts.ranks(host).any(|rank| !link.is_lost(rank))
            }
        };
        if known.is_some_and(is_there) {
            return Err(error::DUP_HOST);
        }
        let mut hosts = self.hosts.clone();
        let is_room = hosts.most() - hosts.size() >= processes && processes > 0;
        let host = hosts.add(name, processes).map_err(|why| {
            report_line!("upcall pvm: {why}");
            if is_room { error::BAD_PARAM } else { error::OUT_OF_RES }
        })?;
        let taken = hosts.ranks(host).map(|_| ArenaNumber::take()).collect::<Option<Vec<_>>>();
        let arenas = taken.ok_or(error::OUT_OF_RES)?;
        let numbers = arenas.iter().map(ArenaNumber::number).collect();
        let invitation = link.expect(hosts.ranks(host), how).map_err(|why| {
            report_line!("upcall pvm: host {} cannot come: {why}", hosts.name(host));
            error::CANT_START
        })?;
        machine.arenas.extend(arenas);
        let is_by_hand =
            matches!(how, HostComes::Started) && recruiter.start.starter == HostStarter::ByHand;
        let until = Instant::now() + if is_by_hand { BY_HAND } else { WITHIN };
        let order = recruiter.order(&hosts, host, (numbers, invitation), how);
        coming.changes.comes(host, until, asked);
        self.hosts = hosts;
        self.balance_over_hosts();
        self.at(until, NOBODY);
        self.tell_all(&ControlMessage::Hosts { all: self.hosts.word() });
        Ok((host, order))
    }

    /// In the first process: a host asks for its order by itself.
    pub(super) fn heard_petition(&mut self, petition: Petition) {
        let token = self.coming.recruiter.as_ref().and_then(|one| one.start.token.as_deref());
        let asked = match JoinPetition::read(petition.bytes(), token) {
            Ok(asked) => asked,
            Err(why) => return petition.refuse(&why.text()),
        };
        let Some(petition) = self.defer_petition(petition) else { return };
        let known = self.hosts.named(&asked.name, 0).filter(|host| self.is_awaited(*host));
        if let Some((host, before)) =
            known.and_then(|host| Some((host, self.coming.orders.get(&host)?)))
        {
            if before.host.as_deref() != petition.host() {
                return petition.refuse(refusal_of(error::DUP_HOST));
            }
            if before.key == asked.key {
                // Its first answer was lost.
                return petition.answer(&before.answer);
            }
            self.give_up_host(host, "it asks again, after its process has ended");
        }
        let wanted = WantedHost { name: asked.name, processes: asked.processes as usize };
        match self.expect_host(wanted, HostComes::ByItself(&petition), None) {
            Ok((number, order)) => {
                let (answer, host) = (answer_of(&order), petition.host().map(Into::into));
                petition.answer(&answer);
                self.coming
                    .orders
                    .insert(number, AnsweredPetition { key: asked.key, host, answer });
            }
            Err(code) => petition.refuse(refusal_of(code)),
        }
    }

    /// Returns `true` if a host comes, and none of its processes is there.
    fn is_awaited(&self, host: usize) -> bool {
        let is_lost = |rank| self.link.as_ref().is_none_or(|link| link.is_lost(rank));
        self.state_of_host(host) == HostState::Comes && self.hosts.ranks(host).all(is_lost)
    }

    /// Handles the table of hosts. It only grows.
    pub(super) fn know_hosts(&mut self, all: &str) {
        if let Some(hosts) = MachineHosts::of_word(all).filter(|hosts| self.hosts.go_on_in(hosts)) {
            self.hosts = hosts;
        }
        let count = self.hosts.count() as u32;
        self.tell_first(ControlMessage::KnowsHosts { count });
    }

    /// In the first process: a process knows this number of hosts.
    pub(super) fn hosts_are_known(&mut self, rank: Rank, count: u32) {
        self.coming.changes.knows(rank, count as usize);
        self.work_at_hosts();
    }

    /// In the first process: a process of another host has reported itself.
    pub(super) fn is_here(&mut self, rank: Rank, process: u32, hosts: u32) {
        self.processes.insert(rank, process);
        self.coming.changes.is_here(rank);
        self.hosts_are_known(rank, hosts);
    }

    /// Handles a process that has joined.
    pub(super) fn joined(&mut self, rank: Rank) {
        if self.machine.is_some() {
            self.count_anew();
            if !matches!(
                self.state_of_host(self.hosts.of(rank)),
                HostState::Stays | HostState::Comes
            ) {
                // Its host was given up before this process was there.
                return self.end_process(rank);
            }
            // Hosts may have begun to come since it was given its order.
            self.tell(rank, ControlMessage::Hosts { all: self.hosts.word() });
        }
    }

    /// In the first process: the command has ended that was to start a host's processes.
    pub(super) fn command_has_ended(&mut self, host: usize, why: &str) {
        if self.state_of_host(host) == HostState::Comes {
            self.give_up_host(host, why);
            self.work_at_hosts();
        }
    }

    /// In the first process: a host does not join, for this reason. Those of its processes that are
    /// there are ended.
    fn give_up_host(&mut self, host: usize, why: &str) {
        if !self.coming.changes.does_not_come(host) {
            return;
        }
        report_line!("upcall pvm: host {} has not joined: {why}", self.hosts.name(host));
        self.balance_over_hosts();
        self.coming.orders.remove(&host);
        self.hosts.ranks(host).for_each(|rank| self.end_process(rank));
        self.expel_host(host);
        self.end_command(host);
    }

    /// Expels the processes of a host that may be stopped: they would keep other hosts out. A
    /// process that is not stopped ends when it has lost the first one.
    fn expel_host(&self, host: usize) {
        let ranks = self.hosts.ranks(host);
        self.link.iter().for_each(|link| link.expel(&ranks));
    }

    fn end_process(&mut self, rank: Rank) {
        if self.link.as_ref().is_some_and(|link| !link.is_lost(rank)) {
            self.tell(rank, ControlMessage::Halt);
        }
    }

    /// Ends the command that has started a host's processes.
    fn end_command(&mut self, host: usize) {
        let command = self.coming.commands.remove(&host);
        if let (Some(recruiter), Some(command)) = (&self.coming.recruiter, command) {
            recruiter.launches.end(command);
        }
    }

    /// In the first process: removes hosts, with all their tasks. The answer comes when each has
    /// gone.
    pub(super) fn remove_hosts(&mut self, asker: HostAsker, all: &[String]) {
        let Some(asker) = self.defer_hosts(asker, WaitingHostChange::Remove, all) else { return };
        let request = self.coming.changes.request(asker, all.len());
        for (at, name) in all.iter().enumerate() {
            if let Err(code) = self.remove_host(name.trim(), (request, at)) {
                self.coming.changes.result((request, at), code);
            }
        }
        self.work_at_hosts();
    }

    fn remove_host(&mut self, name: &str, asked: RequestedHost) -> Result<(), i32> {
        // A task's own host has another name, too, which is not known here.
        let named = Some(name).filter(|name| *name != ".");
        let host = named.and_then(|name| self.hosts.named(name, 0)).ok_or(error::NO_HOST)?;
        if host == 0 {
            // As with PVM, the host that the machine was started on stays.
            return Err(error::BAD_PARAM);
        }
        let is_lost = |rank: Rank| self.link.as_ref().is_none_or(|link| link.is_lost(rank));
        let is_nobody_there = self.hosts.ranks(host).all(is_lost);
        match self.state_of_host(host) {
            HostState::Comes => {
                self.give_up_host(host, "it was to be removed");
                if is_nobody_there {
                    self.coming.changes.result(asked, error::OK);
                    return Ok(());
                }
            }
            HostState::Stays | HostState::Goes if !is_nobody_there => {}
            HostState::Stays | HostState::Goes | HostState::Failed => return Err(error::NO_HOST),
        }
        let leave = self.begin_to_leave(host);
        let ends = match leave {
            HostLeave::AtOnce => Instant::now(),
            HostLeave::By(until) => until,
        };
        let until = ends + TO_GO;
        self.coming.changes.goes(host, until, asked);
        self.balance_over_hosts();
        self.at(until, NOBODY);
        match leave {
            HostLeave::AtOnce => self.end_host(host),
            HostLeave::By(until) => {
                self.at(until, NOBODY);
                self.evacuate_hosts();
            }
        }
        Ok(())
    }

    /// In the first process: ends the processes of a host.
    pub(super) fn end_host(&mut self, host: usize) {
        self.hosts.ranks(host).for_each(|rank| self.end_process(rank));
    }

    /// In the first process: a process of this host has ended; `is_over` says whether it was the
    /// last one. Returns what had become of the host before.
    pub(super) fn host_lost_process(&mut self, host: usize, is_over: bool) -> HostState {
        let before = self.state_of_host(host);
        if before == HostState::Comes {
            self.give_up_host(host, "one of its processes has ended");
        } else if is_over {
            self.has_left(host);
            self.coming.changes.has_gone(host);
            self.end_command(host);
        }
        before
    }

    /// In the first process: handles hosts that should have joined or gone by now.
    #[inline]
    pub(super) fn end_late_hosts(&mut self) {
        if !self.coming.changes.is_quiet() {
            self.give_up_late_hosts();
        }
    }

    #[cold]
    fn give_up_late_hosts(&mut self) {
        self.end_late_leaving();
        let now = Instant::now();
        while let Some(host) = self.coming.changes.overdue(now) {
            self.give_up_host(host, "its processes have not joined in time");
        }
        while let Some(host) = self.coming.changes.next_stubborn(now) {
            report_line!("upcall pvm: the processes of host {} do not end", self.hosts.name(host));
            self.expel_host(host);
            self.end_command(host);
        }
        self.work_at_hosts();
    }

    /// In the first process: takes in the hosts that are complete, and answers requests.
    pub(super) fn work_at_hosts(&mut self) {
        while let Some((host, asked)) = self.next_complete_host() {
            self.admit_host(host);
            let number = self.hosts.number(host);
            match (asked, self.coming.commands.get(&host)) {
                (Some(asked), _) => self.coming.changes.result(asked, number),
                (None, _) => {
                    report_line!("upcall pvm: host {} has joined", self.hosts.name(host));
                }
            }
            if let (Some(recruiter), Some(command)) =
                (&self.coming.recruiter, self.coming.commands.get(&host))
            {
                recruiter.launches.have_started(Some(*command));
            }
            let mut effects = Vec::new();
            if let Some(machine) = &mut self.machine {
                machine.host_added(number, &mut effects);
            }
            self.effects(effects);
        }
        while let Some(RequestDone { asker, results }) = self.coming.changes.next_done() {
            match asker {
                HostAsker::Task(tid) => {
                    let count = results.iter().filter(|result| **result >= 0).count();
                    self.answer(tid, count as i32, Packet::default().ints(results));
                }
                HostAsker::Visitor(visitor, names) => {
                    let all = names.into_iter().zip(results).collect();
                    visitor.answer(&MachineReply::Hosts(all));
                }
            }
        }
    }

    /// Lets tasks move to and from the processes of a host that has joined, which learn where tasks
    /// run that are not in the processes of their names.
    fn admit_host(&mut self, host: usize) {
        self.coming.orders.remove(&host);
        let ranks = self.hosts.ranks(host);
        self.admit_to_moves(ranks.clone());
        self.balance_over_hosts();
        let tasks = self.machine.iter().flat_map(Machine::all);
        let moved = tasks.filter(|(tid, entry)| !TaskPlaces::is_named_in(*tid, entry.rank));
        let mut moved = moved.map(|(tid, entry)| (entry.rank, tid.number())).collect::<Vec<_>>();
        moved.sort_unstable();
        for tasks in moved.chunk_by(|one, other| one.0 == other.0) {
            for tasks in tasks.chunks(NAMED) {
                // The new processes have heard of no epoch of these tasks.
                let tids = tasks.iter().map(|(_, tid)| *tid).collect::<Vec<_>>();
                for rank in ranks.clone() {
                    let (tids, at) = (tids.clone(), tasks[0].0);
                    self.tell(rank, ControlMessage::Lives { tids, rank: at, epoch: 1 });
                }
            }
        }
    }

    fn next_complete_host(&mut self) -> Option<(usize, Option<RequestedHost>)> {
        let link = self.link.as_ref()?;
        // Processes of hosts that have failed or go may be stopped, and get no further tasks.
        let counts = |rank: &Rank| {
            let state = self.state_of_host(self.hosts.of(*rank));
            !link.is_lost(*rank) && matches!(state, HostState::Stays | HostState::Comes)
        };
        let others = (1..self.hosts.size()).filter(counts).collect::<Vec<_>>();
        let ranks = |host: usize| self.hosts.ranks(host);
        self.coming.changes.next_complete(ranks, &others, self.coming.first)
    }
}

/// Reads the hosts of a question.
fn hosts_of(question: &[u8]) -> Option<Vec<String>> {
    let mut question = PacketReader::new(question);
    let count = question.int().filter(|count| (1..=MOST_AT_ONCE).contains(count))?;
    let text = |_| String::from_utf8(exact(&question.text()?)).ok();
    (0..count).map(text).collect()
}
