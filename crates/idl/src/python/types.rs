//! Types.

use super::names::{docstring, field, label};
use super::{PythonGenerator, PythonSide, TypePosition, put, renames};
use crate::model::{Case, Def, Field, Label, Type, TypeBody, TypeId};

const DATACLASS: &str = "@_dataclasses.dataclass(frozen=True, slots=True)";

/// Builtins in annotations that a member of the same name would hide.
const BUILTINS: &[&str] = &["bool", "int", "float", "str", "bytes", "list", "tuple"];

impl PythonGenerator<'_> {
    pub(super) fn types(&mut self) {
        for at in 0..self.model.types.len() {
            let def = &self.model.types[at];
            if renames(self.model, def) {
                continue;
            }
            let id = TypeId(at);
            match &def.shape {
                TypeBody::Record(fields) => {
                    for side in self.sides(def) {
                        self.record(id, def, fields, side);
                    }
                }
                TypeBody::Variant(cases) => {
                    for side in self.sides(def) {
                        self.variant(id, def, cases, side);
                    }
                }
                TypeBody::Enum(labels) => {
                    self.enumeration(id, def, labels, "Enum", |number| number.to_string())
                }
                TypeBody::Flags(labels) => {
                    self.enumeration(id, def, labels, "Flag", |number| format!("1 << {number}"))
                }
                TypeBody::Alias(ty) => self.alias(id, def, ty),
                // Written with the procedures.
                TypeBody::Resource => {}
            }
        }
    }

    pub(super) fn hide(&mut self, names: impl Iterator<Item = String>) {
        self.hidden = names.filter(|name| BUILTINS.contains(&name.as_str())).collect();
    }

    fn record(&mut self, id: TypeId, def: &Def, fields: &[Field], side: PythonSide) {
        let name = self.named[&(id, side)].clone();
        self.hide(fields.iter().map(|one| field(&one.name)));
        put(&mut self.text, 0, format!("\n\n{DATACLASS}\nclass {name}:"));
        put(
            &mut self.text,
            1,
            docstring(def.docs.as_deref().unwrap_or(&format!("`{}`.", def.name)), "    "),
        );
        put(&mut self.text, 0, "");
        for one in fields {
            let line =
                format!("{}: {}", field(&one.name), self.ty(&one.ty, side, TypePosition::Inside));
            put(&mut self.text, 1, line);
            if let Some(docs) = &one.docs {
                put(&mut self.text, 1, docstring(docs, "    "));
            }
        }
        self.hidden.clear();
        self.declare(id, served(side), name.clone());
        self.all.push(name);
    }

    fn variant(&mut self, id: TypeId, def: &Def, cases: &[Case], side: PythonSide) {
        let names = self.cases[&(id, side)].clone();
        for (case, name) in cases.iter().zip(&names) {
            put(&mut self.text, 0, format!("\n\n{DATACLASS}\nclass {name}:"));
            let about = format!("The case `{}` of `{}`.", case.name, def.name);
            put(&mut self.text, 1, docstring(case.docs.as_deref().unwrap_or(&about), "    "));
            if let Some(ty) = &case.ty {
                let line = format!("\n    value: {}", self.ty(ty, side, TypePosition::Inside));
                put(&mut self.text, 0, line);
            }
        }
        let name = self.named[&(id, side)].clone();
        let union = if names.len() == 1 {
            names[0].clone()
        } else {
            format!("_t.Union[{}]", names.join(", "))
        };
        put(&mut self.text, 0, format!("\n\n{name}: _t.TypeAlias = {union}"));
        put(
            &mut self.text,
            0,
            docstring(def.docs.as_deref().unwrap_or(&format!("`{}`.", def.name)), ""),
        );
        self.declare(id, served(side), format!("({},)", names.join(", ")));
        self.all.push(name);
        self.all.extend(names);
    }

    fn enumeration(
        &mut self,
        id: TypeId,
        def: &Def,
        labels: &[Label],
        base: &str,
        number: impl Fn(usize) -> String,
    ) {
        let name = self.named[&(id, PythonSide::Client)].clone();
        put(&mut self.text, 0, format!("\n\nclass {name}(_enum.{base}):"));
        put(
            &mut self.text,
            1,
            docstring(def.docs.as_deref().unwrap_or(&format!("`{}`.", def.name)), "    "),
        );
        put(&mut self.text, 0, "");
        for (at, one) in labels.iter().enumerate() {
            put(&mut self.text, 1, format!("{} = {}", label(&one.name), number(at)));
            if let Some(docs) = &one.docs {
                put(&mut self.text, 1, docstring(docs, "    "));
            }
        }
        self.declare(id, "", name.clone());
        self.all.push(name);
    }

    fn alias(&mut self, id: TypeId, def: &Def, ty: &Type) {
        // A type with handles differs by side, so no one name serves both.
        if self.model.holds(ty).any() {
            return;
        }
        let name = self.named[&(id, PythonSide::Client)].clone();
        let target = self.ty(ty, PythonSide::Client, TypePosition::Inside);
        put(&mut self.text, 0, format!("\n\n{name}: _t.TypeAlias = \"{target}\""));
        put(
            &mut self.text,
            0,
            docstring(def.docs.as_deref().unwrap_or(&format!("`{}`.", def.name)), ""),
        );
        self.all.push(name);
    }
}

pub(super) fn served(side: PythonSide) -> &'static str {
    if side == PythonSide::Server { "@served" } else { "" }
}
