//! The first process's desk: its console, and requests to the machine from other shells.
//!
//! Only its own process knows what a task does. So a survey of all tasks is answered when all
//! processes have reported (`ControlMessage::Look`, `ControlMessage::Seen`), or after [`LONGEST`]
//! without those that do not answer.

use super::Node;
use super::coming::state::HostAsker;
use super::saving::state::SaveAsker;
use super::seats::NOBODY;
use crate::balance::meter::own_time;
use crate::calls::{Input, NodeCall, NodeCaller, NodeCalls};
use crate::console::{Console, Controls, KnownTask};
use crate::door::{MachineListener, MachineReply, MachineRequest, Visitor};
use crate::hosts::SpawnPlace;
use crate::machine::Machine;
use crate::moves::Pin;
use crate::places::TaskLocation;
use crate::remote::{ControlMessage, TaskSpec};
use crate::report::report_line;
use crate::shown::{ShownMachine, ShownTask, TaskActivity, WantedMessage};
use crate::stream::STDOUT;
use crate::task::{self, Task, TaskMessage, TaskState, Want};
use crate::tid::Tid;
use crate::transit::MoveAsker;
use crate::wire::Packet;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use upcall_message::Rank;

/// Maximum time that the other processes may take to report what their tasks do.
const LONGEST: Duration = Duration::from_secs(1);

/// The console and the requests of the first process; see the module.
pub(crate) struct NodeControl {
    calls: NodeCalls,
    _door: Option<MachineListener>,
    console: Option<AtTerminal>,
    /// Reports that arrived while the console was at work.
    heard: VecDeque<RemoteReport>,
    looks: Vec<TaskSurvey>,
    last: u64,
    /// Clients that wait for the machine's end.
    leaving: Vec<Visitor>,
}

enum RemoteReport {
    Answer(i32, Vec<u8>),
    /// Output of a job.
    Printed(i32, Vec<u8>),
    Seen(Vec<ShownTask>),
    /// The result of a checkpoint.
    Saved(String),
}

/// A request to show all tasks, in progress.
struct TaskSurvey {
    number: u64,
    /// `None`: the console.
    visitor: Option<Visitor>,
    missing: Vec<Rank>,
    tasks: Vec<ShownTask>,
    /// Processor time of the processes that have reported.
    times: BTreeMap<Rank, Duration>,
    until: Instant,
}

/// A console with its input and output.
pub(crate) struct AtTerminal {
    console: Console,
    input: Input,
    /// Whether the next line has been requested.
    asked: bool,
    /// Whether a prompt is shown, and kept below the output.
    prompts: bool,
}

impl AtTerminal {
    /// Prompts only if both the input and the output are terminals.
    pub(crate) fn new(console: Console, input: Input, prompts: bool) -> Self {
        Self { console, input, asked: false, prompts: prompts && std::io::stdout().is_terminal() }
    }

    /// Prints pending output, and requests the next line if the console can take one.
    fn attend(&mut self) {
        const PROMPT: &[u8] = b"pvm> ";
        let mut text = self.console.take_output();
        let asks = self.console.is_ready() && !self.asked;
        if self.prompts && self.asked && !text.is_empty() {
            // Erases the prompt, which is printed again below.
            text.splice(..0, *b"\r\x1b[K");
        }
        if self.prompts && (asks || self.asked && !text.is_empty()) {
            text.extend(PROMPT);
        }
        if asks {
            self.asked = true;
            self.input.more();
        }
        // If the output is closed, it is discarded.
        STDOUT.output(&text);
    }
}

impl NodeControl {
    /// If the machine's socket cannot be opened, other shells cannot find it, which is reported.
    pub(crate) fn new(calls: NodeCalls, console: Option<AtTerminal>) -> Self {
        let door = MachineListener::open(calls.caller()).inspect_err(|error| {
            report_line!(
                "upcall pvm: `upcall pvm ps` and similar commands cannot find this machine: {error}"
            );
        });
        let (heard, looks, leaving) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { calls, _door: door.ok(), console, heard, looks, last: 0, leaving }
    }

    /// Returns `true` if there is work. Costs a few loads.
    #[inline]
    fn has_work(&self) -> bool {
        self.calls.are_there() || !self.heard.is_empty() || !self.looks.is_empty()
    }

