//! The tasks of one process, which its worker runs one after the other.
//!
//! Source: UPVM, section 3: a run queue, and the waiting tasks. A task runs until it waits for a
//! message that has not arrived, or polls for one. If it waits for a message from a certain task,
//! that task runs next if it can, at any place in the queue (hand-off). The number of hand-offs
//! in a row is limited, so that other tasks get a turn.
//!
//! A task that only computes asks for nothing. So it is interrupted at intervals, and the process
//! handles requests and signals from outside. No other task runs during that.
//!
//! A message goes from the sender's letter to the receiver's reply. A receiver that waits for it
//! gets it in its table at once, and can run. Otherwise the message waits in the receiver's inbox,
//! in order of arrival. Its contents are never touched.

mod balancing;
#[cfg(all(test, not(miri)))]
mod bent_tests;
mod coming;
mod control;
mod elsewhere;
#[cfg(all(test, not(miri)))]
mod first_tests;
mod hosts;
mod moving;
mod outside;
mod posted;
mod question;
mod saving;
mod seats;
mod signal;
mod stuck;
mod system;
mod unsent;

use self::coming::state::NodeHosts;
pub(crate) use self::control::{AtTerminal, CONSOLE, NodeControl};
use self::outside::NodeUmask;
use self::saving::state::NodeSaving;
use crate::balance::meter::{LoadMeter, PairTraffic};
use crate::balance::rounds::BalancingRounds;
use crate::causal::CausalInbox;
use crate::hosts::{MachineHosts, Partitions};
use crate::late::LateItem;
use crate::machine::Machine;
use crate::ops::{LETTER_RELEASE, LETTER_SEND, NEAR_FIRST, NEAR_SECOND, NEAR_SPARES};
use crate::output::OutputTarget;
use crate::places::TaskPlaces;
use crate::programs::Programs;
use crate::remote::{ControlMessage, MachineLink, RemoteArrival};
use crate::report::{crashed, report};
use crate::services::Effect;
use crate::shown::ShownTask;
use crate::sizes::TaskSizes;
use crate::task::{Task, TaskMessage, TaskState};
use crate::transit::Transit;
use crate::unsent::{MachineMessage, UnsentMessages};
use crate::wire::Packet;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Instant;
use upcall_message::Rank;
use upcall_ulp::{Aside, Block, Crash, StopReason, Worker};

/// The signal that ends a task when another one kills it.
const SIGTERM: i32 = 15;
/// The kernel's error number of a call that a signal interrupts.
const EINTR: i64 = 4;
/// Maximum number of consecutive hand-offs before the first task in the queue runs.
const HAND_OFFS: u32 = 64;
/// Number of turns between two checks of timers, descriptors and ended processes.
const TURNS: u32 = 32;

/// Offsets of the cache lines that the library needs first.
const NEAR: [u64; 4] = [0, NEAR_SPARES, NEAR_FIRST, NEAR_SECOND];

/// Number of tasks above which a task's first cache lines are prefetched. With fewer tasks they are
/// still in the nearest caches, and the prefetch costs more than it saves.
const MANY: usize = 16;

/// How a task has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskEnd {
    /// It has exited with this status.
    Status(i32),
    /// It crashed.
    Crash(Crash),
    /// It was ended by another task or by the machine, with this signal.
    Killed(i32),
}

impl TaskEnd {
    /// The status as a shell reports it.
    fn status(self) -> i32 {
        match self {
            Self::Status(status) => status & 0xFF,
            Self::Crash(crash) => 128 + crash.signal,
            Self::Killed(signal) => 128 + signal,
        }
    }
}

