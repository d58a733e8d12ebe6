//! Every package that the compiler accepts, in Python. Its module is imported without a warning,
//! `mypy --strict` accepts its types, and random values of its procedures' arguments come back from
//! Python unchanged.
#![forbid(unsafe_code)]

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Programs, finish, here, interpreter, left_out, package};
use upcall_idl::dynamic::DynamicInterface;
use upcall_idl::model::{Model, Type, TypeBody};

mod support;

/// Number of values for each procedure.
const VALUES: u32 = 8;

fn packages() -> Vec<(String, PathBuf)> {
    let mut all = vec![("every".into(), here("tests/languages/every.wit"))];
    for collection in [
        "packages/spin",
        "packages/wasi-0.2",
        "packages/wasi-0.3",
        "packages/wasi-proposals",
        "packages/wit-parser",
        "wit",
    ] {
        for entry in std::fs::read_dir(here("../../crates/idl/tests").join(collection)).unwrap() {
            let path = entry.unwrap().path();
            let name = format!("{collection}/{}", path.file_stem().unwrap().to_string_lossy());
            let stem: String =
                name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
            if path.extension().is_none_or(|ending| ending != "toml") {
                all.push((stem, path));
            }
        }
    }
    all.sort();
    all
}

/// Pseudo-random numbers, the same ones each time (xorshift).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    /// Small and large numbers alike.
    fn bits(&mut self) -> u64 {
        let shift = self.below(64);
        self.next() >> shift
    }

    /// A random value of a type, in WAVE.
    fn value(&mut self, model: &Model, ty: &Type) -> String {
        match model.resolve(ty) {
            Type::Bool => (self.below(2) == 1).to_string(),
            Type::U8 => (self.bits() as u8).to_string(),
            Type::U16 => (self.bits() as u16).to_string(),
            Type::U32 => (self.bits() as u32).to_string(),
            Type::U64 => self.bits().to_string(),
            Type::S8 => (self.next() as i8).to_string(),
            Type::S16 => (self.next() as i16).to_string(),
            Type::S32 => (self.next() as i32).to_string(),
            Type::S64 => (self.next() as i64).to_string(),
            Type::F32 => (f32::from(self.next() as i16) / 8.0).to_string(),
            Type::F64 => ["inf".into(), (f64::from(self.next() as i32) / 64.0).to_string()]
                [usize::from(self.below(8) > 0)]
            .clone(),
            Type::Char => format!("'{}'", ['a', 'ß', '€', '𝄞'][self.below(4)]),
            Type::String => format!(
                "\"{}\"",
                ["", "a", "ß€𝄞 and more", "x y"][self.below(4)].repeat(self.below(4))
            ),
            Type::List(t) => {
                // Occasionally long enough not to be copied with the rest.
                let count = if *model.resolve(t) == Type::U8 && self.below(4) == 0 {
                    3000
                } else {
                    self.below(4)
                };
                self.listed("[", "]", (0..count).map(|_| &**t), model)
            }
            Type::FixedList(t, count) => self.listed("[", "]", (0..*count).map(|_| &**t), model),
            Type::Tuple(types) => self.listed("(", ")", types.iter(), model),
            Type::Option(t) => match self.below(3) {
                0 => "none".into(),
                _ => format!("some({})", self.value(model, t)),
            },
            Type::Result(ok, err) => match self.below(2) {
                0 => self.case("ok", ok.as_deref(), model),
                _ => self.case("err", err.as_deref(), model),
            },
            Type::Own(_) | Type::Borrow(_) => unreachable!("left out"),
            Type::Named(id) => match &model.def(*id).shape {
                TypeBody::Record(fields) => {
                    let parts: Vec<String> = fields
                        .iter()
                        .map(|f| format!("{}: {}", f.name, self.value(model, &f.ty)))
                        .collect();
                    format!("{{{}}}", parts.join(", "))
                }
                TypeBody::Variant(cases) => {
                    let case = &cases[self.below(cases.len())];
                    // A case may be called `some` or `ok`; the sign marks it as a name.
                    self.case(&format!("%{}", case.name), case.ty.as_ref(), model)
                }
                TypeBody::Enum(labels) => format!("%{}", labels[self.below(labels.len())].name),
                TypeBody::Flags(labels) => {
                    let set: Vec<&str> = labels
                        .iter()
                        .filter(|_| self.below(2) == 0)
                        .map(|label| label.name.as_str())
                        .collect();
                    format!("{{{}}}", set.join(", "))
                }
                TypeBody::Alias(_) | TypeBody::Resource => unreachable!("resolved, or left out"),
            },
        }
    }

    fn case(&mut self, name: &str, ty: Option<&Type>, model: &Model) -> String {
        ty.map_or_else(|| name.to_owned(), |ty| format!("{name}({})", self.value(model, ty)))
    }

    fn listed<'a>(
        &mut self,
        open: &str,
        close: &str,
        types: impl Iterator<Item = &'a Type>,
        model: &Model,
    ) -> String {
        let parts: Vec<String> = types.map(|ty| self.value(model, ty)).collect();
        format!("{open}{}{close}", parts.join(", "))
    }
}

