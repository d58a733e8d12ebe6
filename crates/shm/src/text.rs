//! Short texts in shared words.

use upcall_os::atomic::{AtomicU64, Ordering};

/// Writes as many whole characters of a text as fit. The rest is 0.
pub(crate) fn write(words: &[AtomicU64], text: &str) {
    let mut end = text.len().min(words.len() * 8);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut chunks = text.as_bytes()[..end].chunks(8);
    for word in words {
        let mut bytes = [0; 8];
        let chunk = chunks.next().unwrap_or_default();
        bytes[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
}

/// Reads a text that a peer wrote, for display: it contains no control characters.
pub(crate) fn read(words: impl IntoIterator<Item = u64>) -> String {
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end])
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_where_characters_end_and_shown_without_control() {
        let words: [AtomicU64; 2] = Default::default();
        for (text, shown) in
            [("grüße", "grüße"), ("0123456789abcdeü", "0123456789abcde"), ("a\x1b[2J", "a?[2J")]
        {
            write(&words, text);
            assert_eq!(read(words.each_ref().map(|word| word.load(Ordering::Relaxed))), shown);
        }
    }
}
