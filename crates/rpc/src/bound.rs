//! One binding of a client, on the server's side.
//!
//! Source: LRPC, section 5.3 (termination): a binding that is revoked lets no call in.

use crate::exports::ExportEntry;
use crate::reaper::Reaper;
use crate::session::Session;
use std::sync::{Arc, OnceLock};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::process::Identity;
use upcall_shm::astack::AStackPlan;
use upcall_shm::region::Region;
use upcall_shm::tally::CallStats;

/// Maximum number of bindings through one channel in its life. The next binding opens another
/// channel.
pub const MOST_BINDINGS: u16 = 64;

/// A client's binding, as its server sees it: see [`Running::revoke`](crate::Running::revoke).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientBinding<'a> {
    /// The name that was bound.
    pub name: &'a str,
    /// The client's process, as the kernel reports it. 0 if the process is not visible in this PID
    /// namespace, or is on another machine.
    pub pid: u32,
    /// The user of the client's process; `u32::MAX` if it is on another host.
    pub uid: u32,
    /// The host of a client on another host, by the name under which it is trusted here.
    pub host: Option<&'a str>,
    /// Identifies the client's process uniquely, also where its number is 0. It is the same as
    /// [`Peer::process`](upcall_os::socket::Peer::process), which the policy has seen. `None` for a
    /// client on another machine.
    pub process: Option<Identity>,
}

/// One binding in the server.
pub(crate) struct ServerBinding {
    pub(crate) entry: Arc<ExportEntry>,
    /// The binding's call statistics. `None` if too many other bindings have some.
    pub(crate) tally: Option<CallStats>,
    pub(crate) session: Arc<Session>,
    pub(crate) plan: AStackPlan,
    /// Set once the client has brought what the plan needs.
    pub(crate) astacks: OnceLock<Arc<Region>>,
    revoked: AtomicBool,
}

impl ServerBinding {
    /// Counts the client as a client of the export. The values of a client on another machine come
    /// in messages, and its plan has no A-stacks.
    pub(crate) fn new(
        entry: Arc<ExportEntry>,
        tally: Option<CallStats>,
        session: Session,
        plan: AStackPlan,
        astacks: Option<Arc<Region>>,
    ) -> Self {
        entry.clients.fetch_add(1, Ordering::Relaxed);
        let astacks = astacks.map(OnceLock::from).unwrap_or_default();
        Self {
            entry,
            tally,
            session: Arc::new(session),
            plan,
            astacks,
            revoked: AtomicBool::new(false),
        }
    }

    /// Returns `true` if the binding was revoked.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Refuses further calls, and leaves the client's holdings to the reaper. Calls that run go on
    /// to their end.
    pub(crate) fn revoke(&self, keeper: &Reaper) {
        if !self.revoked.swap(true, Ordering::SeqCst) {
            self.entry.clients.fetch_sub(1, Ordering::Relaxed);
            self.tally.iter().for_each(CallStats::end);
            keeper.take(self.session.close());
        }
    }
}
