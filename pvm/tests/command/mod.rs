//! The command `upcall`, for tests.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The command, which is another package's, and is built here if it is not up to date.
pub fn upcall() -> PathBuf {
    static BUILT: std::sync::Once = std::sync::Once::new();
    let folder = Path::new(env!("CARGO_BIN_EXE_upvmcc")).parent().unwrap();
    BUILT.call_once(|| {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--package", "upcall-cli", "--bins"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.args(folder.ends_with("release").then_some("--release")).arg("--target-dir").arg(folder.parent().unwrap());
        assert!(cargo.status().unwrap().success());
    });
    folder.join("upcall")
}
