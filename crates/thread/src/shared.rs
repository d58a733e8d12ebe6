//! What others see of a virtual processor: its inbox, its threads that have not started, and the
//! way to wake it.

use crate::dump::Wanted;
use crate::fresh::Fresh;
use crate::idle::Idle;
use crate::inbox::Inbox;
use crate::record::{Rec, Record};
use crate::sync::{Apart, Fences};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The part of a virtual processor that other kernel threads touch.
pub(crate) struct Shared {
    pub(crate) index: usize,
    pub(crate) idle: Arc<dyn Idle>,
    pub(crate) fresh: Fresh<Record>,
    pub(crate) inbox: Apart<Inbox<Record>>,
    pub(crate) dump: Wanted,
}

/// Where a processor's index lies in `Shared`, for those who look from outside.
pub(crate) const INDEX_OFFSET: usize = std::mem::offset_of!(Shared, index);

impl Shared {
    /// Another kernel thread makes a thread of this processor ready. See `parker` for why the wake
    /// is not lost.
    pub(crate) fn post(&self, rec: Rec) {
        if self.inbox.push(rec) {
            std::sync::atomic::fence(Ordering::SeqCst);
            self.idle.unpark(self.index);
        }
    }
}

/// The virtual processors of one `run`. Never freed: a late waker may still look at it.
pub(crate) struct Group {
    pub(crate) members: Vec<Shared>,
    pub(crate) fences: Fences,
    /// In bytes, and the class for it.
    pub(crate) stack_size: usize,
    pub(crate) default_class: u8,
    /// The same for workers.
    pub(crate) work_stack_size: usize,
    pub(crate) work_class: u8,
    /// Of each processor.
    pub(crate) most_workers: usize,
    /// Bit i: processor i has nothing to do and wants to be called when a thread is spawned.
    pub(crate) hungry: Apart<AtomicU64>,
}

impl Group {
    /// A thread was spawned while somebody is hungry: calls one, which then looks for it.
    #[cold]
    pub(crate) fn call_one(&self) {
        let mut hungry = self.hungry.load(Ordering::Relaxed);
        while hungry != 0 {
            let bit = hungry & hungry.wrapping_neg();
            // SeqCst: the cleared bit is what the called processor's last look finds; see
            // `Vp::has_work`.
            let before = self.hungry.fetch_and(!bit, Ordering::SeqCst);
            if before & bit != 0 {
                self.members[0].idle.unpark(bit.trailing_zeros() as usize);
                return;
            }
            hungry = before & !bit;
        }
    }
}

/// Numbers that are never used twice in the life of the process.
/// The first few are words of their own in `Record::ticket` and `Record::token`.
static NUMBERS: AtomicU64 = AtomicU64::new(16);
/// How many numbers a processor draws at once.
pub(crate) const NUMBER_BLOCK: u64 = 4096;

/// The first of `count` fresh numbers.
pub(crate) fn draw_numbers(count: u64) -> u64 {
    NUMBERS.fetch_add(count, Ordering::Relaxed)
}
