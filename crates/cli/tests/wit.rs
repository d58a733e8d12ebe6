//! `upcall wit` as a user types it.

use std::process::{Command, Output};
use tempfile::TempDir;

/// A folder of files.
struct Files(TempDir);

impl Files {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().expect("a folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            std::fs::write(path, text).expect("a file");
        }
        Self(folder)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    /// Runs the command. Returns the exit code, the output, and the errors.
    fn run(&self, arguments: &str) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_upcall"));
        command.current_dir(self.0.path()).arg("wit").args(arguments.split_whitespace());
        let Output { status, stdout, stderr } = command.output().expect("the command starts");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let (stdout, stderr) = (text(stdout), text(stderr));
        assert!(
            !stdout.contains('\u{1b}') && !stderr.contains('\u{1b}'),
            "colours only on a terminal: {stdout}{stderr}"
        );
        (status.code().expect("an exit code"), stdout, stderr)
    }
}

const OLD: &str = "package a:b@1.0.0; interface i {
    record point { x: s32, y: s32 }
    move: func(p: point) -> point; name: func(s: string); gone: func();
}";

#[test]
fn diff_says_what_breaks_whom() {
    let files = Files::new(&[
        ("old.wit", OLD),
        (
            "added.wit",
            &OLD.replace("gone: func();", "gone: func(); more: func();").replace("1.0.0", "1.1.0"),
        ),
        (
            "new.wit",
            &OLD.replace("y: s32", "y: s32, z: s32")
                .replace("gone: func();", "")
                .replace("1.0.0", "2.0.0"),
        ),
        ("tight/old.wit", OLD),
        ("tight/old.toml", "[limits]\nstring = 100\n"),
        ("wrong.wit", "package a:b; interface i { f: func( }"),
    ]);
    let (code, said, _) = files.run("diff old.wit old.wit");
    assert_eq!(
        (code, said.as_str()),
        (
            0,
            "a:b/i 1.0.0 -> 1.0.0\n  unchanged  3 procedures\n  old client -> new server: runs\n  \
             new client -> old server: runs\n\
         Old clients run on.\n"
        )
    );

    let (code, said, _) = files.run("diff old.wit added.wit");
    assert_eq!(code, 0, "{said}");
    for line in [
        "  added      more",
        "  old client -> new server: runs",
        "  new client -> old server: fails at bind with `Mismatch`: more",
    ] {
        assert!(said.lines().any(|l| l == line), "{line}\n{said}");
    }

    let (code, said, _) = files.run("diff old.wit new.wit --signatures");
    assert_eq!(code, 1, "{said}");
    for line in [
        "  changed    move",
        "             record point: field `z` added: s32",
        "  removed    gone",
        "  old client -> new server: fails at bind with `Mismatch`: move, gone",
        "  new client -> old server: fails at bind with `Mismatch`: move",
        "Old clients break.",
    ] {
        assert!(said.lines().any(|l| l == line), "{line}\n{said}");
    }
    assert!(said.contains("is  move: func(p: record{x: s32, y: s32, z: s32})"), "{said}");

    let (code, said, _) = files.run("diff old.wit tight/old.wit");
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("name: strings of more bytes than 100 in the arguments are refused"),
        "{said}"
    );
    let (code, said, _) = files.run("diff tight/old.wit old.wit");
    assert_eq!(code, 0, "a larger limit breaks new clients of old servers only: {said}");

    for arguments in ["diff old.wit wrong.wit", "diff nowhere.wit old.wit", "diff old.wit"] {
        let (code, _, error) = files.run(arguments);
        assert_eq!(code, 2, "{arguments}: {error}");
    }
}

#[test]
fn diff_says_that_fewer_values_break_calls_with_larger_arguments() {
    let files = Files::new(&[
        ("old.wit", OLD),
        ("tight/old.wit", OLD),
        ("tight/old.toml", "[limits]\nstring = 100\n"),
        ("small/old.wit", OLD),
        ("small/old.toml", "[limits]\nvalues = 5000\n"),
    ]);
    let (code, said, _) = files.run("diff old.wit small/old.wit");
    assert_eq!(code, 1, "{said}");
    for line in [
        "  limits     name",
        "             values: was 16777216, is 5000",
        "  old client -> new server: binds; `Quota` at run time:",
        "    name: arguments of which the server copies more than 5000 bytes (`values`) are \
         refused; the client's limit is 16777216",
        "  new client -> old server: runs",
    ] {
        assert!(said.lines().any(|l| l == line), "{line}\n{said}");
    }
    let (code, said, _) = files.run("diff small/old.wit tight/old.wit");
    assert!(code == 1 && said.contains("binds; `Refused` at run time:"), "{said}");
}

