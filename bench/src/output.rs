//! Where what a suite has found goes: a table on standard output, and records in a file, or in the
//! table's place.

use std::env;
use std::io::{self, IsTerminal, StdoutLock};
use std::path::{Path, PathBuf};

use crate::error::RunError;
use crate::record::{self, Record};

/// Whether the records have standard output to themselves.
fn is_stdout(json: Option<&Path>) -> bool {
    json == Some(Path::new("-"))
}

/// Shows the table that `print` makes, in colour or not, if there is to be one.
///
/// # Errors
/// Standard output cannot be written to.
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

/// Says on standard error what the table would, where there is none: records say nothing of what is
/// not there.
pub fn asides(json: Option<&Path>, notes: &[String], failures: &[String]) {
    if is_stdout(json) {
        notes.iter().for_each(|note| eprintln!("note: {note}"));
        failures.iter().for_each(|failure| eprintln!("not measured: {failure}"));
    }
}

/// Writes the records, if they are wanted.
///
/// # Errors
/// The file cannot be written.
pub fn records(json: Option<&Path>, records: &[Record]) -> Result<(), RunError> {
    let Some(path) = json else { return Ok(()) };
    record::write(records, path).map_err(|error| RunError::File { path: path.to_owned(), error })
}
