//! The values that one thread has to itself: what [`LocalKey`](crate::LocalKey) finds.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;

/// The value has been dropped already: its thread is ending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessError;

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a thread's own value was used after it had been dropped: do not use it in the drop \
             of another one",
        )
    }
}

impl std::error::Error for AccessError {}

/// The values of one thread.
#[derive(Default)]
pub(crate) struct Locals {
    values: RefCell<Vec<Local>>,
}

#[derive(Default)]
pub(crate) enum Local {
    #[default]
    Unused,
    Value(Box<dyn Any>),
    Dropped,
}

impl Locals {
    pub(crate) fn find<T: 'static>(&self, place: usize) -> Result<Option<*const T>, AccessError> {
        match self.values.borrow().get(place) {
            Some(Local::Value(value)) => {
                Ok(Some(value.downcast_ref::<T>().expect("a place is of one key")))
            }
            Some(Local::Dropped) => Err(AccessError),
            Some(Local::Unused) | None => Ok(None),
        }
    }

    /// Stores `value` and returns the previous one.
    ///
    /// The caller drops that while the values are not borrowed.
    #[must_use]
    pub(crate) fn put(&self, place: usize, value: Local) -> Local {
        let mut values = self.values.borrow_mut();
        if values.len() <= place {
            values.resize_with(place + 1, Local::default);
        }
        std::mem::replace(&mut values[place], value)
    }

    /// Drops the values of a thread that ends, including those that the drop of others creates.
    pub(crate) fn end(&self) {
        loop {
            let last =
                self.values.borrow().iter().rposition(|local| matches!(local, Local::Value(_)));
            let Some(place) = last else { return };
            drop(self.put(place, Local::Dropped));
        }
    }
}
