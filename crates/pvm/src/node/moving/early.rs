//! What is done for a task before it stops.
//!
//! The new process maps the task's memory, which takes as long as much else about a move. The pages
//! of a small task are written there when it has stopped. Before that the new process makes them,
//! and the old one writes as many as it can while the two wait for each other. The pages of a large
//! task are read before:
//!
//! ```text
//! old process                                   new process
//! Move: Early, with the task's mappings    ──▶  makes room
//!       finds the task's pages             ◀──  HasPages
//!
//! small Early, with the task's pages       ──▶  makes them, some at a time
//!       the move begins
//!       writes them, some at a time
//!
//! large watches the writes
//!       Early, with all pages there are    ──▶  reads them, some at a time
//!                                          ◀──  HasPages
//!       Early, with those written since    ──▶  reads them …
//!                                          ◀──  HasPages
//!       few are left: the move begins
//!
//!       the task stops: Task, with those written since, and those that have gone
//! ```
//! The task runs all the time. The new process may read a page while it is written. Then the page
//! is among those of the next round. That ends when few pages are left, when there are as many as
//! before, or after [`ROUNDS`] rounds. If something cannot be done, the move begins at once, and
//! the task stops for all of its pages.
//!
//! The new process drops a copy when the old one says so ([`ControlMessage::DropPages`]), when
//! that one has ended, or when it hears where the task goes on. A process writes to the addresses
//! of a task in another process only while the task is its own. No other task has these addresses
//! until it has reported the task's end. So it writes to room for the task, or to nothing.

use super::super::Node;
use crate::moves::{MoveMessage, Pin, Refusal};
use crate::packed::{EarlyTask, PackedHead};
use crate::remote::{ControlMessage, PagesRead};
use crate::task::Task;
use crate::tid::Tid;
use crate::transit::{EarlyCopy, EarlySent, WatchedTask};
use std::collections::VecDeque;
use std::ffi::OsStr;
use upcall_message::Rank;
use upcall_ulp::{PageRun, Ulp, UlpState};

/// Number of bytes from which a task's memory is copied early.
const LARGE: u64 = 1 << 20;
/// Number of bytes for which a task may stop.
const FEW: u64 = 256 << 10;
/// Maximum number of rounds.
const ROUNDS: u32 = 8;
/// Number of bytes that are read between two turns.
const STEP: u64 = 1 << 20;
/// Number of bytes of pages that are made between two turns, which takes about 3 µs.
const MADE: u64 = 16 << 10;
/// Number of bytes that are written between two turns, for as long.
const WRITTEN: u64 = 8 << 10;
/// Number of bytes after which the first process hears that the copying goes on.
const REPORT: u64 = 64 << 20;

/// Maximum number of tasks of one process for which this one has room before they stop. The first
/// process has not announced their moves yet, so that any process could take all room. Further
/// tasks move without room.
const ROOMS: usize = 64;

/// Whether there may be room for another task that has not stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoomsQuota {
    Left,
    /// The process has room for enough tasks, or another process has room for this one.
    UsedUp,
}

/// Checks a request for room from process `from`. `rooms` are the tasks that have some, each with
/// the process that it is in.
fn rooms_quota(rooms: impl Iterator<Item = (Tid, Rank)>, tid: Tid, from: Rank) -> RoomsQuota {
    let mut count = 0;
    for (one, process) in rooms {
        if one == tid && process != from {
            return RoomsQuota::UsedUp;
        }
        count += usize::from(one != tid && process == from);
    }
    if count < ROOMS { RoomsQuota::Left } else { RoomsQuota::UsedUp }
}

fn bytes(runs: &[PageRun]) -> u64 {
    runs.iter().map(|run| run.end - run.start).sum()
}

/// What follows when all pages of a round have been read.
enum NextRound {
    /// The pages of the first round are read as soon as there is room.
    First,
    /// Another round, of these pages.
    Read(Vec<PageRun>),
    /// The task stops.
    Stop,
}

