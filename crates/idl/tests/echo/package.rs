//! Packages with echoing interfaces added.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use upcall_idl::dynamic::DynamicInterface;
use upcall_idl::model::{Model, ProcedureKind, Type, TypeBody, TypeId};

/// The name of the interface that is added for types without objects.
pub const VALUES: &str = "gives-back";

/// The name of the interface that is added for types with objects.
pub const OBJECTS: &str = "gives-objects";

/// Packages that account for two thirds of the generated code. Their types are like those of
/// others, so they are left to `make test-long`, which sets [`ALL`].
const LARGEST: [&str; 13] = [
    "spin_legacy",
    "spin_redis",
    "wasi_0_2_cli",
    "wasi_0_2_clocks",
    "wasi_0_2_filesystem",
    "wasi_0_2_http",
    "wasi_0_2_sockets",
    "wasi_proposals_keyvalue",
    "wasi_proposals_nn",
    "wasi_proposals_otel",
    "wasi_proposals_tls",
    "wit_parser_since_and_unstable",
    "wit_parser_stress_export_elaborate",
];

/// The environment variable that includes all packages.
const ALL: &str = "UPCALL_ALL_PACKAGES";

/// The packages that are tested with random values in each language.
pub fn packages() -> Vec<(String, PathBuf)> {
    let every = std::env::var_os(ALL).is_some();
    all_packages()
        .into_iter()
        .filter(|(name, _)| every || !LARGEST.contains(&name.as_str()))
        .collect()
}

/// All packages: each folder and each stand-alone file, with a name that is an identifier in every
/// language.
pub fn all_packages() -> Vec<(String, PathBuf)> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("crates/idl/tests"))
        .find(|t| t.is_dir());
    let tests = tests.expect("the tests of upcall-idl, above this crate or in it");
    let mut all = Vec::new();
    for collection in [
        "packages/spin",
        "packages/wasi-0.2",
        "packages/wasi-0.3",
        "packages/wasi-proposals",
        "packages/wit-parser",
        "wit",
    ] {
        let folder = tests.join(collection);
        for entry in
            std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|ending| ending != "toml") {
                let name = format!(
                    "{}_{}",
                    collection.trim_start_matches("packages/"),
                    path.file_stem().unwrap().to_string_lossy()
                );
                all.push((name.replace(|c: char| !c.is_ascii_alphanumeric(), "_"), path));
            }
        }
    }
    all.sort();
    all
}

/// A package with its echoing interfaces.
pub struct Echo {
    /// The whole package, as one text.
    pub wit: String,
    /// The interface for types without objects, if there are any; compiled from `wit`.
    pub values: Option<DynamicInterface>,
    /// The interface for types with objects, if there are any.
    pub objects: Option<DynamicInterface>,
}

/// Adds the echoing interfaces to a package.
///
/// # Errors
/// The reason why there are none.
pub fn echo(model: &Model) -> Result<Echo, String> {
    let (mut values, mut objects) = (Added::new(model), Added::new(model));
    let (types, resources) = types(model);
    for (number, id) in resources.iter().enumerate() {
        let resource = objects.name(*id);
        objects.line(&format!("make-{number}: func(number: u64) -> {resource}"));
        objects.line(&format!("number-{number}: func(of: borrow<{resource}>) -> u64"));
    }
    if !resources.is_empty() {
        objects.line("alive: func() -> u64");
    }
    for ty in types {
        let holds = model.holds(&ty);
        let added = if holds.any() { &mut objects } else { &mut values };
        let text = ty.spelled(&mut |id| added.name(id));
        if added.seen.insert(text.clone()) {
            let number = added.seen.len() - 1;
            if !holds.lent {
                added.line(&format!("echo-{number}: func(v: {text}) -> {text}"));
            }
            if holds.any() {
                added.line(&format!("tell-{number}: func(v: {text}) -> list<u64>"));
            }
        }
    }
    let [values, objects] =
        [(VALUES, values), (OBJECTS, objects)].map(|(name, added)| added.interface(name));
    if values.is_none() && objects.is_none() {
        return Err("it has no types that can be given back".into());
    }
    let printed = model.printed();
    // A world may have a type and an exported function of one name, which an interface may not
    // (union-fuzz-2.wit).
    if let Some(interface) = model.interfaces.first() {
        DynamicInterface::parse(&interface.id, &printed, "")
            .map_err(|e| format!("printed, it is no WIT: {e}"))?;
    }
    let (head, rest) = printed.split_once('\n').expect("a line with the package's name");
    let texts: String = [&values, &objects].into_iter().flatten().map(String::as_str).collect();
    let wit = format!("{head}\n{texts}{rest}");
    let version = model.version.as_ref().map(|v| format!("@{v}")).unwrap_or_default();
    let parsed = |name: &str| {
        let id = format!("{}/{name}{version}", model.package);
        DynamicInterface::parse(&id, &wit, "").unwrap_or_else(|e| panic!("{e}\n{wit}"))
    };
    let [values, objects] =
        [(VALUES, values), (OBJECTS, objects)].map(|(name, text)| text.map(|_| parsed(name)));
    Ok(Echo { wit, values, objects })
}

