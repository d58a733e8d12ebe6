//! WIT's names as Python's.
//!
//! A name that could clash in Python gets a trailing underscore, which no WIT name has. The engine
//! (`bindings/python`) names what it makes by the same functions, so none of them depends on the
//! order of a model: a model that is read from printed WIT may have another order.

use crate::model::{Model, ProcedureDefinition, ProcedureKind, TypeId};
/// The result alone may have to be [`escaped`].
pub(super) use crate::names::camel as camel_part;
use crate::names::{snake, upper};
use std::collections::BTreeSet;

const KEYWORDS: &[&str] = &[
    "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del", "elif",
    "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda",
    "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield", "None",
    "True", "False",
];

/// Attributes that every client has.
const CLIENT: &[&str] = &[
    "aio",
    "bind",
    "close",
    "is_open",
    "server_pid",
    "set_pacing",
    "with_cancel",
    "with_deadline",
    "with_hand_off",
    "with_when_full",
    "without_cancel",
];

/// Attributes that every resource has.
const RESOURCE: &[&str] = &["aio", "close"];

/// Escapes a name that is a Python keyword.
pub(super) fn escaped(mut name: String) -> String {
    if KEYWORDS.contains(&name.as_str()) {
        name.push('_');
    }
    name
}

/// The name of a case of an enum, or of a flag: `read-only` as `READ_ONLY`.
#[must_use]
pub fn label(name: &str) -> String {
    upper(name)
}

/// The name of a record's field.
#[must_use]
pub fn field(name: &str) -> String {
    escaped(snake(name))
}

/// The name of a procedure's parameter.
#[must_use]
pub fn parameter(name: &str) -> String {
    let name = escaped(snake(name));
    if name == "self" { "self_".into() } else { name }
}

/// `node_root`, `new_node`: a name composed of a resource's and a function's name yields to a
/// function of the same name.
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

/// The method of a client, or of a client's resource, that calls a procedure of `interface`. For a
/// constructor, it is the method of the asynchronous client.
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

/// The attribute of a server that holds the server of `part`, an interface that `interface`
/// carries.
#[must_use]
pub fn part_attribute(model: &Model, interface: usize, part: usize) -> String {
    let mut name = escaped(snake(&model.interfaces[part].long_name()));
    let own = &model.interfaces[interface];
    let same = |other: &&crate::model::CarriedInterface| {
        snake(&model.interfaces[other.interface].long_name()) == name
    };
    // Two carried interfaces may come from two versions of one package.
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

/// The names that are taken in a module.
#[derive(Default)]
pub(super) struct ModuleNames(BTreeSet<String>);

impl ModuleNames {
    /// Takes `wanted`, with trailing underscores added if the name is taken.
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

/// Writes a text as a Python literal, one source line per line of text. Text from another domain
/// appears in modules only as such literals and as names, so it cannot become code.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::from("\"\"\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push('\n'),
            // Also escapes characters that move or hide text for a human reader.
            c if crate::steers(c) => out.push_str(&format!("\\U{:08x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push_str("\"\"\"");
    out
}

/// Writes a WIT comment as a docstring. Lines after the first are indented.
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
