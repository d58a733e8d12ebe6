//! Moves of tasks: this process's driver of the state machine ([`moves`](crate::moves)).
//!
//! The state machine decides, and this carries out its effects: all of them, in their order, before
//! anything else is handled. What the driver answers while it carries out an effect comes before
//! the later effects. Errands for tasks of this process (answers, signals, ends) come after them,
//! since services may send messages because of an errand. An errand also waits while messages for
//! its task wait for marks: those may have caused it.
//!
//! # Where a task is
//! ```text
//! Node::tasks         in a seat: it runs, or waits         also while its messages are kept
//! Transit::stopped    without a seat: it leaves, or is     until it is decided where it runs
//!                     whole here and may enter
//! Transit::arriving   its contents arrive                  until it is whole
//! ```
//! A stopped task has no seat, so no timer, signal or entry of the queue finds it. If it goes on
//! here, it takes a seat as a task does that enters.
//!
//! # Where a task stops
//! At a gate, or where an interrupt has found it in its own code. A task that is asked to stop
//! elsewhere runs on, and is tried again after it has run ([`Node::stop_tasks`]). It is tried where
//! no question is half answered: between two turns, and at an interrupt.
//!
//! # What else moves
//! Timers move as the time that is left. The folder moves by its path, and must be the same folder
//! there. The process number stays taken in the process that has given it, until the task has
//! ended.

mod early;
mod errands;
mod packing;

use super::Node;
use crate::moves::{KeptMessage, MoveEffect, MoveMessage, Moves, Pin, Refusal, TaskPlace};
use crate::packed::PackedHead;
use crate::places::TaskLocation;
use crate::remote::{ControlMessage, MachineLink};
use crate::shown::MoveCost;
use crate::task::{Task, TaskMessage, TaskState, pin_of};
use crate::tid::Tid;
use crate::transit::brought::nothing;
use crate::transit::{NodeEffect, StoppedTask};
use std::cmp::Reverse;
use std::time::Duration;
use upcall_message::Rank;
use upcall_ulp::NotTaken;

/// Maximum number of parts of tasks that are sent between two turns.
const PARTS: usize = 16;

/// The time of the kernel's clock, which all processes share.
fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

impl Node {
    /// Passes an input to the state machine, and carries out what it wants.
    fn drive<T>(
        &mut self,
        input: impl FnOnce(&mut Moves<TaskMessage, ControlMessage>, &mut Vec<NodeEffect>) -> T,
    ) -> T {
        let mut effects = Vec::new();
        let result = input(&mut self.moving.moves, &mut effects);
        for effect in effects.into_iter().rev() {
            self.moving.effects.push_front(effect);
        }
        if !self.moving.carries_out {
            self.carry_out_all();
        }
        result
    }

    fn carry_out_all(&mut self) {
        loop {
            self.moving.carries_out = true;
            while let Some(effect) = self.moving.effects.pop_front() {
                self.moving.trials.before(&effect);
                self.carry_out(effect);
            }
            self.moving.carries_out = false;
            self.moving.let_errands_go();
            let Some(errand) = self.moving.errands.pop_front() else { return };
            self.heard(self.places.rank(), errand);
        }
    }

