//! What the first process of a machine knows of all: which tasks there are, those that are being started, and the [services](crate::services).

use crate::error;
use crate::output::To;
use crate::remote::Plan;
use crate::services::{Effect, Services};
use crate::tid::{THIS_HOST, Tid};
use crate::wire::Packet;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use upcall_message::Rank;

/// Which process tasks are started in (V7).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Neighbours together: of those that are started at once each process gets the next few.
    #[default]
    Block,
    /// Each in the next process, around.
    Interleave,
    /// Each alone in a process, of which the first one keeps only the machine: for debuggers (V11). When all are taken no more are started.
    Alone,
    /// As this says: the first one here, the second there, and around.
    List(Vec<usize>),
}

/// The place of a task for which there is none.
const NOWHERE: Rank = usize::MAX;

/// What is known of a task.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) parent: i32,
    pub(crate) program: String,
    output: Option<Tid>,
    /// It has left the machine.
    left: bool,
    /// The machine began with it.
    first: bool,
}

/// Tasks that are being started, in one process or several.
#[derive(Debug)]
struct Request {
    spawner: Option<Tid>,
    plan: Plan,
    /// Where each is to be.
    order: Vec<Rank>,
    started: HashMap<Rank, Vec<Result<i32, i32>>>,
    waits: Vec<Rank>,
}

/// All that was asked for is started, or not.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) spawner: Option<Tid>,
    pub(crate) tids: Vec<Tid>,
    /// For those that were not.
    pub(crate) errors: Vec<i32>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    services: Services,
    tasks: BTreeMap<Tid, Entry>,
    requests: HashMap<u64, Request>,
    last: u64,
    place: Place,
    /// For `Interleave` and `List`: how many were placed. For `Block`: which process is the first one of the next block.
    placed: usize,
    /// The worst status of those that it began with.
    pub(crate) worst: i32,
}

impl Machine {
    pub(crate) fn new(place: Place) -> Self {
        Self { place, ..Self::default() }
    }

    /// Whether no task is there, nor will be.
    pub(crate) fn is_over(&self) -> bool {
        self.tasks.is_empty() && self.requests.is_empty()
    }

    /// Where `count` tasks are to be started: the request's number, and how many in each process.
    pub(crate) fn request(
        &mut self,
        spawner: Option<Tid>,
        plan: Plan,
        count: usize,
        processes: usize,
    ) -> (u64, Vec<(Rank, u32)>) {
        let placed = self.placed;
        let mut free = self.free(processes).into_iter();
        let order = (0..count).map(|at| match &self.place {
            Place::Alone => free.next().unwrap_or(NOWHERE),
            Place::Block => (placed + at * processes / count) % processes,
            Place::Interleave => (placed + at) % processes,
            Place::List(list) => list.get((placed + at) % list.len().max(1)).map_or(0, |rank| rank % processes),
        });
        let order = order.collect::<Vec<_>>();
        self.placed += match self.place {
            // One alone goes to the next process each time, and a block to all of them.
            Place::Block => count.min(processes),
            _ => count,
        };
        let mut shares = BTreeMap::<Rank, u32>::new();
        order.iter().filter(|rank| **rank != NOWHERE).for_each(|rank| *shares.entry(*rank).or_default() += 1);
        self.last += 1;
        let waits = shares.keys().copied().collect();
        self.requests.insert(self.last, Request { spawner, plan, order, started: HashMap::new(), waits });
        (self.last, shares.into_iter().collect())
    }

    /// Processes, but the first one, in which no task is nor will be.
    fn free(&self, processes: usize) -> Vec<Rank> {
        let taken = self
            .tasks
            .keys()
            .map(|tid| tid.host() as Rank)
            .chain(self.requests.values().flat_map(|open| open.waits.iter().copied()));
        let taken = taken.collect::<BTreeSet<_>>();
        (1..processes).filter(|rank| !taken.contains(rank)).collect()
    }

    /// Of a request that no process is asked for: what it came to.
    pub(crate) fn nowhere(&mut self, request: u64) -> Option<Started> {
        self.started(request, NOWHERE, Vec::new(), "")
    }

