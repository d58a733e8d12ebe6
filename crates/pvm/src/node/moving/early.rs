//! Large tasks: their memory is copied before they stop.
//!
//! ```text
//! old process                                   new process
//! Move: watches the task's writes
//!       Early, with all pages there are    ──▶  makes room, reads the pages, some at a time
//!                                          ◀──  HasPages
//!       Early, with those written since    ──▶  reads them …
//!                                          ◀──  HasPages
//!       few are left: the move begins
//!       the task stops: Task, with those written since, and those that have gone
//! ```
//! The task runs all the time. The new process may read a page while it is written. Then the page
//! is among those of the next round. That ends when few pages are left, when there are as many as
//! before, or after [`ROUNDS`] rounds. If something cannot be done, the move begins at once, and
//! the task stops for all of its pages.
//!
//! The new process drops the copy when the old one says so ([`ControlMessage::DropPages`]), when
//! that one has ended, or when it hears where the task goes on.

use super::super::Node;
use crate::moves::{MoveMessage, Pin, Refusal};
use crate::packed::{EarlyTask, PackedHead};
use crate::remote::{ControlMessage, PagesRead};
use crate::task::Task;
use crate::tid::Tid;
use crate::transit::{EarlyCopy, WatchedTask};
use std::collections::VecDeque;
use upcall_message::Rank;
use upcall_ulp::{PageRun, Ulp};

/// Number of bytes from which a task's memory is copied early.
const LARGE: u64 = 1 << 20;
/// Number of bytes for which a task may stop.
const FEW: u64 = 256 << 10;
/// Maximum number of rounds.
const ROUNDS: u32 = 8;
/// Number of bytes that are read between two turns.
const STEP: u64 = 1 << 20;
/// Number of bytes after which the first process hears that the copying goes on.
const REPORT: u64 = 64 << 20;

fn bytes(runs: &[PageRun]) -> u64 {
    runs.iter().map(|run| run.end - run.start).sum()
}

impl Node {
    /// Lets the task leave, unless it is pinned. A large one is copied first.
    pub(super) fn may_leave(&mut self, tid: Tid) {
        let task = self.seat(tid.number()).and_then(|seat| self.tasks[seat as usize].as_deref());
        match task.map_or(Some(Pin::Ended), Task::pinned) {
            Some(why) => self.drive(|moves, effects| moves.stays(tid, why, effects)),
            None if self.copies_early(tid) => {}
            None => self.begin_move(tid),
        }
    }

    fn begin_move(&mut self, tid: Tid) {
        let now = self.link.as_ref().map_or(0, |link| link.time());
        self.drive(|moves, effects| moves.begin(tid, now, effects));
    }

    /// Begins to copy a task if it is large. Returns `false` if it is not, or if it cannot be
    /// copied.
    fn copies_early(&mut self, tid: Tid) -> bool {
        let Some((epoch, to)) = self.moving.moves.leaving(tid) else { return false };
        if !self.can_read(to) {
            return false;
        }
        let task = self.seat(tid.number()).and_then(|seat| self.tasks[seat as usize].as_deref());
        let Some(task) = task else { return false };
        let Ok(state) = task.ulp.outline(&task.image) else { return false };
        let Ok(pages) = task.ulp.pages(&state) else { return false };
        if pages.left() < LARGE {
            return false;
        }
        let Ok(mut writes) = task.ulp.watch(&state) else { return false };
        let Ok(all) = writes.written() else { return false };
        let length = bytes(&all);
        let early =
            EarlyTask { ulp: Some(state), program: task.program.clone().into(), pages: all };
        if !self.send_early(to, (tid, epoch), &early) {
            return false;
        }
        let watched = WatchedTask { epoch, to, writes, round: 1, length, left: Vec::new() };
        self.moving.watched.insert(tid, watched);
        true
    }

    /// Returns `false` without memory.
    fn send_early(&mut self, to: Rank, (tid, epoch): (Tid, u64), early: &EarlyTask) -> bool {
        let Ok(contents) = postcard::to_stdvec(early) else { return false };
        self.pack_there(to, &PackedHead::Early { tid, epoch }, &contents);
        true
    }

