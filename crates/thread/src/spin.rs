//! An idle policy without outside work: [`SpinThenPark`].

use crate::idle::{Found, Idle};
use crate::parker::Parker;
use crate::sync::Apart;
use crate::vp::Vp;
use std::time::Instant;

/// An [`Idle`] without calls: spins for a bounded time, then parks on a futex.
///
/// An idle process uses no processor time.
#[derive(Debug)]
pub struct SpinThenPark {
    parkers: Vec<Apart<Parker>>,
    spins: u32,
}

impl SpinThenPark {
    /// Creates the policy for `processors` virtual processors.
    ///
    /// It spins for about 5 µs, a tenth of the price of a wake on another processor.
    pub fn new(processors: usize) -> Self {
        Self::with_spins(processors, 100)
    }

    /// As [`new`](Self::new), with `spins` polls (some 50 ns each) before it parks.
    pub fn with_spins(processors: usize, spins: u32) -> Self {
        Self { parkers: (0..processors).map(|_| Apart::default()).collect(), spins }
    }
}

impl Idle for SpinThenPark {
    #[inline]
    fn poll(&self, _: &Vp) -> Found {
        Found::Nothing
    }

    fn work(&self, _: &Vp) {}

    fn rest(&self, vp: &Vp, round: u32, deadline: Option<Instant>) {
        if round <= self.spins {
            std::hint::spin_loop();
        } else {
            self.parkers[vp.index()]
                .park(deadline.into_iter().chain(vp.cools_at()).min(), || vp.has_work());
        }
    }

    fn unpark(&self, vp: usize) {
        self.parkers[vp].unpark();
    }
}
