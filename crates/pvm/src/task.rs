//! A task: a ULP with a tid, the blocks that it holds, and the messages that wait for it.

use crate::moves::Pin;
use crate::output::Output;
use crate::tid::Tid;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};
use upcall_ulp::{Block, Image, Ulp, UlpPin, UlpRange};

/// A message under way. The sender may still hold the block; the first holder that writes takes a
/// new one (UPVM).
#[derive(Clone, Debug)]
pub(crate) struct TaskMessage {
    pub(crate) source: i32,
    pub(crate) destination: i32,
    pub(crate) tag: i32,
    pub(crate) context: i32,
    pub(crate) encoding: i32,
    pub(crate) wait: i32,
    /// `None`: the message is empty.
    pub(crate) block: Option<Block>,
    pub(crate) length: usize,
}

/// The message that a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Want {
    /// The sender. -1: any.
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

/// Number of blocks in a task's own cache line. Most tasks have no more.
const FEW: usize = 8;

/// A task's blocks by handle. Handles start at 1.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct BlockTable {
    few: [Option<Block>; FEW],
    more: Vec<Option<Block>>,
    /// Free elements of `more`.
    free: Vec<u32>,
}

impl BlockTable {
    /// Adds a block and returns its handle.
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
        self.slots().flatten()
    }

    /// The block of each handle, from 1.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Option<&Block>> {
        self.few.iter().chain(&self.more).map(Option::as_ref)
    }

    /// The table with these blocks.
    pub(crate) fn of(slots: Vec<Option<Block>>) -> Self {
        let mut slots = slots.into_iter();
        let few = std::array::from_fn(|_| slots.next().flatten());
        let more = slots.collect::<Vec<_>>();
        let free = more.iter().enumerate().filter(|(_, slot)| slot.is_none());
        let free = free.map(|(at, _)| at as u32).collect();
        Self { few, more, free }
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
// With a tag of two bytes, the compiler would write a `Want` by stores that overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum TaskState {
    /// It exists, but is not in the run queue yet.
    Starts,
    /// It runs, or is in the run queue.
    Runs,
    /// It is in the run queue. If this message has not arrived when its turn comes, its poll fails.
    Polls(Want),
    /// It waits for a message. `Some`: until this time.
    Receives(Want, Option<Instant>),
    /// The same without a time limit. The contents may go to this memory of the task's, in place of
    /// a block ([`posted`](crate::node)).
    ReceivesInto(Want, UlpRange),
    /// It waits for the answer to this question.
    Asks(u64),
    /// It sleeps until this time. `None`: until a signal comes.
    Sleeps(Option<Instant>),
    /// It waits until a descriptor is ready, for events as in `poll(2)`. `Some`: until this time.
    Awaits(i32, u16, Option<Instant>),
    /// It is in a system call on a helper thread.
    Aside,
}

/// A task. The fields that each message needs come first, in as few cache lines as possible.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) ulp: Ulp,
    pub(crate) state: TaskState,
    /// Identifies its entry in the run queue. Entries with another number are stale.
    pub(crate) ticket: u32,
    /// Number of times that it was resumed, modulo 2^32.
    pub(crate) runs: u32,
    pub(crate) tid: Tid,
    /// Whether it has left the machine (`pvm_exit`) and only computes.
    pub(crate) left: bool,
    pub(crate) inbox: VecDeque<TaskMessage>,
    pub(crate) held: BlockTable,
    /// Readable while a message waits (`pvm_getfds`).
    pub(crate) descriptor: Option<OwnedFd>,
    /// The time of the next SIGALRM, and the period after that.
    pub(crate) alarm: Option<(Instant, Duration)>,
    /// Its own folder, if it has changed it.
    pub(crate) folder: Option<OwnedFd>,
    /// Its own umask, if it has changed it.
    pub(crate) umask: Option<u32>,
    /// The result of `pvm_parent`.
    pub(crate) parent: i32,
    pub(crate) siblings: Vec<Tid>,
    /// Its initial context.
    pub(crate) context: i32,
    pub(crate) program: PathBuf,
    pub(crate) image: Rc<Image>,
    /// Where its own output goes, and the output of tasks that it spawns.
    pub(crate) output: Output,
    pub(crate) child_output: Output,
    /// Options that the host only stores, by number: its own and its children's trace options, and
    /// whether a reset spares it.
    pub(crate) options: Vec<(i32, i32)>,
    /// Whether the task has asked to stay in its process (`upvm_pin`).
    pub(crate) is_pinned: bool,
}

