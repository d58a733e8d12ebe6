//! The figures of a suite by its name.

use crate::plot::{self, PlotError};
use std::path::PathBuf;
use std::{env, fs};
use upcall_bench::record::Record;

/// Returns what draws the figures of a suite. A suite without figures draws nothing.
pub fn of(suite: &str) -> plot::Write {
    match suite {
        "threads" => plot::threads::write,
        "urpc" => plot::urpc::write,
        "lrpc" => plot::lrpc::write,
        "messages" => plot::messages::write,
        "homed" => plot::homed::write,
        "pvm" => plot::pvm::write,
        _ => |_, _| Ok(Vec::new()),
    }
}

/// Returns the figures of a suite's records, by the names of their files. Records of other parts of
/// the suite have none.
///
/// # Errors
/// See [`PlotError`].
pub fn drawn(suite: &str, records: &[Record]) -> Result<Vec<(String, String)>, PlotError> {
    let dir = env::temp_dir().join(format!("upcall-bench-figures-{}", std::process::id()));
    let read = |path: PathBuf| match fs::read_to_string(&path) {
        Ok(figure) => {
            Ok((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), figure))
        }
        Err(error) => Err(PlotError::File { path, error }),
    };
    let paths = of(suite)(records, &dir);
    let figures = match paths {
        Err(PlotError::Nothing(_)) => Ok(Vec::new()),
        paths => paths.and_then(|paths| paths.into_iter().map(read).collect()),
    };
    fs::remove_dir_all(&dir).ok();
    figures
}
