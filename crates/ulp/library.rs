// Included by the build scripts of libraries that are linked into images.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};

/// Ends the build with a plain message if the C compiler or binutils are missing.
fn need_tools() {
    let tool = cc::Build::new().cargo_warnings(false).try_get_compiler();
    let compiler = tool.map(|tool| tool.path().to_path_buf());
    let compiler = compiler.unwrap_or_else(|_| "cc".into());
    for (program, package) in [(compiler, "gcc"), ("objcopy".into(), "binutils")] {
        if let Err(error) = Command::new(&program).arg("--version").output() {
            println!(
                "cargo::error=`{}` cannot be started ({error}): run `apt install {package}`",
                program.display()
            );
            std::process::exit(0);
        }
    }
}

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
