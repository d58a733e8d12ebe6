//! The state of a machine as it is shown on its console or in another shell.

use crate::moves::Pin;
use crate::tid::Tid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A machine, as it shows itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShownMachine {
    /// The process id of its first process, which identifies the machine.
    pub process: u32,
    /// Number of processes in which its tasks run.
    pub processes: usize,
    /// These processes.
    pub members: Vec<ShownProcess>,
    /// The name of its balancer. `None`: tasks move only on command.
    pub balancer: Option<String>,
    /// Whether its console is open.
    pub console: bool,
    /// Its tasks.
    pub tasks: Vec<ShownTask>,
}

/// Whether a process has tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessState {
    /// It takes tasks.
    InUse,
    /// It takes none for now, because fewer processes are in use.
    Spare,
    /// It was evacuated: it takes none, and has only those that cannot move.
    Evacuated,
    /// It has ended.
    Ended,
}

impl ProcessState {
    /// One word or two, for tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::InUse => "in use",
            Self::Spare => "spare",
            Self::Evacuated => "evacuated",
            Self::Ended => "ended",
        }
    }
}

/// A process of a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShownProcess {
    /// Its rank.
    pub rank: usize,
    /// Its process id on its host.
    pub process: u32,
    /// The name of its host.
    pub host: String,
    /// Whether it has tasks.
    pub state: ProcessState,
    /// Processor time of the thread that runs its tasks. `None`: it has not answered.
    pub time: Option<Duration>,
    /// Number of tasks that have entered from other processes.
    pub entered: u64,
    /// Number of tasks that have left for other processes.
    pub left: u64,
}

/// A task that stays in a process that is not to have any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StayingTask {
    /// The task.
    pub tid: Tid,
    /// Its program, without the folder.
    pub program: String,
    /// The rank of its process.
    pub rank: usize,
    /// The reason.
    pub why: String,
}

/// Which processes of a machine are in use after a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineUse {
    /// The ranks of the processes in use.
    pub used: Vec<usize>,
    /// Number of tasks that have moved.
    pub moved: usize,
    /// Number of tasks that stay in other processes.
    pub staying: usize,
    /// The first of them.
    pub stay: Vec<StayingTask>,
}

/// A text of another process, which may have sent anything: as people can read it, and at most this
/// number of characters.
pub(crate) fn readable(text: &str, most: usize) -> String {
    let shown = |one: char| if one.is_control() { '?' } else { one };
    text.chars().take(most).map(shown).collect()
}

/// What a move of a task has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveCost {
    /// The time for which the task did not run, from its stop in the old process until the new one
    /// let it run.
    pub pause: Duration,
    /// The time from the request until nothing of the task was under way any more.
    pub total: Duration,
    /// Number of bytes that were sent: memory, message blocks and messages.
    pub bytes: u64,
}

/// What a checkpoint has cost, or has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedCost {
    /// Number of tasks.
    pub tasks: u32,
    /// Number of bytes in the file.
    pub bytes: u64,
    /// The time for which the tasks did not run.
    pub pause: Duration,
    /// The time from the request until the file was on the disk.
    pub total: Duration,
}

impl fmt::Display for SavedCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tasks, bytes, pause, total } = self;
        let tasks = if *tasks == 1 { "1 task".into() } else { format!("{tasks} tasks") };
        let (pause, total) = (pause.as_millis(), total.as_millis());
        write!(f, "{tasks} in {bytes} bytes; they paused for {pause} ms of {total}")
    }
}

/// A task of a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShownTask {
    /// Its id.
    pub tid: Tid,
    /// Its parent. `None`: it has none, or PVM does not report one.
    pub parent: Option<Tid>,
    /// The program, without its folder.
    pub program: String,
    /// What it does.
    pub doing: TaskActivity,
    /// Number of messages in its inbox.
    pub messages: usize,
    /// Number of message blocks that it holds.
    pub blocks: usize,
    /// Size of these blocks in bytes. A block with several holders counts for each of them.
    pub block_bytes: u64,
    /// Rank of the process in which it runs.
    pub rank: usize,
    /// Process id of that process. 0: not known.
    pub process: u32,
    /// The process id that the task itself sees, as `getpid` returns it. 0: not known.
    pub pid: u32,
    /// Its slot in that process, which identifies its memory.
    pub slot: Option<usize>,
    /// Its processor time so far.
    pub time: Duration,
    /// Number of times that it has moved to another process.
    pub moves: u32,
    /// The time for which its last move has stopped it.
    pub pause: Option<Duration>,
    /// Number of its slots.
    pub slots: usize,
    /// Whether a reset spares it.
    pub stays: bool,
    /// The reason why it could not move to another process now, as far as `ps` knows.
    pub pinned: Option<Pin>,
    /// Where its last move was to lead and why it did not come about, if it did not.
    pub refused: Option<String>,
}

