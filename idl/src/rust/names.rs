//! WIT's kebab-case names as Rust's, with keywords escaped.

/// Words that cannot be identifiers as they are, in the edition of 2024 and in those to come.
const KEYWORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn", "else", "enum", "extern",
    "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override",
    "priv", "pub", "ref", "return", "static", "struct", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where", "while", "yield",
];

/// Words that not even `r#` makes an identifier. They get an underscore behind them, which no WIT name can have.
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

/// The same, as a part of a longer name: nothing is escaped.
pub(crate) fn snake_part(name: &str) -> String {
    name.replace('-', "_").to_lowercase()
}

/// `not-found` as `NotFound`.
pub(super) fn camel(name: &str) -> String {
    escape(camel_part(name))
}

/// The same, as a part of a longer name: nothing is escaped.
pub(crate) fn camel_part(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for word in name.split('-') {
        let mut letters = word.chars();
        let Some(first) = letters.next() else { continue };
        // `a-1` and `a1` must not become one name, and two digits must not run together.
        if first.is_ascii_digit() && out.ends_with(|c: char| c.is_ascii_digit()) {
            out.push('_');
        }
        out.extend(first.to_uppercase());
        out.push_str(&letters.as_str().to_lowercase());
    }
    out
}

/// `read-only` as `READ_ONLY`.
pub(super) fn upper(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}