#[test]
fn diff_is_for_scripts_too() {
    let files = Files::new(&[("old.wit", OLD), ("new.wit", &OLD.replace("y: s32", "y: s64"))]);
    let (code, said, _) = files.run("diff --json old.wit new.wit");
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((code, &said["breaks_old_clients"]), (1, &true.into()));
    let interface = &said["interfaces"][0];
    assert_eq!(interface["old_client_new_server"]["outcome"], "mismatch");
    assert_eq!(interface["old_client_new_server"]["procedures"][0], "move");
    let changed = interface["procedures"]
        .as_array()
        .expect("procedures")
        .iter()
        .find(|p| p["change"] == "changed");
    let changed = changed.expect("a changed one");
    assert_eq!(changed["reasons"][0]["place"], "record point, field `y`");
    assert_eq!(changed["reasons"][0]["change"], "was s32, is s64");
}

#[test]
fn generate_writes_what_the_macro_expands_to() {
    let files = Files::new(&[
        ("old.wit", OLD),
        ("out/.keep", ""),
        ("bad.wit", "package a:b; interface i { f: func() -> stream<u8>; }"),
    ]);
    let stubs = upcall_idl::generate(files.path("old.wit")).expect("stubs").code;
    let (code, said, error) = files.run("generate old.wit --lang rust");
    assert_eq!((code, said), (0, stubs.clone()), "{error}");
    for (output, file) in [("out", "out/old.rs"), ("out/", "out/old.rs"), ("other.rs", "other.rs")]
    {
        let (code, said, error) = files.run(&format!("generate old.wit -o {output}"));
        assert_eq!((code, said.trim()), (0, file), "{error}");
        assert_eq!(std::fs::read_to_string(files.path(file)).expect("the stubs"), stubs);
    }
    let (code, _, error) = files.run("generate old.wit --lang ada");
    assert!(code != 0 && error.contains("[possible values: rust, c, python]"), "{error}");
    let (code, _, error) = files.run("generate old.wit -o nowhere/old.rs");
    assert!(
        code != 0 && error.contains("cannot write nowhere/old.rs: No such file or directory"),
        "{error}"
    );
    let (code, _, error) = files.run("generate bad.wit");
    assert!(code != 0 && error.contains("bad.wit:1:41: `stream` is not supported"), "{error}");
}

#[test]
fn generate_writes_two_files_for_c() {
    let files = Files::new(&[("old.wit", OLD), ("out/.keep", "")]);
    for (output, stem, said) in
        [("out", "old", "out/old.h\nout/old.c\n"), ("other.c", "other", "other.h\nother.c\n")]
    {
        let stubs = upcall_idl::generate_c(files.path("old.wit"), stem).expect("stubs");
        let (code, found, error) = files.run(&format!("generate old.wit --lang c -o {output}"));
        assert_eq!((code, found.as_str()), (0, said), "{error}");
        let names: Vec<&str> = said.lines().collect();
        assert_eq!(
            std::fs::read_to_string(files.path(names[0])).expect("the header"),
            stubs.header
        );
        assert_eq!(
            std::fs::read_to_string(files.path(names[1])).expect("the source"),
            stubs.source
        );
    }
}

#[test]
fn generate_writes_a_module_for_python() {
    let files = Files::new(&[
        ("old-one.wit", OLD),
        ("out/.keep", ""),
        ("bad.wit", "package a:b; interface i { f: func() -> stream<u8>; }"),
    ]);
    let module = upcall_idl::generate_python(files.path("old-one.wit")).expect("a module");
    let (code, said, error) = files.run("generate old-one.wit --lang python");
    assert_eq!((code, said), (0, module.clone()), "{error}");
    // Python can import the name.
    let (code, said, error) = files.run("generate old-one.wit --lang python -o out");
    assert_eq!((code, said.trim()), (0, "out/old_one.py"), "{error}");
    assert_eq!(std::fs::read_to_string(files.path("out/old_one.py")).expect("the module"), module);
    let (code, _, error) = files.run("generate bad.wit --lang python");
    assert!(code != 0 && error.contains("bad.wit:1:41: `stream` is not supported"), "{error}");
}

