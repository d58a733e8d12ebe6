//! Notices: messages to tasks that other tasks have ended.
//!
//! Sources: PVM's manual (`pvm_notify`), and experiments with PVM. A notice comes from a daemon
//! without a host, contains the tid as one integer, and has the context in which it was requested.
//! If the tid belongs to no task, now or ever, the notice is sent at once. A request that is
//! withdrawn is answered as if the event had occurred.
//!
//! The notice of a host's end contains the host's number, also if a task's id has named the host. A
//! notice of hosts that have joined has how many they are, and then the number of each. Its request
//! gives the number of notices that it wants: -1 for all, 0 for no more. A later request with the
//! same tag and context replaces an earlier one.
//!
//! No two tasks have a route of their own, so the notice of a route's end is sent at once, from the
//! requesting task itself, as PVM does where there is no route.

use super::KnownTargets;
use super::effect::Effect;
use crate::error;
use crate::ops::OP_NOTIFY;
use crate::tid::Tid;
use crate::wire::{Packet, PacketReader};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

const TASK_EXIT: i32 = 1;
const HOST_DELETE: i32 = 2;
const HOST_ADD: i32 = 3;
const ROUTE_ADD: i32 = 4;
const ROUTE_DELETE: i32 = 5;
/// Combined with one of these: withdraws the request.
const CANCEL: i32 = 256;
/// The sender of notices: PVM's mark of a daemon.
const DAEMON: i32 = i32::MIN;
/// A tid that is ordered before those of all tasks.
const NOBODY: Tid = Tid::new(0, 0);

/// All open requests for notices.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// Requests by the watched task, the requesting task, and the order of requests.
    exits: BTreeMap<(Tid, Tid, u64), NoticeTag>,
    /// Pairs of a requesting and a watched task.
    of: BTreeSet<(Tid, Tid)>,
    count: u64,
    /// Requests about ends of hosts, in their order.
    deletes: Vec<DeleteNotice>,
    /// Requests about hosts that come, in their order.
    adds: Vec<AddNotice>,
}

/// All open requests, in a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedNotices {
    /// The watched and the requesting task of each request, in their order.
    exits: Vec<(Tid, Tid, NoticeTag)>,
    deletes: Vec<DeleteNotice>,
    adds: Vec<AddNotice>,
}

/// A request for notices of hosts that come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AddNotice {
    to: Tid,
    how: NoticeTag,
    /// Number of notices that it still wants; negative: all.
    left: i32,
}

/// A request for a notice of a host's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DeleteNotice {
    host: i32,
    to: Tid,
    how: NoticeTag,
}

/// A notice's tag and context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NoticeTag {
    tag: i32,
    context: i32,
}

impl NoticeTag {
    fn tell(self, from: i32, to: Tid, about: i32, effects: &mut Vec<Effect>) {
        let Self { tag, context } = self;
        effects.push(Effect::Message {
            from,
            to,
            tag,
            context,
            data: Packet::default().int(about),
        });
    }
}

impl Notices {
    /// All requests, for a checkpoint.
    pub(super) fn save(&self) -> SavedNotices {
        let all = self.exits.iter().map(|((about, to, count), how)| (*count, (*about, *to, *how)));
        let mut all = all.collect::<Vec<_>>();
        all.sort_unstable_by_key(|(count, _)| *count);
        let exits = all.into_iter().map(|(_, one)| one).collect();
        SavedNotices { exits, deletes: self.deletes.clone(), adds: self.adds.clone() }
    }

    /// The requests of a checkpoint.
    pub(super) fn restore(saved: SavedNotices) -> Self {
        let SavedNotices { exits, deletes, adds } = saved;
        let mut all = Self { deletes, adds, ..Self::default() };
        exits.into_iter().for_each(|(about, to, how)| all.add(to, about, how));
        all
    }

    /// The numbers of the hosts whose end is to be reported.
    pub(super) fn watched_hosts(&self) -> BTreeSet<i32> {
        self.deletes.iter().map(|one| one.host).collect()
    }

    /// Returns `true` if a task wants notices about hosts.
    pub(super) fn watch_hosts(&self) -> bool {
        !self.deletes.is_empty() || !self.adds.is_empty()
    }

