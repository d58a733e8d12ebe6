//! Random values of every type of every accepted package, through Rust and back: the generated code
//! reads them, returns them, and writes them again. The walker over the model, a second
//! implementation of the layout, writes the blocks that go there and reads those that come back.
//! `bindings/c/tests/values.rs` does the same in C.
//!
//! Unlike the output of a macro, this code is subject to the compiler's warnings, of which it
//! causes none.
#![deny(warnings)]
#![forbid(unsafe_code)]

#[path = "../../../crates/idl/tests/echo/mod.rs"]
mod echo;

#[path = "values/objects.rs"]
mod objects;

use upcall::Export;
use upcall::stub::{Binding, Handle, Interface};
use upcall_idl::dynamic;

/// A package without objects: its name, the interface, and a server.
type Values = (&'static str, &'static Interface, Export);

/// A package with objects: its name, the interface, a server, and a server that calls the first by
/// its name.
type Objects = (&'static str, &'static Interface, fn() -> Export, fn(&str) -> Export);

include!(concat!(env!("OUT_DIR"), "/values.rs"));

/// Number of random values for each type.
const CASES: u32 = 16;

fn name(kind: &str, package: &str) -> String {
    format!("{kind}-{}-{}", std::process::id(), package.replace("wit_parser", "p"))
}

/// A binding, and the interface as the walker knows it.
fn bind(
    name: &str,
    interface: &'static Interface,
) -> (Binding, &'static dynamic::DynamicInterface) {
    let parsed =
        dynamic::DynamicInterface::parse(&interface.id, &interface.source, &interface.limits)
            .unwrap();
    (
        Binding::bind(name, interface).unwrap_or_else(|e| panic!("{name}: {e}")),
        Box::leak(Box::new(parsed)),
    )
}

#[test]
fn every_type_of_every_package_goes_through_rust_and_back() {
    let all = values();
    assert!(all.len() > 40, "{} packages", all.len());
    for (package, interface, export) in all {
        let name = name("values", package);
        let running = upcall::Server::new().export(&name, export).start().unwrap();
        let (binding, parsed) = bind(&name, interface);
        echo::check(parsed, CASES, |number, block| {
            binding.call_block(number, block).map_err(|e| e.to_string())
        });
        drop(binding);
        running.stop();
    }
}

/// Each object that is passed arrives as that object, both at a server and at one whose generated
/// client passes it on. None is lost, and none is doubled.
#[test]
fn every_type_with_objects_goes_through_rust_and_back() {
    let all = objects();
    assert!(all.len() > 15, "{} packages", all.len());
    for (package, interface, plain, forward) in all {
        let [here, there] = ["objects", "forward"].map(|kind| name(kind, package));
        let has = upcall::Server::new().export(&here, plain()).start().unwrap();
        let asks = upcall::Server::new().export(&there, forward(&here)).start().unwrap();
        for name in [&here, &there] {
            let (binding, parsed) = bind(name, interface);
            let mut call =
                |number, block: &[u8]| binding.call_block(number, block).map_err(|e| e.to_string());
            echo::check_objects(parsed, CASES, &mut call, &|handle| {
                binding.release(Handle(handle))
            });
        }
        asks.stop();
        has.stop();
    }
}
