//! Handles the questions that tasks ask through the gate.

use super::{EINTR, HAND_OFFS, NextTask, Node, outside};
use crate::error;
use crate::ops;
use crate::task::{Task, TaskState, Want};
use crate::wire::Packet;
use std::time::{Duration, Instant};
use upcall_ulp::{
    ASK_ASIDE, ASK_FOLDER, ASK_READY, ASK_SLEEP, ASK_TIMER, ASK_UMASK, ASK_YIELD, Block, UlpRequest,
};

/// `microseconds` of a receive that is answered at once, without running another task.
const AT_ONCE: i64 = -2;

impl Node {
    #[expect(clippy::too_many_lines, reason = "one arm for each question")]
    pub(super) fn asked(&mut self, index: u32, asked: UlpRequest) -> NextTask {
        let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return NextTask::Any;
        };
        let [first, second, third, fourth] = asked.args;
        match asked.what {
            // One arm, so that there is only one copy of the code.
            ops::ASK_RECEIVE | ops::ASK_RECEIVE_INTO => {
                let is_plain = asked.what == ops::ASK_RECEIVE;
                let (tag, context, microseconds) = if is_plain {
                    (second as i32, third as i32, fourth as i64)
                } else {
                    ((first >> 32) as i32, second as i32, -1)
                };
                let want = Want { from: first as i32, tag, context };
                let next = self.receive(index, want, microseconds);
                if !is_plain {
                    self.post(index, want, third, fourth as usize);
                }
                next
            }
            ops::ASK_SEND_FROM => self.send_from(index, asked.args),
            ops::ASK_BLOCK => {
                match Block::new(first as usize) {
                    Some(block) => answer_block(task, block),
                    None => task.ulp.answer(error::NO_MEM.into()),
                }
                self.keep_arena_free();
                NextTask::Same
            }
            ops::ASK_SHARE => {
                match task.held.get(first as u32).cloned() {
                    Some(block) => answer_block(task, block),
                    None => task.ulp.answer(error::NO_SUCH_BUF.into()),
                }
                NextTask::Same
            }
            ops::ASK_SYSTEM => {
                let bytes = task
                    .held
                    .get(second as u32)
                    .and_then(|block| block.read(third as usize))
                    .unwrap_or_default();
                self.system(index, first, &bytes)
            }
            ops::ASK_SHORT => self.short(index, first, [second, third, fourth]),
            ops::ASK_FLUSH => {
                task.ulp.answer(0);
                NextTask::Same
            }
            // A pending signal ends a wait before it begins.
            ASK_SLEEP | ASK_READY if task.ulp.is_signalled() => {
                task.ulp.answer(-EINTR);
                NextTask::Same
            }
            ASK_SLEEP => {
                let until = outside::after(first as i64);
                task.state = TaskState::Sleeps(until);
                until.into_iter().for_each(|until| self.at(until, index));
                NextTask::Any
            }
            ASK_READY => {
                let until = outside::after(third as i64);
                task.state = TaskState::Awaits(first as i32, second as u16, until);
                until.into_iter().for_each(|until| self.at(until, index));
                self.awaiting.push(index);
                NextTask::Any
            }
            ASK_ASIDE => self.call_aside(index, first),
            ASK_TIMER => {
                self.set_alarm(index, first, second, third != 0);
                NextTask::Same
            }
            ASK_FOLDER => {
                self.own_folder(index, first as i32);
                NextTask::Same
            }
            ASK_UMASK => {
                self.own_umask(index, first as u32);
                NextTask::Same
            }
            ASK_YIELD => {
                task.ulp.answer(0);
                self.enqueue(index);
                NextTask::Any
            }
            _ => {
                task.ulp.answer(error::NOT_IMPL.into());
                NextTask::Same
            }
        }
    }

    /// Answers a receive with a message that has arrived, or makes the task wait for one.
    #[inline(always)]
    fn receive(&mut self, index: u32, want: Want, microseconds: i64) -> NextTask {
        let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return NextTask::Any;
        };
        if !task.inbox.is_empty()
            && let Some(at) = task.inbox.iter().position(|message| want.fits(message))
            && let Some(message) = task.inbox.remove(at)
        {
            if let Some(descriptor) = task.descriptor.as_ref().filter(|_| task.inbox.is_empty()) {
                outside::silence(descriptor);
            }
            super::give(task, message);
            return NextTask::Same;
        }
        let until = match microseconds {
            AT_ONCE => {
                task.ulp.answer(0);
                return NextTask::Same;
            }
            0 => {
                task.state = TaskState::Polls(want);
                self.enqueue(index);
                return NextTask::Any;
            }
            // A pending signal ends a wait before it begins.
            _ if task.ulp.handles() => {
                interrupt_receive(task, microseconds);
                return NextTask::Same;
            }
            ..0 => None,
            _ => Some(Instant::now() + Duration::from_micros(microseconds as u64)),
        };
        task.state = TaskState::Receives(want, until);
        if let Some(until) = until {
            self.at(until, index);
        }
        // Hands off to the task that is to send the message, if it can run.
        if let Some(source) = self.places.seat(want.from).filter(|_| self.hand_offs < HAND_OFFS)
            && let Some(other) = self.tasks.get(source as usize).and_then(Option::as_deref)
            && matches!(other.state, TaskState::Runs)
        {
            self.hand_offs += 1;
            return NextTask::This(source);
        }
        NextTask::Any
    }
}

/// Interrupts a receive so that signal handlers can run. The library then receives again, within
/// `microseconds` (below 0: no limit).
pub(super) fn interrupt_receive(task: &mut Task, microseconds: i64) {
    task.ulp.answer_with(ops::INTERRUPTED, [microseconds as u64, 0, 0, 0, 0, 0, 0, 0]);
}

/// Makes the task a holder of the block, and answers with the block's handle and address.
fn answer_block(task: &mut Task, block: Block) {
    let mut words = [0; 8];
    (words[1], words[3]) = (block.address(), block.capacity() as u64);
    let handle = task.held.keep(block);
    words[0] = handle.into();
    task.ulp.answer_with(handle.into(), words);
}

/// Answers with a code and a service's packet.
pub(super) fn answer_packet(task: &mut Task, code: i32, packet: &Packet) {
    let bytes = packet.as_bytes();
    let mut words = [0; 8];
    if !bytes.is_empty() {
        let Some(block) = Block::of(bytes) else {
            return task.ulp.answer_with(error::NO_MEM.into(), words);
        };
        (words[1], words[2], words[3]) =
            (block.address(), bytes.len() as u64, block.capacity() as u64);
        words[0] = task.held.keep(block).into();
    }
    task.ulp.answer_with(code.into(), words);
}
