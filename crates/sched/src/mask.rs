//! What keeps interrupts off a thread, and what makes up for those that came meanwhile.
//!
//! Source: UDM, section 3.1 (D4 and D5 here), where hardware has a bit that keeps interrupts off,
//! and one that says that there is something to do once they are not. Here an interrupt is a
//! signal, whose handler is a function that runs on the thread, in the middle of whatever it does.
//! What that is to keep off is counted: *operations*, which touch what the handler would touch, and
//! *sections*, which are the program's. An interrupt that finds one of them leaves a note, and who
//! ends the last of them does what the interrupt would have done: it *serves*.
//!
//! All of it is on one kernel thread and in handlers of its signals, so what must be kept in order
//! is the compiler only.
//!
//! # Why no wake is lost
//! The thread is announced as one who sleeps; the argument why senders ring is that of
//! [`sleep`](crate::sleep), and who hears them sends the signal after the ring. To serve is to take
//! what is there, to announce anew, and to look again ([`serve`](Mask::serve)): so whatever is
//! launched later rings anew. It remains that each signal is followed by a serving that begins
//! after it. Its handler serves; or it finds an operation or a section. In an operation it notes
//! that it *came*, which the end of the operation looks for after it has let interrupts in again: a
//! signal before that look has left the note, and one after it serves by itself. In a section it
//! notes besides that something was *deferred*, and the end of the section looks for that in the
//! same way, and then ends an operation. An operation that ends in a section defers, too.
//!
//! Who sleeps in an operation wakes unannounced. So the end of the operation serves also where
//! nothing came and the thread is not announced.
//!
//! `tests/models/loom_mask.rs` is the model: there a signal may come before each access to these
//! words.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst, compiler_fence};

/// What happens before each access to a mask: nothing, or whatever a checker has there.
pub trait Between: Sized {
    /// An access follows.
    fn access(mask: &Mask<Self>);
}

impl Between for () {
    #[inline(always)]
    fn access(_: &Mask) {}
}

/// See the module. Belongs to one kernel thread, and to the handlers of its signals.
#[derive(Debug, Default)]
pub struct Mask<B: Between = ()> {
    on: AtomicU32,
    /// Operations under way, counted while interrupts are on.
    busy: AtomicU32,
    /// An interrupt came meanwhile.
    came: AtomicU32,
    /// Sections under way.
    sections: AtomicU32,
    /// A section has kept something from being done.
    deferred: AtomicU32,
    between: B,
}

impl<B: Between> Mask<B> {
    /// With something between its accesses.
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

    /// What is between its accesses.
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

    /// Whether interrupts are on.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.get(&self.on) != 0
    }

    /// Whether an operation is under way.
    pub fn is_busy(&self) -> bool {
        self.get(&self.busy) != 0
    }

    /// Interrupts are on from now on, and an operation is under way, whose
    /// [end](Self::end_operation) announces the thread.
    pub fn begin(&self) {
        self.set(&self.busy, self.get(&self.busy) + 1);
        compiler_fence(SeqCst);
        self.set(&self.on, 1);
        compiler_fence(SeqCst);
    }

    /// They are off from now on.
    pub fn end(&self) {
        self.set(&self.on, 0);
        compiler_fence(SeqCst);
        self.set(&self.came, 0);
    }

    /// Counts an operation, if it could be interrupted. Whether it is to be
    /// [ended](Self::end_operation).
    #[inline]
    pub fn begin_operation(&self) -> bool {
        if !self.is_on() {
            return false;
        }
        self.set(&self.busy, self.get(&self.busy) + 1);
        compiler_fence(SeqCst);
        true
    }

    /// The end of an operation: serves, if an interrupt was kept off, or if the thread is not
    /// announced any more. To serve is to [heed](Self::heed) what came, at least.
    #[cold]
    pub fn end_operation(&self, is_announced: impl Fn() -> bool, serve: impl Fn()) {
        loop {
            let others = self.get(&self.busy) - 1;
            let in_section = self.sections() > 0;
            let last = others == 0 && !in_section && self.is_on();
            if in_section {
                // Its end is the end of the last operation.
                self.defer();
            }
            // Also if it panics.
            let ends = MaskGuard(self, others);
            // A wait ends awake.
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

    /// An interrupt: serves, or leaves a note to who will.
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

    /// Leaves a note that an interrupt came while it could do nothing.
    pub fn keep_off(&self) {
        self.note();
        if self.sections() > 0 {
            self.defer();
        }
    }

    /// The end of the operation under way does what an interrupt would have done.
    pub fn note(&self) {
        self.set(&self.came, 1);
    }

    fn has_come(&self) -> bool {
        self.get(&self.came) != 0
    }

    /// What came so far is heeded now: it is to be looked for, and the thread to be announced anew.
    pub fn heed(&self) {
        self.set(&self.came, 0);
    }

    /// Takes what there is, announces the thread anew, and looks whether there is more.
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

    /// Sections under way.
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

    /// Ends one. Whether it was the last one, and has kept something from being done: then that is
    /// to be [made good](Self::make_good), and an operation begun and ended.
    #[inline]
    #[must_use]
    pub fn end_section(&self) -> bool {
        let left = self.sections() - 1;
        // What the section has written is written before.
        compiler_fence(SeqCst);
        self.set(&self.sections, left);
        compiler_fence(SeqCst);
        left == 0 && self.get(&self.deferred) != 0
    }

    /// There is something to do at the end of the section.
    pub fn defer(&self) {
        self.set(&self.deferred, 1);
    }

    /// It is about to be done.
    pub fn make_good(&self) {
        self.set(&self.deferred, 0);
    }
}

/// Lets interrupts in again, when the operation was the last one.
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
        // In its midst they are off for a while.
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
        let end = || mask.end_operation(|| false, || panic!("meant"));
        assert!(catch_unwind(AssertUnwindSafe(end)).is_err() && !mask.is_busy());
    }
}
