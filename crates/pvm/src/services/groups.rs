//! Groups: tasks that have joined under a name, each with its own instance number, and barriers
//! among them.
//!
//! Sources: PVM's manual (`pvm_joingroup` and related pages), and where that is silent, experiments
//! with PVM's group server. A group exists from its first join until its last member leaves. This
//! implementation differs where that server would leave tasks waiting for ever, or corrupt the
//! group: when a member ends that others wait for ([`Meeting`]), and when a count is given that can
//! never be reached.

use super::effect::Effect;
use crate::error;
use crate::ops::*;
use crate::tid::Tid;
use crate::wire::{Packet, PacketReader, shown};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// All groups of a machine.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: BTreeMap<String, TaskGroup>,
    /// The names of each task's groups.
    of: HashMap<Tid, BTreeSet<String>>,
}

#[derive(Debug, Default)]
struct TaskGroup {
    /// Indexed by instance. The last element is never `None`.
    members: Vec<Option<Tid>>,
    /// Unused instances below the last one.
    holes: BTreeSet<usize>,
    instances: HashMap<Tid, usize>,
    state: TaskGroupState,
    barrier: Option<Meeting>,
    freeze: Option<Meeting>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum TaskGroupState {
    /// Tasks join and leave.
    #[default]
    Dynamic = 0,
    /// No task can join any more.
    Frozen = 1,
    /// A member has left the frozen group. Only lookups still work.
    Broken = 2,
}

/// Members that wait until the requested number of them has arrived.
///
/// A member that ends or leaves is not waited for any more: the count decreases by one if that
/// member was among those that wait, or if the count needs every current member. If the count is
/// higher than the group's size and a member only leaves, nothing changes: it may be about to come
/// back, as others are about to join.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Meeting {
    /// The count that the first member gave.
    asked: usize,
    wanted: usize,
    here: BTreeSet<Tid>,
}

impl Meeting {
    /// Adds a member. Returns all that wait if the meeting is now complete.
    fn call(slot: &mut Option<Self>, tid: Tid, count: usize) -> Result<Option<BTreeSet<Tid>>, i32> {
        let meeting =
            slot.get_or_insert_with(|| Self { asked: count, wanted: count, here: BTreeSet::new() });
        if count != meeting.asked && count != meeting.wanted {
            return Err(error::MISMATCH);
        }
        meeting.here.insert(tid);
        Ok(Self::over(slot))
    }

    /// Removes a member that has left a group of `size` members. Returns all that wait if the
    /// meeting is now complete.
    fn gone(slot: &mut Option<Self>, tid: Tid, size: usize, ended: bool) -> Option<BTreeSet<Tid>> {
        let meeting = slot.as_mut()?;
        let waited = meeting.here.remove(&tid);
        if waited || meeting.wanted == size || (ended && meeting.wanted > size) {
            meeting.wanted -= 1;
        }
        Self::over(slot)
    }

    fn over(slot: &mut Option<Self>) -> Option<BTreeSet<Tid>> {
        slot.take_if(|meeting| meeting.here.len() >= meeting.wanted || meeting.here.is_empty())
            .map(|meeting| meeting.here)
    }
}

/// A count as a task gives it. -1 means the group's size.
fn counted(count: i32, size: usize) -> Result<usize, i32> {
    match count {
        -1 => Ok(size),
        1.. => Ok(count as usize),
        _ => Err(error::BAD_PARAM),
    }
}

fn answer(effects: &mut Vec<Effect>, tasks: impl IntoIterator<Item = Tid>, code: i32) {
    effects.extend(tasks.into_iter().map(|tid| Effect::Answer(tid, code, Packet::default())));
}

impl TaskGroup {
    fn size(&self) -> usize {
        self.instances.len()
    }

    fn join(&mut self, tid: Tid) -> Result<usize, i32> {
        if self.state != TaskGroupState::Dynamic {
            return Err(error::NOT_IN_GROUP);
        }
        if self.instances.contains_key(&tid) {
            return Err(error::DUP_GROUP);
        }
        let instance = self.holes.pop_first().unwrap_or_else(|| {
            self.members.push(None);
            self.members.len() - 1
        });
        self.members[instance] = Some(tid);
        self.instances.insert(tid, instance);
        Ok(instance)
    }

