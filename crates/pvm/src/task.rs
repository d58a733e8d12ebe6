//! A task: a ULP with a number, the blocks that it holds, and what waits for it.

use crate::output::Output;
use crate::tid::Tid;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};
use upcall_ulp::{Block, Image, Ulp};

/// What is sent, on its way: the block is the sender's as well, and whoever writes to it first
/// takes another (V6).
#[derive(Clone, Debug)]
pub(crate) struct TaskMessage {
    pub(crate) source: i32,
    pub(crate) destination: i32,
    pub(crate) tag: i32,
    pub(crate) context: i32,
    pub(crate) encoding: i32,
    pub(crate) wait: i32,
    /// None: nothing is in it.
    pub(crate) block: Option<Block>,
    pub(crate) length: usize,
}

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    /// From whom; -1: any.
    pub(crate) from: i32,
    /// -1: any.
    pub(crate) tag: i32,
    /// -1: any.
    pub(crate) context: i32,
}

impl Want {
    pub(crate) fn fits(self, message: &TaskMessage) -> bool {
        (self.from == -1 || self.from == message.source)
            && (self.tag == -1 || self.tag == message.tag)
            && (self.context == -1 || self.context == message.context)
    }
}

/// So many blocks a task has in a line of its own; most have no more.
const FEW: usize = 8;

/// Blocks by the handles under which a program knows them, from 1.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct BlockTable {
    few: [Option<Block>; FEW],
    more: Vec<Option<Block>>,
    /// Places of `more` that are free.
    free: Vec<u32>,
}

impl BlockTable {
    /// The new handle of a block.
    pub(crate) fn keep(&mut self, block: Block) -> u32 {
        if let Some(at) = self.few.iter().position(Option::is_none) {
            self.few[at] = Some(block);
            return at as u32 + 1;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.more.push(None);
            self.more.len() as u32 - 1
        });
        self.more[at as usize] = Some(block);
        FEW as u32 + at + 1
    }

    pub(crate) fn get(&self, handle: u32) -> Option<&Block> {
        let at = (handle as usize).checked_sub(1)?;
        self.few.get(at).or_else(|| self.more.get(at.checked_sub(FEW)?))?.as_ref()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Block> {
        self.few.iter().chain(&self.more).flatten()
    }

    pub(crate) fn release(&mut self, handle: u32) {
        let Some(at) = (handle as usize).checked_sub(1) else { return };
        if let Some(one) = self.few.get_mut(at) {
            *one = None;
        } else if self.more.get_mut(at - FEW).and_then(Option::take).is_some() {
            self.free.push((at - FEW) as u32);
        }
    }
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskState {
    /// It is there, and not yet in the run queue.
    Starts,
    /// It runs, or is in the run queue.
    Runs,
    /// It is in the run queue, and has nothing for an answer when its turn comes and this has not
    /// been sent.
    Polls(Want),
    /// It waits for a message; until then, if that is a time.
    Receives(Want, Option<Instant>),
    /// It has asked for something that is answered later.
    Asks(u64),
    /// It sleeps, if that is a time until then; else until a signal comes.
    Sleeps(Option<Instant>),
    /// It waits until a descriptor is ready, for events as `poll(2)` has them; until then, if that
    /// is a time.
    Awaits(i32, u16, Option<Instant>),
    /// A call of its runs on a helper thread.
    Aside,
}

/// See the module. What each message needs of it comes first, in as few lines as that takes.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) ulp: Ulp,
    pub(crate) state: TaskState,
    /// Its place in the run queue: an entry with another number is an old one.
    pub(crate) ticket: u32,
    pub(crate) tid: Tid,
    /// Whether it has left the machine (`pvm_exit`) and only computes on.
    pub(crate) left: bool,
    pub(crate) inbox: VecDeque<TaskMessage>,
    pub(crate) held: BlockTable,
    /// It can be read while a message waits (`pvm_getfds`).
    pub(crate) descriptor: Option<OwnedFd>,
    /// When SIGALRM comes, and how much later again.
    pub(crate) alarm: Option<(Instant, Duration)>,
    /// The folder that it went to.
    pub(crate) folder: Option<OwnedFd>,
    /// What `pvm_parent` says.
    pub(crate) parent: i32,
    pub(crate) siblings: Vec<Tid>,
    /// In which it sends and receives, to begin with.
    pub(crate) context: i32,
    pub(crate) program: PathBuf,
    pub(crate) image: Rc<Image>,
    /// Where its own output goes, and that of tasks that it spawns.
    pub(crate) output: Output,
    pub(crate) child_output: Output,
    /// Options that are kept for it, by number: its own and its children's traces, and whether a
    /// reset spares it.
    pub(crate) options: Vec<(i32, i32)>,
}

impl Task {
    pub(crate) fn option(&self, which: i32) -> i32 {
        self.options.iter().find(|(one, _)| *one == which).map_or(0, |(_, value)| *value)
    }

    pub(crate) fn set_option(&mut self, which: i32, value: i32) {
        self.options.retain(|(one, _)| *one != which);
        self.options.push((which, value));
    }
}

const _: () = assert!(std::mem::offset_of!(Task, held) == 128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_used_again_and_bad_ones_are_none() {
        let mut held = BlockTable::default();
        let handles = (0..20).map(|_| held.keep(Block::new(1).unwrap())).collect::<Vec<_>>();
        assert_eq!(handles, (1..=20).collect::<Vec<_>>());
        [3, 15, 15, 0, 99].iter().for_each(|handle| held.release(*handle));
        assert!(
            [3, 15, 0, 99, u32::MAX].iter().all(|handle| held.get(*handle).is_none())
                && held.get(20).is_some()
        );
        assert_eq!([(); 3].map(|()| held.keep(Block::new(1).unwrap())), [3, 15, 21]);
    }
}
