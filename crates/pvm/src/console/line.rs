//! Splits a line into words.

/// The words of a line up to `#`. Quotes (`"` or `'`) keep blanks and `#` in a word, and `\` keeps
/// the next character.
pub(super) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote) = (None::<String>, None);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match (character, quote) {
            ('\\', _) => word.get_or_insert_default().extend(characters.next()),
            (character, Some(open)) if character == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            ('#', None) => break,
            (character, None) if character.is_whitespace() => words.extend(word.take()),
            (character, _) => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_keep_blanks_and_what_follows_a_hash_is_nothing() {
        assert_eq!(
            words("  echo a  \"b c\" 'd#\"' e\\ f # rest"),
            ["echo", "a", "b c", "d#\"", "e f"]
        );
        assert_eq!(words("put x '' \"open"), ["put", "x", "", "open"]);
        assert!(words(" \t# nothing\n").is_empty());
    }
}
