//! Markers of a page: comments between which tables are written.

use std::fmt;

/// Beginning and end of a marker, between which are a suite and a table.
const BEGIN: [&str; 2] = ["<!-- upcall-bench", "-->"];
/// The line after a table.
const END: &str = "<!-- end -->";

/// Why a marker is not understood.
#[derive(Debug, PartialEq, Eq)]
pub enum MarkerError {
    /// The marker has other words than a suite and a table.
    Words(String),
    /// There is no such suite.
    Suite {
        /// The name in the marker.
        found: String,
        /// The names of all suites.
        known: Vec<&'static str>,
    },
    /// The suite has no such table.
    Table {
        /// The suite.
        suite: &'static str,
        /// The name in the marker.
        found: String,
        /// The names of the suite's tables.
        known: Vec<&'static str>,
    },
    /// Nothing ends the marker's text.
    Unclosed(String),
    /// An end without a marker.
    Unopened,
    /// Any of these, with the number of the line.
    Line(usize, Box<MarkerError>),
}

impl fmt::Display for MarkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MarkerError::Words(found) => write!(
                f,
                "the marker `{found}` does not have a suite and a table; write `{} SUITE TABLE {}`",
                BEGIN[0], BEGIN[1]
            ),
            MarkerError::Suite { found, known } => {
                write!(f, "no suite `{found}`; there are {}", known.join(", "))
            }
            MarkerError::Table { suite, found, known } => {
                write!(f, "no table `{found}` of the suite {suite}; there are {}", known.join(", "))
            }
            MarkerError::Unclosed(found) => {
                write!(f, "no `{END}` follows the marker `{found}`; add it below the table")
            }
            MarkerError::Unopened => {
                write!(f, "`{END}` follows no marker; remove it, or add a marker above")
            }
            MarkerError::Line(line, error) => write!(f, "{line}: {error}"),
        }
    }
}

/// A page with its tables written again.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// The text.
    pub text: String,
    /// Suite and table of each replaced text that differed.
    pub changed: Vec<(String, String)>,
}

/// Replaces the text between markers by what `table` returns for a suite and a table.
///
/// # Errors
/// [`MarkerError`], with the number of the line.
pub fn page(
    text: &str,
    table: impl Fn(&str, &str) -> Result<String, MarkerError>,
) -> Result<Page, MarkerError> {
    let mut page = Page { text: String::new(), changed: Vec::new() };
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let here = |error| MarkerError::Line(at + 1, Box::new(error));
        page.text += line;
        page.text += "\n";
        if line == END {
            return Err(here(MarkerError::Unopened));
        }
        let Some((suite, name)) = marker(line).map_err(here)? else { continue };
        let made = format!("\n{}\n", table(suite, name).map_err(here)?);
        let mut held = String::new();
        loop {
            match lines.next() {
                Some((_, END)) => break,
                Some((_, line)) if !line.starts_with(BEGIN[0]) => held = held + line + "\n",
                _ => return Err(here(MarkerError::Unclosed(line.to_owned()))),
            }
        }
        if held != made {
            page.changed.push((suite.to_owned(), name.to_owned()));
        }
        page.text += &made;
        page.text += END;
        page.text += "\n";
    }
    Ok(page)
}

/// Returns suite and table if the line is a marker.
///
/// # Errors
/// The marker has other words.
fn marker(line: &str) -> Result<Option<(&str, &str)>, MarkerError> {
    let Some(rest) = line.strip_prefix(BEGIN[0]) else { return Ok(None) };
    let words: Option<Vec<&str>> =
        rest.strip_suffix(BEGIN[1]).map(|words| words.split_whitespace().collect());
    match words.as_deref() {
        Some(&[suite, table]) => Ok(Some((suite, table))),
        _ => Err(MarkerError::Words(line.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(suite: &str, table: &str) -> Result<String, MarkerError> {
        match suite {
            "rpc" => Ok(format!("{table}\n")),
            _ => Err(MarkerError::Suite { found: suite.to_owned(), known: vec!["rpc"] }),
        }
    }

    #[test]
    fn text_between_markers_is_replaced() {
        let before = "# A\n<!-- upcall-bench rpc calls -->\nold\nolder\n<!-- end -->\nb\n\
            <!-- upcall-bench rpc idle -->\n\nidle\n\n<!-- end -->\n";
        let after = "# A\n<!-- upcall-bench rpc calls -->\n\ncalls\n\n<!-- end -->\nb\n\
            <!-- upcall-bench rpc idle -->\n\nidle\n\n<!-- end -->\n";
        let changed = vec![("rpc".to_owned(), "calls".to_owned())];
        assert_eq!(page(before, table), Ok(Page { text: after.to_owned(), changed }));
        assert_eq!(page(after, table).unwrap().changed, []);
        // A page without markers stays as it is.
        assert_eq!(page("<!-- a comment -->\n", table).unwrap().text, "<!-- a comment -->\n");
    }

    #[test]
    fn markers_that_are_wrong_are_told_with_their_line() {
        let told = |text: &str| page(text, table).unwrap_err().to_string();
        let marker = "<!-- upcall-bench rpc calls -->";
        let unclosed =
            format!("3: no `<!-- end -->` follows the marker `{marker}`; add it below the table");
        assert_eq!(told(&format!("\n\n{marker}\nold\n")), unclosed);
        assert_eq!(told(&format!("\n\n{marker}\n{marker}\n<!-- end -->\n")), unclosed);
        assert!(told("<!-- end -->\n").starts_with("1: `<!-- end -->` follows no marker"));
        let words = told("<!-- upcall-bench rpc -->\n<!-- end -->\n");
        assert!(words.contains("write `<!-- upcall-bench SUITE TABLE -->`"), "{words}");
        let suite = told("<!-- upcall-bench corba calls -->\n<!-- end -->\n");
        assert_eq!(suite, "1: no suite `corba`; there are rpc");
    }
}