    /// Returns `true` if there is a console that takes commands.
    fn is_open(&self) -> bool {
        self.console.as_ref().is_some_and(|at| at.console.is_open())
    }

    /// The next request.
    pub(super) fn next_call(&self) -> Option<NodeCall> {
        self.calls.next()
    }

    /// Where requests come from.
    pub(super) fn caller(&self) -> NodeCaller {
        self.calls.caller()
    }

    /// A descriptor that is readable while there is work.
    pub(super) fn descriptor(&self) -> i32 {
        self.calls.descriptor()
    }

    /// Queues a report for the console.
    fn console_hears(&mut self, heard: RemoteReport) {
        if self.console.is_some() {
            self.heard.push_back(heard);
        }
    }
}

impl Node {
    /// Attaches a desk, and executes the lines that come before the console's input.
    pub(crate) fn at_desk(mut self, desk: NodeControl) -> Self {
        if let Some(at) = &desk.console {
            self.places.is_consoles(at.console.tid());
        }
        self.desk = Some(Box::new(desk));
        self.work_at_console(|console, node| {
            while let Some(line) = console.next_first() {
                console.line(&line, node);
                node.tell_console(console);
            }
        });
        self
    }

    /// Returns `true` if the console may still give commands. The machine does not end before that.
    pub(super) fn is_open(&self) -> bool {
        self.desk.as_ref().is_some_and(|desk| desk.is_open())
    }

    /// Handles pending work at the desk. Called between turns.
    #[inline]
    pub(super) fn attend_desk(&mut self) {
        if self.desk.as_ref().is_some_and(|desk| desk.has_work()) || self.has_deferred_call() {
            self.work_at_desk();
        }
    }

    #[cold]
    fn work_at_desk(&mut self) {
        while let Some(call) = self.next_desk_call() {
            let is_none =
                matches!(call, NodeCall::Asked(MachineRequest::Show, _) | NodeCall::Written(..));
            if !is_none {
                self.count_anew();
            }
            let Some(call) = self.defer_call(call) else { continue };
            match call {
                NodeCall::Line(line) => self.read_line(Some(&line)),
                NodeCall::InputEnds => self.read_line(None),
                NodeCall::Asked(ask, visitor) => self.serve(ask, visitor),
                NodeCall::CommandEnded { host, why } => self.command_has_ended(host, &why),
                NodeCall::Written(number, written) => self.written(number, written),
            }
        }
        self.end_looks();
        self.work_at_console(|console, node| node.tell_console(console));
    }

    /// The next request. Those that a checkpoint has delayed come first.
    fn next_desk_call(&mut self) -> Option<NodeCall> {
        self.deferred_call().or_else(|| self.desk.as_ref().and_then(|desk| desk.next_call()))
    }

    /// Executes a line. `None`: the end of the input.
    fn read_line(&mut self, line: Option<&str>) {
        if let Some(at) = self.desk.as_mut().and_then(|desk| desk.console.as_mut()) {
            at.asked = false;
            // A typed line ends the prompt's line; the end of the input does not.
            if at.prompts && line.is_none() {
                STDOUT.output(b"\n");
            }
        }
        self.work_at_console(|console, node| {
            match line {
                Some(line) => console.line(line, node),
                None => console.close(),
            }
            node.tell_console(console);
            let left = node.machine.as_ref().map_or(0, |machine| machine.all().count());
            if !console.is_open() && left > 0 && !node.halted {
                let left = match left {
                    1 => "1 task is left, and the machine ends with it".into(),
                    _ => {
                        format!("{left} tasks are left, and the machine ends with the last of them")
                    }
                };
                report_line!("upcall pvm: {left} (`upcall pvm halt` ends it now)");
            }
        });
    }

    /// Runs `work` on the console, which uses the node. Reports for the console wait until it is
    /// done.
    fn work_at_console(&mut self, work: impl FnOnce(&mut Console, &mut Self)) {
        let Some(mut at) = self.desk.as_mut().and_then(|desk| desk.console.take()) else { return };
        work(&mut at.console, self);
        at.attend();
        if let Some(desk) = &mut self.desk {
            desk.console = Some(at);
        }
    }

