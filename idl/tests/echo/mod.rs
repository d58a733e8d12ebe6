//! For the tests of every language's stubs: interfaces that give back what they get, made of packages, and random values for them.
//!
//! A package says what goes in and what comes out, and seldom the same. So each gets an interface more, with a procedure `echo-N: func(v: T) -> T` for each of its types: every named one,
//! and every one that a parameter or result has. A test in some language compiles stubs from that text, serves it with procedures that return what they get, and compares blocks
//! as values: `interface.decode(..)` of what was sent and of what came back.
//!
//! Left out are types with handles in them: a handle is good for one binding, so there are no random ones. What servers and clients do with handles is in the tests of each language.
//!
//! Other crates' tests have this by `#[path = "../../../idl/tests/echo/mod.rs"] mod echo;`.
#![allow(dead_code)] // not every test uses all of it

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use upcall_idl::dynamic::Interface;
use upcall_idl::model::{Model, ProcedureKind, Shape, Type, TypeId};

/// The name of the interface that is added.
pub const NAME: &str = "gives-back";

/// The packages: each folder, and each file that stands by itself; with a name that is an identifier in any language.
pub fn packages() -> Vec<(String, PathBuf)> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("idl/tests")).find(|t| t.is_dir());
    let tests = tests.expect("the tests of upcall-idl, above this crate or in it");
    let mut all = Vec::new();
    for collection in
        ["packages/spin", "packages/wasi-0.2", "packages/wasi-0.3", "packages/wasi-proposals", "packages/wit-parser", "wit"]
    {
        let folder = tests.join(collection);
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|ending| ending != "toml") {
                let name =
                    format!("{}_{}", collection.trim_start_matches("packages/"), path.file_stem().unwrap().to_string_lossy());
                all.push((name.replace(|c: char| !c.is_ascii_alphanumeric(), "_"), path));
            }
        }
    }
    all.sort();
    all
}

/// A package with the interface that gives back.
pub struct Echo {
    /// The whole package, as one text.
    pub wit: String,
    /// The interface's full name.
    pub id: String,
    /// How many types were left out, for handles in them.
    pub left_out: usize,
    /// The interface, compiled from `wit`.
    pub interface: Interface,
}

