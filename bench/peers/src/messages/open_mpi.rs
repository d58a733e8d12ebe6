//! `upcall-openmpi`: Open MPI's blocking sends and receives in shared memory, behind the child
//! protocol of the suite `messages`. What calls the library is in `messages/open_mpi.c`. The
//! harness has both sides started by `orterun`, the sender as the first process.

// Calls to C and from it; each says why it is sound.
#![allow(unsafe_code)]

mod foreign;

use std::ffi::c_void;
use std::process::ExitCode;
use std::ptr;

use upcall_bench::child::Outcome;
use upcall_bench::messages::child::{End, Entry, Handler, Place, Side, System, child_main};

/// What `messages/open_mpi.c` has.
mod c {
    use super::foreign::Taken;
    use std::ffi::{c_char, c_int, c_void};

    unsafe extern "C" {
        pub fn upcall_mpi_join(rank: c_int) -> *const c_char;
        pub fn upcall_mpi_send(handler: u16, data: *const c_void, len: usize) -> *const c_char;
        pub fn upcall_mpi_receive(taken: Taken, to: *mut c_void) -> *const c_char;
        pub fn upcall_mpi_leave() -> *const c_char;
    }
}

/// The system `openmpi`.
struct OpenMpi;

impl System for OpenMpi {
    const NAME: &'static str = "openmpi";
    // What goes the short way fits into 4 KiB.
    const BURST: usize = 16;
    type End = Rank;

    fn join(place: &Place) -> Outcome<Rank> {
        // SAFETY: this is the process's one thread that calls the library, which it does once here
        // before all else.
        let wrong = unsafe { c::upcall_mpi_join(if place.side == Side::Sender { 0 } else { 1 }) };
        // SAFETY: the text stands until the next call.
        unsafe { foreign::outcome(wrong) }.map(|()| Rank(()))
    }
}

/// A process that has joined. There is one, made by `join`.
struct Rank(());

impl Rank {
    #[inline(always)]
    fn send(&mut self, handler: u16, data: *const c_void, len: usize) -> Outcome<()> {
        // SAFETY: the process has joined; `data` has so many bytes, by both callers below, and is
        // not kept.
        let wrong = unsafe { c::upcall_mpi_send(handler, data, len) };
        // SAFETY: the text stands until the next call.
        unsafe { foreign::outcome(wrong) }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // SAFETY: the process has joined, and does nothing more with the library.
        unsafe { c::upcall_mpi_leave() };
    }
}

impl End for Rank {
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
        // SAFETY: the process has joined; the message is given to this handler before the return.
        let wrong =
            unsafe { c::upcall_mpi_receive(foreign::taken::<H>, ptr::from_mut(handler).cast()) };
        // SAFETY: the text stands until the next call.
        unsafe { foreign::outcome(wrong) }
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(first) if first == "bench-messages" => child_main(args, &[Entry::of::<OpenMpi>()]),
        _ => {
            eprintln!("upcall-openmpi is run by `upcall-bench messages` with --peers openmpi");
            ExitCode::FAILURE
        }
    }
}
