//! Snapshots of the model for definitions that use every construct, layouts against numbers worked
//! out by hand, and the generated code.

mod snapshot;

use snapshot::{check_snapshot, here};
use std::fmt::Write;
use upcall_idl::model::{Model, TypeBody};

fn load(path: &str) -> Model {
    upcall_idl::load(here(path)).unwrap_or_else(|e| panic!("{e}"))
}

/// Everything in the model that the generators use.
fn dump(model: &Model) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "package {} {:?}", model.package, model.version);
    for interface in &model.interfaces {
        let _ = writeln!(
            out,
            "\ninterface {} (foreign: {:?}) {:?}",
            interface.id, interface.foreign, interface.docs
        );
        for id in &interface.types {
            let def = model.def(*id);
            let l = def.layout;
            let _ = write!(
                out,
                "  {} {}/{}{}: ",
                def.name,
                l.size,
                l.align,
                if l.fixed { "" } else { " + tail" }
            );
            let _ = match &def.shape {
                TypeBody::Record(fields) => {
                    let (offsets, _) = model.record(fields);
                    let parts: Vec<_> = fields
                        .iter()
                        .zip(offsets)
                        .map(|(f, at)| format!("{at}: {}: {}", f.name, model.wit(&f.ty)))
                        .collect();
                    writeln!(out, "record {{ {} }}", parts.join(", "))
                }
                TypeBody::Variant(cases) => {
                    let parts: Vec<_> = cases
                        .iter()
                        .map(|c| format!("{} {:?}", c.name, c.ty.as_ref().map(|t| model.wit(t))))
                        .collect();
                    writeln!(
                        out,
                        "variant at {} {{ {} }}",
                        model.variant(cases).0,
                        parts.join(", ")
                    )
                }
                TypeBody::Enum(labels) => {
                    writeln!(out, "enum {:?}", labels.iter().map(|l| &l.name).collect::<Vec<_>>())
                }
                TypeBody::Flags(labels) => {
                    writeln!(out, "flags {:?}", labels.iter().map(|l| &l.name).collect::<Vec<_>>())
                }
                TypeBody::Resource => writeln!(out, "resource"),
                TypeBody::Alias(ty) => writeln!(out, "= {} ({:?})", model.wit(ty), def.holds),
            };
        }
        for p in &interface.procedures {
            let _ = writeln!(out, "  {}", p.signature);
            let offsets: Vec<_> = p.params.iter().map(|p| p.offset).collect();
            let (a, r, l) = (p.args, p.results, p.limits);
            let _ = writeln!(
                out,
                "    {:?} at {offsets:?} args {}/{} results {}/{}",
                p.kind, a.size, a.align, r.size, r.align
            );
            let _ = writeln!(
                out,
                "    tails {} {} calls {} string {} list {} {:?}",
                l.args_tail, l.results_tail, l.calls, l.string, l.list, p.docs
            );
        }
    }
    out
}

#[test]
fn every_construct_is_taken_over() {
    check_snapshot("all.txt", &dump(&load("wit/all.wit")));
}

#[test]
fn a_folder_with_dependencies_is_one_package() {
    let model = load("wit/shop");
    check_snapshot("shop.txt", &dump(&model));
    let names: Vec<String> = model
        .files
        .iter()
        .map(|f| f.strip_prefix(here("wit")).unwrap().display().to_string())
        .collect();
    assert_eq!(
        names,
        ["shop/catalogue.wit", "shop/deps/money/amounts.wit", "shop/orders.wit", "shop.toml"]
    );
}

/// The source that a server hands out for a folder must mean the same as the folder.
#[test]
fn the_printed_source_means_the_same() {
    let model = load("wit/shop");
    check_snapshot("shop.wit", &model.source);
    for interface in model.interfaces.iter().filter(|i| !i.procedures.is_empty()) {
        let again = upcall_idl::dynamic::DynamicInterface::parse(
            &interface.id,
            &model.source,
            &model.limits,
        )
        .unwrap();
        for procedure in &interface.procedures {
            let back = again.procedure(&procedure.name).unwrap();
            assert_eq!((&back.signature, back.limits), (&procedure.signature, procedure.limits));
        }
        assert_eq!(again.interface().procedures.len(), interface.procedures.len());
    }
}

