//! Texts of bounded length.

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
