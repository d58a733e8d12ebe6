//! Keeps interrupts off a thread, and makes up for those that arrived while they were off.
//!
//! Source: UDM, section 3.1 (D4 and D5 here), where hardware has a bit that keeps interrupts off,
//! and a bit that reports that there is work once they are let in again. Here an interrupt is a
//! signal, whose handler is a function that runs on the thread, in the middle of other code. Two
//! things keep interrupts off, and both are counted: *operations*, which touch the same data as the
//! handler, and *sections*, which belong to the program. An interrupt that arrives during one of
//! them leaves a note, and the end of the last of them *serves*: it does the work of the interrupt.
//!
//! All of it happens on one kernel thread and in handlers of its signals. So only the compiler has
//! to be kept from reordering.
//!
//! # Why no wake is lost
//! The thread is announced as if it slept; the argument why senders notify is that of
//! [`sleep`](crate::sleep). The clerk receives the notification and then sends the signal. To serve
//! is to take the messages, to announce the thread again, and to probe again
//! ([`serve`](Mask::serve)). So a message that is sent later causes a new notification. It remains
//! to show that each signal is followed by a serving that begins after it.
//!
//! The signal's handler serves, or it finds an operation or a section. In an operation it notes
//! that it *came*. The end of the operation checks for that note after it has let interrupts in
//! again: a signal before the check has left the note, and a signal after it serves by itself. In a
//! section the handler also notes that work was *deferred*. The end of the section checks for that
//! in the same way, and then ends an operation. An operation that ends in a section defers, too.
//!
//! A thread that sleeps in an operation wakes unannounced. So the end of the operation also serves
//! if no interrupt came but the thread is not announced.
//!
//! `tests/models/loom_mask.rs` is the model: there a signal may come before each access to these
//! words.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst, compiler_fence};

/// A hook before each access to a mask: nothing, or the step of a model checker.
pub trait Between: Sized {
    /// Called before each access.
    fn access(mask: &Mask<Self>);
}

impl Between for () {
    #[inline(always)]
    fn access(_: &Mask) {}
}

/// The state that keeps interrupts off one kernel thread; see the module.
///
/// It belongs to that thread and to the handlers of its signals.
#[derive(Debug, Default)]
pub struct Mask<B: Between = ()> {
    on: AtomicU32,
    /// Number of operations under way, counted while interrupts are on.
    busy: AtomicU32,
    /// Set if an interrupt came during an operation or a section.
    came: AtomicU32,
    /// Number of sections under way.
    sections: AtomicU32,
    /// Set if a section has kept work from being done.
    deferred: AtomicU32,
    between: B,
}

impl<B: Between> Mask<B> {
    /// Creates a mask with `between` as its hook.
    pub const fn new(between: B) -> Self {
        Self {
            on: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            came: AtomicU32::new(0),
            sections: AtomicU32::new(0),
            deferred: AtomicU32::new(0),
            between,
        }
    }

    /// The hook before each access.
    pub fn between(&self) -> &B {
        &self.between
    }

    #[inline(always)]
    fn get(&self, word: &AtomicU32) -> u32 {
        B::access(self);
        word.load(Relaxed)
    }

    #[inline(always)]
    fn set(&self, word: &AtomicU32, to: u32) {
        B::access(self);
        word.store(to, Relaxed);
    }