/// One process of a machine; see the module.
pub(crate) struct Node {
    worker: Worker,
    /// Where the tasks of the machine are.
    places: TaskPlaces,
    /// Indexed by seats. `None`: the seat is free.
    tasks: Vec<Option<Box<Task>>>,
    /// The first seat to try for the next task.
    next: u32,
    live: usize,
    queue: VecDeque<(u32, u32)>,
    timers: BinaryHeap<Reverse<(Instant, u32)>>,
    /// Tasks that wait for descriptors.
    awaiting: Vec<u32>,
    /// The thread for system calls, started on first use, and the number of calls that it has not
    /// finished.
    aside: Option<Aside>,
    aside_calls: usize,
    /// The process's original folder, once a task has changed its own. Tasks that have not changed
    /// theirs run here.
    folder: Option<OwnedFd>,
    /// The task in whose own folder the process is. 0: in the original one.
    folder_of: u32,
    /// The process's original umask and its present one, once a task has changed its own.
    umask: Option<NodeUmask>,
    /// PID of the first process of this host, which all tasks have as their parent process. It does
    /// not change if a task moves.
    first_process: u32,
    /// The machine's hosts.
    hosts: MachineHosts,
    /// Numbers of processes of other hosts, in the first process. They are only shown.
    processes: BTreeMap<Rank, u32>,
    /// Hosts that come and go, in the first process.
    coming: NodeHosts,
    /// Processes that cannot reach each other, in the first process.
    partitions: Partitions,
    looked: Instant,
    /// Nothing has arrived from other processes for a while.
    quiet: bool,
    /// Messages for which there was no memory.
    unsent: UnsentMessages,
    watch: stuck::Watch,
    /// Tasks that leave or enter this process.
    moving: Transit,
    /// Checkpoints.
    saving: NodeSaving,
    /// Loads of the tasks here, if the machine balances.
    meter: LoadMeter,
    /// Counts bytes between tasks, if the balancer wants that.
    traffic: Option<Box<PairTraffic>>,
    /// Only in the first process of several.
    balancing: Option<Box<BalancingRounds>>,
    /// Messages of other processes that were taken, and wait for earlier ones.
    arrivals: CausalInbox<RemoteArrival>,
    /// What the machine has for tasks here, as far as it waits for messages of other processes.
    late: Vec<LateItem>,
    programs: Programs,
    /// Sizes of the tasks.
    sizes: TaskSizes,
    /// Only in the first process.
    machine: Option<Machine>,
    /// Only in the first process: the console, and requests from other shells.
    desk: Option<Box<NodeControl>>,
    /// The link to the other processes, if there are any.
    link: Option<MachineLink>,
    hand_offs: u32,
    halted: bool,
    /// PVM's error, if the initial tasks could not be started.
    pub(crate) refused: Option<i32>,
}

/// Which task runs after a question.
enum NextTask {
    /// The task that has asked.
    Same,
    /// This task, ahead of the queue.
    This(u32),
    /// The first task in the queue.
    Any,
}

impl Node {
    /// Creates a node. Only the first process has a `machine`. There is no `link` if the machine
    /// has only one process.
    pub(crate) fn new(
        worker: Worker,
        programs: Programs,
        machine: Option<Machine>,
        link: Option<MachineLink>,
        places: TaskPlaces,
    ) -> Self {
        let mut worker = worker;
        worker.show(places.words());
        let first = places.rank();
        let size = link.as_ref().map_or(1, MachineLink::size);
        Self {
            worker,
            places,
            tasks: Vec::new(),
            next: 1,
            live: 0,
            queue: VecDeque::new(),
            timers: BinaryHeap::new(),
            awaiting: Vec::new(),
            aside: None,
            aside_calls: 0,
            folder: None,
            folder_of: 0,
            umask: None,
            first_process: match first {
                0 => std::process::id(),
                // It has started this process, which ends with it.
                _ => std::os::unix::process::parent_id(),
            },
            hosts: MachineHosts::home(size),
            processes: BTreeMap::new(),
            coming: NodeHosts::default(),
            partitions: Partitions::default(),
            looked: Instant::now(),
            quiet: false,
            unsent: UnsentMessages::default(),
            watch: stuck::Watch::new(),
            moving: Transit::new(first, size),
            saving: NodeSaving::default(),
            meter: LoadMeter::default(),
            traffic: None,
            balancing: None,
            arrivals: CausalInbox::new(size),
            late: Vec::new(),
            programs,
            sizes: TaskSizes::default(),
            machine,
            desk: None,
            link,
            hand_offs: 0,
            halted: false,
            refused: None,
        }
    }

