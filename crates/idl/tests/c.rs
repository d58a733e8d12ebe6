//! The generated C compiles without warnings as C11, and its headers also as C++17, for all
//! accepted packages.

mod echo;

use std::path::{Path, PathBuf};
use std::process::Command;

const C: &[&str] =
    &["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O0", "-fsyntax-only"];
const CXX: &[&str] =
    &["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O0", "-fsyntax-only"];

/// Number of files that one compiler compiles at a time; two compilers run in parallel.
const BATCH: usize = 24;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn compile(compiler: &str, options: &[&str], files: &[PathBuf]) {
    let include = here("../../bindings/c/include");
    let run =
        Command::new(compiler).args(options).arg("-I").arg(include).args(files).output().unwrap();
    assert!(run.status.success(), "{compiler}:\n{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn what_is_generated_compiles_without_warnings() {
    let folder = std::env::temp_dir().join(format!("upcall-idl-c-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut sources = Vec::new();
    let mut headers = Vec::new();
    for (stem, path) in echo::packages() {
        let Ok(code) = upcall_idl::generate_c(&path, &stem) else { continue };
        // A reader of the header finds what programs may use, and not what only generated code
        // uses.
        assert!(
            !code.header.contains("freed by `upcall_resource_drop"),
            "{stem}:\n{}",
            code.header
        );
        let source = folder.join(format!("{stem}.c"));
        std::fs::write(folder.join(format!("{stem}.h")), code.header).unwrap();
        std::fs::write(&source, code.source).unwrap();
        sources.push(source);
        let included = folder.join(format!("{stem}.cpp"));
        std::fs::write(&included, format!("#include \"{stem}.h\"\n")).unwrap();
        headers.push(included);
    }
    assert!(sources.len() > 70, "{} packages", sources.len());
    let work = std::sync::Mutex::new(Vec::new());
    work.lock().unwrap().extend(sources.chunks(BATCH).map(|files| ("gcc", C, files)));
    match Command::new("g++").arg("--version").output() {
        Ok(_) => {
            work.lock().unwrap().extend(headers.chunks(BATCH).map(|files| ("g++", CXX, files)))
        }
        Err(_) => println!("headers were not compiled as C++: there is no g++"),
    }
    std::thread::scope(|scope| {
        let one = || {
            loop {
                let Some((compiler, options, files)) = work.lock().unwrap().pop() else { return };
                compile(compiler, options, files);
            }
        };
        scope.spawn(one);
        one();
    });
    std::fs::remove_dir_all(&folder).unwrap();
}
