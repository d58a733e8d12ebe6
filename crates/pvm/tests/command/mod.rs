//! Builds the command `upcall`, and other programs that the tests need.
#![allow(dead_code, reason = "each test uses a part")]

pub mod pretended;
pub mod running;
pub mod saved;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::SystemTime;

/// The command `upcall`, which is in another package.
pub fn upcall() -> PathBuf {
    built("upcall", &["--package", "upcall-cli", "--bins"])
}

/// A program in the folder of the compilers, or below it.
///
/// `tests/run.py` builds it before the tests, and sets `UPCALL_TESTS_BUILT`. Without that, this
/// builds the program if it is older than the newest source. Building it always would compile half
/// of the workspace with the features of one package, and again with those of all.
pub fn built(name: &str, what: &[&str]) -> PathBuf {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let folder = Path::new(env!("CARGO_BIN_EXE_upvmcc")).parent().unwrap();
    let program = folder.join(name);
    let built = program.metadata().and_then(|data| data.modified());
    let known = built.is_ok() && std::env::var_os("UPCALL_TESTS_BUILT").is_some();
    if !known && !built.is_ok_and(|built| built >= newest()) {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet"]).args(what).current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo
            .args(folder.ends_with("release").then_some("--release"))
            .arg("--target-dir")
            .arg(folder.parent().unwrap());
        assert!(cargo.status().unwrap().success(), "{name} is not built: {cargo:?}");
    }
    program
}

/// The time of the newest source.
fn newest() -> SystemTime {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut folders = vec![root.to_owned()];
    let mut newest = SystemTime::UNIX_EPOCH;
    while let Some(folder) = folders.pop() {
        for one in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let (path, name) = (one.path(), one.file_name());
            let Ok(data) = one.metadata() else { continue };
            if data.is_dir() {
                // No program contains files of these folders.
                let other =
                    ["target", "tests", "docs", "fuzz", "peers"].iter().any(|other| name == *other);
                if !other && !name.as_encoded_bytes().starts_with(b".") {
                    folders.push(path);
                }
            } else if ["rs", "c", "h", "toml"]
                .iter()
                .any(|end| path.extension().is_some_and(|own| own == *end))
            {
                newest = newest.max(data.modified().unwrap_or(newest));
            }
        }
    }
    newest
}
