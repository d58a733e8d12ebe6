//! The order of things, in builds with debug assertions (P6; Psyche, section 3.1): who masks, or
//! has an object's lock, invokes nothing; and who has the lock of an object at home takes none
//! elsewhere. Otherwise two homes could wait for each other for ever.
//!
//! And a short operation does not block (P2), for others wait for it, whatever it is. That it did
//! is found when it has: the kernel counts how often a thread lets go of its processor to wait, and
//! the count is read right before and right after the operation's own code ([`watched`]), behind
//! the lock, for which it may wait.
//!
//! # What becomes of one that has blocked
//! It was run, so nobody is told that it was not; what it has done stays, for it has come to its
//! end, and the object is whole. But who has asked for it gets an error in place of its result
//! ([`Blocked`]), once it is over: who tests a program is to find it, and would not find a line on
//! the home's standard error. A panic would be the home's, and take it from others who have done
//! nothing wrong.
//!
//! # What is not found, or without need
//! Nobody is to be told of what he has not done. So an operation that has touched memory which was
//! on a disk is let go, and for each page that was not mapped yet it may have waited once; what
//! blocks for itself is found at the next time, when its memory is there. But the kernel counts
//! alike when a thread is stopped (a debugger, SIGSTOP) in the midst of an operation: then
//! it is reported without need. An operation that has its user-level thread wait, and not its
//! kernel thread, is found only if the virtual processor had nothing else to do, and slept; it is
//! not refused before. Closures that are run by [`access`](crate::Homed::access) are the program's
//! own, and nobody else waits for a processor meanwhile: they are not looked at.

use std::fmt;
use std::panic::Location;

/// A rule was broken. In builds with debug assertions only: others do it, and may wait for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// What was to be done.
    pub what: &'static str,
    /// Where.
    pub here: &'static Location<'static>,
    /// What stood against it.
    pub against: &'static str,
    /// Where that began.
    pub begun: &'static Location<'static>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, here, against, begun } = self;
        write!(
            f,
            "{what} at {here} {against}, which began at {begun}: two that do so can wait for each other for ever. End that first"
        )
    }
}

/// A short operation has blocked: it slept, or waited for a lock, a descriptor or another thread
/// (P2). It was run, and what it has done stays; its result is lost. In builds with debug
/// assertions only: others do it, and all who want something of the object, or of the home's
/// thread, wait for it. (A program that was stopped in the midst of an operation, by a debugger for
/// example, is told the same.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The operation.
    pub name: &'static str,
    /// Where it was asked for.
    pub here: &'static Location<'static>,
    /// The line, as the home says, where it was registered. `None`: it was run by who has asked.
    pub registered: Option<String>,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, here, registered } = self;
        write!(f, "the operation {name:?}, asked for at {here}, has blocked ")?;
        match registered {
            Some(place) => write!(f, "at its home, where it was registered at {place}")?,
            None => f.write_str("there")?,
        }
        f.write_str(": it was run, but all others had to wait. Make it a procedure (`invoke`), or wait outside of it")
    }
}

#[cfg(debug_assertions)]
mod checked {
    use super::{Broken, Location};
    use std::cell::Cell;
    use upcall_os::processor::{KernelWaits, waits};

    type Place = Cell<Option<&'static Location<'static>>>;

    thread_local! {
        static MASKED: Place = const { Cell::new(None) };
        static AT_HOME: Place = const { Cell::new(None) };
        static ELSEWHERE: Place = const { Cell::new(None) };
    }

    pub(crate) fn mask(here: &'static Location<'static>) {
        MASKED.set(Some(here));
    }

    pub(crate) fn unmask() {
        MASKED.set(None);
    }

    /// The lock of an object is held, until this is dropped. To be said once it was had: who waits
    /// for it may let other threads have the processor.
    pub(crate) struct Holds(
        &'static std::thread::LocalKey<Place>,
        Option<&'static Location<'static>>,
    );

    impl Drop for Holds {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }

    pub(crate) fn hold(at_home: bool, here: &'static Location<'static>) -> Holds {
        let place = if at_home { &AT_HOME } else { &ELSEWHERE };
        Holds(place, place.replace(Some(here)))
    }

    /// Before an operation.
    pub(crate) fn access(at_home: bool, here: &'static Location<'static>) -> Result<(), Broken> {
        let all = [
            (&AT_HOME, "within an operation on an object at home"),
            (&MASKED, "while what others invoke is masked"),
        ];
        match all.into_iter().find_map(|(place, against)| Some((place.get()?, against))) {
            Some((begun, against)) if !at_home => {
                Err(Broken { what: "an operation on an object elsewhere", here, against, begun })
            }
            _ => Ok(()),
        }
    }

    /// Runs what is not to block. And whether it did.
    pub(crate) fn watched<R>(operation: impl FnOnce() -> R) -> (R, bool) {
        let before = waits();
        let result = operation();
        (result, before.zip(waits()).is_some_and(|(before, after)| has_blocked(before, after)))
    }

    fn has_blocked(before: KernelWaits, after: KernelWaits) -> bool {
        after.read == before.read && after.blocked - before.blocked > after.mapped - before.mapped
    }

    #[track_caller]
    pub(crate) fn invoke() -> Result<(), Broken> {
        let here = Location::caller();
        let all = [
            (&MASKED, "while what others invoke is masked"),
            (&AT_HOME, "within an operation on an object at home"),
            (&ELSEWHERE, "within an operation on an object elsewhere"),
        ];
        match all.into_iter().find_map(|(place, against)| Some((place.get()?, against))) {
            Some((begun, against)) => Err(Broken { what: "an invocation", here, against, begun }),
            None => Ok(()),
        }
    }
}

#[cfg(not(debug_assertions))]
mod checked {
    use super::{Broken, Location};

    pub(crate) struct Holds;

    #[inline(always)]
    pub(crate) fn mask(_: &'static Location<'static>) {}
    #[inline(always)]
    pub(crate) fn unmask() {}
    #[inline(always)]
    pub(crate) fn hold(_: bool, _: &'static Location<'static>) -> Holds {
        Holds
    }
    #[inline(always)]
    pub(crate) fn access(_: bool, _: &'static Location<'static>) -> Result<(), Broken> {
        Ok(())
    }
    #[inline(always)]
    pub(crate) fn watched<R>(operation: impl FnOnce() -> R) -> (R, bool) {
        (operation(), false)
    }
    #[inline(always)]
    pub(crate) fn invoke() -> Result<(), Broken> {
        Ok(())
    }
}

pub(crate) use checked::{access, hold, invoke, mask, unmask, watched};
