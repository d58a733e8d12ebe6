//! A machine goes on from a checkpoint: its tasks arrive as they do after a move, except that all
//! of them wait until the last one is there.
//!
//! The first process reads the file and sends each task to its process. When all processes have
//! reported that their tasks are whole, it announces where the tasks are, and lets them run. So the
//! first message of a task finds its receiver in place.
//!
//! Between hosts, such a message may arrive before what the first process has announced. So each
//! process holds its tasks, as for a checkpoint, until the first process tells it to go on: then it
//! knows where all tasks are.

use super::super::Node;
use super::state::{RestoringTask, STILL, TaskHold, TaskHoldPhase};
use crate::checkpoint::{Checkpoint, CheckpointError, RestoredHosts, TaskStays};
use crate::moves::{self, Refusal};
use crate::packed::{FillingTask, PackedHead, PackedTask, refused_program};
use crate::remote::ControlMessage;
use crate::shown::readable;
use crate::tid::Tid;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use upcall_message::Rank;
use upcall_ulp::ClockOrigin;

/// Maximum time without the report of a task from another process.
const WITHIN: Duration = Duration::from_secs(10);
/// The status of a task that was killed.
const KILLED: i32 = 128 + 9;
/// Maximum length of a program's name in an error, in characters.
const LONGEST_NAME: usize = 100;

impl Node {
    /// In the first process: restores all tasks of a checkpoint, each in its process, and lets them
    /// run.
    ///
    /// # Errors
    /// The reason why the machine cannot go on. It is to be ended then.
    pub(crate) fn restore(
        &mut self,
        checkpoint: &Checkpoint,
        ranks: &BTreeMap<Tid, Rank>,
        hosts: &RestoredHosts,
    ) -> Result<(), CheckpointError> {
        for (rank, name) in checkpoint.names.iter().enumerate().take(self.size()) {
            self.tell(rank, ControlMessage::NextName { name: *name });
        }
        // A host that comes by itself waits: its processes would look like processes that have
        // ended.
        self.saving.restores = true;
        let mut ranks = ranks.clone();
        ranks.retain(|tid, _| !checkpoint.left_out.contains(tid));
        self.saving.missing = ranks.clone();
        for (tid, task) in &checkpoint.tasks {
            let rank = ranks.get(tid).copied().unwrap_or(0);
            let packed = task.packed.clone().in_another_machine(crate::node::CONSOLE);
            let contents = postcard::to_stdvec(&packed).unwrap_or_default();
            let parts = task.parts.len() as u32;
            self.send_restored(rank, PackedHead::Saved { tid: *tid, parts }, &contents)?;
            for (at, part) in (0..).zip(&task.parts) {
                let contents = checkpoint.part(*part)?;
                let head = PackedHead::SavedPart { tid: *tid, at, sum: moves::sum(&contents) };
                self.send_restored(rank, head, &contents)?;
            }
            self.hear();
        }
        self.wait_for_restored()?;
        let mut all = BTreeMap::<Rank, Vec<Tid>>::new();
        for (tid, rank) in ranks {
            self.begin_moves_of(tid, rank);
            all.entry(rank).or_default().push(tid);
        }
        all.iter().for_each(|(rank, tids)| self.announce(*rank, tids));
        self.saving.restores = false;
        self.go_on(0);
        self.report_restored_hosts(hosts);
        self.end_left_out(&checkpoint.left_out);
        Ok(())
    }

    /// In the first process: tasks that do not go on have ended, as if each was killed when the
    /// machine went on.
    fn end_left_out(&mut self, tids: &[Tid]) {
        let mut effects = Vec::new();
        for tid in tids {
            let Some(machine) = &mut self.machine else { return };
            machine.ended(*tid, KILLED, None, &mut effects);
        }
        self.effects(effects);
    }

    /// In the first process: tasks that asked for it get notices about hosts that are not there any
    /// more, and about hosts that were not there before.
    fn report_restored_hosts(&mut self, hosts: &RestoredHosts) {
        let Some(machine) = &mut self.machine else { return };
        let mut effects = Vec::new();
        for host in machine.watched_hosts().difference(&hosts.known) {
            machine.host_ended(*host, &mut effects);
        }
        hosts.added.iter().for_each(|host| machine.host_added(*host, &mut effects));
        self.effects(effects);
    }

    /// Maximum time without the report of a task from another process. A host may be out of reach
    /// for a while.
    fn restored_within(&self) -> Duration {
        let patience = self.coming.recruiter.as_ref().map(|one| one.start.patience);
        WITHIN.saturating_add(patience.unwrap_or_default())
    }

    fn send_restored(
        &mut self,
        rank: Rank,
        head: PackedHead,
        contents: &[u8],
    ) -> Result<(), CheckpointError> {
        match head {
            head if rank != self.places.rank() => {
                return self.pack_in_time(rank, &head, contents);
            }
            PackedHead::Saved { tid, parts } => self.restore_task(tid, parts, contents),
            PackedHead::SavedPart { tid, at, sum } => self.restore_part((tid, at, sum), contents),
            _ => {}
        }
        Ok(())
    }

