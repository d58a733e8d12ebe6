//! Interrupts: handlers in C that run in the middle of what the thread computes, in the handler of
//! a signal.
//!
//! Nothing here allocates, frees, locks or panics once an interrupt runs: payloads are of fixed
//! sizes up to [`SMALL`], copied to the interrupt's stack and checked there, and failures are a
//! status without a text.

use crate::error::{CError, Problem, Status, guard_status};
use crate::group::{CGroup, CHandlers, CMessage, SMALL, no_such_kind, with};
use std::ffi::c_void;
use std::{ptr, slice};
use upcall_message::{ForeignKind, Interrupt, InterruptError, Message, Promise, SendError};

/// `upcall_interrupt`.
pub struct CInterrupt<'a> {
    interrupt: &'a Interrupt<'a>,
    kinds: &'a [ForeignKind],
}

type InterruptFn = unsafe extern "C" fn(*mut c_void, *const CInterrupt<'_>, *const CMessage);
type BodyFn = unsafe extern "C" fn(*mut c_void);

/// What a message carries, in words. `None`: it is not what its kind carries.
fn copied(message: &Message<'_, '_>, kind: &ForeignKind) -> Option<[u64; SMALL / 8]> {
    let mut bytes = [0; SMALL];
    let payload = bytes.get_mut(..message.size())?;
    message.copy_out(0, payload)?;
    kind.check(payload).ok()?;
    let mut words = [0; SMALL / 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Some(words)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_handlers_on_interrupt(
    handlers: *mut CHandlers,
    kind: u32,
    handler: Option<InterruptFn>,
    context: *mut c_void,
    error: *mut CError,
) -> Status {
    let run = || {
        // SAFETY: by the header null, or handlers that nobody else uses meanwhile.
        let told =
            unsafe { handlers.as_mut() }.ok_or_else(|| Problem::misuse("the handlers are NULL"))?;
        let kind_of = told.kinds.get(kind as usize).cloned().ok_or_else(|| no_such_kind(kind))?;
        let handler = handler.ok_or_else(|| Problem::misuse("the handler is NULL"))?;
        if kind_of.size().is_none_or(|size| size > SMALL) {
            return Err(Problem::misuse(format!(
                "messages of this kind carry {}: what interrupts has a fixed size of {SMALL} bytes at most; send the rest with another kind",
                kind_of.carries()
            )));
        }
        let (place, of) = (told.place.clone(), kind_of.clone());
        told.handlers.on_foreign_interrupt(&kind_of, move |interrupt, message| {
            let Some(words) = copied(message, &of) else { return false };
            // SAFETY: set when the group was joined, and freed by nobody before it is left, which
            // nobody does while it takes messages.
            let Some(group) = (unsafe { place.get().as_ref() }) else { return false };
            let interrupt = CInterrupt { interrupt, kinds: &group.kinds };
            let data = if message.size() == 0 { ptr::null() } else { words.as_ptr().cast() };
            let message = CMessage { from: message.from(), kind, size: message.size(), data };
            // SAFETY: by the header a function for this context that is fit for a handler of a
            // signal.
            unsafe { handler(context, &raw const interrupt, &raw const message) };
            true
        });
        Ok(())
    };
    // SAFETY: by the header `error` is null or the caller's.
    unsafe { guard_status(error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_interruptible(
    group: *mut CGroup,
    body: Option<BodyFn>,
    context: *mut c_void,
    error: *mut CError,
) -> Status {
    let run = |group: &CGroup| {
        let body = body.ok_or_else(|| Problem::misuse("what is to be interruptible is NULL"))?;
        // SAFETY: the program has said so in the header's words when it gave its handlers; what is
        // around them here neither allocates, frees, locks nor panics.
        let promise = unsafe { Promise::given() };
        // SAFETY: by the header a function for this context.
        group.group.interruptible(promise, || unsafe { body(context) })?;
        Ok(Status::Ok)
    };
    // SAFETY: by the header.
    unsafe { with(group, error, run) }
}

impl From<InterruptError> for Problem {
    fn from(error: InterruptError) -> Self {
        Self::new(Status::Resource, error.to_string())
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_interrupt_rank(interrupt: *const CInterrupt<'_>) -> usize {
    // SAFETY: by the header what the handler was given, and it has not returned.
    unsafe { interrupt.as_ref() }.map_or(0, |told| told.interrupt.rank())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_interrupt_size(interrupt: *const CInterrupt<'_>) -> usize {
    // SAFETY: by the header what the handler was given, and it has not returned.
    unsafe { interrupt.as_ref() }.map_or(0, |told| told.interrupt.size())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_interrupt_try_send(
    interrupt: *const CInterrupt<'_>,
    to: usize,
    kind: u32,
    data: *const c_void,
    size: usize,
) -> Status {
    // SAFETY: by the header what the handler was given, and it has not returned.
    let Some(CInterrupt { interrupt, kinds }) = (unsafe { interrupt.as_ref() }) else {
        return Status::Misuse;
    };
    let Some(kind) = kinds.get(kind as usize) else { return Status::Misuse };
    let payload = match data.is_null() {
        true if size > 0 => return Status::Misuse,
        true => &[],
        // SAFETY: by the header so many bytes lie there.
        false => unsafe { slice::from_raw_parts(data.cast::<u8>(), size) },
    };
    if to >= interrupt.size() {
        return Status::NoSuchRank;
    }
    match interrupt.try_send_foreign(to, kind, payload) {
        Ok(()) => Status::Ok,
        Err(SendError::Unfit(_)) => Status::Unfit,
        Err(_) => Status::Full,
    }
}