    fn carry_out(&mut self, effect: NodeEffect) {
        match effect {
            MoveEffect::Tell { to, message } => self.tell(to, ControlMessage::Move(message)),
            MoveEffect::Send { to, tid, kept } => self.send_kept(to, tid, kept),
            MoveEffect::Resend { tid, kept } => self.send_again(tid, kept),
            MoveEffect::Errand { to, errand, .. } if to == self.places.rank() => {
                self.moving.errands.push_back(errand);
            }
            MoveEffect::Errand { to, errand, .. } => self.tell(to, errand),
            MoveEffect::Place { tid, place } => self.place(tid, place),
            MoveEffect::Deliver { tid, message } => {
                if let Some(seat) = self.seat(tid.number()) {
                    self.deliver_here(seat, message);
                }
            }
            MoveEffect::MayLeave { tid } => self.may_leave(tid),
            MoveEffect::Freeze { tid } => self.moving.stopping.push((tid, None)),
            MoveEffect::Take { to, tid, epoch, parts, messages } => {
                self.send_task(to, (tid, epoch, parts), messages);
            }
            MoveEffect::SendPart { to, tid, epoch, at } => self.send_part(to, (tid, epoch, at)),
            MoveEffect::Run { tid } => self.run_again(tid),
            MoveEffect::Free { tid } => self.free(tid),
            MoveEffect::Prepare { tid } => self.prepare(tid),
            MoveEffect::Fill { tid, bytes, .. } => self.fill(tid, None, &bytes),
            MoveEffect::Finish { tid } => self.finish(tid),
            MoveEffect::Report { asker, tid, result } => self.report_move(asker, tid, result),
        }
    }

    /// Records where a task is.
    fn place(&mut self, tid: Tid, place: TaskPlace) {
        let own = self.places.rank();
        if place != TaskPlace::Held {
            // The move is decided, or the task has ended.
            self.drop_sent(tid);
            self.moving.copies.remove(&tid);
            self.moving.brought.settled(tid);
        }
        match place {
            TaskPlace::Held => {
                let seat = self.places.seat(tid.number());
                self.moving.seats.extend(seat.map(|seat| (tid, seat)));
                self.places.held(tid);
            }
            TaskPlace::In(rank) => match self.moving.seats.remove(&tid) {
                Some(seat) if rank == own => self.places.arrived(tid, seat),
                // The move was aborted before the task was held. It has kept its seat.
                None if rank == own && self.places.seat(tid.number()).is_some() => {}
                _ => self.places.moved(tid, rank),
            },
            TaskPlace::Ended => {
                self.moving.seats.remove(&tid);
                self.moving.numbers.remove(&tid);
                self.places.gone(tid);
            }
        }
    }

    /// Handles a message of another process about a move.
    pub(super) fn heard_move(&mut self, from: Rank, message: MoveMessage) {
        let ready = match message {
            MoveMessage::Ready { tid, .. } | MoveMessage::Flushed { tid, .. } => Some(tid),
            _ => None,
        };
        self.drive(|moves, effects| moves.heard(from, message, effects));
        ready.into_iter().for_each(|tid| self.learn_rank(tid));
    }

    /// Records that the first process has sent an errand for a task.
    pub(super) fn errand_came(&mut self, tid: Tid, stamp: u64) {
        self.drive(|moves, effects| moves.errand_came(tid, stamp, effects));
    }

    /// In the first process: learns where a task runs after a move may have been decided.
    fn learn_rank(&mut self, tid: Tid) {
        let rank = self.moving.moves.rank(tid);
        if let (Some(machine), Some(rank)) = (&mut self.machine, rank) {
            machine.moved(tid, rank);
        }
    }

    /// Keeps a message that a task here, or the machine, sends to a task that moves.
    #[cold]
    pub(super) fn keep(&mut self, to: Tid, message: TaskMessage) {
        let Some(link) = &self.link else { return };
        let kept = self.kept(self.places.rank(), link.stamp(), message);
        // If the task has ended, the message is lost, as with PVM.
        let _ = self.drive(|moves, effects| moves.keep(to, kept, effects));
    }

    /// Handles a message of another process for a task that moves.
    #[cold]
    pub(super) fn arrived_late(&mut self, from: Rank, stamp: u64, to: Tid, message: TaskMessage) {
        let kept = self.kept(from, stamp, message);
        let _ = self.drive(|moves, effects| moves.arrived(to, kept, effects));
    }

    fn kept(&self, from: Rank, stamp: u64, message: TaskMessage) -> KeptMessage<TaskMessage> {
        let (source, length) = (Tid::of(message.source), message.length);
        KeptMessage { stamp, from, source, length, message }
    }

    /// Sends a message that was kept.
    fn send_kept(&mut self, to: Rank, tid: Tid, kept: KeptMessage<TaskMessage>) {
        self.send_there(to, tid, kept.message, Some(kept.stamp));
    }

