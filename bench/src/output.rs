//! Output of a suite's findings: a table on standard output, and records in a file or on standard
//! output instead of the table.

use std::env;
use std::io::{self, IsTerminal, StdoutLock};
use std::path::{Path, PathBuf};

use crate::error::RunError;
use crate::record::{self, Record};

/// Returns `true` if the records use standard output, so that the table is omitted.
fn is_stdout(json: Option<&Path>) -> bool {
    json == Some(Path::new("-"))
}

/// Writes the table that `print` makes, with colour on a terminal, unless the records use standard
/// output.
///
/// # Errors
/// Standard output cannot be written.
pub fn table(
    json: Option<&Path>,
    print: impl FnOnce(&mut StdoutLock<'_>, bool) -> io::Result<()>,
) -> Result<(), RunError> {
    if is_stdout(json) {
        return Ok(());
    }
    let out = io::stdout();
    let colour = out.is_terminal() && env::var_os("NO_COLOR").is_none();
    print(&mut out.lock(), colour)
        .map_err(|error| RunError::File { path: PathBuf::from("standard output"), error })
}

/// Writes notes and failures to standard error if there is no table, because the records do not
/// contain them.
pub fn asides(json: Option<&Path>, notes: &[String], failures: &[String]) {
    if is_stdout(json) {
        notes.iter().for_each(|note| eprintln!("note: {note}"));
        failures.iter().for_each(|failure| eprintln!("not measured: {failure}"));
    }
}

/// Writes the records, if they are requested.
///
/// # Errors
/// The file cannot be written.
pub fn records(json: Option<&Path>, records: &[Record]) -> Result<(), RunError> {
    let Some(path) = json else { return Ok(()) };
    record::write(records, path).map_err(|error| RunError::File { path: path.to_owned(), error })
}