/// Writes a line for each block: module, interface, procedure, and the block as the walker over the
/// model makes it.
fn blocks(stem: &str, model: &Model, chance: &mut Chance, lines: &mut String) {
    for told in model.interfaces.iter().filter(|interface| interface.foreign.is_none()) {
        let Ok(interface) = DynamicInterface::parse(&told.id, &model.source, &model.limits) else {
            continue;
        };
        for procedure in &interface.interface().procedures {
            let holds =
                procedure.params.iter().any(|param| interface.model().holds(&param.ty).any());
            for _ in 0..if holds || procedure.params.is_empty() { 0 } else { VALUES } {
                let texts: Vec<String> = procedure
                    .params
                    .iter()
                    .map(|param| chance.value(interface.model(), &param.ty))
                    .collect();
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                let block = interface
                    .encode(procedure, &texts)
                    .unwrap_or_else(|e| panic!("{stem}: {}: {texts:?}: {e}", procedure.name));
                let hex: String = block.iter().map(|byte| format!("{byte:02x}")).collect();
                let _ = writeln!(lines, "{stem} {} {} {hex}", told.id, procedure.name);
            }
        }
    }
}

#[test]
fn modules_are_imported_without_warnings_and_values_come_back() {
    if left_out() {
        return;
    }
    let programs = Programs::new();
    let (mut lines, mut chance, mut count) = (String::new(), Chance(0x9e37_79b9_7f4a_7c15), 0);
    for (stem, path) in packages() {
        let Ok(module) = upcall_idl::generate_python(&path) else { continue };
        count += 1;
        std::fs::write(programs.path().join(format!("{stem}.py")), module).unwrap();
        blocks(&stem, &upcall_idl::load(&path).unwrap(), &mut chance, &mut lines);
        let _ = writeln!(lines, "{stem}");
    }
    assert!(count > 80, "{count} packages");
    let file = programs.path().join("blocks");
    std::fs::write(&file, &lines).unwrap();
    let run = programs.run("packages.py", &[&file.display().to_string()]);
    println!("{count} packages; {}", String::from_utf8_lossy(&run.stdout).trim());
}

/// Text from a hostile server's interface stays text: it appears in docstrings, and in names that
/// WIT's grammar allows.
#[test]
fn documentation_is_text_whatever_is_in_it() {
    if left_out() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    package(folder.path());
    let evil = r#""""; import os; os._exit(3) # \" ''' \N{BULLET} \x41 {0} %s \"#;
    let docs = format!("/// {evil}\n/// {evil}\\\n/// \"\"\n");
    let wit = format!(
        "{docs}package a:b;\n{docs}interface i {{\n{docs}record r {{\n{docs}x: u8 }}\n{docs}flags \
        g {{\n{docs}a }}\n{docs}enum e {{\n{docs}a }}\n\
         {docs}variant v {{\n{docs}a }}\n{docs}resource o {{\n{docs}constructor();\n{docs}m: \
         func(); }}\n{docs}f: func(x: r) -> result<u8, e>; }}\n"
    );
    let file = folder.path().join("evil.wit");
    std::fs::write(&file, wit).unwrap();
    std::fs::write(folder.path().join("evil.py"), upcall_idl::generate_python(&file).unwrap())
        .unwrap();
    let mut python = Command::new(interpreter());
    python.args([
        "-W",
        "error",
        "-c",
        "import evil, upcall; upcall.load('evil.wit'); print(evil.R.__doc__); \
        print(evil.I.f.__doc__)",
    ]);
    let run = finish(
        python.env("PYTHONPATH", folder.path()).current_dir(folder.path()),
        "a module with odd documentation",
    );
    let said = String::from_utf8(run.stdout).unwrap();
    assert_eq!(said.matches(evil).count(), 4, "{said}");
}

/// Returns mypy in a virtual environment under the target folder, if it can be installed.
fn mypy() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-mypy");
    let program = folder.join("bin/mypy");
    if program.exists() {
        return Some(program);
    }
    let quiet =
        |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    let made = quiet(Command::new(interpreter()).args(["-m", "venv"]).arg(&folder))
        && quiet(Command::new(folder.join("bin/python")).args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--timeout",
            "10",
            "--retries",
            "0",
            "mypy",
        ]));
    made.then_some(program)
}

#[test]
fn type_hints_are_sound() {
    if left_out() {
        return;
    }
    let Some(mypy) = mypy() else {
        println!("skipped: mypy is not there, and cannot be installed");
        return;
    };
    // Always in the same place, so that mypy's cache applies.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-stubs");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    package(&folder);
    for (stem, path) in packages() {
        let Ok(module) = upcall_idl::generate_python(&path) else { continue };
        std::fs::write(folder.join(format!("{stem}.py")), module).unwrap();
    }
    for program in [
        "server.py",
        "values.py",
        "waits.py",
        "tasks.py",
        "ends.py",
        "common.py",
        "expect.py",
        "public.py",
        "serves.py",
        "members.py",
        "far_member.py",
    ] {
        std::fs::copy(here("tests/programs").join(program), folder.join(program)).unwrap();
    }
    let mut run = Command::new(mypy);
    run.args([
        "--strict",
        "--no-error-summary",
        "--disable-error-code",
        "unused-ignore",
        "--cache-dir",
    ]);
    run.arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("mypy-cache"))
        .args(["--package", "upcall"]);
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "py") {
            run.arg("--module").arg(path.file_stem().unwrap());
        }
    }
    finish(run.current_dir(&folder), "mypy");
}