#[test]
fn generated_code_is_what_it_was() {
    let generated = upcall_idl::generate(here("wit/files.wit")).unwrap();
    check_snapshot("files.rs", &generated.code);
    // Checks how names of folders and versions become Rust names.
    let shop = upcall_idl::generate(here("wit/shop")).unwrap().code;
    assert!(shop.contains("pub use super::money_types_amounts::Amount as Price;"), "{shop}");
    assert!(shop.contains("pub mod money_types_amounts"), "{shop}");
}

/// Size, alignment, tail, as a person works them out from the rules at the head of `layout.rs`.
#[test]
fn layouts_are_as_worked_out_by_hand() {
    let table: &[(&str, u64, u64, bool)] = &[
        ("bool", 1, 1, true),
        ("char", 4, 4, true),
        ("f64", 8, 8, true),
        ("string", 16, 8, false),
        ("list<u8>", 16, 8, false),
        ("list<u8, 3>", 3, 1, true),
        ("list<string, 2>", 32, 8, false),
        ("list<tuple<u16, u8>, 3>", 12, 2, true), // 3 bytes each, rounded up to 4
        ("option<u8>", 2, 1, true),
        ("option<u16>", 4, 2, true),
        ("option<u64>", 16, 8, true),
        ("option<option<u8>>", 3, 1, true),
        ("option<string>", 24, 8, false),
        ("result", 1, 1, true),
        ("result<u32>", 8, 4, true),
        ("result<_, u64>", 16, 8, true),
        ("result<u8, u16>", 4, 2, true),
        ("result<u64, u8>", 16, 8, true),
        ("tuple<u8, u32, u8>", 12, 4, true),
        ("tuple<u8, u64, u16, u8>", 24, 8, true),
        ("rec", 24, 8, true), // a at 0, b at 8, c at 16, d at 18
        ("var", 24, 8, true), // discriminant, then rec-like pair of u64 at 8
        ("big-enum", 2, 2, true),
        ("fl8", 1, 1, true),
        ("fl9", 2, 2, true),
        ("fl32", 4, 4, true),
    ];
    let names = |n: usize| (0..n).map(|i| format!("c{i}")).collect::<Vec<_>>().join(", ");
    let mut wit = format!(
        "package a:b; interface i {{ record rec {{ a: u8, b: u64, c: u16, d: bool }} variant var \
        {{ a, b(tuple<u64, u64>), c(u8) }} \
         enum big-enum {{ {} }} flags fl8 {{ {} }} flags fl9 {{ {} }} flags fl32 {{ {} }}\n",
        names(257),
        names(8),
        names(9),
        names(32)
    );
    for (number, (ty, ..)) in table.iter().enumerate() {
        let _ = writeln!(wit, "p{number}: func() -> {ty};");
    }
    wit.push('}');
    let interface = upcall_idl::dynamic::DynamicInterface::parse("a:b/i", &wit, "").unwrap();
    for ((ty, size, align, fixed), procedure) in table.iter().zip(&interface.interface().procedures)
    {
        let found = procedure.results;
        assert_eq!((found.size, found.align, found.fixed), (*size, *align, *fixed), "{ty}");
    }
}

#[test]
fn names_of_types_do_not_count_and_names_of_fields_do() {
    let hash = |wit: &str| {
        let wit = format!("package a:b; interface i {{ {wit} }}");
        upcall_idl::dynamic::DynamicInterface::parse("a:b/i", &wit, "")
            .unwrap()
            .procedure("f")
            .unwrap()
            .hash
    };
    let one = hash("record r { a: u8, b: u8 } f: func(x: r);");
    assert_eq!(
        one,
        hash("record other { a: u8, b: u8 } type r = other; f: func(x: r); g: func();")
    );
    assert_ne!(one, hash("record r { b: u8, a: u8 } f: func(x: r);"));
    assert_ne!(one, hash("record r { a: u8, b: u8 } f: func(y: r);"));
    // Published test values of FNV-1a.
    assert_eq!(upcall_idl::signature::hash(""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(upcall_idl::signature::hash("foobar"), 0x8594_4171_f739_67e8);
}
