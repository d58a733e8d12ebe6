//! A task: a ULP with a number, the blocks that it holds, and what waits for it.

use crate::output::Output;
use crate::tid::Tid;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;
use upcall_ulp::{Block, Image, Ulp};

/// What is sent, on its way: the block is the sender's as well, and whoever writes to it first takes another (V6).
#[derive(Clone, Debug)]
pub(crate) struct Message {
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
    pub(crate) fn fits(self, message: &Message) -> bool {
        (self.from == -1 || self.from == message.source)
            && (self.tag == -1 || self.tag == message.tag)
            && (self.context == -1 || self.context == message.context)
    }
}

/// Blocks by the handles under which a program knows them.
#[derive(Debug, Default)]
pub(crate) struct Held {
    blocks: Vec<Option<Block>>,
    free: Vec<u32>,
}

impl Held {
    /// The new handle of a block; from 1.
    pub(crate) fn keep(&mut self, block: Block) -> u32 {
        match self.free.pop() {
            Some(handle) => {
                self.blocks[handle as usize - 1] = Some(block);
                handle
            }
            None => {
                self.blocks.push(Some(block));
                self.blocks.len() as u32
            }
        }
    }

    pub(crate) fn get(&self, handle: u32) -> Option<&Block> {
        self.blocks.get((handle as usize).checked_sub(1)?)?.as_ref()
    }

    pub(crate) fn release(&mut self, handle: u32) {
        let at = (handle as usize).checked_sub(1).and_then(|at| self.blocks.get_mut(at));
        if at.and_then(Option::take).is_some() {
            self.free.push(handle);
        }
    }
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It is there, and not yet in the run queue.
    Starts,
    /// It runs, or is in the run queue.
    Runs,
    /// It is in the run queue, and has nothing for an answer when its turn comes and this has not been sent.
    Polls(Want),
    /// It waits for a message; until then, if that is a time.
    Receives(Want, Option<Instant>),
    /// It has asked for something that is answered later.
    Asks(u64),
    /// It sleeps.
    Sleeps(Instant),
    /// It waits until a descriptor is ready, for events as `poll(2)` has them.
    Awaits(i32, u16),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) ulp: Ulp,
    pub(crate) state: State,
    /// Its place in the run queue: an entry with another number is an old one.
    pub(crate) ticket: u32,
    pub(crate) tid: Tid,
    pub(crate) held: Held,
    pub(crate) inbox: VecDeque<Message>,
    /// Whether it has left the machine (`pvm_exit`) and only computes on.
    pub(crate) left: bool,
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
    /// Options that are kept for it, by number: its own and its children's traces, and whether a reset spares it.
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
