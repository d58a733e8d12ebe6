//! The processes, tasks and queues of a machine whose tasks move, and what must hold.

use crate::dice::Dice;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use upcall_pvm::Tid;
use upcall_pvm::moves::{
    KeptMessage, MoveEffect, MoveLimits, MoveMessage, Moves, TakenMessages, TaskPlace,
};

/// What a process is about to do when trouble strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "names of effects and messages")]
pub enum Label {
    Idle,
    Handle,
    Move,
    Begun,
    Leaving,
    MarkedBefore,
    Flush,
    Flushed,
    Take,
    Part,
    Fill,
    Ready,
    Settled,
    Send,
    MarkedAfter,
    Free,
    Run,
    Deliver,
    Over,
    Resend,
    Resent,
    Gone,
    Other,
}

/// The labels, in the order of their numbers.
pub const LABELS: [Label; 23] = [
    Label::Idle,
    Label::Handle,
    Label::Move,
    Label::Begun,
    Label::Leaving,
    Label::MarkedBefore,
    Label::Flush,
    Label::Flushed,
    Label::Take,
    Label::Part,
    Label::Fill,
    Label::Ready,
    Label::Settled,
    Label::Send,
    Label::MarkedAfter,
    Label::Free,
    Label::Run,
    Label::Deliver,
    Label::Over,
    Label::Resend,
    Label::Resent,
    Label::Gone,
    Label::Other,
];

/// Counts of what a run has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "counts of what their names say")]
pub struct MovingSummary {
    pub steps: u64,
    pub sent: u64,
    pub taken: u64,
    pub kept: u64,
    pub carried: u64,
    pub asked: u64,
    pub moved: u64,
    /// For other reasons than the two that follow.
    pub not_moved: u64,
    pub timed_out: u64,
    pub full: u64,
    pub ended: u64,
    pub stops: u64,
    pub cuts: u64,
    /// By label.
    pub strikes: [u64; LABELS.len()],
    /// By label.
    pub deaths: [u64; LABELS.len()],
}

impl MovingSummary {
    /// The sums of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let sums = |one: [u64; LABELS.len()], other: [u64; LABELS.len()]| {
            std::array::from_fn(|at| one[at] + other[at])
        };
        Self {
            steps: self.steps + other.steps,
            sent: self.sent + other.sent,
            taken: self.taken + other.taken,
            kept: self.kept + other.kept,
            carried: self.carried + other.carried,
            asked: self.asked + other.asked,
            moved: self.moved + other.moved,
            not_moved: self.not_moved + other.not_moved,
            timed_out: self.timed_out + other.timed_out,
            full: self.full + other.full,
            ended: self.ended + other.ended,
            stops: self.stops + other.stops,
            cuts: self.cuts + other.cuts,
            strikes: sums(self.strikes, other.strikes),
            deaths: sums(self.deaths, other.deaths),
        }
    }
}

/// What a seed makes of a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) processes: usize,
    pub(super) tasks: usize,
    /// The host of each process. A message to another host takes a time of its own.
    pub(super) hosts: Vec<usize>,
    /// Trouble strikes before one effect of this many.
    pub(super) trouble: u64,
    pub(super) limits: MoveLimits,
}

/// A message of a task.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) from: usize,
    pub(super) number: u32,
    /// The sender's vector clock.
    pub(super) clock: Vec<u32>,
}

/// What a task remembers. All of it moves.
#[derive(Clone, Debug)]
pub(super) struct ToyTask {
    pub(super) clock: Vec<u32>,
    pub(super) sent: Vec<u32>,
    pub(super) got: Vec<u32>,
    pub(super) answers: u32,
    pub(super) inbox: VecDeque<Rc<Letter>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeatState {
    Runs,
    /// It runs, and is to stop.
    Stopping,
    Stopped,
    Arrives,
}

#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) task: ToyTask,
    pub(super) state: SeatState,
    /// Number of parts that have been filled.
    pub(super) parts: u32,
    /// Number of parts that it has.
    pub(super) all: u32,
}

/// What the first process sends to tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    Answer(u32),
    Kill,
}

pub(super) type Effect = MoveEffect<Rc<Letter>, Errand>;