    fn leave(&mut self, tid: Tid, ended: bool, effects: &mut Vec<Effect>) -> Result<(), i32> {
        let size = self.size();
        let instance = self.instances.remove(&tid).ok_or(error::NOT_IN_GROUP)?;
        self.members[instance] = None;
        self.holes.insert(instance);
        while self.members.pop_if(|last| last.is_none()).is_some() {
            self.holes.remove(&self.members.len());
        }
        let over = Meeting::gone(&mut self.barrier, tid, size, ended);
        if self.state != TaskGroupState::Dynamic {
            self.state = TaskGroupState::Broken;
            let waiting = self.barrier.take().map(|barrier| barrier.here);
            answer(effects, over.into_iter().chain(waiting).flatten(), error::NO_GROUP);
            return Ok(());
        }
        answer(effects, over.into_iter().flatten(), error::OK);
        if let Some(over) =
            Meeting::gone(&mut self.freeze, tid, size, ended).filter(|over| !over.is_empty())
        {
            self.frozen(over, effects);
        }
        Ok(())
    }

    fn barrier(&mut self, tid: Tid, count: i32, effects: &mut Vec<Effect>) -> Result<(), i32> {
        if self.state == TaskGroupState::Broken {
            return Err(error::NO_GROUP);
        }
        if !self.instances.contains_key(&tid) {
            return Err(error::NOT_IN_GROUP);
        }
        let count = counted(count, self.size())?;
        answer(
            effects,
            Meeting::call(&mut self.barrier, tid, count)?.into_iter().flatten(),
            error::OK,
        );
        Ok(())
    }

    fn freeze(&mut self, tid: Tid, count: i32, effects: &mut Vec<Effect>) -> Result<(), i32> {
        match self.state {
            TaskGroupState::Dynamic if self.instances.contains_key(&tid) => {}
            TaskGroupState::Dynamic => return Err(error::NOT_IN_GROUP),
            TaskGroupState::Frozen => return Err(error::DUP_GROUP),
            TaskGroupState::Broken => return Err(error::NO_GROUP),
        }
        let count = counted(count, self.size())?;
        if let Some(over) = Meeting::call(&mut self.freeze, tid, count)? {
            self.frozen(over, effects);
        }
        Ok(())
    }

    fn frozen(&mut self, asked: BTreeSet<Tid>, effects: &mut Vec<Effect>) {
        self.state = TaskGroupState::Frozen;
        answer(effects, asked, self.size() as i32);
    }

    /// The number of instances, and the tid of each; 0 for an unused one.
    fn members(&self) -> Packet {
        let members = self.members.iter().map(|member| member.map_or(0, Tid::number));
        Packet::default().int(self.members.len() as i32).ints(members)
    }
}

/// A group in a checkpoint. All else follows from this.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedGroup {
    name: String,
    members: Vec<Option<Tid>>,
    state: TaskGroupState,
    barrier: Option<Meeting>,
    freeze: Option<Meeting>,
}

impl SavedGroup {
    /// The group with its name. `None`: no group is like this.
    fn restore(self) -> Option<(String, TaskGroup)> {
        let Self { name, members, state, barrier, freeze } = self;
        let (mut holes, mut instances) = (BTreeSet::new(), HashMap::new());
        for (at, member) in members.iter().enumerate() {
            let is_new = match member {
                Some(tid) => instances.insert(*tid, at).is_none(),
                None => holes.insert(at),
            };
            is_new.then_some(())?;
        }
        let fits = |meeting: &Meeting| {
            let is_member = |tid: &Tid| instances.contains_key(tid);
            (1..meeting.wanted).contains(&meeting.here.len()) && meeting.here.iter().all(is_member)
        };
        let is_right = matches!(members.last(), Some(Some(_)))
            && [&barrier, &freeze].into_iter().flatten().all(fits);
        is_right.then_some((name, TaskGroup { members, holes, instances, state, barrier, freeze }))
    }
}

