//! Sends tasks to other processes, and makes those that arrive.

use super::super::Node;
use super::StoppedTask;
use crate::moves::{self, Refusal, TakenMessages};
use crate::packed::{
    ArrivingTask, PackedFolder, PackedFor, PackedHead, PackedParts, PackedTask, SentBlock,
    kept_head, pack,
};
use crate::remote::ControlMessage;
use crate::task::TaskMessage;
use crate::tid::Tid;
use std::os::fd::{AsRawFd, OwnedFd};
use upcall_message::Rank;
use upcall_ulp::{Block, UlpState, twins};

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

    /// Packs the task in this seat. `None`: its folder cannot be named, or its memory not be read.
    pub(in crate::node) fn pack(
        &self,
        seat: u32,
        state: UlpState,
        why: PackedFor,
    ) -> Option<(PackedTask, PackedParts)> {
        let task = self.tasks[seat as usize].as_deref()?;
        let folder = match &task.folder {
            Some(folder) => Some(packed_folder(folder)?),
            None => None,
        };
        pack(task, state, folder, why, |block| self.owner(block)).ok().flatten()
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
        self.pack_there(to, &head, &packed.unwrap_or_default());
    }

    /// Sends the next part of a stopped task.
    pub(super) fn send_part(&mut self, to: Rank, (tid, epoch, at): (Tid, u64, u32)) {
        let Some(StoppedTask { task, leaves: Some(leaves), .. }) =
            self.moving.stopped.get_mut(&tid)
        else {
            return;
        };
        let part = leaves.1.next(task);
        // A part with a wrong sum is refused.
        let sum = part.as_ref().map_or(0, |part| moves::sum(part));
        let head = PackedHead::Part { tid, epoch, at, sum };
        self.pack_there(to, &head, &part.unwrap_or_default());
    }

    /// Makes room for a task that has arrived.
    pub(super) fn prepare(&mut self, tid: Tid) {
        match self.arriving_task() {
            Ok(task) => {
                let own = self.places.rank();
                let others = task.blocks().iter().filter(|block| block.owner != own).copied();
                self.tell_owners(others.collect(), |blocks| ControlMessage::HasBlocks { blocks });
                self.moving.arriving.insert(tid, Box::new(task));
            }
            Err(why) => self.refuse(tid, why),
        }
    }

    fn arriving_task(&mut self) -> Result<ArrivingTask, Refusal> {
        let packed = self.moving.taken.take().ok_or(Refusal::Damaged)?;
        // The owners hear of what is given back before they hear of what is taken.
        self.give_blocks_back();
        self.go_home();
        let image = self.programs.image(packed.program()).map_err(|_| Refusal::Program)?;
        packed.arrive(image)
    }

    pub(super) fn fill(&mut self, tid: Tid, bytes: &[u8]) {
        let task = self.moving.arriving.get_mut(&tid);
        if let Some(Err(why)) = task.map(|task| task.fill(bytes)) {
            self.refuse(tid, why);
        }
    }

    /// Completes a task whose parts are all here.
    pub(super) fn finish(&mut self, tid: Tid) {
        // It was refused before.
        let Some(task) = self.moving.arriving.remove(&tid) else { return };
        let (folder, since) = (task.folder().cloned(), task.since());
        let whole = task.finish(tid).and_then(|mut task| {
            if let Some(folder) = folder {
                task.folder = Some(self.same_folder(&folder)?);
            }
            Ok(task)
        });
        match whole {
            Ok(task) => {
                if task.umask.is_some() {
                    self.learn_umask();
                }
                let stopped = StoppedTask { task: Box::new(task), leaves: None, since };
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

    fn refuse(&mut self, tid: Tid, why: Refusal) {
        self.moving.arriving.remove(&tid);
        self.drive(|moves, effects| moves.refuse(tid, why, effects));
    }

    /// Tells the owners of blocks that nobody here holds any more.
    pub(in crate::node) fn give_blocks_back(&mut self) {
        let back = twins::take_returned().into_iter().map(|(owner, name)| SentBlock {
            name,
            owner: owner as Rank,
            is_shared: false,
        });
        self.tell_owners(back.collect(), |blocks| ControlMessage::HadBlocks { blocks });
    }

    /// Sends each owner a message about its blocks.
    fn tell_owners(
        &mut self,
        mut blocks: Vec<SentBlock>,
        message: impl Fn(Vec<SentBlock>) -> ControlMessage,
    ) {
        // Blocks of a machine that was checkpointed have no owner.
        let size = self.link.as_ref().map_or(0, |link| link.size());
        blocks.retain(|block| block.owner < size);
        blocks.sort_by_key(|block| block.owner);
        for blocks in blocks.chunk_by(|one, other| one.owner == other.owner) {
            self.tell(blocks[0].owner, message(blocks.to_vec()));
        }
    }

    /// Handles that another process has copies of blocks of this one.
    pub(in crate::node) fn lend_blocks(&mut self, to: Rank, blocks: &[SentBlock]) {
        for block in blocks {
            // A block that is none of this process's is not lent.
            let _ = twins::held_afar(block.name, to as u32, block.is_shared);
        }
    }

    /// Handles that another process has no copies of these blocks any more.
    pub(in crate::node) fn take_blocks_back(&mut self, from: Rank, blocks: &[SentBlock]) {
        blocks.iter().for_each(|block| twins::returned_from(block.name, from as u32));
    }
}
