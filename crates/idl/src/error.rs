//! Errors on the way from a `.wit` file to its stubs.
//!
//! Every error carries the place (file, line, column) where one exists, what was found there, and
//! what to do about it. `Debug` prints the same text as `Display`, so that `unwrap` in a build
//! script stays readable.

use std::fmt;
use std::path::{Path, PathBuf};

/// A place in a `.wit` or `.toml` file. Lines and columns count from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The file, as it was named to the parser.
    pub file: String,
    /// The line, from 1; 0 if the parser gave no place.
    pub line: u32,
    /// The column, in characters, from 1.
    pub column: u32,
}

impl Location {
    /// The place of byte `offset` in `text`, which is the content of `file`.
    pub(crate) fn of_offset(file: &str, text: &str, offset: usize) -> Self {
        let mut end = offset.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &text[..end];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            file: file.to_owned(),
            line: count(before.matches('\n').count() + 1),
            column: count(before[line_start..].chars().count() + 1),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return f.write_str(&self.file);
        }
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Why an interface definition was not compiled.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be read or written.
    File {
        /// `read`, `write`, …
        tried: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error message.
        found: String,
        /// What to do.
        advice: &'static str,
    },
    /// The text is not WIT, or names something that does not exist.
    Wit {
        /// Where.
        at: Location,
        /// The parser's message, with the line when it has one.
        message: String,
    },
    /// The text is WIT, but not in the subset that Upcall compiles.
    Unsupported {
        /// Where.
        at: Location,
        /// The construct, in WIT's words.
        construct: String,
        /// What to write instead, or why it is not supported.
        instead: String,
    },
    /// The TOML file with the limits is wrong.
    Limits {
        /// Where.
        at: Location,
        /// What was found.
        found: String,
        /// What to write.
        advice: String,
    },
}

impl Error {
    pub(crate) fn file(
        tried: &'static str,
        path: &Path,
        error: &std::io::Error,
        advice: &'static str,
    ) -> Self {
        Self::File { tried, path: path.to_owned(), found: error.to_string(), advice }
    }

    pub(crate) fn unsupported(
        at: &Location,
        construct: impl Into<String>,
        instead: impl Into<String>,
    ) -> Self {
        Self::Unsupported { at: at.clone(), construct: construct.into(), instead: instead.into() }
    }

    /// The place that the error is about, if it has one.
    #[must_use]
    pub fn location(&self) -> Option<&Location> {
        match self {
            Self::File { .. } => None,
            Self::Wit { at, .. } | Self::Unsupported { at, .. } | Self::Limits { at, .. } => {
                Some(at)
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { tried, path, found, advice } => {
                write!(f, "cannot {tried} {}: {found}; {advice}", path.display())
            }
            Self::Wit { at, message } => write!(f, "{at}: {message}"),
            Self::Unsupported { at, construct, instead } => {
                write!(f, "{at}: {construct} is not supported: {instead}")
            }
            Self::Limits { at, found, advice } => write!(f, "{at}: {found}; {advice}"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}
