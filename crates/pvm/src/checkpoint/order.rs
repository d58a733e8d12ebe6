//! What has arrived of the tasks of a checkpoint, as the first process sees it.
//!
//! A file in which something is missing, doubled or in the wrong place is refused when it is read,
//! and then the former file is gone. So each section is checked before it is written. A section
//! from another process is also [read](crate::packed::SavedContents). A process that lies about its
//! own tasks can still make a checkpoint from which these cannot go on, and so no task does.
//!
//! # Quota
//! The home writes what other hosts send. Without a bound a hostile host could fill its disk, and
//! keep the machine from going on. So the processes of another host send no more than their tasks
//! can have: for each task the memory that the machine gives it, and as much for its messages.

use super::{SavedPlace, SectionKind};
use crate::tid::Tid;
use std::collections::BTreeMap;
use std::fmt;
use upcall_message::Rank;
use upcall_ulp::PIECE;

/// Maximum length of a part from another host, in bytes. A part has two pieces at most, and what
/// comes before them.
const MOST_PART: usize = 3 * PIECE;
/// Maximum length of a task without its contents from another host, in bytes. Each block that a
/// task holds takes some 20 bytes.
const MOST_TASK: usize = 16 << 20;
/// What each section counts beside its contents, in bytes: its words and its place.
const EACH: u64 = 64;

/// The tasks of a machine, and what has arrived of each.
#[derive(Debug, Default)]
pub(crate) struct TaskSections {
    tasks: BTreeMap<Tid, ArrivedTask>,
    /// The processes of other hosts that have tasks.
    quotas: BTreeMap<Rank, SectionQuota>,
}

#[derive(Debug)]
struct ArrivedTask {
    /// The process that sends the task.
    from: Rank,
    /// The number of the next part, and of all parts. `None`: nothing has arrived.
    parts: Option<(u32, u32)>,
}

/// What the tasks of a process may have.
#[derive(Clone, Copy, Debug, Default)]
struct SectionQuota {
    tasks: u32,
    /// Number of bytes that have arrived, and that all tasks may have.
    sent: u64,
    most: u64,
}

/// Which section of its task a section is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SectionOrder {
    Next,
    /// The last part of its task.
    Last,
}

/// The reason why a section of a process is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SectionRefusal {
    /// It is not the next one of its task, or cannot be read.
    Wrong,
    /// It is longer than any section.
    TooLong { length: usize, most: usize },
    /// The process has sent more than its tasks can have.
    TooMuch { tasks: u32, most: u64 },
}

impl fmt::Display for SectionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong => f.write_str("it does not arrive as it is sent"),
            Self::TooLong { length, most } => {
                write!(f, "{length} bytes were sent at once, and {most} are possible")
            }
            Self::TooMuch { tasks, most } => write!(
                f,
                "the process has sent more than {most} bytes for {tasks} tasks, which is twice \
                 their memory. Save the machine when they have taken their messages, or start it \
                 with a larger --memory"
            ),
        }
    }
}

impl TaskSections {
    /// The tasks, with the process in which each one runs. `most` is the number of bytes that each
    /// task of a process may have, if the process is on another host.
    pub(crate) fn of(
        tasks: impl Iterator<Item = (Tid, Rank)>,
        most: impl Fn(Rank) -> Option<u64>,
    ) -> Self {
        let mut all = Self::default();
        for (tid, from) in tasks {
            all.tasks.insert(tid, ArrivedTask { from, parts: None });
            if let Some(most) = most(from) {
                let quota = all.quotas.entry(from).or_default();
                quota.tasks += 1;
                quota.most = quota.most.saturating_add(most);
            }
        }
        all
    }

    /// Adds a section of this length that a process has sent.
    ///
    /// # Errors
    /// See [`SectionRefusal`].
    pub(crate) fn add(
        &mut self,
        from: Rank,
        kind: SectionKind,
        at: SavedPlace,
        length: usize,
    ) -> Result<SectionOrder, SectionRefusal> {
        let SavedPlace { tid, at } = at;
        let task = self.tasks.get_mut(&tid).filter(|task| task.from == from);
        let task = task.ok_or(SectionRefusal::Wrong)?;
        if let Some(quota) = self.quotas.get_mut(&from) {
            quota.add(kind, length)?;
        }
        match (kind, &mut task.parts) {
            (SectionKind::Task, parts @ None) if at > 0 => *parts = Some((0, at)),
            (SectionKind::Part, Some((next, all))) if at == *next && at < *all => {
                *next += 1;
                if next == all {
                    return Ok(SectionOrder::Last);
                }
            }
            _ => return Err(SectionRefusal::Wrong),
        }
        Ok(SectionOrder::Next)
    }

