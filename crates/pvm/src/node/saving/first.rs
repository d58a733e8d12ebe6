//! The first process's side of checkpoints: requests, and the file.

use super::super::Node;
use super::state::{FirstSaving, Periodic, SaveAsker, Saving, WritingFile};
use crate::calls::NodeCall;
use crate::checkpoint::{
    CANCELLED, CheckpointEnd, CheckpointError, CheckpointHead, CheckpointWriter, SavedHost,
    SavedPlace, SectionKind, SectionOrder, SectionRefusal, TaskSections, Written, saved_hosts,
    seconds_now,
};
use crate::door::{MachineReply, MachineRequest, VisitorWish};
use crate::holding::{HeldMessage, HoldMessage, HoldStep, MachineHold};
use crate::machine::Machine;
use crate::machine::saved::WaitingSpawn;
use crate::moves::{self, RankSet, ShownPath};
use crate::packed::SavedContents;
use crate::remote::ControlMessage;
use crate::report::report_line;
use crate::shown::SavedCost;
use crate::start::PeriodicCheckpoint;
use crate::tid::Tid;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use upcall_message::Rank;

/// Why a machine is not saved some of whose messages are lost.
const PARTED: &str =
    "some of its processes do not reach each other: try again when these are ended";

/// Interval between two reports of progress.
const SHOWN: Duration = Duration::from_millis(200);

/// Interval at which the node checks whether an asker still wants its checkpoint.
const WATCHED: Duration = Duration::from_millis(20);

/// Maximum time that a checkpoint waits for the answers about a stuck machine.
const COUNTS: Duration = Duration::from_secs(1);

impl Node {
    /// In the first process: the node, which knows how its machine was started.
    pub(crate) fn with_start(
        mut self,
        head: CheckpointHead,
        periodic: Option<PeriodicCheckpoint>,
    ) -> Self {
        self.saving.start = Some(Box::new(head));
        self.saving.periodic = periodic.map(|PeriodicCheckpoint { file, every }| {
            let path = std::path::absolute(&file).unwrap_or(file);
            Periodic { path, every, next: Instant::now() + every, refused: None }
        });
        self
    }

    /// Begins a checkpoint. The asker is answered when the file is written, or will not be.
    pub(in crate::node) fn save(&mut self, asker: SaveAsker, path: PathBuf) {
        if self.is_saving() {
            return self.answer_saved(asker, Err("another checkpoint is being written".into()));
        }
        if !self.partitions.is_empty() {
            return self.answer_saved(asker, Err(PARTED.into()));
        }
        self.saving.last += 1;
        let (number, since) = (self.saving.last, Instant::now());
        let saving =
            Saving { number, asker, path, since, cost: SavedCost::default(), shown: since };
        let holding = MachineHold::new(self.moving.time());
        let sections = TaskSections::default();
        let first =
            FirstSaving { saving, holding, writer: None, sections, stopped: since, recount: None };
        self.saving.first = Some(Box::new(first));
    }

    /// The processes that have ended.
    fn lost_processes(&self) -> RankSet {
        let mut lost = RankSet::default();
        if let Some(link) = &self.link {
            let ended = (0..link.size()).filter(|rank| link.is_lost(*rank));
            ended.for_each(|rank| _ = lost.insert(rank));
        }
        lost
    }

    fn is_saving(&self) -> bool {
        self.saving.first.is_some() || self.saving.writing.is_some()
    }

    /// Begins a checkpoint if it is time for one, and reports how far the last one is.
    pub(in crate::node) fn save_periodically(&mut self) {
        self.show_saving();
        let Some(next) = self.next_save() else { return };
        let now = Instant::now();
        let is_over = self.machine.as_ref().is_none_or(Machine::is_over);
        // Whether the machine is stuck is found out before that.
        let next = if self.is_counting() { next + COUNTS } else { next };
        if is_over || now < next {
            return;
        }
        let path = self.saving.periodic.as_ref().map(|periodic| periodic.path.clone());
        path.into_iter().for_each(|path| self.save(SaveAsker::Periodic, path));
    }

    /// The time of the next checkpoint, if there are some at intervals.
    fn next_save(&self) -> Option<Instant> {
        let periodic = self.saving.periodic.as_ref().filter(|_| !self.is_saving());
        periodic.map(|periodic| periodic.next)
    }

    /// Returns `true` if moves, spawns and changes of hosts have to wait.
    pub(in crate::node) fn defers(&self) -> bool {
        self.saving.first.is_some() || self.saving.restores
    }

