//! `upcall-host-peers`: other systems for calls between hosts, each behind the child protocol of
//! the suite `hosts` (`upcall_bench::hosts::child`). README.md lists what is changed from their
//! defaults, and why.

// The suite `rpc` uses all of these modules.
#[path = "../callers.rs"]
#[allow(dead_code)]
mod callers;
#[allow(clippy::all, clippy::pedantic, missing_docs, unused_qualifications)]
#[path = "../calls_capnp.rs"]
#[rustfmt::skip]
mod calls_capnp;
#[path = "../capnproto.rs"]
#[allow(dead_code)]
mod capnproto;
mod certificates;
#[path = "../grpc.rs"]
#[allow(dead_code)]
mod grpc;
mod over_nats;
mod over_quic;
mod over_tcp;
mod over_tls;

use std::process::ExitCode;

use upcall_bench::hosts::child::{Entry, child_main};

const SYSTEMS: [Entry; 4] = [
    Entry::of::<over_tls::Grpc>(),
    Entry::of::<over_quic::Wrpc>(),
    Entry::of::<over_tcp::CapnProto>(),
    Entry::of::<over_nats::Nats>(),
];

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(first) if first == "bench-hosts" => child_main(args, &SYSTEMS),
        Some(first) if first == over_nats::BROKER => {
            eprintln!("{}", over_nats::broker(args));
            ExitCode::FAILURE
        }
        _ => {
            eprintln!("upcall-host-peers is run by `upcall-bench hosts`");
            ExitCode::FAILURE
        }
    }
}
