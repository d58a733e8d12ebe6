//! Finding objects whose homes belong to other users, or are on other hosts.

use crate::absent::wait_while_absent;
use crate::error::FindError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use upcall_directory::policy::{self, Policy};
use upcall_net::{LEAST_LOST_AFTER, LOST_AFTER};
use upcall_os::socket::Peer;

/// The terms on which a program finds objects.
#[derive(Clone)]
pub(crate) struct FindTerms {
    /// Which homes it accepts.
    pub(crate) accepts: Arc<Policy>,
    /// Time after which a home on another host that gives no sign of life is lost.
    pub(crate) lost_after: Duration,
}

impl Default for FindTerms {
    /// Homes of this user, of root, and of hosts that this user trusts.
    fn default() -> Self {
        let own = policy::own_user_or_root();
        Self::accepting(move |peer: &Peer| match &peer.host {
            Some(_) => Ok(()),
            None => own(peer),
        })
    }
}

impl FindTerms {
    /// Homes that this policy accepts.
    pub(crate) fn accepting(
        accepts: impl Fn(&Peer) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self { accepts: Arc::new(accepts), lost_after: LOST_AFTER }
    }
}

/// Finds objects, as handles of type `H`, whose homes a policy accepts.
///
/// It is made by [`Homed::expect`](crate::Homed::expect) and
/// [`Asked::expect`](crate::Asked::expect).
pub struct Finder<H> {
    terms: FindTerms,
    find: fn(&str, FindTerms) -> Result<H, FindError>,
}

impl<H> fmt::Debug for Finder<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Finder")
    }
}

impl<H> Finder<H> {
    pub(crate) fn new(
        accepts: impl Fn(&Peer) -> Result<(), String> + Send + Sync + 'static,
        find: fn(&str, FindTerms) -> Result<H, FindError>,
    ) -> Self {
        Self { terms: FindTerms::accepting(accepts), find }
    }

    /// Sets the time after which a home on another host that gives no sign of life is lost, in
    /// place of 5 s. It is rounded up to a second. Invocations that wait then fail with
    /// [`InvokeError::Lost`](crate::InvokeError::Lost). For a home on this host it has no effect.
    #[must_use]
    pub fn lost_after(mut self, time: Duration) -> Self {
        self.terms.lost_after = time.max(LEAST_LOST_AFTER);
        self
    }

    /// Finds the object with this name, which may be on another host, as `tcp://HOST:PORT/NAME`.
    ///
    /// Takes about 0.1 ms, and up to 5 s if its home is stopped.
    ///
    /// # Errors
    /// See [`FindError`]; [`FindError::WrongUser`] if the policy does not accept the object's home.
    pub fn find(&self, name: &str) -> Result<H, FindError> {
        (self.find)(name, self.terms.clone()).map_err(FindError::with_hint)
    }

    /// Finds the object like [`find`](Self::find), and waits for at most `limit` while no home has
    /// made it: see [`Homed::find_wait`](crate::Homed::find_wait).
    ///
    /// # Errors
    /// See [`Homed::find_wait`](crate::Homed::find_wait).
    pub fn find_wait(&self, name: &str, limit: Duration) -> Result<H, FindError> {
        wait_while_absent(limit, || (self.find)(name, self.terms.clone()))
    }
}