#[test]
fn generate_takes_the_language_from_the_output() {
    let files = Files::new(&[("old.wit", OLD), ("out.py/.keep", "")]);
    let python = upcall_idl::generate_python(files.path("old.wit")).expect("a module");
    let rust = upcall_idl::generate(files.path("old.wit")).expect("stubs").code;
    let c = upcall_idl::generate_c(files.path("old.wit"), "stubs").expect("stubs").header;
    for (output, said, file, expected) in [
        ("stubs.py", "stubs.py\n", "stubs.py", &python),
        ("stubs.rs", "stubs.rs\n", "stubs.rs", &rust),
        ("stubs.txt", "stubs.txt\n", "stubs.txt", &rust),
        ("stubs.c", "stubs.h\nstubs.c\n", "stubs.h", &c),
        ("stubs.h", "stubs.h\nstubs.c\n", "stubs.h", &c),
        ("stubs --lang c", "stubs.h\nstubs.c\n", "stubs.h", &c),
        // The ending of a folder is no language.
        ("out.py", "out.py/old.rs\n", "out.py/old.rs", &rust),
    ] {
        let (code, found, error) = files.run(&format!("generate old.wit -o {output}"));
        assert_eq!((code, found.as_str()), (0, said), "{output}: {error}");
        let found = std::fs::read_to_string(files.path(file)).expect("the stubs");
        assert_eq!(found, *expected, "{output}");
    }
    for (arguments, said) in [
        (
            "--lang c -o new.py",
            "--lang c cannot write new.py: name a file that ends in .c, or type --lang python",
        ),
        (
            "--lang python -o new.h",
            "--lang python cannot write new.h: name a file that ends in .py, or type --lang c",
        ),
        (
            "-o new-stubs.py",
            "new-stubs.py is not written, because Python cannot import a module of the name \
             \"new-stubs\": name the file new_stubs.py",
        ),
        ("--lang python -o 1new.py", "name the file _1new.py"),
    ] {
        let (code, found, error) = files.run(&format!("generate old.wit {arguments}"));
        assert_eq!((code, found.as_str()), (2, ""), "{arguments}: {error}");
        assert!(error.contains(said), "{arguments}: {error}");
    }
    for file in ["new.py", "new.h", "new-stubs.py", "1new.py"] {
        assert!(!files.path(file).exists(), "{file}");
    }
}

#[test]
fn check_tells_all_that_is_wrong() {
    let files = Files::new(&[
        ("good.wit", OLD),
        ("limited/good.wit", OLD),
        ("limited/good.toml", "[i]\nstring = 100\n"),
        (
            "bad.wit",
            "package a:b;\ninterface i {\n  f: func() -> stream<u8>;\n  g: func() -> future;\n  \
             h: func(a: u8);\n}\ninterface j {\n  k: func(a: error-context);\n}",
        ),
        ("broken.wit", "package a:b;\ninterface i {\n  f: func(;\n}"),
        (
            "clash.wit",
            "package a:b;\ninterface i {\n  record serve { a: u8 }\n  f: func();\n}\n\
             interface j {\n  record serve { a: u8 }\n  f: func();\n}",
        ),
    ]);
    let (code, said, _) = files.run("check good.wit");
    assert_eq!(
        (code, said.as_str()),
        (
            0,
            "good.wit: a:b@1.0.0\n  1 interface, 3 procedures\n  default limits: there is no \
             good.toml\n"
        )
    );
    let (_, said, _) = files.run("check limited/good.wit limited");
    let limits: Vec<&str> = said.lines().filter(|line| line.contains("limits")).collect();
    assert_eq!(
        limits,
        ["  limits of limited/good.toml", "  default limits: there is no limited.toml"],
        "{said}"
    );
    let (code, _, error) = files.run("check good.wit bad.wit broken.wit clash.wit");
    let places: Vec<&str> = error
        .lines()
        .filter_map(|line| line.strip_prefix("upcall: "))
        .filter_map(|l| l.split(": ").next())
        .collect();
    assert_eq!(
        (code, places),
        (
            1,
            vec![
                "bad.wit:3:16",
                "bad.wit:4:16",
                "bad.wit:8:11",
                "broken.wit:3:11",
                "clash.wit:3:10",
                "clash.wit:7:10"
            ]
        ),
        "{error}"
    );
}

#[test]
fn explain_says_where_values_travel_and_what_that_takes() {
    let wit = "package a:b; interface i { ping: func(a: u32) -> u32;
        put: func(name: string, data: list<u8>) -> u64; }";
    let files = Files::new(&[
        ("i.wit", wit),
        ("i.toml", "[limits]\nstring = 100\nlist = 1000\ncalls = 7\n"),
        ("bad.wit", "package a:b; interface i { f: func( }"),
    ]);
    let (code, said, _) = files.run("explain i.wit");
    assert_eq!(code, 0);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines[..5],
        [
            "a:b/i",
            "  procedure  arguments                      results  travels in        copies",
            "  ping       8 B                            8 B      one line          a AE, result F",
            "  put        32 B + 1 KiB, at most 1.1 KiB  8 B      A-stack of 2 KiB  name AE, \
             data A, result F",
            "  7 A-stacks of 2 KiB: put",
        ],
        "{said}"
    );
    // A name is copied and checked; bytes are used in place.
    assert_eq!(lines[5], "  at most 16 MiB of values in the server for one call: put", "{said}");
    assert!(said.contains("14 KiB of A-stacks") && said.contains("8192 calls at once"), "{said}");
    let (code, said, _) = files.run("explain i.wit --json");
    let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((code, &json[0]["astacks"][0]["bytes"]), (0, &2048.into()));
    let values: Vec<_> =
        (0..2).map(|at| json[0]["procedures"][at]["values_bytes"].as_u64()).collect();
    assert_eq!(values, [Some(0), Some(16 << 20)]);
    let (code, _, complaint) = files.run("explain bad.wit");
    assert_eq!(code, 2);
    assert!(complaint.contains("bad.wit:1:"), "{complaint}");
}

