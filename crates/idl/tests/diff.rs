//! What breaks between two versions, on which side, and why: the report for each kind of change.
//!
//! `crates/upcall/tests/versions.rs` tests that the verdicts agree with the runtime.

use upcall_idl::diff::{
    Change, Compatibility, Diff, LimitChange, LimitRefusal, ProcedureDiff, diff,
};
use upcall_idl::dynamic::DynamicInterface;

/// Compares two versions with these interface bodies and limits.
fn between_with(old: (&str, &str), new: (&str, &str)) -> Diff {
    let model = |version: &str, (body, limits): (&str, &str)| {
        let wit = format!("package a:b@{version}; interface i {{ {body} }}");
        DynamicInterface::parse(&format!("a:b/i@{version}"), &wit, limits)
            .unwrap_or_else(|e| panic!("{e}"))
            .model()
            .clone()
    };
    diff(&model("1.0.0", old), &model("2.0.0", new))
}

fn between(old: &str, new: &str) -> Diff {
    between_with((old, ""), (new, ""))
}

fn mismatch(names: &[&str]) -> Option<Compatibility> {
    Some(Compatibility::Mismatch(names.iter().map(|name| (*name).to_owned()).collect()))
}

const RUNS: Option<Compatibility> = Some(Compatibility::Binds(Vec::new()));

fn procedure<'a>(diff: &'a Diff, name: &str) -> &'a ProcedureDiff {
    diff.interfaces[0].procedures.iter().find(|p| p.name == name).unwrap()
}

/// The reasons why `f` changed.
fn reasons(old: &str, new: &str) -> Vec<String> {
    match &procedure(&between(old, new), "f").change {
        Change::Changed { reasons, .. } => reasons.iter().map(ToString::to_string).collect(),
        other => panic!("{old} -> {new}: {other:?}"),
    }
}

#[test]
fn another_version_alone_breaks_nobody() {
    let found = between("f: func();", "f: func();");
    assert_eq!(
        (found.interfaces[0].old_to_new.clone(), found.interfaces[0].new_to_old.clone()),
        (RUNS, RUNS)
    );
    assert_eq!(found.interfaces[0].name, "a:b/i");
    assert_eq!(found.interfaces[0].old.as_deref(), Some("a:b/i@1.0.0"));
    assert!(!found.breaks_old_clients());
}

#[test]
fn an_added_procedure_breaks_new_clients_of_old_servers_only() {
    let found = between("f: func();", "resource r { go: func(); } f: func(); g: func() -> u8;");
    assert_eq!(found.interfaces[0].old_to_new, RUNS);
    assert_eq!(found.interfaces[0].new_to_old, mismatch(&["r.go", "g"]));
    assert_eq!(procedure(&found, "g").change, Change::Added("g: func() -> u8".into()));
    assert!(!found.breaks_old_clients());
}

#[test]
fn a_removed_procedure_breaks_old_clients_only() {
    let found = between("f: func(); g: func();", "f: func();");
    assert_eq!(
        (found.interfaces[0].old_to_new.clone(), found.interfaces[0].new_to_old.clone()),
        (mismatch(&["g"]), RUNS)
    );
    assert_eq!(procedure(&found, "g").change, Change::Removed("g: func()".into()));
    assert!(found.breaks_old_clients());
}

#[test]
fn a_changed_procedure_breaks_both() {
    let found = between("f: func(a: u8); g: func();", "f: func(a: u16); g: func();");
    assert_eq!(found.interfaces[0].old_to_new, mismatch(&["f"]));
    assert_eq!(found.interfaces[0].new_to_old, mismatch(&["f"]));
    assert_eq!(procedure(&found, "g").change, Change::Unchanged);
}

#[test]
fn interfaces_come_and_go_and_packages_are_renamed() {
    let model =
        |wit: &str| upcall_idl::generate_text("x.wit", wit).unwrap_or_else(|e| panic!("{e}")).model;
    let old = model(
        "package a:b; interface i { f: func(); } interface types { type t = u8; } interface gone \
        { f: func(); }",
    );
    let new = model(
        "package a:b; interface i { f: func(); } interface types { type t = u16; } interface more \
        { f: func(); }",
    );
    let found = diff(&old, &new);
    let names: Vec<_> = found.interfaces.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(
        names,
        ["a:b/i", "a:b/more", "a:b/gone"],
        "one without procedures cannot be bound to"
    );
    assert_eq!(
        (found.interfaces[1].old_to_new.clone(), found.interfaces[1].new_to_old.clone()),
        (None, Some(Compatibility::NoInterface))
    );
    assert_eq!(
        (found.interfaces[2].old_to_new.clone(), found.interfaces[2].new_to_old.clone()),
        (Some(Compatibility::NoInterface), None)
    );
    assert!(found.breaks_old_clients());

    let found = diff(&old, &model("package c:b; interface i { f: func(); }"));
    assert_eq!(found.renamed, Some(("a:b".into(), "c:b".into())));
    assert!(found.interfaces.iter().all(|i| i.old.is_none() || i.new.is_none()));
}

