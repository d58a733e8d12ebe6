//! What the command prints: styles, sizes, shares, errors, JSON.
//!
//! Names, errors and sources of other programs are printed too. Any user may have chosen them, so
//! they must neither steer the terminal nor hide or move text on it.

use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, PrettyFormatter, Serializer};
use std::io::{self, Write};
use std::process::ExitCode;
use upcall_idl::steers;

pub fn tell(error: &dyn std::error::Error) {
    anstream::eprintln!("{ERROR}upcall:{ERROR:#} {}", plain(&error.to_string()));
}

const ERROR: anstyle::Style = anstyle::AnsiColor::Red.on_default().bold();
pub const STRONG: anstyle::Style = anstyle::Style::new().bold();
pub const FAINT: anstyle::Style = anstyle::Style::new().dimmed();

pub type CommandResult = Result<ExitCode, Box<dyn std::error::Error>>;

/// `48 B`, `1.5 KiB`, `2 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = [" KiB", " MiB", " GiB", " TiB", " PiB", " EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let text = format!("{value:.1}");
    format!("{}{}", text.strip_suffix(".0").unwrap_or(&text), UNITS[unit])
}

/// `87%`, `<1%`; nothing is `-`.
pub fn share(part: u64, all: u64) -> String {
    match part as f64 / all.max(1) as f64 * 100.0 {
        0.0 => "-".into(),
        share if share < 1.0 => "<1%".into(),
        // Not all, if it is not.
        share => format!("{:.0}%", if part == all { share } else { share.min(99.0) }),
    }
}

/// Without what terminals take for commands, and without what is not seen or changes the order of
/// what is. Lines stay.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if steers(c) && c != '\n' { '?' } else { c }).collect()
}

/// The same on one line.
pub fn line(text: &str) -> String {
    plain(text).replace('\n', " ")
}

/// A cell has so many characters at most: a server chooses its texts, and the longest would make
/// all rows as wide.
pub const WIDEST: usize = 80;

/// The same in a column.
pub fn cell(text: &str) -> String {
    let line = line(text);
    match line.char_indices().nth(WIDEST) {
        Some(_) => line.chars().take(WIDEST - 1).chain(['…']).collect(),
        None => line,
    }
}

/// Writes a value as JSON over several lines, in which the same characters are escaped: who reads
/// it gets them as they are.
pub fn write_json(out: impl Write, value: &impl Serialize) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, Escaping(PrettyFormatter::new())))
}

/// The same as a text.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    let mut out = Vec::new();
    write_json(&mut out, value)?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// `serde_json` escapes only what JSON must: not DEL, and nothing outside ASCII.
struct Escaping(PrettyFormatter<'static>);

impl Formatter for Escaping {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(steers) {
            let (before, found) = rest.split_at(at);
            out.write_all(before.as_bytes())?;
            let mut found = found.chars();
            for half in found.next().unwrap_or_default().encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{half:04x}")?;
            }
            rest = found.as_str();
        }
        out.write_all(rest.as_bytes())
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        self.0.write_char_escape(out, escape)
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Escapes of ASCII and of C1, DEL, a turn of direction, a space of no width, a letter of no
    /// sight outside the first plane.
    pub const STEERING: &str = "a\u{1b}[2Jb\u{9b}31mc\u{7f}d\u{202e}e\u{200b}f\u{e0041}g\rh";

    pub fn is_clean(text: &str) -> bool {
        !text.chars().any(|c| steers(c) && c != '\n')
    }

    #[test]
    fn sizes_are_told_in_the_largest_unit() {
        let all = [0, 48, 1024, 1536, 1 << 20, (1 << 30) + 1, u64::MAX].map(size);
        assert_eq!(all, ["0 B", "48 B", "1 KiB", "1.5 KiB", "1 MiB", "1 GiB", "16 EiB"]);
    }

    #[test]
    fn shares_of_calls_are_told_in_whole_parts_of_a_hundred() {
        let all = [(0, 0), (0, 9), (1, 1000), (1, 100), (999, 1000), (7, 7)]
            .map(|(part, all)| share(part, all));
        assert_eq!(all, ["-", "-", "<1%", "1%", "99%", "100%"]);
    }

    #[test]
    fn what_steers_a_terminal_is_replaced() {
        assert_eq!(plain(STEERING), "a?[2Jb?31mc?d?e?f?g?h");
        assert_eq!((plain("a\nb é漢🎈").as_str(), line("a\nb").as_str()), ("a\nb é漢🎈", "a b"));
    }

    #[test]
    fn json_has_it_escaped_and_gives_it_back() {
        let value =
            BTreeMap::from([(STEERING, vec![STEERING, "é\"\\\n漢🎈", ""]), ("none", vec![])]);
        let text = json(&value).unwrap();
        assert!(
            is_clean(&text) && text.contains("\\u007fd\\u202ee\\u200bf\\udb40\\udc41g\\rh"),
            "{text}"
        );
        let back: BTreeMap<String, Vec<String>> = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_value(back).unwrap(), serde_json::to_value(&value).unwrap());
        // Otherwise it is laid out as ever.
        let clean = BTreeMap::from([("a", vec![1, 2]), ("b", vec![])]);
        assert_eq!(json(&clean).unwrap(), serde_json::to_string_pretty(&clean).unwrap());
    }
}
