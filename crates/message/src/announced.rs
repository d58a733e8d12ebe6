//! Upcalls at safe points of another runtime: of an interpreter, or of an event loop.
//!
//! Source: UDM, section 3.1 (D5 here). A thread that computes is announced as if it slept, so
//! senders notify, and the clerk receives that, as for interrupts
//! ([`interrupts`](crate::interrupts)). In place of sending a signal, the clerk calls a function of
//! the program, which makes the thread call [`Group::heed`] soon, at a safe point of its own. There
//! handlers may do anything.
//!
//! # Why no wake is lost
//! As for interrupts: each announcement is followed by a probe, and the function is called for what
//! the probe finds as for a notification. `heed` and the end of each operation of the group
//! announce again.

use crate::group::{Group, Notify};
use crate::interrupts::GroupInterrupts;
use std::fmt;
use std::sync::Arc;
use upcall_sched::rung::{self, InterruptError, Rung};

/// Reports the arrival of messages with handlers, until it is dropped; see [`Group::announce`].
#[must_use = "no arrivals are reported any more when this is dropped"]
pub struct Announced(#[expect(dead_code, reason = "held for its end")] GroupInterrupts);

impl fmt::Debug for Announced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Announced")
    }
}

impl Group {
    /// Calls `notify` when messages with handlers may be there, until the returned value is
    /// dropped.
    ///
    /// This is for a thread that computes in a language with safe points of its own. The clerk's
    /// thread calls `notify`, or this thread within operations of the group. `notify` must make
    /// this thread call [`heed`](Self::heed) soon; it must neither block nor use the group. It may
    /// be called when no message is there.
    ///
    /// # Errors
    /// See [`InterruptError`]. [`InterruptError::Resource`] also if the thread is announced
    /// already, or interruptible.
    pub fn announce(
        &self,
        notify: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Announced, InterruptError> {
        if self.0.mask.is_on() {
            let error = std::io::ErrorKind::ResourceBusy.into();
            return Err(InterruptError::Resource {
                what: "the thread is announced or interruptible already".into(),
                error,
            });
        }
        self.can_be_rung_for()?;
        let own = notify.clone();
        *self.0.notify.borrow_mut() = Some(notify);
        let on =
            self.be_rung_for(move || own()).inspect_err(|_| *self.0.notify.borrow_mut() = None);
        Ok(Announced(on?))
    }

    /// Runs the handlers of the messages that have arrived, and returns how many ran.
    ///
    /// To be called at a safe point of the thread. Works like [`poll`](Self::poll), except within
    /// operations of the group, handlers and [atomic sections](Self::atomic): there it runs none,
    /// and the thread is notified again afterwards.
    ///
    /// # Panics
    /// If a handler panics.
    pub fn heed(&self) -> usize {
        let mask = &self.0.mask;
        if !mask.is_on() || mask.is_busy() || mask.sections() > 0 {
            mask.keep_off();
            return 0;
        }
        let _busy = self.busy();
        // Makes the end of this operation announce the thread again.
        mask.note();
        let ran = self.poll();
        if ran > 0 {
            self.count_change();
        }
        ran
    }

    /// Checks that senders can notify this thread while it computes.
    pub(crate) fn can_be_rung_for(&self) -> Result<(), InterruptError> {
        if self.blocks_a_thread() { Err(InterruptError::SafePoints) } else { rung::can_be() }
    }

    /// Makes senders notify this thread while it computes; the clerk calls `tell` for each
    /// notification.
    pub(crate) fn be_rung_for(
        &self,
        tell: impl Fn() + Send + Sync + 'static,
    ) -> Result<GroupInterrupts, InterruptError> {
        let rung = Rung::tells(self.0.member.clone(), tell)?;
        let on = GroupInterrupts { group: self.clone(), rung };
        self.0.mask.begin();
        // Announces, and takes what is there.
        self.is_done();
        Ok(on)
    }

    /// Announces the thread again, and calls `notify` if a message is there already.
    pub(crate) fn announce_anew(&self, notify: &Notify) {
        self.0.mask.heed();
        self.announce_to_senders();
        if self.0.member.has_news() || self.any_next(|next| self.is_claimed(next)) {
            notify();
        }
    }
}
