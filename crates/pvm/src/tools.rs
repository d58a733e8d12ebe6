//! Files to compile and link a program with so that it becomes a task, for the compiler wrappers.

/// `libpvm3.a`: PVM's whole library. [`ARCHIVE`](upcall_ulp::tools::ARCHIVE) must follow it on the
/// command line.
pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libpvm3.a"));

/// Headers, as pairs of name and contents.
pub const HEADERS: [(&str, &str); 3] = [
    ("pvm3.h", include_str!("../include/pvm3.h")),
    ("fpvm3.h", include_str!("../include/fpvm3.h")),
    ("upvm.h", include_str!("../include/upvm.h")),
];