    /// The node, whose tasks have these sizes.
    pub(crate) fn with_sizes(mut self, sizes: TaskSizes) -> Self {
        self.sizes = sizes;
        self
    }

    /// The node, on one of these hosts.
    pub(crate) fn with_hosts(mut self, hosts: MachineHosts) -> Self {
        let rank = self.places.rank();
        if hosts.ranks(hosts.of(rank)).start == rank {
            self.first_process = std::process::id();
        }
        self.moving.has_hosts(rank, &hosts);
        self.hosts = hosts;
        if !self.hosts.are_near(0, rank) {
            let (process, hosts) = (std::process::id(), self.hosts.count() as u32);
            self.tell_first(ControlMessage::Here { process, hosts });
        }
        self
    }

    /// Runs tasks until none is left in the machine, or the machine is halted. In the first
    /// process, returns the worst status of the initial tasks.
    ///
    /// # Errors
    /// Describes the remaining tasks if all of them wait for what no task can send.
    pub(crate) fn run(&mut self) -> Result<i32, Vec<String>> {
        let mut turns = 0;
        let stuck = loop {
            // This may end the machine, so the end is checked for below.
            turns += 1;
            if turns < TURNS {
                self.hear();
            } else {
                turns = 0;
                self.keep_arena_free();
                self.give_blocks_back();
                self.free_left();
                self.send_unsent();
                self.look_outside(false);
                self.hear_of_ends();
                self.end_late_moves();
                self.end_partitions();
                self.end_late_hosts();
                self.shuffle();
                self.save_periodically();
                self.balance();
            }
            self.attend_desk();
            if self.moving.is_at_work() {
                self.work_at_moves();
            }
            if self.saving.is_at_work() {
                self.work_at_saving();
            }
            if self.halted || self.machine.as_ref().is_some_and(Machine::is_over) && !self.is_open()
            {
                break None;
            }
            match self.first() {
                Some(index) => self.turn(index),
                // Handles the messages that were taken, and does not wait for others.
                None if !self.arrivals.is_empty() && !self.is_short() => {}
                None if self.moving.is_busy() || self.saving.has_unsaved() => {}
                None if !self.moving.left.is_empty() => self.free_left_unless_heard(),
                None if self.link.is_none() && self.all_wait() => {
                    break Some(self.all_seen(self.seen(), &[]));
                }
                None => match self.watch.stuck() {
                    Some(tasks) => break Some(tasks),
                    None => {
                        self.give_blocks_back();
                        self.end_late_moves();
                        self.end_partitions();
                        self.end_late_hosts();
                        self.shuffle();
                        self.save_periodically();
                        self.balance();
                        self.look_outside(true);
                    }
                },
            }
        };
        self.tell_all(&ControlMessage::Halt);
        self.halted = true;
        self.end_saving();
        for index in 0..self.tasks.len() as u32 {
            self.end(index, TaskEnd::Killed(SIGTERM));
        }
        match stuck {
            Some(tasks) => Err(tasks.iter().map(waits).collect()),
            None => Ok(self.machine.as_ref().map_or(0, |machine| machine.worst)),
        }
    }

