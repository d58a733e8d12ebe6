//! Types with their layout: what is written at which offset, and how it is read back from memory
//! that a peer wrote.

use super::names::{camel, snake, upper};
use super::{Module, RustSide, emit, tuple};
use crate::layout::{TypeLayout, discriminant_size, flags_size};
use crate::model::{Case, Def, Field, Label, Model, Type, TypeBody};
use std::collections::BTreeMap;

/// The traits that a type can derive.
#[derive(Clone, Copy)]
pub(super) struct Properties {
    copy: bool,
    /// `Eq` and `Hash`: there is no float inside.
    eq: bool,
}

/// Maximum size in bytes of a type that derives `Copy`. Larger types are better cloned visibly.
const MAX_COPY: u64 = 64;

/// One entry for each type of the model.
pub(super) fn properties(model: &Model) -> Vec<Properties> {
    let mut known: Vec<Properties> = Vec::new();
    for def in &model.types {
        let all = |types: &mut dyn Iterator<Item = &Type>| {
            types.map(|t| of_type(&known, t)).fold(Properties { copy: true, eq: true }, |a, b| {
                Properties { copy: a.copy && b.copy, eq: a.eq && b.eq }
            })
        };
        let mut own = match &def.shape {
            TypeBody::Record(fields) => all(&mut fields.iter().map(|f| &f.ty)),
            TypeBody::Variant(cases) => all(&mut cases.iter().filter_map(|c| c.ty.as_ref())),
            TypeBody::Alias(ty) => of_type(&known, ty),
            TypeBody::Enum(_) | TypeBody::Flags(_) => Properties { copy: true, eq: true },
            TypeBody::Resource => Properties { copy: false, eq: false },
        };
        own.copy &= def.layout.size <= MAX_COPY;
        known.push(own);
    }
    known
}

fn of_type(known: &[Properties], ty: &Type) -> Properties {
    let of = |t: &Type| of_type(known, t);
    let both = |types: &mut dyn Iterator<Item = &Type>| {
        types.map(of).fold(Properties { copy: true, eq: true }, |a, b| Properties {
            copy: a.copy && b.copy,
            eq: a.eq && b.eq,
        })
    };
    match ty {
        Type::F32 | Type::F64 => Properties { copy: true, eq: false },
        Type::String => Properties { copy: false, eq: true },
        Type::List(t) => Properties { copy: false, eq: of(t).eq },
        Type::FixedList(t, _) | Type::Option(t) => of(t),
        Type::Result(ok, err) => both(&mut [ok, err].into_iter().flatten().map(|t| &**t)),
        Type::Tuple(types) => both(&mut types.iter()),
        Type::Named(id) => known[id.0],
        Type::Own(_) | Type::Borrow(_) => Properties { copy: false, eq: false },
        _ => Properties { copy: true, eq: true },
    }
}

/// One Rust form of a record or variant.
struct TypeForm {
    name: String,
    /// The name with its lifetime, if it has one.
    ty: String,
    side: RustSide,
    put: bool,
    get: bool,
}