    /// OP_NOTIFY takes the event, possibly with CANCEL; tag; context; count; and, except for
    /// HOST_ADD and ROUTE_ADD, `count` tids (integers). The answer is the code, and comes before
    /// any notice.
    pub(super) fn ask(
        &mut self,
        from: Tid,
        op: u64,
        question: PacketReader<'_>,
        known: KnownTargets<'_>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if op != OP_NOTIFY {
            return false;
        }
        let at = effects.len();
        let code =
            self.notify(from, question, known, effects).map_or_else(|code| code, |()| error::OK);
        effects.insert(at, Effect::Answer(from, code, Packet::default()));
        true
    }

    fn notify(
        &mut self,
        from: Tid,
        mut question: PacketReader<'_>,
        known: KnownTargets<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), i32> {
        let mut number = || question.int().ok_or(error::BAD_MSG);
        let (what, tag, context, count) = (number()?, number()?, number()?, number()?);
        let how = NoticeTag { tag, context };
        let cancel = what & CANCEL != 0;
        let what = what & !CANCEL;
        let about = match what {
            HOST_ADD => {
                self.host_add(AddNotice { to: from, how, left: if cancel { 0 } else { count } });
                return Ok(());
            }
            ROUTE_ADD => return Ok(()),
            TASK_EXIT | HOST_DELETE | ROUTE_DELETE if count > 0 => {
                (0..count).map(|_| number()).collect::<Result<Vec<_>, _>>()?
            }
            _ => return Err(error::BAD_PARAM),
        };
        if what != HOST_DELETE && !about.iter().all(|tid| Tid::has_form(*tid)) {
            return Err(error::BAD_PARAM);
        }
        for number in about {
            let tid = Tid::of(number).filter(|tid| (known.alive)(*tid));
            match (what, tid) {
                (TASK_EXIT, Some(tid)) if cancel => self.cancel(from, tid, how, effects),
                (TASK_EXIT, Some(tid)) => self.add(from, tid, how),
                (TASK_EXIT, None) if cancel => {}
                (HOST_DELETE, _) => self.host_delete(from, number, (cancel, how), known, effects),
                (ROUTE_DELETE, _) => how.tell(from.number(), from, number, effects),
                _ => how.tell(DAEMON, from, number, effects),
            }
        }
        Ok(())
    }

    fn host_delete(
        &mut self,
        to: Tid,
        number: i32,
        (cancel, how): (bool, NoticeTag),
        known: KnownTargets<'_>,
        effects: &mut Vec<Effect>,
    ) {
        let host = (known.host)(number);
        let asked = host.map(|host| DeleteNotice { host, to, how });
        match asked {
            Some(asked) if !cancel => self.deletes.push(asked),
            asked => {
                let at = self.deletes.iter().position(|one| Some(*one) == asked);
                at.into_iter().for_each(|at| _ = self.deletes.remove(at));
                how.tell(DAEMON, to, number, effects);
            }
        }
    }

    fn host_add(&mut self, asked: AddNotice) {
        self.adds.retain(|one| one.to != asked.to || one.how != asked.how);
        if asked.left != 0 {
            self.adds.push(asked);
        }
    }

    /// Sends the notices about a host that has joined.
    pub(super) fn host_added(&mut self, host: i32, effects: &mut Vec<Effect>) {
        for AddNotice { to, how: NoticeTag { tag, context }, left } in &mut self.adds {
            let data = Packet::default().ints([1, host]);
            let (to, tag, context) = (*to, *tag, *context);
            effects.push(Effect::Message { from: DAEMON, to, tag, context, data });
            *left = (*left - 1).max(-1);
        }
        self.adds.retain(|one| one.left != 0);
    }

    /// Sends the notices about a host that has ended.
    pub(super) fn host_ended(&mut self, host: i32, effects: &mut Vec<Effect>) {
        for DeleteNotice { to, how, .. } in self.deletes.extract_if(.., |one| one.host == host) {
            how.tell(DAEMON, to, host, effects);
        }
    }

    fn add(&mut self, to: Tid, about: Tid, how: NoticeTag) {
        self.count += 1;
        self.exits.insert((about, to, self.count), how);
        self.of.insert((to, about));
    }

    /// Withdraws the oldest request of this kind.
    fn cancel(&mut self, to: Tid, about: Tid, how: NoticeTag, effects: &mut Vec<Effect>) {
        let all = self.exits.range((about, to, 0)..=(about, to, u64::MAX));
        let Some(key) = all.clone().find(|(_, one)| **one == how).map(|(key, _)| *key) else {
            return;
        };
        if all.count() == 1 {
            self.of.remove(&(to, about));
        }
        self.exits.remove(&key);
        how.tell(DAEMON, to, about.number(), effects);
    }

    /// Sends the notices about a task that has ended, and drops its own requests.
    pub(super) fn ended(&mut self, tid: Tid, effects: &mut Vec<Effect>) {
        let told =
            self.exits.range((tid, NOBODY, 0)..).take_while(|((about, ..), _)| *about == tid);
        for (key, how) in told.map(|(key, how)| (*key, *how)).collect::<Vec<_>>() {
            let (_, to, _) = key;
            self.exits.remove(&key);
            self.of.remove(&(to, tid));
            if to != tid {
                how.tell(DAEMON, to, tid.number(), effects);
            }
        }
        self.deletes.retain(|one| one.to != tid);
        self.adds.retain(|one| one.to != tid);
        let wanted = self.of.range((tid, NOBODY)..).take_while(|(to, _)| *to == tid).copied();
        for (_, about) in wanted.collect::<Vec<_>>() {
            self.of.remove(&(tid, about));
            let all =
                self.exits.range((about, tid, 0)..=(about, tid, u64::MAX)).map(|(key, _)| *key);
            for key in all.collect::<Vec<_>>() {
                self.exits.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Tid = Tid::new(0, 1);
    const B: Tid = Tid::new(0, 2);
    const C: Tid = Tid::new(1, 3);
    /// Hosts. The last task runs on the other one.
    const HOME: i32 = 1 << 18;
    const OTHER: i32 = 2 << 18;
    /// Never existed.
    const D: Tid = Tid::new(0, 4);

    fn question(what: i32, tag: i32, tids: &[i32]) -> Packet {
        Packet::default().ints([what, tag, 5, tids.len() as i32]).ints(tids.iter().copied())
    }

    fn asked(notices: &mut Notices, from: Tid, question: Packet) -> Vec<Effect> {
        let mut effects = Vec::new();
        let alive = |tid| tid != D;
        let is_host = |number: &i32| [HOME, OTHER].contains(&(number & !DAEMON));
        let of_task = |number| (number == C.number()).then_some(OTHER);
        let host = |number| Some(number).filter(is_host).or_else(|| of_task(number));
        let known = KnownTargets { alive: &alive, host: &host };
        assert!(notices.ask(
            from,
            OP_NOTIFY,
            PacketReader::new(question.as_bytes()),
            known,
            &mut effects
        ));
        effects
    }

    fn ok(tid: Tid) -> Effect {
        Effect::Answer(tid, error::OK, Packet::default())
    }

    fn notice(to: Tid, tag: i32, about: i32) -> Effect {
        Effect::Message { from: i32::MIN, to, tag, context: 5, data: Packet::default().int(about) }
    }

    fn end(notices: &mut Notices, tid: Tid) -> Vec<Effect> {
        let mut effects = Vec::new();
        notices.ended(tid, &mut effects);
        effects
    }

    #[test]
    fn each_who_wants_to_know_is_told_once_for_each_time_it_asked() {
        let mut notices = Notices::default();
        for (who, tag) in [(A, 1), (C, 2), (C, 3), (B, 4)] {
            assert_eq!(
                asked(&mut notices, who, question(TASK_EXIT, tag, &[B.number()])),
                [ok(who)]
            );
        }
        assert_eq!(
            asked(&mut notices, A, question(TASK_EXIT, 6, &[C.number(), B.number()])),
            [ok(A)]
        );
        let told = [(A, 1), (A, 6), (C, 2), (C, 3)].map(|(to, tag)| notice(to, tag, B.number()));
        assert_eq!(end(&mut notices, B), told);
        assert_eq!(end(&mut notices, B), []);
        // A task that has ended gets no notice.
        assert_eq!(end(&mut notices, A), []);
        assert_eq!(end(&mut notices, C), []);
        assert!(notices.exits.is_empty() && notices.of.is_empty());
    }

    #[test]
    fn who_is_not_there_is_told_of_at_once() {
        let mut notices = Notices::default();
        let effects = asked(&mut notices, A, question(TASK_EXIT, 1, &[D.number(), B.number(), 5]));
        assert_eq!(effects, [ok(A), notice(A, 1, D.number()), notice(A, 1, 5)]);
        assert_eq!(end(&mut notices, B), [notice(A, 1, B.number())]);
    }

    #[test]
    fn what_is_withdrawn_is_told_of() {
        let mut notices = Notices::default();
        let cancel = TASK_EXIT | CANCEL;
        for tag in [1, 2, 1] {
            assert_eq!(asked(&mut notices, A, question(TASK_EXIT, tag, &[B.number()])), [ok(A)]);
        }
        assert_eq!(asked(&mut notices, C, question(cancel, 1, &[B.number()])), [ok(C)]);
        assert_eq!(asked(&mut notices, A, question(cancel, 3, &[B.number(), D.number()])), [ok(A)]);
        for _ in 0..2 {
            assert_eq!(
                asked(&mut notices, A, question(cancel, 1, &[B.number()])),
                [ok(A), notice(A, 1, B.number())]
            );
        }
        assert_eq!(asked(&mut notices, A, question(cancel, 1, &[B.number()])), [ok(A)]);
        assert_eq!(notices.of.len(), 1);
        assert_eq!(end(&mut notices, B), [notice(A, 2, B.number())]);
        assert!(notices.exits.is_empty() && notices.of.is_empty());
    }

    #[test]
    fn hosts_and_routes_are_accepted() {
        let mut notices = Notices::default();
        for what in [HOST_ADD, HOST_ADD | CANCEL, ROUTE_ADD, ROUTE_ADD | CANCEL] {
            for count in [-1, 0, 3] {
                assert_eq!(
                    asked(&mut notices, A, Packet::default().ints([what, 1, 5, count])),
                    [ok(A)]
                );
            }
        }
        let host = HOME;
        assert_eq!(
            asked(&mut notices, A, question(HOST_DELETE, 1, &[host, host | i32::MIN, C.number()])),
            [ok(A)]
        );
        assert_eq!(
            asked(&mut notices, A, question(HOST_DELETE, 1, &[1 << 30])),
            [ok(A), notice(A, 1, 1 << 30)]
        );
        assert_eq!(
            asked(&mut notices, A, question(HOST_DELETE | CANCEL, 1, &[host])),
            [ok(A), notice(A, 1, host)]
        );
        let own = Effect::Message {
            from: A.number(),
            to: A,
            tag: 1,
            context: 5,
            data: Packet::default().int(B.number()),
        };
        assert_eq!(asked(&mut notices, A, question(ROUTE_DELETE, 1, &[B.number()])), [ok(A), own]);
    }

    #[test]
    fn the_end_of_a_host_is_told_once_for_each_request() {
        let mut notices = Notices::default();
        let asks = question(HOST_DELETE, 1, &[OTHER, C.number(), HOME, B.number()]);
        assert_eq!(asked(&mut notices, A, asks), [ok(A), notice(A, 1, B.number())]);
        assert_eq!(asked(&mut notices, C, question(HOST_DELETE, 2, &[OTHER])), [ok(C)]);
        let cancel = question(HOST_DELETE | CANCEL, 1, &[OTHER]);
        assert_eq!(asked(&mut notices, A, cancel), [ok(A), notice(A, 1, OTHER)]);
        // A task of that host ends before the host.
        assert_eq!(end(&mut notices, C), []);
        let mut ended = || {
            let mut effects = Vec::new();
            notices.host_ended(OTHER, &mut effects);
            effects
        };
        assert_eq!(ended(), [notice(A, 1, OTHER)]);
        assert_eq!(ended(), []);
    }

    #[test]
    fn bad_questions_are_told_so() {
        let mut notices = Notices::default();
        let code = |notices: &mut Notices, question| match asked(notices, A, question)[..] {
            [Effect::Answer(A, code, _)] => code,
            ref other => panic!("{other:?}"),
        };
        for what in [0, 6, 77, CANCEL, -1] {
            assert_eq!(code(&mut notices, question(what, 1, &[B.number()])), error::BAD_PARAM);
        }
        for what in [TASK_EXIT, HOST_DELETE, ROUTE_DELETE, TASK_EXIT | CANCEL] {
            assert_eq!(code(&mut notices, question(what, 1, &[])), error::BAD_PARAM);
            assert_eq!(
                code(&mut notices, Packet::default().ints([what, 1, 5, 2, B.number()])),
                error::BAD_MSG
            );
            assert_eq!(
                code(&mut notices, Packet::default().ints([what, 1, 5, i32::MAX])),
                error::BAD_MSG
            );
        }
        for tid in [0, -5, HOME] {
            assert_eq!(
                code(&mut notices, question(TASK_EXIT, 1, &[B.number(), tid])),
                error::BAD_PARAM
            );
        }
        assert_eq!(code(&mut notices, Packet::default().ints([TASK_EXIT, 1, 5])), error::BAD_MSG);
        assert!(notices.exits.is_empty() && notices.of.is_empty());
        let known = KnownTargets { alive: &|_| true, host: &|_| None };
        assert!(!notices.ask(A, OP_NOTIFY + 1, PacketReader::new(&[]), known, &mut Vec::new()));
    }

    #[test]
    fn ten_thousand_are_watched_by_one_and_watch_it() {
        let began = std::time::Instant::now();
        let mut notices = Notices::default();
        let tasks = (1..=10_000).map(|number| Tid::new(2, number)).collect::<Vec<_>>();
        let numbers = tasks.iter().map(|tid| tid.number()).collect::<Vec<_>>();
        assert_eq!(asked(&mut notices, A, question(TASK_EXIT, 1, &numbers)), [ok(A)]);
        for tid in &tasks {
            assert_eq!(
                asked(&mut notices, *tid, question(TASK_EXIT, 2, &[A.number()])),
                [ok(*tid)]
            );
        }
        for tid in &tasks[..5_000] {
            assert_eq!(end(&mut notices, *tid), [notice(A, 1, tid.number())]);
        }
        assert_eq!(end(&mut notices, A).len(), 5_000);
        assert!(notices.exits.is_empty() && notices.of.is_empty());
        assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    }
}