/// What a task does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskActivity {
    /// It exists, but does not run until all tasks that are spawned with it have started.
    Starts,
    /// It runs, or waits for its turn.
    Runs,
    /// It waits for its turn, after it has polled for a message that had not arrived.
    Polls(WantedMessage),
    /// It waits for a message, for at most this time.
    Receives(WantedMessage, Option<Duration>),
    /// It waits for this answer of the machine.
    Asks(String),
    /// It sleeps for this time.
    Sleeps(Duration),
    /// It waits until this descriptor is ready.
    Awaits(i32),
    /// It waits for a signal.
    Pauses,
    /// It is in a system call on a helper thread.
    Aside,
    /// It is stopped, and moves to another process.
    Moves,
    /// Its process does not answer: it is stopped, or in a system call for one of its tasks.
    Silent,
}

/// The message that a task waits or polls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedMessage {
    /// The sender. `None`: any.
    pub from: Option<Tid>,
    /// The tag. `None`: any.
    pub tag: Option<i32>,
}

impl TaskActivity {
    /// One word, for programs to parse.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Starts => "starts",
            Self::Runs => "runs",
            Self::Polls(_) => "polls",
            Self::Receives(..) => "receives",
            Self::Asks(_) => "asks",
            Self::Sleeps(_) => "sleeps",
            Self::Awaits(_) => "awaits",
            Self::Pauses => "pauses",
            Self::Aside => "aside",
            Self::Moves => "moves",
            Self::Silent => "silent",
        }
    }

    /// The message that the task waits or polls for.
    pub fn wanted(&self) -> Option<WantedMessage> {
        match self {
            Self::Polls(wanted) | Self::Receives(wanted, _) => Some(*wanted),
            _ => None,
        }
    }
}

impl fmt::Display for TaskActivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starts => f.write_str("starts"),
            Self::Runs => f.write_str("runs, or is in the queue"),
            Self::Polls(wanted) => write!(f, "polls for a message {wanted}"),
            Self::Receives(wanted, None) => write!(f, "waits for a message {wanted}"),
            Self::Receives(wanted, Some(left)) => {
                write!(f, "waits for a message {wanted}, for {} more", Seconds(*left))
            }
            Self::Asks(what) => write!(f, "waits for {what}"),
            Self::Sleeps(left) => write!(f, "sleeps, for {} more", Seconds(*left)),
            Self::Awaits(descriptor) => write!(f, "waits for descriptor {descriptor}"),
            Self::Pauses => f.write_str("waits for a signal"),
            Self::Aside => f.write_str("is in a system call"),
            Self::Moves => f.write_str("moves to another process"),
            Self::Silent => f.write_str(
                "unknown: its process is stopped, or in a system call for one of its tasks",
            ),
        }
    }
}

impl fmt::Display for WantedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            Some(tid) => write!(f, "from {tid}, ")?,
            None => f.write_str("from any task, ")?,
        }
        match self.tag {
            Some(tag) => write!(f, "tag {tag}"),
            None => f.write_str("any tag"),
        }
    }
}

struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < Duration::from_secs(1) {
            write!(f, "{} ms", self.0.as_millis())
        } else {
            write!(f, "{} s", self.0.as_secs())
        }
    }
}

/// PVM's texts for the codes that a console prints.
pub(crate) fn error(code: i32) -> &'static str {
    use crate::error as codes;
    match code {
        codes::BAD_PARAM => "Bad parameter",
        codes::NO_HOST => "No such host",
        codes::NO_FILE => "No such file",
        codes::DENIED => "Permission denied",
        codes::NO_MEM => "Malloc failed",
        codes::HOST_FAIL => "Host failed",
        codes::NOT_IMPL => "Not implemented",
        codes::OUT_OF_RES => "Out of resources",
        codes::DUP_HOST => "Duplicate host",
        codes::CANT_START => "Can't start pvmd",
        codes::NO_TASK => "No such task",
        codes::NOT_FOUND => "Not Found",
        codes::EXISTS => "Already Exists",
        _ => "Unknown Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_task_does_is_said_in_words() {
        let wanted = WantedMessage { from: Some(Tid::new(0, 2)), tag: None };
        let doing = [
            TaskActivity::Receives(WantedMessage { from: None, tag: Some(7) }, None),
            TaskActivity::Receives(wanted, Some(Duration::from_millis(250))),
            TaskActivity::Sleeps(Duration::from_secs(90)),
            TaskActivity::Awaits(0),
            TaskActivity::Asks("others at a barrier".into()),
        ];
        let words = doing.map(|doing| doing.to_string());
        assert_eq!(words[0], "waits for a message from any task, tag 7");
        assert_eq!(words[1], "waits for a message from t40002, any tag, for 250 ms more");
        assert_eq!(words[2], "sleeps, for 90 s more");
        assert_eq!(words[3], "waits for descriptor 0");
        assert_eq!(words[4], "waits for others at a barrier");
    }
}
