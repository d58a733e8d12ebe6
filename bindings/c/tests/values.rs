//! Random values of every type of every package that is accepted, through C and back.
//!
//! Each package gets an interface that gives back what it gets (`idl/tests/echo`), and from that C: a server that gives back, and one whose procedures ask the first one as its client. This test
//! calls the second with blocks that the walker over the model has made. So a value is read and written by generated servers, and written and read by generated clients, and comes back as what
//! it was or not. What is generated compiles without warnings, and runs under the address and undefined-behaviour sanitizers.
#![forbid(unsafe_code)]

#[path = "../../../idl/tests/echo/mod.rs"]
mod echo;
mod gcc;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use upcall::stub::{Binding, Extent, Interface, Limits, Procedure};
use upcall_idl::{dynamic, model};

/// Random values for each type.
const CASES: u32 = 16;

/// A `list<u8>` by itself, which a server sees as a view.
const COPY: &str = "    size_t len = upcall_bytes_len(v);
    uint8_t *data = (uint8_t *)upcall_call_alloc(call, len);
    upcall_list_u8_t copy;
    copy.data = data;
    copy.len = len;
    if (!upcall_bytes_copy(v, 0, data, len)) abort();
";

/// A package, whose C is to be compiled.
struct Package {
    name: String,
    interface: &'static dynamic::Interface,
    source: PathBuf,
}

/// Writes a package's C: what is generated, and what gives back.
fn write(name: String, path: &Path, folder: &Path) -> Option<Package> {
    let echo = echo::echo(&upcall_idl::load(path).ok()?).ok()?;
    let wit = folder.join(&name).with_extension("wit");
    std::fs::write(&wit, &echo.wit).unwrap();
    let code = upcall_idl::generate_c(&wit, &name).unwrap_or_else(|e| panic!("{name}: {e}"));
    let source = folder.join(format!("{name}.c"));
    let gives_back = gives_back(&code.header);
    std::fs::write(folder.join(format!("{name}.h")), code.header).unwrap();
    std::fs::write(&source, format!("{}\n{gives_back}", code.source)).unwrap();
    Some(Package { name, interface: Box::leak(Box::new(echo.interface)), source })
}

/// The functions of both servers. What the types are called is the generator's affair: it is taken from the header.
fn gives_back(header: &str) -> String {
    let (mut members, mut frees, mut note) = (BTreeMap::new(), BTreeMap::new(), None);
    for line in header.lines().map(str::trim) {
        let number = |text: &str| text.split_once(['(', ')']).and_then(|(number, _)| number.parse::<usize>().ok());
        if let Some(rest) = line.strip_prefix("void (*echo_")
            && let Some(number) = number(rest)
            && let Some((_, params)) = rest.split_once('(')
        {
            members.insert(number, params.trim_end_matches(");").to_owned());
        } else if let Some(rest) = line.strip_prefix("upcall_status gives_back_echo_") {
            frees.extend(number(rest).zip(note.take()));
        } else {
            note = line
                .strip_prefix("/* The result is freed by `")
                .and_then(|rest| rest.split_once('('))
                .map(|(free, _)| free.to_owned());
        }
    }
    let mut out = String::from("static gives_back_client_t *plain_client_;\n");
    for (number, params) in &members {
        let (_, last) = params.rsplit_once(", ").expect("a result");
        let ty = last.trim_end_matches("*result");
        let bytes = params.contains("const upcall_bytes *v");
        let (head, argument) = if bytes { (COPY, "copy") } else { ("", "v") };
        let value = if params.contains(" *v,") && !bytes { "*v" } else { argument };
        let _ = writeln!(
            out,
            "static void plain_{number}({params}) {{\n    (void)context;\n    (void)call;\n{head}    *result = {value};\n}}"
        );
        // What the client got lives until the next call of the procedure: by then the one before has been answered.
        let free = frees.get(number).map(|free| format!("    if (have) {free}(&kept);\n")).unwrap_or_default();
        let _ = writeln!(
            out,
            "static void forward_{number}({params}) {{\n    static {ty}kept;\n    static bool have;\n    upcall_error error;\n    (void)context;\n{head}    (void)have;\n{free}    \
             have = gives_back_echo_{number}(plain_client_, {argument}, &kept, &error) == UPCALL_OK;\n    if (have) *result = kept;\n    \
             else {{ fprintf(stderr, \"echo-{number}: %s\\n\", error.text); upcall_call_fail(call, error.text); }}\n}}"
        );
    }
    for kind in ["plain", "forward"] {
        let all: String = members.keys().map(|number| format!("    .echo_{number} = {kind}_{number},\n")).collect();
        let _ = writeln!(out, "static const gives_back_server_t {kind}_functions_ = {{\n{all}}};");
    }
    out.push_str(
        "upcall_status export_both(upcall_server *server, const char *plain, const char *forward, upcall_error *error);\n\
         upcall_status export_both(upcall_server *server, const char *plain, const char *forward, upcall_error *error) {\n    \
         upcall_status status = gives_back_export(server, plain, &plain_functions_, error);\n    \
         return status != UPCALL_OK ? status : gives_back_export(server, forward, &forward_functions_, error);\n}\n\
         bool bind_plain(const char *plain, upcall_error *error);\n\
         bool bind_plain(const char *plain, upcall_error *error) {\n    return (plain_client_ = gives_back_bind(plain, error)) != NULL;\n}\n\
         void unbind_plain(void);\nvoid unbind_plain(void) {\n    gives_back_unbind(plain_client_);\n}\n",
    );
    format!("#include <stdio.h>\n{out}")
}