    fn tell_console(&mut self, console: &mut Console) {
        while let Some(heard) = self.desk.as_mut().and_then(|desk| desk.heard.pop_front()) {
            match heard {
                RemoteReport::Answer(code, bytes) => console.answered(code, &bytes),
                RemoteReport::Printed(job, bytes) => console.printed(job, &bytes),
                RemoteReport::Seen(tasks) => console.seen(&tasks, self),
                RemoteReport::Saved(text) => console.saved(&text),
            }
        }
    }

    /// Returns `true` if `tid` is the id of this node's console.
    pub(super) fn is_console(&self, tid: Tid) -> bool {
        self.places.place(tid) == TaskLocation::Console
    }

    /// Delivers a message to the console.
    pub(super) fn deliver_to_console(&mut self, message: &TaskMessage) {
        if let Some(desk) = &mut self.desk {
            let bytes = message
                .block
                .as_ref()
                .and_then(|block| block.read(message.length))
                .unwrap_or_default();
            desk.heard.push_back(RemoteReport::Printed(message.tag, bytes));
        }
    }

    pub(super) fn answer_console(&mut self, code: i32, bytes: Vec<u8>) {
        if let Some(desk) = &mut self.desk {
            desk.heard.push_back(RemoteReport::Answer(code, bytes));
        }
    }

    pub(super) fn console_saved(&mut self, text: String) {
        if let Some(desk) = &mut self.desk {
            desk.console_hears(RemoteReport::Saved(text));
        }
    }

    /// Serves a request from another shell.
    fn serve(&mut self, ask: MachineRequest, visitor: Visitor) {
        let answer = match ask {
            MachineRequest::Show => return self.look_for(Some(visitor)),
            MachineRequest::Halt => {
                self.halted = true;
                visitor.answer(&MachineReply::Ends);
                if let Some(desk) = &mut self.desk {
                    // The connection closes when the machine has ended.
                    desk.leaving.push(visitor);
                }
                return;
            }
            MachineRequest::Kill(which) => {
                let meant = self.meant(which);
                meant.iter().for_each(|tid| self.kill(*tid));
                MachineReply::Done(meant.len())
            }
            MachineRequest::Signal { tid, number } => {
                let meant = self.meant(Some(tid));
                match meant.iter().try_for_each(|tid| Controls::signal(self, *tid, number)) {
                    Ok(()) => MachineReply::Done(meant.len()),
                    Err(why) => MachineReply::Refused(why.into()),
                }
            }
            MachineRequest::Use(change) => return self.change_use(change, visitor),
            MachineRequest::Move { tid, rank } => {
                let asker = MoveAsker::Visitor(visitor);
                // No task has a number that is none.
                let tid = Tid::of(tid).unwrap_or(CONSOLE);
                return self.move_task(asker, tid, rank as Rank);
            }
            MachineRequest::AddHosts(all) => {
                return self.add_hosts(HostAsker::Visitor(visitor, all.clone()), &all);
            }
            MachineRequest::RemoveHosts(all) => {
                return self.remove_hosts(HostAsker::Visitor(visitor, all.clone()), &all);
            }
            MachineRequest::Hosts => MachineReply::Hosts(
                self.host_list().into_iter().map(|(number, name)| (name, number)).collect(),
            ),
            MachineRequest::Cancel => MachineReply::Refused("there is nothing to cancel".into()),
            MachineRequest::Checkpoint { path } => {
                let path = PathBuf::from(OsString::from_vec(path));
                return self.save(SaveAsker::Visitor(visitor), path);
            }
        };
        visitor.answer(&answer);
    }

    /// The task with this number if it exists, or all tasks.
    fn meant(&self, which: Option<i32>) -> Vec<Tid> {
        let all = self.machine.iter().flat_map(Machine::all).map(|(tid, _)| tid);
        all.filter(|tid| which.is_none_or(|which| which == tid.number())).collect()
    }

    /// Starts a survey, for a client or (`None`) for the console.
    fn look_for(&mut self, visitor: Option<Visitor>) {
        let processes = self.size();
        let tasks = self.seen_with_files();
        let is_there = |rank: &Rank| self.link.as_ref().is_some_and(|link| !link.is_lost(*rank));
        let missing = (1..processes).filter(is_there).collect();
        let Some(desk) = &mut self.desk else { return };
        desk.last += 1;
        let (number, until) = (desk.last, Instant::now() + LONGEST);
        desk.looks.push(TaskSurvey {
            number,
            visitor,
            missing,
            tasks,
            times: BTreeMap::from([(0, own_time())]),
            until,
        });
        self.tell_all(&ControlMessage::Look { number });
        self.at(until, NOBODY);
    }

