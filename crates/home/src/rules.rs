//! Rules about the order of operations (Psyche, section 3.1).
//!
//! They are checked in builds with debug assertions.
//!
//! A thread that masks, or that holds an object's lock, invokes nothing. A thread that holds the
//! lock of an object at home takes no lock of an object elsewhere. Otherwise two homes could wait
//! for each other for ever.
//!
//! Also, a short operation does not block, because all others wait for it. That it blocked is found
//! afterwards: the kernel counts how often a thread gives up its processor to wait, and the count
//! is read right before and right after the operation's own code ([`watched`]). The wait for the
//! lock is over by then and does not count.
//!
//! # What becomes of an operation that has blocked
//! It was run, so its caller must not get an error that says that it was not. Its changes stay,
//! because it has run to its end and the object is whole. But its caller gets an error in place of
//! the result ([`Blocked`]) once it is over: a tester of the program must notice, and would not
//! notice a line on the home's standard error. A panic would be the home's, and would hurt other
//! callers, which have done nothing wrong.
//!
//! # What is not found, and what is reported wrongly
//! No caller should be blamed for what it has not done. So an operation that touched memory which
//! was on a disk is not reported, and each page that was not mapped yet excuses one wait. An
//! operation that blocks by itself is found the next time, when its memory is there.
//!
//! But the kernel also counts when a thread is stopped (by a debugger or SIGSTOP) in the middle of
//! an operation, which is then reported wrongly. An operation that blocks its user-level thread,
//! and not its kernel thread, is found only if the virtual processor had nothing else to do and
//! slept; it is not refused in advance. Closures that are run by [`access`](crate::Homed::access)
//! are the program's own, and no other thread waits for the processor during them: they are not
//! watched.

use std::fmt;
use std::panic::Location;

/// A rule was broken.
///
/// This is found only in builds with debug assertions. In other builds the threads go on, and may
/// wait for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// What was tried.
    pub what: &'static str,
    /// Where.
    pub here: &'static Location<'static>,
    /// What forbids it.
    pub against: &'static str,
    /// Where that began.
    pub begun: &'static Location<'static>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, here, against, begun } = self;
        write!(
            f,
            "{what} at {here} {against}, which began at {begun}: two threads that do this can wait \
             for each other for ever. End that first"
        )
    }
}

/// A short operation has blocked.
///
/// It slept, or waited for a lock, a descriptor or another thread.
///
/// It was run, and its changes stay, but its result is lost. This is reported only in builds with
/// debug assertions. In other builds, all callers that need the object or the home's thread wait
/// for it. (A program that was stopped in the middle of an operation, by a debugger for example,
/// gets the same report.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The operation.
    pub name: &'static str,
    /// Where it was requested.
    pub here: &'static Location<'static>,
    /// Where the home registered it. `None` if the caller ran it itself.
    pub registered: Option<String>,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, here, registered } = self;
        write!(f, "the operation {name:?}, requested at {here}, has blocked ")?;
        match registered {
            Some(place) => write!(f, "at its home, where it was registered at {place}")?,
            None => f.write_str("there")?,
        }
        f.write_str(
            ": it was run, but all others had to wait. Make it a procedure (`invoke`), or wait \
             outside of it",
        )
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

    /// Marks that an object's lock is held, until this is dropped. It is made only when the lock
    /// has been acquired, because a thread that waits for the lock may let other threads have the
    /// processor.
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

    /// Checks the rules before an operation.
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

    /// Runs an operation that must not block. Returns its result, and `true` if it has blocked.
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
