//! The terms on which a program binds.

use std::time::Duration;
use upcall_directory::policy::Policy;
use upcall_net::wire::LOST_AFTER;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct BindTerms<'a> {
    /// Which servers it accepts. By default a server of this user or of root, the server at an
    /// address of this machine, and the server of a trusted host.
    pub(crate) accepts: Option<&'a Policy>,
    /// Time after which a server on another host that gives no sign of life is lost.
    pub(crate) lost_after: Duration,
}

impl<'a> BindTerms<'a> {
    /// Terms with the usual time.
    pub(crate) fn new(accepts: Option<&'a Policy>) -> Self {
        Self { accepts, lost_after: LOST_AFTER }
    }
}
