//! What the first process knows about the whole machine: its tasks, those that are being started,
//! and the [services](crate::services).

use crate::error;
use crate::output::Catcher;
use crate::remote::TaskSpec;
use crate::services::{Effect, Services};
use crate::tid::{THIS_HOST, Tid};
use crate::wire::Packet;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use upcall_message::Rank;
use upcall_ulp::arena::ArenaNumber;
use upcall_ulp::slot::SLOTS;

/// Slots of addresses. Each task has a slot that no other task of the machine has in any process,
/// so that it can run in any process (UPVM).
#[derive(Debug, Default)]
struct Slots {
    taken: HashSet<u32>,
    /// The slot after the last one given out. A freed slot is reused as late as possible, because a
    /// task's memory may be needed for a little longer than the task.
    next: u32,
}

impl Slots {
    fn take(&mut self) -> Option<u32> {
        let free = (0..SLOTS as u32)
            .map(|step| (self.next + step) % SLOTS as u32)
            .find(|slot| !self.taken.contains(slot))?;
        self.next = (free + 1) % SLOTS as u32;
        self.taken.insert(free);
        Some(free)
    }

    fn give_back(&mut self, slot: u32) {
        self.taken.remove(&slot);
    }
}

/// How tasks are distributed over the processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

/// Maximum number of processes of a machine.
pub const MOST_PROCESSES: u32 = 256;

/// The process of a task for which there is no room.
const NOWHERE: Rank = usize::MAX;

/// What is known about a task.
#[derive(Debug)]
pub(crate) struct TaskEntry {
    pub(crate) parent: i32,
    pub(crate) program: String,
    slot: u32,
    /// The task that caught its output when it started.
    catcher: Option<Catcher>,
    /// Whether the task has left the machine.
    left: bool,
    /// Whether it is one of the machine's initial tasks.
    first: bool,
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
    requests: HashMap<u64, SpawnRequest>,
    last: u64,
    slots: Slots,
    /// Arenas that other processes have been given since they started. No process has one of them
    /// again, even if its process has ended.
    pub(crate) arenas: Vec<ArenaNumber>,
    place: TaskPlacement,
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

    /// Returns `true` if there are no tasks and none are being started.
    pub(crate) fn is_over(&self) -> bool {
        self.tasks.is_empty() && self.requests.is_empty()
    }

