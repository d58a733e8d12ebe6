//! What few threads have, outside of the record so that the others do not pay for it: a name, a deadline, locals.

use crate::local::Locals;
use std::cell::Cell;
use std::time::Instant;

/// See the module comment. The name is set before the thread is known and never changed; the rest is touched by the thread alone.
#[derive(Default)]
pub(crate) struct Extra {
    pub(crate) name: Option<Box<str>>,
    pub(crate) deadline: Cell<Option<Instant>>,
    pub(crate) locals: Locals,
}

impl Extra {
    pub(crate) fn named(name: Box<str>) -> Self {
        Self { name: Some(name), ..Self::default() }
    }
}