    /// Sends a message that a task has brought along, as if it was sent here.
    fn send_again(&mut self, tid: Tid, kept: KeptMessage<TaskMessage>) {
        match self.places.place(tid) {
            TaskLocation::Seat(seat) => self.deliver_here(seat, kept.message),
            TaskLocation::There(rank) => self.send_kept(rank, tid, kept),
            TaskLocation::Held => {
                let _ = self.drive(|moves, effects| moves.keep(tid, kept, effects));
            }
            TaskLocation::Console | TaskLocation::Ended => {}
        }
    }

    /// Stops the tasks that are to stop and can, and sends some parts of those that have. To be
    /// called between two turns.
    #[cold]
    pub(super) fn work_at_moves(&mut self) {
        self.stop_tasks(None);
        self.make_early_pages();
        self.read_early_pages();
        if self.moving.moves.has_unsent() {
            self.drive(|moves, effects| moves.turn(PARTS, effects));
        }
    }

    /// Stops the tasks that are to stop, and can. `interrupted` is the seat of the task that is
    /// interrupted now.
    pub(super) fn stop_tasks(&mut self, interrupted: Option<u32>) {
        for (tid, tried) in std::mem::take(&mut self.moving.stopping) {
            let Some(seat) = self.seat(tid.number()) else { continue };
            let Some(task) = self.tasks[seat as usize].as_deref() else { continue };
            let runs = task.runs;
            // The task is where it was.
            if tried == Some(runs) && interrupted != Some(seat) {
                self.moving.stopping.push((tid, tried));
                continue;
            }
            match self.stop(tid, seat, interrupted == Some(seat)) {
                StopTry::Stopped | StopTry::NotAsked => {}
                StopTry::Later => self.moving.stopping.push((tid, Some(runs))),
                StopTry::Soon => self.moving.stopping.push((tid, None)),
                StopTry::Pinned(why) => {
                    self.drive(|moves, effects| moves.stays(tid, why, effects));
                }
            }
        }
    }

    fn stop(&mut self, tid: Tid, seat: u32, is_interrupted: bool) -> StopTry {
        let stopped = now();
        // What waits for messages of other processes is delivered here.
        if self.late.iter().any(|item| item.receiver() == tid) {
            return StopTry::Soon;
        }
        // An interrupted task may have unread letters.
        self.read_letters(seat);
        // A message may have ended the move, and so may the stop of another task.
        if !self.moving.moves.is_to_stop(tid) {
            return StopTry::NotAsked;
        }
        let Some(task) = self.tasks[seat as usize].as_deref_mut() else { return StopTry::Later };
        if let Some(why) = task.pinned() {
            return StopTry::Pinned(why);
        }
        if is_interrupted {
            let handles = task.ulp.handles() && task.ulp.is_in_own_code(&task.image);
            task.ulp.answer(handles.into());
        }
        let state = match task.ulp.state(&task.image) {
            Ok(state) => state,
            Err(NotTaken::Pinned(why)) => {
                // What wakes a task that waits may be kept until it has moved.
                let waits = !matches!(task.state, TaskState::Runs | TaskState::Polls(_));
                let pin = pin_of(&why).or(waits.then_some(Pin::Inside));
                return pin.map_or(StopTry::Later, StopTry::Pinned);
            }
            Err(NotTaken::Kernel(_)) => return StopTry::Pinned(Pin::Mapping),
        };
        let (mut packed, parts) = match self.pack(tid, seat, state) {
            Ok(packed) => packed,
            Err(why) => return StopTry::Pinned(why),
        };
        packed.stopped = stopped;
        let count = parts.count();
        let Some(task) = self.unseat(seat) else { return StopTry::Later };
        self.moving.seats.remove(&tid);
        let leaves = Some(Box::new((packed, parts)));
        let to = self.moving.moves.leaving(tid).map(|(_, to)| to);
        let tells = to.filter(|to| !self.is_near(*to));
        let stopped = StoppedTask { task, leaves, since: (stopped, 0), tells };
        self.moving.stopped.insert(tid, stopped);
        self.drive(|moves, effects| moves.frozen(tid, count, effects));
        StopTry::Stopped
    }

