//! Shared by tests with C programs.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use upcall_ulp::tools;

/// Compiles one of tests/images. Prints what the linker prints.
pub fn compile(folder: &Path, name: &str) -> PathBuf {
    let (archive, program) = (folder.join("libupvm.a"), folder.join(name));
    fs::write(&archive, tools::ARCHIVE).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut gcc = Command::new("gcc");
    gcc.args(tools::COMPILING)
        .args(["-O1", "-w", "-I", env!("OUT_DIR"), "-I"])
        .arg(root.join("image"));
    gcc.arg(root.join(format!("tests/images/{name}.c")))
        .args(tools::LINKING)
        .arg("-o")
        .arg(&program)
        .arg(archive)
        .arg("-lm");
    let done = gcc.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    eprint!("{said}");
    program
}

/// Compiles code for images to share, with `options` besides those that it needs.
pub fn compile_shared(folder: &Path, name: &str, options: &[&str]) -> &'static [u8] {
    let file = folder.join(name);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut gcc = Command::new("gcc");
    gcc.args([
        "-O2",
        "-fPIC",
        "-fno-stack-protector",
        "-nostdlib",
        "-static",
        "-no-pie",
        "-I",
        env!("OUT_DIR"),
        "-I",
    ]);
    gcc.arg(root.join("image"))
        .arg(root.join(format!("tests/images/{name}.c")))
        .arg("-o")
        .arg(&file);
    gcc.args(["-Wl,-Ttext-segment=0,-e,0,--build-id=none,-z,noseparate-code"]).args(options);
    let done = gcc.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    fs::read(file).unwrap().leak()
}

/// Runs a test in a process of its own, since a worker cannot be joined.
///
/// Starts this program again with the test's name. Returns `None` in the parent.
pub fn apart(name: &str) -> Option<tempfile::TempDir> {
    apart_with(name, |_| ())
}

/// As [`apart`], and passes what the process printed to `look`.
pub fn apart_with(name: &str, look: impl FnOnce(&str)) -> Option<tempfile::TempDir> {
    if std::env::var_os("ULP_TEST").is_none() {
        let mut own = Command::new("timeout");
        let done = own
            .arg("100")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env("ULP_TEST", "1")
            .output()
            .unwrap();
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
        assert!(done.status.success(), "{said}");
        look(&said);
        return None;
    }
    // The harness would join its thread.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        hook(what);
        std::process::exit(101)
    }));
    Some(tempfile::tempdir().unwrap())
}

pub fn words(words: &[&str]) -> Vec<CString> {
    words.iter().map(|word| CString::new(*word).unwrap()).collect()
}

/// Ends the process without a join.
pub fn over(folder: tempfile::TempDir) -> ! {
    drop(folder);
    std::process::exit(0)
}
