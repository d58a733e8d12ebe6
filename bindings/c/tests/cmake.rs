//! `find_package(upcall)` of CMake: what it refuses, and with which words. The page
//! docs/how-to/cmake.md, which `tests/book.py` follows, has what it builds.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Installs the two files of the package below `folder`, as `make install` does.
fn install(folder: &Path, bin: &str) {
    let package = folder.join("lib/cmake/upcall");
    std::fs::create_dir_all(&package).unwrap();
    for name in ["upcall-config.cmake", "upcall-config-version.cmake"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("cmake").join(name);
        let text = std::fs::read_to_string(source).unwrap();
        let text = text.replace("@BINDIR@", bin).replace("@VERSION@", "0.2.7");
        std::fs::write(
            package.join(name),
            text.replace("@INCLUDEDIR@", env!("CARGO_MANIFEST_DIR")),
        )
        .unwrap();
    }
}

/// Configures a project of these lines. Returns whether CMake accepts it, and what it prints.
fn configure(lines: &str, bin: &str) -> (bool, String) {
    configure_in("C", lines, bin)
}

/// The same, in a project of these languages.
fn configure_in(languages: &str, lines: &str, bin: &str) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path(), bin);
    let project =
        format!("cmake_minimum_required(VERSION 3.16)\nproject(trial {languages})\n{lines}\n");
    std::fs::write(folder.path().join("CMakeLists.txt"), project).unwrap();
    std::fs::write(folder.path().join("greeter.wit"), "package demo:greeter;").unwrap();
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", folder.path().display());
    let build: PathBuf = folder.path().join("build");
    let done = Command::new("cmake")
        .arg("-S")
        .arg(folder.path())
        .arg("-B")
        .arg(build)
        .arg(prefix)
        .output()
        .unwrap();
    let said = [done.stdout, done.stderr].concat();
    // CMake wraps its messages.
    let words = String::from_utf8_lossy(&said).split_whitespace().collect::<Vec<_>>().join(" ");
    (done.status.success(), words)
}

#[test]
fn what_cannot_be_built_is_refused_with_what_to_do() {
    if Command::new("cmake").arg("--version").output().is_err() {
        return eprintln!("skipped: no cmake here");
    }
    // Any program will do for a command that is only looked for.
    let own = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(own, folder.path().join("upcall")).unwrap();
    let bin = folder.path().to_str().unwrap();
    let found = "find_package(upcall REQUIRED)\n";
    for (lines, accepted, parts) in [
        ("find_package(upcall 0.2 REQUIRED)", true, vec![]),
        ("find_package(upcall 0.2.7 EXACT REQUIRED)", true, vec![]),
        ("find_package(upcall 0.1 REQUIRED)", false, vec!["version: 0.2.7"]),
        ("find_package(upcall 0.3 REQUIRED)", false, vec!["version: 0.2.7"]),
        ("find_package(upcall 0.2.8 REQUIRED)", false, vec!["version: 0.2.7"]),
        (&format!("{found}upcall_add_interface(greeter greeter.wit)"), true, vec![]),
        (&format!("{found}upcall_add_interface(greeter greter.wit)"), false, vec!["there is no"]),
        (
            &format!("{found}upcall_add_interface(greeter greeter.wit LONG_NAME)"),
            false,
            vec!["unknown arguments: LONG_NAME", "upcall_add_interface(NAME WIT [LONG_NAMES])"],
        ),
        (
            &format!("{found}upcall_add_interface(greeter)"),
            false,
            vec![
                "upcall_add_interface(greeter): a name and a WIT file are expected",
                "upcall_add_interface(NAME WIT [LONG_NAMES])",
            ],
        ),
        (
            &format!(
                "{found}add_custom_target(greeter)\nupcall_add_interface(greeter greeter.wit)"
            ),
            false,
            vec!["there is a target greeter", "name of its own"],
        ),
    ] {
        let (done, said) = configure(lines, bin);
        assert_eq!(done, accepted, "{lines}: {said}");
        for part in parts {
            assert!(said.contains(part), "{lines}: {said}");
        }
    }
    let (done, said) = configure_in("NONE", "find_package(upcall 0.2 REQUIRED)", bin);
    assert!(!done && !said.contains("64 bits"), "only Threads needs a language: {said}");
    let lines = &format!("{found}upcall_add_interface(greeter greeter.wit)");
    let (done, said) = configure_in("CXX", lines, bin);
    assert!(!done && said.contains("add C to the languages"), "{said}");
}

#[test]
fn a_command_that_is_no_program_is_named() {
    if Command::new("cmake").arg("--version").output().is_err() {
        return eprintln!("skipped: no cmake here");
    }
    let folder = tempfile::tempdir().unwrap();
    let bin = folder.path().to_str().unwrap();
    for wrong in [format!("{bin}/upcal"), bin.to_owned()] {
        let lines = format!(
            "find_package(upcall REQUIRED)\nset(UPCALL_COMMAND {wrong})\n\
             upcall_add_interface(greeter greeter.wit)"
        );
        let (done, said) = configure(&lines, "/nowhere");
        let expected = format!("UPCALL_COMMAND is {wrong}, which is no program");
        assert!(!done && said.contains(&expected), "{said}");
    }
}

#[test]
fn a_missing_command_is_named() {
    if Command::new("cmake").arg("--version").output().is_err() {
        return eprintln!("skipped: no cmake here");
    }
    let lines = "set(UPCALL_COMMAND UPCALL_COMMAND-NOTFOUND)\nfind_package(upcall REQUIRED)\n\
        set(UPCALL_COMMAND UPCALL_COMMAND-NOTFOUND)\nupcall_add_interface(greeter greeter.wit)";
    let (done, said) = configure(lines, "/nowhere");
    assert!(!done && said.contains("install it, or set UPCALL_COMMAND"), "{said}");
}
