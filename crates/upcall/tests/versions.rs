//! Clients and servers built from two versions of one interface: the verdict of `upcall_idl::diff`
//! is what happens.

use proptest::prelude::*;
use upcall_idl::diff::{Change, Compatibility, diff};
use upcall_idl::dynamic;
use upcall_rpc::interface::{WantedProcedure, match_procedures};

const OLD: &str = "package test:versions@1.0.0; interface trial { record point { x: s32 } add: \
    func(a: u32) -> u32; at: func(p: point); }";
const ADDED: &str = "package test:versions@2.0.0; interface trial { record point { x: s32 } more: \
    func(); add: func(a: u32) -> u32; at: func(p: point); }";
const CHANGED: &str = "package test:versions@1.0.0; interface trial { record point { x: s32, y: \
    s32 } add: func(a: u32) -> u32; at: func(p: point); }";

// The same texts: the macro takes no constants.
mod old {
    upcall::interface!(
        "package test:versions@1.0.0; interface trial { record point { x: s32 } add: func(a: u32) \
        -> u32; at: func(p: point); }"
    );
}
mod added {
    upcall::interface!(
        "package test:versions@2.0.0; interface trial { record point { x: s32 } more: func(); \
        add: func(a: u32) -> u32; at: func(p: point); }"
    );
}
mod changed {
    upcall::interface!(
        "package test:versions@1.0.0; interface trial { record point { x: s32, y: s32 } add: \
        func(a: u32) -> u32; at: func(p: point); }"
    );
}

struct Server;

impl old::trial::Serve for Server {
    fn add(&self, a: u32) -> u32 {
        a + 1
    }
    fn at(&self, _p: &old::trial::Point) {}
}

impl added::trial::Serve for Server {
    fn more(&self) {}
    fn add(&self, a: u32) -> u32 {
        a + 2
    }
    fn at(&self, _p: &added::trial::Point) {}
}

impl changed::trial::Serve for Server {
    fn add(&self, a: u32) -> u32 {
        a + 3
    }
    fn at(&self, _p: &changed::trial::Point) {}
}

/// Binding's result, as a verdict of the diff.
fn verdict<T>(bound: Result<T, upcall::BindError>) -> Option<Compatibility> {
    Some(match bound {
        Ok(_) => Compatibility::Binds(Vec::new()),
        Err(upcall::BindError::Mismatch { procedures, .. }) => Compatibility::Mismatch(
            procedures.into_iter().map(|procedure| procedure.name).collect(),
        ),
        Err(other) => panic!("{other}"),
    })
}

#[test]
fn what_is_said_of_two_versions_is_what_happens() {
    let model = |wit: &str| {
        upcall_idl::generate_text("versions", wit).unwrap_or_else(|e| panic!("{e}")).model
    };
    for (text, of) in [
        (OLD, &old::trial::INTERFACE),
        (ADDED, &added::trial::INTERFACE),
        (CHANGED, &changed::trial::INTERFACE),
    ] {
        assert_eq!(text, of.source, "the constants above are what the macro was given");
    }
    let name = |version: &str| format!("versions-{version}-{}", std::process::id());
    let _servers = [
        upcall::Server::new()
            .export(&name("old"), old::trial::export(Server))
            .start()
            .expect("a server"),
        upcall::Server::new()
            .export(&name("added"), added::trial::export(Server))
            .start()
            .expect("a server"),
        upcall::Server::new()
            .export(&name("changed"), changed::trial::export(Server))
            .start()
            .expect("a server"),
    ];

    let said = &diff(&model(OLD), &model(ADDED)).interfaces[0];
    let run_on =
        old::trial::Trial::bind(&name("added")).expect("procedures that were added break nobody");
    assert_eq!(run_on.add(5).expect("a call"), 7, "its number in the server is another");
    assert_eq!(said.old_to_new, verdict(Ok(run_on)));
    let refused = verdict(added::trial::Trial::bind(&name("old")));
    assert_eq!(refused, Some(Compatibility::Mismatch(vec!["more".into()])));
    assert_eq!(said.new_to_old, refused);

    let said = &diff(&model(OLD), &model(CHANGED)).interfaces[0];
    let refused = verdict(old::trial::Trial::bind(&name("changed")));
    assert_eq!(refused, Some(Compatibility::Mismatch(vec!["at".into()])));
    assert_eq!(
        (&said.old_to_new, &said.new_to_old),
        (&refused, &verdict(changed::trial::Trial::bind(&name("old"))))
    );
}

/// A version of an interface: numbers that select each of its types and procedures.
type Version = (Vec<Vec<(u8, u8)>>, Vec<(u8, Vec<u8>, Option<u8>)>);

/// Draws small versions, so that two of them have much in common.
fn any_version() -> impl Strategy<Value = Version> {
    let record = prop::collection::vec((0..4_u8, 0..8_u8), 1..4);
    let procedure = (0..5_u8, prop::collection::vec(0..14_u8, 0..3), prop::option::of(0..14_u8));
    (prop::collection::vec(record, 3), prop::collection::vec(procedure, 1..6))
}

