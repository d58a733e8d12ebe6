//! What has arrived of the tasks of a checkpoint, as the first process sees it.
//!
//! A file in which something is missing, doubled or in the wrong place is refused when it is read,
//! and then the former file is gone. So each section is checked before it is written. A section
//! from another process is also [read](crate::packed::SavedContents). A process that lies about its
//! own tasks can still make a checkpoint from which these cannot go on.

use super::{SavedPlace, SectionKind};
use crate::tid::Tid;
use std::collections::BTreeMap;
use upcall_message::Rank;

/// The tasks of a machine, and what has arrived of each.
#[derive(Debug, Default)]
pub(crate) struct TaskSections(BTreeMap<Tid, ArrivedTask>);

#[derive(Debug)]
struct ArrivedTask {
    /// The process that sends the task.
    from: Rank,
    /// The number of the next part, and of all parts. `None`: nothing has arrived.
    parts: Option<(u32, u32)>,
}

/// Whether a section is the next one of its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SectionOrder {
    Next,
    /// It is the next one, and the last part of its task.
    Last,
    Wrong,
}

impl TaskSections {
    /// The tasks, with the process in which each one runs.
    pub(crate) fn of(tasks: impl Iterator<Item = (Tid, Rank)>) -> Self {
        Self(tasks.map(|(tid, from)| (tid, ArrivedTask { from, parts: None })).collect())
    }

    /// Adds a section that a process has sent.
    pub(crate) fn add(&mut self, from: Rank, kind: SectionKind, at: SavedPlace) -> SectionOrder {
        let SavedPlace { tid, at } = at;
        let Some(task) = self.0.get_mut(&tid).filter(|task| task.from == from) else {
            return SectionOrder::Wrong;
        };
        match (kind, &mut task.parts) {
            (SectionKind::Task, parts @ None) if at > 0 => *parts = Some((0, at)),
            (SectionKind::Part, Some((next, all))) if at == *next && at < *all => {
                *next += 1;
                if next == all {
                    return SectionOrder::Last;
                }
            }
            _ => return SectionOrder::Wrong,
        }
        SectionOrder::Next
    }

    /// A task of which something has not arrived.
    pub(crate) fn missing(&self) -> Option<Tid> {
        let is_whole = |task: &ArrivedTask| task.parts.is_some_and(|(next, all)| next == all);
        self.0.iter().find(|(_, task)| !is_whole(task)).map(|(tid, _)| *tid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SectionKind::{Part, Task};
    use SectionOrder::{Last, Next, Wrong};

    #[test]
    fn each_task_arrives_once_from_its_process_and_whole() {
        let (one, other, none) = (Tid::new(0, 1), Tid::new(1, 1), Tid::new(0, 9));
        let mut all = TaskSections::of([(one, 0), (other, 1)].into_iter());
        let mut add = |from, kind, tid, at| all.add(from, kind, SavedPlace { tid, at });
        // A process sends what is no task, another one's, a part too early, or no part at all.
        assert_eq!(add(0, Task, none, 1), Wrong);
        assert_eq!(add(1, Task, one, 1), Wrong);
        assert_eq!(add(0, Part, one, 0), Wrong);
        assert_eq!(add(0, Task, one, 0), Wrong);
        assert_eq!(add(0, Task, one, 2), Next);
        // The task again, another one's part, a part that is not the next one, or is none.
        assert_eq!(add(0, Task, one, 2), Wrong);
        assert_eq!(add(1, Part, one, 0), Wrong);
        assert_eq!(add(0, Part, one, 1), Wrong);
        assert_eq!(add(0, Part, one, 0), Next);
        assert_eq!(add(0, Part, one, 0), Wrong);
        assert_eq!(add(1, Task, other, 1), Next);
        assert_eq!(add(1, Part, other, 0), Last);
        assert_eq!(add(1, Part, other, 1), Wrong);
        assert_eq!(add(0, SectionKind::End, one, 0), Wrong);
        assert_eq!(all.missing(), Some(one));
        assert_eq!(all.add(0, Part, SavedPlace { tid: one, at: 1 }), Last);
        assert_eq!(all.missing(), None);
        assert_eq!(TaskSections::of([(one, 0)].into_iter()).missing(), Some(one));
    }
}