impl Module<'_> {
    pub(super) fn types(&mut self) {
        let model = self.model;
        for id in &self.interface().types {
            let def = model.def(*id);
            match &def.shape {
                TypeBody::Alias(_) if self.is_declared(def) => {}
                TypeBody::Alias(target) => self.alias(def, target),
                TypeBody::Record(fields) => self.record(def, fields, self.properties[id.0]),
                TypeBody::Variant(cases) => self.variant(def, cases, self.properties[id.0]),
                TypeBody::Enum(labels) if self.is_declared(def) => {
                    self.declared_enumeration(def, labels)
                }
                TypeBody::Enum(labels) => self.enumeration(def, labels),
                TypeBody::Flags(labels) => self.flags(def, labels),
                TypeBody::Resource => {} // client.rs and server.rs
            }
        }
        for name in self.error_types() {
            emit!(self, "impl ::core::error::Error for {name} {{}}");
        }
    }

    fn alias(&mut self, def: &Def, target: &Type) {
        let name = camel(&def.name);
        let named = match target {
            Type::Named(id) => !matches!(self.model.def(*id).shape, TypeBody::Alias(_)),
            _ => false,
        };
        if self.model.holds(target).any() && !named || self.model.holds(target).lent {
            return; // written out where it is used
        }
        if let Type::Named(id) = target
            && self.model.def(*id).interface != self.index
        {
            let renamed = if camel(&self.model.def(*id).name) == name {
                String::new()
            } else {
                format!(" as {name}")
            };
            emit!(self, "pub use {}{renamed};", self.path(*id));
            return;
        }
        self.docs(def.docs.as_deref(), &format!("`{}`", def.name));
        emit!(self, "pub type {name} = {};", self.ty(target, RustSide::Client));
    }

    fn derive(&mut self, properties: Properties) {
        let copy = if properties.copy { ", Copy" } else { "" };
        let eq = if properties.eq { ", Eq, Hash" } else { "" };
        emit!(self, "#[derive(Debug, Clone{copy}, PartialEq{eq})]");
    }

    fn layout_impl(&mut self, name: &str, layout: TypeLayout) {
        self.layout_impl_with(name, layout, "");
    }

    /// Implements the layout with `free` as the body of `free`, for types whose values may be
    /// large.
    fn layout_impl_with(&mut self, name: &str, layout: TypeLayout, free: &str) {
        emit!(self, "impl stub::Layout for {name} {{");
        emit!(self, "const SIZE: usize = {};", layout.size);
        emit!(self, "const ALIGN: usize = {};", layout.align);
        emit!(self, "const FIXED: bool = {};", layout.fixed);
        if !free.is_empty() {
            emit!(self, "#[inline] fn free(self, pace: &stub::Pace) {{ {free} }}");
        }
        emit!(self, "}}");
    }

    /// The body of `tail` for a type with these parts.
    fn tail_of<'t>(&self, parts: impl Iterator<Item = (String, &'t Type)>) -> String {
        let parts: Vec<String> = parts
            .filter(|(_, ty)| !self.model.layout(ty).fixed)
            .map(|(place, _)| format!("stub::Put::tail({place})"))
            .collect();
        if parts.is_empty() { "0".into() } else { parts.join(" + ") }
    }

    /// The forms of a record or variant: name, type, side, and whether the form is written and
    /// read.
    fn forms(&self, def: &Def) -> Vec<TypeForm> {
        let name = camel(&def.name);
        if !self.is_carrier(def) {
            return vec![TypeForm {
                ty: name.clone(),
                name,
                side: RustSide::Client,
                put: true,
                get: true,
            }];
        }
        // Lent handles occur only in arguments: clients write them, servers read them.
        let back = !def.holds.lent;
        let ty = if def.holds.lent { format!("{name}<'_>") } else { name.clone() };
        let served = self.served_name(def);
        vec![
            TypeForm { name, ty, side: RustSide::Declared, put: true, get: back },
            TypeForm {
                name: served.clone(),
                ty: served,
                side: RustSide::Server,
                put: back,
                get: true,
            },
        ]
    }

    fn open_type(&mut self, def: &Def, form: &TypeForm, keyword: &str, properties: Properties) {
        match form.side {
            RustSide::Client => {
                self.docs(def.docs.as_deref(), &format!("`{}`", def.name));
                self.derive(properties);
            }
            RustSide::Declared => {
                self.docs(def.docs.as_deref(), &format!("`{}`", def.name));
                emit!(self, "#[derive(Debug)]");
            }
            RustSide::Server => emit!(
                self,
                "/// `{}` as a server has it, with objects in place of handles.",
                def.name
            ),
        }
        let lifetime = if form.side == RustSide::Declared && def.holds.lent { "<'a>" } else { "" };
        emit!(self, "pub {keyword} {}{lifetime} {{", form.name);
    }

    fn record(&mut self, def: &Def, fields: &[Field], properties: Properties) {
        let (offsets, layout) = self.model.record(fields);
        for form in self.forms(def) {
            if !self.is_declared(def) {
                self.open_type(def, &form, "struct", properties);
                for field in fields {
                    self.docs(field.docs.as_deref(), &format!("`{}`", field.name));
                    emit!(self, "pub {}: {},", snake(&field.name), self.ty(&field.ty, form.side));
                }
                emit!(self, "}}");
            }
            let ty = &form.ty;
            let opens = self.may_take_apart(def, &form);
            let large = fields.iter().filter(|f| opens && !self.model.layout(&f.ty).fixed);
            let free: String = large
                .map(|f| format!("stub::Layout::free(self.{}, pace);", snake(&f.name)))
                .collect();
            self.layout_impl_with(ty, layout, &free);
            if form.put {
                let tail = self
                    .tail_of(fields.iter().map(|f| (format!("&self.{}", snake(&f.name)), &f.ty)));
                emit!(
                    self,
                    "impl stub::Put for {ty} {{ #[inline] fn tail(&self) -> usize {{ {tail} }}"
                );
                emit!(self, "#[inline] fn put(&self, e: &mut stub::Encoder<'_>, at: usize) {{");
                for (field, offset) in fields.iter().zip(&offsets) {
                    emit!(
                        self,
                        "stub::Put::put(&self.{}, e, {});",
                        snake(&field.name),
                        at(*offset)
                    );
                }
                emit!(self, "}} }}");
            }
            if form.get {
                self.open_get(ty);
                emit!(self, "Ok({} {{", form.name);
                for (field, offset) in fields.iter().zip(&offsets) {
                    emit!(self, "{}: stub::Get::get(d, {})?,", snake(&field.name), at(*offset));
                }
                emit!(self, "}}) }} }}");
            }
            if form.side == RustSide::Declared {
                self.carrier(def, &form.ty);
            }
        }
        self.display_if_error(&camel(&def.name), None, &def.name);
    }

    fn open_get(&mut self, name: &str) {
        let result = self.std("Result");
        emit!(self, "impl stub::Get for {name} {{");
        emit!(
            self,
            "#[inline] fn get(d: &stub::Decoder<'_>, at: usize) -> {result}<Self, \
            stub::Malformed> {{"
        );
    }

    fn variant(&mut self, def: &Def, cases: &[Case], properties: Properties) {
        let layout = self.model.variant(cases).1;
        for form in self.forms(def) {
            if !self.is_declared(def) {
                self.open_type(def, &form, "enum", properties);
                for case in cases {
                    self.docs(case.docs.as_deref(), &format!("`{}`", case.name));
                    let payload = case
                        .ty
                        .as_ref()
                        .map(|t| format!("({})", self.ty(t, form.side)))
                        .unwrap_or_default();
                    emit!(self, "{}{payload},", camel(&case.name));
                }
                emit!(self, "}}");
            }
            let free = if self.may_take_apart(def, &form) {
                self.free_of_variant(&form, cases)
            } else {
                String::new()
            };
            self.layout_impl_with(&form.ty, layout, &free);
            if form.put {
                self.put_variant(&form, cases, layout.fixed);
            }
            if form.get {
                self.get_variant(&form, cases);
            }
            if form.side == RustSide::Declared {
                self.carrier(def, &form.ty);
            }
        }
        let arms = cases
            .iter()
            .map(|c| (c.name.as_str(), camel(&c.name), c.ty.is_some()))
            .collect::<Vec<_>>();
        self.display_if_error(&camel(&def.name), Some(&arms), &def.name);
    }

    /// Returns `true` if a value may be destructured. A type declared by the program may implement
    /// `Drop`.
    fn may_take_apart(&self, def: &Def, form: &TypeForm) -> bool {
        form.side != RustSide::Declared && !self.is_declared(def)
    }

    /// The body of `free`; empty if no case may be large.
    fn free_of_variant(&self, form: &TypeForm, cases: &[Case]) -> String {
        let is_large =
            |case: &&Case| case.ty.as_ref().is_some_and(|ty| !self.model.layout(ty).fixed);
        let large: Vec<&Case> = cases.iter().filter(is_large).collect();
        if large.is_empty() {
            return String::new();
        }
        let arm = |case: &&Case| {
            format!(
                "{}::{}(value) => stub::Layout::free(value, pace),",
                form.name,
                camel(&case.name)
            )
        };
        let others = if large.len() < cases.len() { "_ => {}" } else { "" };
        format!("match self {{ {}{others} }}", large.iter().map(arm).collect::<String>())
    }

    fn put_variant(&mut self, form: &TypeForm, cases: &[Case], fixed: bool) {
        let (name, value) = (&form.name, self.model.variant(cases).0);
        let tag = discriminant_size(cases.len()) * 8;
        emit!(self, "impl stub::Put for {} {{ #[inline] fn tail(&self) -> usize {{", form.ty);
        if fixed {
            emit!(self, "0");
        } else {
            emit!(self, "match self {{");
            let mut others = false;
            for case in cases {
                match &case.ty {
                    Some(ty) if !self.model.layout(ty).fixed => {
                        emit!(
                            self,
                            "{name}::{}(value) => stub::Put::tail(value),",
                            camel(&case.name)
                        );
                    }
                    _ => others = true,
                }
            }
            if others {
                emit!(self, "_ => 0,");
            }
            emit!(self, "}}");
        }
        emit!(
            self,
            "}} #[inline] fn put(&self, e: &mut stub::Encoder<'_>, at: usize) {{ match self {{"
        );
        for (number, case) in cases.iter().enumerate() {
            let rust = camel(&case.name);
            if case.ty.is_some() {
                emit!(self, "{name}::{rust}(value) => {{ e.u{tag}(at, {number});");
                emit!(self, "stub::Put::put(value, e, {}); }}", at(value));
            } else {
                emit!(self, "{name}::{rust} => e.u{tag}(at, {number}),");
            }
        }
        emit!(self, "}} }} }}");
    }

    fn get_variant(&mut self, form: &TypeForm, cases: &[Case]) {
        let (name, value) = (&form.name, self.model.variant(cases).0);
        let tag = discriminant_size(cases.len()) * 8;
        self.open_get(&form.ty);
        emit!(self, "match d.u{tag}(at)? {{");
        for (number, case) in cases.iter().enumerate() {
            let payload = case
                .ty
                .as_ref()
                .map(|_| format!("(stub::Get::get(d, {})?)", at(value)))
                .unwrap_or_default();
            emit!(self, "{number} => Ok({name}::{}{payload}),", camel(&case.name));
        }
        emit!(
            self,
            "found => Err(stub::Malformed::discriminant(at, found.into(), {})),",
            cases.len()
        );
        emit!(self, "}} }} }}");
    }

    /// An enum that the program has declared. It need not be `Copy`, and its discriminants can be
    /// any numbers.
    fn declared_enumeration(&mut self, def: &Def, labels: &[Label]) {
        let case = |label: &Label| Case { name: label.name.clone(), ty: None, docs: None };
        let cases: Vec<Case> = labels.iter().map(case).collect();
        for form in self.forms(def) {
            self.layout_impl(&form.ty, def.layout);
            self.put_variant(&form, &cases, true);
            self.get_variant(&form, &cases);
        }
    }

    fn enumeration(&mut self, def: &Def, labels: &[Label]) {
        let name = camel(&def.name);
        let bits = discriminant_size(labels.len()) * 8;
        self.docs(def.docs.as_deref(), &format!("`{}`", def.name));
        emit!(self, "#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]");
        emit!(self, "#[repr(u{bits})]");
        emit!(self, "pub enum {name} {{");
        for (number, label) in labels.iter().enumerate() {
            self.docs(label.docs.as_deref(), &format!("`{}`", label.name));
            emit!(self, "{} = {number},", camel(&label.name));
        }
        emit!(self, "}}");
        self.layout_impl(&name, def.layout);
        emit!(self, "impl stub::Put for {name} {{ #[inline] fn tail(&self) -> usize {{ 0 }}");
        emit!(
            self,
            "#[inline] fn put(&self, e: &mut stub::Encoder<'_>, at: usize) {{ e.u{bits}(at, *self \
            as u{bits}); }} }}"
        );
        self.open_get(&name);
        emit!(self, "match d.u{bits}(at)? {{");
        for (number, label) in labels.iter().enumerate() {
            emit!(self, "{number} => Ok({name}::{}),", camel(&label.name));
        }
        emit!(
            self,
            "found => Err(stub::Malformed::discriminant(at, found.into(), {})),",
            labels.len()
        );
        emit!(self, "}} }} }}");
        let arms =
            labels.iter().map(|l| (l.name.as_str(), camel(&l.name), false)).collect::<Vec<_>>();
        self.display_if_error(&name, Some(&arms), &def.name);
    }

    fn flags(&mut self, def: &Def, labels: &[Label]) {
        let name = camel(&def.name);
        let bits = flags_size(labels.len()).unwrap_or(8) * 8;
        let all = if labels.len() == 64 { u64::MAX } else { (1_u64 << labels.len()) - 1 };
        self.docs(def.docs.as_deref(), &format!("`{}`", def.name));
        emit!(self, "#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]");
        emit!(self, "pub struct {name} {{ bits: u{bits} }}");
        emit!(self, "impl {name} {{");
        for (number, label) in labels.iter().enumerate() {
            self.docs(label.docs.as_deref(), &format!("`{}`", label.name));
            emit!(
                self,
                "pub const {}: {name} = {name} {{ bits: 1 << {number} }};",
                upper(&label.name)
            );
        }
        let option = self.std("Option");
        emit!(
            self,
            "/// No flag.\n#[must_use] pub const fn empty() -> Self {{ Self {{ bits: 0 }} }}"
        );
        emit!(
            self,
            "/// Every flag.\n#[must_use] pub const fn all() -> Self {{ Self {{ bits: {all:#x} }} \
            }}"
        );
        emit!(self, "/// The flags as a number, the first one as bit 0.");
        emit!(self, "#[must_use] pub const fn bits(self) -> u{bits} {{ self.bits }}");
        emit!(self, "/// The reverse of `bits`; `None` if a bit has no flag.");
        emit!(self, "#[must_use] pub const fn from_bits(bits: u{bits}) -> {option}<Self> {{");
        // If all bits are flags there is nothing to test, and the compiler would warn.
        if all == u64::MAX >> (64 - bits) {
            emit!(self, "Some(Self {{ bits }}) }}");
        } else {
            emit!(self, "if bits & !{all:#x} == 0 {{ Some(Self {{ bits }}) }} else {{ None }} }}");
        }
        emit!(self, "/// Whether every flag of `other` is set here.");
        emit!(
            self,
            "#[must_use] pub const fn contains(self, other: Self) -> bool {{ self.bits & \
            other.bits == other.bits }}"
        );
        emit!(
            self,
            "/// Whether no flag is set.\n#[must_use] pub const fn is_empty(self) -> bool {{ \
            self.bits == 0 }} }}"
        );
        self.flags_operators(&name, all);
        self.flags_debug(&name, labels);
        self.layout_impl(&name, def.layout);
        emit!(self, "impl stub::Put for {name} {{ #[inline] fn tail(&self) -> usize {{ 0 }}");
        emit!(
            self,
            "#[inline] fn put(&self, e: &mut stub::Encoder<'_>, at: usize) {{ e.u{bits}(at, \
            self.bits); }} }}"
        );
        self.open_get(&name);
        emit!(self, "let bits = d.u{bits}(at)?;");
        emit!(self, "match Self::from_bits(bits) {{ Some(flags) => Ok(flags),");
        emit!(
            self,
            "None => Err(stub::Malformed::discriminant(at, bits.into(), {})) }}",
            labels.len()
        );
        emit!(self, "}} }}");
        self.display_if_error(&name, None, &def.name);
    }

    /// The operators `|`, `&`, `^` and `!`, which never set bits outside the declared flags.
    fn flags_operators(&mut self, name: &str, all: u64) {
        for (operator, method, sign) in
            [("BitOr", "bitor", "|"), ("BitAnd", "bitand", "&"), ("BitXor", "bitxor", "^")]
        {
            emit!(self, "impl ::core::ops::{operator} for {name} {{ type Output = Self;");
            emit!(
                self,
                "fn {method}(self, other: Self) -> Self {{ Self {{ bits: self.bits {sign} \
                other.bits }} }} }}"
            );
        }
        emit!(self, "impl ::core::ops::BitOrAssign for {name} {{");
        emit!(self, "fn bitor_assign(&mut self, other: Self) {{ self.bits |= other.bits; }} }}");
        emit!(self, "impl ::core::ops::Not for {name} {{ type Output = Self;");
        emit!(self, "fn not(self) -> Self {{ Self {{ bits: !self.bits & {all:#x} }} }} }}");
    }

    fn flags_debug(&mut self, name: &str, labels: &[Label]) {
        emit!(self, "impl ::core::fmt::Debug for {name} {{");
        emit!(self, "fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{");
        emit!(self, "let mut set = f.debug_set();");
        emit!(self, "for (number, name) in [{}].into_iter().enumerate() {{", quoted(labels));
        emit!(
            self,
            "if self.bits >> number & 1 == 1 {{ set.entry(&::core::format_args!(\"{{name}}\")); \
            }} }}"
        );
        emit!(self, "set.finish() }} }}");
    }

    /// The names of this module's types that are the error of a result in one of its procedures.
    fn error_types(&self) -> Vec<String> {
        let mut names = Vec::new();
        if self.written.is_some() {
            // A type that the program declares can be made an error by the program, in its own
            // words.
            return names;
        }
        let own = &self.model.interfaces;
        for interface in own {
            for procedure in &interface.procedures {
                let Some(Type::Result(_, Some(err))) =
                    procedure.result.as_ref().map(|t| self.model.resolve(t))
                else {
                    continue;
                };
                if let Type::Named(id) = self.model.resolve(err) {
                    let def = self.model.def(*id);
                    let name = camel(&def.name);
                    if def.interface == self.index
                        && !matches!(def.shape, TypeBody::Resource)
                        && !names.contains(&name)
                    {
                        names.push(name);
                    }
                }
            }
        }
        names
    }

    /// Implements `Display` and `Error` for error types. Cases print as their WIT names, everything
    /// else prints its `Debug` form.
    fn display_if_error(&mut self, name: &str, arms: Option<&[(&str, String, bool)]>, wit: &str) {
        if !self.error_types().iter().any(|n| n == name) {
            return;
        }
        emit!(self, "impl ::core::fmt::Display for {name} {{");
        emit!(self, "fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{");
        match arms {
            Some(arms) => {
                emit!(self, "match self {{");
                for (wit, rust, payload) in arms {
                    if *payload {
                        emit!(
                            self,
                            "{name}::{rust}(value) => ::core::write!(f, \"{wit}: {{value:?}}\"),"
                        );
                    } else {
                        emit!(self, "{name}::{rust} => f.write_str({wit:?}),");
                    }
                }
                emit!(self, "}}");
            }
            None => {
                emit!(self, "::core::write!(f, \"{wit}: {{self:?}}\")");
            }
        }
        emit!(self, "}} }}");
    }

    /// Compile-time checks of the layout's numbers against the runtime's own: the two crates each
    /// compute the layout, and must not diverge.
    pub(super) fn assertions(&mut self) {
        let mut facts: BTreeMap<String, TypeLayout> = BTreeMap::new();
        let model = self.model;
        for id in &self.interface().types {
            match &model.def(*id).shape {
                TypeBody::Record(fields) => {
                    fields.iter().for_each(|f| self.fact(&mut facts, &f.ty))
                }
                TypeBody::Variant(cases) => {
                    cases
                        .iter()
                        .filter_map(|c| c.ty.as_ref())
                        .for_each(|t| self.fact(&mut facts, t));
                }
                _ => {}
            }
        }
        for (_, procedure) in self.procedures() {
            let args = tuple(procedure.params.iter().map(|p| match model.resolve(&p.ty) {
                Type::Own(_) | Type::Borrow(_) => "stub::Handle".to_owned(),
                _ => self.ty(&p.ty, RustSide::Client),
            }));
            facts.insert(args, procedure.args);
            if let Some(ty) = &procedure.result {
                self.fact(&mut facts, ty);
            }
        }
        if facts.is_empty() {
            return;
        }
        emit!(self, "const _: () = {{");
        emit!(
            self,
            "const fn agree<T: stub::Layout + ?::core::marker::Sized>(size: usize, align: usize, \
            fixed: bool) {{"
        );
        emit!(self, "assert!(T::SIZE == size && T::ALIGN == align && T::FIXED == fixed); }}");
        for (ty, layout) in facts {
            emit!(self, "agree::<{ty}>({}, {}, {});", layout.size, layout.align, layout.fixed);
        }
        emit!(self, "}};");
    }

    fn fact(&self, facts: &mut BTreeMap<String, TypeLayout>, ty: &Type) {
        facts.insert(self.ty(ty, RustSide::Client), self.model.layout(ty));
    }
}

/// The position `at`, `at + 8`.
fn at(offset: u64) -> String {
    if offset == 0 { "at".into() } else { format!("at + {offset}") }
}

fn quoted(labels: &[Label]) -> String {
    labels.iter().map(|l| format!("{:?}", l.name)).collect::<Vec<_>>().join(", ")
}