/// An interface as the runtime has it.
fn described(interface: &dynamic::Interface) -> &'static Interface {
    let describe = |procedure: &model::Procedure| Procedure {
        name: procedure.name.clone().into(),
        signature: procedure.signature.clone().into(),
        hash: procedure.hash,
        // Blocks that come as they are go by a segment.
        args: Extent::default(),
        results: Extent::default(),
        calls: 1,
        limits: Limits { string: procedure.limits.string, list: procedure.limits.list },
    };
    let procedures: Vec<Procedure> = interface.interface().procedures.iter().map(describe).collect();
    Box::leak(Box::new(Interface {
        id: interface.interface().id.clone().into(),
        procedures: procedures.into(),
        parts: vec![].into(),
        source: "".into(),
        limits: "".into(),
    }))
}

#[test]
fn every_type_of_every_package_goes_through_c_and_back() {
    if gcc::left_out() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    gcc::install(folder.path());
    let packages: Vec<Package> =
        echo::packages().into_iter().filter_map(|(name, path)| write(name, &path, folder.path())).collect();
    assert!(packages.len() > 50, "{} packages", packages.len());
    gcc::compile(&["-O0"], &[gcc::here("tests/values/host.c")], folder.path(), "host");
    let work = Mutex::new(packages.iter().collect::<Vec<_>>());
    std::thread::scope(|scope| {
        let one = || {
            loop {
                let Some(package) = work.lock().unwrap().pop() else { return };
                let output = format!("{}.so", package.name);
                gcc::compile(&["-O0", "-shared", "-fPIC"], std::slice::from_ref(&package.source), folder.path(), &output);
            }
        };
        scope.spawn(one);
        one();
    });

    let name = |package: &Package, kind: &str| {
        format!("values-{}-{kind}-{}", std::process::id(), package.name.replace("wit_parser", "p"))
    };
    let mut host = gcc::command(&folder.path().join("host"), false);
    for package in &packages {
        host.arg(folder.path().join(format!("{}.so", package.name))).args(["a", "b"].map(|kind| name(package, kind)));
    }
    let mut host = host.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(host.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    for package in &packages {
        let binding =
            Binding::bind(&name(package, "b"), described(package.interface)).unwrap_or_else(|e| panic!("{}: {e}", package.name));
        echo::check(package.interface, CASES, |number, block| binding.call_block(number, block).map_err(|e| e.to_string()));
    }
    drop(host.stdin.take());
    assert!(host.wait().unwrap().success());
}