/// The option of a task that a reset spares (`PvmNoReset`).
pub(crate) const NO_RESET: i32 = 25;

/// Returns `true` if a reset spares a task with these options.
pub(crate) fn is_spared(options: &[(i32, i32)]) -> bool {
    options.iter().any(|(which, value)| *which == NO_RESET && *value != 0)
}

impl Task {
    pub(crate) fn option(&self, which: i32) -> i32 {
        self.options.iter().find(|(one, _)| *one == which).map_or(0, |(_, value)| *value)
    }

    pub(crate) fn set_option(&mut self, which: i32, value: i32) {
        self.options.retain(|(one, _)| *one != which);
        self.options.push((which, value));
    }

    /// What keeps the task in its process, as far as that is known without its ULP's state.
    ///
    /// Makes no system call.
    pub(crate) fn pinned(&self) -> Option<Pin> {
        match self.state {
            _ if self.is_pinned => Some(Pin::Wish),
            TaskState::Starts => Some(Pin::Starts),
            TaskState::Aside => Some(Pin::Call),
            _ if self.descriptor.is_some() => Some(Pin::Descriptor),
            _ => self.ulp.belongings().as_ref().and_then(pin_of),
        }
    }
}

/// The reason why a task stays. `None`: it can leave after it has run on.
pub(crate) fn pin_of(pin: &UlpPin) -> Option<Pin> {
    Some(match pin {
        UlpPin::Ended => Pin::Ended,
        UlpPin::NeverRan | UlpPin::Inside | UlpPin::Asks => return None,
        UlpPin::Aside => Pin::Call,
        UlpPin::Children(_) => Pin::Children,
        UlpPin::Descriptors(_) | UlpPin::Waits(_) => Pin::Descriptor,
        UlpPin::Maps { .. } | UlpPin::Mappings(_) => Pin::Mapping,
        UlpPin::Program(_) => Pin::Program,
    })
}

const _: () = assert!(std::mem::offset_of!(Task, held) == 128);

#[cfg(test)]
mod tests {
    use super::*;

    /// All keys with small numbers, in the order of `tests/images/fits.c`.
    fn keys() -> impl Iterator<Item = [i32; 3]> {
        let each = -4..3;
        let pairs = each.clone().flat_map(move |one| each.clone().map(move |other| [one, other]));
        pairs.flat_map(|[one, other]| (-4..3).map(move |third| [one, other, third]))
    }

    #[test]
    fn the_host_finds_for_a_receive_what_the_library_would() {
        let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("fits");
        let mut compiler = std::process::Command::new("cc");
        compiler.arg("-I").arg(package.join("image")).arg("-o").arg(&program);
        compiler.arg(package.join("tests/images/fits.c"));
        assert!(compiler.status().unwrap().success(), "{compiler:?}");
        let printed = std::process::Command::new(&program).output().unwrap().stdout;
        let wanted = keys().flat_map(|wanted| keys().map(move |key| (wanted, key)));
        let found = wanted.map(|([from, tag, context], key)| {
            let message = TaskMessage {
                source: key[0],
                destination: 0,
                tag: key[1],
                context: key[2],
                encoding: 0,
                wait: 0,
                block: None,
                length: 0,
            };
            b'0' + u8::from(Want { from, tag, context }.fits(&message))
        });
        let found = found.collect::<Vec<_>>();
        assert!(found.len() == 7_usize.pow(6) && found == printed);
    }

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
