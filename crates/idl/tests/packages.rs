//! Runs the compiler over third-party packages: each is accepted, or refused with the line and the
//! reason.
//!
//! The snapshot says which. `crates/upcall/tests/packages.rs` compiles and calls the accepted ones.

mod snapshot;

use snapshot::{check_snapshot, here};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

/// The packages: each folder and each stand-alone file.
fn packages() -> Vec<(String, PathBuf)> {
    let mut all = Vec::new();
    for collection in ["spin", "wasi-0.2", "wasi-0.3", "wasi-proposals", "wit-parser"] {
        let folder = here("packages").join(collection);
        for entry in
            std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        {
            let path = entry.unwrap().path();
            all.push((
                format!("{collection}/{}", path.file_name().unwrap().to_string_lossy()),
                path,
            ));
        }
    }
    all.sort();
    all
}

#[test]
fn every_package_is_accepted_or_refused_with_its_line_and_the_reason() {
    let (mut accepted, mut refused, mut text) = (0, 0, String::new());
    for (name, path) in packages() {
        match upcall_idl::check(&path) {
            Ok(model) => {
                accepted += 1;
                upcall_idl::generate(&path).unwrap_or_else(|e| {
                    panic!("{name}: check accepts it, and generate does not: {e}")
                });
                let procedures: usize = model.interfaces.iter().map(|i| i.procedures.len()).sum();
                let _ = writeln!(
                    text,
                    "{name}: {} interfaces, {procedures} procedures",
                    model.interfaces.len()
                );
            }
            Err(errors) => {
                refused += 1;
                let _ = writeln!(text, "{name}: refused");
                for error in errors {
                    let at =
                        error.location().unwrap_or_else(|| panic!("{name}: {error} has no place"));
                    assert!(at.line > 0, "{name}: {error} has no line");
                    let root = format!("{}/", here("packages").display());
                    let _ = writeln!(
                        text,
                        "    {}",
                        error.to_string().replace(&root, "").replace('\n', "\n    ")
                    );
                }
            }
        }
    }
    check_snapshot("packages.txt", &format!("{accepted} accepted, {refused} refused\n\n{text}"));
}

/// The source that a server hands out must mean the same as the package, and so must the printed
/// text where the source is the file itself.
#[test]
fn the_printed_source_of_every_package_means_the_same() {
    for (name, path) in packages() {
        let Ok(model) = upcall_idl::load(&path) else { continue };
        for interface in
            model.interfaces.iter().filter(|i| i.foreign.is_none() && i.bound().next().is_some())
        {
            // Its world has a type and an exported function of one name, which an interface cannot
            // have.
            let printed = Some(model.printed()).filter(|_| name != "wit-parser/union-fuzz-2.wit");
            for source in [Some(&model.source), printed.as_ref()].into_iter().flatten() {
                let again = upcall_idl::dynamic::DynamicInterface::parse(
                    &interface.id,
                    source,
                    &model.limits,
                );
                let again = again.unwrap_or_else(|e| panic!("{name}: {e}\n{source}"));
                // The order may differ: binding uses names.
                let told = |i: &upcall_idl::model::InterfaceDefinition| {
                    i.bound().map(|p| p.signature.clone()).collect::<BTreeSet<_>>()
                };
                assert_eq!(told(again.interface()), told(interface), "{name}");
            }
        }
    }
}

/// Words of a name are capitalised in every class that the name occurs in, with or without a
/// prefix.
#[test]
fn classes_in_python_are_in_camel_case() {
    let module = upcall_idl::generate_python(here("packages").join("wasi-0.2/io")).unwrap();
    for class in [
        "InputStream(",
        "AsyncInputStream(",
        "ServeInputStream(",
        "StreamErrorClosed:",
        "ServedStreamErrorClosed:",
    ] {
        assert!(module.contains(&format!("\nclass {class}")), "{class} is not in\n{module}");
    }
}
