//! What has to be linked into a program so that it is an image; for the compiler's wrappers.

/// The archive `libupvm.a`, which stands before libc where a program is linked.
pub const ARCHIVE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libupvm.a"));

/// What the compiler is told when it compiles.
pub const COMPILING: &[&str] = &["-fPIE"];

/// What the linker is told: to take the archive's beginning whether it is asked for or not; and as
/// few mappings for each image as possible, for a process has 65 530 of them.
pub const LINKING: &[&str] =
    &["-static-pie", "-Wl,-u,upvm_begin", "-Wl,-z,noseparate-code", "-Wl,-z,norelro"];

/// A version script for the linker, for debuggers: it makes a program's names its own, as nobody
/// else is linked to them. Where they are global, gdb takes the variable of the first ULP that has
/// one of that name, for it thinks of copy relocations. Those of C, C++ and Fortran's modules; of
/// what begins with an underscore otherwise, the linker itself needs some.
pub const SCRIPT: &str = "{ local: [A-Za-z]*; _Z*; __*_MOD_*; };\n";

/// Headers, by their names, for C that is linked into an image and asks the host by itself:
/// `image.h` has how.
pub const HEADERS: [(&str, &str); 2] = [
    ("image.h", include_str!("../image/image.h")),
    ("layout.h", include_str!(concat!(env!("OUT_DIR"), "/layout.h"))),
];
