//! What can be chosen when a ULP is loaded, and why it was not.

use crate::slot::{LEAST_STACK, MOST_STACK, STACK};
use std::path::PathBuf;
use std::{fmt, io};

/// What can be chosen for a ULP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UlpOptions {
    /// Size of the stack, in bytes: 8 MiB by default, at least
    /// [`LEAST_STACK`](crate::slot::LEAST_STACK) and at most
    /// [`MOST_STACK`](crate::slot::MOST_STACK). It is rounded up to a page.
    pub stack: u64,
}

impl Default for UlpOptions {
    fn default() -> Self {
        Self { stack: STACK }
    }
}

/// The reason why an image was not loaded.
#[derive(Debug)]
pub enum NotLoaded {
    /// All slots are taken.
    Full,
    /// Arguments and environment are too long.
    TooLong {
        /// Their size in bytes.
        bytes: usize,
        /// The maximum.
        most: usize,
    },
    /// The stack is too small or too large.
    Stack {
        /// Its size in bytes.
        bytes: u64,
    },
    /// Program and stack leave no room for a heap.
    NoRoom {
        /// Size of the program, in bytes.
        image: u64,
        /// Size of the stack, in bytes.
        stack: u64,
        /// Size of the slots, in bytes.
        memory: u64,
    },
    /// The file was changed since it was opened, so that what was read is no longer valid.
    Changed(PathBuf),
    /// Memory could not be mapped.
    Memory {
        /// Use of the memory.
        what: &'static str,
        /// Number of the slot.
        slot: usize,
        /// The kernel's error.
        error: io::Error,
    },
    /// The kernel gives no random bytes, by which the program protects its stack.
    NoRandomBytes(io::Error),
}

impl fmt::Display for NotLoaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => write!(
                f,
                "all {} places for tasks are taken: end some, or use more processes",
                crate::slot::SLOTS
            ),
            Self::TooLong { bytes, most } => {
                write!(f, "arguments and environment have {bytes} bytes, and {most} is the most")
            }
            Self::Stack { bytes } => write!(
                f,
                "a stack of {bytes} bytes is not possible: choose one of {} KiB to {} MiB",
                LEAST_STACK >> 10,
                MOST_STACK >> 20
            ),
            Self::NoRoom { image, stack, memory } => write!(
                f,
                "the program takes {} MiB and its stack {} MiB of {} GiB, which leaves no room for \
                 a heap: choose a smaller stack, or more memory",
                image >> 20,
                stack >> 20,
                memory >> 30
            ),
            Self::Changed(path) => {
                write!(
                    f,
                    "{} was changed since it was opened: open it again, and end what was loaded \
                     before",
                    path.display()
                )
            }
            Self::Memory { what, slot, error } => {
                write!(f, "no memory for {what} of task {slot}: {error}")?;
                if error.raw_os_error() == Some(libc::ENOMEM) {
                    write!(
                        f,
                        ". The maximum number of a process's mappings is in \
                         /proc/sys/vm/max_map_count, and a task takes five: use more processes, \
                         or raise that"
                    )?;
                }
                Ok(())
            }
            Self::NoRandomBytes(error) => {
                write!(f, "no random bytes, by which a program protects its stack: {error}")
            }
        }
    }
}

impl std::error::Error for NotLoaded {}
