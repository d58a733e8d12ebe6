//! The seats of a process's tasks: indices into its list of them.

use super::Node;
use crate::ops::OUTPUT_NEW;
use crate::output::OutputTarget;
use crate::task::Task;
use crate::tid::{HOST, Tid};
use crate::unsent::MachineMessage;
use crate::wire::Packet;
use upcall_ulp::slot::SLOTS;

/// The seat of the node's own timers. No task has it.
pub(super) const NOBODY: u32 = 0;
/// Number of seats. They are more than the slots of addresses, so that one is always free.
const SEATS: u32 = 1 << 18;
const _: () = assert!(SEATS as usize > SLOTS);

impl Node {
    /// Finds a free seat. Seats are assigned round robin, because the queue, timers and calls on
    /// the helper thread may still have the seat of a task that has ended.
    fn free_seat(&mut self) -> usize {
        loop {
            let seat = self.next;
            self.next = if seat >= SEATS { 1 } else { seat + 1 };
            if self.tasks.len() <= seat as usize {
                self.tasks.resize_with(seat as usize + 1, || None);
            }
            if self.tasks[seat as usize].is_none() {
                return seat as usize;
            }
        }
    }

    /// Adds a task that is ready, and that any process may have named. It runs when it is put into
    /// the queue.
    pub(super) fn begin(&mut self, task: Task) {
        if let OutputTarget::Task(to) = task.output.to {
            let (tag, context) = (task.output.tag, task.output.context);
            let data = Packet::default().int(task.tid.number()).int(OUTPUT_NEW as i32);
            self.message(MachineMessage { source: HOST, to, tag, context, data });
        }
        let tid = task.tid;
        let seat = self.sit(Box::new(task));
        self.places.arrived(tid, seat);
    }

    /// Gives a task a seat.
    pub(super) fn sit(&mut self, task: Box<Task>) -> u32 {
        let seat = self.free_seat();
        self.measure_from_now(&task);
        self.tasks[seat] = Some(task);
        self.live += 1;
        seat as u32
    }

    /// The seat of the task with this number. `None`: this process has no such task.
    pub(super) fn seat(&self, number: i32) -> Option<u32> {
        let held = || self.moving.seat(Tid::of(number)?);
        let seat = self.places.seat(number).or_else(held)?;
        let task = self.tasks.get(seat as usize)?.as_deref()?;
        (task.tid.number() == number).then_some(seat)
    }
}
