//! What the first process knows about the whole machine: its tasks, those that are being started,
//! and the [services](crate::services).

pub(crate) mod saved;

use crate::error;
use crate::hosts::MachineHosts;
use crate::output::Catcher;
use crate::remote::TaskSpec;
use crate::services::{Effect, KnownTargets, Services};
use crate::shown::readable;
use crate::task::is_spared;
use crate::tid::{MOST_PROCESSES, Tid};
use crate::wire::Packet;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use upcall_message::Rank;
use upcall_ulp::arena::ArenaNumber;
use upcall_ulp::slot::SLOTS;

/// Slots of addresses. Each task has a slot that no other task of the machine has in any process,
/// so that it can run in any process (UPVM). Where tasks have several, groups of them are numbered.
#[derive(Debug)]
struct Slots {
    /// Number of tasks for which there are slots.
    count: u32,
    taken: HashSet<u32>,
    /// The slot after the last one given out. A freed slot is reused as late as possible, because a
    /// task's memory may be needed for a little longer than the task.
    next: u32,
}

impl Default for Slots {
    fn default() -> Self {
        Self { count: SLOTS as u32, taken: HashSet::new(), next: 0 }
    }
}

impl Slots {
    fn take(&mut self) -> Option<u32> {
        // A search for each of many tasks would take long.
        if self.taken.len() >= self.count as usize {
            return None;
        }
        let free = (0..self.count)
            .map(|step| (self.next + step) % self.count)
            .find(|slot| !self.taken.contains(slot))?;
        self.next = (free + 1) % self.count;
        self.taken.insert(free);
        Some(free)
    }

    fn give_back(&mut self, slot: u32) {
        self.taken.remove(&slot);
    }
}

/// How tasks are distributed over the processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskPlacement {
    /// Neighbours together: of the tasks that are spawned at once, each process gets the next few.
    #[default]
    Block,
    /// Each task in the next process, round robin.
    Interleave,
    /// One task per process, and none in the first, which only keeps the machine. For debuggers. No
    /// task is started when all processes are taken.
    Alone,
    /// The first task in the first listed process, and so on, repeating the list.
    List(Vec<usize>),
}

/// Maximum length of a program's name, in characters.
const LONGEST_NAME: usize = 255;

/// The process of a task for which there is no room.
const NOWHERE: Rank = usize::MAX;

/// What is known about a task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TaskEntry {
    pub(crate) parent: i32,
    pub(crate) program: String,
    /// The process in which it runs.
    pub(crate) rank: Rank,
    /// The number of announcements of where it runs.
    epoch: u32,
    slot: u32,
    /// The task that caught its output when it started.
    catcher: Option<Catcher>,
    /// Whether the task has left the machine.
    left: bool,
    /// Whether a reset spares it.
    spared: bool,
    /// Whether it is one of the machine's initial tasks.
    first: bool,
}

#[cfg(test)]
impl TaskEntry {
    /// A task of this program in a process.
    pub(crate) fn in_process(program: &str, rank: Rank) -> Self {
        let (epoch, slot, left, spared, first) = (0, 0, false, false, true);
        let (parent, program, catcher) = (0, program.into(), None);
        Self { parent, program, rank, epoch, slot, catcher, left, spared, first }
    }
}

/// Tasks that are being started, in one process or in several.
#[derive(Debug)]
struct SpawnRequest {
    spawner: Option<Tid>,
    plan: TaskSpec,
    /// The process of each task.
    order: Vec<Rank>,
    /// The slots that each process was given.
    slots: BTreeMap<Rank, Vec<u32>>,
    started: HashMap<Rank, Vec<Result<i32, i32>>>,
    waits: Vec<Rank>,
}

/// The result of a finished request.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) spawner: Option<Tid>,
    pub(crate) plan: TaskSpec,
    pub(crate) tids: Vec<Tid>,
    /// For the tasks that were not started.
    pub(crate) errors: Vec<i32>,
}