/// The content of a message between processes.
#[derive(Debug)]
pub(super) enum Content {
    Move(MoveMessage),
    Letter(Tid, KeptMessage<Rc<Letter>>),
    Errand(Tid, Errand),
    Take(Tid, u64, u32, TakenMessages<Rc<Letter>>, ToyTask),
    Part {
        tid: Tid,
        epoch: u64,
        at: u32,
        sum: u64,
        bytes: Vec<u8>,
    },
    Ended(usize),
    /// The sender has ended.
    Lost,
}

#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) stamp: u64,
    /// The step at which it arrives.
    pub(super) due: u64,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) struct Process {
    pub(super) moves: Moves<Rc<Letter>, Errand>,
    pub(super) clock: u64,
    pub(super) places: Vec<TaskPlace>,
    pub(super) effects: VecDeque<Effect>,
    /// Messages that were taken, in the order in which they are handled.
    pub(super) batch: VecDeque<(usize, Sealed)>,
    pub(super) seats: Vec<Option<Seat>>,
    /// The task whose state has just arrived, and its number of parts.
    pub(super) arrives: Option<(ToyTask, u32)>,
    pub(super) stopped: u64,
    pub(super) is_dead: bool,
    /// Whether no message reaches the others any more.
    pub(super) is_cut: bool,
}

/// The whole machine.
#[derive(Debug)]
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) dice: Dice,
    pub(super) now: u64,
    pub(super) processes: Vec<Process>,
    /// By sender and receiver.
    pub(super) queues: Vec<VecDeque<Sealed>>,
    pub(super) tids: Vec<Tid>,
    /// Tasks that have ended for a good reason.
    pub(super) ended: Vec<bool>,
    /// Answers that were sent to each task.
    pub(super) answers: Vec<u32>,
    /// Requests, and whether each has been reported.
    pub(super) asked: Vec<bool>,
    pub(super) summary: MovingSummary,
    /// Whether all that happens is noted.
    pub(super) traces: bool,
    pub(super) last: VecDeque<String>,
}

/// A task's number, from 0.
pub(super) fn index(tid: Tid) -> usize {
    tid.number() as usize % (1 << 18) - 1
}

