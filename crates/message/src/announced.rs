//! Upcalls at safe points that are not ours: an interpreter's, or those of somebody's event loop.
//!
//! Source: UDM, section 3.1 (D5 here). A thread that computes is announced as one who sleeps, so
//! senders ring, and the clerk hears that, as for interrupts ([`interrupts`](crate::interrupts)).
//! In place of a signal the clerk calls a function of the program's, which has the thread come by
//! soon, at a safe point of its own ([`Group::heed`]): there handlers may do anything.
//!
//! # Why no wake is lost
//! As for interrupts: each announcement is followed by a look, and what that finds is told like a
//! ring. `heed` and the end of each operation of the group announce anew.

use crate::group::{Group, Notify};
use crate::interrupts::GroupInterrupts;
use std::fmt;
use std::sync::Arc;
use upcall_sched::rung::{self, InterruptError, Rung};

/// As long as this lives, the arrival of messages with handlers is told of: see
/// [`Group::announce`].
#[must_use = "nothing is told of any more when this is dropped"]
pub struct Announced(#[expect(dead_code, reason = "held for its end")] GroupInterrupts);

impl fmt::Debug for Announced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Announced")
    }
}

impl Group {
    /// Has `notify` called when messages with handlers may be there, until what this gives is
    /// dropped: for a thread that computes in a language with safe points of its own. It is called
    /// by the clerk's thread, or by this one within operations of the group, and is to have
    /// this thread call [`heed`](Self::heed) soon; it must not block, nor use the group. It may be
    /// called though nothing is there.
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

    /// Runs the handlers of what has come, at a safe point of the thread: as [`poll`](Self::poll),
    /// but not within operations of the group, handlers and [atomic sections](Self::atomic), after
    /// which it is told again. Returns how many ran.
    ///
    /// # Panics
    /// Those of handlers.
    pub fn heed(&self) -> usize {
        let mask = &self.0.mask;
        if !mask.is_on() || mask.is_busy() || mask.sections() > 0 {
            mask.keep_off();
            return 0;
        }
        let _busy = self.busy();
        // So that the end of this announces the thread anew.
        mask.note();
        let ran = self.poll();
        if ran > 0 {
            self.count_change();
        }
        ran
    }

    /// Whether senders can ring for this thread.
    pub(crate) fn can_be_rung_for(&self) -> Result<(), InterruptError> {
        if self.blocks_a_thread() { Err(InterruptError::SafePoints) } else { rung::can_be() }
    }

    /// From now on senders ring for this thread, and the clerk tells it of that.
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

    /// Announces the thread anew, and tells it if something is there already.
    pub(crate) fn announce_anew(&self, notify: &Notify) {
        self.0.mask.heed();
        self.announce_to_senders();
        if self.0.member.has_news() || self.any_next(|next| self.is_claimed(next)) {
            notify();
        }
    }
}
