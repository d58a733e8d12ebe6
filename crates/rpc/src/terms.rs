//! The terms on which a program binds.

use std::fmt;
use std::time::Duration;
use upcall_directory::policy::Policy;
use upcall_net::wire::LOST_AFTER;

/// The terms on which a program binds. A client in Rust has a [`Binder`](crate::Binder) for them.
#[derive(Clone, Copy)]
pub struct BindTerms<'a> {
    /// Which servers it accepts. By default a server of this user or of root, the server at an
    /// address of this machine, and the server of a trusted host.
    pub accepts: Option<&'a Policy>,
    /// Time after which a server on another host that gives no sign of life is lost. At least one
    /// second.
    pub lost_after: Duration,
}

impl fmt::Debug for BindTerms<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BindTerms").field("lost_after", &self.lost_after).finish_non_exhaustive()
    }
}

impl<'a> BindTerms<'a> {
    /// Terms with the usual time.
    pub fn new(accepts: Option<&'a Policy>) -> Self {
        Self { accepts, lost_after: LOST_AFTER }
    }
}
