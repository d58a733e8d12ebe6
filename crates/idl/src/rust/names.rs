//! WIT's kebab-case names as Rust's, with keywords escaped.

pub(super) use crate::names::upper;
/// Parts of longer names, which need no escaping.
pub(crate) use crate::names::{camel as camel_part, snake as snake_part};

/// Words that are not plain identifiers in edition 2024 or are reserved for later ones.
const KEYWORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let",
    "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return",
    "static", "struct", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where", "while", "yield",
];

/// Words that cannot be identifiers even with `r#`. They get a trailing underscore, which no WIT
/// name can have.
const NEVER: &[&str] = &["self", "super", "crate", "Self"];

fn escape(name: String) -> String {
    if KEYWORDS.contains(&name.as_str()) {
        format!("r#{name}")
    } else if NEVER.contains(&name.as_str()) {
        format!("{name}_")
    } else {
        name
    }
}

/// Converts `read-all` to `read_all`, and `type` to `r#type`.
pub(crate) fn snake(name: &str) -> String {
    escape(snake_part(name))
}

/// Converts `not-found` to `NotFound`.
pub(super) fn camel(name: &str) -> String {
    escape(camel_part(name))
}
