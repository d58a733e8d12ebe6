//! Requests of processes that are no members, to the member that took in the first ones.

use std::fmt;
use std::sync::Arc;

/// Maximum number of petitions that a member has not answered. Further ones are refused.
pub(crate) const MOST_WAITING: usize = 16;

/// Maximum length of a petition, in bytes.
pub(crate) const MOST_PETITION: usize = 4 << 10;

/// Where the answer to a petition goes.
pub(crate) trait Petitioner: Send + Sync {
    /// Sends the answer. If that fails, the process that has asked has ended.
    fn answer(&self, bytes: &[u8]);

    /// Ends the connection.
    fn refuse(&self, why: &str);

    /// Returns `true` if the process that has asked waits for no answer any more.
    fn is_gone(&self) -> bool;
}

/// A request of a process that is no member of this group, such as for a place in it.
///
/// It comes from a process of a trusted host, or of this user on this host. A petition that is
/// dropped is refused.
pub struct Petition {
    bytes: Vec<u8>,
    /// The proved identity of its host.
    host: Option<String>,
    from: Option<Arc<dyn Petitioner>>,
}

impl fmt::Debug for Petition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Petition({} bytes)", self.bytes.len())
    }
}

impl Petition {
    pub(crate) fn new(bytes: Vec<u8>, host: Option<String>, from: Arc<dyn Petitioner>) -> Self {
        Self { bytes, host, from: Some(from) }
    }

    /// The request. Another program may have written anything into it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The proved identity of the host of the process that has asked, in hexadecimal digits.
    ///
    /// `None` if that process has asked at a loopback address of this machine.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// Returns `true` if the process that has asked has ended or given up.
    pub(crate) fn is_gone(&self) -> bool {
        self.from.as_ref().is_some_and(|from| from.is_gone())
    }

    /// Sends the answer. If the other process has ended, the answer is dropped.
    pub fn answer(mut self, bytes: &[u8]) {
        if let Some(from) = self.from.take() {
            from.answer(bytes);
        }
    }

    /// Refuses the request for this reason.
    pub fn refuse(mut self, why: &str) {
        if let Some(from) = self.from.take() {
            from.refuse(why);
        }
    }
}

impl Drop for Petition {
    fn drop(&mut self) {
        if let Some(from) = self.from.take() {
            from.refuse("the member has not answered");
        }
    }
}
