//! What a donor remembers of the processor that it brought somebody to, lest it pays for that with
//! each call.
//!
//! ```text
//!   donor, before a wake                                 server, before a sleep
//!   1  asleep? and then: moved there, and cpu = there:   a  goes back where it belongs
//!      it is still there                                 b  cpu = nowhere
//!   2  otherwise: confine it, remember that              c  announce
//! ```
//! # Why the memory does not deceive
//! A donor that finds the server asleep sees what it did before it announced that: either it still
//! is where the donor has confined it, or it has said b. So a donor's wake finds the server on the
//! donor's own processor; unless it has woken up before and serves the call on another processor:
//! then the wake is for nothing. With several donors the last one wins; an earlier donor does not
//! know yet, and has its call served on the processor of the other. `tests/models/loom_donation.rs`
//! is the model.

use upcall_os::atomic::{AtomicU64, Ordering};

/// Said of a sleeping processor that may wake up anywhere.
pub const NOWHERE: u32 = u32::MAX;

/// The last thread that was moved, and where to; see the module.
#[derive(Debug, Default)]
pub struct Placed(AtomicU64);

fn word(tid: u32, cpu: u32) -> u64 {
    u64::from(tid) << 32 | u64::from(cpu.wrapping_add(1))
}

impl Placed {
    /// Whether the thread was moved to processor `cpu`, and `said` since that it is there.
    #[inline]
    pub fn is_at(&self, tid: u32, cpu: u32, said: Option<u32>) -> bool {
        self.0.load(Ordering::Relaxed) == word(tid, cpu) && said == Some(cpu)
    }

    /// Whether whatever was moved last was moved to processor `cpu`, and `said` since that it is
    /// there. Asks for neither if nothing was moved.
    #[inline]
    pub fn is_any_at(&self, cpu: impl FnOnce() -> u32, said: impl FnOnce() -> Option<u32>) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        last != 0 && {
            let cpu = cpu();
            last as u32 == cpu.wrapping_add(1) && said() == Some(cpu)
        }
    }

    /// Remembers that the thread was moved, or could not be.
    pub fn set(&self, tid: u32, cpu: u32, moved: bool) {
        self.0.store(if moved { word(tid, cpu) } else { 0 }, Ordering::Relaxed);
    }
}
