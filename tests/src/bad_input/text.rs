//! Readers of text: interfaces, limits, values, names.

use std::sync::OnceLock;
use upcall_idl::dynamic::DynamicInterface;

/// The interface of the values, which is one of several files.
const ALL: &str = include_str!("../../../crates/idl/tests/wit/all.wit");
const ID: &str = "test:all/all@0.2.0";
const LIMITS: &str = include_str!("../../wit/trial.toml");
const TRIAL: &str = include_str!("../../wit/trial.wit");
const TRIAL_ID: &str = "upcall:tests/trial@1.0.0";

/// Formats the error, since a person reads every message and so any content must be printable.
fn shown<T>(outcome: Result<T, impl std::fmt::Display>) -> Option<T> {
    outcome.map_err(|error| error.to_string()).ok()
}

/// Parses WIT, both as a server hands it out and as a program is compiled from it.
pub(super) fn interface(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    for id in [ID, TRIAL_ID, "a:b/c"] {
        if let Some(interface) = shown(DynamicInterface::parse(id, text, "")) {
            interface
                .interface()
                .procedures
                .iter()
                .for_each(|procedure| drop(interface.usage(procedure)));
        }
    }
    if let Some(generated) = shown(upcall_idl::generate_text("bad.wit", text)) {
        assert!(!generated.code.is_empty());
    }
}

pub(super) fn interface_samples() -> Vec<Vec<u8>> {
    let small =
        "package a:b; interface c { record r { x: u8 } f: func(r: r) -> result<list<r>, string>; }";
    [
        small,
        ALL,
        TRIAL,
        "package a:b; interface c { resource t { constructor(); m: func() -> t; } use d.{e}; } \
        interface d { type e = u8; }",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// Parses the limits beside an interface, as TOML.
pub(super) fn limits(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let Some(interface) = shown(DynamicInterface::parse(TRIAL_ID, TRIAL, text)) else { return };
    assert!(interface.interface().procedures.iter().all(|procedure| procedure.limits.calls > 0));
}

pub(super) fn limits_samples() -> Vec<Vec<u8>> {
    let all = "[limits]\nstring = \"64KiB\"\nlist = 65536\ntail = 1024\ncalls = 5\n[trial]\ncalls \
        = 8\n[trial.\"thing.number\"]\ntail = \"64KiB\"\n";
    [LIMITS, all, ""].map(|text| text.as_bytes().to_vec()).into()
}

/// Encodes text for each procedure, and decodes blocks of arbitrary bytes into text. A block that
/// was encoded from text is valid.
pub(super) fn wave(bytes: &[u8]) {
    static KNOWN: OnceLock<DynamicInterface> = OnceLock::new();
    let interface =
        KNOWN.get_or_init(|| DynamicInterface::parse(ID, ALL, "").expect("the interface"));
    let Some((&[number, way], rest)) = bytes.split_first_chunk() else { return };
    let procedures = &interface.interface().procedures;
    let procedure = &procedures[usize::from(number) % procedures.len()];
    if way & 1 == 0 {
        drop(shown(interface.decode(procedure, rest)));
        return;
    }
    let Ok(text) = str::from_utf8(rest) else { return };
    let arguments: Vec<&str> = text.split('\n').collect();
    let Some(block) = shown(interface.encode(procedure, &arguments)) else { return };
    // These procedures return their argument, so a valid argument is a valid result.
    if ["get-numbers", "get-deep", "bytes", "fixed"].contains(&procedure.name.as_str()) {
        interface
            .decode(procedure, &block)
            .unwrap_or_else(|error| panic!("{text:?} became a bad block: {error}"));
    }
}

pub(super) fn wave_samples() -> Vec<Vec<u8>> {
    let interface = DynamicInterface::parse(ID, ALL, "").expect("the interface");
    let number = |name: &str| {
        let at =
            interface.interface().procedures.iter().position(|procedure| procedure.name == name);
        at.unwrap_or_else(|| panic!("no procedure {name}")) as u8
    };
    let deep = "{name: \"n\", points: [{x: 1, y: nan}], maybe: some(\"m\"), grid: [[1, 2], [3, \
        4], [5, 6]], pair: (7, \"p\"), one: (8), \
        outcome: err(\"e\"), nothing: ok, mode: {read, append-only}, names: [\"a\", \"\\u{df}\"], \
        raw: [1, 2]}";
    let numbers =
        "{a: 1, b: 2, c: 3, d: 4, e: -1, f: -2, g: -3, h: -4, i: 1.5, j: -inf, k: true, l: 'x'}";
    let texts = [
        ("get-deep", deep.to_string()),
        ("get-numbers", numbers.to_string()),
        ("add", "2 // two\n3".to_string()),
        ("bytes", "[1, 2, 255]".to_string()),
        ("get-shape", format!("named({deep})")),
        ("modes", "{read}\n{f0, f16}".to_string()),
        ("node.same", "7\nnode(8)".to_string()),
    ];
    let mut samples = Vec::new();
    for (name, text) in texts {
        let (procedure, arguments) =
            (interface.procedure(name).expect("a procedure"), text.split('\n').collect::<Vec<_>>());
        let block = interface.encode(procedure, &arguments);
        samples.extend(block.ok().map(|block| [&[number(name), 0][..], &block].concat()));
        samples.push([&[number(name), 1][..], text.as_bytes()].concat());
    }
    samples
}

/// Checks names that a binder gives. An accepted name is the name of a file in the folder of names,
/// and nothing else.
pub(super) fn names(bytes: &[u8]) {
    let Ok(name) = str::from_utf8(bytes) else { return };
    if upcall_rpc::names::check(name).is_ok() {
        let path = std::path::Path::new("/names").join(name);
        assert_eq!(path.parent(), Some(std::path::Path::new("/names")), "{name:?}");
        assert_eq!(path.file_name().and_then(|name| name.to_str()), Some(name));
    }
}

pub(super) fn names_samples() -> Vec<Vec<u8>> {
    ["files", "my-service.v2", "..", "domain.1.2", "a/b", ""]
        .map(|name| name.as_bytes().to_vec())
        .into()
}