/// The package with such an interface.
///
/// # Errors
/// Why there is none.
pub fn echo(model: &Model) -> Result<Echo, String> {
    let mut types = Vec::new();
    let (mut left_out, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut names = BTreeMap::new();
    let mut uses = String::new();
    for (index, interface) in model.interfaces.iter().enumerate() {
        let place = match &interface.foreign {
            None => format!("%{}", interface.name),
            Some(_) => interface.id.clone(),
        };
        for id in &interface.types {
            let def = model.def(*id);
            let resource =
                |ty: &Type| matches!(model.resolve(ty), Type::Named(id) if matches!(model.def(*id).shape, Shape::Resource));
            if def.interface != index || resource(&Type::Named(*id)) {
                continue;
            }
            if def.holds.any() {
                left_out.insert(def.name.clone());
                continue;
            }
            let taken = names.values().any(|name| *name == def.name) || def.name == NAME;
            let local = if taken { format!("{}-n{}", def.name, names.len()) } else { def.name.clone() };
            let _ = writeln!(uses, "    use {place}.{{%{} as %{local}}};", def.name);
            names.insert(*id, local);
            types.push(Type::Named(*id));
        }
        for procedure in &interface.procedures {
            // What a method is called on is no value.
            let skip = usize::from(matches!(procedure.kind, ProcedureKind::Method(_)));
            types.extend(procedure.params[skip..].iter().map(|param| param.ty.clone()).chain(procedure.result.clone()));
        }
    }
    let mut procedures = String::new();
    for ty in types {
        if model.holds(&ty).any() {
            left_out.insert(model.wit(&ty));
            continue;
        }
        let text = text(&names, &ty);
        if seen.insert(text.clone()) {
            let _ = writeln!(procedures, "    echo-{}: func(v: {text}) -> {text};", seen.len() - 1);
        }
    }
    if seen.is_empty() {
        return Err("it has no types that can be given back".into());
    }
    let printed = model.printed();
    // A world may have a type and an exported function of one name, which an interface may not (union-fuzz-2.wit).
    if let Some(interface) = model.interfaces.first() {
        Interface::parse(&interface.id, &printed, "").map_err(|e| format!("printed, it is no WIT: {e}"))?;
    }
    let (head, rest) = printed.split_once('\n').expect("a line with the package's name");
    let wit = format!("{head}\n\ninterface {NAME} {{\n{uses}{procedures}}}\n{rest}");
    let version = model.version.as_ref().map(|v| format!("@{v}")).unwrap_or_default();
    let id = format!("{}/{NAME}{version}", model.package);
    let interface = Interface::parse(&id, &wit, "").unwrap_or_else(|e| panic!("{e}\n{wit}"));
    Ok(Echo { wit, id, left_out: left_out.len(), interface })
}

/// A type in use, by the names that the interface has for others' types. The sign makes a name of what may be a word of WIT.
fn text(names: &BTreeMap<TypeId, String>, ty: &Type) -> String {
    let of = |t: &Type| text(names, t);
    let side = |t: &Option<Box<Type>>| t.as_ref().map_or("_".to_owned(), |t| of(t));
    match ty {
        Type::Bool => "bool".into(),
        Type::U8 => "u8".into(),
        Type::U16 => "u16".into(),
        Type::U32 => "u32".into(),
        Type::U64 => "u64".into(),
        Type::S8 => "s8".into(),
        Type::S16 => "s16".into(),
        Type::S32 => "s32".into(),
        Type::S64 => "s64".into(),
        Type::F32 => "f32".into(),
        Type::F64 => "f64".into(),
        Type::Char => "char".into(),
        Type::String => "string".into(),
        Type::List(t) => format!("list<{}>", of(t)),
        Type::FixedList(t, n) => format!("list<{}, {n}>", of(t)),
        Type::Option(t) => format!("option<{}>", of(t)),
        Type::Result(None, None) => "result".into(),
        Type::Result(ok, None) => format!("result<{}>", side(ok)),
        Type::Result(ok, err) => format!("result<{}, {}>", side(ok), side(err)),
        Type::Tuple(types) => format!("tuple<{}>", types.iter().map(of).collect::<Vec<_>>().join(", ")),
        Type::Named(id) => format!("%{}", names[id]),
        Type::Own(_) | Type::Borrow(_) => unreachable!("left out"),
    }
}

/// Any value of a type, in WAVE.
pub fn any_text(model: &'static Model, ty: &'static Type) -> BoxedStrategy<String> {
    let of = |t: &'static Type| any_text(model, t);
    let maybe = |name: String, t: Option<&'static Type>| match t {
        Some(t) => of(t).prop_map(move |value| format!("{name}({value})")).boxed(),
        None => Just(name).boxed(),
    };
    let joined = |open: &'static str, close: &'static str, all: BoxedStrategy<Vec<String>>| {
        all.prop_map(move |all| format!("{open}{}{close}", all.join(", "))).boxed()
    };
    match model.resolve(ty) {
        Type::Bool => any::<bool>().prop_map(|v| v.to_string()).boxed(),
        Type::U8 => any::<u8>().prop_map(|v| v.to_string()).boxed(),
        Type::U16 => any::<u16>().prop_map(|v| v.to_string()).boxed(),
        Type::U32 => any::<u32>().prop_map(|v| v.to_string()).boxed(),
        Type::U64 => any::<u64>().prop_map(|v| v.to_string()).boxed(),
        Type::S8 => any::<i8>().prop_map(|v| v.to_string()).boxed(),
        Type::S16 => any::<i16>().prop_map(|v| v.to_string()).boxed(),
        Type::S32 => any::<i32>().prop_map(|v| v.to_string()).boxed(),
        Type::S64 => any::<i64>().prop_map(|v| v.to_string()).boxed(),
        Type::F32 => (-1000_i16..1000).prop_map(|v| (f32::from(v) / 8.0).to_string()).boxed(),
        Type::F64 => prop_oneof![any::<i32>().prop_map(|v| (f64::from(v) / 64.0).to_string()), Just("inf".into())].boxed(),
        Type::Char => "'[a-zß€𝄞]'".boxed(),
        // One in a while is longer than the room that calls have for it.
        Type::String => prop_oneof![40 => "\"[a-z ß€𝄞]{0,12}\"", 1 => "\"[a-z]{1500,2000}\""].boxed(),
        Type::List(t) => joined("[", "]", prop::collection::vec(of(t), 0..3).boxed()),
        Type::FixedList(t, n) => joined("[", "]", prop::collection::vec(of(t), *n as usize).boxed()),
        Type::Option(t) => prop_oneof![Just("none".to_owned()), of(t).prop_map(|v| format!("some({v})"))].boxed(),
        Type::Result(ok, err) => prop_oneof![maybe("ok".into(), ok.as_deref()), maybe("err".into(), err.as_deref())].boxed(),
        Type::Tuple(types) => joined("(", ")", types.iter().map(of).collect::<Vec<_>>().boxed()),
        Type::Own(_) | Type::Borrow(_) => unreachable!("nothing to give back"),
        Type::Named(id) => match &model.def(*id).shape {
            Shape::Record(fields) => {
                let parts = fields.iter().map(|f| of(&f.ty).prop_map(move |v| format!("{}: {v}", f.name)));
                joined("{", "}", parts.collect::<Vec<_>>().boxed())
            }
            Shape::Variant(cases) => {
                // A case may be called `some` or `ok`; the sign makes it a name.
                let all = cases.iter().map(|case| maybe(format!("%{}", case.name), case.ty.as_ref()));
                prop::strategy::Union::new(all).boxed()
            }
            Shape::Enum(labels) => (0..labels.len()).prop_map(|n| format!("%{}", labels[n].name)).boxed(),
            Shape::Flags(labels) => {
                let set = prop::collection::vec(any::<bool>(), labels.len());
                set.prop_map(|set| {
                    let names = labels.iter().zip(set).filter(|(_, set)| *set).map(|(label, _)| label.name.as_str());
                    format!("{{{}}}", names.collect::<Vec<_>>().join(", "))
                })
                .boxed()
            }
            Shape::Alias(_) | Shape::Resource => unreachable!("resolved above"),
        },
    }
}

/// Calls every procedure of `interface` with `cases` random values: `call` gets its number and the block of its argument, and gives the block of its result. They must be the same value.
pub fn check(interface: &'static Interface, cases: u32, mut call: impl FnMut(u16, &[u8]) -> Result<Vec<u8>, String>) {
    for (number, procedure) in (0_u16..).zip(&interface.interface().procedures) {
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        let strategy = any_text(interface.model(), &procedure.params[0].ty);
        let call = std::cell::RefCell::new(&mut call);
        let done = proptest::test_runner::TestRunner::new(config).run(&strategy, |text| {
            let failed = |e: String| TestCaseError::fail(format!("{text}: {e}"));
            let block = interface.encode(procedure, &[&text]).map_err(|e| failed(e.to_string()))?;
            // Arguments and results are of one type: a block of the one is a block of the other.
            let sent = interface.decode(procedure, &block).map_err(|e| failed(e.to_string()))?;
            let back = (call.borrow_mut())(number, &block).map_err(failed)?;
            prop_assert_eq!(interface.decode(procedure, &back).map_err(|e| failed(e.to_string()))?, sent);
            Ok(())
        });
        done.unwrap_or_else(|e| panic!("{}: {}: {e}", interface.interface().id, procedure.signature));
    }
}
