//! WIT's names as C's.
//!
//! Every name with file scope begins with its interface's name, so keywords do not matter there.
//! Types end in `_t`. Where two names would still become the same, the later one in the order of
//! the model gets a trailing underscore, so that the same WIT always gives the same names.

pub(super) use crate::names::snake;
use std::collections::BTreeSet;

/// Words that cannot be members or parameters in C or in C++, and names that compilers define as
/// macros.
const TAKEN: &[&str] = &[
    "alignas",
    "alignof",
    "and",
    "and_eq",
    "asm",
    "assert",
    "auto",
    "bitand",
    "bitor",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "char16_t",
    "char32_t",
    "char8_t",
    "class",
    "co_await",
    "co_return",
    "co_yield",
    "compl",
    "concept",
    "const",
    "const_cast",
    "consteval",
    "constexpr",
    "constinit",
    "continue",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "dynamic_cast",
    "else",
    "enum",
    "errno",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "i386",
    "if",
    "inline",
    "int",
    "linux",
    "long",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "not",
    "not_eq",
    "nullptr",
    "operator",
    "or",
    "or_eq",
    "private",
    "protected",
    "public",
    "register",
    "reinterpret_cast",
    "requires",
    "restrict",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "static_cast",
    "stderr",
    "stdin",
    "stdout",
    "struct",
    "switch",
    "template",
    "this",
    "thread_local",
    "throw",
    "true",
    "try",
    "typedef",
    "typeid",
    "typename",
    "typeof",
    "union",
    "unix",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "wchar_t",
    "while",
    "xor",
    "xor_eq",
];

/// The names of the generated functions' own parameters.
const OWN: &[&str] = &["call", "client", "context", "error", "result", "self"];

/// Names of the C library that an interface's names could be equal to.
const LIBRARY: &[&str] = &[
    "aligned_alloc",
    "at_quick_exit",
    "clock_getres",
    "clock_gettime",
    "clock_nanosleep",
    "clock_settime",
    "quick_exit",
    "sched_yield",
    "timer_create",
    "timer_delete",
    "timer_gettime",
    "timer_settime",
];

/// Converts `read-all` to `read_all`, as the name of a member.
pub(super) fn member(name: &str) -> String {
    let mut name = snake(name);
    if TAKEN.contains(&name.as_str()) {
        name.push('_');
    }
    name
}

/// Converts `read-all` to `read_all`, as the name of a parameter.
pub(super) fn parameter(name: &str) -> String {
    let mut name = member(name);
    if OWN.contains(&name.as_str()) {
        name.push('_');
    }
    name
}

/// The names that are taken in one scope.
#[derive(Default)]
pub(super) struct NameScope(BTreeSet<String>);

impl NameScope {
    /// Takes `wanted`, with trailing underscores added if the name is taken.
    pub(super) fn take(&mut self, wanted: String) -> String {
        let mut name = wanted;
        while LIBRARY.contains(&name.as_str()) || !self.0.insert(name.clone()) {
            name.push('_');
        }
        name
    }
}

/// Writes a text as a C string literal, one source line per line of text.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            // Two question marks begin a trigraph.
            '?' => out.push_str("\\?"),
            '\n' => out.push_str("\\n\"\n    \""),
            c if c.is_ascii_control() => out.push_str(&format!("\\{:03o}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Writes a WIT comment as a C comment.
pub(super) fn comment(docs: &str, indent: &str) -> String {
    let text = docs.replace("*/", "* /").replace("/*", "/ *");
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    match lines.as_slice() {
        [one] => format!("{indent}/* {} */\n", one.trim_start()),
        lines => {
            let body: String = lines
                .iter()
                .map(|line| format!("{indent} *{}{line}\n", if line.is_empty() { "" } else { " " }))
                .collect();
            format!("{indent}/*\n{body}{indent} */\n")
        }
    }
}
