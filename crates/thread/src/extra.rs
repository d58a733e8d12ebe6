//! What only few threads have: a name, a deadline, locals, floating-point control words.
//!
//! It is kept outside the record so that other threads do not pay for it.

use crate::locals::Locals;
use std::cell::Cell;
use std::mem::offset_of;
use std::time::Instant;

/// See the module comment.
///
/// The name is set before the thread is published and never changed; only the thread itself touches
/// the rest.
#[derive(Default)]
pub(crate) struct Extra {
    name: Name,
    named: Option<Box<str>>,
    pub(crate) deadline: Cell<Option<Instant>>,
    /// Applies to calls to other domains only.
    pub(crate) calls_end: Cell<Option<Instant>>,
    pub(crate) locals: Locals,
    /// The thread's floating-point control words while it does not run, if the record says that it
    /// has its own.
    pub(crate) control: Cell<u64>,
}

/// The place of `named`, for tools that read it from outside (see `beacon`).
#[repr(C)]
struct Name {
    at: *const u8,
    length: usize,
}

impl Default for Name {
    fn default() -> Self {
        Self { at: std::ptr::null(), length: 0 }
    }
}

impl Extra {
    pub(crate) const NAME_OFFSET: usize = offset_of!(Extra, name);

    pub(crate) fn named(name: Box<str>) -> Self {
        Self {
            name: Name { at: name.as_ptr(), length: name.len() },
            named: Some(name),
            ..Self::default()
        }
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.named.as_deref()
    }
}
