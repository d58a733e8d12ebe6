//! Packages with an interface that gives back.

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
        // The sign makes a name of what may be a word of WIT.
        let text = ty.spelled(&mut |id| format!("%{}", names[&id]));
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
