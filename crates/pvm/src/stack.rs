//! The size of each task's stack.

use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::str::FromStr;
use upcall_ulp::UlpOptions;
use upcall_ulp::slot::{LEAST_STACK, MOST_STACK, STACK};

/// The variable that names the size for runs whose command does not.
const VARIABLE: &str = "UPVM_STACK";

/// The size of a stack. All tasks of a machine have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackSize(u64);

/// A text that is not the size of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadStackSize {
    text: String,
    /// The variable that has it, if one has.
    variable: Option<&'static str>,
}

impl fmt::Display for BadStackSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(variable) = self.variable {
            write!(f, "{variable}={}: ", self.text)?;
        }
        write!(
            f,
            "a task's stack has from {}K to {}M: give a number with K, M or G, as 64M",
            LEAST_STACK >> 10,
            MOST_STACK >> 20
        )
    }
}

impl std::error::Error for BadStackSize {}

impl FromStr for StackSize {
    type Err = BadStackSize;

    fn from_str(text: &str) -> Result<Self, BadStackSize> {
        let (digits, shift) = match text.strip_suffix(|unit| "KMGkmg".contains(unit)) {
            Some(digits) if text.ends_with(['K', 'k']) => (digits, 10),
            Some(digits) if text.ends_with(['M', 'm']) => (digits, 20),
            Some(digits) => (digits, 30),
            None => (text, 0),
        };
        digits
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(1 << shift))
            .filter(|bytes| (LEAST_STACK..=MOST_STACK).contains(bytes))
            .map(Self)
            .ok_or_else(|| BadStackSize { text: text.into(), variable: None })
    }
}

impl Default for StackSize {
    fn default() -> Self {
        Self(STACK)
    }
}

impl fmt::Display for StackSize {
    /// In bytes, as [`FromStr`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StackSize {
    /// The size for a run that names none: what `UPVM_STACK` says, or else the limit of this
    /// process's own stack (`ulimit -s`).
    ///
    /// # Errors
    /// `UPVM_STACK` is not the size of a stack.
    pub fn of_run() -> Result<Self, BadStackSize> {
        match std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) {
            Some(text) => {
                let text = text.to_string_lossy();
                text.parse().map_err(|bad| BadStackSize { variable: Some(VARIABLE), ..bad })
            }
            None => Ok(Self::of_limit(getrlimit(Resource::Stack).current)),
        }
    }

    /// The size for a limit of a process's stack; `None` is no limit.
    fn of_limit(limit: Option<u64>) -> Self {
        limit.map_or_else(Self::default, |bytes| Self(bytes.clamp(LEAST_STACK, MOST_STACK)))
    }

    pub(crate) fn options(self) -> UlpOptions {
        UlpOptions { stack: self.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_read_with_its_unit() {
        let read = |text: &str| text.parse::<StackSize>().map(|size| size.0).ok();
        assert_eq!(
            ["64K", "65536", "8m", "512M", "8388608"].map(read),
            [Some(64 << 10), Some(64 << 10), Some(8 << 20), Some(512 << 20), Some(8 << 20)]
        );
        let bad = ["", "K", "63K", "513M", "1G", "8MiB", "-1", "99999999999999999999", "1 M", "8E"];
        assert_eq!(bad.map(read), [None; 10]);
        let size = "12345K".parse::<StackSize>().unwrap();
        assert_eq!(size.to_string().parse(), Ok(size));
    }

    #[test]
    fn the_limit_of_the_process_holds_as_far_as_possible() {
        let of = |limit| StackSize::of_limit(limit).0;
        assert_eq!(of(None), STACK);
        assert_eq!(
            [1 << 20, 0, u64::MAX].map(|limit| of(Some(limit))),
            [1 << 20, LEAST_STACK, MOST_STACK]
        );
    }
}
