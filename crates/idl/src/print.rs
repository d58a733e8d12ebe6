//! Prints the model as WIT again: one self-contained document.
//!
//! A package may be spread over several files and use others from `deps`. The text that a server
//! hands out with its interface is one document that means the same. Comments other than
//! documentation are lost, and other packages are included as far as they are used.

use crate::model::{
    InterfaceDefinition, Model, ProcedureDefinition, ProcedureKind, Type, TypeBody, TypeId,
};
use std::collections::BTreeSet;
use std::fmt::Write;

impl Model {
    /// A type in use, in WIT's notation.
    #[must_use]
    pub fn wit(&self, ty: &Type) -> String {
        Printer { model: self, interface: None, text: String::new() }.ty(ty)
    }

    /// A procedure of an interface in WIT's notation, `add: func(a: u32, b: u32) -> u32`.
    #[must_use]
    pub fn declaration(&self, interface: usize, procedure: &ProcedureDefinition) -> String {
        Printer { model: self, interface: Some(interface), text: String::new() }
            .declaration(procedure)
    }

    /// Prints the package, with the parts of other packages that it uses, as one text with the
    /// meaning of the model. [`source`](Self::source) is this text only if there was none already.
    #[must_use]
    pub fn printed(&self) -> String {
        print(self)
    }
}

/// The whole package.
pub(crate) fn print(model: &Model) -> String {
    let mut out = Printer { model, interface: None, text: String::new() };
    let version = model.version.as_ref().map(|v| format!("@{v}")).unwrap_or_default();
    out.line(0, &format!("package {}{version};", path(&model.package)));
    for (index, interface) in
        model.interfaces.iter().enumerate().filter(|(_, i)| i.foreign.is_none())
    {
        out.text.push('\n');
        out.interface(0, index, interface);
    }
    let mut packages: Vec<&String> =
        model.interfaces.iter().filter_map(|i| i.foreign.as_ref()).collect();
    packages.sort();
    packages.dedup();
    for package in packages {
        out.text.push('\n');
        out.line(0, &format!("package {} {{", path(package)));
        for (index, interface) in model.interfaces.iter().enumerate() {
            if interface.foreign.as_ref() == Some(package) {
                out.interface(1, index, interface);
            }
        }
        out.line(0, "}");
    }
    out.text
}

struct Printer<'a> {
    model: &'a Model,
    /// The interface that is being printed.
    interface: Option<usize>,
    text: String,
}

/// A name, marked with `%` if it is also a keyword.
pub(crate) fn name(name: &str) -> String {
    const KEYWORDS: &[&str] = &[
        "as",
        "async",
        "bool",
        "borrow",
        "char",
        "constructor",
        "enum",
        "error-context",
        "export",
        "f32",
        "f64",
        "flags",
        "from",
        "func",
        "future",
        "get",
        "import",
        "include",
        "interface",
        "list",
        "map",
        "option",
        "own",
        "package",
        "record",
        "resource",
        "result",
        "s16",
        "s32",
        "s64",
        "s8",
        "set",
        "static",
        "stream",
        "string",
        "tuple",
        "type",
        "u16",
        "u32",
        "u64",
        "u8",
        "use",
        "variant",
        "with",
        "world",
    ];
    if KEYWORDS.contains(&name) { format!("%{name}") } else { name.to_owned() }
}

/// A name of several parts, `namespace:package/interface@version`.
fn path(path: &str) -> String {
    let (names, version) = path.split_at(path.find('@').unwrap_or(path.len()));
    let packages: Vec<String> = names
        .split(':')
        .map(|part| part.split('/').map(name).collect::<Vec<_>>().join("/"))
        .collect();
    format!("{}{version}", packages.join(":"))
}

