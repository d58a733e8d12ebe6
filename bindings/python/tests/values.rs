//! Random values of every type of every package that is accepted, through Python and back,
//! including objects in them.
//!
//! Each package gets interfaces that give back what they get (`crates/idl/tests/echo`), and a
//! module for them. One program serves all of them (`programs/gives_back.py`), each in three ways:
//! by an object that gives back, by an object that calls the first with the generated client, and
//! by an object that calls it with a client learned from it. This test calls them with blocks from
//! the walker over the model, and reads the blocks that come back with the walker.
#![forbid(unsafe_code)]

#[path = "../../../crates/idl/tests/echo/described.rs"]
mod described;
#[path = "../../../crates/idl/tests/echo/mod.rs"]
mod echo;
mod support;

use echo::{OBJECTS, check, check_objects};
use std::fmt::Write;
use support::{Programs, Serving, left_out};
use upcall_idl::dynamic::DynamicInterface;

/// Number of random values for each type, with each of the three servers.
const CASES: [u32; 3] = [4, 4, 2];

#[test]
fn every_type_of_every_package_goes_through_python_and_back() {
    if left_out() {
        return;
    }
    let programs = Programs::new();
    let (mut lines, mut all) =
        (String::new(), Vec::<([String; 3], &'static DynamicInterface)>::new());
    for (stem, path) in echo::packages() {
        let Ok(model) = upcall_idl::load(&path) else { continue };
        let Ok(echo) = echo::echo(&model) else { continue };
        let wit = programs.path().join(format!("{stem}.wit"));
        std::fs::write(&wit, &echo.wit).unwrap();
        let module = upcall_idl::generate_python(&wit).unwrap_or_else(|e| panic!("{stem}: {e}"));
        std::fs::write(programs.path().join(format!("{stem}.py")), module).unwrap();
        for interface in [echo.values, echo.objects].into_iter().flatten() {
            let kind = if interface.interface().name == OBJECTS { "objects" } else { "values" };
            let short = stem.replace("wit_parser", "p");
            let names = ["a", "b", "c"]
                .map(|server| format!("py-{kind}-{}-{server}-{short}", std::process::id()));
            let _ = writeln!(lines, "{stem} {kind} {}", names.join(" "));
            all.push((names, Box::leak(Box::new(interface))));
        }
    }
    assert!(all.len() > 60, "{} interfaces", all.len());
    let file = programs.path().join("interfaces");
    std::fs::write(&file, &lines).unwrap();
    let mut command = programs.command("gives_back.py");
    command.arg(&file);
    let serving = Serving::start(command);
    for (names, interface) in all {
        for (name, cases) in names.iter().zip(CASES) {
            described::check_server(name, interface, cases);
        }
    }
    serving.end();
}