impl WatchedTask {
    /// Begins to watch a task's writes. Returns all pages that there are. `None`: the kernel cannot
    /// do that.
    fn watch(ulp: &Ulp, state: &UlpState) -> Option<(Self, Vec<PageRun>)> {
        let mut writes = ulp.watch(state).ok()?;
        let all = writes.written().ok()?;
        Some((Self { writes, round: 0, length: bytes(&all), left: Vec::new() }, all))
    }

    /// `None`: the pages cannot be found.
    fn next_round(&mut self) -> Option<NextRound> {
        if self.round == 0 {
            self.round = 1;
            return Some(NextRound::First);
        }
        let written = self.writes.written().ok()?;
        let (length, before) = (bytes(&written), self.length);
        let is_over = self.round >= ROUNDS || length > before / 4 * 3;
        (self.round, self.length) = (self.round + 1, length);
        if length > FEW && !is_over {
            return Some(NextRound::Read(written));
        }
        self.left = written;
        Some(NextRound::Stop)
    }
}

impl Node {
    /// Lets the task leave, unless it is pinned. The new process first makes room for it, or copies
    /// it if it is large.
    pub(super) fn may_leave(&mut self, tid: Tid) {
        let task = self.seat(tid.number()).and_then(|seat| self.tasks[seat as usize].as_deref());
        match task.map_or(Some(Pin::Ended), Task::pinned) {
            Some(why) => self.drive(|moves, effects| moves.stays(tid, why, effects)),
            None if self.sends_early(tid).is_some() => {}
            None => self.begin_move(tid),
        }
    }

    fn begin_move(&mut self, tid: Tid) {
        let now = self.link.as_ref().map_or(0, |link| link.time());
        self.drive(|moves, effects| moves.begin(tid, now, effects));
    }

    /// Sends what a task is now, and its pages if it is large. `None`: that cannot be done.
    fn sends_early(&mut self, tid: Tid) -> Option<()> {
        let (epoch, to) = self.moving.moves.leaving(tid)?;
        if !self.can_read(to) {
            return None;
        }
        let seat = self.seat(tid.number())?;
        let task = self.tasks[seat as usize].as_deref()?;
        let state = task.ulp.outline(&task.image).ok()?;
        let program = task.program.clone().into();
        let early = EarlyTask { ulp: Some(state.clone()), program, ..EarlyTask::default() };
        self.send_early(to, (tid, epoch), &early)?;
        // The new process makes room at the same time.
        let task = self.tasks[seat as usize].as_deref()?;
        let expected = task.ulp.pages(&state).map_or(Vec::new(), |pages| pages.runs());
        let is_large = bytes(&expected) >= LARGE;
        let watched = if is_large { WatchedTask::watch(&task.ulp, &state) } else { None };
        let mappings = state.mappings;
        let (unwritten, has_room) = (VecDeque::new(), false);
        let written = Vec::new();
        let mut sent =
            EarlySent { epoch, to, mappings, unwritten, written, has_room, watched: None };
        if let Some((watched, pages)) = watched {
            let early = EarlyTask { pages, ..EarlyTask::default() };
            let is_sent = self.send_early(to, (tid, epoch), &early);
            sent.watched = is_sent.map(|()| watched);
        } else if !is_large {
            // Of a file's page that is gone when the task stops, the contents are not zeros.
            let is_anonymous = |run: &&PageRun| {
                let mut all = sent.mappings.iter().filter(|one| one.offset.is_none());
                all.any(|one| one.start <= run.start && run.end <= one.end)
            };
            sent.unwritten.extend(expected.iter().filter(is_anonymous));
            let early = EarlyTask { expected, ..EarlyTask::default() };
            let _ = self.send_early(to, (tid, epoch), &early);
        }
        self.moving.sent_early.insert(tid, sent);
        Some(())
    }

