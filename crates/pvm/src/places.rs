//! Where tasks run, as one process of a machine knows it.
//!
//! A tid is a name. The process in which a task was started has given it, and the task keeps it
//! when it goes on in another process. So nothing but this module derives a place from a tid's
//! bits. Each process has a table with a word for each name:
//!
//! ```text
//! 0              where the name was given (if that is here: no task has it)
//! 1 << 31 | s    here, in seat s
//! 1 << 30 | r    in process r (if that is this one: the task has ended, and the name is not free)
//! 1 << 29 | r    it moves: its messages are kept, or are late ([`moves`](crate::moves)). It was in
//!                process r
//! 1 << 28        the console, which is no task, in the first process
//! ```
//!
//! A *seat* is an index into a process's list of tasks. A seat is the process's own matter: a task
//! has another one after it has moved.
//!
//! A task that sends reads its receiver's word (`upvm_is_here`): a receiver elsewhere can run at
//! once, so the message must not wait until the sender asks for something.
//!
//! Only the process itself changes its table: when one of its tasks begins or ends, and when it
//! handles what the first process announces. That is where a task runs now (`Lives`), and that one
//! has ended which did not run where its name was given (`Gone`). Tasks that stay where they
//! began need no announcement. The first process numbers the announcements for a task, its
//! *epochs*, and an older one changes nothing.
//!
//! In builds with debug assertions, `UPCALL_PVM_NAMES=lent` makes each process name its tasks from
//! the numbers of the next process, so that no task runs where its name says.

use crate::ops::{NAME_HERE, NAMES};
use crate::tid::Tid;
use std::collections::HashMap;
use std::io;
use upcall_message::Rank;
use upcall_ulp::NameWords;

const HERE: u32 = 1 << NAME_HERE;
const THERE: u32 = 1 << 30;
const HELD: u32 = 1 << 29;
const CONSOLE: u32 = 1 << 28;

/// Where the receiver of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskLocation {
    /// In this process, in this seat.
    Seat(u32),
    /// In another process.
    There(Rank),
    /// The receiver moves. The message is kept.
    Held,
    /// It is the console, which this process has.
    Console,
    /// Nowhere.
    Ended,
}

/// One process's table of places; see the module.
pub(crate) struct TaskPlaces {
    words: NameWords,
    rank: u32,
    /// The last announcement's epoch for each task about which there was one.
    epochs: HashMap<Tid, u32>,
    /// The process whose names this one gives, and the next of them to try.
    from: u32,
    next: u32,
    lowest: u32,
}

impl TaskPlaces {
    /// The table of the process with this rank, in a machine of `size` processes.
    pub(crate) fn new(rank: u32, size: usize) -> io::Result<Self> {
        let lends = cfg!(debug_assertions)
            && std::env::var_os("UPCALL_PVM_NAMES").is_some_and(|value| value == "lent");
        Self::naming(rank, if lends { (rank + 1) % size as u32 } else { rank }, lends)
    }

    fn naming(rank: u32, from: u32, lends: bool) -> io::Result<Self> {
        // The process itself uses the lower half of its names.
        let lowest = if lends { Tid::MOST / 2 } else { 1 };
        let (words, epochs) = (NameWords::new(NAMES as u32)?, HashMap::new());
        Ok(Self { words, rank, epochs, from, next: lowest, lowest })
    }

    /// The words, which tasks read before they send.
    pub(crate) fn words(&self) -> &NameWords {
        &self.words
    }

    /// The rank of this process.
    pub(crate) fn rank(&self) -> Rank {
        self.rank as Rank
    }

    fn word(&self, tid: Tid) -> u32 {
        self.words.get(tid.number() as u32)
    }

    fn set(&mut self, tid: Tid, word: u32) {
        self.words.set(tid.number() as u32, word);
    }

    /// The seat of the task with this number. `None`: this process has no such task.
    #[inline]
    pub(crate) fn seat(&self, number: i32) -> Option<u32> {
        let word = self.words.get(number as u32);
        (word & HERE != 0).then_some(word & !HERE)
    }

