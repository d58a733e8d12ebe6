//! What a process knows about checkpoints.

use crate::calls::NodeCall;
use crate::checkpoint::{CheckpointHead, CheckpointWriter, TaskSections};
use crate::door::Visitor;
use crate::holding::MachineHold;
use crate::machine::saved::{WaitingHostChange, WaitingSpawn};
use crate::moves::Refusal;
use crate::node::coming::state::HostAsker;
use crate::packed::FillingTask;
use crate::shown::SavedCost;
use crate::tid::Tid;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use upcall_message::{Petition, Rank};

/// Interval at which a process that stands still checks what is not a message.
pub(crate) const STILL: Duration = Duration::from_millis(1);

/// What a process has to do with checkpoints.
#[derive(Default)]
pub(crate) struct NodeSaving {
    pub(crate) hold: Option<Box<TaskHold>>,
    /// Tasks from a checkpoint whose contents arrive.
    pub(crate) restoring: HashMap<Tid, Box<RestoringTask>>,
    /// In the first process: the machine is being restored from a checkpoint.
    pub(crate) restores: bool,
    /// Seats of tasks from a checkpoint, which run when the machine goes on.
    pub(crate) restored: Vec<u32>,
    /// In the first process: the checkpoint under way.
    pub(crate) first: Option<Box<FirstSaving>>,
    /// In the first process: a checkpoint whose file is being written, while all goes on.
    pub(crate) writing: Option<WritingFile>,
    /// The number of the last checkpoint.
    pub(crate) last: u64,
    /// In the first process: requests and spawns that wait until the machine goes on.
    pub(crate) calls: VecDeque<NodeCall>,
    pub(crate) spawns: Vec<WaitingSpawn>,
    pub(crate) hosts: Vec<WaitingForHosts>,
    pub(crate) periodic: Option<Periodic>,
    /// In the first process: what it saves about the machine's start.
    pub(crate) start: Option<Box<CheckpointHead>>,
    /// In the first process: tasks that their processes have not restored, and those that they
    /// cannot restore.
    pub(crate) missing: BTreeMap<Tid, Rank>,
    pub(crate) refused: BTreeMap<Tid, (Rank, Refusal)>,
}

/// A request about hosts that waits until the machine goes on.
pub(crate) enum WaitingForHosts {
    /// Of a task, the console or another shell.
    Change { asker: HostAsker, change: WaitingHostChange, names: Vec<String> },
    /// Of a host that comes by itself.
    Petition(Petition),
}

impl WaitingForHosts {
    /// The task, or the console, that waits for the answer.
    pub(crate) fn asking_task(&self) -> Option<Tid> {
        match self {
            Self::Change { asker: HostAsker::Task(asker), .. } => Some(*asker),
            Self::Change { .. } | Self::Petition(_) => None,
        }
    }
}

/// The tasks of a process while a machine stands still, or is about to.
pub(crate) struct TaskHold {
    pub(crate) number: u64,
    pub(crate) phase: TaskHoldPhase,
    pub(crate) until: Instant,
}

pub(crate) enum TaskHoldPhase {
    /// Tasks that are to be held, and how often each had run when it was tried last.
    Stops(Vec<(Tid, Option<u32>)>),
    /// All are held.
    Still,
    /// Tasks that are still to be sent.
    Saves(VecDeque<Tid>),
}

impl NodeSaving {
    /// Returns `true` while tasks are held, or are to be held.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.hold.is_some()
    }

    /// Returns `true` once all tasks are held.
    #[inline]
    pub(crate) fn is_still(&self) -> bool {
        let stops = |hold: &TaskHold| matches!(hold.phase, TaskHoldPhase::Stops(_));
        self.hold.as_ref().is_some_and(|hold| !stops(hold))
    }

    /// Returns `true` if something is to be done between two turns.
    #[inline]
    pub(crate) fn is_at_work(&self) -> bool {
        self.hold.is_some() || self.first.is_some()
    }

    /// Maximum time to wait for an event, if something is to be done between two turns.
    #[inline]
    pub(crate) fn waits(&self) -> Option<Duration> {
        self.is_at_work().then_some(STILL)
    }

    /// Returns `true` if there are tasks to send.
    pub(crate) fn has_unsaved(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| matches!(hold.phase, TaskHoldPhase::Saves(_)))
    }
}

/// The origin of a request for a checkpoint.
pub(crate) enum SaveAsker {
    /// Another shell.
    Visitor(Visitor),
    /// The console, which waits for the answer.
    Console,
    /// The machine itself, at intervals.
    Periodic,
}

/// A requested checkpoint, and its cost so far.
pub(crate) struct Saving {
    pub(crate) number: u64,
    pub(crate) asker: SaveAsker,
    pub(crate) path: PathBuf,
    pub(crate) since: Instant,
    pub(crate) cost: SavedCost,
    /// When progress was reported last.
    pub(crate) shown: Instant,
}

/// A checkpoint under way, until the machine goes on.
pub(crate) struct FirstSaving {
    pub(crate) saving: Saving,
    pub(crate) holding: MachineHold,
    /// `None` until all tasks are held.
    pub(crate) writer: Option<CheckpointWriter>,
    /// What has arrived of the tasks.
    pub(crate) sections: TaskSections,
    /// The time at which the tasks were requested to stop.
    pub(crate) stopped: Instant,
    /// The next round of counting, if this process has to handle something first.
    pub(crate) recount: Option<u32>,
}

/// A checkpoint whose file is being written.
pub(crate) struct WritingFile {
    pub(crate) saving: Saving,
    pub(crate) writer: CheckpointWriter,
}

/// Checkpoints at intervals.
pub(crate) struct Periodic {
    pub(crate) path: PathBuf,
    pub(crate) every: Duration,
    pub(crate) next: Instant,
    /// The last reason why there was none, which is reported once.
    pub(crate) refused: Option<String>,
}

/// A task whose contents arrive from a checkpoint.
pub(crate) struct RestoringTask {
    pub(crate) task: FillingTask,
    /// The number of the next part, and of all.
    pub(crate) next: u32,
    pub(crate) parts: u32,
}