    /// `None`: there is no memory.
    fn send_early(&mut self, to: Rank, (tid, epoch): (Tid, u64), early: &EarlyTask) -> Option<()> {
        let contents = postcard::to_stdvec(early).ok()?;
        self.pack_there(to, &PackedHead::Early { tid, epoch }, &contents);
        Some(())
    }

    /// Writes some pages of a small task that is to leave to the room that the new process has made
    /// for it. To be called between two turns.
    ///
    /// When the task has stopped they are written again, which takes a fifth of the time: the pages
    /// are there, and in the caches of this processor. Those that the task does not have any more
    /// become zeros in the new process then.
    fn write_early_pages(&mut self) {
        let due = |sent: &&mut EarlySent| sent.has_room && !sent.unwritten.is_empty();
        let Some(sent) = self.moving.sent_early.values_mut().find(due) else { return };
        let process = self.link.as_ref().map_or(0, |link| link.process(sent.to)).cast_unsigned();
        let mut step = WRITTEN;
        while step > 0
            && let Some(PageRun { start, end }) = sent.unwritten.pop_front()
        {
            let stop = end.min(start.saturating_add(step));
            if stop < end {
                sent.unwritten.push_front(PageRun { start: stop, end });
            }
            step -= stop - start;
            sent.written.push(PageRun { start, end: stop });
            if upcall_ulp::write_early(process, PageRun { start, end: stop }).is_err() {
                // The room is not there any more.
                sent.unwritten.clear();
            }
        }
    }

    /// Makes some pages for small tasks that are to enter, or writes some to other processes. To be
    /// called between two turns.
    pub(super) fn make_early_pages(&mut self) {
        self.write_early_pages();
        let due = |copy: &&mut EarlyCopy| !copy.expected.is_empty();
        let Some(copy) = self.moving.copies.values_mut().find(due) else { return };
        let mut step = MADE.min(LARGE - copy.made);
        while step > 0
            && let Some(PageRun { start, end }) = copy.expected.pop_front()
        {
            let stop = end.min(start.saturating_add(step));
            if stop < end {
                copy.expected.push_front(PageRun { start: stop, end });
            }
            copy.ulp.expect(PageRun { start, end: stop });
            step -= stop - start;
            copy.made += stop - start;
        }
        if copy.made == LARGE {
            // A small task has no more.
            copy.expected.clear();
        }
    }

    /// Handles that the new process has room, or the pages of a round, or cannot have them.
    pub(in crate::node) fn has_pages(&mut self, tid: Tid, epoch: u64, result: PagesRead) {
        let sent = self.moving.sent_early.get_mut(&tid).filter(|sent| sent.epoch == epoch);
        let Some(EarlySent { to, watched, has_room, .. }) = sent else { return };
        let to = *to;
        *has_room = result == PagesRead::All && self.moving.trials.allows_writing();
        match (result, watched.as_mut().map(WatchedTask::next_round)) {
            (PagesRead::All, None | Some(Some(NextRound::Stop))) => self.begin_move(tid),
            (PagesRead::All, Some(Some(NextRound::First))) => {}
            (PagesRead::All, Some(Some(NextRound::Read(pages)))) => {
                let early = EarlyTask { pages, ..EarlyTask::default() };
                let _ = self.send_early(to, (tid, epoch), &early);
            }
            (result, _) => {
                if result == PagesRead::Unreadable {
                    self.moving.unreadable.insert(to);
                }
                self.drop_sent(tid);
                self.begin_move(tid);
            }
        }
    }

    /// Ends the watch of a task, and lets the new process drop what it has of it.
    pub(super) fn drop_sent(&mut self, tid: Tid) {
        if let Some(EarlySent { epoch, to, .. }) = self.moving.sent_early.remove(&tid) {
            self.tell(to, ControlMessage::DropPages { tid, epoch });
        }
    }