    /// What a process has started of a request. If that is all: what it came to.
    pub(crate) fn started(&mut self, request: u64, rank: Rank, all: Vec<Result<i32, i32>>, program: &str) -> Option<Started> {
        let open = self.requests.get_mut(&request)?;
        open.waits.retain(|one| *one != rank);
        for number in all.iter().flatten() {
            let Some(tid) = Tid::of(*number) else { continue };
            let output = match open.plan.output.to {
                To::Task(to) => Some(to),
                _ => None,
            };
            let (parent, first) = (open.plan.parent, open.spawner.is_none());
            self.tasks.insert(tid, Entry { parent, program: program.into(), output, left: false, first });
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
        let (tids, errors): (Vec<_>, Vec<_>) = open.order.iter().map(&mut next).partition(Result::is_ok);
        let tids = tids.into_iter().flatten().filter_map(Tid::of).collect();
        let errors = errors.into_iter().filter_map(Result::err).collect();
        Some(Started { spawner: open.spawner, tids, errors })
    }

    /// A process is not there any more: its tasks have ended, and what it was to start is not started.
    pub(crate) fn lost(&mut self, rank: Rank, effects: &mut Vec<Effect>) -> (Vec<Tid>, Vec<Started>) {
        let tids = self.tasks.keys().copied().filter(|tid| tid.host() as usize == rank).collect::<Vec<_>>();
        tids.iter().for_each(|tid| self.ended(*tid, 128 + 9, effects));
        let open =
            self.requests.iter().filter(|(_, open)| open.waits.contains(&rank)).map(|(request, _)| *request).collect::<Vec<_>>();
        let started = open.into_iter().filter_map(|request| self.started(request, rank, Vec::new(), "")).collect();
        (tids, started)
    }

    /// A service that tasks ask for.
    pub(crate) fn ask(&mut self, tid: Tid, op: u64, question: &[u8], effects: &mut Vec<Effect>) {
        let alive = |tid: Tid| self.tasks.get(&tid).is_some_and(|entry| !entry.left);
        self.services.ask(tid, op, crate::wire::Reader::new(question), &alive, effects);
    }

    /// It goes on without the machine.
    pub(crate) fn left(&mut self, tid: Tid, effects: &mut Vec<Effect>) {
        if let Some(entry) = self.tasks.get_mut(&tid).filter(|entry| !entry.left) {
            entry.left = true;
            self.services.ended(tid, effects);
        }
    }

    pub(crate) fn ended(&mut self, tid: Tid, status: i32, effects: &mut Vec<Effect>) {
        self.left(tid, effects);
        if let Some(entry) = self.tasks.remove(&tid)
            && entry.first
        {
            self.worst = self.worst.max(status);
        }
    }

    /// It is one of the machine again.
    pub(crate) fn entered(&mut self, tid: Tid) {
        if let Some(entry) = self.tasks.get_mut(&tid) {
            entry.left = false;
        }
    }

    pub(crate) fn is_there(&self, tid: Tid) -> bool {
        self.tasks.get(&tid).is_some_and(|entry| !entry.left)
    }

    /// All that have not ended, also those that have left the machine.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Tid, &Entry)> {
        self.tasks.iter().map(|(tid, entry)| (*tid, entry))
    }

    /// What a task waits for that has asked for a service.
    pub(crate) fn waits(&self, tid: Tid) -> Option<String> {
        self.services.waits(tid)
    }

    /// Entries of mailboxes go whose owners have ended.
    pub(crate) fn forget_orphans(&mut self, class: Option<&str>) {
        self.services.forget_orphans(class);
    }

    /// How many send their output to this one.
    pub(crate) fn sources(&self, tid: Tid) -> i32 {
        self.tasks.values().filter(|entry| entry.output == Some(tid)).count() as i32
    }

    /// All tasks, those of the host, or one: number, parent, host, flags, process, name.
    pub(crate) fn list(&self, which: i32, process: impl Fn(Rank) -> i32, flags: impl Fn(Tid) -> i32) -> (i32, Packet) {
        let all = which == 0 || which == THIS_HOST;
        let fits = |tid: Tid| all || which == tid.number();
        let mut count = 0;
        let mut packet = Packet::default();
        for (tid, entry) in self.tasks.iter().filter(|(tid, entry)| !entry.left && fits(**tid)) {
            count += 1;
            let parent = entry.parent.max(0);
            // PVM knows no name of who was not spawned.
            let name = if parent == 0 { "" } else { &entry.program };
            packet = packet.ints([tid.number(), parent, THIS_HOST, flags(*tid), process(tid.host() as usize)]).text(name);
        }
        if count == 0 && !all { (error::NO_TASK, Packet::default()) } else { (count, packet) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(place: Place, counts: &[usize]) -> Vec<Vec<(Rank, u32)>> {
        let mut machine = Machine::new(place);
        counts.iter().map(|count| machine.request(None, Plan::default(), *count, 3).1).collect()
    }

    #[test]
    fn tasks_are_placed_in_blocks_around_or_as_a_list_says() {
        assert_eq!(shares(Place::Block, &[6, 1, 1]), [vec![(0, 2), (1, 2), (2, 2)], vec![(0, 1)], vec![(1, 1)]]);
        assert_eq!(shares(Place::Interleave, &[4, 1]), [vec![(0, 2), (1, 1), (2, 1)], vec![(1, 1)]]);
        assert_eq!(shares(Place::List(vec![2, 2, 0]), &[4]), [vec![(0, 1), (2, 3)]]);
    }

    #[test]
    fn where_each_is_alone_there_are_no_more_than_processes() {
        assert_eq!(shares(Place::Alone, &[1, 2]), [vec![(1, 1)], vec![(2, 1)]]);
        let mut machine = Machine::new(Place::Alone);
        let (request, shares) = machine.request(None, Plan::default(), 2, 1);
        assert!(shares.is_empty());
        let started = machine.nowhere(request).unwrap();
        assert_eq!((started.tids, started.errors), (Vec::new(), vec![error::OUT_OF_RES; 2]));
    }

    #[test]
    fn what_several_processes_start_is_one_answer_in_its_order() {
        let mut machine = Machine::new(Place::Interleave);
        let (request, _) = machine.request(None, Plan::default(), 4, 2);
        let [a, b] = [Tid::new(0, 1), Tid::new(0, 2)].map(|tid| Ok(tid.number()));
        assert!(machine.started(request, 0, vec![a, b], "x").is_none());
        let one = Tid::new(1, 1);
        let started = machine.started(request, 1, vec![Ok(one.number()), Err(-7)], "x").unwrap();
        assert_eq!((started.tids, started.errors), (vec![Tid::new(0, 1), one, Tid::new(0, 2)], vec![-7]));
        assert!(machine.is_there(one) && !machine.is_over());
        assert_eq!(machine.free(4), [2, 3]);
        let (lost, _) = machine.lost(1, &mut Vec::new());
        assert_eq!((lost, machine.worst), (vec![one], 137));
        assert_eq!(machine.list(0, |_| 7, |_| 4).0, 2);
    }
}
