//! Checkpoints: what each process does for them ([`holding`](crate::holding) decides).
//!
//! While a process holds its tasks, only those get turns that cannot be packed where they are. A
//! task is tried again after each of its turns, and where an interrupt finds it. Once all are held,
//! no timer expires, and nothing but messages is handled. Tasks that these wake stay in the queue.
//!
//! A task that is packed for a checkpoint is as it was before: it goes on from there.

mod first;
mod hosts;
mod restarting;
pub(super) mod state;

use self::state::{STILL, TaskHold, TaskHoldPhase};
use super::{HAND_OFFS, Node};
use crate::counting::Count;
use crate::holding::{HeldMessage, HoldMessage};
use crate::moves::{self, Pin};
use crate::packed::PackedHead;
use crate::remote::ControlMessage;
use crate::task::{Task, TaskState};
use crate::tid::Tid;
use std::time::{Duration, Instant};
use upcall_message::Rank;
use upcall_ulp::{NotTaken, UlpPin};

/// Maximum time in which the tasks of a process have to come to where they can be packed.
const WITHIN: Duration = Duration::from_secs(5);

/// The result of an attempt to hold a task.
enum HoldTry {
    Held,
    /// It is to be tried again after it has run, or has finished a call.
    Later,
    Refused(String),
}

/// What an interrupted task does.
#[derive(PartialEq, Eq)]
pub(super) enum InterruptedTask {
    GoesOn,
    Held,
}

fn cannot(task: &Task, why: impl std::fmt::Display) -> String {
    let program = task.program.file_name().unwrap_or_default().to_string_lossy();
    format!("task {} ({program}): {why}", task.tid)
}

impl Node {
    /// Handles what the first process tells.
    pub(super) fn told_to_hold(&mut self, number: u64, message: HoldMessage) {
        self.moving.before_step(&message);
        let known = self.saving.hold.as_mut().filter(|hold| hold.number == number);
        match (message, known) {
            (HoldMessage::Hold, _) => {
                let tids = self.tasks.iter().flatten().map(|task| (task.tid, None)).collect();
                let until = Instant::now() + WITHIN;
                let phase = TaskHoldPhase::Stops(tids);
                self.saving.hold = Some(Box::new(TaskHold { number, phase, until }));
            }
            (HoldMessage::Count { round }, Some(_)) => {
                let count = self.quiet_count();
                self.report_held(number, HeldMessage::Counted { round, count });
            }
            (HoldMessage::Save, Some(hold)) => {
                hold.phase = TaskHoldPhase::Saves(
                    self.tasks.iter().flatten().map(|task| task.tid).collect(),
                );
            }
            (HoldMessage::GoOn, _) => {
                self.saving.hold = None;
                for seat in std::mem::take(&mut self.saving.restored) {
                    self.schedule(seat);
                }
            }
            _ => {}
        }
    }

    /// The messages so far, and whether all that has arrived was handled.
    fn quiet_count(&self) -> Count {
        let is_quiet = self.arrivals.is_empty()
            && self.late.is_empty()
            && self.unsent.is_empty()
            && self.moving.is_quiet();
        self.link.as_ref().map_or_else(
            || Count { all_wait: is_quiet, ..Count::default() },
            |link| link.count(is_quiet),
        )
    }

    fn report_held(&mut self, number: u64, message: HeldMessage) {
        self.moving.before_step(&message);
        self.tell_first(ControlMessage::Held { number, message });
    }

    /// Does what is to be done for a checkpoint between two turns.
    #[cold]
    pub(super) fn work_at_saving(&mut self) {
        self.hold_tasks(None);
        self.report_if_still();
        self.save_next();
        self.work_at_first();
    }

