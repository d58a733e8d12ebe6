//! Switches between the threads of a virtual processor.
//!
//! # Why addresses of thread-locals may be cached
//! A thread that has started runs on one kernel thread for its whole life (only the processor that
//! the record's `home` names calls `switch`). So `here()` may be inlined, and its result kept
//! across a switch.

use crate::abort::without_panic;
use crate::arch;
use crate::record::{Rec, Record};
use crate::recycle;
use crate::vp::Vp;
use std::ptr;

impl Vp {
    /// Runs `to` instead of `from`, the running thread; returns when `from` runs again.
    ///
    /// `dead` is a thread whose stack may be reused once it is no longer running: `from`, or none.
    #[inline(always)]
    pub(crate) fn switch(&self, from: Rec, to: Rec, dead: Option<Rec>) {
        self.post.current.set(to);
        if cfg!(debug_assertions) || from.owns_control.get() || to.owns_control.get() {
            without_panic("the floating-point control words are not as they should be", || {
                exchange_control(from, to)
            });
        }
        let gift = dead.map_or(ptr::null(), |rec| rec.as_raw());
        // SAFETY: `to` came from this processor's queues, so it was suspended by its own last
        // switch, or is fresh from `prepare`. It was taken from its queue, so it is resumed once.
        // If it has started, it did so on this processor.
        let buried = unsafe { arch::switch(from.sp.as_ptr(), to.sp.get(), gift) };
        self.bury(buried);
    }

    /// Releases the reference that an ended thread held itself, after the switch away from it.
    #[inline(always)]
    pub(crate) fn bury(&self, gift: *const ()) {
        // SAFETY: a gift is null or comes from `Record::as_raw`.
        if let Some(dead) = unsafe { gift.cast::<Record>().as_ref() } {
            recycle::release(dead);
        }
    }

    /// As `end`, for a thread that has released its reference already: its joiner runs next.
    #[inline(always)]
    pub(crate) fn end_with(&self, me: Rec, joiner: Rec) -> ! {
        self.switch(me, joiner, None);
        unreachable!("a thread that had ended was resumed")
    }

    /// Runs `entry` on the stack of a thread that is suspended here.
    ///
    /// Returns when `entry` calls `end_interlude`.
    ///
    /// # Safety
    /// `suspended` has started, is not running, and has room on its stack for `entry`. `entry`
    /// calls `end_interlude`, and neither blocks nor yields.
    pub(crate) unsafe fn interlude(&self, suspended: Rec, entry: extern "C" fn() -> !) {
        let me = self.current();
        // SAFETY: the caller's promise.
        let begin = unsafe { arch::interlude(suspended.sp.get(), entry) };
        // SAFETY: `me` runs, and `end_interlude` resumes it, once.
        let gift = unsafe { arch::switch(me.sp.as_ptr(), begin, ptr::null()) };
        debug_assert!(gift.is_null());
    }

    /// Leaves an interlude for good.
    pub(crate) fn end_interlude(&self) -> ! {
        let mut nowhere = ptr::null_mut();
        // SAFETY: the current thread's pointer was stored when the interlude began; the interlude's
        // own pointer is discarded.
        unsafe { arch::switch(&raw mut nowhere, self.current().sp.get(), ptr::null()) };
        unreachable!("an interlude was resumed")
    }
}

/// Exchanges the floating-point control words, where one of the threads has its own: see `arch`.
#[cold]
fn exchange_control(from: Rec, to: Rec) {
    let running = arch::control();
    match from.extra() {
        Some(extra) if from.owns_control.get() => extra.control.set(running),
        _ => debug_assert!(
            running == arch::CONTROL,
            "a thread that blocks has changed the floating-point control words (to \
             {running:#x}); Rust code must not, and for code in other \
             languages the thread is to be spawned with Builder::own_floating_point_control"
        ),
    }
    let wanted = match to.extra() {
        Some(extra) if to.owns_control.get() => extra.control.get(),
        _ => arch::CONTROL,
    };
    if wanted != running {
        // SAFETY: `to` runs next, and these are its own, or the default ones.
        unsafe { arch::set_control(wanted) };
    }
}