    /// The process of a task. Of a task that has ended, the process that has given its name.
    pub(crate) fn process(&self, tid: Tid) -> Rank {
        match self.place(tid) {
            TaskLocation::There(rank) => rank,
            TaskLocation::Seat(_) => self.rank(),
            TaskLocation::Held => (self.word(tid) & !HELD) as Rank,
            TaskLocation::Console => 0,
            TaskLocation::Ended => tid.birth() as Rank,
        }
    }

    /// Where the task or console with this id is.
    pub(crate) fn place(&self, tid: Tid) -> TaskLocation {
        let there = |rank: u32| match rank {
            rank if rank == self.rank => TaskLocation::Ended,
            rank => TaskLocation::There(rank as Rank),
        };
        match self.word(tid) {
            0 => there(tid.birth()),
            CONSOLE => TaskLocation::Console,
            word if word & (HERE | HELD) == HELD => TaskLocation::Held,
            word if word & HERE != 0 => TaskLocation::Seat(word & !HERE),
            word => there(word & !THERE),
        }
    }

    /// Returns `true` if the name was given in the process with this rank.
    pub(crate) fn is_named_in(tid: Tid, rank: Rank) -> bool {
        tid.birth() as Rank == rank
    }

    /// A name for a task that starts here. Names are assigned round robin. `None`: all are taken.
    pub(crate) fn name(&mut self) -> Option<Tid> {
        for _ in self.lowest..=Tid::MOST {
            let tid = Tid::new(self.from, self.next);
            self.next = if self.next >= Tid::MOST { self.lowest } else { self.next + 1 };
            if self.word(tid) == 0 {
                return Some(tid);
            }
        }
        None
    }

    /// The number of the next name to try, within this process's.
    pub(crate) fn next_name(&self) -> u32 {
        self.next
    }

    /// Goes on with the names of a process that was checkpointed.
    pub(crate) fn set_next_name(&mut self, next: u32) {
        self.next = next.clamp(self.lowest, Tid::MOST);
    }

    /// Records that this name is the console's.
    pub(crate) fn is_consoles(&mut self, tid: Tid) {
        self.set(tid, CONSOLE);
    }

    /// Records that a task has taken a seat here.
    pub(crate) fn arrived(&mut self, tid: Tid, seat: u32) {
        self.set(tid, HERE | seat);
    }

    /// Records that a task has ended here. Its name is free at once if it always was here.
    pub(crate) fn ended(&mut self, tid: Tid) {
        let is_known_elsewhere = self.epochs.contains_key(&tid);
        self.set(tid, if is_known_elsewhere { THERE | self.rank } else { 0 });
    }

    /// Handles the announcement of where a task runs.
    pub(crate) fn lives(&mut self, tid: Tid, rank: Rank, epoch: u32) {
        let known = self.epochs.entry(tid).or_insert(0);
        if epoch <= *known {
            return;
        }
        *known = epoch;
        if self.seat(tid.number()).is_none() || rank != self.rank() {
            self.set(tid, THERE | rank as u32);
        }
    }

    /// Records that messages for a task are kept until it is decided where the task goes on.
    pub(crate) fn held(&mut self, tid: Tid) {
        self.epochs.entry(tid).or_insert(0);
        self.set(tid, HELD | self.process(tid) as u32);
    }

    /// Records that a task that was [`held`](Self::held) is in another process, or has ended here.
    pub(crate) fn moved(&mut self, tid: Tid, rank: Rank) {
        self.set(tid, THERE | rank as u32);
    }