    /// Holds the tasks that can be. `interrupted` is the seat of the task that is interrupted now.
    pub(super) fn hold_tasks(&mut self, interrupted: Option<u32>) -> InterruptedTask {
        let mut result = InterruptedTask::GoesOn;
        let Some(TaskHold { number, phase: TaskHoldPhase::Stops(tids), .. }) =
            self.saving.hold.as_deref_mut()
        else {
            return result;
        };
        let (number, mut left) = (*number, Vec::new());
        for (tid, tried) in std::mem::take(tids) {
            let is_interrupted = |seat: &u32| interrupted == Some(*seat);
            let Some(seat) = self.seat(tid.number()) else { continue };
            let Some(task) = self.tasks[seat as usize].as_deref() else { continue };
            let runs = task.runs;
            // The task is where it was.
            if tried == Some(runs) && !is_interrupted(&seat) {
                left.push((tid, tried));
                continue;
            }
            match self.try_hold(seat, is_interrupted(&seat)) {
                HoldTry::Held if is_interrupted(&seat) => {
                    self.enqueue(seat);
                    result = InterruptedTask::Held;
                }
                HoldTry::Held => {}
                HoldTry::Later => {
                    let is_aside = self.tasks[seat as usize]
                        .as_deref()
                        .is_some_and(|task| task.state == TaskState::Aside);
                    left.push((tid, Some(runs).filter(|_| !is_aside)));
                }
                HoldTry::Refused(why) => {
                    self.report_held(number, HeldMessage::Held(Err(why)));
                    // The machine goes on soon.
                    left.clear();
                    break;
                }
            }
        }
        if let Some(TaskHold { number: now, phase: TaskHoldPhase::Stops(tids), .. }) =
            self.saving.hold.as_deref_mut()
            && *now == number
        {
            *tids = left;
        }
        result
    }

    fn try_hold(&mut self, seat: u32, is_interrupted: bool) -> HoldTry {
        // An interrupted task may have unread letters.
        self.read_letters(seat);
        let Some(task) = self.tasks[seat as usize].as_deref_mut() else { return HoldTry::Later };
        if matches!(task.state, TaskState::Aside | TaskState::Starts) {
            return HoldTry::Later;
        }
        if task.descriptor.is_some() {
            return HoldTry::Refused(cannot(task, Pin::Descriptor));
        }
        if is_interrupted {
            let handles = task.ulp.handles() && task.ulp.is_in_own_code(&task.image);
            task.ulp.answer(handles.into());
        }
        match task.ulp.state(&task.image) {
            // Files move with a task, and are not in a checkpoint.
            Ok(state) if !state.descriptors.is_empty() => {
                let why = UlpPin::Descriptors(state.descriptors.len());
                HoldTry::Refused(cannot(task, why))
            }
            Ok(_) => HoldTry::Held,
            Err(NotTaken::Pinned(UlpPin::NeverRan | UlpPin::Inside | UlpPin::Asks)) => {
                HoldTry::Later
            }
            Err(NotTaken::Pinned(why)) => HoldTry::Refused(cannot(task, why)),
            Err(NotTaken::Kernel(error)) => HoldTry::Refused(cannot(task, error)),
        }
    }

    /// Reports that all tasks are held, or that one of them cannot be in time.
    fn report_if_still(&mut self) {
        let is_quiet = self.moving.is_quiet();
        let Some(hold) = self.saving.hold.as_deref_mut() else { return };
        let TaskHoldPhase::Stops(tids) = &hold.phase else { return };
        let (number, first) = (hold.number, tids.first().copied());
        let result = match first {
            None if is_quiet => Ok(()),
            _ if Instant::now() < hold.until => return,
            None => Err("a move of a task is not over".into()),
            Some((tid, _)) => Err(self.held_up(tid)),
        };
        if let Some(hold) = self.saving.hold.as_deref_mut() {
            hold.phase = TaskHoldPhase::Still;
        }
        self.report_held(number, HeldMessage::Held(result));
    }

    /// The reason why a task is not held in time.
    fn held_up(&self, tid: Tid) -> String {
        let task = self.seat(tid.number()).and_then(|seat| self.tasks[seat as usize].as_deref());
        let Some(task) = task else { return format!("task {tid} has ended") };
        match task.ulp.state(&task.image) {
            _ if task.state == TaskState::Aside => cannot(task, UlpPin::Aside),
            Err(NotTaken::Pinned(why)) => cannot(task, why),
            Err(NotTaken::Kernel(error)) => cannot(task, error),
            Ok(_) => cannot(task, "it was not held in time"),
        }
    }

