//! What the command prints: text, errors, JSON; styles, sizes and shares.
//!
//! Names, errors and sources of other programs are printed too. Any user may have chosen them, so
//! they must neither steer the terminal nor hide or move text on it.
//!
//! Colours are for terminals only. `NO_COLOR` turns them off, `CLICOLOR_FORCE` on, and `--color`
//! decides before either.

use crate::exit::{CommandError, Exit};
use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, PrettyFormatter, Serializer};
use std::fmt;
use std::io::{self, Write};
use upcall_idl::steers;
pub use upcall_os::text::shell_word as quoted;

const ERROR: anstyle::Style = anstyle::AnsiColor::Red.on_default().bold();
pub const STRONG: anstyle::Style = anstyle::Style::new().bold();
pub const FAINT: anstyle::Style = anstyle::Style::new().dimmed();

/// Prints an error or a notice on the error stream.
pub fn report(error: impl fmt::Display) {
    // There is no other place to report that the error stream is closed.
    let _ = io::stderr().write_all(error_line(error).as_bytes());
}

/// Prints an error as [`report`] does, but gives up after some seconds without a reader.
pub fn report_in_time(error: impl fmt::Display) {
    upcall_pvm::report(&error_line(error));
}

/// The line of an error, coloured if the error stream is a terminal. Lines that are written at once
/// do not mix with those of other processes.
fn error_line(error: impl fmt::Display) -> String {
    let text = plain(&error.to_string());
    match anstream::AutoStream::choice(&io::stderr()) {
        anstream::ColorChoice::Never => format!("upcall: {text}\n"),
        _ => format!("{ERROR}upcall:{ERROR:#} {text}\n"),
    }
}

/// Prints each error of a command that could do a part of its work; the exit code is the first's.
pub fn report_all<'a>(errors: impl IntoIterator<Item = &'a CommandError>) -> Exit {
    errors.into_iter().fold(Exit::Done, |exit, error| {
        report(error);
        if exit == Exit::Done { error.exit() } else { exit }
    })
}

/// Prints a note that is neither a result nor an error on the error stream.
pub fn note(text: impl fmt::Display) {
    let _ = writeln!(anstream::stderr(), "{FAINT}{}{FAINT:#}", plain(&text.to_string()));
}

/// Writes to the standard output, with colours only on a terminal.
///
/// # Errors
/// The reader has gone, or the kernel takes no more.
pub fn print(text: impl fmt::Display) -> Result<(), CommandError> {
    let mut out = anstream::stdout().lock();
    write!(out, "{text}").and_then(|()| out.flush()).map_err(unwritten)
}

/// Writes a line as [`print`] does.
///
/// # Errors
/// As [`print`].
pub fn println(text: impl fmt::Display) -> Result<(), CommandError> {
    print(format_args!("{text}\n"))
}

/// Writes bytes to the standard output as they are.
///
/// # Errors
/// As [`print`].
pub fn print_raw(bytes: &[u8]) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(unwritten)
}

/// Writes a value to the standard output as JSON over several lines.
///
/// # Errors
/// As [`print`].
pub fn print_json(value: &impl Serialize) -> Result<(), CommandError> {
    println(json(value)?)
}

/// What a failure to write the standard output means for the command.
pub fn unwritten(error: io::Error) -> CommandError {
    match error.kind() {
        io::ErrorKind::BrokenPipe => CommandError::OutputClosed,
        _ => CommandError::failed(format_args!("cannot write the standard output: {error}")),
    }
}

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

/// `1 thread`, `2 threads`, `0 processes`.
pub fn counted(number: usize, of: &str) -> String {
    match (number, of.ends_with('s')) {
        (1, _) => format!("1 {of}"),
        (_, true) => format!("{number} {of}es"),
        (_, false) => format!("{number} {of}s"),
    }
}

/// `87%`, `<1%`; none is `-`.
pub fn share(part: u64, all: u64) -> String {
    match part as f64 / all.max(1) as f64 * 100.0 {
        0.0 => "-".into(),
        share if share < 1.0 => "<1%".into(),
        // `100%` stands for all only.
        share => format!("{:.0}%", if part == all { share } else { share.min(99.0) }),
    }
}

/// The text without characters that terminals take for commands, that are invisible, or that change
/// the order of others. Line ends stay.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if steers(c) && c != '\n' { '?' } else { c }).collect()
}

