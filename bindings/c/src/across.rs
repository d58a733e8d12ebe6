//! Groups across hosts.
//! `include/upcall_message.h` documents the functions.

use crate::error::{CError, Problem, Status, guard_status, text};
use crate::group::{CGroupBuilder, duration, say};
use std::ffi::c_char;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_joining_set_across(
    joining: *mut CGroupBuilder,
    address: *const c_char,
    error: *mut CError,
) -> Status {
    let run = || {
        // SAFETY: per the header, null, or a builder that is not in use elsewhere.
        let joining =
            unsafe { joining.as_mut() }.ok_or_else(|| Problem::misuse("`joining` is NULL"))?;
        // SAFETY: per the header, a C string.
        let address = unsafe { text(address, "the address") }?;
        joining.0 = joining.0.clone().across(address);
        Ok(())
    };
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard_status(error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_joining_set_lost_after(
    joining: *mut CGroupBuilder,
    nanoseconds: u64,
) {
    // SAFETY: the header's contract.
    unsafe { say(joining, |joining| joining.lost_after(duration(nanoseconds))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_joining_set_reconnect_within(
    joining: *mut CGroupBuilder,
    nanoseconds: u64,
) {
    // SAFETY: the header's contract.
    unsafe { say(joining, |joining| joining.reconnect_within(duration(nanoseconds))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{upcall_joining_free, upcall_joining_new};
    use std::ptr::null_mut;
    use std::time::Duration;

    #[test]
    fn options_across_hosts_reach_the_builder() {
        // SAFETY: a C string, and no error is asked for.
        let joining = unsafe { upcall_joining_new(c"g".as_ptr(), 2, null_mut()) };
        // SAFETY: a builder.
        unsafe { upcall_joining_set_lost_after(joining, 7_000_000_000) };
        // SAFETY: a builder.
        unsafe { upcall_joining_set_reconnect_within(joining, u64::MAX) };
        // SAFETY: a builder and a C string.
        let set = unsafe { upcall_joining_set_across(joining, c"ws1:7500".as_ptr(), null_mut()) };
        assert_eq!(set, Status::Ok);
        // SAFETY: a builder, and NULL, which is refused.
        let refused = unsafe { upcall_joining_set_across(joining, std::ptr::null(), null_mut()) };
        assert_eq!(refused, Status::Misuse);
        // SAFETY: a builder that no other code uses.
        let said = format!("{:?}", unsafe { &(*joining).0 });
        let never = format!("patience: {:?}", Duration::MAX);
        for part in ["address: Some(\"ws1:7500\")", "lost_after: 7s", &never] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // SAFETY: a builder that is no longer in use.
        unsafe { upcall_joining_free(joining) };
    }
}