    /// The next task that has to run before it can be held, if it can run.
    pub(super) fn next_to_hold(&mut self) -> Option<(u32, u32)> {
        // No task hands off to a held task.
        self.hand_offs = HAND_OFFS;
        let Some(TaskHoldPhase::Stops(tids)) = self.saving.hold.as_ref().map(|hold| &hold.phase)
        else {
            return None;
        };
        let seats = tids.iter().filter_map(|(tid, _)| self.seat(tid.number())).collect::<Vec<_>>();
        let runs = |(index, ticket): &(u32, u32)| {
            let task = self.tasks.get(*index as usize).and_then(Option::as_deref);
            seats.contains(index) && task.is_some_and(|task| task.ticket == *ticket)
        };
        let at = self.queue.iter().position(runs)?;
        self.queue.remove(at)
    }

    /// Waits for messages while the machine stands still.
    pub(super) fn wait_still(&self) {
        match &self.link {
            // A message that waits for memory would end the wait at once.
            Some(link) if !link.is_short() => _ = link.wait(Some(STILL), false),
            _ => std::thread::sleep(STILL),
        }
    }

    /// Sends the next task to the first process.
    fn save_next(&mut self) {
        let Some(hold) = self.saving.hold.as_deref_mut() else { return };
        let (number, TaskHoldPhase::Saves(tids)) = (hold.number, &mut hold.phase) else { return };
        let message = match tids.pop_front() {
            None => HeldMessage::Saved(Ok(self.places.next_name())),
            Some(tid) => match self.save_task(tid) {
                Ok(()) => return,
                Err(why) => HeldMessage::Saved(Err(why)),
            },
        };
        if let Some(hold) = self.saving.hold.as_deref_mut() {
            hold.phase = TaskHoldPhase::Still;
        }
        self.report_held(number, message);
    }

    fn save_task(&mut self, tid: Tid) -> Result<(), String> {
        // A task that has ended since is not in the machine's state either.
        let Some(seat) = self.seat(tid.number()) else { return Ok(()) };
        let Some(task) = self.tasks[seat as usize].as_deref() else { return Ok(()) };
        let state = task.ulp.state(&task.image).map_err(|why| cannot(task, why))?;
        let packed = self.pack_saved(seat, state);
        let Some(task) = self.tasks[seat as usize].as_deref() else { return Ok(()) };
        let (packed, mut parts) = packed.ok_or_else(|| cannot(task, "it cannot be packed"))?;
        let mut contents = postcard::to_stdvec(&packed).map_err(|error| cannot(task, error))?;
        let count = parts.count();
        self.moving.trials.leaves(1 + count as usize);
        self.moving.trials.bend(&mut contents);
        if self.machine.is_some() {
            self.write_task(self.places.rank(), (tid, count), contents);
        } else {
            self.pack_there(0, &PackedHead::Saved { tid, parts: count }, &contents);
        }
        for at in 0..count {
            let Some(task) = self.tasks[seat as usize].as_deref() else { return Ok(()) };
            let mut part = parts.next(task).map_err(|error| cannot(task, error))?;
            self.moving.trials.bend(&mut part);
            self.save_part((tid, at), part);
        }
        Ok(())
    }

    /// Sends a part of a task to the first process, which may be this one.
    fn save_part(&mut self, (tid, at): (Tid, u32), part: Vec<u8>) {
        if self.machine.is_some() {
            // The sum is for the file only, and is left to the thread that writes it.
            self.write_part(self.places.rank(), (tid, at, None), part);
        } else {
            let sum = moves::sum(&part);
            self.pack_there(0, &PackedHead::SavedPart { tid, at, sum }, &part);
        }
    }

    /// Handles a task that was sent for or from a checkpoint.
    pub(super) fn saved_task(&mut self, from: Rank, tid: Tid, parts: u32, contents: Vec<u8>) {
        if self.machine.is_some() {
            self.write_task(from, (tid, parts), contents);
        } else if from == 0 {
            self.restore_task(tid, parts, &contents);
        }
    }

    /// Handles a part of such a task.
    pub(super) fn saved_part(
        &mut self,
        from: Rank,
        (tid, at, sum): (Tid, u32, u64),
        contents: Vec<u8>,
    ) {
        if self.machine.is_some() {
            self.write_part(from, (tid, at, Some(sum)), contents);
        } else if from == 0 {
            self.restore_part((tid, at, sum), &contents);
        }
    }
}
