//! Clients and their resources: bindings with the terms of their calls.

use crate::accepts::CAccepts;
use crate::error::{CError, Problem, Status, guard, guard_or, text};
use crate::interface::{CInterface, known};
use std::ffi::c_char;
use std::ptr;
use std::time::Duration;
use upcall_rpc::{BindTerms, Binding, CancelToken, HandOff, Handle, Pacing, WhenFull};

/// `upcall_client`.
pub struct CClient {
    pub(crate) binding: Binding,
}

/// `upcall_resource`.
pub struct CResource {
    pub(crate) client: CClient,
    pub(crate) handle: Handle,
}

pub(crate) fn hand_out<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Takes back what [`hand_out`] returned, if it is not null.
///
/// # Safety
/// `given` came from `hand_out`, and is not in use elsewhere.
pub(crate) unsafe fn take_back<T>(given: *mut T) -> Option<Box<T>> {
    if given.is_null() {
        return None;
    }
    // SAFETY: the caller's contract.
    Some(unsafe { Box::from_raw(given) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_bind(
    name: *const c_char,
    interface: *const CInterface,
    error: *mut CError,
) -> *mut CClient {
    // SAFETY: the header's contract.
    unsafe { upcall_bind_expecting(name, interface, ptr::null(), error) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_bind_expecting(
    name: *const c_char,
    interface: *const CInterface,
    accepts: *const CAccepts,
    error: *mut CError,
) -> *mut CClient {
    // SAFETY: the header's contract.
    unsafe { upcall_bind_wait(name, interface, accepts, 0, error) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_bind_wait(
    name: *const c_char,
    interface: *const CInterface,
    accepts: *const CAccepts,
    nanoseconds: u64,
    error: *mut CError,
) -> *mut CClient {
    let terms = CBindTerms { accepts, wait: nanoseconds, lost_after: 0 };
    // SAFETY: the header's contract.
    unsafe { upcall_bind_on(name, interface, &raw const terms, error) }
}

/// `upcall_bind_terms`.
#[repr(C)]
pub struct CBindTerms {
    accepts: *const CAccepts,
    /// In nanoseconds.
    wait: u64,
    /// In nanoseconds; 0 for the usual time.
    lost_after: u64,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_bind_on(
    name: *const c_char,
    interface: *const CInterface,
    terms: *const CBindTerms,
    error: *mut CError,
) -> *mut CClient {
    const USUAL: CBindTerms = CBindTerms { accepts: ptr::null(), wait: 0, lost_after: 0 };
    let null = |_: Status| ptr::null_mut();
    let run = || {
        // SAFETY: per the header, a C string.
        let name = unsafe { text(name, "the name") }?;
        // SAFETY: per the header, a descriptor that lives as long as the program.
        let interface = unsafe { known(interface) }?;
        // SAFETY: per the header, null or a struct of the caller's.
        let given = unsafe { terms.as_ref() }.unwrap_or(&USUAL);
        // SAFETY: per the header, null or a struct of the caller's.
        let policy = match unsafe { given.accepts.as_ref() } {
            None => None,
            // SAFETY: the header's contract.
            Some(accepts) => Some(unsafe { accepts.policy() }?),
        };
        let mut terms = BindTerms::new(policy.as_deref());
        if given.lost_after > 0 {
            terms.lost_after = Duration::from_nanos(given.lost_after);
        }
        let limit = Duration::from_nanos(given.wait);
        let binding = Binding::bind_wait_on(name, interface, terms, limit)?;
        Ok(hand_out(CClient { binding }))
    };
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard(error, null, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_client_part(
    client: *const CClient,
    id: *const c_char,
    error: *mut CError,
) -> *mut CClient {
    let null = |_: Status| ptr::null_mut();
    let run = || {
        // SAFETY: per the header, null or a client.
        let client =
            unsafe { client.as_ref() }.ok_or_else(|| Problem::misuse("the client is NULL"))?;
        // SAFETY: per the header, a C string.
        let id = unsafe { text(id, "the interface's name") }?;
        let part = client.binding.part_named(id);
        let part = part.ok_or_else(|| {
            Problem::misuse(format!("{} does not carry {id}", client.binding.interface().id))
        })?;
        Ok(hand_out(CClient { binding: part }))
    };
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard(error, null, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_client_copy(client: *const CClient) -> *mut CClient {
    // SAFETY: per the header, null or a client.
    let Some(client) = (unsafe { client.as_ref() }) else { return ptr::null_mut() };
    guard_or(ptr::null_mut(), || hand_out(CClient { binding: client.binding.clone() }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_client_free(client: *mut CClient) {
    // SAFETY: per the header, null or a client that is no longer in use.
    guard_or((), || drop(unsafe { take_back(client) }));
}

/// Changes a client's terms.
///
/// # Safety
/// `client` is null, or a client that is not in use elsewhere.
unsafe fn set(client: *mut CClient, terms: impl FnOnce(&Binding) -> Binding) {
    // SAFETY: the caller's contract.
    let Some(client) = (unsafe { client.as_mut() }) else { return };
    guard_or((), || client.binding = terms(&client.binding));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_client_set_deadline(client: *mut CClient, nanoseconds: u64) {
    let deadline = (nanoseconds > 0).then(|| Duration::from_nanos(nanoseconds));
    // SAFETY: the header's contract.
    unsafe { set(client, |binding| binding.with_deadline(deadline)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn upcall_cancel_token_new() -> *mut CancelToken {
    guard_or(ptr::null_mut(), || hand_out(CancelToken::new()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_cancel(token: *const CancelToken) {
    // SAFETY: per the header, null or a token.
    let Some(token) = (unsafe { token.as_ref() }) else { return };
    guard_or((), || token.cancel());
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_cancel_token_free(token: *mut CancelToken) {
    // SAFETY: per the header, null or a token that is no longer in use.
    guard_or((), || drop(unsafe { take_back(token) }));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_client_set_cancel_token(
    client: *mut CClient,
    token: *const CancelToken,
) {
    // SAFETY: per the header, null or a token.
    let token = unsafe { token.as_ref() };
    // SAFETY: the header's contract.
    unsafe {
        set(client, |binding| {
            token.map_or_else(|| binding.without_cancel(), |token| binding.with_cancel(token))
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_client_set_hand_off(client: *mut CClient, when: u32) {
    let when = if when == 1 { HandOff::AtOnce } else { HandOff::WhenIdle };
    // SAFETY: the header's contract.
    unsafe { set(client, |binding| binding.with_hand_off(when)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_client_set_when_full(client: *mut CClient, what: u32) {
    let what = if what == 1 { WhenFull::Grow } else { WhenFull::Wait };
    // SAFETY: the header's contract.
    unsafe { set(client, |binding| binding.with_when_full(what)) }
}

/// `upcall_pacing`.
pub(crate) fn pacing(number: u32) -> Pacing {
    match number {
        1 => Pacing::Poll,
        2 => Pacing::Sleep,
        _ => Pacing::Adaptive,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_client_set_pacing(client: *const CClient, number: u32) {
    // SAFETY: per the header, null or a client.
    let Some(client) = (unsafe { client.as_ref() }) else { return };
    guard_or((), || client.binding.set_pacing(pacing(number)));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_client_is_open(client: *const CClient) -> bool {
    // SAFETY: per the header, null or a client.
    let Some(client) = (unsafe { client.as_ref() }) else { return false };
    guard_or(false, || client.binding.is_open())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_client_server(client: *const CClient) -> u32 {
    // SAFETY: per the header, null or a client.
    let Some(client) = (unsafe { client.as_ref() }) else { return 0 };
    guard_or(0, || client.binding.server())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_resource_client(resource: *const CResource) -> *const CClient {
    // SAFETY: per the header, null or a resource.
    let Some(resource) = (unsafe { resource.as_ref() }) else { return ptr::null() };
    &resource.client
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_resource_number(resource: *const CResource) -> u64 {
    // SAFETY: per the header, null or a resource.
    unsafe { resource.as_ref() }.map_or(0, |resource| resource.handle.0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_resource_drop(resource: *mut CResource) {
    guard_or((), || {
        // SAFETY: per the header, null or a resource that is no longer in use.
        let Some(resource) = (unsafe { take_back(resource) }) else { return };
        resource.client.binding.release(resource.handle);
    });
}
