//! Compares links between two hosts: bare TCP, TLS over TCP, and QUIC.
//!
//! A client makes one call after another: first of 64 bytes, which is a null call, and then of 1
//! MiB. Every reply has 64 bytes. For each size the client prints the median and the 99th
//! percentile of the time of a call, and the processor time that the client's process spends on
//! one. README.md has the commands.
//!
//! Both sides prove themselves by TLS 1.3, except over bare TCP. The trial has one certificate,
//! which both sides present and trust.

mod keys;
mod measure;
mod mux;
mod quic;
mod stream;

use measure::Outcome;
use std::net::SocketAddr;
use std::path::Path;

const USAGE: &str = "usage: upcall-links keys FOLDER
       upcall-links server tcp|tls|mux|quic ADDRESS FOLDER
       upcall-links client tcp|tls|mux|quic ADDRESS FOLDER [CALLS]";

/// Number of null calls of a client, unless it is given. Calls of 1 MiB are a fiftieth of that.
const CALLS: usize = 20_000;

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (role, link, address, folder, calls) = match *words {
        ["keys", folder] => return keys::make(Path::new(folder)),
        [role, link, address, folder] => (role, link, address, folder, CALLS),
        [role, link, address, folder, calls] => (role, link, address, folder, calls.parse()?),
        _ => return Err(USAGE.into()),
    };
    let (address, folder): (SocketAddr, _) = (address.parse()?, Path::new(folder));
    match (role, link) {
        ("server", "tcp") => stream::serve_bare(address),
        ("server", "tls") => stream::serve_tls(address, folder),
        ("server", "mux") => mux::serve(address, folder),
        ("server", "quic") => quic::runtime()?.block_on(quic::serve(address, folder)),
        ("client", "tcp") => stream::call_bare(address, calls),
        ("client", "tls") => stream::call_tls(address, folder, calls),
        ("client", "mux") => mux::call(address, folder, calls),
        ("client", "quic") => quic::runtime()?.block_on(quic::call(address, folder, calls)),
        _ => Err(USAGE.into()),
    }
}
