//! WIT's names as Python's.
//!
//! What has a doubtful name in Python gets an underscore behind it, which no WIT name has. The
//! engine (`bindings/python`) names what it makes by the same functions, so none of them depends on
//! the order of a model: a model that is read from printed WIT may have another.

use crate::model::{Model, ProcedureDefinition, ProcedureKind, TypeId};
/// By itself it may have to be [`escaped`].
pub(super) use crate::names::camel as camel_part;
use crate::names::{snake, upper};
use std::collections::BTreeSet;

const KEYWORDS: &[&str] = &[
    "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del", "elif",
    "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda",
    "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield", "None",
    "True", "False",
];

/// What every client has by itself.
const CLIENT: &[&str] = &[
    "aio",
    "bind",
    "close",
    "is_open",
    "server_pid",
    "set_pacing",
    "with_abandon",
    "with_deadline",
    "with_hand_off",
    "with_shortage",
    "without_abandon",
];

/// What every resource has by itself.
const RESOURCE: &[&str] = &["aio", "close"];

/// A name of Python's that is not one of its words.
pub(super) fn escaped(mut name: String) -> String {
    if KEYWORDS.contains(&name.as_str()) {
        name.push('_');
    }
    name
}

/// `read-only` as `READ_ONLY`: a case of an enum, a flag.
#[must_use]
pub fn label(name: &str) -> String {
    upper(name)
}

/// A record's field.
#[must_use]
pub fn field(name: &str) -> String {
    escaped(snake(name))
}

/// A procedure's parameter.
#[must_use]
pub fn parameter(name: &str) -> String {
    let name = escaped(snake(name));
    if name == "self" { "self_".into() } else { name }
}

/// `node_root`, `new_node`: names that are made of a resource's and a function's give way to
/// functions that are called so.
fn composed(model: &Model, interface: usize, name: String) -> String {
    let functions = &model.interfaces[interface].procedures;
    let taken = functions
        .iter()
        .any(|other| other.kind == ProcedureKind::Free && snake(&other.function) == name);
    if taken { format!("{name}_") } else { escaped(name) }
}

fn of_resource(model: &Model, id: TypeId, before: &str, function: &str) -> String {
    let resource = snake(&model.def(id).name);
    if before.is_empty() {
        format!("{resource}_{}", snake(function))
    } else {
        format!("{before}_{resource}")
    }
}

/// The method of a client, or of a client's resource, that calls a procedure of `interface`; a
/// constructor's is that of the asynchronous client.
#[must_use]
pub fn client_method(model: &Model, interface: usize, procedure: &ProcedureDefinition) -> String {
    let reserved =
        if matches!(procedure.kind, ProcedureKind::Method(_)) { RESOURCE } else { CLIENT };
    let name = served_method(model, interface, procedure);
    if reserved.contains(&name.as_str()) { format!("{name}_") } else { name }
}

/// The method of a server, or of a server's object, that runs a procedure of `interface`.
#[must_use]
pub fn served_method(model: &Model, interface: usize, procedure: &ProcedureDefinition) -> String {
    match procedure.kind {
        ProcedureKind::Free | ProcedureKind::Method(_) => escaped(snake(&procedure.function)),
        ProcedureKind::Static(id) => {
            composed(model, interface, of_resource(model, id, "", &procedure.function))
        }
        ProcedureKind::Constructor(id) => {
            composed(model, interface, of_resource(model, id, "new", ""))
        }
    }
}

/// The attribute of a server that has the server of `part`, an interface that `interface` carries.
#[must_use]
pub fn part_attribute(model: &Model, interface: usize, part: usize) -> String {
    let mut name = escaped(snake(&model.interfaces[part].long_name()));
    let own = &model.interfaces[interface];
    let same = |other: &&crate::model::CarriedInterface| {
        snake(&model.interfaces[other.interface].long_name()) == name
    };
    // Two versions of one package.
    if own.parts.iter().filter(same).count() > 1 {
        let version = model.interfaces[part].id.split('@').nth(1).unwrap_or_default();
        name.push('_');
        name.extend(version.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }));
    }
    let methods = own
        .procedures
        .iter()
        .filter(|procedure| !matches!(procedure.kind, ProcedureKind::Method(_)));
    let taken: BTreeSet<String> =
        methods.map(|procedure| served_method(model, interface, procedure)).collect();
    while taken.contains(&name) {
        name.push('_');
    }
    name
}

/// The names of a module.
#[derive(Default)]
pub(super) struct ModuleNames(BTreeSet<String>);

impl ModuleNames {
    /// `wanted`, or the like of it.
    pub(super) fn take(&mut self, wanted: String) -> String {
        let mut name = wanted;
        while !self.0.insert(name.clone()) {
            name.push('_');
        }
        name
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

/// A text as a literal on as many lines as it has. What comes from another domain stands in
/// programs as this and as names only, so nothing in it can be anything but text.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::from("\"\"\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push('\n'),
            // Also what moves or hides text where somebody reads it.
            c if crate::steers(c) => out.push_str(&format!("\\U{:08x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push_str("\"\"\"");
    out
}

/// A comment of WIT as a docstring. Lines behind the first are indented.
pub(super) fn docstring(docs: &str, indent: &str) -> String {
    let lines: Vec<&str> = docs.trim().lines().map(str::trim_end).collect();
    let one = lines.len() == 1;
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        if number > 0 {
            text.push('\n');
            text.push_str(if line.is_empty() { "" } else { indent });
        }
        text.push_str(line);
    }
    if !one {
        text.push('\n');
        text.push_str(indent);
    }
    literal(&text)
}