    /// Handles that the new process has the pages of a round, or cannot have them.
    pub(in crate::node) fn has_pages(&mut self, tid: Tid, epoch: u64, result: PagesRead) {
        let Some(watched) = self.moving.watched.get_mut(&tid) else { return };
        if watched.epoch != epoch {
            return;
        }
        let (to, written) = (watched.to, watched.writes.written());
        match (result, written) {
            (PagesRead::All, Ok(written)) => {
                let (length, before) = (bytes(&written), watched.length);
                let is_over = watched.round >= ROUNDS || length > before / 4 * 3;
                (watched.round, watched.length) = (watched.round + 1, length);
                if length <= FEW || is_over {
                    watched.left = written;
                    return self.begin_move(tid);
                }
                let program = Default::default();
                let early = EarlyTask { ulp: None, program, pages: written };
                self.send_early(to, (tid, epoch), &early);
            }
            (result, _) => {
                if result == PagesRead::Unreadable {
                    self.moving.unreadable.insert(to);
                }
                self.drop_watch(tid);
                self.begin_move(tid);
            }
        }
    }

    /// Ends the watch of a task, and lets the new process drop what it has copied.
    pub(super) fn drop_watch(&mut self, tid: Tid) {
        if let Some(WatchedTask { epoch, to, .. }) = self.moving.watched.remove(&tid) {
            self.tell(to, ControlMessage::DropPages { tid, epoch });
        }
    }

    /// Takes the pages of a round, to be read between turns.
    pub(super) fn early(&mut self, from: Rank, (tid, epoch): (Tid, u64), contents: &[u8]) {
        let is_sound = |early: &EarlyTask| early.pages.iter().all(|run| run.start < run.end);
        let early = postcard::from_bytes(contents).ok().filter(is_sound).ok_or(Refusal::Damaged);
        let taken = early.and_then(|EarlyTask { ulp, program, pages }| match ulp {
            Some(state) => {
                self.go_home();
                let image = self.programs.image(&program).map_err(|_| Refusal::Program)?;
                let ulp = Ulp::arrive(&image, &state).map_err(|_| Refusal::Memory)?;
                let left = VecDeque::from(pages);
                let copy = EarlyCopy { epoch, from, ulp, left, image, unreported: 0 };
                self.moving.copies.insert(tid, copy);
                Ok(())
            }
            None => {
                let copy = self.moving.copies.get_mut(&tid).filter(|copy| copy.epoch == epoch);
                copy.ok_or(Refusal::Memory)?.left.extend(pages);
                Ok(())
            }
        });
        if taken.is_err() {
            self.moving.copies.remove(&tid);
            let result = PagesRead::Refused;
            self.tell(from, ControlMessage::HasPages { tid, epoch, result });
        }
    }

    /// Reads some pages of tasks that are to enter. To be called between two turns.
    pub(super) fn read_early_pages(&mut self) {
        let due = |(_, copy): &(&Tid, &mut EarlyCopy)| !copy.left.is_empty();
        let Some((tid, copy)) = self.moving.copies.iter_mut().find(due) else { return };
        let (tid, epoch, from) = (*tid, copy.epoch, copy.from);
        let (mut runs, mut length) = (Vec::new(), 0);
        while length < STEP
            && let Some(PageRun { start, end }) = copy.left.pop_front()
        {
            let stop = end.min(start.saturating_add(STEP - length));
            if stop < end {
                copy.left.push_front(PageRun { start: stop, end });
            }
            runs.push(PageRun { start, end: stop });
            length += stop - start;
        }
        let process = self.link.as_ref().map_or(0, |link| link.process(from)).cast_unsigned();
        let result = match copy.ulp.pull(process, &runs) {
            Ok(()) => PagesRead::All,
            Err(why) if crate::packed::is_unreadable(&why) => PagesRead::Unreadable,
            Err(_) => PagesRead::Refused,
        };
        copy.unreported += length;
        let is_long = copy.unreported >= REPORT;
        if is_long {
            copy.unreported = 0;
        }
        let is_over = copy.left.is_empty() || result != PagesRead::All;
        if result != PagesRead::All {
            self.moving.copies.remove(&tid);
        }
        if is_over || is_long {
            self.tell_first(ControlMessage::Move(MoveMessage::Copies { tid, epoch }));
        }
        if is_over {
            self.tell(from, ControlMessage::HasPages { tid, epoch, result });
        }
    }

    /// Drops the copy of a task that does not enter.
    pub(in crate::node) fn drop_pages(&mut self, tid: Tid, epoch: u64) {
        if self.moving.copies.get(&tid).is_some_and(|copy| copy.epoch <= epoch) {
            self.moving.copies.remove(&tid);
        }
    }
}
