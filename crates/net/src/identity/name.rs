//! Labels of hosts.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Maximum length of a host's label, in bytes.
pub const LONGEST_NAME: usize = 64;

/// A label that this user gave to another host, or to this one.
///
/// It has 1 to 64 letters, digits, dots, hyphens and underscores, and begins with a letter or a
/// digit. So it is safe as a file name and on a command line. No other host chooses it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName(Arc<str>);

impl HostName {
    /// The label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl FromStr for HostName {
    type Err = BadHostName;

    fn from_str(text: &str) -> Result<Self, BadHostName> {
        let is_part = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let begins = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        if begins && text.len() <= LONGEST_NAME && text.bytes().all(is_part) {
            return Ok(Self(text.into()));
        }
        let text = text.chars().take(LONGEST_NAME + 1).collect();
        Err(BadHostName { text })
    }
}

/// A text that is no label of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadHostName {
    /// The beginning of the text.
    pub text: String,
}

impl fmt::Display for BadHostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no name of a host: give 1 to {LONGEST_NAME} letters, digits, dots, hyphens \
             and underscores, a letter or a digit first",
            self.text
        )
    }
}

impl std::error::Error for BadHostName {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_safe_as_a_file_name_and_on_a_command_line() {
        for good in ["a", "node-7.rack_2", "10.0.0.1", &"x".repeat(64)] {
            assert_eq!(HostName::from_str(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".a", "-a", "_a", "a/b", "a b", "é", "a\n", &"x".repeat(65)] {
            let error = HostName::from_str(bad).unwrap_err();
            assert!(error.to_string().contains("letters, digits"), "{error}");
        }
    }
}
