//! What an error says of a name that was not found: see [`crate::nearby`].

use std::fmt;
use std::path::PathBuf;
use upcall_os::text::shell_word;

/// Where a name that was not found may be instead.
///
/// As a text it continues the sentence that says what was not found: `. Did you mean "math"?`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameHint {
    /// Nothing is known, or nothing was looked for.
    None,
    /// The folder of names does not exist.
    NoFolder,
    /// The folder has a name that is similar.
    Similar(String),
    /// Another folder, in which no other user can replace files, has the name.
    Elsewhere(PathBuf),
}

impl NameHint {
    /// Returns `true` if the hint says what to type instead.
    pub fn is_advice(&self) -> bool {
        matches!(self, Self::Similar(_) | Self::Elsewhere(_))
    }
}

impl fmt::Display for NameHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::NoFolder => f.write_str(", which does not exist"),
            Self::Similar(name) => write!(f, ". Did you mean {name:?}?"),
            Self::Elsewhere(folder) => write!(
                f,
                ". It is in another folder of names: set UPCALL_DIR={}",
                shell_word(&folder.display().to_string())
            ),
        }
    }
}
