//! What a member keeps of admitted connections: their number, and that of the petitions on them.

use crate::petition::MOST_WAITING;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};
use upcall_net::{ConnectionOwner, Wire};
use upcall_os::atomic::{AtomicUsize, Ordering};
use upcall_os::lock::KernelMutex;

/// Maximum number of connections of one owner: more than a group has members.
const MOST_ADMITTED: usize = 2 * crate::MOST_MEMBERS;

/// The admitted connections.
#[derive(Default)]
pub(super) struct AdmittedWires {
    counts: KernelMutex<HashMap<ConnectionOwner, usize>>,
    /// All of them, to end them.
    all: KernelMutex<Vec<Weak<Wire>>>,
    petitions: AtomicUsize,
}

/// An admitted connection, counted while this exists.
pub(super) struct AdmittedWire {
    wires: Arc<AdmittedWires>,
    owner: ConnectionOwner,
}

impl Drop for AdmittedWire {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.wires.counts.lock().entry(self.owner.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// A petition that is not answered, counted while this exists.
pub(super) struct PetitionPlace(Arc<AdmittedWires>);

impl Drop for PetitionPlace {
    fn drop(&mut self) {
        self.0.petitions.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AdmittedWires {
    /// Counts a connection of this owner. `None`: it has too many.
    pub(super) fn count(self: &Arc<Self>, owner: ConnectionOwner) -> Option<AdmittedWire> {
        let mut counts = self.counts.lock();
        let count = counts.entry(owner.clone()).or_default();
        if *count >= MOST_ADMITTED {
            return None;
        }
        *count += 1;
        Some(AdmittedWire { wires: self.clone(), owner })
    }

    /// Keeps a connection in view.
    pub(super) fn add(&self, wire: &Arc<Wire>) {
        let mut all = self.all.lock();
        all.retain(|wire| wire.strong_count() > 0);
        all.push(Arc::downgrade(wire));
    }

    /// Ends all connections.
    pub(super) fn end_all(&self) {
        let all = std::mem::take(&mut *self.all.lock());
        all.iter().filter_map(Weak::upgrade).for_each(|wire| wire.hang_up());
    }

    /// Number of petitions that are not answered.
    #[cfg(test)]
    pub(super) fn petitions(&self) -> usize {
        self.petitions.load(Ordering::Relaxed)
    }

    /// Counts a petition. `None`: too many are not answered.
    pub(super) fn count_petition(self: &Arc<Self>) -> Option<PetitionPlace> {
        let one_more = |count| (count < MOST_WAITING).then_some(count + 1);
        let counted = self.petitions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        counted.ok().map(|_| PetitionPlace(self.clone()))
    }
}
