//! The kernel's function that reads the clock without a system call (vDSO), for images; and clocks
//! of ULPs that come from another kernel.
//!
//! The function uses no thread-locals, so it may run with a ULP's.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;

/// Address of the function; 0 if there is none, and an image asks the kernel.
pub(crate) fn address() -> u64 {
    static ADDRESS: OnceLock<u64> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        // SAFETY: names a library that the kernel has mapped, or none. It is not loaded if it is
        // not there, and is never unmapped.
        let library = unsafe {
            libc::dlopen(c"linux-vdso.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY)
        };
        if library.is_null() {
            return 0;
        }
        // SAFETY: the library is loaded, and the name is a C string.
        unsafe { libc::dlsym(library, c"__vdso_clock_gettime".as_ptr()) as u64 }
    })
}

/// What a ULP's clocks count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockOrigin {
    /// The kernel that the ULP leaves is this one, and its clocks go on.
    ThisKernel,
    /// It may have started at another time, on another host. The clocks go on from where they were
    /// when the ULP stopped.
    OtherKernel,
}

/// The clocks of a ULP that count from the kernel's start, in nanoseconds, which wrap around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UlpClocks {
    /// `CLOCK_MONOTONIC`.
    pub monotonic: u64,
    /// `CLOCK_BOOTTIME`.
    pub boot: u64,
}

impl UlpClocks {
    /// The kernel's clocks now.
    pub(crate) fn now() -> Self {
        let read = |clock| {
            let time = clock_gettime(clock);
            (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
        };
        Self { monotonic: read(ClockId::Monotonic), boot: read(ClockId::Boottime) }
    }

    /// The sums of both.
    pub(crate) fn plus(self, other: Self) -> Self {
        let monotonic = self.monotonic.wrapping_add(other.monotonic);
        Self { monotonic, boot: self.boot.wrapping_add(other.boot) }
    }

    /// How far these are ahead of `other`.
    pub(crate) fn ahead_of(self, other: Self) -> Self {
        let monotonic = self.monotonic.wrapping_sub(other.monotonic);
        Self { monotonic, boot: self.boot.wrapping_sub(other.boot) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_go_on_under_a_kernel_that_has_started_before_or_after() {
        let clocks = |monotonic, boot| UlpClocks { monotonic, boot };
        for (here, there) in [(clocks(100, 200), clocks(7, 9)), (clocks(7, 9), clocks(100, 200))] {
            // The ULP has moved before.
            let own = here.plus(clocks(u64::MAX - 3, 5));
            assert_eq!(there.plus(own.ahead_of(there)), own);
        }
    }
}