    /// A task of which something has not arrived.
    pub(crate) fn missing(&self) -> Option<Tid> {
        let is_whole = |task: &ArrivedTask| task.parts.is_some_and(|(next, all)| next == all);
        self.tasks.iter().find(|(_, task)| !is_whole(task)).map(|(tid, _)| *tid)
    }
}

impl SectionQuota {
    /// Counts a section of this length.
    fn add(&mut self, kind: SectionKind, length: usize) -> Result<(), SectionRefusal> {
        let most = if kind == SectionKind::Task { MOST_TASK } else { MOST_PART };
        if length > most {
            return Err(SectionRefusal::TooLong { length, most });
        }
        self.sent = self.sent.saturating_add(length as u64 + EACH);
        if self.sent > self.most {
            let Self { tasks, most, .. } = *self;
            return Err(SectionRefusal::TooMuch { tasks, most });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SectionKind::{Part, Task};
    use SectionOrder::{Last, Next};
    use SectionRefusal::{TooLong, TooMuch, Wrong};

    #[test]
    fn each_task_arrives_once_from_its_process_and_whole() {
        let (one, other, none) = (Tid::new(0, 1), Tid::new(1, 1), Tid::new(0, 9));
        let mut all = TaskSections::of([(one, 0), (other, 1)].into_iter(), |_| None);
        let mut add = |from, kind, tid, at| all.add(from, kind, SavedPlace { tid, at }, 1);
        // A process sends what is no task, another one's, a part too early, or no part at all.
        assert_eq!(add(0, Task, none, 1), Err(Wrong));
        assert_eq!(add(1, Task, one, 1), Err(Wrong));
        assert_eq!(add(0, Part, one, 0), Err(Wrong));
        assert_eq!(add(0, Task, one, 0), Err(Wrong));
        assert_eq!(add(0, Task, one, 2), Ok(Next));
        // The task again, another one's part, a part that is not the next one, or is none.
        assert_eq!(add(0, Task, one, 2), Err(Wrong));
        assert_eq!(add(1, Part, one, 0), Err(Wrong));
        assert_eq!(add(0, Part, one, 1), Err(Wrong));
        assert_eq!(add(0, Part, one, 0), Ok(Next));
        assert_eq!(add(0, Part, one, 0), Err(Wrong));
        assert_eq!(add(1, Task, other, 1), Ok(Next));
        assert_eq!(add(1, Part, other, 0), Ok(Last));
        assert_eq!(add(1, Part, other, 1), Err(Wrong));
        assert_eq!(add(0, SectionKind::End, one, 0), Err(Wrong));
        assert_eq!(all.missing(), Some(one));
        assert_eq!(all.add(0, Part, SavedPlace { tid: one, at: 1 }, 1), Ok(Last));
        assert_eq!(all.missing(), None);
        assert_eq!(TaskSections::of([(one, 0)].into_iter(), |_| None).missing(), Some(one));
    }

    #[test]
    fn a_process_of_another_host_sends_no_more_than_its_tasks_can_have() {
        const MOST: u64 = 1000;
        let (own, one, two) = (Tid::new(0, 1), Tid::new(1, 1), Tid::new(1, 2));
        let far = |rank: Rank| (rank == 1).then_some(MOST);
        let mut all = TaskSections::of([(own, 0), (one, 1), (two, 1)].into_iter(), far);
        let mut add = |from, kind, tid, at, length| {
            let place = SavedPlace { tid, at };
            all.add(from, kind, place, length)
        };
        // The home itself has no quota.
        assert_eq!(add(0, Task, own, u32::MAX, MOST_TASK + 1), Ok(Next));
        assert_eq!(add(0, Part, own, 0, usize::MAX), Ok(Next));
        // The quota is that of all tasks of the process, and each section costs something.
        assert_eq!(add(1, Task, one, u32::MAX, 1000), Ok(Next));
        let count = (0..).take_while(|at| add(1, Part, one, *at, 0).is_ok()).count();
        assert_eq!(count as u64, (2 * MOST - 1000 - EACH) / EACH);
        assert_eq!(add(1, Task, two, 1, 0), Err(TooMuch { tasks: 2, most: 2 * MOST }));
        let long = TooLong { length: MOST_PART + 1, most: MOST_PART };
        assert_eq!(add(1, Part, one, count as u32, MOST_PART + 1), Err(long));
        let text = TooMuch { tasks: 2, most: 2 * MOST }.to_string();
        assert!(text.contains("2000 bytes for 2 tasks") && text.contains("--memory"), "{text}");
    }
}
