//! What other kernel threads see of a virtual processor.
//!
//! That is its inbox, its threads that have not started, and the way to wake it.

use crate::fresh::Fresh;
use crate::idle::Idle;
use crate::inbox::Inbox;
use crate::record::{Home, HomeAddress, Rec, Record};
use crate::sync::{Apart, Fences};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The part of a virtual processor that other kernel threads touch.
///
/// It begins with what the records of the processor's threads know of it.
#[repr(C)]
pub(crate) struct VpShared {
    pub(crate) home: Home,
    pub(crate) idle: Arc<dyn Idle>,
    /// A list of its threads is wanted: see `dump`.
    pub(crate) dump_wanted: AtomicBool,
    pub(crate) fresh: Fresh<Record>,
    pub(crate) inbox: Apart<Inbox<Record>>,
}

impl VpShared {
    /// The processor's index, from 0.
    #[inline(always)]
    pub(crate) fn index(&self) -> usize {
        self.home.index
    }

    /// The address by which records refer to this processor.
    #[inline(always)]
    pub(crate) fn address(&'static self) -> HomeAddress {
        // SAFETY: `self` begins with a home, by `repr(C)`, and lives as long as the process.
        unsafe { HomeAddress::new(NonNull::from(self).cast()) }
    }

    /// The processor that records refer to by `home`.
    #[inline(always)]
    pub(crate) fn at(home: HomeAddress) -> &'static Self {
        // SAFETY: only `address` makes home addresses, from such a reference.
        unsafe { home.get().cast().as_ref() }
    }

    /// Returns `true` if the thread of `rec` belongs to this processor.
    #[inline(always)]
    pub(crate) fn is_home_of(&'static self, rec: Rec) -> bool {
        rec.home() == Some(self.address())
    }

    #[inline(always)]
    pub(crate) fn is_dump_wanted(&self) -> bool {
        self.dump_wanted.load(Ordering::Relaxed)
    }

    /// Makes a thread of this processor ready, from another kernel thread.
    ///
    /// `parker` explains why the wake is not lost.
    pub(crate) fn post(&self, rec: Rec) {
        if self.inbox.push(rec) {
            std::sync::atomic::fence(Ordering::SeqCst);
            self.idle.unpark(self.index());
        }
    }
}

/// The virtual processors of one `run`. Never freed, since a late waker may still read it.
pub(crate) struct VpGroup {
    pub(crate) members: Vec<VpShared>,
    pub(crate) fences: Fences,
    /// The default stack size in bytes, and its class.
    pub(crate) stack_size: usize,
    pub(crate) default_class: u8,
    /// The same for workers.
    pub(crate) work_stack_size: usize,
    pub(crate) work_class: u8,
    /// Maximum number of workers of each processor.
    pub(crate) most_workers: usize,
    /// Bit i: processor i is idle and wants to be called when a thread is spawned.
    pub(crate) hungry: Apart<AtomicU64>,
}

impl VpGroup {
    /// Calls one hungry processor, if there is one, to look for a thread that was spawned.
    #[cold]
    pub(crate) fn call_one(&self) {
        let mut hungry = self.hungry.load(Ordering::Relaxed);
        while hungry != 0 {
            let bit = hungry & hungry.wrapping_neg();
            // SeqCst: the called processor's last look must find the cleared bit; see
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