    /// Places `count` tasks. Returns the request's number, and the slots for each process.
    pub(crate) fn request(
        &mut self,
        spawner: Option<Tid>,
        plan: TaskSpec,
        count: usize,
        processes: usize,
    ) -> (u64, Vec<(Rank, Vec<u32>)>) {
        let placed = self.placed;
        let mut free = self.free(processes).into_iter();
        let order = (0..count).map(|at| match &self.place {
            TaskPlacement::Alone => free.next().unwrap_or(NOWHERE),
            TaskPlacement::Block => (placed + at * processes / count) % processes,
            TaskPlacement::Interleave => (placed + at) % processes,
            TaskPlacement::List(list) => {
                list.get((placed + at) % list.len().max(1)).map_or(0, |rank| rank % processes)
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

    /// Processes other than the first that have no task and get none.
    fn free(&self, processes: usize) -> Vec<Rank> {
        let taken = self
            .tasks
            .keys()
            .map(|tid| tid.host() as Rank)
            .chain(self.requests.values().flat_map(|open| open.waits.iter().copied()));
        let taken = taken.collect::<BTreeSet<_>>();
        (1..processes).filter(|rank| !taken.contains(rank)).collect()
    }

    /// Returns `true` if no slot is free.
    fn is_full(&self) -> bool {
        self.slots.taken.len() >= SLOTS
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
        let what = format!("{left} of {count} tasks were not started");
        if self.is_full() {
            return Some(format!("{what}: all {SLOTS} places for tasks are taken. End some tasks"));
        }
        let (taken, most) = (processes - 1, MOST_PROCESSES as usize - 1);
        let why = format!("--as-processes gives each task a process, and all {taken} are taken");
        let out = if taken < most {
            format!("Give --as-processes=MOST, up to {most}")
        } else {
            format!("Without --as-processes a machine has room for {SLOTS} tasks")
        };
        Some(format!("{what}: {why}. {out}"))
    }

    /// Finishes a request for which no process has room.
    pub(crate) fn nowhere(&mut self, request: u64) -> Option<Started> {
        self.started(request, NOWHERE, Vec::new(), "")
    }

    /// Records what a process has started of a request. Returns the result if that was the last
    /// process.
    pub(crate) fn started(
        &mut self,
        request: u64,
        rank: Rank,
        all: Vec<Result<i32, i32>>,
        program: &str,
    ) -> Option<Started> {
        let open = self.requests.get_mut(&request)?;
        open.waits.retain(|one| *one != rank);
        for (at, slot) in open.slots.remove(&rank).unwrap_or_default().into_iter().enumerate() {
            let Some(tid) = all.get(at).and_then(|one| Tid::of(one.ok()?)) else {
                self.slots.give_back(slot);
                continue;
            };
            let (parent, catcher, first) =
                (open.plan.parent, open.plan.output.catcher(), open.spawner.is_none());
            self.tasks.insert(
                tid,
                TaskEntry { parent, program: program.into(), slot, catcher, left: false, first },
            );
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
            .keys()
            .copied()
            .filter(|tid| tid.host() as usize == rank)
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

    /// Passes a task's question to the services.
    pub(crate) fn ask(&mut self, tid: Tid, op: u64, question: &[u8], effects: &mut Vec<Effect>) {
        let alive = |tid: Tid| self.tasks.get(&tid).is_some_and(|entry| !entry.left);
        self.services.ask(tid, op, crate::wire::PacketReader::new(question), &alive, effects);
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
            if entry.first {
                self.worst = self.worst.max(status);
            }
        }
    }

    /// Records that a task that had left has enrolled again.
    pub(crate) fn entered(&mut self, tid: Tid) {
        if let Some(entry) = self.tasks.get_mut(&tid) {
            entry.left = false;
        }
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

    /// Lists all tasks, those of the host, or one: number, parent, host, flags, process, name.
    pub(crate) fn list(
        &self,
        which: i32,
        process: impl Fn(Rank) -> i32,
        flags: impl Fn(Tid) -> i32,
    ) -> (i32, Packet) {
        let all = which == 0 || which == THIS_HOST;
        let fits = |tid: Tid| all || which == tid.number();
        let mut count = 0;
        let mut packet = Packet::default();
        for (tid, entry) in self.tasks.iter().filter(|(tid, entry)| !entry.left && fits(**tid)) {
            count += 1;
            let parent = entry.parent.max(0);
            // As in PVM, a task without a parent has no name here.
            let name = if parent == 0 { "" } else { &entry.program };
            packet = packet
                .ints([tid.number(), parent, THIS_HOST, flags(*tid), process(tid.host() as usize)])
                .text(name);
        }
        if count == 0 && !all { (error::NO_TASK, Packet::default()) } else { (count, packet) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(place: TaskPlacement, counts: &[usize]) -> Vec<Vec<(Rank, u32)>> {
        let mut machine = Machine::new(place);
        let share = |(rank, slots): (Rank, Vec<u32>)| (rank, slots.len() as u32);
        let mut shares = |count: &usize| {
            machine
                .request(None, TaskSpec::default(), *count, 3)
                .1
                .into_iter()
                .map(share)
                .collect::<Vec<_>>()
        };
        counts.iter().map(&mut shares).collect()
    }

    #[test]
    fn a_process_has_tasks_of_a_block_that_follow_each_other() {
        let (_, shares) =
            Machine::new(TaskPlacement::Block).request(None, TaskSpec::default(), 6, 3);
        assert_eq!(shares.len(), 3);
        assert!(shares.iter().all(|(_, slots)| slots[1] == slots[0] + 1), "{shares:?}");
    }

    #[test]
    fn tasks_are_placed_in_blocks_around_or_as_a_list_says() {
        assert_eq!(
            shares(TaskPlacement::Block, &[6, 1, 1]),
            [vec![(0, 2), (1, 2), (2, 2)], vec![(0, 1)], vec![(1, 1)]]
        );
        assert_eq!(
            shares(TaskPlacement::Interleave, &[4, 1]),
            [vec![(0, 2), (1, 1), (2, 1)], vec![(1, 1)]]
        );
        assert_eq!(shares(TaskPlacement::List(vec![2, 2, 0]), &[4]), [vec![(0, 1), (2, 3)]]);
    }

    #[test]
    fn no_two_tasks_have_a_slot_and_what_is_given_back_is_given_again_late() {
        let mut machine = Machine::new(TaskPlacement::Interleave);
        let (request, shares) = machine.request(None, TaskSpec::default(), 4, 2);
        assert_eq!(shares, [(0, vec![0, 2]), (1, vec![1, 3])]);
        let one = Tid::new(0, 1);
        machine.started(request, 0, vec![Ok(one.number()), Err(-7)], "x");
        // One start failed. The other process dies before it has started any task.
        machine.lost(1, &mut Vec::new());
        assert_eq!(machine.slots.taken, HashSet::from([0]));
        assert_eq!(machine.request(None, TaskSpec::default(), 1, 2).1, [(0, vec![4])]);
        machine.ended(one, 0, None, &mut Vec::new());
        let all = machine
            .request(None, TaskSpec::default(), SLOTS, 2)
            .1
            .into_iter()
            .flat_map(|(_, slots)| slots)
            .collect::<Vec<_>>();
        assert_eq!((all.len(), all[SLOTS - 2], all.contains(&4)), (SLOTS - 1, 3, false));
        assert!(machine.is_full() && machine.request(None, TaskSpec::default(), 1, 2).1.is_empty());
    }

    #[test]
    fn where_each_is_alone_there_are_no_more_than_processes() {
        assert_eq!(shares(TaskPlacement::Alone, &[1, 2]), [vec![(1, 1)], vec![(2, 1)]]);
        let mut machine = Machine::new(TaskPlacement::Alone);
        let (request, shares) = machine.request(None, TaskSpec::default(), 2, 1);
        assert!(shares.is_empty());
        let started = machine.nowhere(request).unwrap();
        assert_eq!((started.tids, started.errors), (Vec::new(), vec![error::OUT_OF_RES; 2]));
    }

    #[test]
    fn who_gets_no_room_is_counted_once_with_the_way_out() {
        let told = |processes| Machine::new(TaskPlacement::Alone).no_room(969, 1000, processes);
        let [some, all] = [33, 256].map(|processes| told(processes).unwrap());
        assert_eq!(
            some,
            "969 of 1000 tasks were not started: --as-processes gives each task a process, and \
             all 32 are taken. Give --as-processes=MOST, up to 255"
        );
        assert!(all.contains("all 255 are taken. Without --as-processes"), "{all}");
        let mut machine = Machine::new(TaskPlacement::Block);
        machine.request(None, TaskSpec::default(), SLOTS + 1, 1);
        let full = machine.no_room(1, SLOTS + 1, 1).unwrap();
        assert!(full.contains(&format!("all {SLOTS} places for tasks are taken")), "{full}");
        assert_eq!(machine.no_room(1, 1, 1), None);
    }

    #[test]
    fn what_several_processes_start_is_one_answer_in_its_order() {
        let mut machine = Machine::new(TaskPlacement::Interleave);
        let (request, _) = machine.request(None, TaskSpec::default(), 4, 2);
        let [a, b] = [Tid::new(0, 1), Tid::new(0, 2)].map(|tid| Ok(tid.number()));
        assert!(machine.started(request, 0, vec![a, b], "x").is_none());
        let one = Tid::new(1, 1);
        let started = machine.started(request, 1, vec![Ok(one.number()), Err(-7)], "x").unwrap();
        assert_eq!(
            (started.tids, started.errors),
            (vec![Tid::new(0, 1), one, Tid::new(0, 2)], vec![-7])
        );
        assert!(machine.is_there(one) && !machine.is_over());
        assert_eq!(machine.free(4), [2, 3]);
        let (lost, _) = machine.lost(1, &mut Vec::new());
        assert_eq!((lost, machine.worst), (vec![one], 137));
        assert_eq!(machine.list(0, |_| 7, |_| 4).0, 2);
    }
}
