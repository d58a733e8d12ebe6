//! Tests of `upvmcc` and the other wrappers, and of what other build systems use in place of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HELLO: &str = "#include <stdio.h>\n#include \"pvm3.h\"\n\
     int main(void) { printf(\"%s\\n\", pvm_version()); return 0; }\n";

fn upvmcc() -> Command {
    Command::new(env!("CARGO_BIN_EXE_upvmcc"))
}

fn ok(command: &mut Command) -> Output {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        done.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    done
}

fn is_an_image(program: &Path) {
    upcall_ulp::Image::open(program).unwrap();
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("hello.c");
    fs::write(&source, HELLO).unwrap();
    (folder, source)
}

#[test]
fn it_compiles_links_and_does_both_and_other_libraries_of_pvms_do_not_disturb() {
    let (folder, source) = folder();
    let [object, program] = ["hello.o", "hello"].map(|name| folder.path().join(name));
    ok(upvmcc().arg("-c").arg(&source).arg("-o").arg(&object));
    ok(upvmcc()
        .arg(&object)
        .args(["-L/usr/lib/pvm3/lib", "-lgpvm3", "-lpvm3", "-static", "-no-pie", "-o"])
        .arg(&program));
    is_an_image(&program);
    // Queries are passed on to the compiler.
    let done = ok(upvmcc().arg("--version"));
    assert!(String::from_utf8_lossy(&done.stdout).contains("Free Software Foundation"));
    assert!(
        String::from_utf8_lossy(&ok(upvmcc().arg("--upvm-help")).stdout).contains("upcall pvm run")
    );
}

#[test]
fn other_languages_have_theirs() {
    let (folder, _) = folder();
    let cases = [
        (
            env!("CARGO_BIN_EXE_upvmcxx"),
            "g++",
            "a.cpp",
            "#include <iostream>\n#include \"pvm3.h\"\n#include \"upvm.h\"\n\
             int main() { std::cout << pvm_version() << upvm_process() << \"\\n\"; }\n",
        ),
        (
            env!("CARGO_BIN_EXE_upvmf77"),
            "gfortran",
            "b.f",
            "      program b\n      include 'fpvm3.h'\n      integer tid\n      \
             call pvmfmytid(tid)\n      end\n",
        ),
        (
            env!("CARGO_BIN_EXE_upvmf90"),
            "gfortran",
            "c.f90",
            "program c\n  include 'fpvm3.h'\n  integer tid\n  call pvmfmytid(tid)\nend program\n",
        ),
    ];
    for (wrapper, compiler, name, text) in cases {
        if Command::new(compiler).arg("--version").output().is_err() {
            eprintln!("skipped: no {compiler} here");
            continue;
        }
        let [source, program] =
            [name.to_owned(), format!("{name}.out")].map(|name| folder.path().join(name));
        fs::write(&source, text).unwrap();
        ok(Command::new(wrapper).arg(&source).arg("-o").arg(&program));
        is_an_image(&program);
    }
}

/// `-x LANGUAGE` holds for all files after it.
#[test]
fn a_language_that_the_user_names_does_not_hold_for_the_added_files() {
    let (folder, source) = folder();
    for (wrapper, compiler, language) in
        [(env!("CARGO_BIN_EXE_upvmcc"), "gcc", "c"), (env!("CARGO_BIN_EXE_upvmcxx"), "g++", "c++")]
    {
        if Command::new(compiler).arg("--version").output().is_err() {
            eprintln!("skipped: no {compiler} here");
            continue;
        }
        let program = folder.path().join(compiler);
        ok(Command::new(wrapper).args(["-x", language]).arg(&source).arg("-o").arg(&program));
        is_an_image(&program);
    }
}

#[test]
fn a_compiler_that_is_not_there_is_named_with_the_way_out() {
    let (_folder, source) = folder();
    let done = upvmcc().arg(&source).env("UPVM_CC", "/nowhere/cc").output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.code() == Some(127)
            && said.contains("/nowhere/cc cannot be run")
            && said.contains("UPVM_CC"),
        "{said}"
    );
}

#[test]
fn other_build_systems_take_the_same_from_an_installation() {
    let (folder, source) = folder();
    let libraries = folder.path().join("lib/upvm");
    ok(upvmcc().arg("--upvm-unpack").arg(&libraries).arg("/usr/bin/upcall"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Written as `make install` does.
    let text = fs::read_to_string(root.join("upvm.pc.in")).unwrap();
    let text = text
        .replace("@LIBDIR@", folder.path().join("lib").to_str().unwrap())
        .replace("@VERSION@", "0");
    fs::write(folder.path().join("upvm.pc"), text).unwrap();
    let flags = |which| {
        let mut command = Command::new("pkg-config");
        command.args([which, "upvm"]).env("PKG_CONFIG_PATH", folder.path());
        command
            .output()
            .ok()
            .filter(|done| done.status.success())
            .map(|done| String::from_utf8(done.stdout).unwrap())
    };
    if let (Some(compiling), Some(linking)) = (flags("--cflags"), flags("--libs")) {
        let program = folder.path().join("by-pkg-config");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        ok(Command::new("gcc")
            .args(words(&compiling))
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .args(words(&linking)));
        is_an_image(&program);
    } else {
        eprintln!("skipped: no pkg-config here");
    }
    if Command::new("cmake").arg("--version").output().is_err() {
        return eprintln!("skipped: no cmake here");
    }
    let config = folder.path().join("lib/cmake/upvm");
    fs::create_dir_all(&config).unwrap();
    fs::copy(root.join("upvm-config.cmake"), config.join("upvm-config.cmake")).unwrap();
    let lists = "cmake_minimum_required(VERSION 3.13)\nproject(hello C)\n\
         find_package(upvm REQUIRED)\nadd_executable(by-cmake hello.c)\n\
         target_link_libraries(by-cmake PRIVATE upvm::pvm3)\n";
    fs::write(folder.path().join("CMakeLists.txt"), lists).unwrap();
    let build = folder.path().join("build");
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", folder.path().display());
    ok(Command::new("cmake").arg("-S").arg(folder.path()).arg("-B").arg(&build).arg(prefix));
    ok(Command::new("cmake").arg("--build").arg(&build));
    is_an_image(&build.join("by-cmake"));
}

/// A waiting task must have nothing of the shared code on its stack, with any compiler. So the
/// shared code leaves by jumps and has no calls.
#[test]
fn what_all_tasks_share_calls_nothing() {
    let done = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn", concat!(env!("OUT_DIR"), "/shared")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(
        said.contains("<upvm_shared_came>:")
            && said.contains("jmp    *")
            && !said.contains("\tcall"),
        "{said}"
    );
}

/// The original PVM has neither the header nor its functions.
#[test]
fn a_program_that_moves_is_one_for_the_original_pvm_too() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("both.c");
    let text = "#include <pvm3.h>\n#ifdef UPVM\n#include <upvm.h>\n#endif\nint main(void)\n{\n\
        #ifdef UPVM\n    upvm_migrate(0, !upvm_process());\n#endif\n    return pvm_exit();\n}\n";
    fs::write(&source, text).unwrap();
    let program = folder.path().join("both");
    ok(upvmcc().arg(&source).arg("-o").arg(&program));
    let symbols = ok(Command::new("nm").arg(&program)).stdout;
    assert!(String::from_utf8_lossy(&symbols).contains("upvm_migrate"));
    if !Path::new("/usr/include/pvm3.h").exists() {
        return eprintln!("skipped: no pvm-dev here");
    }
    ok(Command::new("gcc").args(["-Wall", "-Werror", "-fsyntax-only"]).arg(&source));
}
