//! Texts of bounded length, and words of a shell.

/// Returns the longest beginning of `text` that has at most `most` bytes and whole characters.
///
/// `str::floor_char_boundary` does the same, and needs Rust 1.91.
///
/// ```
/// assert_eq!(upcall_os::text::cut("état", 1), "");
/// assert_eq!(upcall_os::text::cut("état", 2), "é");
/// assert_eq!(upcall_os::text::cut("état", 9), "état");
/// ```
pub fn cut(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Returns the text as one word of a shell.
///
/// ```
/// assert_eq!(upcall_os::text::shell_word("a-1"), "a-1");
/// assert_eq!(upcall_os::text::shell_word("it's"), "'it'\\''s'");
/// ```
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:@%+=,-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.into();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}
