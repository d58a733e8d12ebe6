//! A session: what a server keeps for one binding, above all the resources that the client holds.
//!
//! A handle is a number that is valid in its own session only, so a client can forge no handle but
//! its own. It carries a generation, so an old handle does not name a new object. When the client
//! drops its last handle, unbinds, or dies, the objects are dropped.

use crate::pace::Pace;
use std::any::Any;
use std::collections::{BTreeMap, TryReserveError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_os::reaper;
use upcall_sched::quota::{Holding, Over, QuotaAccount, QuotaKind};

/// Maximum number of results that are kept for one binding until the client fetches them: one for
/// each call that can be under way in a channel.
const MOST_HELD: usize = upcall_shm::channel::LANES as usize * upcall_shm::channel::DEPTH;

/// The state of one binding in the server; see the module.
#[derive(Debug)]
pub struct Session {
    account: Arc<QuotaAccount>,
    state: KernelMutex<SessionState>,
}

#[derive(Debug, Default)]
struct SessionState {
    closed: bool,
    objects: Vec<ObjectSlot>,
    free: Vec<u32>,
    /// Results that did not fit into the memory that the client brought, until the client fetches
    /// or forgets them.
    held: BTreeMap<u64, StoredResult>,
    next_held: u64,
}

/// A result that is kept until it is fetched, and charged to the client until its memory is free.
/// The fields are dropped in this order.
#[derive(Debug)]
pub(crate) struct StoredResult {
    pub(crate) block: Vec<u64>,
    _counted: Holding,
}

#[derive(Debug, Default)]
struct ObjectSlot {
    generation: u32,
    object: Option<Box<dyn Any + Send + Sync>>,
}

/// Why an object is not kept for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoObjectSlot {
    /// The client holds the maximum number.
    TooMany,
    NoMemory,
}

impl Session {
    /// Makes the session of a client with this account.
    pub(crate) fn new(account: Arc<QuotaAccount>) -> Self {
        Self { account, state: KernelMutex::default() }
    }

    /// The account that the client's holdings are charged to.
    pub(crate) fn account(&self) -> &Arc<QuotaAccount> {
        &self.account
    }

    fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock()
    }

    /// Keeps an object (an `Arc<T>` in a box) for the client, and returns its handle. A closed
    /// session drops the object at once.
    ///
    /// # Errors
    /// The client holds the maximum number, or there is no memory to record another object.
    pub(crate) fn insert(&self, object: Box<dyn Any + Send + Sync>) -> Result<u64, NoObjectSlot> {
        let mut state = self.state();
        if state.closed {
            return Ok(0);
        }
        state.make_room().map_err(|_| NoObjectSlot::NoMemory)?;
        self.account.charge(QuotaKind::Objects, 1).map_err(|_| NoObjectSlot::TooMany)?;
        let index = state.free.pop().unwrap_or_else(|| {
            state.objects.push(ObjectSlot::default());
            (state.objects.len() - 1) as u32
        });
        let place = &mut state.objects[index as usize];
        place.generation = place.generation.wrapping_add(1);
        place.object = Some(object);
        Ok(u64::from(place.generation) << 32 | u64::from(index))
    }

    pub(crate) fn get<T: ?Sized + Send + Sync + 'static>(&self, handle: u64) -> Option<Arc<T>> {
        let mut state = self.state();
        state.place(handle)?.object.as_ref()?.downcast_ref::<Arc<T>>().cloned()
    }

    pub(crate) fn take<T: ?Sized + Send + Sync + 'static>(&self, handle: u64) -> Option<Arc<T>> {
        let mut state = self.state();
        let place = state.place(handle)?;
        let object = place.object.as_ref()?.downcast_ref::<Arc<T>>().cloned()?;
        let hold = place.object.take();
        state.free.push(handle as u32);
        drop(state);
        self.account.credit(QuotaKind::Objects, 1);
        drop(hold);
        Some(object)
    }

    /// Drops the client's hold on an object. Returns `true` if the client held it.
    pub(crate) fn remove(&self, handle: u64) -> bool {
        let mut state = self.state();
        let object = state.place(handle).and_then(|place| place.object.take());
        let removed = object.is_some();
        if removed {
            state.free.push(handle as u32);
        }
        // The object's own drop may take long, or use this session.
        drop(state);
        self.account.credit(QuotaKind::Objects, usize::from(removed));
        object.into_iter().for_each(let_go);
        removed
    }

    /// Charges the client for a result of this many words that is about to be made and kept.
    ///
    /// # Errors
    /// The client has left too many results unfetched.
    pub(crate) fn count_result(&self, words: usize) -> Result<Holding, Over> {
        self.account.hold(QuotaKind::Results, words.saturating_mul(size_of::<u64>()))
    }

    /// Keeps a result, which was [counted](Self::count_result), until it is fetched. Returns its
    /// key.
    pub(crate) fn hold(&self, block: Vec<u64>, counted: Holding) -> u64 {
        let mut state = self.state();
        if state.closed {
            drop(state);
            Pace::new(true).free(block);
            return 0;
        }
        state.next_held += 1;
        let key = state.next_held;
        // A client that keeps to the protocol fetches a result before its place in the lane is used
        // again.
        let oldest = if state.held.len() < MOST_HELD { None } else { state.held.pop_first() };
        state.held.insert(key, StoredResult { block, _counted: counted });
        drop(state);
        oldest.into_iter().for_each(|(_, kept)| kept.forget());
        key
    }

    pub(crate) fn fetch(&self, key: u64) -> Option<StoredResult> {
        self.state().held.remove(&key)
    }

    /// Drops everything that the client holds. Calls that still run find nothing any more. Objects
    /// that they use live until those calls end.
    pub(crate) fn close(&self) -> Orphans {
        let mut state = self.state();
        state.closed = true;
        let objects = std::mem::take(&mut state.objects);
        let held = std::mem::take(&mut state.held);
        state.free.clear();
        drop(state);
        let bytes = held.values().map(|kept| size_of_val(&*kept.block)).sum();
        reaper::free(held, bytes);
        let left = objects.iter().filter(|place| place.object.is_some()).count();
        // The client no longer holds these objects, although their drops may take time.
        self.account.credit(QuotaKind::Objects, left);
        Orphans(objects)
    }

    /// Number of objects that the client holds.
    pub fn objects(&self) -> usize {
        let state = self.state();
        state.objects.len() - state.free.len()
    }
}

