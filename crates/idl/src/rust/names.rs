//! WIT's kebab-case names as Rust's, with keywords escaped.

pub(super) use crate::names::upper;
/// A part of a longer name: nothing is escaped.
pub(crate) use crate::names::{camel as camel_part, snake as snake_part};

/// Words that cannot be identifiers as they are, in the edition of 2024 and in those to come.
const KEYWORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let",
    "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return",
    "static", "struct", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where", "while", "yield",
];

/// Words that not even `r#` makes an identifier. They get an underscore behind them, which no WIT
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

/// `read-all` as `read_all`, `type` as `r#type`.
pub(crate) fn snake(name: &str) -> String {
    escape(snake_part(name))
}

/// `not-found` as `NotFound`.
pub(super) fn camel(name: &str) -> String {
    escape(camel_part(name))
}