    /// Handles the announcement that a task has ended about whose place there was one.
    pub(crate) fn gone(&mut self, tid: Tid) {
        self.epochs.remove(&tid);
        if self.seat(tid.number()).is_none() {
            self.set(tid, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tid::MOST_PROCESSES;

    const A: Tid = Tid::new(0, 1);
    const B: Tid = Tid::new(2, 9);

    fn table(rank: u32) -> TaskPlaces {
        TaskPlaces::naming(rank, rank, false).unwrap()
    }

    #[test]
    fn a_task_is_where_it_was_named_until_something_else_is_known() {
        let mut first = table(0);
        assert_eq!((first.place(A), first.place(B)), (TaskLocation::Ended, TaskLocation::There(2)));
        first.arrived(B, 7);
        first.lives(A, 1, 1);
        assert_eq!(
            (first.place(A), first.place(B)),
            (TaskLocation::There(1), TaskLocation::Seat(7))
        );
        assert_eq!((first.seat(B.number()), first.seat(A.number())), (Some(7), None));
        // Numbers that are no names, and names of the last process.
        assert!([0, -1, 5, i32::MIN, i32::MAX].iter().all(|number| first.seat(*number).is_none()));
        let last = Tid::new(MOST_PROCESSES - 1, Tid::MOST);
        first.arrived(last, 1);
        assert_eq!((first.seat(last.number()), first.seat(Tid::MOST as i32)), (Some(1), None));
    }

    #[test]
    fn an_older_announcement_changes_nothing() {
        let mut first = table(0);
        first.lives(A, 2, 2);
        first.lives(A, 1, 1);
        first.lives(A, 1, 2);
        assert_eq!(first.place(A), TaskLocation::There(2));
        first.lives(A, 1, 3);
        assert_eq!(first.place(A), TaskLocation::There(1));
    }

    #[test]
    fn a_task_keeps_its_seat_when_its_own_process_is_announced_and_loses_it_otherwise() {
        let mut first = table(0);
        first.arrived(B, 3);
        first.lives(B, 0, 1);
        assert_eq!(first.place(B), TaskLocation::Seat(3));
        first.lives(B, 1, 2);
        assert_eq!(first.place(B), TaskLocation::There(1));
        // It is announced before it arrives.
        first.lives(B, 0, 3);
        assert_eq!(first.place(B), TaskLocation::Ended);
        first.arrived(B, 4);
        assert_eq!(first.place(B), TaskLocation::Seat(4));
    }

    #[test]
    fn a_name_is_given_again_after_all_others_and_not_before_its_task_is_gone() {
        let mut first = table(0);
        let console = Tid::new(0, 1);
        first.is_consoles(console);
        let moved = first.name().unwrap();
        assert_eq!((moved, first.place(console)), (Tid::new(0, 2), TaskLocation::Console));
        first.arrived(moved, 1);
        first.lives(moved, 1, 1);
        let ended = first.name().unwrap();
        first.arrived(ended, 1);
        first.ended(ended);
        // All others have their tasks.
        for number in 4..=Tid::MOST {
            let tid = first.name().unwrap();
            assert_eq!(tid, Tid::new(0, number));
            first.arrived(tid, number);
        }
        assert_eq!(first.name(), Some(ended));
        first.arrived(ended, 1);
        assert_eq!(first.name(), None);
        first.gone(moved);
        assert_eq!((first.place(moved), first.name()), (TaskLocation::Ended, Some(moved)));
    }

    #[test]
    fn where_a_task_ends_that_was_named_elsewhere_its_name_leads_nowhere() {
        let mut first = table(0);
        first.arrived(B, 3);
        first.lives(B, 0, 1);
        first.ended(B);
        // Not to the process that has named it, which would send it back.
        assert_eq!(first.place(B), TaskLocation::Ended);
        first.gone(B);
        assert_eq!(first.place(B), TaskLocation::There(2));
        // An announcement about the next task of this name counts from 1 again.
        first.lives(B, 1, 1);
        assert_eq!(first.place(B), TaskLocation::There(1));
    }

    #[test]
    fn lent_names_are_those_of_the_next_process() {
        let mut first = TaskPlaces::naming(0, 1, true).unwrap();
        let [one, other] = [(); 2].map(|()| first.name().unwrap());
        assert_ne!(one, other);
        assert!(TaskPlaces::is_named_in(one, 1) && !TaskPlaces::is_named_in(one, 0));
        assert_eq!(first.place(one), TaskLocation::There(1));
    }
}
