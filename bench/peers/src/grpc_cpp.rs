//! `upcall-grpc-cpp`: gRPC's C++ library over a Unix socket, behind the child protocol of the
//! benchmark harness. Server and client are in `grpc/calls.cpp`. This program drives them, so that
//! clock, payloads and answers are the same as for the other systems.

// Calls to and from C++; each has its justification.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::process::ExitCode;
use std::ptr::NonNull;
use std::time::{Duration, Instant};
use std::{ptr, slice};

use upcall_bench::case::BIG;
use upcall_bench::child::{
    ClientSide, Entry, Outcome, Place, Ready, System, Throughput, child_main,
};
use upcall_bench::payload::answer;

/// The functions of `grpc/calls.cpp`.
mod cpp {
    use std::ffi::c_char;

    /// An opaque type, always behind a pointer.
    #[repr(C)]
    pub struct Server(());

    /// An opaque type, always behind a pointer.
    #[repr(C)]
    pub struct Client(());

    unsafe extern "C" {
        pub fn upcall_grpc_serve(address: *const c_char) -> *mut Server;
        pub fn upcall_grpc_stop(server: *mut Server);
        pub fn upcall_grpc_connect(address: *const c_char) -> *mut Client;
        pub fn upcall_grpc_disconnect(client: *mut Client);
        pub fn upcall_grpc_null(client: *mut Client) -> *const c_char;
        pub fn upcall_grpc_add(client: *mut Client, a: i32, b: i32, sum: *mut i32)
        -> *const c_char;
        pub fn upcall_grpc_bytes_in(
            client: *mut Client,
            data: *const u8,
            len: usize,
            sum: *mut u64,
        ) -> *const c_char;
        pub fn upcall_grpc_big_in_out(
            client: *mut Client,
            data: *const u8,
            len: usize,
            out: *mut u8,
        ) -> *const c_char;
        pub fn upcall_grpc_outstanding(
            client: *mut Client,
            callers: usize,
            ns: u64,
            answered: *mut u64,
        ) -> *const c_char;
    }
}

/// Size of `biginout`'s result in bytes, for C++.
#[unsafe(no_mangle)]
static upcall_grpc_big: usize = BIG;

#[unsafe(no_mangle)]
extern "C" fn upcall_grpc_answer_add(a: i32, b: i32) -> i32 {
    answer::add(a, b)
}

/// # Safety
/// `data` points to `len` bytes that are not written during the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn upcall_grpc_answer_bytes_in(data: *const u8, len: usize) -> u64 {
    // SAFETY: the caller's promise; a C++ string's bytes are there even if it is empty.
    answer::bytes_in(unsafe { slice::from_raw_parts(data, len) })
}

/// # Safety
/// As for `upcall_grpc_answer_bytes_in`; and `out` has room for `upcall_grpc_big` bytes, which do
/// not overlap `data`.
#[unsafe(no_mangle)]
unsafe extern "C" fn upcall_grpc_answer_big_in_out(data: *const u8, len: usize, out: *mut u8) {
    // SAFETY: the caller's promise, as above.
    let answer = answer::big_in_out(unsafe { slice::from_raw_parts(data, len) });
    // SAFETY: the caller's promise about `out`.
    unsafe { ptr::copy_nonoverlapping(answer.as_ptr(), out, BIG) };
}

fn address(place: &Place) -> Outcome<CString> {
    Ok(CString::new(format!("unix:{}", place.dir.join("calls.sock").display()))?)
}

/// The system `grpc-c++`.
struct GrpcCpp;

