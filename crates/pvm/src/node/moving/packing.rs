//! Sends tasks to other processes, and makes those that arrive.

use super::super::Node;
use crate::moves::{self, Pin, Refusal, TakenMessages};
use crate::packed::{
    CopiedPages, FillError, FillingTask, PackedFolder, PackedFor, PackedHead, PackedParts,
    PackedTask, SentBlock, SentEarly, kept_head, pack, refused_program,
};
use crate::remote::ControlMessage;
use crate::task::TaskMessage;
use crate::tid::Tid;
use crate::transit::{EarlySent, EnteringTask, StoppedTask, WatchedTask};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use upcall_message::Rank;
use upcall_ulp::{Block, ClockOrigin, UlpState, twins};

/// Names a folder by its path, and by what it is.
fn packed_folder(folder: &OwnedFd) -> Option<PackedFolder> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", folder.as_raw_fd())).ok()?;
    let stat = rustix::fs::fstat(folder).ok()?;
    Some(PackedFolder { path: path.into(), device: stat.st_dev, inode: stat.st_ino })
}

impl Node {
    /// The process in whose arena a block is.
    fn owner(&self, block: &Block) -> Rank {
        twins::owner(block.name()).map_or(self.places.rank(), |owner| owner as Rank)
    }

    /// Packs the task in this seat.
    ///
    /// # Errors
    /// One of its descriptors or its folder keeps it here, or its memory cannot be read.
    pub(super) fn pack(
        &mut self,
        tid: Tid,
        seat: u32,
        mut state: UlpState,
    ) -> Result<(PackedTask, PackedParts), Pin> {
        let cannot = Pin::Descriptor;
        let (_, to) = self.moving.moves.leaving(tid).ok_or(cannot)?;
        let are_read = self.can_read(to);
        let early = self.sent_early(tid, seat, &state);
        let host = match self.is_near(to) {
            true => None,
            false => Some(self.process_habits().ok_or(cannot)?),
        };
        let task = self.tasks[seat as usize].as_deref().ok_or(cannot)?;
        if host.is_some() {
            task.ulp.name_files(&mut state).map_err(Pin::File)?;
        }
        let folder = match &task.folder {
            Some(folder) => Some(packed_folder(folder).ok_or(cannot)?),
            None => None,
        };
        let why = PackedFor::Move { are_read, early };
        let packed = pack(task, state, folder, |block| self.owner(block), why);
        let (mut packed, parts) = packed.ok().flatten().ok_or(cannot)?;
        if let Some((folder, umask)) = host {
            packed.folder.get_or_insert(folder);
            packed.umask.get_or_insert(umask);
        }
        Ok((packed, parts))
    }

    /// The folder and the umask of this process, which a task takes along to another host.
    fn process_habits(&mut self) -> Option<(PackedFolder, u32)> {
        self.go_home();
        Some((packed_folder(&crate::node::outside::folder(".").ok()?)?, self.learn_umask()))
    }

    /// Packs the task in this seat for a checkpoint. `None`: as for a move.
    ///
    /// In a machine of several hosts, a task may go on in another one, as after a move.
    pub(in crate::node) fn pack_saved(
        &mut self,
        seat: u32,
        state: UlpState,
    ) -> Option<(PackedTask, PackedParts)> {
        let host = match self.hosts.are_several() {
            true => Some(self.process_habits()?),
            false => None,
        };
        let task = self.tasks[seat as usize].as_deref()?;
        let folder = match &task.folder {
            Some(folder) => Some(packed_folder(folder)?),
            None => None,
        };
        let why = PackedFor::Checkpoint;
        let packed = pack(task, state, folder, |block| self.owner(block), why).ok().flatten();
        let (mut packed, parts) = packed?;
        if let Some((folder, umask)) = host {
            packed.folder.get_or_insert(folder);
            packed.umask.get_or_insert(umask);
        }
        Some((packed, parts))
    }

