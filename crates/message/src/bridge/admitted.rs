//! What a member keeps of admitted connections: their number, how long each may stay, and the
//! number of petitions on them.
//!
//! A connection has [`STAY`] until it is part of a pair, or waits for an answer that another
//! process or this program delays. After an answer it has the same time to end. Otherwise a trusted
//! process that is no member could hold connections, and memory for its requests, for ever.

use crate::petition::MOST_WAITING;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use upcall_net::{Admissions, Admitted, ConnectionOwner, Wire};
use upcall_os::atomic::{AtomicUsize, Ordering};
use upcall_os::lock::KernelMutex;

/// Maximum number of connections. An owner that is alone has half of them: one of each member that
/// applies, and one of its pair.
const MOST_ADMITTED: usize = 4 * crate::MOST_MEMBERS;

/// Maximum time that a connection stays without a place.
pub(super) const STAY: Duration = Duration::from_secs(10);

/// How long a connection may stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionStay {
    /// Until this time.
    Until(Instant),
    /// Until its request is answered.
    Answer,
    /// As long as its pair.
    Pair,
}

/// The admitted connections.
pub(super) struct AdmittedWires {
    counts: Admissions,
    /// All of them, to end them.
    all: KernelMutex<Vec<(Weak<Wire>, Weak<AdmittedWire>)>>,
    petitions: AtomicUsize,
}

impl Default for AdmittedWires {
    fn default() -> Self {
        let counts = Admissions::of(MOST_ADMITTED);
        Self { counts, all: KernelMutex::default(), petitions: AtomicUsize::new(0) }
    }
}

/// An admitted connection, counted while this exists.
pub(super) struct AdmittedWire {
    _counted: Admitted,
    stay: KernelMutex<ConnectionStay>,
}

impl AdmittedWire {
    fn new(counted: Admitted) -> Arc<Self> {
        let stay = ConnectionStay::Until(Instant::now() + STAY);
        Arc::new(Self { _counted: counted, stay: KernelMutex::new(stay) })
    }

    /// Its request waits.
    pub(super) fn awaits_answer(&self) {
        *self.stay.lock() = ConnectionStay::Answer;
    }

    /// Its request is answered.
    pub(super) fn is_answered(&self) {
        *self.stay.lock() = ConnectionStay::Until(Instant::now() + STAY);
    }

    /// It is part of a pair from now on.
    pub(super) fn has_pair(&self) {
        *self.stay.lock() = ConnectionStay::Pair;
    }

    fn stay(&self) -> ConnectionStay {
        *self.stay.lock()
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
    /// Counts a connection of this owner.
    ///
    /// # Errors
    /// The owner has as many as it may have.
    pub(super) fn count(&self, owner: ConnectionOwner) -> Result<Arc<AdmittedWire>, String> {
        self.counts.admit(owner).map(AdmittedWire::new)
    }

    /// Keeps a connection in view.
    pub(super) fn add(&self, wire: &Arc<Wire>, admitted: &Arc<AdmittedWire>) {
        let mut all = self.all.lock();
        all.retain(|(wire, _)| wire.strong_count() > 0);
        all.push((Arc::downgrade(wire), Arc::downgrade(admitted)));
    }

    /// Ends all connections.
    pub(super) fn end_all(&self) {
        let all = std::mem::take(&mut *self.all.lock());
        all.iter().filter_map(|(wire, _)| wire.upgrade()).for_each(|wire| wire.hang_up());
    }

    /// When to look again for connections that have stayed too long.
    ///
    /// The time of a connection whose request waits begins with the answer, of which the thread
    /// that looks does not learn.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let all = self.all.lock();
        let stays = all.iter().filter_map(|(_, admitted)| admitted.upgrade());
        let due = stays.filter_map(|admitted| match admitted.stay() {
            ConnectionStay::Until(ends) => Some(ends),
            ConnectionStay::Answer => Some(now + STAY),
            ConnectionStay::Pair => None,
        });
        due.min()
    }

    /// Ends the connections that have stayed too long.
    pub(super) fn end_overdue(&self, now: Instant) {
        let is_overdue = |admitted: Arc<AdmittedWire>| match admitted.stay() {
            ConnectionStay::Until(ends) => ends <= now,
            ConnectionStay::Answer | ConnectionStay::Pair => false,
        };
        let mut all = self.all.lock();
        let overdue = all.extract_if(.., |(_, one)| one.upgrade().is_none_or(is_overdue));
        let overdue = overdue.filter_map(|(wire, _)| wire.upgrade()).collect::<Vec<_>>();
        drop(all);
        overdue.iter().for_each(|wire| wire.hang_up());
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
