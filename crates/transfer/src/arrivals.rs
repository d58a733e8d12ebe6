//! What else a virtual processor looks at beside lanes and seats: messages of a group whose member
//! is on it, for which handlers are to run.
//!
//! Source: UDM, sections 2 and 3.1 (D5 here). There an arrival interrupts the running thread; here
//! it is found at a safe point: when no thread is ready, when one yields, at every 64th choice of
//! the next thread, and where a thread asks ([`safe_point`](upcall_thread::safe_point)). Handlers
//! run on a worker, so one that must block is a thread by that alone, and who was interrupted is
//! just ready.
//!
//! Each such group keeps its own [`Post`]. A processor that falls asleep announces it at the posts
//! of all its groups as at its own line, makes one fence for all, and looks again; the bells of
//! each post's senders are in its bed. So the argument in [`sleep`](crate::sleep) holds for each
//! post as if somebody slept there alone.

use crate::idle;
use crate::post::Post;
use std::io;
use std::rc::Rc;
use upcall_thread::Found;

/// Messages that a virtual processor looks for. All but [`serve`](Self::serve) neither block nor
/// panic.
pub trait Arrivals {
    /// One look: `Work` if handlers are to run, `Woke` if a thread that waits for messages was made
    /// ready.
    fn look(&self) -> Found;

    /// Whether a look would find something.
    fn waits(&self) -> bool;

    /// Its processor is about to fall asleep: what has time until then can be done now.
    fn falls_asleep(&self);

    /// Runs the handlers of what is there, on a thread that may block.
    fn serve(&self);

    /// Where their senders ring.
    fn post(&self) -> &Post;
}

/// The virtual processor of the caller looks for these from now on, until this is dropped or its
/// scheduler has ended. Belongs to that processor.
pub struct Attended {
    arrivals: Rc<dyn Arrivals>,
    life: u64,
}

impl Attended {
    /// Checks that [`begin`](Self::begin) would not fail for the sake of the virtual processor.
    ///
    /// # Errors
    /// The virtual processor of the caller was to poll, and could not begin to.
    pub fn check() -> io::Result<()> {
        idle::hindrance().map_or(Ok(()), Err)
    }

    /// `None` on an ordinary kernel thread, and under a scheduler that does not poll.
    ///
    /// # Errors
    /// No memory or no descriptor left; or the virtual processor of the caller was to poll, and
    /// could not begin to: nothing would look for what arrives.
    pub fn begin(arrivals: Rc<dyn Arrivals>) -> io::Result<Option<Self>> {
        let Some(processor) = idle::Processor::current() else {
            return Self::check().map(|()| None);
        };
        idle::attend(processor.number, arrivals.clone())?;
        Ok(Some(Self { arrivals, life: processor.life }))
    }

    /// Whether that processor still runs, and the caller on it.
    #[inline]
    pub fn is_here(&self) -> bool {
        idle::Processor::current().is_some_and(|processor| processor.life == self.life)
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        if let Some(processor) =
            idle::Processor::current().filter(|processor| processor.life == self.life)
        {
            idle::attend_no_more(processor.number, &self.arrivals);
        }
    }
}

impl std::fmt::Debug for Attended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attended").field("here", &self.is_here()).finish_non_exhaustive()
    }
}
