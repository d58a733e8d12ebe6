//! Where a record goes when its thread has ended and no handle names it any more.

use crate::kernel;
use crate::record::Rec;
use crate::stack;
use crate::vp::here;

/// Reuses a record whose last reference is gone.
#[inline(always)]
pub(crate) fn reuse(rec: Rec) {
    rec.retire();
    if rec.bottom.get().is_null() {
        kernel::reuse(rec);
    } else if let Some(vp) = here() {
        vp.stacks.give(rec);
    } else {
        stack::give_from_outside(rec);
    }
}

/// Releases one reference to a record, which is reused if that was the last.
#[inline(always)]
pub(crate) fn release(rec: Rec) {
    if rec.release() {
        reuse(rec);
    }
}
