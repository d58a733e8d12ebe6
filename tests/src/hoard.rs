//! The server's side of the interface whose clients take all that they may.

use crate::interfaces::hoard::hoard::{Serve, ServeThing};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use upcall::thread::{Condvar, Mutex};

/// Counts the calls under way that stay. Its clones share the count.
#[derive(Clone, Default)]
pub struct Hoard(Arc<Inner>);

#[derive(Default)]
struct Inner {
    inside: AtomicU64,
    never: (Mutex<()>, Condvar),
}

struct Thing;

impl ServeThing for Thing {
    fn null(&self) {}
}

impl std::fmt::Debug for Hoard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hoard").field(&self.inside()).finish()
    }
}

impl Serve for Hoard {
    fn open(&self, count: u32) -> Vec<Arc<dyn ServeThing>> {
        (0..count).map(|_| Arc::new(Thing) as Arc<dyn ServeThing>).collect()
    }
    fn give(&self, len: u64) -> Vec<u8> {
        vec![7; len as usize]
    }
    fn keep(&self, _text: &str) {
        self.stay();
    }
    fn stay(&self) {
        self.0.inside.fetch_add(1, SeqCst);
        let (lock, changed) = &self.0.never;
        drop(changed.wait_while(lock.lock(), |()| true));
    }
    fn inside(&self) -> u64 {
        self.0.inside.load(SeqCst)
    }
}
