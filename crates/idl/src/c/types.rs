//! Types of C for those of WIT.

use super::names::{member, snake};
use super::{CGenerator, CSide};
use crate::layout::{discriminant_size, flags_size};
use crate::model::{Case, Def, Field, Label, Type, TypeBody, TypeId};
use std::fmt::Write;

/// Both sides for types that hold handles; one side, which serves for both, for other types.
fn sides(holds: bool) -> &'static [CSide] {
    if holds { &[CSide::Client, CSide::Server] } else { &[CSide::Client] }
}

impl CGenerator<'_> {
    /// Names all types before any is declared, so that a type's name does not depend on which
    /// declaration uses it first.
    pub(super) fn name_types(&mut self) {
        let model = self.model;
        for (number, def) in model.types.iter().enumerate() {
            let id = TypeId(number);
            let prefix = &self.prefixes[def.interface];
            let (client, served) = (
                format!("{prefix}_{}_t", snake(&def.name)),
                format!("{prefix}_served_{}_t", snake(&def.name)),
            );
            let client = self.names.take(client);
            self.named.insert((id, CSide::Client), client);
            if def.holds.any() || matches!(def.shape, TypeBody::Resource) {
                let served = self.names.take(served);
                self.named.insert((id, CSide::Server), served);
            }
        }
        for (number, def) in model.types.iter().enumerate() {
            if matches!(def.shape, TypeBody::Resource) {
                self.name_resource(TypeId(number));
            }
        }
    }

    /// Resolves all aliases in a type.
    pub(super) fn normal(&self, ty: &Type) -> Type {
        let boxed = |t: &Type| Box::new(self.normal(t));
        match self.model.resolve(ty) {
            Type::List(t) => Type::List(boxed(t)),
            Type::FixedList(t, n) => Type::FixedList(boxed(t), *n),
            Type::Option(t) => Type::Option(boxed(t)),
            Type::Result(ok, err) => {
                Type::Result(ok.as_deref().map(boxed), err.as_deref().map(boxed))
            }
            Type::Tuple(types) => Type::Tuple(types.iter().map(|t| self.normal(t)).collect()),
            other => other.clone(),
        }
    }

    /// The type in `upcall.h` for a list whose elements have the same form in C as in a block.
    pub(super) fn number_name(&self, ty: &Type) -> Option<&'static str> {
        Some(match self.model.resolve(ty) {
            Type::Bool => "bool",
            Type::U8 => "u8",
            Type::U16 => "u16",
            Type::U32 => "u32",
            Type::U64 => "u64",
            Type::S8 => "s8",
            Type::S16 => "s16",
            Type::S32 => "s32",
            Type::S64 => "s64",
            Type::F32 => "f32",
            Type::F64 => "f64",
            Type::Char => "char",
            _ => return None,
        })
    }

    /// A type as a member, or behind a pointer.
    pub(super) fn ty(&mut self, ty: &Type, side: CSide, home: usize) -> String {
        match self.model.resolve(ty).clone() {
            Type::Bool => "bool".into(),
            Type::U8 => "uint8_t".into(),
            Type::U16 => "uint16_t".into(),
            Type::U32 | Type::Char => "uint32_t".into(),
            Type::U64 => "uint64_t".into(),
            Type::S8 => "int8_t".into(),
            Type::S16 => "int16_t".into(),
            Type::S32 => "int32_t".into(),
            Type::S64 => "int64_t".into(),
            Type::F32 => "float".into(),
            Type::F64 => "double".into(),
            Type::String => "upcall_string".into(),
            Type::Own(id) => format!("{} *", self.named[&(id, side)]),
            Type::Borrow(id) if side == CSide::Client => {
                format!("const {} *", self.named[&(id, side)])
            }
            Type::Borrow(_) => "void *".into(),
            Type::Named(id) => self
                .named
                .get(&(id, side))
                .or_else(|| self.named.get(&(id, CSide::Client)))
                .cloned()
                .unwrap_or_default(),
            Type::List(t) if self.number_name(&t).is_some() => {
                format!("upcall_list_{}_t", self.number_name(&t).unwrap_or_default())
            }
            other => self.unnamed(&other, side, home),
        }
    }

    /// `T name`.
    pub(super) fn variable(&mut self, ty: &Type, side: CSide, home: usize, name: &str) -> String {
        let ty = self.ty(ty, side, home);
        if ty.ends_with('*') { format!("{ty}{name}") } else { format!("{ty} {name}") }
    }

    /// The name of an unnamed type, derived from its structure.
    fn structural(&self, ty: &Type, home: usize) -> String {
        let of = |t: &Type| self.structural(t, home);
        match ty {
            Type::String => "string".into(),
            Type::List(t) => format!("list_{}", of(t)),
            Type::FixedList(t, n) => format!("array_{n}_{}", of(t)),
            Type::Option(t) => format!("option_{}", of(t)),
            Type::Result(ok, err) => {
                let part = |t: &Option<Box<Type>>| t.as_ref().map_or("void".to_owned(), |t| of(t));
                format!("result_{}_{}", part(ok), part(err))
            }
            Type::Tuple(types) => {
                format!("tuple_{}", types.iter().map(of).collect::<Vec<_>>().join("_"))
            }
            Type::Own(id) | Type::Borrow(id) | Type::Named(id) => {
                let def = self.model.def(*id);
                let lent = if matches!(ty, Type::Borrow(_)) { "lent_" } else { "" };
                let far = if def.interface == home {
                    String::new()
                } else {
                    format!("{}_", self.prefixes[def.interface])
                };
                format!("{lent}{far}{}", snake(&def.name))
            }
            number => self.number_name(number).unwrap_or_default().into(),
        }
    }

    fn unnamed(&mut self, ty: &Type, side: CSide, home: usize) -> String {
        let ty = self.normal(ty);
        let side = if self.model.holds(&ty).any() { side } else { CSide::Client };
        let key = (home, ty.clone(), side);
        if let Some(name) = self.unnamed.get(&key) {
            return name.clone();
        }
        let served = if side == CSide::Server { "served_" } else { "" };
        let name = format!("{}_{served}{}_t", self.prefixes[home], self.structural(&ty, home));
        let name = self.names.take(name);
        let mut members = String::new();
        match &ty {
            Type::List(t) => {
                // The receiver takes a list with resources apart, so its elements are not `const`.
                let held = if self.model.holds(t).any() { "" } else { "const " };
                let element = self.ty(t, side, home);
                let space = if element.ends_with('*') { "" } else { " " };
                let _ = writeln!(members, "    {held}{element}{space}*data;\n    size_t len;");
            }
            Type::FixedList(t, n) => {
                let data = self.variable(t, side, home, &format!("data[{n}]"));
                let _ = writeln!(members, "    {data};");
            }
            Type::Option(t) => {
                let value = self.variable(t, side, home, "value");
                let _ = writeln!(members, "    bool is_some;\n    {value};");
            }
            Type::Result(ok, err) => {
                members.push_str("    bool is_err;\n");
                let mut cases = String::new();
                for (t, name) in [(ok, "ok"), (err, "err")] {
                    if let Some(t) = t {
                        let value = self.variable(t, side, home, name);
                        let _ = writeln!(cases, "        {value};");
                    }
                }
                if !cases.is_empty() {
                    let _ = writeln!(members, "    union {{\n{cases}    }} as;");
                }
            }
            Type::Tuple(types) => {
                for (number, t) in types.iter().enumerate() {
                    let value = self.variable(t, side, home, &format!("f{number}"));
                    let _ = writeln!(members, "    {value};");
                }
            }
            _ => {}
        }
        self.structure(home, "", &name, &members);
        self.unnamed.insert(key, name.clone());
        name
    }

    /// Declares a struct. Neither WIT nor C has structs without members.
    fn structure(&mut self, home: usize, docs: &str, name: &str, members: &str) {
        self.declaration_of(
            home,
            name,
            &format!("{docs}typedef struct {name} {{\n{members}}} {name};\n\n"),
        );
    }

    /// Declares `name`. Comments do not count when declarations from different packages are
    /// compared.
    fn declaration_of(&mut self, home: usize, name: &str, text: &str) {
        let mut says = String::new();
        let mut rest = text;
        while let Some((before, comment)) = rest.split_once("/*") {
            says.push_str(before.trim_end());
            rest = comment.split_once("*/").map_or("", |(_, after)| after);
        }
        says.push_str(rest);
        let text = self.guarded(home, name, &says, text);
        self.types.push_str(&text);
    }

    pub(super) fn declare(&mut self, id: TypeId) {
        let def = self.model.def(id);
        let docs = self.docs(
            def.docs.as_deref(),
            &format!("`{}` of {}", def.name, self.interface(def.interface).id),
            "",
        );
        match &def.shape {
            TypeBody::Record(fields) => self.declare_record(id, def, fields, &docs),
            TypeBody::Variant(cases) => self.declare_variant(id, def, cases, &docs),
            TypeBody::Enum(labels) => self.declare_enum(id, labels, &docs),
            TypeBody::Flags(labels) => self.declare_flags(id, labels, &docs),
            TypeBody::Resource => {
                let (client, served) = (
                    self.named[&(id, CSide::Client)].clone(),
                    self.named[&(id, CSide::Server)].clone(),
                );
                let text = format!(
                    "{docs}typedef struct {client} {client};\n\
                     /* The same in a server: an object that it gives away, or was given. \
                     */\ntypedef struct {served} {served};\n\n"
                );
                self.declaration_of(def.interface, &client, &text);
            }
            TypeBody::Alias(target) => {
                for side in sides(def.holds.any()) {
                    let name = self.named[&(id, *side)].clone();
                    let target = self.ty(target, *side, def.interface);
                    let space = if target.ends_with('*') { "" } else { " " };
                    self.declaration_of(
                        def.interface,
                        &name,
                        &format!("{docs}typedef {target}{space}{name};\n\n"),
                    );
                }
            }
        }
    }

    fn declare_record(&mut self, id: TypeId, def: &Def, fields: &[Field], docs: &str) {
        for side in sides(def.holds.any()) {
            let mut members = String::new();
            for field in fields {
                if let Some(text) = &field.docs {
                    members.push_str(&super::comment(text, "    "));
                }
                let value = self.variable(&field.ty, *side, def.interface, &member(&field.name));
                let _ = writeln!(members, "    {value};");
            }
            self.structure(def.interface, docs, &self.named[&(id, *side)].clone(), &members);
        }
    }

    fn declare_variant(&mut self, id: TypeId, def: &Def, cases: &[Case], docs: &str) {
        let name = self.named[&(id, CSide::Client)].clone();
        let labels: Vec<Label> =
            cases.iter().map(|c| Label { name: c.name.clone(), docs: c.docs.clone() }).collect();
        let constants = self.constants(&name, &labels);
        self.declaration_of(def.interface, &format!("{name}_tag"), &constants);
        let bits = discriminant_size(cases.len()) * 8;
        for side in sides(def.holds.any()) {
            let mut members = format!("    uint{bits}_t tag;\n");
            let mut union = String::new();
            for case in cases {
                if let Some(ty) = &case.ty {
                    let value = self.variable(ty, *side, def.interface, &member(&case.name));
                    let _ = writeln!(union, "        {value};");
                }
            }
            if !union.is_empty() {
                let _ = writeln!(members, "    union {{\n{union}    }} as;");
            }
            self.structure(def.interface, docs, &self.named[&(id, *side)].clone(), &members);
        }
    }

    /// The constants for the cases.
    fn constants(&mut self, name: &str, labels: &[Label]) -> String {
        let stem = name.strip_suffix("_t").unwrap_or(name).to_uppercase();
        let mut text = String::new();
        for (number, label) in labels.iter().enumerate() {
            if let Some(docs) = &label.docs {
                text.push_str(&super::comment(docs, "    "));
            }
            let constant = self.names.take(format!("{stem}_{}", snake(&label.name).to_uppercase()));
            let _ = writeln!(
                text,
                "    {constant} = {number}{}",
                if number + 1 < labels.len() { "," } else { "" }
            );
        }
        if text.is_empty() { text } else { format!("enum {{\n{text}}};\n") }
    }

    fn declare_enum(&mut self, id: TypeId, labels: &[Label], docs: &str) {
        let name = self.named[&(id, CSide::Client)].clone();
        let bits = discriminant_size(labels.len()) * 8;
        let text =
            format!("{docs}{}typedef uint{bits}_t {name};\n\n", self.constants(&name, labels));
        self.declaration_of(self.model.def(id).interface, &name, &text);
    }

    fn declare_flags(&mut self, id: TypeId, labels: &[Label], docs: &str) {
        let name = self.named[&(id, CSide::Client)].clone();
        let bits = flags_size(labels.len()).unwrap_or(8) * 8;
        let stem = name.strip_suffix("_t").unwrap_or(&name).to_uppercase();
        let mut text = format!("{docs}typedef uint{bits}_t {name};\n");
        for (number, label) in labels.iter().enumerate() {
            let constant = self.names.take(format!("{stem}_{}", snake(&label.name).to_uppercase()));
            let _ = writeln!(text, "#define {constant} ((uint{bits}_t)(UINT64_C(1) << {number}))");
        }
        text.push('\n');
        self.declaration_of(self.model.def(id).interface, &name, &text);
    }
}
