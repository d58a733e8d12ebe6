//! `upcall-ucx`: UCX's active messages and its tag matching in shared memory, behind the child
//! protocol of the suite `messages`. The calls to the library are in `messages/ucx.c`. This program
//! drives them, so that clock, payloads and checks are the same as for the other systems.

// Calls to and from C; each has its justification.
#![allow(unsafe_code)]

mod foreign;

use std::ffi::c_void;
use std::process::ExitCode;
use std::ptr::{self, NonNull};
use std::slice;

use upcall_bench::child::Outcome;
use upcall_bench::messages::child::{End, Entry, Handler, Place, System, child_main};

/// The functions of `messages/ucx.c`.
mod c {
    use super::foreign::Taken;
    use std::ffi::{c_char, c_void};

    /// An opaque type, always behind a pointer.
    #[repr(C)]
    pub struct Ucx(());

    unsafe extern "C" {
        pub fn upcall_ucx_open(
            by_tag: bool,
            yields: bool,
            opened: *mut *mut Ucx,
            address: *mut *const u8,
            len: *mut usize,
        ) -> *const c_char;
        pub fn upcall_ucx_connect(ucx: *mut Ucx, address: *const u8) -> *const c_char;
        pub fn upcall_ucx_send(
            ucx: *mut Ucx,
            handler: u16,
            data: *const c_void,
            len: usize,
        ) -> *const c_char;
        pub fn upcall_ucx_receive(ucx: *mut Ucx, taken: Taken, to: *mut c_void) -> *const c_char;
        pub fn upcall_ucx_flush(ucx: *mut Ucx) -> *const c_char;
    }
}

/// The system `ucx-am`, or `ucx-tag`.
struct Ucx<const BY_TAG: bool>;

impl<const BY_TAG: bool> System for Ucx<BY_TAG> {
    const NAME: &'static str = if BY_TAG { "ucx-tag" } else { "ucx-am" };
    // Its queue has 64 places, half of which may have been read and not yet released.
    const BURST: usize = 32;
    // The send of an active message of 16 words did not return here before the receiver had run
    // (README.md).
    const UNWATCHED: usize = if BY_TAG { 16 } else { 8 };
    type End = Worker;

    fn join(place: &Place) -> Outcome<Worker> {
        let (mut opened, mut address, mut len) = (ptr::null_mut(), ptr::null(), 0);
        // SAFETY: all three are written before the call returns, unless it fails.
        let wrong = unsafe {
            c::upcall_ucx_open(BY_TAG, place.yields(), &mut opened, &mut address, &mut len)
        };
        // SAFETY: texts of the C code live as long as the program.
        unsafe { foreign::outcome(wrong) }?;
        let worker = Worker(NonNull::new(opened).ok_or("no worker")?);
        // SAFETY: the address has `len` bytes, and lives as long as the worker.
        let address = unsafe { slice::from_raw_parts(address, len) };
        place.leave(place.side.name(), address)?;
        let address = place.found(place.side.other().name())?;
        // SAFETY: the worker is alive, and exclusively ours; the address comes from the other
        // side's worker, and is not retained.
        let wrong = unsafe { c::upcall_ucx_connect(worker.0.as_ptr(), address.as_ptr()) };
        // SAFETY: as above.
        unsafe { foreign::outcome(wrong) }?;
        Ok(worker)
    }
}

/// A worker with its endpoint, exclusively ours. Both live as long as the process.
struct Worker(NonNull<c::Ucx>);

impl Worker {
    #[inline(always)]
    fn send(&mut self, handler: u16, data: *const c_void, len: usize) -> Outcome<()> {
        // SAFETY: the worker is alive, and exclusively ours; both callers below pass `len` bytes at
        // `data`, which is not retained.
        let wrong = unsafe { c::upcall_ucx_send(self.0.as_ptr(), handler, data, len) };
        // SAFETY: texts of the C code live as long as the program.
        unsafe { foreign::outcome(wrong) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: the worker is alive, and exclusively ours. The other side notices if the last
        // message fails.
        unsafe { c::upcall_ucx_flush(self.0.as_ptr()) };
    }
}

impl End for Worker {
    #[inline(always)]
    fn send_words<const N: usize>(&mut self, handler: u16, words: &[u64; N]) -> Outcome<()> {
        self.send(handler, words.as_ptr().cast(), N * 8)
    }

    #[inline(always)]
    fn send_bytes(&mut self, handler: u16, bytes: &[u8]) -> Outcome<()> {
        self.send(handler, bytes.as_ptr().cast(), bytes.len())
    }

    #[inline(always)]
    fn receive<H: Handler>(&mut self, handler: &mut H) -> Outcome<()> {
        // SAFETY: the worker is alive, and exclusively ours; it passes messages to this handler
        // only until the call returns.
        let wrong = unsafe {
            c::upcall_ucx_receive(
                self.0.as_ptr(),
                foreign::taken::<H>,
                ptr::from_mut(handler).cast(),
            )
        };
        // SAFETY: texts of the C code live as long as the program.
        unsafe { foreign::outcome(wrong) }
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(first) if first == "bench-messages" => {
            child_main(args, &[Entry::of::<Ucx<false>>(), Entry::of::<Ucx<true>>()])
        }
        _ => {
            eprintln!("upcall-ucx is run by `upcall-bench messages` with --peers ucx-am,ucx-tag");
            ExitCode::FAILURE
        }
    }
}
