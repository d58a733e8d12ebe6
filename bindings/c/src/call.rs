//! A client's calls.

use crate::client::{CClient, CResource, take_back};
use crate::error::{CError, Problem, Status, guard_status};
use crate::reader::CReader;
use crate::writer::{CWriter, OwnedWriter};
use std::ffi::c_void;
use upcall_rpc::Decoder;
use upcall_rpc::untyped::{InlineWords, Pieces};

/// `upcall_read_fn`.
type CReadFn = unsafe extern "C" fn(*const CReader<'_>, *mut c_void) -> bool;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_invoke_words(
    client: *const CClient,
    number: u32,
    words: *mut InlineWords,
    len: usize,
    error: *mut CError,
) -> Status {
    let run = || {
        // SAFETY: per the header, null or a client.
        let client =
            unsafe { client.as_ref() }.ok_or_else(|| Problem::misuse("the client is NULL"))?;
        // SAFETY: per the header, six words that only the generated code uses.
        let words = unsafe { &mut *words };
        Ok(client.binding.call_words(number as u16, words, len)?)
    };
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard_status(error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_invoke(
    client: *const CClient,
    number: u32,
    args: *mut CWriter,
    read: Option<CReadFn>,
    result: *mut c_void,
    size: usize,
    late: bool,
    error: *mut CError,
) -> Status {
    let run = || {
        // SAFETY: per the header, the generated code's writer, which it does not use again.
        let args = unsafe { OwnedWriter::take(args) };
        // SAFETY: per the header, null or a client.
        let client =
            unsafe { client.as_ref() }.ok_or_else(|| Problem::misuse("the client is NULL"))?;
        args.check()?;
        let tail = args.tail()?;
        let block = Pieces { fixed: args.fixed(), tail: &tail, len: args.len() };
        let late = late.then_some(read).flatten();
        let unread = move |decoder: &Decoder<'_>| {
            if let Some(read) = late {
                let mut scratch = vec![0_u64; size.div_ceil(8)];
                // SAFETY: room for a result, and a reader that frees all that is read.
                unsafe { read(&CReader::new(decoder), scratch.as_mut_ptr().cast()) };
            }
        };
        client.binding.call_pieces(number as u16, &block, unread, |decoder| {
            let Some(read) = read else { return Ok(()) };
            let reader = CReader::new(decoder);
            // SAFETY: per the header, the function that reads results of this kind, and room for
            // them.
            if !unsafe { read(&reader, result) } {
                return Err(reader.fault().unwrap_or(upcall_rpc::Malformed::Short { at: 0 }));
            }
            reader.keep();
            Ok(())
        })?;
        for given in args.given() {
            // The server owns the resource now, so it is not released there. SAFETY: per the
            // header, a resource that the caller gives away.
            drop(unsafe { take_back(given.what.cast::<CResource>()) });
        }
        Ok(())
    };
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard_status(error, run) }
}