    /// Takes a task out of its seat.
    fn unseat(&mut self, seat: u32) -> Option<Box<Task>> {
        let task = self.tasks.get_mut(seat as usize)?.take()?;
        self.live -= 1;
        self.awaiting.retain(|one| *one != seat);
        // A task may come and go many times before its timers are due.
        self.timers.retain(|Reverse((_, of))| *of != seat);
        // Another task may get this seat.
        if self.folder_of == seat && task.folder.is_some() {
            self.go_home();
        }
        Some(task)
    }

    /// Lets a stopped task run here, in a new seat.
    fn run_again(&mut self, tid: Tid) {
        self.moving.brought.settled(tid);
        self.drop_sent(tid);
        // A task that has not stopped yet need not.
        self.moving.stopping.retain(|(one, _)| *one != tid);
        let Some(StoppedTask { task, leaves, since, tells }) = self.moving.stopped.remove(&tid)
        else {
            return;
        };
        if leaves.is_none() {
            self.tell_cost(tid, since, tells);
        }
        let seat = self.sit(task);
        self.moving.seats.insert(tid, seat);
        self.schedule(seat);
    }

    /// Tells what a move has cost that has just been decided, if this process is to.
    ///
    /// Between hosts, the new process passes it on to the first one before that hears that the move
    /// is over: this process's mark follows.
    fn tell_cost(&mut self, tid: Tid, (stopped, bytes): (Duration, u64), to: Option<Rank>) {
        let (pause, total) = (now().saturating_sub(stopped), Duration::ZERO);
        let cost = MoveCost { pause, total, bytes };
        to.into_iter().for_each(|to| self.tell(to, ControlMessage::Arrived { tid, cost }));
    }

    /// Returns `true` if a process is on this one's host.
    pub(super) fn is_near(&self, rank: Rank) -> bool {
        self.hosts.are_near(self.places.rank(), rank)
    }

    /// Lets a task that has taken a seat run or wait, as its state says.
    pub(super) fn schedule(&mut self, seat: u32) {
        let Some(task) = self.tasks[seat as usize].as_deref() else { return };
        let (state, alarm) = (task.state, task.alarm);
        match state {
            TaskState::Runs | TaskState::Polls(_) => self.enqueue(seat),
            TaskState::Receives(_, until) | TaskState::Sleeps(until) => {
                until.into_iter().for_each(|until| self.at(until, seat));
            }
            TaskState::Awaits(.., until) => {
                self.awaiting.push(seat);
                until.into_iter().for_each(|until| self.at(until, seat));
            }
            TaskState::ReceivesInto(..)
            | TaskState::Asks(_)
            | TaskState::Starts
            | TaskState::Aside => {}
        }
        alarm.into_iter().for_each(|(when, _)| self.at(when, seat));
    }

    /// Frees what is here of a task that runs elsewhere, or has ended.
    fn free(&mut self, tid: Tid) {
        self.moving.stopping.retain(|(one, _)| *one != tid);
        self.moving.arriving.remove(&tid);
        if let Some(StoppedTask { task, leaves, since, tells }) = self.moving.stopped.remove(&tid)
            && let Some(leaves) = leaves
        {
            self.tell_cost(tid, since, tells);
            let Task { mut ulp, .. } = *task;
            // The first number that a task leaves here may be this process's own.
            self.moving.numbers.entry(tid).or_insert(ulp.leave());
            self.moving.left.push((ulp, leaves.1.into_writes()));
        }
    }

    /// Frees the memory of tasks that have left. To be called before a task takes a slot, which may
    /// be one of theirs.
    pub(super) fn free_left(&mut self) {
        self.moving.left.clear();
    }

