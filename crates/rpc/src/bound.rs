//! One binding of a client, on the server's side.
//!
//! Source: LRPC, section 5.3 (termination): a binding that is revoked lets no call in.

use crate::exports::ExportEntry;
use crate::keeper::Reaper;
use crate::session::Session;
use std::sync::{Arc, OnceLock};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::process::Identity;
use upcall_shm::astack::AStackPlan;
use upcall_shm::region::Region;
use upcall_shm::tally::CallStats;

/// The most bindings that go through one channel in its life; then another channel is made.
pub const MOST_BINDINGS: u16 = 64;

/// A client's binding, as its server sees it: see [`Running::revoke`](crate::Running::revoke).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientBinding<'a> {
    /// The name that was bound.
    pub name: &'a str,
    /// The client's process, by the kernel's word; 0 if it is not visible in this PID namespace,
    /// or is on another machine.
    pub pid: u32,
    /// The user of the client's process.
    pub uid: u32,
    /// What tells the client's process apart from all others, also where its number is 0: the same
    /// as [`Peer::process`](upcall_os::socket::Peer::process), which the policy has seen. `None`
    /// for a client on another machine.
    pub process: Option<Identity>,
}

/// One binding, on the server's side.
pub(crate) struct ServerBinding {
    pub(crate) entry: Arc<ExportEntry>,
    /// What it has done. `None` if too many others are counted.
    pub(crate) tally: Option<CallStats>,
    pub(crate) session: Arc<Session>,
    pub(crate) plan: AStackPlan,
    /// Once its client has brought what the plan needs.
    pub(crate) astacks: OnceLock<Arc<Region>>,
    revoked: AtomicBool,
}

impl ServerBinding {
    /// Counts the client as one of the entry's. On a machine of its own its values come in
    /// messages, and the plan has no A-stacks.
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

    /// Whether it is good no longer.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Lets no call in any more, and leaves what the client holds to the keeper. Calls that run go
    /// on to their end.
    pub(crate) fn revoke(&self, keeper: &Reaper) {
        if !self.revoked.swap(true, Ordering::SeqCst) {
            self.entry.clients.fetch_sub(1, Ordering::Relaxed);
            self.tally.iter().for_each(CallStats::end);
            keeper.take(self.session.close());
        }
    }
}