#[test]
fn explain_shows_the_quotas_of_a_server_and_how_the_limits_raise_them() {
    let wit = "package a:b; interface i { put: func(name: string) -> u64; }";
    let files = Files::new(&[
        ("i.wit", wit),
        ("large.wit", wit),
        ("large.toml", "[i.put]\nvalues = \"1024GiB\"\n"),
    ]);
    for (file, values) in [("i.wit", 16 << 20), ("large.wit", 1 << 40)] {
        let (code, said, error) = files.run(&format!("explain {file} --json"));
        assert_eq!(code, 0, "{error}");
        let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(json[0]["procedures"][0]["values_bytes"], values, "{said}");
        let upcall::Quotas { calls, client, all, .. } =
            upcall::Quotas::default().with_values(values);
        let shown =
            |name: &str| json[0]["server_quotas"][name].as_u64().map(|number| number as usize);
        assert_eq!(shown("calls"), Some(calls), "{said}");
        for (whose, amounts) in [("client", client), ("all", all)] {
            let upcall::Quota { objects, bytes, results, values, unfilled, .. } = amounts;
            let expected = [
                ("objects", objects),
                ("mapped_bytes", bytes),
                ("results_bytes", results),
                ("values_bytes", values),
                ("unfilled_bytes", unfilled),
            ];
            for (what, amount) in expected {
                assert_eq!(
                    shown(&format!("{whose}_{what}")),
                    Some(amount),
                    "{whose} {what}: {said}"
                );
            }
        }
    }
    let (_, said, _) = files.run("explain large.wit");
    let line = |start: &str| {
        said.lines().find(|line| line.trim_start().starts_with(start)).unwrap_or_default()
    };
    assert!(
        line("at most 1 TiB of values in the server for one call: put").ends_with("put"),
        "{said}"
    );
    assert!(
        line("one client").ends_with("1 TiB of values")
            && line("all clients").ends_with("2 TiB of values"),
        "{said}"
    );
}

#[test]
fn emit_writes_the_wit_of_a_rust_file() {
    let files = Files::new(&[
        (
            "src/lib.rs",
            "pub mod deep {
    /// Sums.
    #[upcall::package(\"demo:sums@1.0.0\")]
    pub mod sums {
        #[limits(list = 100)]
        pub trait Sums { fn total(&self, numbers: &[u32]) -> u64; }
    }
    #[package(\"demo:one\")]
    trait One { fn one(&self); }
}",
        ),
        ("wrong.rs", "#[upcall::package(\"a:b\")]\ntrait One {\n    fn one(&self) -> usize;\n}"),
        ("none.rs", "fn main() {}"),
        ("broken.rs", "fn main( {}"),
        ("wit/empty", ""),
    ]);
    let sums = "package demo:sums@1.0.0;\n\n/// Sums.\ninterface sums {\n    \
                total: func(numbers: list<u32>) -> u64;\n}\n";
    let (code, said, _) = files.run("emit src/lib.rs");
    let one = "package demo:one;\n\ninterface one {\n    one: func();\n}\n";
    assert_eq!((code, said), (0, format!("{sums}// [sums]\n// list = 100\n{one}")));
    assert_eq!(files.run("emit src/lib.rs -o wit").1, "wit/sums.wit\nwit/sums.toml\nwit/one.wit\n");
    assert_eq!(std::fs::read_to_string(files.path("wit/sums.wit")).expect("a file"), sums);
    // The files are usable: the limits count, and stubs are generated.
    assert!(files.run("generate wit/sums.wit --lang c").1.contains(" sums_total("));
    assert!(
        files
            .run("generate wit/sums.wit --lang c --long-names")
            .1
            .contains(" demo_sums_sums_total(")
    );
    assert_eq!(files.run("check wit/sums.wit").0, 0);
    for (arguments, expected) in [
        ("emit wrong.rs", "wrong.rs:3:22: its size is a matter of the machine"),
        ("emit none.rs", "none.rs has no interface: put #[upcall::package("),
        ("emit broken.rs", "broken.rs:1:"),
        ("emit missing.rs", "cannot read missing.rs"),
        ("emit src/lib.rs -o nowhere", "cannot write nowhere/sums.wit"),
    ] {
        let (code, _, error) = files.run(arguments);
        assert!(code != 0 && error.contains(expected), "{arguments}: {code} {error}");
    }
}