    /// Adds the report of another process to a survey.
    pub(super) fn seen_by(
        &mut self,
        from: Rank,
        number: u64,
        time: Duration,
        tasks: Vec<ShownTask>,
    ) {
        let looks = self.desk.iter_mut().flat_map(|desk| &mut desk.looks);
        // A process reports once.
        let is_awaited =
            |look: &&mut TaskSurvey| look.number == number && look.missing.contains(&from);
        for look in looks.filter(is_awaited) {
            look.missing.retain(|rank| *rank != from);
            look.times.insert(from, time);
            look.tasks.extend(tasks.iter().cloned());
        }
    }

    /// Answers surveys that are complete or have waited for long enough.
    fn end_looks(&mut self) {
        let Some(desk) = &mut self.desk else { return };
        let now = Instant::now();
        let over = desk
            .looks
            .extract_if(.., |look| look.missing.is_empty() || now >= look.until)
            .collect::<Vec<_>>();
        for look in over {
            let tasks = self.all_seen(look.tasks, &look.missing);
            let console = self.is_open();
            match look.visitor {
                Some(visitor) => {
                    let processes = self.size();
                    visitor.show(ShownMachine {
                        process: std::process::id(),
                        processes,
                        members: self.members(&look.times),
                        balancer: self.balancer(),
                        console,
                        tasks,
                    });
                }
                None => self
                    .desk
                    .iter_mut()
                    .for_each(|desk| desk.console_hears(RemoteReport::Seen(tasks.clone()))),
            }
        }
    }

    /// Lists all tasks of the machine. `told` has the reported ones, and `silent` the processes
    /// that have not reported.
    pub(super) fn all_seen(&self, told: Vec<ShownTask>, silent: &[Rank]) -> Vec<ShownTask> {
        let Some(machine) = &self.machine else { return Vec::new() };
        let mut told = told
            .into_iter()
            .map(|task| (task.tid, task))
            .collect::<std::collections::HashMap<_, _>>();
        let whole = |(tid, entry): (Tid, &crate::machine::TaskEntry)| {
            let rank = entry.rank;
            // A task that its process has not reported was started after the report.
            let doing =
                if silent.contains(&rank) { TaskActivity::Silent } else { TaskActivity::Starts };
            let mut task = told.remove(&tid).unwrap_or_else(|| untold(tid, rank, doing));
            task.program.clone_from(&entry.program);
            (task.moves, task.pause) = self.moves_of(tid);
            task.refused = self.refusal_of(tid);
            // The task may have moved since the report.
            (task.rank, task.process) = (rank, self.process(rank).cast_unsigned());
            task.parent = Tid::of(entry.parent);
            if let (TaskActivity::Asks(what), Some(words)) = (&mut task.doing, machine.waits(tid)) {
                *what = words;
            }
            task
        };
        machine.all().map(whole).collect()
    }

    pub(super) fn process(&self, rank: Rank) -> i32 {
        let Some(link) = &self.link else { return std::process::id() as i32 };
        let afar = || self.processes.get(&rank).map_or(0, |process| *process as i32);
        Some(link.process(rank)).filter(|process| *process != 0).unwrap_or_else(afar)
    }

    /// Reports what this process's tasks do, and also what keeps them on their host if there are
    /// others.
    pub(super) fn seen_with_files(&self) -> Vec<ShownTask> {
        let mut all = self.seen();
        if self.hosts.count() == 1 {
            return all;
        }
        for shown in all.iter_mut().filter(|shown| shown.pinned.is_none()) {
            let seat = self.seat(shown.tid.number());
            let task = seat.and_then(|seat| self.tasks[seat as usize].as_deref());
            shown.pinned = task.and_then(|task| task.ulp.pinned_to_host()).map(Pin::File);
        }
        all
    }