impl Printer<'_> {
    fn line(&mut self, depth: usize, line: &str) {
        let _ = writeln!(self.text, "{:width$}{line}", "", width = depth * 4);
    }

    fn docs(&mut self, depth: usize, docs: Option<&String>) {
        for line in docs.iter().flat_map(|d| d.lines()) {
            self.line(depth, format!("/// {line}").trim_end());
        }
    }

    fn interface(&mut self, depth: usize, index: usize, interface: &InterfaceDefinition) {
        self.interface = Some(index);
        self.docs(depth, interface.docs.as_ref());
        self.line(depth, &format!("interface {} {{", name(&interface.name)));
        self.unnamed_uses(depth + 1, index, interface);
        for id in &interface.types {
            self.def(depth + 1, index, *id);
        }
        for procedure in interface.procedures.iter().filter(|p| p.kind == ProcedureKind::Free) {
            self.procedure(depth + 1, procedure);
        }
        self.line(depth, "}");
    }

    /// Writes the `use` lines for the imported types of a world that its exports use. The world
    /// itself has no such lines; interfaces need them.
    fn unnamed_uses(&mut self, depth: usize, index: usize, interface: &InterfaceDefinition) {
        let mut used = BTreeSet::new();
        for procedure in &interface.procedures {
            // A method's text does not include its `self`.
            let skip = usize::from(matches!(procedure.kind, ProcedureKind::Method(_)));
            procedure.params[skip..]
                .iter()
                .map(|param| &param.ty)
                .chain(&procedure.result)
                .for_each(|ty| mentioned(ty, &mut used));
        }
        for id in &interface.types {
            match &self.model.def(*id).shape {
                TypeBody::Record(fields) => {
                    fields.iter().for_each(|field| mentioned(&field.ty, &mut used))
                }
                TypeBody::Variant(cases) => cases
                    .iter()
                    .filter_map(|case| case.ty.as_ref())
                    .for_each(|ty| mentioned(ty, &mut used)),
                // An alias of another interface's type is itself such a line.
                TypeBody::Alias(Type::Named(_))
                | TypeBody::Enum(_)
                | TypeBody::Flags(_)
                | TypeBody::Resource => {}
                TypeBody::Alias(ty) => mentioned(ty, &mut used),
            }
        }
        for id in used {
            let def = self.model.def(id);
            // A resource is written under its local name, if it has one.
            let named = matches!(def.shape, TypeBody::Resource) && self.used_as(id).is_some();
            if def.interface != index && !named {
                let path = self.way_to(index, def.interface);
                self.line(depth, &format!("use {path}.{{{}}};", name(&def.name)));
            }
        }
    }

    /// The name of one interface as seen from another.
    fn way_to(&self, from: usize, to: usize) -> String {
        let (from, to) = (&self.model.interfaces[from], &self.model.interfaces[to]);
        if to.foreign == from.foreign { name(&to.name) } else { path(&to.id) }
    }

    fn procedure(&mut self, depth: usize, procedure: &ProcedureDefinition) {
        self.docs(depth, procedure.docs.as_ref());
        let line = format!("{};", self.declaration(procedure));
        self.line(depth, &line);
    }

    fn declaration(&self, procedure: &ProcedureDefinition) -> String {
        let (function, result) = (name(&procedure.function), procedure.result.as_ref());
        let (head, params, result) = match procedure.kind {
            ProcedureKind::Free => (format!("{function}: func"), &*procedure.params, result),
            ProcedureKind::Method(_) => {
                (format!("{function}: func"), &procedure.params[1..], result)
            }
            ProcedureKind::Static(_) => {
                (format!("{function}: static func"), &*procedure.params, result)
            }
            // A constructor's result is implied, unless it can fail.
            ProcedureKind::Constructor(_) => (
                "constructor".to_owned(),
                &*procedure.params,
                result.filter(|ty| !matches!(ty, Type::Own(_))),
            ),
        };
        let params: Vec<String> =
            params.iter().map(|p| format!("{}: {}", name(&p.name), self.ty(&p.ty))).collect();
        let result = result.map(|ty| format!(" -> {}", self.ty(ty))).unwrap_or_default();
        format!("{head}({}){result}", params.join(", "))
    }

    fn def(&mut self, depth: usize, interface: usize, id: TypeId) {
        let def = self.model.def(id);
        let own = name(&def.name);
        if let TypeBody::Alias(Type::Named(target)) = &def.shape {
            let target = self.model.def(*target);
            if target.interface != interface {
                let path = self.way_to(interface, target.interface);
                let renamed =
                    if target.name == def.name { String::new() } else { format!(" as {own}") };
                self.line(depth, &format!("use {path}.{{{}{renamed}}};", name(&target.name)));
                return;
            }
        }
        self.docs(depth, def.docs.as_ref());
        match &def.shape {
            TypeBody::Alias(ty) => {
                let line = format!("type {own} = {};", self.ty(ty));
                self.line(depth, &line);
            }
            TypeBody::Record(fields) => {
                self.line(depth, &format!("record {own} {{"));
                for field in fields {
                    self.docs(depth + 1, field.docs.as_ref());
                    let line = format!("{}: {},", name(&field.name), self.ty(&field.ty));
                    self.line(depth + 1, &line);
                }
                self.line(depth, "}");
            }
            TypeBody::Variant(cases) => {
                self.line(depth, &format!("variant {own} {{"));
                for case in cases {
                    self.docs(depth + 1, case.docs.as_ref());
                    let value =
                        case.ty.as_ref().map(|ty| format!("({})", self.ty(ty))).unwrap_or_default();
                    self.line(depth + 1, &format!("{}{value},", name(&case.name)));
                }
                self.line(depth, "}");
            }
            TypeBody::Enum(labels) | TypeBody::Flags(labels) => {
                let word = if matches!(def.shape, TypeBody::Enum(_)) { "enum" } else { "flags" };
                self.line(depth, &format!("{word} {own} {{"));
                for label in labels {
                    self.docs(depth + 1, label.docs.as_ref());
                    self.line(depth + 1, &format!("{},", name(&label.name)));
                }
                self.line(depth, "}");
            }
            TypeBody::Resource => {
                self.line(depth, &format!("resource {own} {{"));
                let is_member = |one: &&ProcedureDefinition| one.kind.resource() == Some(id);
                let all = &self.model.interfaces[def.interface].procedures;
                for procedure in all.iter().filter(is_member) {
                    self.procedure(depth + 1, procedure);
                }
                self.line(depth, "}");
            }
        }
    }

    fn ty(&self, ty: &Type) -> String {
        ty.spelled(&mut |id| {
            let is_resource = matches!(self.model.def(id).shape, TypeBody::Resource);
            name(if is_resource { self.resource(id) } else { &self.model.def(id).name })
        })
    }

    /// The name of a resource in the interface that is printed, where another interface's resource
    /// may be in use under another name.
    fn resource(&self, id: TypeId) -> &str {
        &self.model.def(self.used_as(id).unwrap_or(id)).name
    }

    /// The local alias of another interface's resource, in the interface that is printed.
    fn used_as(&self, id: TypeId) -> Option<TypeId> {
        let model = self.model;
        let interface = self.interface.filter(|i| *i != model.def(id).interface)?;
        let is_it = |alias: &&TypeId| *model.resolve(&Type::Named(**alias)) == Type::Named(id);
        model.interfaces[interface].types.iter().find(is_it).copied()
    }
}

