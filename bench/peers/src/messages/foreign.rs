//! What C gives messages to.

use std::ffi::{CStr, c_char, c_void};
use std::slice;

use upcall_bench::child::Outcome;
use upcall_bench::messages::child::Handler;

/// As C calls it: context, handler, data and their length.
pub type Taken = unsafe extern "C" fn(*mut c_void, u16, *const u8, usize);

/// Gives a message to the handler that `to` points to.
///
/// # Safety
/// `to` points to an `H` that nobody else uses meanwhile, and `data` to `len` bytes that nobody
/// writes meanwhile, if there are any.
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
/// `wrong` is null or a text that ends in a zero and stands meanwhile.
#[inline(always)]
pub unsafe fn outcome(wrong: *const c_char) -> Outcome<()> {
    if wrong.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    Err(unsafe { CStr::from_ptr(wrong) }.to_string_lossy().into())
}