    /// Runs one task, and those that it hands off to.
    // Inlined, since the processor mispredicts a return from here: the tasks have called and
    // returned in another order.
    #[inline(always)]
    fn turn(&mut self, mut index: u32) {
        loop {
            // Only once a task has changed its folder, or its umask.
            if self.folder.is_some() {
                self.go_to_folder(index);
            }
            if self.umask.is_some() {
                self.go_to_umask(index);
            }
            let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut)
            else {
                return;
            };
            task.runs = task.runs.wrapping_add(1);
            let stopped = self.worker.resume(&mut task.ulp);
            if !matches!(stopped, StopReason::Interrupted) {
                self.read_letters(index);
            }
            match stopped {
                StopReason::Asks(asked) => match self.asked(index, asked) {
                    // Each question is a chance to hold the task.
                    NextTask::Same if self.saving.holds() => return self.enqueue(index),
                    NextTask::Same => {}
                    NextTask::This(_) if self.saving.holds() => return,
                    NextTask::This(other) => {
                        if let Some(task) =
                            self.tasks.get_mut(other as usize).and_then(Option::as_deref_mut)
                        {
                            task.ticket = task.ticket.wrapping_add(1);
                        }
                        index = other;
                    }
                    NextTask::Any => return,
                },
                StopReason::Interrupted if self.look_around(index) => {}
                StopReason::Interrupted => return,
                StopReason::Ended { status } => return self.end(index, TaskEnd::Status(status)),
                StopReason::Crashed(crash) => return self.end(index, TaskEnd::Crash(crash)),
            }
        }
    }

    /// Takes the first task from the queue, skipping stale entries.
    fn first(&mut self) -> Option<u32> {
        self.hand_offs = 0;
        loop {
            let (index, ticket) =
                if self.saving.holds() { self.next_to_hold()? } else { self.queue.pop_front()? };
            let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut)
            else {
                continue;
            };
            if task.ticket != ticket {
                continue;
            }
            if let TaskState::Polls(_) = task.state {
                task.state = TaskState::Runs;
                task.ulp.answer(0);
            }
            return Some(index);
        }
    }

    /// Puts a task at the end of the queue.
    fn enqueue(&mut self, index: u32) {
        if let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) {
            task.ticket = task.ticket.wrapping_add(1);
            self.queue.push_back((index, task.ticket));
        }
    }

    /// Reads a task's letters: the messages that it has sent, and the blocks that it has released.
    fn read_letters(&mut self, index: u32) {
        let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        for number in 0..task.ulp.take_letters() {
            let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut)
            else {
                return;
            };
            let [kind, second, third, fourth] = task.ulp.letter(number);
            let handle = (kind >> 8) as u32 & 0xFF_FFFF;
            match kind & 0xFF {
                LETTER_RELEASE => task.held.release(handle),
                LETTER_SEND => {
                    let block = task.held.get(handle).cloned();
                    let most = block.as_ref().map_or(0, Block::capacity);
                    let message = TaskMessage {
                        source: task.tid.number(),
                        destination: second as i32,
                        tag: (second >> 32) as i32,
                        context: third as i32,
                        encoding: (third >> 32) as i32,
                        wait: (kind >> 32) as i32,
                        block,
                        length: (fourth as usize).min(most),
                    };
                    if let Some(traffic) = &mut self.traffic {
                        traffic.count(&message);
                    }
                    self.deliver(message);
                }
                _ => {}
            }
        }
    }

    /// Delivers a message to its receiver. As in PVM, a message to a task that has ended is lost.
    // Not inlined: the compiler would copy the message, by loads of what several stores have just
    // written, which wait until these are in the cache.
    #[inline(never)]
    fn deliver(&mut self, message: TaskMessage) {
        match self.places.seat(message.destination) {
            Some(seat) => self.deliver_at(seat, message),
            None => self.deliver_elsewhere(message),
        }
    }

    /// Delivers a message to the task in this seat.
    fn deliver_here(&mut self, index: u32, message: TaskMessage) {
        self.deliver_at(index, message);
    }

    /// The same, inlined into the two functions above.
    #[inline(always)]
    fn deliver_at(&mut self, index: u32, message: TaskMessage) {
        let task = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut);
        // A task may overwrite the table of places, as any memory of the process.
        let Some(task) = task.filter(|task| task.tid.number() == message.destination) else {
            return;
        };
        match task.state {
            TaskState::Receives(want, _) if want.fits(&message) => {
                // Prefetches the receiver's lines: with many tasks, cache misses on them take much
                // of a message's time.
                if self.live > MANY {
                    task.ulp.expect(NEAR);
                }
                give(task, message);
                task.state = TaskState::Runs;
                self.enqueue(index);
            }
            // A polling task already is in the queue.
            TaskState::Polls(want) if want.fits(&message) => {
                give(task, message);
                task.state = TaskState::Runs;
            }
            TaskState::ReceivesInto(want, _) if want.fits(&message) => {
                give_block(task, message);
                self.enqueue(index);
            }
            _ if task.left => {}
            _ => {
                task.inbox.push_back(message);
                if let Some(descriptor) = &task.descriptor {
                    outside::notify(descriptor);
                }
            }
        }
    }

    /// Carries out the effects of services.
    fn effects(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer(tid, code, packet) => self.answer(tid, code, packet),
                Effect::Message { from: source, to, tag, context, data } => {
                    self.message(MachineMessage { source, to, tag, context, data })
                }
            }
        }
    }

    /// Gives a service's answer to a task that waits for it.
    fn reply(&mut self, index: u32, code: i32, packet: &Packet) {
        let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        if !matches!(task.state, TaskState::Asks(_)) {
            return;
        }
        question::answer_packet(task, code, packet);
        task.state = TaskState::Runs;
        self.enqueue(index);
    }

    /// Removes a task that has ended, and reports its end to the first process.
    fn end(&mut self, index: u32, end: TaskEnd) {
        // An interrupted task may have unread letters.
        self.read_letters(index);
        let Some(mut task) = self.tasks.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        self.live -= 1;
        self.places.ended(task.tid);
        self.end_moves_of(task.tid);
        match task.state {
            // The call's result is discarded.
            TaskState::Aside => self.aside_calls -= 1,
            TaskState::Awaits(..) => self.awaiting.retain(|one| *one != index),
            _ => {}
        }
        if task.output.to == OutputTarget::Log {
            task.output.log_rest(task.tid);
        }
        if let TaskEnd::Crash(crash) = end {
            let frames = task.ulp.backtrace(&task.image);
            report(&crashed(task.tid, &task.program, &crash, &frames));
        }
        // Another task may get this seat.
        if self.folder_of == index && task.folder.is_some() {
            self.go_home();
        }
        let (tid, status, catcher) = (task.tid, end.status(), task.output.catcher());
        // The task's memory is freed before its end is reported.
        drop(task);
        let sent = self.sent_afar();
        self.tell_first(ControlMessage::Ended { tid: tid.number(), status, catcher, sent });
    }
}

/// Gives a message to a task as the answer to its receive.
#[inline(always)]
fn give(task: &mut Task, message: TaskMessage) {
    let mut words = [0; 8];
    if let Some(block) = message.block {
        (words[1], words[3]) = (block.address(), block.capacity() as u64);
        words[0] = u64::from(task.held.keep(block));
    }
    words[2] = message.length as u64;
    words[4] = halves(message.source, message.tag);
    words[5] = halves(message.context, message.encoding);
    words[6] = halves(message.wait, message.destination);
    task.ulp.answer_with(1, words);
}

/// Ends a receive by a message in a block, which the task copies to the place that it has named
/// ([`posted`]).
#[cold]
fn give_block(task: &mut Task, message: TaskMessage) {
    give(task, message);
    task.state = TaskState::Runs;
}

/// A word of two numbers.
fn halves(low: i32, high: i32) -> u64 {
    u64::from(low as u32) | u64::from(high as u32) << 32
}

/// Describes what a task waits for.
fn waits(task: &ShownTask) -> String {
    format!("{} ({}) {}; {} other messages wait", task.tid, task.program, task.doing, task.messages)
}