impl System for GrpcCpp {
    const NAME: &'static str = "grpc-c++";
    type Client = Client;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        let address = address(place)?;
        // SAFETY: the address ends in a zero and is not retained.
        let server = NonNull::new(unsafe { cpp::upcall_grpc_serve(address.as_ptr()) });
        let server = server.ok_or_else(|| format!("no server at {}", address.to_string_lossy()))?;
        ready.announce_stoppable().wait();
        // SAFETY: created above, and not used again.
        unsafe { cpp::upcall_grpc_stop(server.as_ptr()) };
        Ok(())
    }

    fn connect(place: &Place) -> Outcome<Client> {
        let address = address(place)?;
        // SAFETY: the address ends in a zero and is not retained.
        let client = NonNull::new(unsafe { cpp::upcall_grpc_connect(address.as_ptr()) });
        Ok(Client(
            client.ok_or_else(|| format!("nobody answers at {}", address.to_string_lossy()))?,
        ))
    }
}

/// The C++ client, which this value owns.
struct Client(NonNull<cpp::Client>);

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: the client is owned, and not used again.
        unsafe { cpp::upcall_grpc_disconnect(self.0.as_ptr()) };
    }
}

/// # Safety
/// `wrong` is the result of a call by its client, which has made no other call since.
unsafe fn outcome(wrong: *const c_char) -> Outcome<()> {
    if wrong.is_null() {
        return Ok(());
    }
    // SAFETY: the text is valid until the client's next call, and ends in a zero.
    Err(unsafe { CStr::from_ptr(wrong) }.to_string_lossy().into())
}

impl ClientSide for Client {
    fn null(&mut self) -> Outcome<()> {
        // SAFETY: the client is alive, and exclusively ours.
        let wrong = unsafe { cpp::upcall_grpc_null(self.0.as_ptr()) };
        // SAFETY: `wrong` is the result of the call above.
        unsafe { outcome(wrong) }
    }

    fn add(&mut self, a: i32, b: i32) -> Outcome<i32> {
        let mut sum = 0;
        // SAFETY: as in `null`; the sum is written before the call returns.
        let wrong = unsafe { cpp::upcall_grpc_add(self.0.as_ptr(), a, b, &mut sum) };
        // SAFETY: `wrong` is the result of the call above.
        unsafe { outcome(wrong) }.map(|()| sum)
    }

    fn big_in(&mut self, data: &[u8; BIG]) -> Outcome<u64> {
        self.bytes_in(data)
    }

    fn big_in_out(&mut self, data: &[u8; BIG]) -> Outcome<[u8; BIG]> {
        let mut out = [0; BIG];
        // SAFETY: as in `null`; `out` has `upcall_grpc_big` bytes, which are written before the
        // call returns.
        let wrong = unsafe {
            cpp::upcall_grpc_big_in_out(
                self.0.as_ptr(),
                data.as_ptr(),
                data.len(),
                out.as_mut_ptr(),
            )
        };
        // SAFETY: `wrong` is the result of the call above.
        unsafe { outcome(wrong) }.map(|()| out)
    }

    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        let mut sum = 0;
        // SAFETY: as in `null`; the sum is written before the call returns.
        let wrong = unsafe {
            cpp::upcall_grpc_bytes_in(self.0.as_ptr(), data.as_ptr(), data.len(), &mut sum)
        };
        // SAFETY: `wrong` is the result of the call above.
        unsafe { outcome(wrong) }.map(|()| sum)
    }

    fn throughput(&mut self, callers: usize, time: Duration) -> Option<Outcome<Throughput>> {
        if callers == 1 {
            return Some(Throughput::one_caller(self, time));
        }
        let (begun, mut calls) = (Instant::now(), 0);
        // SAFETY: as in `null`; all calls have returned before this one returns.
        let wrong = unsafe {
            cpp::upcall_grpc_outstanding(
                self.0.as_ptr(),
                callers,
                time.as_nanos() as u64,
                &mut calls,
            )
        };
        // SAFETY: `wrong` is the result of the call above.
        Some(unsafe { outcome(wrong) }.map(|()| Throughput::new(calls, begun.elapsed())))
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(first) if first == "bench-child" => child_main(args, &[Entry::of::<GrpcCpp>()]),
        _ => {
            eprintln!(
                "upcall-grpc-cpp is run by `upcall-bench rpc` and `upcall-bench lrpc` with \
                --peers grpc-c++"
            );
            ExitCode::FAILURE
        }
    }
}