/// The text on one line, without characters that steer a terminal.
pub fn line(text: &str) -> String {
    plain(text).replace('\n', " ")
}

/// Maximum number of characters in a cell. A server chooses its texts, and the longest one makes
/// all rows as wide.
pub const WIDEST: usize = 80;

/// The text as a cell of a table: one line of at most [`WIDEST`] characters.
pub fn cell(text: &str) -> String {
    let line = line(text);
    match line.char_indices().nth(WIDEST) {
        Some(_) => line.chars().take(WIDEST - 1).chain(['…']).collect(),
        None => line,
    }
}

/// The rows of a table below its heads, in columns that are as wide as their widest cell. `right`
/// has the columns of numbers. The last column is not padded.
pub struct Columns<const N: usize> {
    widths: [usize; N],
    right: [bool; N],
}

impl<const N: usize> Columns<N> {
    pub fn new<'a>(rows: impl IntoIterator<Item = &'a [String; N]>, right: [bool; N]) -> Self {
        let widths = rows.into_iter().fold([0; N], |widths, row| {
            std::array::from_fn(|at| widths[at].max(row[at].chars().count()))
        });
        Self { widths, right }
    }

    pub fn line(&self, row: &[String; N]) -> String {
        let cells = row.iter().zip(self.widths).zip(self.right).map(|((text, width), right)| {
            if right { format!("{text:>width$}") } else { format!("{text:width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    }
}

/// Writes a value as JSON over several lines. Characters that steer a terminal are escaped, so a
/// reader of the JSON gets them unchanged.
pub fn write_json(out: impl Write, value: &impl Serialize) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, Escaping(PrettyFormatter::new())))
}

/// Writes a value as JSON on one line, escaped as by [`write_json`].
pub fn write_json_line(out: impl Write, value: &impl Serialize) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, Escaping(CompactFormatter)))
}

/// The value as JSON over several lines.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    let mut out = Vec::new();
    write_json(&mut out, value)?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// A formatter that also escapes DEL and characters outside ASCII that steer a terminal.
/// `serde_json` alone escapes only what JSON requires.
struct Escaping<F>(F);

impl<F: Formatter> Formatter for Escaping<F> {
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

    /// Escapes of ASCII and of C1, DEL, a change of direction, a space of no width, and an
    /// invisible letter outside the first plane.
    pub const STEERING: &str = "a\u{1b}[2Jb\u{9b}31mc\u{7f}d\u{202e}e\u{200b}f\u{e0041}g\rh";

    pub fn is_clean(text: &str) -> bool {
        !text.chars().any(|c| steers(c) && c != '\n')
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit() {
        let all = [0, 48, 1024, 1536, 1 << 20, (1 << 30) + 1, u64::MAX].map(size);
        assert_eq!(all, ["0 B", "48 B", "1 KiB", "1.5 KiB", "1 MiB", "1 GiB", "16 EiB"]);
    }

    #[test]
    fn shares_of_calls_are_shown_in_whole_percents() {
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
        // The layout is serde_json's.
        let clean = BTreeMap::from([("a", vec![1, 2]), ("b", vec![])]);
        assert_eq!(json(&clean).unwrap(), serde_json::to_string_pretty(&clean).unwrap());
    }

    #[test]
    fn json_of_one_line_is_escaped_too() {
        let mut out = Vec::new();
        write_json_line(&mut out, &BTreeMap::from([(STEERING, [1, 2])])).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(is_clean(&text) && text.lines().count() == 1 && text.ends_with("[1,2]}"), "{text}");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "1", "x"], ["é漢c", "200", ""]].map(|row| row.map(String::from));
        let columns = Columns::new(&rows, [false, true, false]);
        assert_eq!(rows.each_ref().map(|row| columns.line(row)), ["a      1  x", "é漢c  200"]);
    }

    #[test]
    fn a_reader_that_has_gone_ends_the_command_as_the_signal_would() {
        let closed = unwritten(io::ErrorKind::BrokenPipe.into());
        assert_eq!((closed.exit(), closed), (Exit::Program(141), CommandError::OutputClosed));
        let full = unwritten(io::ErrorKind::StorageFull.into());
        assert!(full.exit() == Exit::Failed && full.to_string().contains("standard output"));
    }
}