#[test]
#[expect(clippy::too_many_lines, reason = "one entry for each reason")]
fn reasons_name_the_type_and_the_member() {
    let cases: &[(&str, &str, &[&str])] = &[
        (
            "record point { x: s32, y: s32 } f: func(p: point) -> list<point>;",
            "record point { x: s32, y: s32, z: s32 } f: func(p: point) -> list<point>;",
            &["record point: field `z` added: s32"],
        ),
        (
            "record point { x: s32, y: s32 } record line { a: point, b: option<point> } f: func() \
            -> result<line>;",
            "record point { y: s32, x: s64 } record line { a: point, b: option<point> } f: func() \
            -> result<line>;",
            &[
                "record point: fields in another order: was x, y, is y, x",
                "record point, field `x`: was s32, is s64",
            ],
        ),
        (
            "record point { x: s32 } f: func(p: point);",
            "record spot { y: s32 } f: func(p: spot);",
            &[
                "record spot (was point): field `x` removed: s32",
                "record spot (was point): field `y` added: s32",
            ],
        ),
        (
            "enum e { a, b } f: func(e: e);",
            "enum e { a, b, c } f: func(e: e);",
            &["enum e: case `c` added"],
        ),
        (
            "flags m { a, b } f: func(m: m);",
            "flags m { b, a } f: func(m: m);",
            &["flags m: flags in another order: was a, b, is b, a"],
        ),
        (
            "variant v { a, b(u8), c(u8), d } f: func(v: v);",
            "variant v { a(u8), b, c(u16) } f: func(v: v);",
            &[
                "variant v: case `d` removed",
                "variant v, case `a`: carries a value now: u8",
                "variant v, case `b`: carries no value any more: was u8",
                "variant v, case `c`: was u8, is u16",
            ],
        ),
        (
            "type id = u32; f: func(a: id, b: list<id>);",
            "type id = u64; f: func(a: id, b: list<id>);",
            &["type id: was u32, is u64"],
        ),
        ("type id = u32; f: func(a: id);", "f: func(a: u64);", &["parameter `a`: was u32, is u64"]),
        (
            "f: func(a: u8, b: u8);",
            "f: func(b: u8, a: u8) -> string;",
            &[
                "procedure f: parameters in another order: was a, b, is b, a",
                "result: added: string",
            ],
        ),
        (
            "f: func(a: u8) -> u8;",
            "f: func(c: u8);",
            &[
                "procedure f: parameter `a` removed: u8",
                "procedure f: parameter `c` added: u8",
                "result: removed: u8",
            ],
        ),
        (
            "record r { a: u8 } f: func(a: r) -> tuple<u8, u8>;",
            "enum r { a } f: func(a: r) -> tuple<u8>;",
            &["parameter `a`: was record r, is enum r", "result: was tuple<u8, u8>, is tuple<u8>"],
        ),
        (
            "resource a; f: func(x: borrow<a>);",
            "resource b; f: func(x: borrow<b>);",
            &["parameter `x`: was borrow<a>, is borrow<b>"],
        ),
        (
            "resource a; f: func(x: borrow<a>);",
            "resource a; f: func(x: own<a>);",
            &["parameter `x`: was borrow<a>, is own<a>"],
        ),
        (
            "f: func(a: list<u8, 3>);",
            "f: func(a: list<u8, 4>);",
            &["parameter `a`: was list<u8, 3>, is list<u8, 4>"],
        ),
    ];
    for (old, new, expected) in cases {
        assert_eq!(reasons(old, new), *expected, "{old} -> {new}");
    }
}

#[test]
fn names_of_types_are_no_reason() {
    let found = between(
        "record point { x: u8 } type id = point; f: func(a: id) -> list<point>;",
        "record spot { x: u8 } f: func(a: spot) -> list<spot>;",
    );
    assert_eq!(procedure(&found, "f").change, Change::Unchanged);
}

#[test]
fn a_smaller_limit_breaks_who_sends_what_it_permitted() {
    let body =
        "record r { names: list<string> } f: func(a: r); g: func() -> string; h: func(a: u8);";
    let found = between_with(
        (body, "[limits]\nstring = 1000\nlist = 50"),
        (body, "[limits]\nstring = 100\nlist = 500"),
    );
    let told = |verdict: &Option<Compatibility>| match verdict {
        Some(Compatibility::Binds(all)) => all
            .iter()
            .map(|r| format!("{} {} {} {}>{}", r.procedure, r.limit, r.within, r.client, r.server))
            .collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        told(&found.interfaces[0].old_to_new),
        ["f string arguments 1000>100", "g string results 1000>100"]
    );
    assert_eq!(told(&found.interfaces[0].new_to_old), ["f list arguments 500>50"]);
    assert!(found.breaks_old_clients());
    assert!(procedure(&found, "h").limits.is_empty(), "it has nothing that a limit counts");
}

#[test]
fn a_smaller_limit_of_values_breaks_calls_whose_arguments_are_copied() {
    let body = "f: func(a: list<string>); bytes: func(a: list<u8>); given: func() -> string;";
    let found = between_with((body, ""), (body, "[limits]\nvalues = \"64KiB\""));
    let refusal = LimitRefusal {
        procedure: "f".into(),
        limit: "values",
        within: "arguments",
        client: 16 << 20,
        server: 64 << 10,
    };
    assert_eq!(found.interfaces[0].old_to_new, Some(Compatibility::Binds(vec![refusal])));
    assert_eq!(found.interfaces[0].new_to_old, RUNS);
    assert!(found.breaks_old_clients());
    let change = LimitChange { limit: "values", old: 16 << 20, new: 64 << 10 };
    assert_eq!(procedure(&found, "f").limits, [change]);
    for name in ["bytes", "given"] {
        assert!(procedure(&found, name).limits.is_empty(), "the server copies no argument");
    }
}

#[test]
fn room_and_number_of_calls_break_nobody() {
    let body = "f: func(a: string);";
    let found = between_with((body, ""), (body, "[limits]\ntail = 64\ncalls = 1"));
    let changed: Vec<_> =
        procedure(&found, "f").limits.iter().map(|l| (l.limit, l.old, l.new)).collect();
    assert_eq!(changed, [("tail of arguments", 1024, 64), ("calls", 5, 1)]);
    assert!(!found.breaks_old_clients());
}