    /// Keeps a request until the machine goes on. Returns it if it need not wait.
    pub(in crate::node) fn defer_call(&mut self, call: NodeCall) -> Option<NodeCall> {
        let changes = match &call {
            NodeCall::Line(_) | NodeCall::InputEnds => true,
            NodeCall::Asked(ask, _) => !matches!(ask, MachineRequest::Show | MachineRequest::Halt),
            NodeCall::Written(..) | NodeCall::CommandEnded { .. } => false,
        };
        if changes && self.saving.holds() {
            self.saving.calls.push_back(call);
            return None;
        }
        Some(call)
    }

    /// The next request that has waited until the machine went on.
    pub(in crate::node) fn deferred_call(&mut self) -> Option<NodeCall> {
        if self.saving.holds() { None } else { self.saving.calls.pop_front() }
    }

    /// Returns `true` if a request has waited, and need not any more.
    #[inline]
    pub(in crate::node) fn has_deferred_call(&self) -> bool {
        !self.saving.calls.is_empty() && !self.saving.holds()
    }

    /// Keeps a spawn until the machine goes on.
    pub(in crate::node) fn defer_spawn(&mut self, spawn: WaitingSpawn) {
        // A task that waits for an answer asks for nothing else. Its process may.
        let spawner = spawn.0.filter(|tid| !self.is_console(*tid));
        let mut waiting = self.saving.spawns.iter().filter_map(|(spawner, ..)| *spawner);
        if spawner.is_none_or(|tid| waiting.all(|one| one != tid)) {
            self.saving.spawns.push(spawn);
        }
    }

    /// Does what a checkpoint under way needs from time to time.
    pub(super) fn work_at_first(&mut self) {
        let is_starting = self.machine.as_ref().is_some_and(Machine::is_starting);
        let is_settled = !is_starting && self.moving.open() == 0 && self.are_hosts_settled();
        let now = self.moving.time();
        let (size, lost) = (self.size(), self.lost_processes());
        let Some(first) = self.saving.first.as_deref_mut() else { return };
        let step = if first.holding.settles() && is_settled {
            first.stopped = Instant::now();
            Some(first.holding.settled(size, lost, now))
        } else if let Some(round) = first.recount.take() {
            Some(HoldStep::Count(round))
        } else {
            let first = self.saving.first.as_deref();
            first.and_then(|first| first.holding.tick(now, |rank| self.named_process(rank)))
        };
        self.take_steps(step);
        self.show_saving();
    }

    /// Gives a checkpoint up whose asker wants it no more, or has gone. If the file is being
    /// written, that is over when its thread reports it.
    fn end_if_cancelled(&mut self) {
        let saving = self.saving.first.as_deref().map(|first| &first.saving);
        let writing = self.saving.writing.as_ref();
        let saving = saving.or(writing.map(|file| &file.saving));
        let Some(Saving { asker: SaveAsker::Visitor(visitor), .. }) = saving else { return };
        if visitor.wish() == VisitorWish::Waits {
            return;
        }
        match writing {
            Some(file) => file.writer.cancel(),
            None => self.give_up(CANCELLED.into()),
        }
    }

    /// Reports progress to another shell, at intervals.
    fn show_saving(&mut self) {
        self.end_if_cancelled();
        let first = self.saving.first.as_deref_mut().map(|first| &mut first.saving);
        let saving = first.or(self.saving.writing.as_mut().map(|file| &mut file.saving));
        let Some(Saving { asker: SaveAsker::Visitor(visitor), shown, cost, .. }) = saving else {
            return;
        };
        if shown.elapsed() >= SHOWN {
            *shown = Instant::now();
            let all = self.machine.iter().flat_map(Machine::all).count() as u32;
            visitor.answer(&MachineReply::Saves { cost: *cost, all });
        }
    }

    /// The time until the asker is to be watched, or until the next checkpoint.
    pub(in crate::node) fn next_of_saving(&self) -> Option<Duration> {
        let next = || Some(self.next_save()?.saturating_duration_since(Instant::now()));
        self.saving.writing.as_ref().map(|_| WATCHED).or_else(next)
    }

    /// Handles the report of a process.
    pub(in crate::node) fn heard_of_hold(&mut self, from: Rank, number: u64, message: HeldMessage) {
        let (own, now) = (self.quiet_count(), self.moving.time());
        let first = self.saving.first.as_deref_mut().filter(|first| first.saving.number == number);
        let step = first.and_then(|first| first.holding.heard(from, message, own, now));
        self.take_steps(step);
    }

