//! Calls by a kernel thread that also serves others: it waits where they wake it.

use super::{CallState, NetworkCaller};
use crate::caller::LateFrame;
use crate::frame::{Frame, FrameBody, FrameHeader};
use std::sync::Arc;
use std::time::Instant;
use upcall_os::atomic::{AtomicU8, Ordering};
use upcall_sched::post::Post;
use upcall_sched::{NoReply, Pacing, Sleeper, WaitLimit};

/// The states of a [`PostTicket`].
const WAITS: u8 = 0;
const WOKEN: u8 = 1;
const GONE: u8 = 2;

/// A thread that waits, for a reply or for a place among the calls under way.
pub(super) enum CallWaiter {
    /// It waits for nothing else.
    Sleeper(Sleeper),
    /// It waits at a post, where others wake it as well.
    Post(Arc<PostTicket>),
}

impl CallWaiter {
    /// Wakes the thread. Returns `false` if it waits no longer.
    pub(super) fn wake(self) -> bool {
        match self {
            Self::Sleeper(sleeper) => sleeper.wake(),
            Self::Post(ticket) => ticket.wake(),
        }
    }

    /// Returns `true` if the thread has given up its wait.
    pub(super) fn has_gone(&self) -> bool {
        match self {
            Self::Sleeper(sleeper) => sleeper.has_gone(),
            Self::Post(ticket) => ticket.state.load(Ordering::Acquire) == GONE,
        }
    }
}

/// One wait at a post.
pub(super) struct PostTicket {
    post: Arc<Post>,
    state: AtomicU8,
}

impl PostTicket {
    pub(super) fn new(post: &Arc<Post>) -> Arc<Self> {
        Arc::new(Self { post: post.clone(), state: AtomicU8::new(WAITS) })
    }

    fn ends_as(&self, state: u8) -> bool {
        let (set, otherwise) = (Ordering::AcqRel, Ordering::Acquire);
        self.state.compare_exchange(WAITS, state, set, otherwise).is_ok()
    }

    fn wake(&self) -> bool {
        let first = self.ends_as(WOKEN);
        if first {
            self.post.rouse();
        }
        first
    }

    /// Waits, and serves others during the wait. Returns `false` if the time was up first.
    pub(super) fn wait(&self, ends: Option<Instant>, serve: &mut dyn FnMut()) -> bool {
        let is_woken = || self.state.load(Ordering::Acquire) == WOKEN;
        let left = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
        let look = || {
            is_woken() || {
                serve();
                is_woken()
            }
        };
        self.post.wait(Pacing::Adaptive, left, look) || !self.ends_as(GONE)
    }
}

impl NetworkCaller {
    /// Like [`call`](Self::call), by a kernel thread that waits at its post, and that calls `serve`
    /// again and again during the wait.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    ///
    /// # Blocking
    /// Blocks the kernel thread.
    pub fn call_at_post(
        &self,
        mut head: FrameHeader,
        body: FrameBody,
        ends: Option<Instant>,
        late: &mut dyn FnMut() -> LateFrame,
        (post, serve): (&Arc<Post>, &mut dyn FnMut()),
    ) -> Result<Frame, NoReply> {
        if WaitLimit::from(ends).has_come() {
            return Err(NoReply::OutOfTime { sent: false });
        }
        if self.needs_place(&head) {
            self.take_place_at(post, ends, serve)?;
        }
        head.call = self.send(head, body, ends)?;
        let ticket = PostTicket::new(post);
        let before = {
            let mut table = self.table();
            let call = table.calls.get_mut(&head.call);
            // Otherwise the reply has arrived, or never will.
            call.filter(|call| matches!(call, CallState::Sent)).map(|call| {
                std::mem::replace(call, CallState::Waits(CallWaiter::Post(ticket.clone())))
            })
        };
        if before.is_some() {
            ticket.wait(ends, serve);
        }
        self.take_reply(head, late)
    }
}