/// The state of the whole machine.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    services: Services,
    tasks: BTreeMap<Tid, TaskEntry>,
    /// Tasks that have ended and whose place was announced. Their ends are to be announced, too.
    gone: VecDeque<Tid>,
    requests: HashMap<u64, SpawnRequest>,
    last: u64,
    slots: Slots,
    /// Arenas that other processes have been given since they started. No process has one of them
    /// again, even if its process has ended.
    pub(crate) arenas: Vec<ArenaNumber>,
    /// Number of arenas that each process of another host has asked for.
    asked_arenas: BTreeMap<Rank, u32>,
    place: TaskPlacement,
    /// The processes in which tasks start. `None`: all.
    used: Option<Vec<Rank>>,
    /// For `Interleave` and `List`: number of tasks placed. For `Block`: the first process of the
    /// next block.
    placed: usize,
    /// Whether [`no_room`](Self::no_room) has been reported.
    is_no_room_told: bool,
    /// The worst status of the initial tasks.
    pub(crate) worst: i32,
}

impl Machine {
    pub(crate) fn new(place: TaskPlacement) -> Self {
        Self { place, ..Self::default() }
    }

    /// The machine, with slots for this number of tasks.
    pub(crate) fn with_places(mut self, count: u32) -> Self {
        self.slots.count = count;
        self
    }

    /// From now on, tasks start only in these processes, unless none is named.
    pub(crate) fn start_only_in(&mut self, ranks: Vec<Rank>) {
        self.used = Some(ranks).filter(|ranks| !ranks.is_empty());
    }

    /// Returns `true` if each task has a process of its own.
    pub(crate) fn keeps_apart(&self) -> bool {
        self.place == TaskPlacement::Alone
    }

    /// Returns `true` if there are no tasks and none are being started.
    pub(crate) fn is_over(&self) -> bool {
        self.tasks.is_empty() && self.requests.is_empty()
    }

    /// Places `count` tasks in processes of these ranks, or in any. Returns the request's number,
    /// and the slots for each process.
    pub(crate) fn request(
        &mut self,
        spawner: Option<Tid>,
        plan: TaskSpec,
        count: usize,
        processes: usize,
        ranks: Option<&[Rank]>,
    ) -> (u64, Vec<(Rank, Vec<u32>)>) {
        let placed = self.placed;
        let mut free = self.free(processes).into_iter();
        let used = || self.used.clone().unwrap_or_else(|| (0..processes).collect());
        let used = ranks.map_or_else(used, <[Rank]>::to_vec);
        let processes = used.len();
        let order = (0..count).map(|at| match &self.place {
            TaskPlacement::Alone => free.next().unwrap_or(NOWHERE),
            TaskPlacement::Block => used[(placed + at * processes / count) % processes],
            TaskPlacement::Interleave => used[(placed + at) % processes],
            TaskPlacement::List(list) => {
                let rank = list.get((placed + at) % list.len().max(1)).copied().unwrap_or(0);
                if used.contains(&rank) { rank } else { used[rank % processes] }
            }
        });
        let mut order = order.collect::<Vec<_>>();
        self.placed += match self.place {
            // A single task advances by one process, and a block covers all of them.
            TaskPlacement::Block => count.min(processes),
            _ => count,
        };
        let mut slots = BTreeMap::<Rank, Vec<u32>>::new();
        for rank in order.iter_mut().filter(|rank| **rank != NOWHERE) {
            match self.slots.take() {
                Some(slot) => slots.entry(*rank).or_default().push(slot),
                None => *rank = NOWHERE,
            }
        }
        self.last += 1;
        let waits = slots.keys().copied().collect();
        let shares = slots.clone().into_iter().collect();
        self.requests.insert(
            self.last,
            SpawnRequest { spawner, plan, order, slots, started: HashMap::new(), waits },
        );
        (self.last, shares)
    }

    /// Returns `true` if tasks are being started in one of these processes.
    pub(crate) fn starts_in(&self, ranks: &Range<Rank>) -> bool {
        self.requests.values().flat_map(|open| &open.waits).any(|rank| ranks.contains(rank))
    }

