//! The limits of a caller's wait: a deadline, or a cancellation.
//!
//! Source: LRPC, section 5.3: a client whose call is held too long may abandon it, and goes on as
//! though the call had returned call-aborted. The server's thread goes on to the end, and its reply
//! is dropped when it comes.
//!
//! A cancellation ends a thread's wait as its deadline would (`Ticket::expire`), and only the first
//! of cancellation, deadline and reply has an effect. [`cancel_flag`](crate::cancel_flag) argues
//! why none is missed.

use crate::cancel_flag::CancelFlag;
use crate::sleep;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::futex::{self, FutexScope};
use upcall_shm::channel::LaneControl;
use upcall_shm::region::RegionView;
use upcall_thread::Ticket;

/// A token that cancels calls, once, from any thread. Clones are the same token.
///
/// A call that waits with the token returns as soon as the token is cancelled, as it would at its
/// deadline. A call that begins later returns at once. Two waits check the token only now and then,
/// at least every 10 ms: while memory is mapped for large values, and while many kernel threads
/// wait for a lane.
#[derive(Clone, Default)]
pub struct CancelToken {
    flag: Arc<CancelFlag<CancelWaiter>>,
    ask: Option<fn() -> bool>,
}

enum CancelWaiter {
    Thread(Ticket),
    /// A kernel thread that sleeps in its lane.
    Lane(RegionView<LaneControl>),
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelToken").field(&self.is_cancelled()).finish()
    }
}

impl CancelToken {
    /// Creates a token that cancels nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a token for kernel threads that signals interrupt.
    ///
    /// A thread that sleeps for a reply calls `ask` itself when its sleep has ended without a
    /// reply, as a signal's handler ends it, and twice a second without a signal. If `ask` returns
    /// `true`, that thread's call is abandoned, and no other.
    pub fn asking(ask: fn() -> bool) -> Self {
        Self { ask: Some(ask), ..Self::default() }
    }

    /// Returns `true` if the calling thread's call is to be abandoned; see [`CancelToken::asking`].
    pub fn asks(&self) -> bool {
        self.ask.is_some_and(|ask| ask())
    }

    /// Returns `true` if the token was made by [`CancelToken::asking`].
    pub fn is_asking(&self) -> bool {
        self.ask.is_some()
    }

    /// Cancels all calls that wait with the token, and all later ones. Never waits for them, nor
    /// for a server.
    pub fn cancel(&self) {
        self.flag.set().into_iter().for_each(CancelWaiter::end);
    }

    /// Returns `true` after [`CancelToken::cancel`].
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.flag.is_set()
    }

    /// Makes the token end a thread's wait; at once if it is cancelled already.
    pub(crate) fn enter(&self, ticket: Ticket) {
        let told = self.flag.enter(CancelWaiter::Thread(ticket), CancelWaiter::is_over);
        told.into_iter().for_each(CancelWaiter::end);
    }

    /// Makes the token wake the thread that sleeps in a lane, until the returned value is dropped.
    /// If the token is cancelled already, no thread is woken. The caller checks for that after
    /// this.
    pub(crate) fn enter_lane(&self, control: &RegionView<LaneControl>) -> CancelRegistration<'_> {
        drop(self.flag.enter(CancelWaiter::Lane(control.clone()), CancelWaiter::is_over));
        CancelRegistration { token: self, lane: std::ptr::from_ref(&**control) }
    }
}

impl CancelWaiter {
    fn end(self) {
        match self {
            Self::Thread(ticket) => drop(ticket.expire()),
            Self::Lane(control) => {
                sleep::retract(&control.sleeper);
                futex::wake(&control.sleeper, u32::MAX, FutexScope::Shared);
            }
        }
    }

    fn is_over(&self) -> bool {
        matches!(self, Self::Thread(ticket) if ticket.is_over())
    }
}

/// The registration of a kernel thread that the token would wake.
pub(crate) struct CancelRegistration<'a> {
    token: &'a CancelToken,
    lane: *const LaneControl,
}

impl Drop for CancelRegistration<'_> {
    fn drop(&mut self) {
        let lane = self.lane;
        self.token.flag.leave(
            |one| matches!(one, CancelWaiter::Lane(control) if std::ptr::eq(&**control, lane)),
        );
    }
}

/// The limit of a wait: a deadline, a token, or whichever comes first. Without both there is no
/// limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitLimit<'a> {
    /// The deadline.
    pub ends: Option<Instant>,
    /// The token that cancels the wait.
    pub cancel: Option<&'a CancelToken>,
}

impl WaitLimit<'_> {
    /// No limit.
    pub const FOR_EVER: Self = Self { ends: None, cancel: None };

    /// Adds a deadline, unless there is an earlier one.
    #[must_use]
    pub fn no_later_than(self, moment: Instant) -> Self {
        Self { ends: Some(self.ends.map_or(moment, |ends| ends.min(moment))), ..self }
    }

    /// Returns `true` if there is no limit.
    #[inline]
    pub fn is_for_ever(&self) -> bool {
        self.ends.is_none() && self.cancel.is_none()
    }

    /// Returns `true` if the limit is reached.
    #[inline]
    pub fn has_come(&self) -> bool {
        self.is_cancelled() || self.ends.is_some_and(|ends| Instant::now() >= ends)
    }

    /// Returns `true` if the token is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(CancelToken::is_cancelled)
    }

    /// Time that is left, at most `longest`.
    pub(crate) fn left(&self, longest: Duration) -> Duration {
        if self.is_cancelled() {
            return Duration::ZERO;
        }
        self.ends
            .map_or(longest, |ends| ends.saturating_duration_since(Instant::now()).min(longest))
    }
}

impl From<Option<Instant>> for WaitLimit<'_> {
    fn from(ends: Option<Instant>) -> Self {
        Self { ends, cancel: None }
    }
}
