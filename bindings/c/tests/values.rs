//! Random values of every type of every package that is accepted, through C and back.
//!
//! Each package gets an interface that gives back what it gets (`crates/idl/tests/echo`), and the C
//! for it: a server that gives back, and a server whose procedures call the first one as its
//! client. This test calls both with blocks from the walker over the model. So generated servers
//! read and write each value, and generated clients write and read it, and it must come back
//! unchanged. Types with objects in them have such an interface, and two such servers, too
//! (`values/objects.rs`). The generated code compiles without warnings, and runs under the address
//! and undefined-behaviour sanitizers.
#![forbid(unsafe_code)]

#[path = "../../../crates/idl/tests/echo/described.rs"]
mod described;
#[path = "../../../crates/idl/tests/echo/mod.rs"]
mod echo;
mod gcc;
#[path = "values/header.rs"]
mod header;
#[path = "values/objects.rs"]
mod objects;

use echo::{OBJECTS, check, check_objects};
use header::Header;
use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use upcall_idl::dynamic::DynamicInterface;

/// Number of random values for each type.
const CASES: u32 = 16;

/// The same for each type with objects, which takes many more calls.
const OBJECT_CASES: u32 = 4;

/// Copies a `list<u8>` by itself, which a server gets as a view.
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
    interfaces: Vec<&'static DynamicInterface>,
    source: PathBuf,
}

/// Writes a package's C: the generated code, and the servers that give back.
fn write(name: String, path: &Path, folder: &Path) -> Option<Package> {
    let echo = echo::echo(&upcall_idl::load(path).ok()?).ok()?;
    let wit = folder.join(&name).with_extension("wit");
    std::fs::write(&wit, &echo.wit).unwrap();
    let code = upcall_idl::generate_c(&wit, &name).unwrap_or_else(|e| panic!("{name}: {e}"));
    let (source, header) = (folder.join(format!("{name}.c")), Header(&code.header));
    let mut interfaces: Vec<&'static DynamicInterface> = Vec::new();
    let mut text = code.source;
    if let Some(values) = echo.values {
        interfaces.push(Box::leak(Box::new(values)));
        text += &gives_back(&header);
    }
    if let Some(objects) = echo.objects {
        interfaces.push(Box::leak(Box::new(objects)));
        text += &objects::gives_objects(interfaces[interfaces.len() - 1], &header);
    }
    std::fs::write(folder.join(format!("{name}.h")), header.0).unwrap();
    std::fs::write(&source, text).unwrap();
    Some(Package { name, interfaces, source })
}

/// The functions of both servers. The names of types come from the header, since the generator
/// chooses them.
fn gives_back(header: &Header<'_>) -> String {
    let mut out =
        String::from("\n#include <stdio.h>\nstatic gives_back_client_t *plain_client_;\n");
    let members = header.server("gives_back").functions;
    for (member, params) in &members {
        let (_, last) = params.rsplit_once(", ").expect("a result");
        let ty = last.trim_end_matches("*result");
        let bytes = params.contains("const upcall_bytes *v");
        let (head, argument) = if bytes { (COPY, "copy") } else { ("", "v") };
        let value = if params.contains(" *v,") && !bytes { "*v" } else { argument };
        let _ = writeln!(
            out,
            "static void plain_{member}({params}) {{\n    (void)context;\n    \
             (void)call;\n{head}    \
             *result = {value};\n}}"
        );
        // The client's result lives until the next call of the procedure: by then the previous call
        // has been answered.
        let free = header
            .free("gives_back", member)
            .map(|free| format!("    if (have) {};\n", free.replace("(result)", "(&kept)")));
        let free = free.unwrap_or_default();
        let _ = writeln!(
            out,
            "static void forward_{member}({params}) {{\n    static {ty}kept;\n    static bool \
            have;\n    upcall_error error;\n    (void)context;\n{head}    (void)have;\n{free}    \
             have = gives_back_{member}(plain_client_, {argument}, &kept, &error) == \
             UPCALL_OK;\n    \
             if (have) *result = kept;\n    \
             else {{ fprintf(stderr, \"{member}: %s\\n\", error.text); upcall_call_fail(call, \
             error.text); }}\n}}"
        );
    }
    for kind in ["plain", "forward"] {
        let all: String =
            members.keys().map(|member| format!("    .{member} = {kind}_{member},\n")).collect();
        let _ = writeln!(out, "static const gives_back_server_t {kind}_functions_ = {{\n{all}}};");
    }
    out.push_str(
        "upcall_status values_export(upcall_server *server, const char *plain, const char \
        *forward, upcall_error *error);\n\
         upcall_status values_export(upcall_server *server, const char *plain, const char \
         *forward, upcall_error *error) {\n    \
         upcall_status status = gives_back_export(server, plain, &plain_functions_, error);\n    \
         return status != UPCALL_OK ? status : gives_back_export(server, forward, \
         &forward_functions_, error);\n}\n\
         bool values_bind(const char *plain, upcall_error *error);\n\
         bool values_bind(const char *plain, upcall_error *error) {\n    return (plain_client_ = \
         gives_back_bind(plain, error)) != NULL;\n}\n\
         void values_unbind(void);\nvoid values_unbind(void) {\n    \
         gives_back_unbind(plain_client_);\n}\n",
    );
    out
}

/// The interface's kind: values or objects.
fn kind(interface: &DynamicInterface) -> &'static str {
    if interface.interface().name == OBJECTS { "objects" } else { "values" }
}

#[test]
fn every_type_of_every_package_goes_through_c_and_back() {
    if gcc::left_out() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    gcc::install(folder.path());
    let packages: Vec<Package> = echo::packages()
        .into_iter()
        .filter_map(|(name, path)| write(name, &path, folder.path()))
        .collect();
    assert!(packages.len() > 50, "{} packages", packages.len());
    gcc::compile(&["-O0"], &[gcc::here("tests/values/host.c")], folder.path(), "host");
    let work = Mutex::new(packages.iter().collect::<Vec<_>>());
    std::thread::scope(|scope| {
        let one = || {
            loop {
                let Some(package) = work.lock().unwrap().pop() else { return };
                let output = format!("{}.so", package.name);
                gcc::compile(
                    &["-O0", "-shared", "-fPIC"],
                    std::slice::from_ref(&package.source),
                    folder.path(),
                    &output,
                );
            }
        };
        scope.spawn(one);
        one();
    });

    let name = |package: &Package, interface: &DynamicInterface, server: &str| {
        format!(
            "{}-{}-{server}-{}",
            kind(interface),
            std::process::id(),
            package.name.replace("wit_parser", "p")
        )
    };
    let all = || {
        packages.iter().flat_map(|package| {
            package.interfaces.iter().map(move |interface| (package, *interface))
        })
    };
    assert!(all().filter(|(_, interface)| kind(interface) == "objects").count() > 15);
    let mut host = gcc::command(&folder.path().join("host"), false);
    for (package, interface) in all() {
        host.arg(folder.path().join(format!("{}.so", package.name))).arg(kind(interface));
        host.args(["a", "b"].map(|server| name(package, interface, server)));
    }
    let mut host = host.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(host.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    for (package, interface) in all() {
        let cases = if kind(interface) == "objects" { OBJECT_CASES } else { CASES };
        for server in ["a", "b"] {
            described::check_server(&name(package, interface, server), interface, cases);
        }
    }
    drop(host.stdin.take());
    assert!(host.wait().unwrap().success());
}