/// `first` with some of its parts from `second`.
fn mixed(first: &Version, second: &Version, parts: u32) -> Version {
    let mut mixed = first.clone();
    for (bit, (to, from)) in mixed.0.iter_mut().zip(&second.0).enumerate() {
        if parts >> bit & 1 == 1 {
            to.clone_from(from);
        }
    }
    for (bit, (to, from)) in mixed.1.iter_mut().zip(&second.1).enumerate() {
        if parts >> (bit + 8) & 1 == 1 {
            to.clone_from(from);
        }
    }
    mixed
}

/// The type for a number: plain types, then types that use the record `below`, or an alias.
fn ty(number: u8, below: usize) -> String {
    let plain = [
        "u8",
        "u32",
        "string",
        "list<u8>",
        "option<u16>",
        "tuple<u8, string>",
        "result<u8, string>",
        "list<u16, 3>",
    ];
    match number {
        0..8 => plain[usize::from(number)].into(),
        8..11 => format!("r{}", usize::from(number - 8).min(below)),
        11 => format!("list<r{below}>"),
        12 => format!("option<tuple<r{below}, u8>>"),
        _ => "named".into(),
    }
}

fn wit((records, procedures): &Version) -> String {
    let mut text = "package test:pairs; interface i {\n".to_owned();
    for (number, fields) in records.iter().enumerate() {
        let mut taken = Vec::new();
        let mut body = String::new();
        for (name, kind) in fields {
            if !taken.contains(name) {
                taken.push(*name);
                let ty = if number > 0 && *kind == 7 {
                    format!("list<r{}>", number - 1)
                } else {
                    ty(*kind, 0)
                };
                body.push_str(&format!("f{name}: {ty}, "));
            }
        }
        text.push_str(&format!("record r{number} {{ {body} }}\n"));
    }
    text.push_str(&format!(
        "type named = {};\n",
        if records[0].len() > 1 { "r0" } else { "list<r1>" }
    ));
    let mut taken = Vec::new();
    for (name, params, result) in procedures {
        if !taken.contains(name) {
            taken.push(*name);
            let params: Vec<_> = params
                .iter()
                .enumerate()
                .map(|(n, kind)| format!("a{n}: {}", ty(*kind, 2)))
                .collect();
            let result = result.map(|kind| format!(" -> {}", ty(kind, 2))).unwrap_or_default();
            text.push_str(&format!("p{name}: func({}){result};\n", params.join(", ")));
        }
    }
    text + "}"
}

/// The verdict of the runtime's own rule on a client and a server.
fn by_the_runtime(
    client: &dynamic::DynamicInterface,
    server: &dynamic::DynamicInterface,
) -> Compatibility {
    let exported = upcall_rpc::Interface {
        id: server.interface().id.clone().into(),
        procedures: server
            .interface()
            .procedures
            .iter()
            .map(|p| upcall_rpc::Procedure {
                name: p.name.clone().into(),
                signature: p.signature.clone().into(),
                hash: p.hash,
                args: upcall_rpc::Extent::default(),
                results: upcall_rpc::Extent::default(),
                calls: 1,
                limits: upcall_rpc::Limits::default(),
            })
            .collect(),
        parts: vec![].into(),
        source: "".into(),
        limits: "".into(),
    };
    let wanted = client.interface().procedures.iter();
    let wanted: Vec<WantedProcedure> = wanted
        .map(|p| WantedProcedure { name: &p.name, hash: p.hash, signature: &p.signature })
        .collect();
    match match_procedures(&wanted, &exported) {
        Ok(_) => Compatibility::Binds(Vec::new()),
        Err(mismatches) => {
            Compatibility::Mismatch(mismatches.told.into_iter().map(|m| m.name).collect())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(400)
    })]

    #[test]
    fn the_verdict_is_the_runtimes(
        first in any_version(),
        second in any_version(),
        parts in any::<u32>(),
        more in any::<u32>(),
    ) {
        // Usually few parts differ: each procedure may be the same, or differ by a record alone.
        let (old, new) = (wit(&first), wit(&mixed(&first, &second, parts & more)));
        let parse = |text: &str| dynamic::DynamicInterface::parse("test:pairs/i", text, "")
            .unwrap_or_else(|e| panic!("{e}\n{text}"));
        let (old, new) = (parse(&old), parse(&new));
        let found = diff(old.model(), new.model());
        let interface = &found.interfaces[0];
        prop_assert_eq!(interface.old_to_new.clone(), Some(by_the_runtime(&old, &new)));
        prop_assert_eq!(interface.new_to_old.clone(), Some(by_the_runtime(&new, &old)));
        prop_assert_eq!(
            found.breaks_old_clients(),
            !matches!(by_the_runtime(&old, &new), Compatibility::Binds(_))
        );
        for procedure in &interface.procedures {
            if let Change::Changed { reasons, old, new } = &procedure.change {
                prop_assert!(!reasons.is_empty(), "{}\n{}", old, new);
                let mut told = reasons.clone();
                told.dedup();
                prop_assert_eq!(&told, reasons, "each reason is told once");
            }
        }
    }
}
