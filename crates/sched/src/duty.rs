//! The duty to probe a processor's lanes: the processor's own, or a substitute's.
//!
//! A caller notifies a server if the word of the channel's home processor is 1: that processor
//! sleeps. The word of a home processor that a handler blocks is 0, so callers would not notify.
//! After a stall was detected ([`stall`](crate::stall)), a *substitute*, another processor of the
//! server, takes the duty over until the handler returns. The substitute probes the lanes, and sets
//! the home processor's word while it sleeps itself. The home processor's doorbells wake it too.
//!
//! The clerk may take over for a processor that has just continued. Then both probe the lanes for a
//! moment. Each request is claimed by one of them. The home processor finds the substitute at its
//! next probe, or before it sleeps, and takes the duty back.
//!
//! # Why no wake is lost
//! A substitute changes the home processor's word, and the duty changes hands, only under the lock.
//! * While the substitute has the duty, the word is 1 only while the substitute sleeps or is about
//!   to. The substitute sets the word before its fence and its second probe ([`sleep`]).
//! * The home processor sets the word to 0 when it takes the duty back, and probes the lanes after
//!   that. A substitute that wakes later finds that the duty is gone, and leaves the word alone.
//! * The home processor may go to sleep before it finds the substitute, and its word may then be
//!   changed to 0. It does not stay asleep: the clerk changes the domain's generation after the
//!   takeover, and notifies. The home processor compares the generation after its fence, so it sees
//!   the change or receives the notification.
//!
//! # Steps without locked operations
//! The only processor of a server serves its lanes without locked operations ([`Duty::touch`]).
//! A spare ends that before the first takeover:
//! ```text
//!   the processor                              the spare, at its start
//!   1  count becomes odd                       a  alone = false
//!   2  light fence                             b  heavy fence (membarrier)
//!   3  alone? without locked operations        c  the count is even: take over
//!   4  count becomes even
//! ```
//! By the fences, either c finds an odd count, or 3 finds that the processor is not alone. A
//! processor with an odd count is not taken over.
//!
//! `tests/models/loom_duty.rs` is the model.

use crate::sleep;
use upcall_os::atomic::{AtomicU32, AtomicU64, KernelMutex, Ordering};

/// The duty of one processor; see the module. It has a cache line of its own, because each call
/// writes it.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Duty {
    steps: AtomicU32,
    /// The substitute's index plus one, or 0.
    substitute: AtomicU32,
    lock: KernelMutex<()>,
}

impl Duty {
    /// Returns `true` if a substitute has the duty. The processor then
    /// [takes it back](Self::take_back).
    #[inline]
    pub fn is_taken(&self) -> bool {
        self.substitute.load(Ordering::Relaxed) != 0
    }

    /// Runs `touch`, which may find that the processor is alone with a lane.
    #[inline(always)]
    pub fn touch<R>(&self, touch: impl FnOnce() -> R) -> R {
        let steps = self.steps.load(Ordering::Relaxed);
        self.steps.store(steps.wrapping_add(1), Ordering::Relaxed);
        sleep::no_fence();
        let result = touch();
        self.steps.store(steps.wrapping_add(2), Ordering::Release);
        result
    }

    /// Number of times that [`touch`](Self::touch) began or ended; odd while it runs.
    #[inline]
    pub fn steps(&self) -> u32 {
        self.steps.load(Ordering::Acquire)
    }

    /// Index of the substitute that has the duty.
    #[inline]
    pub fn substitute(&self) -> Option<usize> {
        self.substitute.load(Ordering::Acquire).checked_sub(1).map(|index| index as usize)
    }

    /// Gives the duty to the processor with index `by`, and marks the processor as awake in `word`.
    /// Called by the clerk, which wakes the substitute after that.
    ///
    /// `from` is the substitute that has the duty so far, if any. `give` runs under the lock; it
    /// returns `false` if it cannot connect the doorbells. Returns `true` if `by` has the duty now:
    /// not if `give` returned `false`, nor if `from` has lost the duty, nor if the processor is in
    /// [`touch`](Self::touch).
    pub fn take_over(
        &self,
        by: usize,
        from: Option<usize>,
        word: &AtomicU32,
        give: impl FnOnce() -> bool,
    ) -> bool {
        let _turn = self.lock.lock();
        if self.substitute() != from || !self.steps().is_multiple_of(2) || !give() {
            return false;
        }
        // The new substitute is awake, or woken next.
        sleep::retract(word);
        self.substitute.store(by as u32 + 1, Ordering::Release);
        true
    }

    /// Takes the duty back, and marks the processor as awake in `word`.
    ///
    /// `take` runs under the lock, with the substitute that had the duty. Returns `false` if no
    /// substitute had it.
    pub fn take_back(&self, word: &AtomicU32, take: impl FnOnce(usize)) -> bool {
        let _turn = self.lock.lock();
        let Some(substitute) = self.substitute() else { return false };
        self.substitute.store(0, Ordering::Release);
        sleep::retract(word);
        take(substitute);
        true
    }

    /// Announces in the processor's `word` that substitute `by` is about to sleep, and numbers that
    /// sleep. Runs `before` under the lock, if `by` has the duty. A fence and a second probe
    /// follow.
    pub fn announce(&self, by: usize, word: &AtomicU32, number: &AtomicU64, before: impl FnOnce()) {
        let _turn = self.lock.lock();
        if self.substitute() == Some(by) {
            before();
            sleep::announce_without_fence(word, number);
        }
    }

    /// Marks in the processor's `word` that substitute `by` is awake. Runs `after` under the lock,
    /// if `by` has the duty.
    pub fn retract(&self, by: usize, word: &AtomicU32, after: impl FnOnce()) {
        let _turn = self.lock.lock();
        if self.substitute() == Some(by) {
            sleep::retract(word);
            after();
        }
    }
}
