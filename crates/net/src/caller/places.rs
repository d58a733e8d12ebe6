//! Places among the calls of a connection that are under way.
//!
//! A server takes so many calls of one connection at once. Further callers wait in turn here.

use super::NetworkCaller;
use super::at_post::{CallWaiter, PostTicket};
use crate::frame::{FrameHeader, FrameKind};
use std::sync::Arc;
use std::time::Instant;
use upcall_sched::post::Post;
use upcall_sched::{NoReply, WaitLimit, block_unless};
use upcall_thread::Waited;

impl NetworkCaller {
    /// Returns `true` if a request waits for a place among the calls under way.
    pub(super) fn needs_place(&self, head: &FrameHeader) -> bool {
        head.kind == FrameKind::Call || self.server.counts_asks
    }

    /// Takes a place among the calls under way, or waits in turn for one.
    pub(super) fn take_place(&self, until: WaitLimit<'_>) -> Result<(), NoReply> {
        {
            let mut table = self.table();
            if table.closed.is_some() {
                return Err(table.why());
            }
            if table.try_take() {
                return Ok(());
            }
        }
        let mut taken = false;
        let waited = block_unless(until, |sleeper| {
            let mut table = self.table();
            taken = table.closed.is_none() && table.try_take();
            if taken || table.closed.is_some() {
                return Some(sleeper);
            }
            table.queue.push_back(CallWaiter::Sleeper(sleeper));
            None
        });
        let mut table = self.table();
        if table.closed.is_some() {
            return Err(table.why());
        }
        if !taken && waited == Waited::TimedOut {
            table.queue.retain(|waiter| !waiter.has_gone());
            return Err(NoReply::OutOfTime { sent: false });
        }
        Ok(())
    }

    /// Takes a place among the calls under way, or waits in turn for one.
    pub(super) fn take_place_at(
        &self,
        post: &Arc<Post>,
        ends: Option<Instant>,
        serve: &mut dyn FnMut(),
    ) -> Result<(), NoReply> {
        let ticket = PostTicket::new(post);
        {
            let mut table = self.table();
            if table.closed.is_some() {
                return Err(table.why());
            }
            if table.try_take() {
                return Ok(());
            }
            table.queue.push_back(CallWaiter::Post(ticket.clone()));
        }
        let has_place = ticket.wait(ends, serve);
        let mut table = self.table();
        if table.closed.is_some() {
            return Err(table.why());
        }
        if !has_place {
            table.queue.retain(|waiter| !waiter.has_gone());
            return Err(NoReply::OutOfTime { sent: false });
        }
        Ok(())
    }

    /// Gives the place of a call on, if it has one.
    pub(super) fn leave_place(&self, number: u32) {
        let is_placeless = self.table().placeless.remove(&number);
        if !is_placeless {
            self.give_place();
        }
    }

    /// Gives a place to the caller that has waited longest, or frees it.
    fn give_place(&self) {
        loop {
            let mut table = self.table();
            let Some(next) = table.queue.pop_front() else {
                table.taken -= 1;
                return;
            };
            drop(table);
            if next.wake() {
                return;
            }
        }
    }
}