    /// Returns `true` if interrupts are on.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.get(&self.on) != 0
    }

    /// Returns `true` if an operation is under way.
    pub fn is_busy(&self) -> bool {
        self.get(&self.busy) != 0
    }

    /// Turns interrupts on, and begins an operation, whose [end](Self::end_operation) announces the
    /// thread.
    pub fn begin(&self) {
        self.set(&self.busy, self.get(&self.busy) + 1);
        compiler_fence(SeqCst);
        self.set(&self.on, 1);
        compiler_fence(SeqCst);
    }

    /// Turns interrupts off.
    pub fn end(&self) {
        self.set(&self.on, 0);
        compiler_fence(SeqCst);
        self.set(&self.came, 0);
    }

    /// Counts an operation if interrupts are on. Returns `true` if the caller has to
    /// [end](Self::end_operation) it.
    #[inline]
    pub fn begin_operation(&self) -> bool {
        if !self.is_on() {
            return false;
        }
        self.set(&self.busy, self.get(&self.busy) + 1);
        compiler_fence(SeqCst);
        true
    }

    /// Ends an operation. Serves if an interrupt was kept off, or if the thread is no longer
    /// announced. `serve` has to call at least [`heed`](Self::heed).
    #[cold]
    pub fn end_operation(&self, is_announced: impl Fn() -> bool, serve: impl Fn()) {
        loop {
            let others = self.get(&self.busy) - 1;
            let in_section = self.sections() > 0;
            let last = others == 0 && !in_section && self.is_on();
            if in_section {
                // The end of the section ends the last operation.
                self.defer();
            }
            // Lets interrupts in even if `serve` panics.
            let ends = MaskGuard(self, others);
            // A thread that slept in the operation is no longer announced.
            if last && (self.has_come() || !is_announced()) {
                serve();
            }
            drop(ends);
            if !last || !self.has_come() {
                return;
            }
            self.set(&self.busy, 1);
        }
    }

    /// Handles an interrupt: serves, or leaves a note for the operation or section under way.
    pub fn interrupt(&self, serve: impl FnOnce()) {
        if self.is_busy() || self.sections() > 0 || !self.is_on() {
            return self.keep_off();
        }
        self.set(&self.busy, 1);
        compiler_fence(SeqCst);
        serve();
        compiler_fence(SeqCst);
        self.set(&self.busy, 0);
    }

    /// Leaves a note that an interrupt came but could not be served.
    pub fn keep_off(&self) {
        self.note();
        if self.sections() > 0 {
            self.defer();
        }
    }

    /// Makes the end of the operation under way serve.
    pub fn note(&self) {
        self.set(&self.came, 1);
    }

    fn has_come(&self) -> bool {
        self.get(&self.came) != 0
    }

    /// Clears the note that an interrupt came. The caller takes the messages and announces the
    /// thread again after this.
    pub fn heed(&self) {
        self.set(&self.came, 0);
    }

    /// Takes the messages, announces the thread again, and repeats that while there is `more`.
    pub fn serve(&self, take: impl Fn(), announce: impl Fn(), more: impl Fn() -> bool) {
        loop {
            self.heed();
            take();
            announce();
            if !more() {
                return;
            }
        }
    }

    /// Number of sections under way.
    #[inline]
    pub fn sections(&self) -> u32 {
        self.get(&self.sections)
    }

    /// Begins a section.
    #[inline]
    pub fn begin_section(&self) {
        self.set(&self.sections, self.sections() + 1);
        compiler_fence(SeqCst);
    }

    /// Ends a section. Returns `true` if it was the last one and work was deferred: the caller then
    /// calls [`make_good`](Self::make_good), and begins and ends an operation.
    #[inline]
    #[must_use]
    pub fn end_section(&self) -> bool {
        let left = self.sections() - 1;
        // The writes of the section come before its end.
        compiler_fence(SeqCst);
        self.set(&self.sections, left);
        compiler_fence(SeqCst);
        left == 0 && self.get(&self.deferred) != 0
    }

    /// Notes that there is work for the end of the section.
    pub fn defer(&self) {
        self.set(&self.deferred, 1);
    }

    /// Clears the note of [`defer`](Self::defer): the work is about to be done.
    pub fn make_good(&self) {
        self.set(&self.deferred, 0);
    }
}

/// Lets interrupts in again, if the operation was the last one.
struct MaskGuard<'a, B: Between>(&'a Mask<B>, u32);

impl<B: Between> Drop for MaskGuard<'_, B> {
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        self.0.set(&self.0.busy, self.1);
        compiler_fence(SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn an_operation_outlives_the_interrupts_that_it_was_counted_for() {
        let (mask, served) = (Mask::<()>::default(), Cell::new(0));
        let serve = || {
            mask.heed();
            served.set(served.get() + 1);
        };
        let end = || mask.end_operation(|| true, serve);
        mask.begin();
        end();
        assert!(mask.begin_operation());
        // Interrupts are off for a while in the middle of it.
        mask.end();
        assert!(!mask.begin_operation());
        mask.begin();
        end();
        mask.interrupt(serve);
        assert_eq!((served.get(), mask.is_busy()), (0, true));
        end();
        assert_eq!((served.get(), mask.is_busy()), (1, false));
        mask.interrupt(serve);
        assert_eq!(served.get(), 2);
    }

    #[test]
    fn one_that_panics_at_its_end_has_ended() {
        let mask = Mask::<()>::default();
        mask.begin();
        let end = || mask.end_operation(|| false, || panic!("the test makes this panic"));
        assert!(catch_unwind(AssertUnwindSafe(end)).is_err() && !mask.is_busy());
    }
}
