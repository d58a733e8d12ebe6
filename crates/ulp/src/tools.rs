//! What is linked into a program to make it an image; for compiler wrappers.

/// The archive `libupvm.a`, which comes before libc on the linker's command line.
pub const ARCHIVE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libupvm.a"));

/// Options for the compiler.
pub const COMPILING: &[&str] = &["-fPIE"];

/// Options for the linker.
///
/// They make it take the archive's beginning even if nothing refers to it, and use as few mappings
/// for each image as possible, since a process has 65 530 of them.
pub const LINKING: &[&str] =
    &["-static-pie", "-Wl,-u,upvm_begin", "-Wl,-z,noseparate-code", "-Wl,-z,norelro"];

/// A version script for the linker that makes a program's names local, for debuggers.
///
/// Nothing else is linked to these names. If they were global, gdb would take the variable of the
/// first ULP that has one of that name, since it expects copy relocations. The script covers the
/// names of C, C++ and Fortran's modules. Of other names that begin with an underscore, the linker
/// itself needs some.
pub const SCRIPT: &str = "{ local: [A-Za-z]*; _Z*; __*_MOD_*; };\n";

/// Headers, with their names, for C code that is linked into an image and asks the host itself.
///
/// `image.h` explains how.
pub const HEADERS: [(&str, &str); 2] = [
    ("image.h", include_str!("../image/image.h")),
    ("layout.h", include_str!(concat!(env!("OUT_DIR"), "/layout.h"))),
];