    fn take_steps(&mut self, step: Option<HoldStep>) {
        let number = self.saving.first.as_ref().map(|first| first.saving.number);
        let (Some(step), Some(number)) = (step, number) else { return };
        match step {
            HoldStep::Count(round) => {
                let message = HoldMessage::Count { round };
                self.tell_all(&ControlMessage::Hold { number, message });
                let (own, now) = (self.quiet_count(), self.moving.time());
                let Some(first) = self.saving.first.as_deref_mut() else { return };
                match first.holding.count(round, own, now) {
                    // What has arrived is handled before that.
                    Some(HoldStep::Count(round)) => first.recount = Some(round),
                    step => self.take_steps(step),
                }
            }
            HoldStep::Tell(HoldMessage::Save) => match self.begin_file() {
                Ok(()) => self.tell_hold(number, HoldMessage::Save),
                Err(error) => self.give_up(error.to_string()),
            },
            HoldStep::Tell(message) => self.tell_hold(number, message),
            HoldStep::Done(names) => self.complete(names),
            HoldStep::GiveUp(why) => self.give_up(why),
        }
    }

    /// Lets all go on without a checkpoint.
    fn give_up(&mut self, why: String) {
        let Some(first) = self.saving.first.take() else { return };
        let FirstSaving { saving, writer, .. } = *first;
        // Nothing is left of the file before the asker is answered.
        drop(writer);
        self.go_on(saving.number);
        self.answer_saved(saving.asker, Err(why));
    }

    /// Tells all processes, and then this one.
    fn tell_hold(&mut self, number: u64, message: HoldMessage) {
        self.tell_all(&ControlMessage::Hold { number, message });
        self.told_to_hold(number, message);
    }

    /// Lets all tasks run, and does what has waited.
    pub(super) fn go_on(&mut self, number: u64) {
        self.tell_hold(number, HoldMessage::GoOn);
        self.serve_waiting();
    }

    /// Begins the file, with all that is no task's.
    fn begin_file(&mut self) -> Result<(), CheckpointError> {
        let (waiting, hosts) = (self.waiting_requests(), self.hosts_to_save());
        // The file gets the mode that the machine wants, and not what a task's umask leaves of it.
        self.go_home();
        let most = self.moving.trials.most_saved().unwrap_or(self.sizes.most_saved());
        let (Some(first), Some(machine), Some(desk), Some(start)) =
            (self.saving.first.as_deref_mut(), &self.machine, &self.desk, &self.saving.start)
        else {
            return Err(CheckpointError::Process);
        };
        let (number, caller) = (first.saving.number, desk.caller());
        let done = move |written: Written| _ = caller.call(NodeCall::Written(number, written));
        let trial = self.moving.trials.of_writer();
        let mut writer = CheckpointWriter::begin(first.saving.path.clone(), trial, done)?;
        let head = CheckpointHead { seconds: seconds_now(), hosts, ..(**start).clone() };
        let saved = machine.save(waiting);
        // For these types this does not fail.
        writer.section(SectionKind::Head, postcard::to_stdvec(&head).unwrap_or_default());
        writer.section(SectionKind::Machine, postcard::to_stdvec(&saved).unwrap_or_default());
        let own = self.places.rank();
        let most = |rank| (!self.hosts.are_near(own, rank)).then_some(most);
        (first.writer, first.sections) = (Some(writer), TaskSections::of(saved.tasks(), most));
        Ok(())
    }

    /// Writes a task that a process has sent, which may be this one.
    pub(super) fn write_task(&mut self, from: Rank, (tid, parts): (Tid, u32), contents: Vec<u8>) {
        self.write_section(from, SavedPlace { tid, at: parts }, SectionKind::Task, None, contents);
    }

    /// Writes a part of such a task. `sum` is what another process has calculated.
    pub(super) fn write_part(
        &mut self,
        from: Rank,
        (tid, at, sum): (Tid, u32, Option<u64>),
        contents: Vec<u8>,
    ) {
        if sum.is_none_or(|sum| moves::sum(&contents) == sum) {
            self.write_section(from, SavedPlace { tid, at }, SectionKind::Part, sum, contents);
        } else if self.saving.first.is_some() {
            self.give_up(format!("task {tid} did not arrive whole"));
        }
    }

    fn write_section(
        &mut self,
        from: Rank,
        place: SavedPlace,
        kind: SectionKind,
        sum: Option<u64>,
        contents: Vec<u8>,
    ) {
        let arrived = self.moving.time();
        let Some(first) = self.saving.first.as_deref_mut() else { return };
        let Some(writer) = &mut first.writer else { return };
        let order = first.sections.add(from, kind, place, contents.len());
        let slots = || {
            let each = self.sizes.slots() as u64;
            Some((u64::from(self.machine.as_ref()?.slot(place.tid)?) * each, each))
        };
        // This process has packed its own tasks itself.
        let is_own = from == self.places.rank();
        let is_sound = |order: SectionOrder| {
            is_own
                || match kind {
                    SectionKind::Task => {
                        slots().map(|slots| SavedContents::of_task(&contents, slots))
                    }
                    _ => Some(SavedContents::of_part(&contents, order == SectionOrder::Last)),
                } == Some(SavedContents::Sound)
        };
        let checked = match order {
            Ok(order) if !is_sound(order) => Err(SectionRefusal::Wrong),
            order => order,
        };
        if let Err(why) = checked {
            let process = self.named_process(from);
            return self.give_up(format!("{process} has sent task {} wrongly: {why}", place.tid));
        }
        let length = contents.len() as u64;
        let cost = &mut first.saving.cost;
        cost.tasks += u32::from(kind == SectionKind::Task);
        cost.bytes += length;
        writer.of_task(kind, place, contents, sum);
        first.holding.got(length, arrived, self.moving.time());
    }