    /// What the new process has of a task from before its stop.
    fn sent_early(&mut self, tid: Tid, seat: u32, state: &UlpState) -> SentEarly {
        let Some(sent) = self.moving.sent_early.remove(&tid) else { return SentEarly::Nothing };
        let EarlySent { epoch, to, mappings, watched, written, .. } = sent;
        // No process has the number 0.
        let link = self.link.as_ref().filter(|_| self.moving.trials.allows_writing());
        let process = link.map_or(0, |link| link.process(to)).cast_unsigned();
        let task = self.tasks[seat as usize].as_deref();
        let found = match (task, watched) {
            (Some(task), Some(WatchedTask { mut writes, left, .. })) => {
                let found = writes.finish(&task.ulp, state, &left).ok();
                found.map(|(pages, gone)| {
                    SentEarly::Pages(Box::new(CopiedPages { pages, gone, writes }))
                })
            }
            _ => (mappings == state.mappings).then_some(SentEarly::Room { to, process, written }),
        };
        found.unwrap_or_else(|| {
            self.tell(to, ControlMessage::DropPages { tid, epoch });
            SentEarly::Nothing
        })
    }

    /// Returns `true` if another process can read this one's memory, as far as is known. One on
    /// another host cannot.
    pub(super) fn can_read(&mut self, to: Rank) -> bool {
        let may = self.is_near(to) && self.moving.trials.allows_reading();
        let can = may && !self.moving.unreadable.contains(to);
        if can {
            self.allow_others();
        }
        can
    }

    /// Lets the other processes use this one's memory, where they need that.
    pub(super) fn allow_others(&mut self) {
        if !std::mem::replace(&mut self.moving.allows_others, true) {
            // They are the first one's children.
            upcall_ulp::allow_others(self.first_process);
        }
    }

    /// Sends a stopped task without its contents.
    pub(super) fn send_task(
        &mut self,
        to: Rank,
        (tid, epoch, parts): (Tid, u64, u32),
        taken: TakenMessages<TaskMessage>,
    ) {
        let TakenMessages { late, carried } = taken;
        let messages = (late.len() + carried.len()) as u32;
        let late = late.iter().map(|kept| (None, kept));
        let carried = carried.iter().map(|(receiver, kept)| (Some(*receiver), kept));
        for (receiver, kept) in late.chain(carried) {
            let (head, contents) = kept_head((tid, epoch), receiver, kept);
            self.pack_there(to, &head, &contents);
        }
        let leaves = self.moving.stopped.get(&tid).and_then(|one| one.leaves.as_deref());
        let packed = leaves.and_then(|(packed, _)| postcard::to_stdvec(packed).ok());
        let head = PackedHead::Task { tid, epoch, parts, messages };
        let mut packed = packed.unwrap_or_default();
        self.moving.trials.leaves(1 + parts as usize);
        self.moving.trials.bend(&mut packed);
        self.pack_there(to, &head, &packed);
    }

    /// Sends the next part of a stopped task.
    pub(super) fn send_part(&mut self, to: Rank, (tid, epoch, at): (Tid, u64, u32)) {
        let Some(StoppedTask { task, leaves: Some(leaves), since, .. }) =
            self.moving.stopped.get_mut(&tid)
        else {
            return;
        };
        let mut part = leaves.1.next(task);
        since.1 += part.as_ref().map_or(0, |part| part.len() as u64);
        part.iter_mut().for_each(|part| self.moving.trials.bend(part));
        // A part with a wrong sum is refused.
        let sum = part.as_ref().map_or(0, |part| moves::sum(part));
        let head = PackedHead::Part { tid, epoch, at, sum };
        self.pack_there(to, &head, &part.unwrap_or_default());
    }

    /// Makes room for a task that has arrived.
    pub(super) fn prepare(&mut self, tid: Tid) {
        match self.arriving_task(tid) {
            Ok((epoch, from, task)) => {
                let own = self.places.rank();
                let others = task.blocks().iter().filter(|block| block.owner != own).copied();
                let has = |blocks| ControlMessage::HasBlocks { tid, epoch, blocks };
                let owners = self.tell_owners(others.collect(), has);
                let entering = EnteringTask { epoch, from, task, owners };
                self.moving.arriving.insert(tid, Box::new(entering));
                self.lost_owners(tid);
            }
            Err(why) => self.refuse(tid, why),
        }
    }

