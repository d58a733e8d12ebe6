//! Tasks between two processes, as one of these has them.

pub(crate) mod brought;
mod trials;

use self::brought::BroughtMessages;
use self::trials::MoveTrials;
use crate::door::Visitor;
use crate::hosts::MachineHosts;
use crate::moves::{MoveEffect, MoveLimits, Moves, RankSet, Refusal};
use crate::packed::{FillingTask, PackedParts, PackedTask};
use crate::remote::ControlMessage;
use crate::shown::MoveCost;
use crate::task::{Task, TaskMessage};
use crate::tid::Tid;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};
use upcall_message::Rank;
use upcall_ulp::{ArrivingUlp, Image, PageRun, ProcessNumber, Ulp, UlpMapping, UlpWrites};

/// An effect of the state machine, with this crate's messages and errands.
pub(crate) type NodeEffect = MoveEffect<TaskMessage, ControlMessage>;

/// The asker of a move.
pub(crate) enum MoveAsker {
    /// Another shell.
    Visitor(Visitor),
    /// The console, or a task (`upvm_migrate`), whose question waits for the answer.
    Asks(Tid),
    /// The machine itself, to balance.
    Balancer,
    /// A test, which reads no answer.
    Nobody,
}

/// A request for a move, in the first process.
pub(crate) struct AskedMove {
    pub(crate) asker: MoveAsker,
    pub(crate) begun: Instant,
    /// The process of the task then.
    pub(crate) from: Option<Rank>,
    pub(crate) to: Rank,
}

/// What a process has of the tasks that leave or enter it; see [`moving`](crate::node).
pub(crate) struct Transit {
    pub(crate) moves: Moves<TaskMessage, ControlMessage>,
    /// The origin of the state machine's times.
    pub(crate) since: Instant,
    /// Effects that are still to be carried out.
    pub(crate) effects: VecDeque<NodeEffect>,
    pub(crate) carries_out: bool,
    /// Errands for tasks of this process, to be done after all effects.
    pub(crate) errands: VecDeque<ControlMessage>,
    /// Errands for tasks of this process whose messages wait for the marks of a move.
    pub(crate) waiting: Vec<(Tid, ControlMessage)>,
    /// The seats of tasks here whose messages are kept.
    pub(crate) seats: HashMap<Tid, u32>,
    /// Tasks that are to stop, and how often each had run when it was tried last.
    pub(crate) stopping: Vec<(Tid, Option<u32>)>,
    pub(crate) stopped: HashMap<Tid, StoppedTask>,
    /// Tasks that run elsewhere, whose memory is still here. The watch of a task's writes ends
    /// after its memory, and takes no time then.
    pub(crate) left: Vec<(Ulp, Option<UlpWrites>)>,
    /// What has arrived for the effect [`MoveEffect::Prepare`], or why it is not taken.
    pub(crate) taken: Option<Result<(u64, Rank, PackedTask), Refusal>>,
    pub(crate) arriving: HashMap<Tid, Box<EnteringTask>>,
    /// Messages that move with tasks to this process.
    pub(crate) brought: BroughtMessages<TaskMessage>,
    /// What was sent of tasks here that have not stopped yet.
    pub(crate) sent_early: HashMap<Tid, EarlySent>,
    /// Copies of tasks that still run elsewhere.
    pub(crate) copies: HashMap<Tid, EarlyCopy>,
    /// Processes that cannot read this one's memory.
    pub(crate) unreadable: RankSet,
    /// Whether this process has allowed the others to use its memory, where it has to.
    pub(crate) allows_others: bool,
    /// Process numbers of tasks that have left.
    pub(crate) numbers: HashMap<Tid, ProcessNumber>,
    /// Each open move, in the first process.
    pub(crate) askers: HashMap<u64, AskedMove>,
    /// What the moves have cost that are not over, as the new processes have reported.
    pub(crate) costs: HashMap<Tid, MoveCost>,
    /// The number of the last request.
    pub(crate) last: u64,
    pub(crate) trials: MoveTrials,
}

/// What was sent of a task here that has not stopped yet.
pub(crate) struct EarlySent {
    pub(crate) epoch: u64,
    pub(crate) to: Rank,
    /// What was mapped then.
    pub(crate) mappings: Vec<UlpMapping>,
    /// Its pages, as far as they are to be written to the new process's memory before it stops.
    pub(crate) unwritten: VecDeque<PageRun>,
    /// Those that were written there, in order.
    pub(crate) written: Vec<PageRun>,
    /// Whether the new process has room for them.
    pub(crate) has_room: bool,
    /// Its memory, if that is copied before it leaves.
    pub(crate) watched: Option<WatchedTask>,
}

/// A task here whose memory is copied before it leaves.
pub(crate) struct WatchedTask {
    pub(crate) writes: UlpWrites,
    pub(crate) round: u32,
    /// Number of bytes that were written in the last round.
    pub(crate) length: u64,
    /// Pages of the last round, which are copied after the stop.
    pub(crate) left: Vec<PageRun>,
}

/// The copy of a task that still runs elsewhere.
pub(crate) struct EarlyCopy {
    pub(crate) epoch: u64,
    pub(crate) from: Rank,
    pub(crate) ulp: ArrivingUlp,
    pub(crate) image: Rc<Image>,
    /// Pages that are to be read.
    pub(crate) left: VecDeque<PageRun>,
    /// Pages that are to be made, since the old process is expected to write to them.
    pub(crate) expected: VecDeque<PageRun>,
    /// Number of bytes of those that were made.
    pub(crate) made: u64,
    /// Number of bytes that were read since the last report to the first process.
    pub(crate) unreported: u64,
}