impl Type {
    /// The type in WIT, with the names that `named` returns for named types and resources.
    #[must_use]
    pub fn spelled(&self, named: &mut dyn FnMut(TypeId) -> String) -> String {
        let mut of = |t: &Self| t.spelled(named);
        let maybe = |of: &mut dyn FnMut(&Self) -> String, t: &Option<Box<Self>>| {
            t.as_ref().map_or("_".to_owned(), |t| of(t))
        };
        match self {
            Self::Bool => "bool".into(),
            Self::U8 => "u8".into(),
            Self::U16 => "u16".into(),
            Self::U32 => "u32".into(),
            Self::U64 => "u64".into(),
            Self::S8 => "s8".into(),
            Self::S16 => "s16".into(),
            Self::S32 => "s32".into(),
            Self::S64 => "s64".into(),
            Self::F32 => "f32".into(),
            Self::F64 => "f64".into(),
            Self::Char => "char".into(),
            Self::String => "string".into(),
            Self::List(t) => format!("list<{}>", of(t)),
            Self::FixedList(t, n) => format!("list<{}, {n}>", of(t)),
            Self::Option(t) => format!("option<{}>", of(t)),
            Self::Result(None, None) => "result".into(),
            Self::Result(ok, None) => format!("result<{}>", maybe(&mut of, ok)),
            Self::Result(ok, err) => {
                format!("result<{}, {}>", maybe(&mut of, ok), maybe(&mut of, err))
            }
            Self::Tuple(types) => {
                format!("tuple<{}>", types.iter().map(of).collect::<Vec<_>>().join(", "))
            }
            Self::Named(id) => named(*id),
            // The plain name means `own<..>` too; the word is written for the reader.
            Self::Own(id) => format!("own<{}>", named(*id)),
            Self::Borrow(id) => format!("borrow<{}>", named(*id)),
        }
    }
}

/// The named types in `ty`.
fn mentioned(ty: &Type, names: &mut BTreeSet<TypeId>) {
    match ty {
        Type::Named(id) | Type::Own(id) | Type::Borrow(id) => {
            names.insert(*id);
        }
        Type::List(t) | Type::FixedList(t, _) | Type::Option(t) => mentioned(t, names),
        Type::Result(ok, err) => [ok, err].into_iter().flatten().for_each(|t| mentioned(t, names)),
        Type::Tuple(types) => types.iter().for_each(|t| mentioned(t, names)),
        _ => {}
    }
}
