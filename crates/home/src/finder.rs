//! Finding objects whose homes belong to other users.

use crate::absent::wait_while_absent;
use crate::error::FindError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use upcall_directory::policy::Policy;
use upcall_os::socket::Peer;

/// Finds objects, as handles of type `H`, whose homes a policy accepts.
///
/// It is made by [`Homed::expect`](crate::Homed::expect) and
/// [`Asked::expect`](crate::Asked::expect).
pub struct Finder<H> {
    accepts: Arc<Policy>,
    find: fn(&str, Arc<Policy>) -> Result<H, FindError>,
}

impl<H> fmt::Debug for Finder<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Finder")
    }
}

impl<H> Finder<H> {
    pub(crate) fn new(
        accepts: impl Fn(&Peer) -> Result<(), String> + Send + Sync + 'static,
        find: fn(&str, Arc<Policy>) -> Result<H, FindError>,
    ) -> Self {
        Self { accepts: Arc::new(accepts), find }
    }

    /// Finds the object with this name.
    ///
    /// Takes about 0.1 ms, and up to 5 s if its home is stopped.
    ///
    /// # Errors
    /// See [`FindError`]; [`FindError::WrongUser`] if the policy does not accept the object's home.
    pub fn find(&self, name: &str) -> Result<H, FindError> {
        (self.find)(name, self.accepts.clone()).map_err(FindError::with_hint)
    }

    /// Finds the object like [`find`](Self::find), and waits for at most `limit` while no home has
    /// made it: see [`Homed::find_wait`](crate::Homed::find_wait).
    ///
    /// # Errors
    /// See [`Homed::find_wait`](crate::Homed::find_wait).
    pub fn find_wait(&self, name: &str, limit: Duration) -> Result<H, FindError> {
        wait_while_absent(limit, || (self.find)(name, self.accepts.clone()))
    }
}
