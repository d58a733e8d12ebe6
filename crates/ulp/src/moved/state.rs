//! What is known of a ULP that moves, and why one cannot move.

use super::named::UlpFile;
use super::processor::ProcessorTraits;
use crate::clock::UlpClocks;
use crate::image::ImageIdentity;
use crate::layout::VERSION;
use crate::switch::{ARGS, REGISTERS};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::{fmt, io};

/// Version of [`UlpState`], to be raised when it changes.
const STATE_VERSION: u64 = 3;
/// Versions of the state and of the images' layout.
pub(super) const VERSIONS: [u64; 2] = [STATE_VERSION, VERSION];
/// Maximum number of mappings of a ULP that moves.
pub(super) const MOST_MAPPINGS: usize = 1024;
/// Maximum number of calls under way in a ULP that moves.
pub(super) const DEEPEST: usize = 1 << 16;
/// Number of words that a waiting ULP has on its stack: control words, FS, six registers, and the
/// address where it goes on.
pub(super) const SAVED: usize = 9;
/// Maximum size of the part of a stack that is searched, in bytes.
pub(super) const SEARCHED: u64 = 8 << 20;

/// A ULP's state without the contents of its memory; see the module comment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UlpState {
    /// Versions of this state and of the layout that the image was linked for.
    pub versions: [u64; 2],
    /// Number of the slot, or of the first of several.
    pub slot: u64,
    /// Number of slots that the ULP has.
    pub slots: u64,
    /// The program.
    pub image: ImageIdentity,
    /// The number that `getpid` returns.
    pub process: u32,
    /// Size of the stack, in bytes.
    pub stack: u64,
    /// Where the ULP waits.
    pub context: UlpContext,
    /// The ULP's clocks when its state was taken.
    pub clocks: UlpClocks,
    /// The processor, as the ULP may have found it.
    pub processor: ProcessorTraits,
    /// The registers when the ULP was interrupted last, in the kernel's order.
    pub registers: Option<[u64; REGISTERS]>,
    /// What is mapped in the slot, in ascending order.
    pub mappings: Vec<UlpMapping>,
    /// The descriptors that the ULP has opened ([`ArrivingUlp::take_descriptors`]).
    pub descriptors: Vec<UlpDescriptor>,
    /// The open files of these, for another host ([`Ulp::name_files`](crate::Ulp::name_files)).
    pub files: Vec<UlpFile>,
}

impl UlpState {
    /// The versions of the states that this process makes and takes.
    pub const VERSIONS: [u64; 2] = VERSIONS;

    /// Returns `true` if another host can open what each descriptor refers to.
    pub fn names_all_files(&self) -> bool {
        self.descriptors.iter().all(|one| one.file.is_some())
    }
}

/// Where a ULP waits, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UlpContext {
    /// The stack pointer.
    pub sp: u64,
    /// The question.
    pub what: u64,
    /// The question's arguments.
    pub args: [u64; ARGS],
    /// The answer, if the ULP has one already.
    pub reply: u64,
}

/// A mapping in a ULP's slot, which is always private.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UlpMapping {
    /// The first address.
    pub start: u64,
    /// The end.
    pub end: u64,
    /// What is allowed there: the sum of [`READ`](Self::READ), [`WRITE`](Self::WRITE) and
    /// [`EXECUTE`](Self::EXECUTE).
    pub protection: u8,
    /// Offset in the program's file; none for anonymous memory.
    pub offset: Option<u64>,
}

impl UlpMapping {
    /// The memory can be read.
    pub const READ: u8 = 1;
    /// The memory can be written to.
    pub const WRITE: u8 = 2;
    /// The memory can be executed.
    pub const EXECUTE: u8 = 4;
}

/// A descriptor of a ULP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UlpDescriptor {
    /// The program's number for it.
    pub number: i32,
    /// Whether children inherit it.
    pub inherited: bool,
    /// The first process's number.
    pub real: i32,
    /// Index into the state's files, if another host can open the file.
    pub file: Option<u32>,
}

/// The reason why a ULP cannot move now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UlpPin {
    /// None of its code has run yet: it can be loaded elsewhere instead.
    NeverRan,
    /// The ULP has ended.
    Ended,
    /// A helper makes a system call for it.
    Aside,
    /// The number of children that the ULP has not waited for.
    Children(u64),
    /// The number of descriptors that the ULP has opened, which are not those in its table.
    Descriptors(usize),
    /// The ULP waits for this descriptor of the process's, which it or its library has opened.
    Waits(i32),
    /// The ULP has mapped a file or shared memory.
    Maps {
        /// Address of the mapping.
        start: u64,
        /// The file, as the kernel names it.
        name: String,
    },
    /// The number of the ULP's mappings is above the maximum.
    Mappings(usize),
    /// The ULP was interrupted in a function of its library, or in a handler of signals during
    /// such a function, or the calls under way are not known.
    Inside,
    /// An address of the process is in the ULP's registers or on its stack, since the ULP is about
    /// to ask something.
    Asks,
    /// The program's file was changed, or is not the ULP's.
    Program(PathBuf),
}

impl fmt::Display for UlpPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverRan => f.write_str("it has not begun"),
            Self::Ended => f.write_str("it has ended"),
            Self::Aside => f.write_str("a system call of its own is under way"),
            Self::Children(count) => write!(f, "it has {count} children"),
            Self::Descriptors(count) => {
                write!(f, "it has {count} open files, and its table names others")
            }
            Self::Waits(descriptor) => write!(f, "it waits for descriptor {descriptor}"),
            Self::Maps { start, name } => write!(f, "it has mapped {name} at {start:#x}"),
            Self::Mappings(count) => {
                write!(f, "it has {count} mappings of memory, and {MOST_MAPPINGS} is the most")
            }
            Self::Inside => f.write_str("a function of its library is under way"),
            Self::Asks => f.write_str("it is about to ask its process for something"),
            Self::Program(path) => write!(f, "its program {} was changed", path.display()),
        }
    }
}

/// Pages of a ULP, by their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRun {
    /// The first address.
    pub start: u64,
    /// The end.
    pub end: u64,
}

/// Reads words of this process's memory.
pub(super) fn words(memory: &File, at: u64, count: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; count * 8];
    memory.read_exact_at(&mut bytes, at)?;
    Ok(bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}
