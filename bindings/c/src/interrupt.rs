//! Interrupts: handlers in C that run in a signal handler, between any two instructions of the
//! thread.
//!
//! Once an interrupt runs, nothing here allocates, frees, locks or panics. Payloads have fixed
//! sizes up to [`SMALL`], and are copied to the interrupt's stack and checked there. Failures are a
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

/// Copies a message's payload, in words. Returns `None` if it does not fit its kind.
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
        // SAFETY: per the header, null, or handlers that is not in use elsewhere.
        let told =
            unsafe { handlers.as_mut() }.ok_or_else(|| Problem::misuse("the handlers are NULL"))?;
        let kind_of = told.kinds.get(kind as usize).cloned().ok_or_else(|| no_such_kind(kind))?;
        let handler = handler.ok_or_else(|| Problem::misuse("the handler is NULL"))?;
        if kind_of.size().is_none_or(|size| size > SMALL) {
            return Err(Problem::misuse(format!(
                "messages of this kind carry {}: a message that interrupts has a fixed size of at \
                most {SMALL} bytes; send larger ones with another kind",
                kind_of.carries()
            )));
        }
        let (place, of) = (told.place.clone(), kind_of.clone());
        told.handlers.on_foreign_interrupt(&kind_of, move |interrupt, message| {
            let Some(words) = copied(message, &of) else { return false };
            // SAFETY: set when the group was joined; it is freed only when it is left, which does
            // not happen while it takes messages.
            let Some(group) = (unsafe { place.get().as_ref() }) else { return false };
            let interrupt = CInterrupt { interrupt, kinds: &group.kinds };
            let data = if message.size() == 0 { ptr::null() } else { words.as_ptr().cast() };
            let message = CMessage { from: message.from(), kind, size: message.size(), data };
            // SAFETY: per the header, a function for this context that is fit for a signal handler.
            unsafe { handler(context, &raw const interrupt, &raw const message) };
            true
        });
        Ok(())
    };
    // SAFETY: per the header, `error` is null or the caller's.
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
        let body = body.ok_or_else(|| Problem::misuse("the function `body` is NULL"))?;
        // SAFETY: by registering its handlers the program has promised what the header requires;
        // the code around them here neither allocates, frees, locks nor panics.
        let promise = unsafe { Promise::given() };
        // SAFETY: per the header, a function for this context.
        group.group.interruptible(promise, || unsafe { body(context) })?;
        Ok(Status::Ok)
    };
    // SAFETY: the header's contract.
    unsafe { with(group, error, run) }
}

impl From<InterruptError> for Problem {
    fn from(error: InterruptError) -> Self {
        Self::new(Status::Resource, error.to_string())
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_interrupt_rank(interrupt: *const CInterrupt<'_>) -> usize {
    // SAFETY: per the header, the handler's own argument, and the handler has not returned.
    unsafe { interrupt.as_ref() }.map_or(0, |told| told.interrupt.rank())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_interrupt_size(interrupt: *const CInterrupt<'_>) -> usize {
    // SAFETY: per the header, the handler's own argument, and the handler has not returned.
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
    // SAFETY: per the header, the handler's own argument, and the handler has not returned.
    let Some(CInterrupt { interrupt, kinds }) = (unsafe { interrupt.as_ref() }) else {
        return Status::Misuse;
    };
    let Some(kind) = kinds.get(kind as usize) else { return Status::Misuse };
    let payload = match data.is_null() {
        true if size > 0 => return Status::Misuse,
        true => &[],
        // SAFETY: per the header, that many bytes lie there.
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