    /// Reports what this process's tasks do.
    pub(super) fn seen(&self) -> Vec<ShownTask> {
        let seen = |task: &Task| ShownTask {
            tid: task.tid,
            parent: Tid::of(task.parent),
            program: String::new(),
            doing: doing(task),
            messages: task.inbox.len(),
            blocks: task.held.all().count(),
            block_bytes: task.held.all().map(|block| block.capacity() as u64).sum(),
            rank: self.places.rank(),
            process: std::process::id(),
            pid: task.ulp.process(),
            slot: Some(task.ulp.slot()),
            time: task.ulp.processor_time(),
            moves: 0,
            pause: None,
            slots: self.sizes.slots(),
            stays: task::is_spared(&task.options),
            pinned: task.pinned(),
            // Only the first process knows.
            refused: None,
        };
        let seated = self.tasks.iter().flatten().map(|task| seen(task));
        let leaving = self
            .moving
            .leaving()
            .map(|task| ShownTask { doing: TaskActivity::Moves, ..seen(task) });
        seated.chain(leaving).collect()
    }
}

/// The id of a console.
pub(crate) const CONSOLE: Tid = Tid::new(0, 1);

impl Controls for Node {
    fn spawn(&mut self, plan: TaskSpec, count: u32, place: SpawnPlace) {
        Self::spawn_at(self, Some(CONSOLE), plan, count as usize, place);
    }

    fn place(&self, name: &str) -> SpawnPlace {
        self.spawn_place(name, false)
    }

    fn hosts(&self) -> Vec<(i32, String)> {
        self.host_list()
    }

    fn ask(&mut self, op: u64, question: Packet) {
        self.tell_first(ControlMessage::Ask {
            tid: CONSOLE.number(),
            op,
            question: question.as_bytes().to_vec(),
        });
    }

    fn look(&mut self) {
        self.look_for(None);
    }

    fn kill(&mut self, tid: Tid) {
        Self::kill(self, tid);
    }

    fn signal(&mut self, tid: Tid, number: i32) -> Result<(), &'static str> {
        match number {
            // Signal 0 only checks that the task exists.
            0 => Ok(()),
            1..=64 => {
                self.send_signal(tid, number);
                Ok(())
            }
            _ => Err("signals have numbers from 1 to 64"),
        }
    }

    fn tasks(&self) -> Vec<KnownTask> {
        let known = |(tid, entry): (Tid, &crate::machine::TaskEntry)| KnownTask {
            tid,
            parent: entry.parent,
            program: entry.program.clone(),
            process: self.process(entry.rank),
            host: self.hosts.name(self.hosts.of(entry.rank)).into(),
        };
        self.machine.iter().flat_map(Machine::all).map(known).collect()
    }

    fn checkpoint(&mut self, path: &str) {
        // A task's folder is none of the console's.
        self.go_home();
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        self.save(SaveAsker::Console, path);
    }

    fn forget_orphans(&mut self, class: Option<&str>) {
        self.machine.iter_mut().for_each(|machine| machine.forget_orphans(class));
    }

    fn halt(&mut self) {
        self.halted = true;
    }
}

/// A task that was not reported.
fn untold(tid: Tid, rank: Rank, doing: TaskActivity) -> ShownTask {
    ShownTask {
        tid,
        parent: None,
        program: String::new(),
        doing,
        messages: 0,
        blocks: 0,
        block_bytes: 0,
        rank,
        process: 0,
        pid: 0,
        slot: None,
        time: Duration::ZERO,
        moves: 0,
        pause: None,
        slots: 0,
        stays: false,
        pinned: None,
        refused: None,
    }
}

/// What a task does.
pub(super) fn doing(task: &Task) -> TaskActivity {
    let left = |until: Instant| until.saturating_duration_since(Instant::now());
    let wanted = |want: Want| WantedMessage {
        from: Tid::of(want.from),
        tag: Some(want.tag).filter(|tag| *tag != -1),
    };
    match task.state {
        TaskState::Starts => TaskActivity::Starts,
        TaskState::Runs => TaskActivity::Runs,
        TaskState::Polls(want) => TaskActivity::Polls(wanted(want)),
        TaskState::Receives(want, until) => TaskActivity::Receives(wanted(want), until.map(left)),
        TaskState::ReceivesInto(want, _) => TaskActivity::Receives(wanted(want), None),
        TaskState::Asks(op) => TaskActivity::Asks(crate::ops::name(op).into()),
        TaskState::Sleeps(Some(until)) => TaskActivity::Sleeps(left(until)),
        TaskState::Sleeps(None) => TaskActivity::Pauses,
        TaskState::Awaits(descriptor, ..) => TaskActivity::Awaits(descriptor),
        TaskState::Aside => TaskActivity::Aside,
    }
}
