//! WIT's kebab-case names in the cases of other languages. Each generator deals with the keywords
//! of its language.

/// Converts `read-all` to `read_all`.
pub(crate) fn snake(name: &str) -> String {
    name.replace('-', "_").to_lowercase()
}

/// Converts `not-found` to `NotFound`.
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

/// Converts `read-only` to `READ_ONLY`.
pub(crate) fn upper(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

/// Returns `true` if a character of untrusted text must not be shown as it is: control characters,
/// and format characters, which have no width or change the direction or the language of the text.
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e007f}'
        )
}
