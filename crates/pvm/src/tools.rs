//! What has to be compiled and linked into a program so that it is a task; for the compilers'
//! wrappers.

/// `libpvm3.a`: the whole of PVM's library. It needs [`ARCHIVE`](upcall_ulp::tools::ARCHIVE) behind
/// it.
pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libpvm3.a"));

/// Headers, by their names.
pub const HEADERS: [(&str, &str); 2] = [
    ("pvm3.h", include_str!("../include/pvm3.h")),
    ("fpvm3.h", include_str!("../include/fpvm3.h")),
];