    /// Makes room for a task, or takes the pages of a round, to be read between turns, or those
    /// that are expected, to be made. Only the latter are not answered.
    pub(super) fn early(&mut self, from: Rank, (tid, epoch): (Tid, u64), contents: &[u8]) {
        let are_sound = |runs: &[PageRun]| runs.iter().all(|run| run.start < run.end);
        let is_sound = |early: &EarlyTask| are_sound(&early.pages) && are_sound(&early.expected);
        let result = match postcard::from_bytes::<EarlyTask>(contents).ok().filter(is_sound) {
            Some(EarlyTask { ulp: Some(state), program, .. }) => {
                let copies = self.moving.copies.iter().map(|(tid, copy)| (*tid, copy.from));
                let room = match rooms_quota(copies, tid, from) {
                    RoomsQuota::Left => self.room_for(from, epoch, &state, &program),
                    RoomsQuota::UsedUp => Err(Refusal::Memory),
                };
                match room {
                    Ok(copy) => {
                        self.moving.copies.insert(tid, copy);
                        PagesRead::All
                    }
                    Err(_) => PagesRead::Refused,
                }
            }
            Some(EarlyTask { expected, pages, .. }) => {
                let copy = self.moving.copies.get_mut(&tid);
                match copy.filter(|copy| (copy.epoch, copy.from) == (epoch, from)) {
                    Some(copy) => {
                        copy.left.extend(pages);
                        copy.expected.extend(expected);
                        return;
                    }
                    None if pages.is_empty() => return,
                    None => PagesRead::Refused,
                }
            }
            None => PagesRead::Refused,
        };
        let is_own = self.moving.copies.get(&tid).is_some_and(|copy| copy.from == from);
        if result == PagesRead::Refused && is_own {
            self.moving.copies.remove(&tid);
        }
        self.tell_pages(from, ControlMessage::HasPages { tid, epoch, result });
    }

    fn tell_pages(&mut self, from: Rank, message: ControlMessage) {
        self.moving.before_step(&message);
        self.tell(from, message);
    }

    fn room_for(
        &mut self,
        from: Rank,
        epoch: u64,
        state: &UlpState,
        program: &OsStr,
    ) -> Result<EarlyCopy, Refusal> {
        self.go_home();
        self.free_left();
        self.allow_others();
        let image = match self.programs.known(&state.image) {
            Some(image) => image,
            None => self.programs.image(program).map_err(|_| Refusal::Program)?,
        };
        let ulp = Ulp::arrive(&image, state).map_err(|_| Refusal::Memory)?;
        let (left, expected) = (VecDeque::new(), VecDeque::new());
        Ok(EarlyCopy { epoch, from, ulp, left, expected, made: 0, image, unreported: 0 })
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
            self.tell_pages(from, ControlMessage::HasPages { tid, epoch, result });
        }
    }

    /// Drops the copy of a task that does not enter.
    pub(in crate::node) fn drop_pages(&mut self, tid: Tid, epoch: u64) {
        if self.moving.copies.get(&tid).is_some_and(|copy| copy.epoch <= epoch) {
            self.moving.copies.remove(&tid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_room_for_some_tasks_of_another_one_and_takes_it_from_no_other() {
        let tid = |number| Tid::new(0, number);
        let rooms = |count: usize| (1..=count).map(|one| (tid(one as u32), 1));
        let quota = |count, one, from| rooms_quota(rooms(count), tid(one), from);
        assert_eq!(quota(ROOMS - 1, 1000, 1), RoomsQuota::Left);
        assert_eq!(quota(ROOMS, 1000, 1), RoomsQuota::UsedUp);
        // In place of the room that it has, or of another process.
        assert_eq!(quota(ROOMS, 1, 1), RoomsQuota::Left);
        assert_eq!(quota(ROOMS, 1000, 2), RoomsQuota::Left);
        assert_eq!(quota(1, 1, 2), RoomsQuota::UsedUp);
    }
}
