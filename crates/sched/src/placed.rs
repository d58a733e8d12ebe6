//! A donor's record of where it last pinned a server thread.
//!
//! With it the donor pays for `sched_setaffinity` once, and not on every call.
//!
//! ```text
//!   donor, before a wake                                 server, before a sleep
//!   1  asleep, pinned here, and cpu = here:              a  goes back where it belongs
//!      it is still here                                  b  cpu = nowhere
//!   2  otherwise: pin it, record that                    c  announce
//! ```
//! # Why the record does not deceive
//! A donor that finds the server asleep sees what the server did before it announced that: either
//! the server still is where the donor pinned it, or it has done b. So a donor's wake finds the
//! server on the donor's own CPU, unless the server has woken up before and serves the call on
//! another CPU; then the wake is for nothing. With several donors the last one wins. An earlier
//! donor does not know that yet, and its call is served on the CPU of the other.
//! `tests/models/loom_donation.rs` is the model.

use upcall_os::atomic::{AtomicU64, Ordering};

/// The CPU of a sleeping processor that may wake up anywhere.
pub const NOWHERE: u32 = u32::MAX;

/// The thread that was moved last, and its CPU; see the module.
#[derive(Debug, Default)]
pub struct Placed(AtomicU64);

fn word(tid: u32, cpu: u32) -> u64 {
    u64::from(tid) << 32 | u64::from(cpu.wrapping_add(1))
}

impl Placed {
    /// Returns `true` if thread `tid` was moved to `cpu` and is still there.
    ///
    /// `said` is the CPU that its station reports.
    #[inline]
    pub fn is_at(&self, tid: u32, cpu: u32, said: Option<u32>) -> bool {
        self.0.load(Ordering::Relaxed) == word(tid, cpu) && said == Some(cpu)
    }

    /// Returns `true` if the thread that was moved last was moved to `cpu` and is still there.
    ///
    /// `said` returns the CPU that its station reports. Calls neither closure if no thread was
    /// moved.
    #[inline]
    pub fn is_any_at(&self, cpu: impl FnOnce() -> u32, said: impl FnOnce() -> Option<u32>) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        last != 0 && {
            let cpu = cpu();
            last as u32 == cpu.wrapping_add(1) && said() == Some(cpu)
        }
    }

    /// Records that the thread was moved, or that it could not be.
    pub fn set(&self, tid: u32, cpu: u32, moved: bool) {
        self.0.store(if moved { word(tid, cpu) } else { 0 }, Ordering::Relaxed);
    }
}