impl Plan {
    /// Whether causes come before their effects: all processes are on one host.
    pub(super) fn is_causal(&self) -> bool {
        self.hosts.iter().all(|host| *host == self.hosts[0])
    }
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let dice = Dice::new(seed);
        let several = dice.once_in(2);
        let processes = 2 + dice.below(5) as usize;
        let most = if several { processes as u64 } else { 1 };
        let mut hosts = (0..processes).map(|_| dice.below(most) as usize).collect::<Vec<_>>();
        hosts.sort_unstable();
        let plan = Plan {
            processes,
            tasks: 2 + dice.below(7) as usize,
            hosts,
            trouble: dice.one_of(&[12, 50, 400]),
            limits: MoveLimits {
                kept: dice.one_of(&[30, 1000, 1 << 20]),
                within: Duration::from_micros(2000 + dice.magnitude(60_000)),
                ..MoveLimits::default()
            },
        };
        let count = plan.processes;
        let births = (0..plan.tasks).map(|_| dice.below(count as u64) as usize);
        let births = births.collect::<Vec<_>>();
        let tid = |(at, rank): (usize, &usize)| Tid::new(*rank as u32, at as u32 + 1);
        let tids = births.iter().enumerate().map(tid).collect::<Vec<_>>();
        let empty = vec![0; plan.tasks];
        let task = ToyTask {
            clock: empty.clone(),
            sent: empty.clone(),
            got: empty.clone(),
            answers: 0,
            inbox: VecDeque::new(),
        };
        let seat = Seat { task, state: SeatState::Runs, parts: 0, all: 0 };
        let process = |rank: usize| {
            let seats = births.iter().map(|birth| (*birth == rank).then(|| seat.clone()));
            let of = |host: usize| plan.hosts.iter().filter(|one| **one == host).count();
            let mut joined = of(plan.hosts[0]);
            let mut moves = Moves::new(rank, joined, plan.limits);
            while joined < count {
                let more = of(plan.hosts[joined]);
                moves.joined(joined..joined + more, &mut Vec::new());
                joined += more;
            }
            tids.iter().zip(&births).for_each(|(tid, birth)| moves.began(*tid, *birth));
            Process {
                moves,
                clock: 0,
                places: births.iter().map(|birth| TaskPlace::In(*birth)).collect(),
                effects: VecDeque::new(),
                batch: VecDeque::new(),
                seats: seats.collect(),
                arrives: None,
                stopped: 0,
                is_dead: false,
                is_cut: false,
            }
        };
        Self {
            processes: (0..count).map(process).collect(),
            queues: (0..count * count).map(|_| VecDeque::new()).collect(),
            ended: vec![false; plan.tasks],
            answers: empty,
            asked: Vec::new(),
            summary: MovingSummary::default(),
            traces: std::env::var_os("UPCALL_TRACE").is_some(),
            last: VecDeque::new(),
            now: 0,
            plan,
            dice,
            tids,
        }
    }

    /// Notes what has happened, for the report of a violation.
    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        if self.traces {
            self.last.push_back(format!("{:>6} {}", self.summary.steps, what()));
        }
    }

    pub(super) fn history(&self) -> String {
        self.last.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Calls a process's moves. The effects follow those that are there.
    pub(super) fn with<T>(
        &mut self,
        rank: usize,
        call: impl FnOnce(&mut Moves<Rc<Letter>, Errand>, &mut Vec<Effect>) -> T,
    ) -> T {
        let mut effects = Vec::new();
        let process = &mut self.processes[rank];
        let result = call(&mut process.moves, &mut effects);
        // What the driver answers while it carries out an effect comes before the later effects.
        for effect in effects.into_iter().rev() {
            process.effects.push_front(effect);
        }
        result
    }

    pub(super) fn wire(&mut self, from: usize, to: usize, content: Content) {
        self.processes[from].clock += 1;
        let stamp = self.processes[from].clock;
        self.wire_stamped((from, to), stamp, content);
    }

    pub(super) fn wire_stamped(
        &mut self,
        (from, to): (usize, usize),
        stamp: u64,
        content: Content,
    ) {
        let (process, other) = (&self.processes[from], &self.processes[to]);
        if process.is_cut || other.is_cut || other.is_dead {
            return;
        }
        let queue = &mut self.queues[from * self.processes.len() + to];
        let least = queue.back().map_or(self.now, |last| last.due);
        let is_far = self.plan.hosts[from] != self.plan.hosts[to];
        let delay = if is_far { self.dice.magnitude(3000) } else { 0 };
        queue.push_back(Sealed { stamp, due: least.max(self.now + delay), content });
    }

    /// The label of what a process does next.
    pub(super) fn label(&self, rank: usize) -> Label {
        let process = &self.processes[rank];
        match process.effects.front() {
            None if process.batch.is_empty() => Label::Idle,
            None => Label::Handle,
            Some(effect) => match effect {
                MoveEffect::Tell { message, .. } => match message {
                    MoveMessage::Move { .. } => Label::Move,
                    MoveMessage::Begun { .. } => Label::Begun,
                    MoveMessage::Leaving { .. } => Label::Leaving,
                    MoveMessage::MarkedBefore { .. } => Label::MarkedBefore,
                    MoveMessage::Flush { .. } => Label::Flush,
                    MoveMessage::Flushed { .. } => Label::Flushed,
                    MoveMessage::Ready { .. } => Label::Ready,
                    MoveMessage::Settled { .. } => Label::Settled,
                    MoveMessage::MarkedAfter { .. } => Label::MarkedAfter,
                    MoveMessage::Over { .. } => Label::Over,
                    MoveMessage::Resent { .. } => Label::Resent,
                    MoveMessage::Gone { .. } => Label::Gone,
                    _ => Label::Other,
                },
                MoveEffect::Take { .. } => Label::Take,
                MoveEffect::SendPart { .. } => Label::Part,
                MoveEffect::Fill { .. } => Label::Fill,
                MoveEffect::Send { .. } => Label::Send,
                MoveEffect::Free { .. } => Label::Free,
                MoveEffect::Run { .. } => Label::Run,
                MoveEffect::Deliver { .. } => Label::Deliver,
                MoveEffect::Resend { .. } => Label::Resend,
                _ => Label::Other,
            },
        }
    }

    /// Ends a process, with all that it has not sent.
    pub(super) fn kill_process(&mut self, rank: usize) {
        self.note(|| format!("process {rank} is killed"));
        self.processes[rank].is_dead = true;
        self.silence(rank);
    }

    /// Cuts a process off. The others learn that it has ended, and it learns the same of them.
    pub(super) fn cut_off(&mut self, rank: usize) {
        if !self.processes[rank].is_cut {
            self.note(|| format!("process {rank} is cut off"));
            self.summary.cuts += 1;
            self.silence(rank);
            self.processes[rank].is_cut = true;
            self.processes[rank].stopped = 0;
        }
    }

    /// The last message of a process to each other one is that it has ended.
    fn silence(&mut self, rank: usize) {
        let (count, due) = (self.processes.len(), self.now);
        if self.processes[rank].is_cut {
            return;
        }
        for other in (0..count).filter(|other| *other != rank) {
            let queue = &mut self.queues[rank * count + other];
            let due = queue.back().map_or(due, |last| last.due.max(due));
            queue.push_back(Sealed { stamp: u64::MAX, due, content: Content::Lost });
        }
        // It learns that the first process has ended after some time, and runs until then.
        for other in (0..count).filter(|other| *other != rank) {
            self.queues[other * count + rank].clear();
        }
        let due = due + self.dice.magnitude(5000);
        self.queues[rank].push_back(Sealed { stamp: u64::MAX, due, content: Content::Lost });
    }

    /// Whenever nothing is under way and no process takes part in a move, nothing is missing.
    pub(super) fn check_counters(&self) -> Result<(), String> {
        let mut living = self.processes.iter().filter(|one| !one.is_dead && !one.is_cut);
        let is_quiet =
            |one: &Process| one.moves.is_quiet() && one.effects.is_empty() && one.batch.is_empty();
        if living.all(is_quiet) && self.queues.iter().all(VecDeque::is_empty) {
            self.check_messages()?;
        }
        Ok(())
    }

    /// The seat of a task, in the process that the first one names.
    fn seat(&self, at: usize) -> Option<&Seat> {
        let rank = self.processes[0].moves.rank(self.tids[at])?;
        self.processes[rank].seats[at].as_ref()
    }

    fn check_messages(&self) -> Result<(), String> {
        for to in 0..self.tids.len() {
            let Some(receiver) = self.seat(to).filter(|_| !self.ended[to]) else { continue };
            if receiver.task.answers != self.answers[to] {
                let (got, sent) = (receiver.task.answers, self.answers[to]);
                return Err(format!("task {to} has {got} of {sent} answers"));
            }
            for from in 0..self.tids.len() {
                let Some(sender) = self.seat(from).filter(|_| !self.ended[from]) else { continue };
                let waits = receiver.task.inbox.iter().filter(|one| one.from == from).count();
                let (sent, got) = (sender.task.sent[to], receiver.task.got[from]);
                if sent != got + waits as u32 {
                    return Err(format!(
                        "nothing is under way, and of {sent} messages of task {from}, task {to} \
                        has {got} and {waits}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks what is left when all is quiet.
    pub(super) fn check_rest(&self) -> Result<(), String> {
        self.check_messages()?;
        if let Some(asker) = self.asked.iter().position(|reported| !reported) {
            return Err(format!("request {asker} has no report"));
        }
        for (rank, process) in self.processes.iter().enumerate() {
            if process.is_dead || process.is_cut {
                continue;
            }
            if !process.moves.is_quiet() {
                return Err(format!("process {rank} still keeps something: {:?}", process.moves));
            }
            for (at, tid) in self.tids.iter().enumerate() {
                let place = self.processes[0].moves.rank(*tid);
                if place.is_none() != self.ended[at] {
                    return Err(format!("task {at} is in {place:?}, and has it ended?"));
                }
                let is_here = process.seats[at].as_ref();
                let runs = is_here.is_some_and(|seat| seat.state == SeatState::Runs);
                if runs != (place == Some(rank)) || is_here.is_some() != runs {
                    return Err(format!("task {at} is in {place:?}, and in {rank} {is_here:?}"));
                }
                if let Some(place) = place
                    && process.places[at] != TaskPlace::In(place)
                {
                    let known = process.places[at];
                    return Err(format!("{rank} knows task {at} in {known:?}, not {place}"));
                }
            }
        }
        Ok(())
    }
}