    /// The same in a process without a task to run, unless a message arrives at once.
    ///
    /// That takes as long as all else about a move, which is not over before its last messages.
    #[cold]
    pub(super) fn free_left_unless_heard(&mut self) {
        if !self.link.as_ref().is_some_and(MachineLink::polls) {
            self.free_left();
        }
    }

    /// Records the end of a task of this process, for moves.
    pub(super) fn end_moves_of(&mut self, tid: Tid) {
        self.moving.seats.remove(&tid);
        self.moving.stopping.retain(|(one, _)| *one != tid);
        self.moving.moves.ended_here(tid);
        self.drop_sent(tid);
    }

    /// Handles what another process has sent of a task that moves.
    pub(super) fn packed(&mut self, from: Rank, head: PackedHead, contents: Vec<u8>) {
        match head {
            PackedHead::Part { tid, epoch, at, sum } => self.drive(|moves, effects| {
                moves.part(from, (tid, epoch, at), sum, contents, effects);
            }),
            PackedHead::Early { tid, epoch } => self.early(from, (tid, epoch), &contents),
            PackedHead::Contents { tid, epoch } => self.fill(tid, Some((epoch, from)), &contents),
            PackedHead::Saved { tid, parts } => self.saved_task(from, tid, parts, contents),
            PackedHead::SavedPart { tid, at, sum } => {
                self.saved_part(from, (tid, at, sum), contents);
            }
            PackedHead::Message { tid, epoch, receiver, stamp, from: first, source, head } => {
                let (by, host, length) = ((from, tid, epoch), self.hosts.of(from), contents.len());
                if self.moving.moves.leaves(tid, epoch, from) {
                    self.moving.brought.add(by, host, receiver, length, || {
                        let message = head.with(&contents)?;
                        Some(KeptMessage { stamp, from: first, source, length, message })
                    });
                }
            }
            PackedHead::Task { tid, epoch, parts, messages } => {
                if self.moving.moves.leaves(tid, epoch, from) {
                    self.take_task(from, (tid, epoch, parts), messages, &contents);
                }
            }
        }
    }

    /// Takes a task without its contents, and the messages that move with it.
    fn take_task(
        &mut self,
        from: Rank,
        (tid, epoch, parts): (Tid, u64, u32),
        messages: u32,
        contents: &[u8],
    ) {
        let brought = self.moving.brought.take((from, tid, epoch), self.hosts.of(from), messages);
        // A task arrives once.
        let Some(brought) = brought else { return };
        let (brought, refused) = match brought {
            Ok(brought) => (brought, None),
            Err(why) => (nothing(), Some(why)),
        };
        let packed = || postcard::from_bytes(contents).map_err(|_| Refusal::Damaged);
        let packed = refused.map_or_else(packed, Err);
        self.moving.taken = Some(packed.map(|packed| (epoch, from, packed)));
        self.drive(|moves, effects| moves.take(from, (tid, epoch, parts), brought, effects));
        self.moving.taken = None;
    }

    /// Handles the end of a process. In the first process, its tasks have ended with it.
    pub(super) fn lose_moves(&mut self, rank: Rank) {
        self.moving.brought.lost(rank);
        self.moving.copies.retain(|_, copy| copy.from != rank);
        self.moving.sent_early.retain(|_, sent| sent.to != rank);
        if let Ok(process) = u32::try_from(rank) {
            upcall_ulp::twins::process_ended(process);
        }
        let moving = self.moving.moves.moving();
        self.drive(|moves, effects| moves.lost(rank, effects));
        moving.into_iter().for_each(|tid| self.learn_rank(tid));
        // Blocks in the arenas of a process that has ended stay taken here.
        for tid in self.moving.arriving.keys().copied().collect::<Vec<_>>() {
            self.has_lent(tid, rank);
        }
    }
}

/// The result of trying to stop a task.
enum StopTry {
    Stopped,
    /// The task need not stop any more.
    NotAsked,
    /// It is to be tried again after the task has run.
    Later,
    /// It is to be tried again when other messages have arrived.
    Soon,
    Pinned(Pin),
}
