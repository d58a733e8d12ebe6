//! `upcall-peers`: other systems for calls between processes, each behind the child protocol of the
//! benchmark harness (`upcall_bench::child`), each with its default configuration. README.md lists
//! the exceptions and their reasons.

mod callers;
#[allow(clippy::all, clippy::pedantic, missing_docs, unused_qualifications)]
#[rustfmt::skip]
mod calls_capnp;
mod capnproto;
mod grpc;
mod iceoryx;
mod ipc_channel;
mod shmipc;
mod tarpc;
mod zeromq;

use std::process::ExitCode;

use upcall_bench::child::{Entry, child_main};

const SYSTEMS: [Entry; 7] = [
    Entry::of::<iceoryx::Iceoryx2>(),
    Entry::of::<shmipc::Shmipc>(),
    Entry::of::<ipc_channel::IpcChannel>(),
    Entry::of::<capnproto::CapnProto>(),
    Entry::of::<grpc::Grpc>(),
    Entry::of::<zeromq::ZeroMq>(),
    Entry::of::<tarpc::Tarpc>(),
];

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(first) if first == "bench-child" => child_main(args, &SYSTEMS),
        _ => {
            eprintln!("upcall-peers is run by `upcall-bench rpc` and `upcall-bench lrpc`");
            ExitCode::FAILURE
        }
    }
}
