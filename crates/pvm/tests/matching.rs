//! Tests the matching of messages with receives (`image/matching.c`) alone, against a plain model.

use std::path::Path;
use std::process::Command;

#[test]
fn messages_and_receives_meet_as_in_a_plain_model() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("matching");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"]);
    compiler.arg(package.join("image")).arg("-o").arg(&program);
    compiler.args([package.join("tests/images/matching.c"), package.join("image/matching.c")]);
    assert!(compiler.status().unwrap().success(), "{compiler:?}");
    let done = Command::new("timeout").arg("60").arg(&program).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
}
