// Included by the build scripts of libraries that are linked into images.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};

/// Compiles the library, with its code in a section of its own: the linker gives the address of
/// that.
fn library(build: &cc::Build) -> Vec<PathBuf> {
    let objects = build
        .clone()
        .flag("-fno-function-sections")
        .flag("-fno-reorder-functions")
        .flag("-fno-reorder-blocks-and-partition")
        .compile_intermediates();
    for object in &objects {
        let done = Command::new("objcopy")
            .args(["--rename-section", ".text=upvm_text"])
            .arg(object)
            .status();
        assert!(
            done.as_ref().is_ok_and(ExitStatus::success),
            "objcopy (binutils) could not name the section of {object:?}: {done:?}"
        );
    }
    objects
}
