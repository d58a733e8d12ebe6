//! Random values of every type of every package that is accepted, through Rust and back: read by what is generated for it, given back, and written again. The blocks that go there are made, and those that
//! come back are read, by the walker over the model, a second implementation of the layout. `bindings/c/tests/values.rs` does the same in C.
//!
//! Unlike what a macro makes, this code is the compiler's to warn about: it gives none.
#![deny(warnings)]
#![forbid(unsafe_code)]

#[path = "../../idl/tests/echo/mod.rs"]
mod echo;

use upcall::stub::Binding;
use upcall_idl::dynamic;

include!(concat!(env!("OUT_DIR"), "/values.rs"));

#[test]
fn every_type_of_every_package_goes_through_rust_and_back() {
    let all = all();
    assert!(all.len() > 50, "{} packages", all.len());
    for (package, interface, export) in all {
        let name = format!("values-{}-{}", std::process::id(), package.replace("wit_parser", "p"));
        let running = upcall::Server::new().export(&name, export).start().unwrap();
        let parsed = dynamic::Interface::parse(&interface.id, &interface.source, &interface.limits).unwrap();
        let parsed: &'static dynamic::Interface = Box::leak(Box::new(parsed));
        let binding = Binding::bind(&name, interface).unwrap_or_else(|e| panic!("{package}: {e}"));
        echo::check(parsed, 16, |number, block| binding.call_block(number, block).map_err(|e| e.to_string()));
        drop(binding);
        running.stop();
    }
}
