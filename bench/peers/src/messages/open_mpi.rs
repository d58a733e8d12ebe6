//! `upcall-openmpi`: Open MPI's blocking sends and receives, behind the child protocols of the
//! suites `messages`, in shared memory, and `hosts`, over TCP. The calls to the library are in
//! `messages/open_mpi.c`. The harness starts both sides with `orterun`, the sender, or the client,
//! as the first process.

// Calls to and from C; each has its justification.
#![allow(unsafe_code)]

mod foreign;
#[path = "../hosts/over_mpi.rs"]
mod over_mpi;

use std::ffi::{c_int, c_void};
use std::process::ExitCode;
use std::ptr;

use upcall_bench::child::Outcome;
use upcall_bench::hosts;
use upcall_bench::messages::child::{End, Entry, Handler, Place, Side, System, child_main};

/// The functions of `messages/open_mpi.c`.
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
    // Open MPI's eager path takes up to 4 KiB.
    const BURST: usize = 16;
    type End = Rank;

    fn join(place: &Place) -> Outcome<Rank> {
        Rank::join(if place.side == Side::Sender { 0 } else { 1 })
    }
}

/// Proof that the process has joined. `join` creates the only value.
struct Rank(());

impl Rank {
    /// Joins as the first or the second process. A process calls this once.
    fn join(rank: c_int) -> Outcome<Rank> {
        // SAFETY: only this thread of the process calls the library, and it makes this call once,
        // before all others.
        let wrong = unsafe { c::upcall_mpi_join(rank) };
        // SAFETY: the text is valid until the next call.
        unsafe { foreign::outcome(wrong) }.map(|()| Rank(()))
    }

    #[inline(always)]
    fn send(&mut self, handler: u16, data: *const c_void, len: usize) -> Outcome<()> {
        // SAFETY: the process has joined; both callers below pass `len` bytes at `data`, which is
        // not retained.
        let wrong = unsafe { c::upcall_mpi_send(handler, data, len) };
        // SAFETY: the text is valid until the next call.
        unsafe { foreign::outcome(wrong) }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // SAFETY: the process has joined, and does not use the library again.
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
        // SAFETY: the process has joined; the handler gets the message before the call returns.
        let wrong =
            unsafe { c::upcall_mpi_receive(foreign::taken::<H>, ptr::from_mut(handler).cast()) };
        // SAFETY: the text is valid until the next call.
        unsafe { foreign::outcome(wrong) }
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(first) if first == "bench-messages" => child_main(args, &[Entry::of::<OpenMpi>()]),
        Some(first) if first == "bench-hosts" => {
            hosts::child::child_main(args, &[hosts::child::Entry::of::<over_mpi::OpenMpi>()])
        }
        _ => {
            eprintln!(
                "upcall-openmpi is run by `upcall-bench messages` and `upcall-bench hosts` with \
                --peers openmpi"
            );
            ExitCode::FAILURE
        }
    }
}
