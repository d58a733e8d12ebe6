//! Messages in place, for C: a function of the program reads a message, which is then disposed of,
//! or stays.
//!
//! The place that C gets is a description that was read once, and the address. It is on the stack
//! of [`look`], and borrows the queue as long as it exists: so the message is not taken elsewhere,
//! and its memory stays mapped. Only the size is checked against the signature, since everything
//! else could change after the check.

use crate::error::{CError, Problem, Status, guard_or};
use crate::group::{CGroup, NO_KIND, there, with};
use std::ffi::c_void;
use std::{ptr, slice};
use upcall_message::{Message, Uninterpreted};

/// `upcall_place`.
pub struct CPlace<'a> {
    from: usize,
    kind: u32,
    payload: Uninterpreted<'a>,
}

type LookFn = unsafe extern "C" fn(*mut c_void, *mut CGroup, *const CPlace<'_>);

/// Lets the program read the next message, which is then disposed of, or stays.
///
/// # Safety
/// As the header requires for both.
unsafe fn look(
    group: *mut CGroup,
    look: Option<LookFn>,
    context: *mut c_void,
    takes: bool,
    error: *mut CError,
) -> Status {
    let run = |of: &CGroup| {
        let look = look.ok_or_else(|| Problem::misuse("the function for the message is NULL"))?;
        let seen = |message: &Message<'_, '_>| {
            // A message of an unknown kind, or of the wrong size for its kind, is a violation.
            of.kinds
                .get(usize::from(message.kind()))
                .filter(|kind| kind.may_have(message.size()))?;
            let place = CPlace {
                from: message.from(),
                kind: message.kind().into(),
                payload: message.payload(),
            };
            // SAFETY: per the header, a function for this context, which does not unwind. The place
            // lives until it has returned.
            unsafe { look(context, group, &raw const place) };
            Some(())
        };
        let found =
            if takes { of.group.receive_foreign(seen) } else { of.group.peek_foreign(seen) };
        Ok(there(found.is_ok()))
    };
    // SAFETY: the caller's contract.
    unsafe { with(group, error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_receive_in_place(
    group: *mut CGroup,
    take: Option<LookFn>,
    context: *mut c_void,
    error: *mut CError,
) -> Status {
    // SAFETY: the header's contract.
    unsafe { look(group, take, context, true, error) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_peek_in_place(
    group: *mut CGroup,
    seen: Option<LookFn>,
    context: *mut c_void,
    error: *mut CError,
) -> Status {
    // SAFETY: the header's contract.
    unsafe { look(group, seen, context, false, error) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_place_from(place: *const CPlace<'_>) -> usize {
    // SAFETY: per the header, null, or the argument of a function that has not returned.
    unsafe { place.as_ref() }.map_or(0, |place| place.from)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_place_kind(place: *const CPlace<'_>) -> u32 {
    // SAFETY: as above.
    unsafe { place.as_ref() }.map_or(NO_KIND, |place| place.kind)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_place_size(place: *const CPlace<'_>) -> usize {
    // SAFETY: as above.
    unsafe { place.as_ref() }.map_or(0, |place| place.payload.len())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_place_word(place: *const CPlace<'_>, at: usize) -> u64 {
    // SAFETY: as above.
    unsafe { place.as_ref() }.and_then(|place| place.payload.u64(at.checked_mul(8)?)).unwrap_or(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_place_copy(
    place: *const CPlace<'_>,
    at: usize,
    to: *mut u8,
    len: usize,
) -> bool {
    guard_or(false, || {
        // SAFETY: as above.
        let Some(part) = (unsafe { place.as_ref() }).and_then(|place| place.payload.part(at, len))
        else {
            return false;
        };
        if len == 0 || to.is_null() {
            return len == 0;
        }
        // SAFETY: per the header, that many bytes of the caller's; they are fully written before
        // they are read.
        part.copy_out(0, unsafe { slice::from_raw_parts_mut(to, len) }).is_some()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_place_data(place: *const CPlace<'_>) -> *const c_void {
    // SAFETY: as above.
    let payload = unsafe { place.as_ref() }.map(|place| place.payload);
    payload
        .filter(|payload| !payload.is_empty())
        .map_or(ptr::null(), |payload| payload.as_ptr().cast())
}
