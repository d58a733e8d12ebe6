//! The runtime descriptor of an interface that was compiled from text, for tests that bind without
//! stubs. (Not part of `mod.rs`: `upcall-idl` does not depend on the runtime.)

use upcall::stub::{Binding, Extent, Handle, Interface, Limits, Procedure};
use upcall_idl::{dynamic, model};

/// The interface as the runtime describes it.
fn described(interface: &dynamic::DynamicInterface) -> &'static Interface {
    let describe = |procedure: &model::ProcedureDefinition| Procedure {
        name: procedure.name.clone().into(),
        signature: procedure.signature.clone().into(),
        hash: procedure.hash,
        // Blocks that are passed as they are travel in a segment.
        args: Extent::default(),
        results: Extent::default(),
        calls: 1,
        limits: Limits {
            string: procedure.limits.string,
            list: procedure.limits.list,
            values: procedure.limits.values,
        },
    };
    let procedures: Vec<Procedure> =
        interface.interface().procedures.iter().map(describe).collect();
    Box::leak(Box::new(Interface {
        id: interface.interface().id.clone().into(),
        procedures: procedures.into(),
        parts: vec![].into(),
        source: "".into(),
        limits: "".into(),
    }))
}

/// Checks a server of an echoing interface, with or without objects, with random values.
pub fn check_server(name: &str, interface: &'static dynamic::DynamicInterface, cases: u32) {
    let binding =
        Binding::bind(name, described(interface)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut call =
        |number, block: &[u8]| binding.call_block(number, block).map_err(|e| e.to_string());
    if interface.interface().name == super::OBJECTS {
        super::check_objects(interface, cases, &mut call, &|handle| {
            binding.release(Handle(handle))
        });
    } else {
        super::check(interface, cases, call);
    }
}