    /// All tasks are on their way to the file: lets the machine go on.
    fn complete(&mut self, names: Vec<u32>) {
        self.end_if_cancelled();
        let missing = self.saving.first.as_ref().and_then(|first| first.sections.missing());
        if let Some(tid) = missing {
            return self.give_up(format!("task {tid} did not arrive whole"));
        }
        let Some(first) = self.saving.first.take() else { return };
        let FirstSaving { mut saving, writer, stopped, .. } = *first;
        let (number, tasks) = (saving.number, saving.cost.tasks);
        if let Some(mut writer) = writer {
            let end = postcard::to_stdvec(&CheckpointEnd { tasks, names }).unwrap_or_default();
            writer.section(SectionKind::End, end);
            writer.end();
            saving.cost.pause = stopped.elapsed();
            self.saving.writing = Some(WritingFile { saving, writer });
        }
        self.go_on(number);
    }

    /// Handles that the thread has written the file, or could not.
    pub(in crate::node) fn written(&mut self, number: u64, written: Written) {
        let first = self.saving.first.as_ref();
        if first.is_some_and(|first| first.saving.number == number) {
            if let Err(error) = written {
                self.give_up(error.to_string());
            }
            return;
        }
        let file = self.saving.writing.take_if(|file| file.saving.number == number);
        let Some(WritingFile { saving, writer }) = file else { return };
        writer.leave();
        let Saving { asker, path, since, cost, .. } = saving;
        let result = written.map_err(|error| error.to_string());
        let result = result
            .map(|length| (path, SavedCost { bytes: length, total: since.elapsed(), ..cost }));
        self.answer_saved(asker, result);
    }

    fn answer_saved(&mut self, asker: SaveAsker, result: Result<(PathBuf, SavedCost), String>) {
        let result = result.map_err(|why| format!("the machine was not saved: {why}"));
        match asker {
            SaveAsker::Visitor(visitor) => visitor.answer(&match result {
                Ok((_, cost)) => MachineReply::Saved(cost),
                Err(why) => MachineReply::Refused(why),
            }),
            SaveAsker::Console => self.console_saved(match result {
                Ok((path, cost)) => format!("{}: {cost}", ShownPath::new(&path)),
                Err(why) => format!("checkpoint: {why}"),
            }),
            SaveAsker::Periodic => {
                let Some(periodic) = &mut self.saving.periodic else { return };
                periodic.next = Instant::now() + periodic.every;
                let why = result.err();
                if let Some(why) =
                    why.as_ref().filter(|why| periodic.refused.as_ref() != Some(*why))
                {
                    report_line!("upcall pvm: {why}");
                }
                periodic.refused = why;
            }
        }
    }

    /// The hosts for a checkpoint.
    fn hosts_to_save(&self) -> Vec<SavedHost> {
        let living = self.host_list().into_iter().map(|(number, _)| number).collect::<Vec<_>>();
        saved_hosts(&self.hosts, |host| !living.contains(&self.hosts.number(host)))
    }

    /// Handles the end of a process during a checkpoint.
    pub(in crate::node) fn lose_hold(&mut self, rank: Rank) {
        if self.saving.first.is_some() {
            self.give_up(format!("process {rank} has ended"));
        }
    }

    /// Handles that two processes do not reach each other during a checkpoint.
    pub(in crate::node) fn part_hold(&mut self, one: Rank, other: Rank) {
        if self.saving.first.is_some() {
            let [one, other] = [one, other].map(|rank| self.named_process(rank));
            self.give_up(format!("{one} and {other} do not reach each other"));
        }
    }

    /// Ends checkpoints with the machine. A file that is complete is written to its end.
    pub(in crate::node) fn end_saving(&mut self) {
        if let Some(first) = self.saving.first.take() {
            self.answer_saved(first.saving.asker, Err("the machine has ended".into()));
        }
        if let Some(file) = &mut self.saving.writing {
            file.writer.wait();
            while let Some(call) = self.desk.as_ref().and_then(|desk| desk.next_call()) {
                if let NodeCall::Written(number, written) = call {
                    self.written(number, written);
                }
            }
        }
    }
}