    /// Sends something of a task to its process, which may be stopped: then it has not ended, and
    /// takes nothing.
    fn pack_in_time(
        &mut self,
        rank: Rank,
        head: &PackedHead,
        contents: &[u8],
    ) -> Result<(), CheckpointError> {
        let since = Instant::now();
        while let Some(link) = &self.link
            && let Err(error) = link.pack(rank, head, contents)
            && self.makes_room(&error, "a part of a task")
        {
            if since.elapsed() >= self.restored_within() || self.halted {
                return Err(self.silent(rank));
            }
        }
        Ok(())
    }

    fn silent(&self, rank: Rank) -> CheckpointError {
        CheckpointError::Silent { process: self.named_process(rank) }
    }

    fn wait_for_restored(&mut self) -> Result<(), CheckpointError> {
        let mut since = Instant::now();
        let mut missing = self.saving.missing.len();
        loop {
            if self.saving.missing.is_empty() {
                return match self.saving.refused.is_empty() {
                    true => Ok(()),
                    false => Err(self.not_restored()),
                };
            }
            if self.saving.missing.len() < missing {
                (missing, since) = (self.saving.missing.len(), Instant::now());
            }
            let Some(link) = &self.link else { return Err(CheckpointError::Process) };
            let has_lost = (0..self.size()).any(|rank| link.is_lost(rank));
            if has_lost || self.halted {
                return Err(CheckpointError::Process);
            }
            if let Some(rank) = self.saving.missing.values().next()
                && since.elapsed() >= self.restored_within()
            {
                return Err(self.silent(*rank));
            }
            link.wait(Some(STILL), false);
            self.hear_of_ends();
        }
    }

    /// The tasks that their processes have refused.
    fn not_restored(&mut self) -> CheckpointError {
        let one = |(tid, (rank, why)): (Tid, (Rank, Refusal))| TaskStays {
            tid,
            program: self
                .machine
                .as_ref()
                .and_then(|machine| machine.program(tid))
                .map_or_else(String::new, |program| readable(program, LONGEST_NAME)),
            host: self.hosts.name(self.hosts.of(rank)).into(),
            why,
        };
        let refused = std::mem::take(&mut self.saving.refused);
        CheckpointError::Tasks { all: refused.into_iter().map(one).collect() }
    }

    /// Begins to make a task of a checkpoint here.
    pub(super) fn restore_task(&mut self, tid: Tid, parts: u32, contents: &[u8]) {
        self.saving.hold.get_or_insert_with(|| {
            let (phase, until) = (TaskHoldPhase::Still, Instant::now());
            Box::new(TaskHold { number: 0, phase, until })
        });
        self.go_home();
        let packed = postcard::from_bytes::<PackedTask>(contents).map_err(|_| Refusal::Damaged);
        let arriving = packed.and_then(|packed| {
            if packed.has_files() {
                return Err(Refusal::Descriptors);
            }
            let image = self.programs.opened(packed.program()).map_err(refused_program)?;
            packed.arrive(image, None)
        });
        let is_there = self.seat(tid.number()).is_some();
        match arriving.and_then(|task| if is_there { Err(Refusal::Damaged) } else { Ok(task) }) {
            Ok(task) => {
                let restoring = RestoringTask { task, next: 0, parts };
                self.saving.restoring.insert(tid, Box::new(restoring));
            }
            Err(why) => self.report_restored(tid, Some(why)),
        }
    }

    /// Takes the next part of such a task. With the last one, the task is whole.
    pub(super) fn restore_part(&mut self, (tid, at, sum): (Tid, u32, u64), contents: &[u8]) {
        // The task may have been refused.
        let Some(restoring) = self.saving.restoring.get_mut(&tid) else { return };
        let result = if at == restoring.next && sum == moves::sum(contents) {
            restoring.next += 1;
            restoring.task.fill_saved(contents)
        } else {
            Err(Refusal::Damaged)
        };
        if result.is_ok() && restoring.next < restoring.parts {
            return;
        }
        let Some(restoring) = self.saving.restoring.remove(&tid) else { return };
        let result = result.and_then(|()| self.seat_restored(tid, restoring.task));
        self.report_restored(tid, result.err());
    }

    fn seat_restored(&mut self, tid: Tid, task: FillingTask) -> Result<(), Refusal> {
        let folder = task.folder().cloned();
        let mut task = task.finish(tid, ClockOrigin::OtherKernel)?;
        if let Some(folder) = folder {
            // After a reboot the same folder may have another number.
            task.folder = self.far_folder(&folder)?;
        }
        if task.umask.is_some() {
            self.learn_umask();
        }
        task.ulp.set_parent(self.first_process);
        let seat = self.sit(Box::new(task));
        self.places.arrived(tid, seat);
        self.saving.restored.push(seat);
        Ok(())
    }

    fn report_restored(&mut self, tid: Tid, refused: Option<Refusal>) {
        let restored = ControlMessage::Restored { tid, refused };
        self.moving.before_step(&restored);
        self.tell_first(restored);
    }

    /// In the first process: handles that a task is whole in process `from`, or is not. Only the
    /// task's own process says so, once.
    pub(in crate::node) fn restored(&mut self, from: Rank, tid: Tid, refused: Option<Refusal>) {
        if self.saving.missing.get(&tid) != Some(&from) {
            return;
        }
        self.saving.missing.remove(&tid);
        if let Some(why) = refused {
            self.saving.refused.insert(tid, (from, why));
        }
    }
}
