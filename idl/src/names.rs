//! WIT's kebab-case names in the cases of other languages. Which of them are a language's words is its generator's affair.

/// `read-all` as `read_all`.
pub(crate) fn snake(name: &str) -> String {
    name.replace('-', "_").to_lowercase()
}

/// `not-found` as `NotFound`.
pub(crate) fn camel(name: &str) -> String {
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
pub(crate) fn upper(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}
