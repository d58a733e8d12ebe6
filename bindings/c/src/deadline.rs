//! The time for which the caller of a running procedure waits.

use crate::error::guard_or;
use std::time::Instant;

/// `UPCALL_NO_DEADLINE`.
const NO_DEADLINE: u64 = u64::MAX;

#[unsafe(no_mangle)]
pub extern "C" fn upcall_deadline() -> u64 {
    guard_or(NO_DEADLINE, || {
        let Some(ends) = upcall_thread::calls_end() else { return NO_DEADLINE };
        let left = ends.saturating_duration_since(Instant::now());
        // A deadline that is further away than 584 years is still one.
        u64::try_from(left.as_nanos()).unwrap_or(NO_DEADLINE).min(NO_DEADLINE - 1)
    })
}