/// Every named type, every type of a parameter or result, and the resources themselves. One package
/// gets additional types that occur in no package.
fn types(model: &Model) -> (Vec<Type>, Vec<TypeId>) {
    let (mut types, mut resources) = (Vec::new(), Vec::new());
    for (index, interface) in model.interfaces.iter().enumerate() {
        for id in &interface.types {
            let of_a_resource = matches!(
                model.resolve(&Type::Named(*id)),
                Type::Named(id) if is_resource(model, *id)
            );
            if is_resource(model, *id) {
                resources.push(*id);
            } else if model.def(*id).interface == index && !of_a_resource {
                types.push(Type::Named(*id));
            }
        }
        for procedure in &interface.procedures {
            // A method's `self` is not a value.
            let skip = usize::from(matches!(procedure.kind, ProcedureKind::Method(_)));
            types.extend(
                procedure.params[skip..]
                    .iter()
                    .map(|param| param.ty.clone())
                    .chain(procedure.result.clone()),
            );
        }
    }
    types.extend(resources.iter().flat_map(|id| [Type::Own(*id), Type::Borrow(*id)]));
    if let (Some(first), Some(last), "test:carry") =
        (resources.first(), resources.last(), model.package.as_str())
    {
        let (own, lent) = (|| Box::new(Type::Own(*first)), || Box::new(Type::Borrow(*last)));
        types.extend([
            Type::List(Box::new(Type::List(own()))),
            Type::List(Box::new(Type::Option(own()))),
            Type::List(Box::new(Type::Tuple(vec![*own(), Type::Own(*last)]))),
            Type::Option(Box::new(Type::Result(Some(own()), Some(Box::new(Type::List(own())))))),
            Type::FixedList(Box::new(Type::Option(own())), 3),
            Type::List(Box::new(Type::Result(Some(lent()), Some(Box::new(Type::String))))),
            Type::Tuple(vec![Type::Option(lent()), Type::List(own()), Type::FixedList(lent(), 2)]),
        ]);
    }
    (types, resources)
}

fn is_resource(model: &Model, id: TypeId) -> bool {
    matches!(model.def(id).shape, TypeBody::Resource)
}

/// An interface under construction.
struct Added<'m> {
    model: &'m Model,
    /// Its names for other interfaces' types.
    names: BTreeMap<TypeId, String>,
    uses: String,
    procedures: String,
    seen: BTreeSet<String>,
}

impl<'m> Added<'m> {
    fn new(model: &'m Model) -> Self {
        Self {
            model,
            names: BTreeMap::new(),
            uses: String::new(),
            procedures: String::new(),
            seen: BTreeSet::new(),
        }
    }

    fn line(&mut self, procedure: &str) {
        let _ = writeln!(self.procedures, "    {procedure};");
    }

    /// Its name for a type. The `%` makes a name of a word that may be a WIT keyword.
    fn name(&mut self, id: TypeId) -> String {
        if let Some(name) = self.names.get(&id) {
            return format!("%{name}");
        }
        let def = self.model.def(id);
        let interface = &self.model.interfaces[def.interface];
        let place = match &interface.foreign {
            None => format!("%{}", interface.name),
            Some(_) => interface.id.clone(),
        };
        let taken = self.names.values().any(|name| *name == def.name)
            || [VALUES, OBJECTS].contains(&def.name.as_str());
        let name =
            if taken { format!("{}-n{}", def.name, self.names.len()) } else { def.name.clone() };
        let _ = writeln!(self.uses, "    use {place}.{{%{} as %{name}}};", def.name);
        self.names.insert(id, name.clone());
        format!("%{name}")
    }

    /// Its text, if it has any procedures.
    fn interface(self, name: &str) -> Option<String> {
        let text = format!("\ninterface {name} {{\n{}{}}}\n", self.uses, self.procedures);
        (!self.procedures.is_empty()).then_some(text)
    }
}