/// A task whose contents arrive.
pub(crate) struct EnteringTask {
    pub(crate) epoch: u64,
    /// The process that the task leaves.
    pub(crate) from: Rank,
    pub(crate) task: FillingTask,
    /// The owners of blocks that the task holds, as far as they have not answered yet that the
    /// addresses stay taken.
    pub(crate) owners: Vec<Rank>,
}

/// A task that does not run until a move is decided.
pub(crate) struct StoppedTask {
    pub(crate) task: Box<Task>,
    /// What is sent of it, if it leaves.
    pub(crate) leaves: Option<Box<(PackedTask, PackedParts)>>,
    /// When it was stopped, by the clock that all processes of a host have, and the bytes that were
    /// sent.
    pub(crate) since: (Duration, u64),
    /// The process that this one tells what the move has cost. One of the two hosts of a move knows
    /// when the task was stopped.
    pub(crate) tells: Option<Rank>,
}

impl Transit {
    pub(crate) fn new(rank: Rank, size: usize) -> Self {
        Self {
            moves: Moves::new(rank, size, MoveLimits::default()),
            since: Instant::now(),
            effects: VecDeque::new(),
            carries_out: false,
            errands: VecDeque::new(),
            waiting: Vec::new(),
            seats: HashMap::new(),
            stopping: Vec::new(),
            stopped: HashMap::new(),
            left: Vec::new(),
            taken: None,
            arriving: HashMap::new(),
            brought: BroughtMessages::default(),
            sent_early: HashMap::new(),
            copies: HashMap::new(),
            unreadable: RankSet::default(),
            allows_others: false,
            numbers: HashMap::new(),
            askers: HashMap::new(),
            costs: HashMap::new(),
            last: 0,
            trials: MoveTrials::of_environment(rank),
        }
    }

    /// Records the hosts of the machine, before there are tasks.
    pub(crate) fn has_hosts(&mut self, rank: Rank, hosts: &MachineHosts) {
        self.moves = Moves::new(rank, hosts.ranks(0).len(), MoveLimits::default());
        for host in 1..hosts.count() {
            // There is no move, and so no effect.
            self.moves.joined(hosts.ranks(host), &mut Vec::new());
        }
    }

    /// The seat of a task here whose messages are kept.
    pub(crate) fn seat(&self, tid: Tid) -> Option<u32> {
        self.seats.get(&tid).copied()
    }

    /// In the first process: returns `true` if a move of this task is not over.
    pub(crate) fn is_moving(&self, tid: Tid) -> bool {
        self.moves.is_moving(tid)
    }

    /// Returns the control message, unless it is an errand that must wait for messages.
    pub(crate) fn after_messages(&mut self, control: ControlMessage) -> Option<ControlMessage> {
        // The end of a task does not wait: a process that is stopped may hold the marks back.
        let is_end = matches!(control, ControlMessage::Kill { .. });
        let tid = errand_for(&control).filter(|tid| !is_end && self.moves.waits(*tid));
        let Some(tid) = tid else { return Some(control) };
        self.waiting.push((tid, control));
        None
    }

    /// Lets the errands go on that need not wait any more.
    pub(crate) fn let_errands_go(&mut self) {
        let moves = &self.moves;
        let go = self.waiting.extract_if(.., |(tid, _)| !moves.waits(*tid));
        self.errands.extend(go.map(|(_, errand)| errand));
    }

    /// Returns `true` if this process takes part in no move.
    pub(crate) fn is_quiet(&self) -> bool {
        self.moves.is_quiet() && self.copies.is_empty()
    }

    /// Returns `true` if something is to be done between two turns.
    #[inline]
    pub(crate) fn is_at_work(&self) -> bool {
        let is_early = !self.copies.is_empty() || !self.sent_early.is_empty();
        !self.stopping.is_empty() || !self.stopped.is_empty() || is_early
    }

    /// Returns `true` if there is something to send or to read at once.
    pub(crate) fn is_busy(&self) -> bool {
        let is_busy = |copy: &EarlyCopy| !copy.left.is_empty() || !copy.expected.is_empty();
        let is_writing = |sent: &EarlySent| sent.has_room && !sent.unwritten.is_empty();
        self.moves.has_unsent()
            || self.copies.values().any(is_busy)
            || self.sent_early.values().any(is_writing)
    }

    /// Kills or stops this process if this is a step, of a checkpoint or before a task's stop, at
    /// which a test wants that.
    #[inline]
    pub(crate) fn before_step(&mut self, step: &dyn std::fmt::Debug) {
        self.trials.before_step(step);
    }

    /// Number of moves that are not over, in the first process.
    pub(crate) fn open(&self) -> usize {
        self.moves.open()
    }

    /// The time since this process began.
    pub(crate) fn time(&self) -> Duration {
        self.since.elapsed()
    }

    /// The tasks that leave, and have stopped.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = &Task> {
        let leaves = |one: &&StoppedTask| one.leaves.is_some();
        self.stopped.values().filter(leaves).map(|one| &*one.task)
    }
}

/// The task that an errand is for. `None`: the control message is no errand.
pub(crate) fn errand_for(control: &ControlMessage) -> Option<Tid> {
    match control {
        ControlMessage::Answer { tid, .. }
        | ControlMessage::Kill { tid }
        | ControlMessage::Signal { tid, .. } => Tid::of(*tid),
        _ => None,
    }
}
