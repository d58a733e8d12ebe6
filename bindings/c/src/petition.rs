//! Petitions: requests of processes that are no members. `include/upcall_message.h` documents the
//! functions.

use crate::client::{hand_out, take_back};
use crate::error::{CError, Problem, Status, guard_or, guard_status, text};
use crate::group::{CGroup, MallocBlock, duration, there, with};
use crate::late::{CInvitation, ranks};
use std::ffi::{CString, c_char, c_void};
use std::ptr::{self, NonNull};
use std::slice;
use upcall_message::Petition;

/// `upcall_petition`.
pub struct CPetition {
    petition: Petition,
    /// The identity of its host, for C.
    host: Option<CString>,
}

/// The bytes that C gives.
///
/// # Safety
/// `size` bytes lie at `data`, or it is null.
unsafe fn bytes<'a>(data: *const c_void, size: usize) -> Result<&'a [u8], Problem> {
    match data.is_null() {
        true if size > 0 => Err(Problem::misuse(format!("the {size} bytes are NULL"))),
        true => Ok(&[]),
        // SAFETY: the caller's contract.
        false => Ok(unsafe { slice::from_raw_parts(data.cast(), size) }),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_petition_ask(
    address: *const c_char,
    request: *const c_void,
    size: usize,
    nanoseconds: u64,
    answer: *mut *const c_void,
    answer_size: *mut usize,
    error: *mut CError,
) -> Status {
    let run = || {
        // SAFETY: per the header, a C string.
        let address = unsafe { text(address, "the address") }?;
        // SAFETY: per the header, that many bytes lie there.
        let request = unsafe { bytes(request, size) }?;
        let null = || Problem::misuse("the pointer to the answer or to its size is NULL");
        let to = NonNull::new(answer).ok_or_else(null)?;
        let to_size = NonNull::new(answer_size).ok_or_else(null)?;
        let found = upcall_message::petition(address, request, duration(nanoseconds))?;
        let mut block = MallocBlock::new(found.len());
        block.bytes().copy_from_slice(&found);
        // SAFETY: per the header the caller's; it need not be initialised.
        unsafe { to_size.write(found.len()) };
        // SAFETY: as above.
        unsafe { to.write(block.give()) };
        Ok(())
    };
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard_status(error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_petition(
    group: *mut CGroup,
    petition: *mut *mut CPetition,
    error: *mut CError,
) -> Status {
    let run = |group: &CGroup| {
        let to = NonNull::new(petition)
            .ok_or_else(|| Problem::misuse("the pointer to the petition is NULL"))?;
        let Some(petition) = group.group.petition() else { return Ok(there(false)) };
        // Hexadecimal digits have no NUL.
        let host = petition.host().and_then(|host| CString::new(host).ok());
        // SAFETY: per the header the caller's; it need not be initialised.
        unsafe { to.write(hand_out(CPetition { petition, host })) };
        Ok(Status::Ok)
    };
    // SAFETY: the header's contract.
    unsafe { with(group, error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_petition_data(petition: *const CPetition) -> *const c_void {
    // SAFETY: per the header, null or a petition.
    let bytes = unsafe { petition.as_ref() }.map(|of| of.petition.bytes());
    bytes.filter(|bytes| !bytes.is_empty()).map_or(ptr::null(), |bytes| bytes.as_ptr().cast())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_petition_size(petition: *const CPetition) -> usize {
    // SAFETY: as above.
    unsafe { petition.as_ref() }.map_or(0, |of| of.petition.bytes().len())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_petition_host(petition: *const CPetition) -> *const c_char {
    // SAFETY: as above.
    let host = unsafe { petition.as_ref() }.and_then(|of| of.host.as_deref());
    host.map_or(ptr::null(), |host| host.as_ptr())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_petition_answer(
    petition: *mut CPetition,
    data: *const c_void,
    size: usize,
) {
    guard_or((), || {
        // SAFETY: per the header, null or a petition that the caller gives up.
        let Some(of) = (unsafe { take_back(petition) }) else { return };
        // SAFETY: per the header, that many bytes lie there.
        match unsafe { bytes(data, size) } {
            Ok(bytes) => of.petition.answer(bytes),
            // Dropped, and so refused.
            Err(_) => drop(of),
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_petition_refuse(petition: *mut CPetition, why: *const c_char) {
    guard_or((), || {
        // SAFETY: per the header, null or a petition that the caller gives up.
        let Some(of) = (unsafe { take_back(petition) }) else { return };
        // SAFETY: per the header, a C string or null.
        if let Ok(why) = unsafe { text(why, "the reason") } {
            of.petition.refuse(why);
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_expect_from(
    group: *mut CGroup,
    first: usize,
    count: usize,
    petition: *const CPetition,
    invitation: *mut CInvitation,
    error: *mut CError,
) -> Status {
    let run = |group: &CGroup| {
        let to = NonNull::new(invitation)
            .ok_or_else(|| Problem::misuse("the pointer to the invitation is NULL"))?;
        // SAFETY: per the header, null or a petition.
        let of =
            unsafe { petition.as_ref() }.ok_or_else(|| Problem::misuse("the petition is NULL"))?;
        let invitation = group.group.expect_from(ranks(first, count), &of.petition)?;
        // SAFETY: per the header the caller's; it need not be initialised.
        unsafe { to.write(CInvitation::of(&invitation)) };
        Ok(Status::Ok)
    };
    // SAFETY: the header's contract.
    unsafe { with(group, error, run) }
}
