//! Advice on errors of the parser, whose own words say what it found, but not what to write.

use wit_parser::{ParseError, ParseErrorKind};

/// The longest word of a definition that an error text repeats, in bytes.
const MAX_WORD: usize = 64;

/// Names of types in other languages, and the types of WIT that take their places.
const TYPES: &[(&str, &str)] = &[
    ("i8", "s8"),
    ("i16", "s16"),
    ("i32", "s32"),
    ("i64", "s64"),
    ("int", "s32"),
    ("float", "f32"),
    ("double", "f64"),
    ("str", "string"),
    ("boolean", "bool"),
    ("bytes", "list<u8>"),
    ("vec", "list"),
];

/// The text of `error` with advice, where there is some. `text` is the definition, and the error is
/// at byte `at` of it.
pub(super) fn advise(error: &ParseError, text: &str, at: usize) -> String {
    let message = error.to_string();
    let (Some(before), Some(after)) = (text.get(..at), text.get(at..)) else { return message };
    let advised = match error.kind() {
        ParseErrorKind::ItemNotFound { name, .. } => known_type(&message, name),
        _ if message.contains("identifier") && !message.contains("found") => bad_name(after),
        _ if message.starts_with("expected '{'") => open_package(&message, before),
        _ => keyword(&message, after),
    };
    advised.unwrap_or(message)
}

/// A name of a type in another language.
fn known_type(message: &str, name: &str) -> Option<String> {
    let (_, wit) = TYPES.iter().find(|(other, _)| *other == name)?;
    Some(format!("{message}; write `{wit}`"))
}

/// A name that the parser refuses.
fn bad_name(after: &str) -> Option<String> {
    let after = after.strip_prefix('%').unwrap_or(after);
    let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let word = after.split(|c| !name(c)).next()?;
    if word.is_empty() || word.len() > MAX_WORD {
        return None;
    }
    let rule = format!(
        "`{word}` is not a name in WIT: names are lower case, with hyphens between their words"
    );
    Some(match kebab(word) {
        Some(name) if name == "string" => format!("{rule}; the text type is `string`"),
        Some(name) => format!("{rule}; write `{name}`"),
        None => format!("{rule}, and begin with a letter"),
    })
}

/// Converts `greet_error`, `greetError` and `GreetError` to `greet-error`. `None` if that is not a
/// name in WIT either.
fn kebab(word: &str) -> Option<String> {
    let mut name = String::with_capacity(word.len() + 8);
    let mut letters = word.chars().peekable();
    let mut before = '-';
    while let Some(c) = letters.next() {
        let begins = c.is_ascii_uppercase()
            && (!before.is_ascii_uppercase()
                || letters.peek().is_some_and(char::is_ascii_lowercase));
        if (begins || matches!(c, '-' | '_')) && !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
        if c.is_ascii_alphanumeric() {
            name.push(c.to_ascii_lowercase());
        }
        before = c;
    }
    let name = name.trim_end_matches('-');
    name.starts_with(|c: char| c.is_ascii_lowercase()).then(|| name.to_owned())
}

/// A package without the semicolon at its end, which the parser takes for one with a body.
fn open_package(message: &str, before: &str) -> Option<String> {
    let (_, found) = message.split_once("found ")?;
    // Comments may hold any of the characters that end a statement.
    let lines = before.lines().map(|line| line.split("//").next().unwrap_or(line));
    let code = lines.collect::<Vec<_>>().join("\n");
    let package = code.rsplit([';', '{', '}']).next()?.trim();
    let words = package.strip_prefix("package")?;
    if !words.starts_with(char::is_whitespace) || package.len() > MAX_WORD || package.contains('\n')
    {
        return None;
    }
    Some(format!("expected `;` or `{{` after `{package}`, found {found}"))
}

/// A keyword where a name has to be.
fn keyword(message: &str, after: &str) -> Option<String> {
    let (_, word) = message.rsplit_once("found keyword `")?;
    let word = word.strip_suffix('`')?;
    let rest = after.strip_prefix(word)?.trim_start();
    if !message.starts_with("expected an identifier") && !rest.starts_with(':') {
        return None;
    }
    Some(format!("{message}; to use this word as a name, write `%{word}`"))
}

#[cfg(test)]
mod tests {
    use super::kebab;

    #[test]
    fn names_of_other_languages_become_names_of_wit() {
        for (word, name) in [
            ("greet_error", "greet-error"),
            ("userName", "user-name"),
            ("Greeter", "greeter"),
            ("HTTPServer", "http-server"),
            ("SAY_Hello", "say-hello"),
            ("__private__x", "private-x"),
            ("user2Name", "user2-name"),
            ("ends-", "ends"),
        ] {
            assert_eq!(kebab(word).as_deref(), Some(name), "{word}");
        }
        for word in ["_", "-", "2nd", "_2"] {
            assert_eq!(kebab(word), None, "{word}");
        }
    }
}
