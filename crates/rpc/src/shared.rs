//! The state of one client that its calls need in the server: its bindings, and its segments of
//! memory.

use crate::bound::{MOST_BINDINGS, ServerBinding};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use upcall_os::lock::{KernelRwLock, RwLockWriteGuard};
use upcall_os::reaper;
use upcall_shm::region::Region;

/// The part of a client's state that calls use.
pub(crate) struct ClientState {
    pub(crate) bindings: [OnceLock<ServerBinding>; MOST_BINDINGS as usize],
    /// Memory of the client. The charge for it ends when it is unmapped; see
    /// [`Mapping::with`](upcall_os::memory::Mapping::with).
    segments: KernelRwLock<HashMap<u16, Arc<Region>>>,
}

impl Default for ClientState {
    fn default() -> Self {
        Self {
            bindings: [const { OnceLock::new() }; MOST_BINDINGS as usize],
            segments: KernelRwLock::default(),
        }
    }
}

impl ClientState {
    #[inline]
    pub(crate) fn bound(&self, id: u16) -> Option<&ServerBinding> {
        self.bindings.get(usize::from(id))?.get()
    }

    pub(crate) fn segment(&self, number: u16) -> Option<Arc<Region>> {
        self.segments.read().get(&number).cloned()
    }

    pub(crate) fn segments(&self) -> RwLockWriteGuard<'_, HashMap<u16, Arc<Region>>> {
        self.segments.write()
    }

    /// Drops all segments. Each may be small, but together they can be as large as the client's
    /// quota. So the reaper unmaps them, since the caller may be the clerk.
    pub(crate) fn let_segments_go(&self) {
        let all = std::mem::take(&mut *self.segments());
        let bytes = all.values().map(|region| region.len()).sum();
        reaper::free(all, bytes);
    }
}

/// The reaper also unmaps the A-stacks of all bindings.
impl Drop for ClientState {
    fn drop(&mut self) {
        self.let_segments_go();
        let all: Vec<_> =
            self.bindings.iter_mut().filter_map(|bound| bound.get_mut()?.astacks.take()).collect();
        let bytes = all.iter().map(|region| region.len()).sum();
        reaper::free(all, bytes);
    }
}