    /// Counts a request of a process of another host for an arena. Returns `true` if it gets one.
    ///
    /// There are at most `most` processes. Together they get no more than half of all arenas so.
    pub(crate) fn allows_arena(&mut self, rank: Rank, most: usize) -> bool {
        let asked = self.asked_arenas.entry(rank).or_default();
        *asked = asked.saturating_add(1);
        *asked as usize <= (ArenaNumber::COUNT as usize / 2 / most.max(1)).max(1)
    }

    /// The number of the last request.
    #[cfg(test)]
    pub(crate) fn last_request(&self) -> u64 {
        self.last
    }

    /// Processes other than the first that have no task and get none.
    fn free(&self, processes: usize) -> Vec<Rank> {
        let taken = self
            .tasks
            .values()
            .map(|entry| entry.rank)
            .chain(self.requests.values().flat_map(|open| open.waits.iter().copied()));
        let taken = taken.collect::<BTreeSet<_>>();
        (1..processes).filter(|rank| !taken.contains(rank)).collect()
    }

    /// Returns `true` if no slot is free.
    fn is_full(&self) -> bool {
        self.slots.taken.len() >= self.slots.count as usize
    }

    /// The report that `left` of `count` tasks have no room. `None`: it was made before.
    pub(crate) fn no_room(
        &mut self,
        left: usize,
        count: usize,
        processes: usize,
    ) -> Option<String> {
        if std::mem::replace(&mut self.is_no_room_told, true) {
            return None;
        }
        let places = self.slots.count;
        let what = format!("{left} of {count} tasks were not started");
        if self.is_full() {
            return Some(format!(
                "{what}: all {places} places for tasks are taken. End some tasks"
            ));
        }
        let (taken, most) = (processes - 1, MOST_PROCESSES as usize - 1);
        let why = format!("--as-processes gives each task a process, and all {taken} are taken");
        let out = if taken < most {
            format!("Give --as-processes=MOST, up to {most}")
        } else {
            format!("Without --as-processes a machine has room for {places} tasks")
        };
        Some(format!("{what}: {why}. {out}"))
    }

    /// Finishes a request for which no process has room.
    pub(crate) fn nowhere(&mut self, request: u64) -> Option<Started> {
        self.started(request, NOWHERE, Vec::new(), "")
    }

    /// Records what a process has started of a request. Returns the result if that was the last
    /// process. A name that another task has is none: a process cannot take that task over.
    pub(crate) fn started(
        &mut self,
        request: u64,
        rank: Rank,
        mut all: Vec<Result<i32, i32>>,
        program: &str,
    ) -> Option<Started> {
        let open = self.requests.get_mut(&request)?;
        let program = readable(program, LONGEST_NAME);
        open.waits.retain(|one| *one != rank);
        for (at, slot) in open.slots.remove(&rank).unwrap_or_default().into_iter().enumerate() {
            let named = all.get(at).and_then(|one| Tid::of(one.ok()?));
            let Some(tid) = named.filter(|tid| !self.tasks.contains_key(tid)) else {
                self.slots.give_back(slot);
                if let Some(one) = all.get_mut(at).filter(|one| one.is_ok()) {
                    *one = Err(error::SYS_ERR);
                }
                continue;
            };
            let plan = &open.plan;
            let entry = TaskEntry {
                parent: plan.parent,
                program: program.clone(),
                rank,
                epoch: 0,
                slot,
                catcher: plan.output.catcher(),
                left: false,
                spared: is_spared(&plan.options),
                first: open.spawner.is_none(),
            };
            self.tasks.insert(tid, entry);
        }
        open.started.insert(rank, all);
        if !open.waits.is_empty() {
            return None;
        }
        let mut open = self.requests.remove(&request)?;
        open.started.values_mut().for_each(|all| all.reverse());
        let mut next = |rank: &Rank| match *rank {
            NOWHERE => Err(error::OUT_OF_RES),
            _ => open.started.get_mut(rank).and_then(Vec::pop).unwrap_or(Err(error::HOST_FAIL)),
        };
        let (tids, errors): (Vec<_>, Vec<_>) =
            open.order.iter().map(&mut next).partition(Result::is_ok);
        let tids = tids.into_iter().flatten().filter_map(Tid::of).collect();
        let errors = errors.into_iter().filter_map(Result::err).collect();
        Some(Started { spawner: open.spawner, plan: open.plan, tids, errors })
    }

