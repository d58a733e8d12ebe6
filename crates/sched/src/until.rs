//! Until when a caller waits: a moment, or somebody's word.
//!
//! Source: LRPC, section 5.3: a client whose call is held too long may abandon it, and goes on as
//! though the call had returned call-aborted. The server's thread goes on to the end, and its reply
//! is dropped when it comes.
//!
//! What the word does to a waiting thread is what its deadline would do (`Ticket::expire`), and
//! only the first of word, deadline and reply does anything. Why none is missed:
//! [`word`](crate::word).

use crate::sleep;
use crate::word::CancelFlag;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::futex::{self, FutexScope};
use upcall_shm::channel::LaneControl;
use upcall_shm::region::RegionView;
use upcall_thread::Ticket;

/// A word that gives calls up, to be said once, from any thread. Clones are the same word.
///
/// A call that was told of it returns as soon as the word is given, as one does at its deadline;
/// one that begins later returns at once. One that is having memory mapped for large values, and
/// one that waits for a lane among many kernel threads, looks for the word now and then: every 10
/// ms at least.
#[derive(Clone, Default)]
pub struct CancelToken {
    word: Arc<CancelFlag<CancelWaiter>>,
    ask: Option<fn() -> bool>,
}

enum CancelWaiter {
    Thread(Ticket),
    /// A kernel thread that sleeps in its lane.
    Lane(RegionView<LaneControl>),
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelToken").field(&self.is_given()).finish()
    }
}

impl CancelToken {
    /// One that has not been said.
    pub fn new() -> Self {
        Self::default()
    }

    /// One for kernel threads that signals shall interrupt: a thread that sleeps for a reply asks
    /// `ask`, itself, when its sleep has ended without one, as a signal's handler ends it; twice a
    /// second also without that. If the answer is yes, that call is given up, and no other.
    pub fn asking(ask: fn() -> bool) -> Self {
        Self { ask: Some(ask), ..Self::default() }
    }

    /// Whether the calling thread's call is to be given up: see [`CancelToken::asking`].
    pub fn asks(&self) -> bool {
        self.ask.is_some_and(|ask| ask())
    }

    /// Whether it was made by [`CancelToken::asking`].
    pub fn is_asking(&self) -> bool {
        self.ask.is_some()
    }

    /// Gives up all calls that were told of it. Never waits for them, nor for a server.
    pub fn abandon(&self) {
        self.word.give().into_iter().for_each(CancelWaiter::end);
    }

    /// Whether it has been said.
    #[inline]
    pub fn is_given(&self) -> bool {
        self.word.is_given()
    }

    /// Has a thread's wait end with the word; at once if that has been given.
    pub(crate) fn enter(&self, ticket: Ticket) {
        let told = self.word.enter(CancelWaiter::Thread(ticket), CancelWaiter::is_over);
        told.into_iter().for_each(CancelWaiter::end);
    }

    /// Has who sleeps in a lane woken by the word, until what is returned is dropped. If it has
    /// been given, nobody is woken: who asks afterwards is told.
    pub(crate) fn enter_lane(&self, control: &RegionView<LaneControl>) -> CancelRegistration<'_> {
        drop(self.word.enter(CancelWaiter::Lane(control.clone()), CancelWaiter::is_over));
        CancelRegistration { word: self, lane: std::ptr::from_ref(&**control) }
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

/// A kernel thread that the word would wake.
pub(crate) struct CancelRegistration<'a> {
    word: &'a CancelToken,
    lane: *const LaneControl,
}

impl Drop for CancelRegistration<'_> {
    fn drop(&mut self) {
        let lane = self.lane;
        self.word.word.leave(
            |one| matches!(one, CancelWaiter::Lane(control) if std::ptr::eq(&**control, lane)),
        );
    }
}

/// Until when somebody waits: a moment, a word, whichever comes first. Neither: as long as it
/// takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitLimit<'a> {
    /// The moment.
    pub ends: Option<Instant>,
    /// The word.
    pub abandon: Option<&'a CancelToken>,
}

impl WaitLimit<'_> {
    /// As long as it takes.
    pub const FOR_EVER: Self = Self { ends: None, abandon: None };

    /// The same, or until this moment.
    #[must_use]
    pub fn no_later_than(self, moment: Instant) -> Self {
        Self { ends: Some(self.ends.map_or(moment, |ends| ends.min(moment))), ..self }
    }

    /// Whether it is as long as it takes.
    #[inline]
    pub fn is_for_ever(&self) -> bool {
        self.ends.is_none() && self.abandon.is_none()
    }

    /// Whether it has come.
    #[inline]
    pub fn has_come(&self) -> bool {
        self.is_abandoned() || self.ends.is_some_and(|ends| Instant::now() >= ends)
    }

    /// Whether the word was given.
    pub fn is_abandoned(&self) -> bool {
        self.abandon.is_some_and(CancelToken::is_given)
    }

    /// How long that is from now, and `longest` at most.
    pub(crate) fn left(&self, longest: Duration) -> Duration {
        if self.is_abandoned() {
            return Duration::ZERO;
        }
        self.ends
            .map_or(longest, |ends| ends.saturating_duration_since(Instant::now()).min(longest))
    }
}

impl From<Option<Instant>> for WaitLimit<'_> {
    fn from(ends: Option<Instant>) -> Self {
        Self { ends, abandon: None }
    }
}