    /// Owners that have ended need not answer.
    fn lost_owners(&mut self, tid: Tid) {
        let entering = self.moving.arriving.get_mut(&tid);
        if let (Some(entering), Some(link)) = (entering, &self.link) {
            entering.owners.retain(|owner| *owner < link.size() && !link.is_lost(*owner));
        }
    }

    fn arriving_task(&mut self, tid: Tid) -> Result<(u64, Rank, FillingTask), Refusal> {
        let (epoch, from, packed) = self.moving.taken.take().unwrap_or(Err(Refusal::Damaged))?;
        // The messages about blocks given back arrive before those about blocks taken.
        self.give_blocks_back();
        self.go_home();
        self.free_left();
        let copy = self.moving.copies.remove(&tid);
        let copy = copy.filter(|copy| packed.has_copy && copy.epoch == epoch);
        let (image, copy) = match copy {
            Some(copy) => (copy.image, Some(copy.ulp)),
            None => (self.programs.opened(packed.program()).map_err(refused_program)?, None),
        };
        Ok((epoch, from, packed.arrive(image, copy)?))
    }

    /// Fills in a part of a task. With an epoch, this process has asked the old process for it.
    pub(super) fn fill(&mut self, tid: Tid, asked: Option<(u64, Rank)>, bytes: &[u8]) {
        let Some(entering) = self.moving.arriving.get_mut(&tid) else { return };
        if asked.is_some_and(|asked| (entering.epoch, entering.from) != asked) {
            return;
        }
        let (from, epoch) = (entering.from, entering.epoch);
        let process = self.link.as_ref().map_or(0, |link| link.process(from)).cast_unsigned();
        match entering.task.fill(process, bytes) {
            Ok(()) if entering.task.is_whole() => self.finish(tid),
            Ok(()) => {}
            Err(FillError::Refused(why)) => self.refuse(tid, why),
            Err(FillError::Unreadable) if entering.task.has_files() => {
                self.refuse(tid, Refusal::Files);
            }
            Err(FillError::Unreadable) => {
                self.tell(from, ControlMessage::SendContents { tid, epoch });
            }
        }
    }

    /// Sends the contents of a stopped task to a process that cannot read this one's memory.
    pub(in crate::node) fn send_contents(&mut self, to: Rank, tid: Tid, epoch: u64) {
        self.moving.unreadable.insert(to);
        loop {
            let Some(StoppedTask { task, leaves: Some(leaves), .. }) =
                self.moving.stopped.get_mut(&tid)
            else {
                return;
            };
            leaves.1.send_contents();
            let is_last = leaves.1.is_at_end(task);
            // An empty part is refused.
            let part = leaves.1.next(task).unwrap_or_default();
            self.pack_there(to, &PackedHead::Contents { tid, epoch }, &part);
            if is_last || part.is_empty() {
                return;
            }
        }
    }

    /// Completes a task if it is whole, and if the owners of its blocks keep the addresses taken.
    ///
    /// Until then the old process must not give its copies back, and it does not before the
    /// commit. So at each time an owner knows of a copy.
    pub(super) fn finish(&mut self, tid: Tid) {
        let is_ready =
            |entering: &EnteringTask| entering.task.is_whole() && entering.owners.is_empty();
        if !self.moving.arriving.get(&tid).is_some_and(|entering| is_ready(entering)) {
            return;
        }
        let Some(entering) = self.moving.arriving.remove(&tid) else { return };
        let mut task = entering.task;
        let (folder, since) = (task.folder().cloned(), task.since());
        let is_near = self.is_near(entering.from);
        let (clocks, tells) = match is_near {
            true => (ClockOrigin::ThisKernel, Some(0)),
            false => (ClockOrigin::OtherKernel, None),
        };
        let files = if is_near { Ok(()) } else { task.open_files() };
        let whole = files.and_then(|()| task.finish(tid, clocks)).and_then(|mut task| {
            task.folder = match folder {
                Some(folder) if is_near => Some(self.same_folder(&folder)?),
                Some(folder) => self.far_folder(&folder)?,
                None => None,
            };
            Ok(task)
        });
        match whole {
            Ok(task) => {
                if task.umask.is_some() {
                    self.learn_umask();
                }
                let stopped = StoppedTask { task: Box::new(task), leaves: None, since, tells };
                self.moving.stopped.insert(tid, stopped);
                self.drive(|moves, effects| moves.ready(tid, effects));
                self.learn_rank(tid);
            }
            Err(why) => self.refuse(tid, why),
        }
    }

