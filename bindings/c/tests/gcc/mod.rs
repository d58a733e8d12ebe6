//! Programs in C for these tests: compiled here, with the address and undefined-behaviour
//! sanitizers, and linked with the library that cargo built.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of this crate.
pub fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Links the shared library into `folder` under its installed names. Cargo puts the library beside
/// this test.
pub fn install(folder: &Path) {
    let library = std::env::current_exe().unwrap().with_file_name("libupcall_c.so");
    for name in ["libupcall.so", "libupcall.so.0"] {
        std::os::unix::fs::symlink(&library, folder.join(name)).unwrap();
    }
}

/// Compiles `sources`, which find the headers in `folder`, to `folder/output`, with these options
/// in addition to the common ones.
pub fn compile(options: &[&str], sources: &[PathBuf], folder: &Path, output: &str) {
    let mut gcc = Command::new("gcc");
    gcc.args([
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ]);
    gcc.args(options).arg("-I").arg(here("include")).arg("-I").arg(folder);
    gcc.args(sources).arg("-o").arg(folder.join(output));
    gcc.arg("-L").arg(folder).args(["-lupcall", "-Wl,-rpath"]).arg(folder);
    let run = gcc.output().unwrap();
    assert!(run.status.success(), "{output}: {}", String::from_utf8_lossy(&run.stderr));
}

/// Returns `true` if programs in C are skipped: if the library is built with one of Rust's
/// sanitizers (`make asan`), gcc's cannot be linked with it.
pub fn left_out() -> bool {
    let out = std::env::var("RUSTFLAGS").is_ok_and(|flags| flags.contains("sanitizer"));
    if out {
        eprintln!("skipped: the library has a sanitizer's runtime of its own");
    }
    out
}

/// Makes the command for a program. Leaks are checked in clients only: the sanitizer does not know
/// the stacks of servers, and some of the runtime's memory is never freed on purpose.
pub fn command(program: &Path, leaks: bool) -> Command {
    let mut command = Command::new(program);
    let leaks = u8::from(leaks);
    command.env(
        "ASAN_OPTIONS",
        format!("detect_leaks={leaks}:detect_stack_use_after_return=0:halt_on_error=1"),
    );
    command
}
