//! The callback by which C code passes messages to a handler.

use std::ffi::{CStr, c_char, c_void};
use std::slice;

use upcall_bench::child::Outcome;
use upcall_bench::messages::child::Handler;

/// The callback's C signature: context, handler, data and its length.
pub type Taken = unsafe extern "C" fn(*mut c_void, u16, *const u8, usize);

/// Passes a message to the handler at `to`.
///
/// # Safety
/// `to` points to an `H` that is not used elsewhere during the call. `data` points to `len` bytes
/// that are not written during the call, unless `len` is 0.
pub unsafe extern "C" fn taken<H: Handler>(
    to: *mut c_void,
    handler: u16,
    data: *const u8,
    len: usize,
) {
    // SAFETY: the caller's promise.
    let to = unsafe { &mut *to.cast::<H>() };
    let payload = match len {
        0 => &[][..],
        // SAFETY: the caller's promise.
        _ => unsafe { slice::from_raw_parts(data, len) },
    };
    to.message(handler, &payload);
}

/// # Safety
/// `wrong` is null, or points to a text that ends in a zero and is valid during the call.
#[inline(always)]
pub unsafe fn outcome(wrong: *const c_char) -> Outcome<()> {
    if wrong.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    Err(unsafe { CStr::from_ptr(wrong) }.to_string_lossy().into())
}