    /// Opens a task's folder, if it is the same one here.
    fn same_folder(&mut self, folder: &PackedFolder) -> Result<OwnedFd, Refusal> {
        self.go_home();
        let own = self.first_folder(&folder.path).map_err(|_| Refusal::Folder)?;
        let stat = rustix::fs::fstat(&own).map_err(|_| Refusal::Folder)?;
        let is_same = [stat.st_dev, stat.st_ino] == [folder.device, folder.inode];
        is_same.then_some(own).ok_or(Refusal::Folder)
    }

    /// Opens the folder with the path that a task's folder has on another host. `None`: it is that
    /// of this process.
    pub(in crate::node) fn far_folder(
        &mut self,
        folder: &PackedFolder,
    ) -> Result<Option<OwnedFd>, Refusal> {
        self.go_home();
        let own = std::env::current_dir().map_err(|_| Refusal::Folder)?;
        if own == Path::new(&folder.path) {
            return Ok(None);
        }
        self.first_folder(&folder.path).map(Some).map_err(|_| Refusal::Folder)
    }

    fn refuse(&mut self, tid: Tid, why: Refusal) {
        self.moving.arriving.remove(&tid);
        self.drive(|moves, effects| moves.refuse(tid, why, effects));
    }

    /// Reports blocks without a holder in this process to their owners.
    pub(in crate::node) fn give_blocks_back(&mut self) {
        if !twins::has_returned() {
            return;
        }
        let back = twins::take_returned().into_iter().map(|(owner, name)| SentBlock {
            name,
            owner: owner as Rank,
            is_shared: false,
        });
        self.tell_owners(back.collect(), |blocks| ControlMessage::HadBlocks { blocks });
    }

    /// Sends each owner a message about its blocks, and returns the owners.
    fn tell_owners(
        &mut self,
        mut blocks: Vec<SentBlock>,
        message: impl Fn(Vec<SentBlock>) -> ControlMessage,
    ) -> Vec<Rank> {
        blocks.sort_by_key(|block| block.owner);
        let mut owners = Vec::new();
        for blocks in blocks.chunk_by(|one, other| one.owner == other.owner) {
            owners.push(blocks[0].owner);
            // An owner that never was is the machine of a checkpoint.
            if self.link.as_ref().is_some_and(|link| blocks[0].owner < link.size()) {
                self.tell(blocks[0].owner, message(blocks.to_vec()));
            }
        }
        owners
    }

    /// Handles that another process has copies of blocks of this one.
    pub(in crate::node) fn lend_blocks(
        &mut self,
        to: Rank,
        (tid, epoch): (Tid, u64),
        blocks: &[SentBlock],
    ) {
        let lent = blocks
            .iter()
            .map(|block| twins::held_afar(block.name, to as u32, block.is_shared).is_ok());
        let all = lent.fold(true, |all, one| all & one);
        self.tell(to, ControlMessage::LendsBlocks { tid, epoch, all });
    }

    /// Handles an owner's answer.
    pub(in crate::node) fn blocks_are_lent(
        &mut self,
        owner: Rank,
        (tid, epoch): (Tid, u64),
        all: bool,
    ) {
        match self.moving.arriving.get(&tid) {
            Some(entering) if entering.epoch == epoch && all => self.has_lent(tid, owner),
            Some(entering) if entering.epoch == epoch => self.refuse(tid, Refusal::Damaged),
            _ => {}
        }
    }

    /// Notes that an owner's answer is not missing any more.
    pub(super) fn has_lent(&mut self, tid: Tid, owner: Rank) {
        if let Some(entering) = self.moving.arriving.get_mut(&tid) {
            entering.owners.retain(|one| *one != owner);
        }
        self.finish(tid);
    }

    /// Handles that another process has no copies of these blocks any more.
    pub(in crate::node) fn take_blocks_back(&mut self, from: Rank, blocks: &[SentBlock]) {
        blocks.iter().for_each(|block| twins::returned_from(block.name, from as u32));
    }
}
