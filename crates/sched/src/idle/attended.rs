//! A virtual processor probes for messages of a group ([`arrivals`](crate::arrivals)).

use super::own::{Processor, hindrance};
use super::view::VIEW;
use crate::arrivals::Arrivals;
use crate::domain::Domain;
use std::io;
use std::rc::Rc;
use upcall_os::poll::Report;

/// The key of posts in the wake set of a processor.
const POST: u64 = 4;

/// Makes the caller's virtual processor probe for messages, until this is dropped or its scheduler
/// has ended. Belongs to that processor.
pub struct Attended {
    arrivals: Rc<dyn Arrivals>,
    life: u64,
}

impl Attended {
    /// Checks that the virtual processor would not make [`begin`](Self::begin) fail.
    ///
    /// # Errors
    /// The caller's virtual processor was to poll, and could not begin to.
    pub fn check() -> io::Result<()> {
        hindrance().map_or(Ok(()), Err)
    }

    /// Begins to probe. `None` on an ordinary kernel thread, and under a scheduler that does not
    /// poll.
    ///
    /// # Errors
    /// No memory or no descriptor left; or the caller's virtual processor was to poll, and could
    /// not begin to, so no arrival would be found.
    pub fn begin(arrivals: Rc<dyn Arrivals>) -> io::Result<Option<Self>> {
        let Some(processor) = Processor::current() else {
            return Self::check().map(|()| None);
        };
        attend(processor.number, arrivals.clone())?;
        Ok(Some(Self { arrivals, life: processor.life }))
    }

    /// Returns `true` if the caller is on that processor, and it still runs.
    #[inline]
    pub fn is_here(&self) -> bool {
        Processor::current().is_some_and(|processor| processor.life == self.life)
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        if let Some(processor) =
            Processor::current().filter(|processor| processor.life == self.life)
        {
            attend_no_more(processor.number, &self.arrivals);
        }
    }
}

impl std::fmt::Debug for Attended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attended").field("here", &self.is_here()).finish_non_exhaustive()
    }
}

/// Makes the processor that the caller runs on, the domain's `number`, probe for these too.
fn attend(number: usize, arrivals: Rc<dyn Arrivals>) -> io::Result<()> {
    Domain::current()?.wake_set(number)?.set.add(arrivals.post().set(), POST, Report::EachRing)?;
    VIEW.with_borrow_mut(|view| view.scan.attending.attend(arrivals));
    Ok(())
}

/// Ends what [`attend`] began.
fn attend_no_more(number: usize, arrivals: &Rc<dyn Arrivals>) {
    if let Ok(wake_set) = Domain::current().and_then(|domain| domain.wake_set(number)) {
        wake_set.set.remove(arrivals.post().set());
    }
    let _gone = VIEW.with_borrow_mut(|view| view.scan.attending.attend_no_more(arrivals));
}