impl Groups {
    /// All groups, for a checkpoint.
    pub(super) fn save(&self) -> Vec<SavedGroup> {
        let save = |(name, group): (&String, &TaskGroup)| SavedGroup {
            name: name.clone(),
            members: group.members.clone(),
            state: group.state,
            barrier: group.barrier.clone(),
            freeze: group.freeze.clone(),
        };
        self.groups.iter().map(save).collect()
    }

    /// The groups of a checkpoint. `None`: no groups are like this.
    pub(super) fn restore(saved: Vec<SavedGroup>) -> Option<Self> {
        let mut all = Self::default();
        for group in saved {
            let (name, group) = group.restore()?;
            for tid in group.instances.keys() {
                all.of.entry(*tid).or_default().insert(name.clone());
            }
            all.groups.insert(name, group).is_none().then_some(())?;
        }
        Some(all)
    }

    /// Each question has a group's name (text), and the integers listed here. The answer is the
    /// code, unless the table says otherwise.
    ///
    /// | OP_GROUP_… | takes | answers |
    /// |---|---|---|
    /// | JOIN | | the instance number |
    /// | LEAVE | | |
    /// | TASK | instance | the tid |
    /// | INSTANCE | tid | the instance number |
    /// | SIZE | | the number of members |
    /// | BARRIER | count; -1: the group's size | when that many have called |
    /// | FREEZE | count; -1: the group's size | when that many have called: the number of members |
    /// | MEMBERS | | the number of members; the number of instances; the tid of each, or 0 |
    /// | LIST | no name, nothing | the number of groups; for each the items below |
    ///
    /// LIST gives for each group its name (text), its number of members, its state (0 dynamic, 1
    /// frozen, 2 broken), and its members as in MEMBERS. For its barrier and its freeze follow the
    /// number to wait for (0: none waits), the number that wait, and their tids.
    pub(super) fn ask(
        &mut self,
        from: Tid,
        op: u64,
        question: PacketReader<'_>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if !(OP_GROUP_JOIN..=OP_GROUP_LIST).contains(&op) {
            return false;
        }
        match self.answer(from, op, question, effects) {
            Ok(Some((code, packet))) => effects.push(Effect::Answer(from, code, packet)),
            Ok(None) => {}
            Err(code) => effects.push(Effect::Answer(from, code, Packet::default())),
        }
        true
    }

    /// `None`: the answer is among the effects, or comes later.
    fn answer(
        &mut self,
        from: Tid,
        op: u64,
        mut question: PacketReader<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<Option<(i32, Packet)>, i32> {
        if op == OP_GROUP_LIST {
            return Ok(Some(self.list()));
        }
        let name = question.text().ok_or(error::BAD_MSG)?;
        let mut number = || question.int().ok_or(error::BAD_MSG);
        if name.is_empty() {
            return Err(error::NULL_GROUP);
        }
        if op == OP_GROUP_JOIN {
            let instance = self.groups.entry(name.clone()).or_default().join(from)?;
            self.of.entry(from).or_default().insert(name);
            return Ok(Some((instance as i32, Packet::default())));
        }
        let group = self.groups.get_mut(&name).ok_or(error::NO_GROUP)?;
        let code = match op {
            OP_GROUP_LEAVE => {
                group.leave(from, false, effects)?;
                self.left(from, &name);
                error::OK
            }
            OP_GROUP_TASK => {
                let member = usize::try_from(number()?)
                    .ok()
                    .and_then(|instance| *group.members.get(instance)?);
                member.ok_or(error::NO_INST)?.number()
            }
            OP_GROUP_INSTANCE => {
                let instance = Tid::of(number()?).and_then(|tid| group.instances.get(&tid));
                *instance.ok_or(error::NOT_IN_GROUP)? as i32
            }
            OP_GROUP_SIZE => group.size() as i32,
            OP_GROUP_BARRIER => return group.barrier(from, number()?, effects).map(|()| None),
            OP_GROUP_FREEZE => return group.freeze(from, number()?, effects).map(|()| None),
            _ if group.state == TaskGroupState::Broken => return Err(error::NO_GROUP),
            _ => return Ok(Some((group.size() as i32, group.members()))),
        };
        Ok(Some((code, Packet::default())))
    }

    /// Forgets that a task is a member, and removes an empty group.
    fn left(&mut self, tid: Tid, name: &str) {
        if self.groups.get(name).is_some_and(|group| group.size() == 0) {
            self.groups.remove(name);
        }
        if let Some(names) = self.of.get_mut(&tid) {
            names.remove(name);
            if names.is_empty() {
                self.of.remove(&tid);
            }
        }
    }

    /// Describes what a task waits for.
    pub(super) fn waits(&self, tid: Tid) -> Option<String> {
        self.of.get(&tid)?.iter().find_map(|name| {
            let group = self.groups.get(name)?;
            let words = |meeting: &Meeting, what: &str| {
                let (here, wanted) = (meeting.here.len(), meeting.wanted);
                meeting.here.contains(&tid).then(|| {
                    format!(
                        "others at the {what} of group {:?}: {here} of {wanted} are there",
                        shown(name)
                    )
                })
            };
            let barrier = group.barrier.as_ref().and_then(|meeting| words(meeting, "barrier"));
            barrier.or_else(|| words(group.freeze.as_ref()?, "freeze"))
        })
    }

    fn list(&self) -> (i32, Packet) {
        let all = self.groups.iter().fold(Packet::default(), |packet, (name, group)| {
            let packet = packet
                .text(name)
                .ints([group.size() as i32, group.state as i32])
                .bytes(group.members().as_bytes());
            [&group.barrier, &group.freeze].into_iter().fold(
                packet,
                |packet, meeting| match meeting {
                    Some(Meeting { wanted, here, .. }) => packet
                        .ints([*wanted as i32, here.len() as i32])
                        .ints(here.iter().map(|tid| tid.number())),
                    None => packet.ints([0, 0]),
                },
            )
        });
        (self.groups.len() as i32, all)
    }

    /// Removes a task that has ended from all groups.
    pub(super) fn ended(&mut self, tid: Tid, effects: &mut Vec<Effect>) {
        for name in self.of.remove(&tid).unwrap_or_default() {
            let gone = self.groups.get_mut(&name).map(|group| group.leave(tid, true, effects));
            debug_assert_eq!(gone, Some(Ok(())));
            self.left(tid, &name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Tid = Tid::new(0, 1);
    const B: Tid = Tid::new(0, 2);
    const C: Tid = Tid::new(0, 3);
    const D: Tid = Tid::new(1, 4);

    /// The answers that a question or an end leads to: tasks and codes.
    type Told = Vec<(Tid, i32)>;

    fn told(effects: Vec<Effect>) -> Told {
        let one = |effect| {
            if let Effect::Answer(tid, code, _) = effect {
                (tid, code)
            } else {
                panic!("{effect:?}")
            }
        };
        effects.into_iter().map(one).collect()
    }

    fn asked(groups: &mut Groups, from: Tid, op: u64, question: Packet) -> Vec<Effect> {
        let mut effects = Vec::new();
        assert!(groups.ask(from, op, PacketReader::new(question.as_bytes()), &mut effects));
        effects
    }

    fn ask(groups: &mut Groups, from: Tid, op: u64, name: &str, number: i32) -> Told {
        told(asked(groups, from, op, Packet::default().text(name).int(number)))
    }

    /// The immediate answer to the asking task.
    fn code(groups: &mut Groups, from: Tid, op: u64, name: &str, number: i32) -> i32 {
        let told = ask(groups, from, op, name, number);
        assert!(told.len() == 1 && told[0].0 == from, "{told:?}");
        told[0].1
    }

    fn end(groups: &mut Groups, tid: Tid) -> Told {
        let mut effects = Vec::new();
        groups.ended(tid, &mut effects);
        told(effects)
    }

    fn group(members: &[Tid]) -> Groups {
        let mut groups = Groups::default();
        for (at, tid) in members.iter().enumerate() {
            assert_eq!(code(&mut groups, *tid, OP_GROUP_JOIN, "g", 0), at as i32);
        }
        groups
    }

    #[test]
    fn of_several_free_instances_the_lowest_is_given() {
        let mut groups = group(&[A, B, C, D]);
        end(&mut groups, C);
        end(&mut groups, A);
        assert_eq!(code(&mut groups, C, OP_GROUP_JOIN, "g", 0), 0);
        assert_eq!(code(&mut groups, A, OP_GROUP_JOIN, "g", 0), 2);
    }

    #[test]
    fn instances_are_the_lowest_that_are_free() {
        let mut groups = group(&[A, B, C]);
        assert_eq!(code(&mut groups, B, OP_GROUP_JOIN, "g", 0), error::DUP_GROUP);
        assert_eq!(code(&mut groups, B, OP_GROUP_LEAVE, "g", 0), error::OK);
        assert_eq!(code(&mut groups, B, OP_GROUP_LEAVE, "g", 0), error::NOT_IN_GROUP);
        assert_eq!(code(&mut groups, B, OP_GROUP_TASK, "g", 1), error::NO_INST);
        assert_eq!(code(&mut groups, B, OP_GROUP_INSTANCE, "g", B.number()), error::NOT_IN_GROUP);
        assert_eq!(code(&mut groups, D, OP_GROUP_JOIN, "g", 0), 1);
        assert_eq!(code(&mut groups, B, OP_GROUP_TASK, "g", 1), D.number());
        assert_eq!(code(&mut groups, B, OP_GROUP_INSTANCE, "g", D.number()), 1);
        assert_eq!(code(&mut groups, B, OP_GROUP_SIZE, "g", 0), 3);
        for instance in [-1, 3, i32::MAX] {
            assert_eq!(code(&mut groups, A, OP_GROUP_TASK, "g", instance), error::NO_INST);
        }
        // The group ends with its last member.
        assert_eq!(
            (end(&mut groups, A), end(&mut groups, C), end(&mut groups, D)),
            (vec![], vec![], vec![])
        );
        assert_eq!(code(&mut groups, B, OP_GROUP_SIZE, "g", 0), error::NO_GROUP);
        assert!(groups.groups.is_empty() && groups.of.is_empty());
    }

    #[test]
    fn members_are_told_with_the_holes_between_them() {
        let mut groups = group(&[A, B, C, D]);
        end(&mut groups, D);
        end(&mut groups, B);
        let effects = asked(&mut groups, D, OP_GROUP_MEMBERS, Packet::default().text("g"));
        assert_eq!(
            effects,
            [Effect::Answer(D, 2, Packet::default().ints([3, A.number(), 0, C.number()]))]
        );
    }

    #[test]
    fn bad_questions_are_told_so() {
        let mut groups = group(&[A]);
        for op in OP_GROUP_JOIN..OP_GROUP_LIST {
            assert_eq!(told(asked(&mut groups, B, op, Packet::default())), [(B, error::BAD_MSG)]);
            assert_eq!(code(&mut groups, B, op, "", 0), error::NULL_GROUP);
            if op != OP_GROUP_JOIN {
                assert_eq!(code(&mut groups, B, op, "none", 1), error::NO_GROUP);
            }
        }
        for op in [OP_GROUP_TASK, OP_GROUP_INSTANCE, OP_GROUP_BARRIER, OP_GROUP_FREEZE] {
            assert_eq!(
                told(asked(&mut groups, A, op, Packet::default().text("g"))),
                [(A, error::BAD_MSG)]
            );
        }
        assert!(!groups.ask(A, OP_GROUP_LIST + 1, PacketReader::new(&[]), &mut Vec::new()));
    }

    #[test]
    fn a_barrier_waits_for_so_many() {
        let mut groups = group(&[A, B, C]);
        assert_eq!(code(&mut groups, D, OP_GROUP_BARRIER, "g", 3), error::NOT_IN_GROUP);
        for bad in [0, -2] {
            assert_eq!(code(&mut groups, A, OP_GROUP_BARRIER, "g", bad), error::BAD_PARAM);
        }
        for _ in 0..2 {
            assert_eq!(ask(&mut groups, A, OP_GROUP_BARRIER, "g", 3), []);
            assert_eq!(code(&mut groups, B, OP_GROUP_BARRIER, "g", 2), error::MISMATCH);
            assert_eq!(ask(&mut groups, B, OP_GROUP_BARRIER, "g", -1), []);
            assert_eq!(ask(&mut groups, C, OP_GROUP_BARRIER, "g", 3), [(A, 0), (B, 0), (C, 0)]);
        }
        // A barrier of some members, and a barrier of a single one.
        assert_eq!(ask(&mut groups, C, OP_GROUP_BARRIER, "g", 2), []);
        assert_eq!(ask(&mut groups, A, OP_GROUP_BARRIER, "g", 2), [(A, 0), (C, 0)]);
        assert_eq!(code(&mut groups, A, OP_GROUP_BARRIER, "g", 1), error::OK);
    }

    #[test]
    fn nobody_waits_at_a_barrier_for_a_member_that_has_ended() {
        // C had not called. Only A and B remain.
        let mut groups = group(&[A, B, C]);
        assert_eq!(ask(&mut groups, A, OP_GROUP_BARRIER, "g", 3), []);
        assert_eq!(ask(&mut groups, B, OP_GROUP_BARRIER, "g", 3), []);
        assert_eq!(end(&mut groups, C), [(A, 0), (B, 0)]);
        // C itself waited. The others still give the original count, or the group's size.
        for count in [3, 2, -1] {
            let mut groups = group(&[A, B, C]);
            assert_eq!(ask(&mut groups, A, OP_GROUP_BARRIER, "g", 3), []);
            assert_eq!(ask(&mut groups, C, OP_GROUP_BARRIER, "g", 3), []);
            assert_eq!(end(&mut groups, C), []);
            assert_eq!(ask(&mut groups, B, OP_GROUP_BARRIER, "g", count), [(A, 0), (B, 0)]);
        }
        // All members that waited have ended. The next call starts over.
        let mut groups = group(&[A, B, C]);
        assert_eq!(ask(&mut groups, A, OP_GROUP_BARRIER, "g", 3), []);
        assert_eq!(end(&mut groups, A), []);
        assert_eq!(ask(&mut groups, B, OP_GROUP_BARRIER, "g", 2), []);
        assert_eq!(ask(&mut groups, C, OP_GROUP_BARRIER, "g", 2), [(B, 0), (C, 0)]);
    }

    #[test]
    fn a_member_that_leaves_is_not_waited_for_if_all_were_needed() {
        let mut groups = group(&[A, B, C]);
        assert_eq!(ask(&mut groups, A, OP_GROUP_BARRIER, "g", -1), []);
        assert_eq!(ask(&mut groups, B, OP_GROUP_BARRIER, "g", -1), []);
        assert_eq!(ask(&mut groups, C, OP_GROUP_LEAVE, "g", 0), [(A, 0), (B, 0), (C, 0)]);
        // The barrier needs two of three members, and the third is not among them.
        let mut groups = group(&[A, B, C]);
        assert_eq!(ask(&mut groups, A, OP_GROUP_BARRIER, "g", 2), []);
        assert_eq!(end(&mut groups, C), []);
        assert_eq!(ask(&mut groups, B, OP_GROUP_BARRIER, "g", 2), [(A, 0), (B, 0)]);
        // The barrier needs three, and one has not joined yet. A member that leaves may come back;
        // a member that has ended cannot.
        let mut groups = group(&[A, B]);
        assert_eq!(ask(&mut groups, A, OP_GROUP_BARRIER, "g", 3), []);
        assert_eq!(code(&mut groups, B, OP_GROUP_LEAVE, "g", 0), 0);
        assert_eq!(code(&mut groups, B, OP_GROUP_JOIN, "g", 0), 1);
        assert_eq!(end(&mut groups, B), []);
        assert_eq!(code(&mut groups, C, OP_GROUP_JOIN, "g", 0), 1);
        assert_eq!(ask(&mut groups, C, OP_GROUP_BARRIER, "g", 3), [(A, 0), (C, 0)]);
    }

    #[test]
    fn a_frozen_group_is_joined_by_nobody_and_breaks_when_one_leaves() {
        let mut groups = group(&[A, B, C]);
        assert_eq!(code(&mut groups, D, OP_GROUP_FREEZE, "g", 3), error::NOT_IN_GROUP);
        assert_eq!(ask(&mut groups, A, OP_GROUP_FREEZE, "g", -1), []);
        assert_eq!(code(&mut groups, B, OP_GROUP_FREEZE, "g", 2), error::MISMATCH);
        assert_eq!(ask(&mut groups, B, OP_GROUP_FREEZE, "g", 3), []);
        assert_eq!(ask(&mut groups, C, OP_GROUP_FREEZE, "g", 3), [(A, 3), (B, 3), (C, 3)]);
        assert_eq!(code(&mut groups, A, OP_GROUP_FREEZE, "g", 3), error::DUP_GROUP);
        assert_eq!(code(&mut groups, D, OP_GROUP_JOIN, "g", 0), error::NOT_IN_GROUP);
        assert_eq!(ask(&mut groups, A, OP_GROUP_BARRIER, "g", 3), []);
        assert_eq!(ask(&mut groups, B, OP_GROUP_BARRIER, "g", 3), []);
        assert_eq!(end(&mut groups, B), [(A, error::NO_GROUP)]);
        for op in [OP_GROUP_BARRIER, OP_GROUP_FREEZE, OP_GROUP_MEMBERS] {
            assert_eq!(code(&mut groups, A, op, "g", 1), error::NO_GROUP);
        }
        assert_eq!(code(&mut groups, D, OP_GROUP_SIZE, "g", 0), 2);
        assert_eq!(code(&mut groups, D, OP_GROUP_TASK, "g", 2), C.number());
        assert_eq!(code(&mut groups, A, OP_GROUP_LEAVE, "g", 0), error::OK);
        assert_eq!(code(&mut groups, C, OP_GROUP_LEAVE, "g", 0), error::OK);
        assert_eq!(code(&mut groups, D, OP_GROUP_JOIN, "g", 0), 0);
        // A freeze does not wait for a member that has ended, either.
        let mut groups = group(&[A, B, C]);
        assert_eq!(ask(&mut groups, A, OP_GROUP_FREEZE, "g", 3), []);
        assert_eq!(ask(&mut groups, B, OP_GROUP_FREEZE, "g", 3), []);
        assert_eq!(end(&mut groups, C), [(A, 2), (B, 2)]);
        assert_eq!(code(&mut groups, D, OP_GROUP_JOIN, "g", 0), error::NOT_IN_GROUP);
    }

    #[test]
    fn all_groups_are_listed_with_those_that_wait() {
        let mut groups = group(&[A, B]);
        assert_eq!(code(&mut groups, C, OP_GROUP_JOIN, "a", 0), 0);
        assert_eq!(ask(&mut groups, B, OP_GROUP_BARRIER, "g", 2), []);
        let a = Packet::default().text("a").ints([1, 0, 1, C.number(), 0, 0, 0, 0]);
        let all = a.text("g").ints([2, 0, 2, A.number(), B.number(), 2, 1, B.number(), 0, 0]);
        assert_eq!(
            asked(&mut groups, D, OP_GROUP_LIST, Packet::default()),
            [Effect::Answer(D, 2, all)]
        );
    }

    #[test]
    fn ten_thousand_are_in_one_group() {
        const COUNT: u32 = 10_000;
        let tasks = (1..=COUNT).map(|number| Tid::new(0, number)).collect::<Vec<_>>();
        let began = std::time::Instant::now();
        let mut groups = group(&tasks);
        for _ in 0..3 {
            for tid in &tasks[1..] {
                assert_eq!(ask(&mut groups, *tid, OP_GROUP_BARRIER, "g", -1), []);
            }
            assert_eq!(ask(&mut groups, tasks[0], OP_GROUP_BARRIER, "g", -1).len(), tasks.len());
        }
        // All but one wait, and end one after the other.
        for tid in &tasks[1..] {
            assert_eq!(ask(&mut groups, *tid, OP_GROUP_BARRIER, "g", COUNT as i32), []);
        }
        for tid in &tasks[2..] {
            assert_eq!(end(&mut groups, *tid), []);
        }
        assert_eq!(end(&mut groups, tasks[0]), [(tasks[1], 0)]);
        assert_eq!(code(&mut groups, tasks[5], OP_GROUP_JOIN, "g", 0), 0);
        assert_eq!(code(&mut groups, tasks[1], OP_GROUP_INSTANCE, "g", tasks[1].number()), 1);
        // Far below one second, unless an operation's cost grows with the group's size.
        assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    }
}
