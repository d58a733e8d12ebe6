//! What few threads have, outside of the record so that the others do not pay for it: a name, a
//! deadline, locals, floating-point control words.

use crate::locals::Locals;
use std::cell::Cell;
use std::mem::offset_of;
use std::time::Instant;

/// See the module comment. The name is set before the thread is known and never changed; the rest
/// is touched by the thread alone.
#[derive(Default)]
pub(crate) struct Extra {
    name: Name,
    named: Option<Box<str>>,
    pub(crate) deadline: Cell<Option<Instant>>,
    /// For calls to other domains only.
    pub(crate) calls_end: Cell<Option<Instant>>,
    pub(crate) locals: Locals,
    /// Its floating-point control words while it does not run, if the record says that it has its
    /// own.
    pub(crate) control: Cell<u64>,
}

/// Where `named` lies, for those who look from outside (see `beacon`).
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
