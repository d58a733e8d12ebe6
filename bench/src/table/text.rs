//! Tables as aligned text, with colours on a terminal.

use std::io::{self, Write};

use super::{Kind, Table};
use crate::report::Report;

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// Prints the tables, and the notes and failures of the report from which they were made.
///
/// # Errors
/// `out` cannot be written.
pub fn print(
    tables: &[Table],
    report: &Report,
    out: &mut dyn Write,
    colour: bool,
) -> io::Result<()> {
    let paint = Paint { colour };
    for table in tables {
        one(table, out, &paint)?;
    }
    if !tables.is_empty() {
        writeln!(out)?;
    }
    for note in &report.notes {
        writeln!(out, "note: {note}")?;
    }
    for failure in &report.failures {
        writeln!(out, "{}", paint.text(Some(RED), &format!("not measured: {failure}")))?;
    }
    Ok(())
}

/// Text attributes, if colours are enabled.
struct Paint {
    colour: bool,
}

impl Paint {
    fn text(&self, style: Option<&str>, text: &str) -> String {
        match style.filter(|_| self.colour) {
            Some(style) => format!("{style}{text}{PLAIN}"),
            None => text.to_owned(),
        }
    }
}

fn style(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Ours | Kind::Met => Some(GREEN),
        Kind::Limit | Kind::Derived | Kind::Paper => Some(DIM),
        Kind::Missed => Some(RED),
        Kind::Plain => None,
    }
}

fn one(table: &Table, out: &mut dyn Write, paint: &Paint) -> io::Result<()> {
    writeln!(out, "\n{}", paint.text(Some(BOLD), &table.title))?;
    let heads: Vec<&str> = table.heads.iter().map(|head| head.text.as_str()).collect();
    let rows = table.rows.iter().map(|row| row.cells.iter().map(String::as_str).collect());
    let lines: Vec<Vec<&str>> = [heads].into_iter().chain(rows).collect();
    let widths: Vec<usize> = (0..table.heads.len())
        .map(|at| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or_default())
        .collect();
    // Two spaces separate columns.
    let cell = |at: usize, text: &str| match at {
        0 => format!("{text:<0$}", widths[at]),
        at if at < table.names => format!("  {text:<0$}", widths[at]),
        at => format!("  {text:>0$}", widths[at]),
    };
    for (at, line) in lines.iter().enumerate() {
        let cells = line.iter().enumerate().map(|(at, text)| cell(at, text));
        let of_row = match at.checked_sub(1) {
            Some(row) => style(table.rows[row].kind),
            None => Some(DIM),
        };
        let text = match of_row {
            Some(_) => paint.text(of_row, cells.collect::<String>().trim_end()),
            None => {
                let kinds = table.heads.iter().map(|head| style(head.kind));
                let cells = cells.zip(kinds).map(|(cell, kind)| paint.text(kind, &cell));
                cells.collect::<String>().trim_end().to_owned()
            }
        };
        if !text.is_empty() {
            writeln!(out, "{text}")?;
        }
    }
    table.notes.iter().try_for_each(|note| writeln!(out, "{}", paint.text(Some(DIM), note)))
}

/// Returns what [`print`] prints.
#[cfg(test)]
pub(crate) fn printed(tables: &[Table], report: &Report, colour: bool) -> String {
    let mut out = Vec::new();
    print(tables, report, &mut out, colour).unwrap();
    String::from_utf8(out).unwrap()
}

/// Returns the words that follow `begin` in the first row of a printed table that begins with it.
#[cfg(test)]
#[track_caller]
pub(crate) fn words(text: &str, begin: &str) -> Vec<String> {
    let rest = text.lines().find_map(|line| line.strip_prefix(begin));
    let rest = rest.unwrap_or_else(|| panic!("no row begins with {begin}: {text}"));
    rest.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_on_the_left_and_figures_on_the_right() {
        let mut table = Table::new("calls", "ns").names(["call", "system"]).figures(["p50"]);
        table.row(Kind::Ours, ["null", "upcall"], ["1 234".to_owned()]);
        table.row(Kind::Limit, ["", "limit"], ["µ".to_owned()]);
        table.notes.push("below".to_owned());
        let report = Report {
            notes: vec!["a note".into()],
            failures: vec!["something".into()],
            ..Report::default()
        };
        let text = "\nns\ncall  system    p50\nnull  upcall  1 234\n      limit       µ\nbelow\n\n\
            note: a note\nnot measured: something\n";
        assert_eq!(printed(&[table.clone()], &report, false), text);
        let coloured = printed(&[table], &report, true);
        assert!(coloured.contains("\x1b[32mnull  upcall"), "{coloured}");
        assert!(coloured.contains("\x1b[31mnot measured"), "{coloured}");
    }

    #[test]
    fn a_column_may_be_ours() {
        let kinds = ["upcall", "go"].map(|system| (system, Kind::of(system)));
        let mut table = Table::new("threads", "ns").names([""]).columns(kinds);
        table.row(Kind::Plain, ["fork"], ["7".to_owned(), "70".to_owned()]);
        let coloured = printed(&[table], &Report::default(), true);
        assert!(coloured.contains("\x1b[32m       7\x1b[0m  70"), "{coloured}");
    }
}
