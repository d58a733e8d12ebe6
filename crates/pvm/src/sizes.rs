//! The size of each task's stack, and of all of its memory.

use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::str::FromStr;
use upcall_ulp::UlpOptions;
use upcall_ulp::slot::{LEAST_STACK, MOST_STACK, SLOT_BYTES, SLOTS, STACK};

/// Maximum number of slots that each task has.
const MOST_SLOTS: u64 = 1024;

/// The size of a stack. All tasks of a machine have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackSize(u64);

/// The addresses that a task has for its program, stack, heap and maps, in whole GiB. All tasks of
/// a machine have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySize {
    /// Number of slots.
    slots: u64,
}

/// What all tasks of a machine have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskSizes {
    pub(crate) stack: StackSize,
    pub(crate) memory: MemorySize,
}

/// A text that is not a size of tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTaskSize {
    text: String,
    possible: &'static str,
    /// The variable that has it, if one has.
    variable: Option<&'static str>,
}

impl fmt::Display for BadTaskSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(variable) = self.variable {
            write!(f, "{variable}={}: ", self.text)?;
        }
        write!(f, "{}: give a number with K, M or G", self.possible)
    }
}

impl std::error::Error for BadTaskSize {}

/// Reads a number of bytes, or one with K, M or G.
fn read(text: &str) -> Option<u64> {
    let (digits, shift) = match text.strip_suffix(|unit| "KMGkmg".contains(unit)) {
        Some(digits) if text.ends_with(['K', 'k']) => (digits, 10),
        Some(digits) if text.ends_with(['M', 'm']) => (digits, 20),
        Some(digits) => (digits, 30),
        None => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

impl FromStr for StackSize {
    type Err = BadTaskSize;

    fn from_str(text: &str) -> Result<Self, BadTaskSize> {
        let possible = "a task's stack has from 64K to 512M";
        read(text)
            .filter(|bytes| (LEAST_STACK..=MOST_STACK).contains(bytes))
            .map(Self)
            .ok_or_else(|| BadTaskSize { text: text.into(), possible, variable: None })
    }
}

const _: () = assert!(LEAST_STACK == 64 << 10 && MOST_STACK == 512 << 20);

impl FromStr for MemorySize {
    type Err = BadTaskSize;

    fn from_str(text: &str) -> Result<Self, BadTaskSize> {
        let possible = "a task's memory has from 1G to 1024G";
        read(text)
            .map(|bytes| bytes.div_ceil(SLOT_BYTES))
            .filter(|slots| (1..=MOST_SLOTS).contains(slots))
            .map(|slots| Self { slots })
            .ok_or_else(|| BadTaskSize { text: text.into(), possible, variable: None })
    }
}

const _: () = assert!(SLOT_BYTES == 1 << 30 && MOST_SLOTS == 1024);

impl Default for StackSize {
    fn default() -> Self {
        Self(STACK)
    }
}

impl Default for MemorySize {
    fn default() -> Self {
        Self { slots: 1 }
    }
}

/// In bytes, as [`FromStr`] reads it.
impl fmt::Display for StackSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// In bytes, as [`FromStr`] reads it.
impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.slots * SLOT_BYTES).fmt(f)
    }
}

/// The size that this variable names, if it is set.
fn named<T: FromStr<Err = BadTaskSize>>(variable: &'static str) -> Result<Option<T>, BadTaskSize> {
    let text = std::env::var_os(variable).filter(|text| !text.is_empty());
    let named = text.map(|text| text.to_string_lossy().parse::<T>());
    named.transpose().map_err(|bad| BadTaskSize { variable: Some(variable), ..bad })
}

impl TaskSizes {
    /// The sizes for a run, which may name them.
    ///
    /// Otherwise `UPVM_STACK` and `UPVM_MEMORY` do. Without them a stack has the limit of this
    /// process's own (`ulimit -s`), and a task one slot.
    pub(crate) fn of_run(
        stack: Option<StackSize>,
        memory: Option<MemorySize>,
    ) -> Result<Self, BadTaskSize> {
        let limit = || StackSize::of_limit(getrlimit(Resource::Stack).current);
        let stack = stack.map_or_else(|| named("UPVM_STACK"), |size| Ok(Some(size)))?;
        let memory = memory.map_or_else(|| named("UPVM_MEMORY"), |size| Ok(Some(size)))?;
        Ok(Self { stack: stack.unwrap_or_else(limit), memory: memory.unwrap_or_default() })
    }

    /// What the ULPs are loaded with.
    pub(crate) fn options(self) -> UlpOptions {
        UlpOptions { stack: self.stack.0 }
    }

    /// Number of slots of each task.
    pub(crate) fn slots(self) -> usize {
        self.memory.slots as usize
    }

    /// Maximum number of bytes of a task of another host in a checkpoint: as much as its memory,
    /// and once more for its messages.
    pub(crate) fn most_saved(self) -> u64 {
        2 * self.memory.slots * SLOT_BYTES
    }

    /// Number of tasks for which there are slots.
    pub(crate) fn places(self) -> u32 {
        (SLOTS / self.slots()) as u32
    }
}

impl StackSize {
    /// The size for a limit of a process's stack; `None` is no limit.
    fn of_limit(limit: Option<u64>) -> Self {
        limit.map_or_else(Self::default, |bytes| Self(bytes.clamp(LEAST_STACK, MOST_STACK)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_read_with_its_unit() {
        let stack = |text: &str| text.parse::<StackSize>().map(|size| size.0).ok();
        assert_eq!(
            ["64K", "65536", "8m", "512M", "8388608"].map(stack),
            [Some(64 << 10), Some(64 << 10), Some(8 << 20), Some(512 << 20), Some(8 << 20)]
        );
        let bad = ["", "K", "63K", "513M", "1G", "8MiB", "-1", "99999999999999999999", "1 M", "8E"];
        assert_eq!(bad.map(stack), [None; 10]);
        let memory = |text: &str| text.parse::<MemorySize>().map(|size| size.slots).ok();
        assert_eq!(
            ["1", "1G", "1025M", "4g", "1024G", "1025G", "0", "much"].map(memory),
            [Some(1), Some(1), Some(2), Some(4), Some(1024), None, None, None]
        );
        let (stack, memory) = (StackSize(12_345 << 10), MemorySize { slots: 3 });
        assert_eq!(stack.to_string().parse(), Ok(stack));
        assert_eq!(memory.to_string().parse(), Ok(memory));
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
