//! Test files and snapshots of texts.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test -p upcall-idl` rewrites a snapshot that changed on purpose.

use std::path::{Path, PathBuf};

/// A file or folder of the tests.
pub fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path)
}

/// Compares a text with the snapshot of this name, line by line.
pub fn check_snapshot(name: &str, text: &str) {
    let path = here("snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (found, expected)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "{}:{}", path.display(), number + 1);
    }
    assert_eq!(
        text.lines().count(),
        expected.lines().count(),
        "{} has other lines",
        path.display()
    );
}
