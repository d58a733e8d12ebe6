//! Turns a record and a stack into a thread that can be switched to.

use crate::arch;
use crate::record::{Rec, WaitState};
use crate::slot;
use crate::vp::Vp;
use std::sync::atomic::Ordering;

/// The place for a `P` below the record.
#[inline(always)]
pub(crate) fn place<P>(rec: Rec, align: usize) -> *mut P {
    slot::top(rec).wrapping_sub(size_of::<P>()).map_addr(|a| a & !(align - 1)).cast()
}

/// Sets the fields that every thread's record needs before it starts.
#[inline(always)]
pub(crate) fn begin(vp: &Vp, rec: Rec, top: *mut u8, word: u64, entry: arch::EntryFn) {
    debug_assert!(
        rec.home().is_none() && !rec.has_result.get(),
        "a record that is reused is like a new one"
    );
    rec.token.store(0, Ordering::Relaxed);
    // Release: a processor that lists its threads (`dump`), and sees that this one has not ended,
    // also sees that the thread is not at home there.
    rec.word.store(word, Ordering::Release);
    rec.state.set(WaitState::RUNS);
    rec.id.set(vp.number());
    // SAFETY: the top is aligned to 64, and everything below it, down to the guard, is this
    // thread's unused stack.
    rec.sp.set(unsafe { arch::prepare(top, entry, rec.as_raw()) });
}
