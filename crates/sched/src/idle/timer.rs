//! A virtual processor's own timer, for the stacks of idle workers and for
//! [stall checks](super::stalls).

use std::time::{Duration, Instant};
use upcall_os::poll::{PollSet, Report};
use upcall_os::timer::Timer;

/// The timer's key in the wake set.
pub(crate) const OWN_TIMER: u64 = 3;

/// The timer; see the module.
#[derive(Default)]
pub(super) enum OwnTimer {
    /// There was no descriptor for it: the processor wakes up for other reasons only.
    #[default]
    None,
    /// It is not in the wake set.
    Made(Timer),
    /// It is in the wake set. It was last set for this time to give back stacks.
    InSet(Timer, Option<Instant>),
}

impl OwnTimer {
    pub(super) fn new() -> Self {
        Timer::new().map_or(Self::None, Self::Made)
    }

    /// The time for which it was last set to give back stacks.
    pub(super) fn cools_at(&self) -> Option<Instant> {
        match self {
            Self::InSet(_, cools_at) => *cools_at,
            Self::None | Self::Made(_) => None,
        }
    }

    /// Makes the timer expire after `pause`, for stacks that cool at that time, or for another
    /// reason. Returns `false` if there is no timer.
    pub(super) fn set(
        &mut self,
        pause: Duration,
        cools_at: Option<Instant>,
        set: &PollSet,
    ) -> bool {
        if let Self::Made(timer) = self
            && set.add(&*timer, OWN_TIMER, Report::EachRing).is_ok()
            && let Self::Made(timer) = std::mem::take(self)
        {
            *self = Self::InSet(timer, None);
        }
        let Self::InSet(timer, at) = self else { return false };
        *at = cools_at;
        timer.set(pause);
        true
    }
}
