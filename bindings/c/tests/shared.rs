//! Two packages that use a third one's interface, in one program: both headers are included, both
//! sources linked, and a resource of the third is the same to both.
#![forbid(unsafe_code)]

mod gcc;

use std::path::{Path, PathBuf};
use std::process::Command;
use upcall_idl::CNames;

const POOL: &str = "package test:pool@1.0.0;
interface pool {
    /// What an item is doing.
    variant state { idle, busy(string) }
    flags rights { look, touch }
    record report { state: state, rights: rights, path: list<option<string>> }
    resource item {
        constructor(name: string);
        name: func() -> string;
        report: func() -> report;
    }
    take: func() -> item;
}";

const ONE: &str = "package test:one;
interface one {
    use test:pool/pool@1.0.0.{item, report};
    open: func(name: string) -> item;
    same: func(reports: list<report>) -> list<report>;
}";

const TWO: &str = "package test:two;
interface two {
    use test:pool/pool@1.0.0.{item, state};
    wrap: func(it: item) -> item;
    lengths: func(items: list<borrow<item>>) -> list<u32>;
    states: func(states: list<state>) -> list<state>;
}";

/// Writes a package with `pool` beside it, and its C. Returns the source file.
fn generate(folder: &Path, name: &str, wit: &str, pool: &str) -> PathBuf {
    let package = folder.join(name);
    std::fs::create_dir_all(package.join("deps/pool")).unwrap();
    std::fs::write(package.join("package.wit"), wit).unwrap();
    std::fs::write(package.join("deps/pool/pool.wit"), pool).unwrap();
    write(folder, name, &package)
}

fn write(folder: &Path, name: &str, package: &Path) -> PathBuf {
    write_with(folder, name, package, CNames::Short)
}

fn write_with(folder: &Path, name: &str, package: &Path, names: CNames) -> PathBuf {
    let code = upcall_idl::generate_c_with(package, name, names).unwrap();
    let source = folder.join(format!("{name}.c"));
    std::fs::write(folder.join(format!("{name}.h")), code.header).unwrap();
    std::fs::write(&source, code.source).unwrap();
    source
}

#[test]
fn both_are_linked_and_understand_each_other() {
    if gcc::left_out() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    gcc::install(folder.path());
    let (one, two) =
        (generate(folder.path(), "one", ONE, POOL), generate(folder.path(), "two", TWO, POOL));
    // In both orders: it makes no difference whose functions are linked.
    for (name, order) in [("program", [&one, &two]), ("reverse", [&two, &one])] {
        let mut sources = vec![gcc::here("tests/shared/main.c")];
        sources.extend(order.into_iter().cloned());
        let reverse = if name == "reverse" { "-DREVERSE" } else { "-g" };
        gcc::compile(&["-O1", reverse], &sources, folder.path(), name);
        let run = gcc::command(&folder.path().join(name), false)
            .arg(format!("shared-{}-{name}", std::process::id()))
            .output()
            .unwrap();
        assert!(
            run.status.success(),
            "{name}: {}: {}",
            run.status,
            String::from_utf8_lossy(&run.stderr)
        );
    }
}

/// Compiles a program that includes the headers of these packages. Returns whether that succeeded,
/// and the output.
fn compiled(folder: &Path, compiler: &str, standard: &str, program: &str) -> (bool, String) {
    let source = folder.join(program);
    let mut run = Command::new(compiler);
    run.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"])
        .arg(gcc::here("include"));
    let run = run.arg("-I").arg(folder).arg(source).output().unwrap();
    (run.status.success(), String::from_utf8_lossy(&run.stderr).into_owned())
}

#[test]
fn another_version_of_what_they_share_is_told() {
    let folder = tempfile::tempdir().unwrap();
    generate(folder.path(), "one", ONE, POOL);
    // Another comment makes no difference, but another case does.
    generate(folder.path(), "two", TWO, &POOL.replace("What an item is doing", "Another comment"));
    std::fs::write(folder.path().join("same.c"), "#include \"one.h\"\n#include \"two.h\"\n")
        .unwrap();
    assert_eq!(compiled(folder.path(), "gcc", "-std=c11", "same.c"), (true, String::new()));
    generate(folder.path(), "two", TWO, &POOL.replace("idle,", "idle, lost,"));
    let (fine, said) = compiled(folder.path(), "gcc", "-std=c11", "same.c");
    assert!(
        !fine
            && said.contains("test_pool_pool_state_t_tag is another one")
            && said.contains("same version of test:pool@1.0.0"),
        "{said}"
    );
}

/// Includes the headers of `names` in one file, in both orders, in C and in C++.
fn include_together(folder: &Path, names: &[&str]) {
    let has_cxx = Command::new("g++").arg("--version").output().is_ok();
    for reverse in [false, true] {
        let mut includes: Vec<String> =
            names.iter().map(|name| format!("#include \"{name}.h\"\n")).collect();
        if reverse {
            includes.reverse();
        }
        for (compiler, standard, file) in
            [("gcc", "-std=c11", "all.c"), ("g++", "-std=c++17", "all.cpp")]
        {
            if compiler == "gcc" || has_cxx {
                std::fs::write(folder.join(file), includes.concat()).unwrap();
                assert_eq!(compiled(folder, compiler, standard, file), (true, String::new()));
            }
        }
    }
}

/// WASI packages that have much in common, but no two interfaces of one name.
#[test]
fn packages_stand_beside_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["cli", "http", "random", "clocks"];
    for name in names {
        write(
            folder.path(),
            name,
            &gcc::here("../../crates/idl/tests/packages/wasi-0.2").join(name),
        );
    }
    include_together(folder.path(), &names);
}

/// With their long names all packages can be combined, although most have an interface `types`, and
/// use each other's. The interfaces that they use then mean the same in each.
#[test]
fn with_long_names_all_packages_do() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["cli", "http", "filesystem", "random", "sockets", "clocks", "io"];
    let package = |name: &str| gcc::here("../../crates/idl/tests/packages/wasi-0.2").join(name);
    let sources: Vec<PathBuf> = names
        .iter()
        .map(|name| write_with(folder.path(), name, &package(name), CNames::Long))
        .collect();
    include_together(folder.path(), &names);
    if !gcc::left_out() {
        gcc::install(folder.path());
        gcc::compile(&["-O0", "-shared", "-fPIC"], &sources, folder.path(), "wasi.so");
    }
}