    /// Handles the end of a process: its tasks have ended, and what it was to start has failed.
    pub(crate) fn lost(
        &mut self,
        rank: Rank,
        effects: &mut Vec<Effect>,
    ) -> (Vec<Tid>, Vec<Started>) {
        let tids = self
            .tasks
            .iter()
            .filter(|(_, entry)| entry.rank == rank)
            .map(|(tid, _)| *tid)
            .collect::<Vec<_>>();
        tids.iter().for_each(|tid| self.ended(*tid, 128 + 9, None, effects));
        let open = self
            .requests
            .iter()
            .filter(|(_, open)| open.waits.contains(&rank))
            .map(|(request, _)| *request)
            .collect::<Vec<_>>();
        let started = open
            .into_iter()
            .filter_map(|request| self.started(request, rank, Vec::new(), ""))
            .collect();
        (tids, started)
    }

    /// The host with this number is part of the machine from now on: tasks that asked for a notice
    /// get one.
    pub(crate) fn host_added(&mut self, host: i32, effects: &mut Vec<Effect>) {
        self.services.host_added(host, effects);
    }

    /// Returns `true` if a task wants notices about hosts.
    pub(crate) fn watch_hosts(&self) -> bool {
        self.services.watch_hosts()
    }

    /// The numbers of the hosts whose end is to be reported to tasks.
    pub(crate) fn watched_hosts(&self) -> BTreeSet<i32> {
        self.services.watched_hosts()
    }

    /// Handles the end of the host with this number: tasks that asked for a notice get one.
    pub(crate) fn host_ended(&mut self, host: i32, effects: &mut Vec<Effect>) {
        self.services.host_ended(host, effects);
    }

    /// Passes a task's question to the services. `host` returns the number of the host that a
    /// number names, with the process of the task that it names, if the host has not ended.
    pub(crate) fn ask(
        &mut self,
        tid: Tid,
        op: u64,
        question: &[u8],
        host: &dyn Fn(i32, Option<Rank>) -> Option<i32>,
        effects: &mut Vec<Effect>,
    ) {
        let alive = |tid: Tid| self.tasks.get(&tid).is_some_and(|entry| !entry.left);
        let rank = |number: i32| Some(self.tasks.get(&Tid::of(number)?)?.rank);
        let host = |number: i32| host(number, rank(number));
        let known = KnownTargets { alive: &alive, host: &host };
        self.services.ask(tid, op, crate::wire::PacketReader::new(question), known, effects);
    }

    /// Records that a task has left the machine and goes on without it.
    pub(crate) fn left(&mut self, tid: Tid, effects: &mut Vec<Effect>) {
        if let Some(entry) = self.tasks.get_mut(&tid).filter(|entry| !entry.left) {
            entry.left = true;
            self.services.ended(tid, effects);
        }
    }

    /// Records that a task has ended, and notifies the tasks that caught its output: `catcher`, and
    /// the one from its start if that is another one. They are notified only when the task is no
    /// [source](Self::sources) any more, because a catcher then asks how many sources are left.
    pub(crate) fn ended(
        &mut self,
        tid: Tid,
        status: i32,
        catcher: Option<Catcher>,
        effects: &mut Vec<Effect>,
    ) {
        self.left(tid, effects);
        if let Some(entry) = self.tasks.remove(&tid) {
            let before = entry
                .catcher
                .filter(|before| catcher.is_none_or(|catcher| catcher.to != before.to));
            effects.extend(before.iter().chain(&catcher).map(|catcher| catcher.told_of_end(tid)));
            self.slots.give_back(entry.slot);
            if entry.epoch > 0 {
                self.gone.push_back(tid);
            }
            if entry.first {
                self.worst = self.worst.max(status);
            }
        }
    }

    /// Records that a task runs in this process from now on.
    pub(crate) fn moved(&mut self, tid: Tid, rank: Rank) {
        if let Some(entry) = self.tasks.get_mut(&tid) {
            entry.rank = rank;
        }
    }