impl StoredResult {
    /// Drops a result that will not be fetched. A large result is freed on another thread, since
    /// the caller may be the clerk.
    pub(crate) fn forget(self) {
        let bytes = size_of_val(&*self.block);
        reaper::free(self, bytes);
    }
}

/// Returns pages in pieces: `mmap` in other threads waits while the kernel takes many at once.
impl Drop for StoredResult {
    fn drop(&mut self) {
        Pace::new(false).free(std::mem::take(&mut self.block));
    }
}

/// Number of objects that are dropped before other threads of the processor get a turn.
const BATCH: usize = 64;

/// Objects whose client has ended. Dropping this drops them, for as long as their own drops take.
#[must_use]
pub(crate) struct Orphans(Vec<ObjectSlot>);

impl Orphans {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|place| place.object.is_none())
    }
}

impl Drop for Orphans {
    fn drop(&mut self) {
        for (at, object) in self.0.drain(..).filter_map(|place| place.object).enumerate() {
            if at % BATCH == BATCH - 1 {
                upcall_thread::yield_now();
            }
            let_go(object);
        }
    }
}

/// Drops an object or a service. The drop is the server's code: a panic in it neither ends the
/// server nor stops the dropping of other objects.
pub(crate) fn let_go<T>(dropped: T) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(dropped)));
}

impl SessionState {
    /// Makes room for one more object, and for the numbers of all objects once they are free.
    fn make_room(&mut self) -> Result<(), TryReserveError> {
        if !self.free.is_empty() {
            return Ok(());
        }
        self.objects.try_reserve(1)?;
        self.free.try_reserve(self.objects.len() + 1)
    }

    fn place(&mut self, handle: u64) -> Option<&mut ObjectSlot> {
        let place = self.objects.get_mut(handle as u32 as usize)?;
        (u64::from(place.generation) == handle >> 32).then_some(place)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use upcall_sched::quota::{Quota, QuotaLedger, Quotas};

    /// Makes an account that may hold this many of each kind, and shares them with no other
    /// account.
    pub(crate) fn account(most: usize) -> Arc<QuotaAccount> {
        let same = |n| Quota {
            descriptors: n,
            mappings: n,
            bytes: n,
            objects: n,
            results: n,
            values: n,
            unfilled: n,
        };
        QuotaLedger::new(Quotas { calls: 1, client: same(most), all: same(usize::MAX) }, None)
            .account(None, None)
    }

    trait Thing: Send + Sync {}
    impl Thing for u8 {}
    impl Thing for Arc<u16> {}

    fn object(value: impl Thing + 'static) -> Box<dyn Any + Send + Sync> {
        Box::new(Arc::new(value) as Arc<dyn Thing>)
    }

    #[test]
    fn a_handle_is_good_until_it_is_dropped() {
        let session = Session::new(account(2));
        let first = session.insert(object(1u8)).unwrap();
        assert!(session.get::<dyn Thing>(first).is_some());
        assert!(session.get::<str>(first).is_none(), "another type");
        assert!(
            session.get::<dyn Thing>(first + 1).is_none()
                && session.get::<dyn Thing>(first ^ 1 << 40).is_none()
        );
        assert!(session.remove(first) && !session.remove(first));
        let second = session.insert(object(2u8)).unwrap();
        assert_ne!(first, second);
        assert!(session.get::<dyn Thing>(first).is_none());
        let third = session.insert(object(3u8)).unwrap();
        assert!(
            session.insert(object(4u8)).is_err() && session.remove(third),
            "two are all that it may hold"
        );
        assert!(
            session.take::<dyn Thing>(second).is_some()
                && session.take::<dyn Thing>(second).is_none()
        );
        assert_eq!(session.objects(), 0);
    }

    #[test]
    fn results_that_are_not_fetched_are_counted_until_they_are() {
        let account = account(100);
        let session = Session::new(account.clone());
        let hold = |block: Vec<u64>| {
            session.count_result(block.len()).map(|counted| session.hold(block, counted))
        };
        let first = hold(vec![1; 20]).unwrap();
        assert!(
            session.count_result(1).is_err(),
            "one may be longer than that, but then no other is kept"
        );
        assert_eq!(session.fetch(first).unwrap().block, vec![1; 20]);
        for _ in 0..3 {
            hold(vec![3; 4]).unwrap();
        }
        assert!(session.count_result(1).is_err());
        drop(session.close());
        account.charge(QuotaKind::Results, 100).unwrap();
    }

    #[test]
    fn closing_drops_what_is_held_once() {
        let session = Session::new(account(2));
        let inner = Arc::new(7u16);
        session.insert(object(inner.clone())).unwrap();
        assert_eq!(Arc::strong_count(&inner), 2);
        let orphans = session.close();
        assert_eq!((Arc::strong_count(&inner), orphans.is_empty()), (2, false));
        drop(orphans);
        assert_eq!(Arc::strong_count(&inner), 1);
        assert!(session.close().is_empty());
        session.insert(object(inner.clone())).unwrap();
        assert_eq!(Arc::strong_count(&inner), 1);
    }
}
