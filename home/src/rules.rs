//! The order of things, in builds with debug assertions (P6; Psyche, section 3.1): who masks, or has an object's lock, invokes nothing; and who has the lock of an object at home takes none elsewhere. Otherwise two homes could wait for each other for ever.

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

#[cfg(debug_assertions)]
mod checked {
    use super::{Broken, Location};
    use std::cell::Cell;

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

    /// The lock of an object is held, until this is dropped. To be said once it was had: who waits for it may let other threads have the processor.
    pub(crate) struct Holds(&'static std::thread::LocalKey<Place>, Option<&'static Location<'static>>);

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
        let all = [(&AT_HOME, "within an operation on an object at home"), (&MASKED, "while what others invoke is masked")];
        match all.into_iter().find_map(|(place, against)| Some((place.get()?, against))) {
            Some((begun, against)) if !at_home => {
                Err(Broken { what: "an operation on an object elsewhere", here, against, begun })
            }
            _ => Ok(()),
        }
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
    pub(crate) fn invoke() -> Result<(), Broken> {
        Ok(())
    }
}

pub(crate) use checked::{access, hold, invoke, mask, unmask};