    /// Records that a task that had left has enrolled again.
    pub(crate) fn entered(&mut self, tid: Tid) {
        if let Some(entry) = self.tasks.get_mut(&tid) {
            entry.left = false;
        }
    }

    /// Records whether a reset spares a task.
    pub(crate) fn spare(&mut self, tid: Tid, is_spared: bool) {
        if let Some(entry) = self.tasks.get_mut(&tid) {
            entry.spared = is_spared;
        }
    }

    /// The tasks that a reset spares.
    pub(crate) fn spared(&self) -> impl Iterator<Item = Tid> {
        self.tasks.iter().filter(|(_, entry)| entry.spared).map(|(tid, _)| *tid)
    }

    /// Counts an announcement of where tasks run that had none before. Returns its epoch.
    pub(crate) fn announced(&mut self, tids: &[i32]) -> u32 {
        const FIRST: u32 = 1;
        for tid in tids.iter().copied().filter_map(Tid::of) {
            self.tasks.entry(tid).and_modify(|entry| entry.epoch = FIRST);
        }
        FIRST
    }

    /// The next task that has ended and whose end is to be announced.
    pub(crate) fn next_gone(&mut self) -> Option<Tid> {
        self.gone.pop_front()
    }

    /// The process in which a task runs. `None`: it has ended, or there never was such a task.
    pub(crate) fn rank(&self, tid: Tid) -> Option<Rank> {
        self.tasks.get(&tid).map(|entry| entry.rank)
    }

    /// The number of a task's addresses.
    pub(crate) fn slot(&self, tid: Tid) -> Option<u32> {
        self.tasks.get(&tid).map(|entry| entry.slot)
    }

    /// The name of a task's program.
    pub(crate) fn program(&self, tid: Tid) -> Option<&str> {
        self.tasks.get(&tid).map(|entry| &*entry.program)
    }

    pub(crate) fn is_there(&self, tid: Tid) -> bool {
        self.tasks.get(&tid).is_some_and(|entry| !entry.left)
    }

    /// All tasks that have not ended, including those that have left the machine.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Tid, &TaskEntry)> {
        self.tasks.iter().map(|(tid, entry)| (*tid, entry))
    }

    /// Describes what a task waits for that has asked for a service.
    pub(crate) fn waits(&self, tid: Tid) -> Option<String> {
        self.services.waits(tid)
    }

    /// Removes mailbox entries whose owners have ended.
    pub(crate) fn forget_orphans(&mut self, class: Option<&str>) {
        self.services.forget_orphans(class);
    }

    /// Number of tasks whose output goes to this one.
    pub(crate) fn sources(&self, tid: Tid) -> i32 {
        self.tasks
            .values()
            .filter(|entry| entry.catcher.is_some_and(|catcher| catcher.to == tid))
            .count() as i32
    }

    /// Lists all tasks, those of a host, or one: number, parent, host, flags, process, name.
    pub(crate) fn list(
        &self,
        which: i32,
        hosts: &MachineHosts,
        process: impl Fn(Rank) -> i32,
        flags: impl Fn(Tid) -> i32,
    ) -> (i32, Packet) {
        let host = hosts.numbered(which);
        let all = which == 0 || host.is_some();
        let fits = |tid: Tid, rank: Rank| match host {
            Some(host) => hosts.of(rank) == host,
            None => all || which == tid.number(),
        };
        let mut count = 0;
        let mut packet = Packet::default();
        let listed = |(tid, entry): &(&Tid, &TaskEntry)| !entry.left && fits(**tid, entry.rank);
        for (tid, entry) in self.tasks.iter().filter(listed) {
            count += 1;
            let parent = entry.parent.max(0);
            // As in PVM, a task without a parent has no name here.
            let name = if parent == 0 { "" } else { &entry.program };
            packet = packet
                .ints([tid.number(), parent, hosts.number(hosts.of(entry.rank))])
                .ints([flags(*tid), process(entry.rank)])
                .text(name);
        }
        if count == 0 && !all { (error::NO_TASK, Packet::default()) } else { (count, packet) }
    }
}

#[cfg(test)]
mod tests;
