//! Code that all ULPs of a process run at one address: what they do most.
//!
//! Each ULP has its program, and all libraries in it, at addresses of its own. A processor caches
//! what it has learned of code by address: decoded instructions, branch targets, page translations.
//! So a library that a hundred ULPs run in turns is a hundred libraries to the processor, and each
//! turn begins as if the code had never run. In a ring of 24 tasks, each took half as long again as
//! in a ring of two, and more than half of that difference went away when the code that a message
//! needs was in one place. (It does not help that the pages are the same memory.)
//!
//! So a library above may bring some functions as a file of their own, which is mapped once. They
//! have no data: they work on the data of the running ULP, which it keeps after its
//! [table](crate::layout), where GS finds it. An image calls them through *doors*, words that GS
//! finds as well.
//!
//! None of this may be on the stack of a waiting ULP, which may go on in another process (decision
//! 8). So a function here asks the host for nothing, and leaves by a jump where it goes on in the
//! image.
//!
//! Debuggers and backtraces find names and frames in the file, as in an image's.

use crate::debug::DebugRegistration;
use crate::image::up;
use crate::layout::{DOORS, PAGE};
use crate::switch::EntryPoints;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, SectionHeader};
use object::{NativeEndian, Object, ObjectSymbol, elf};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::ffi::CString;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, io, ptr};

/// Shared code; see the module comment.
///
/// It stays mapped as long as the process lives; a copy refers to the same code.
#[derive(Clone, Copy, Debug)]
pub struct SharedImage(&'static Mapped);

#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) file: &'static [u8],
    /// What is added to addresses in the file, and the range in memory.
    pub(crate) base: u64,
    pub(crate) memory: Range<u64>,
    doors: EntryPoints,
    /// Debuggers read the file by this descriptor's number.
    _descriptor: OwnedFd,
    _known: Option<DebugRegistration>,
}

/// All shared code that was loaded.
static ALL: Mutex<Vec<&'static Mapped>> = Mutex::new(Vec::new());

/// The reason why functions cannot be shared.
#[derive(Debug)]
pub enum NotShared {
    /// The file is not suitable.
    Unfit(String),
    /// The file has no function of this name.
    Missing(String),
    /// The kernel gives no memory for it.
    Memory(io::Error),
}

impl fmt::Display for NotShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unfit(found) => write!(
                f,
                "functions that ULPs are to share must be one executable segment that can lie \
                 anywhere, without data or relocations: {found}"
            ),
            Self::Missing(name) => {
                write!(f, "ULPs are to share a function {name}, which is not in the file")
            }
            Self::Memory(error) => write!(f, "no memory for functions that ULPs share: {error}"),
        }
    }
}

impl std::error::Error for NotShared {}

impl From<rustix::io::Errno> for NotShared {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Memory(error.into())
    }
}

fn unfit(found: impl fmt::Display) -> NotShared {
    NotShared::Unfit(found.to_string())
}

impl SharedImage {
    /// Maps an ELF file, with these functions behind the first doors, in this order.
    ///
    /// # Errors
    /// See [`NotShared`].
    pub fn load(file: &'static [u8], names: &[&str]) -> Result<Self, NotShared> {
        if names.len() > DOORS as usize {
            return Err(unfit(format_args!("{} functions, and {DOORS} is the most", names.len())));
        }
        let elf = ElfFile64::<NativeEndian>::parse(file).map_err(unfit)?;
        let segment = segment(&elf)?;
        let function = |name: &&str| {
            let found =
                elf.symbols().find(|symbol| symbol.name() == Ok(name) && symbol.is_definition());
            found
                .map(|symbol| symbol.address())
                .ok_or_else(|| NotShared::Missing((*name).to_owned()))
        };
        let functions = names.iter().map(function).collect::<Result<Vec<_>, _>>()?;

        let descriptor = memfd_create("upvm-shared", MemfdFlags::CLOEXEC)?;
        let mut rest = file;
        while !rest.is_empty() {
            rest = &rest[rustix::io::write(&descriptor, rest)?..];
        }
        let (skipped, length) = (segment.offset % PAGE, segment.length);
        let flags = (ProtFlags::READ | ProtFlags::EXEC, MapFlags::PRIVATE);
        let length = up(skipped + length) as usize;
        // SAFETY: maps where nothing is mapped, and the file is not written to.
        let start = unsafe {
            mmap(ptr::null_mut(), length, flags.0, flags.1, &descriptor, segment.offset - skipped)
        }? as u64;
        let base = (start + skipped).wrapping_sub(segment.address);
        let mut doors = EntryPoints([0; DOORS as usize]);
        for (door, function) in doors.0.iter_mut().zip(functions) {
            *door = base.wrapping_add(function);
        }
        let path = format!("/proc/{}/fd/{}", std::process::id(), descriptor.as_raw_fd());
        let known = CString::new(path)
            .ok()
            .and_then(|path| DebugRegistration::new(&Arc::from(path), base, 0));
        let memory = start..start + length as u64;
        let mapped = Mapped { file, base, memory, doors, _descriptor: descriptor, _known: known };
        let mapped = &*Box::leak(Box::new(mapped));
        ALL.lock().unwrap_or_else(PoisonError::into_inner).push(mapped);
        Ok(Self(mapped))
    }

    pub(crate) fn doors(&self) -> EntryPoints {
        self.0.doors
    }

    /// All shared code that was loaded.
    pub(crate) fn all() -> Vec<&'static Mapped> {
        ALL.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The one part of a file that is mapped.
struct LoadSegment {
    offset: u64,
    address: u64,
    length: u64,
}

fn segment(file: &ElfFile64<'_, NativeEndian>) -> Result<LoadSegment, NotShared> {
    let (header, endian) = (file.elf_header(), file.endian());
    if header.e_machine(endian) != elf::EM_X86_64 {
        return Err(unfit("it is for another machine"));
    }
    let relocates = |kind| matches!(kind, elf::SHT_RELA | elf::SHT_REL | elf::SHT_DYNAMIC);
    if file
        .elf_section_table()
        .iter()
        .any(|section| relocates(section.sh_type(endian)) && section.sh_size(endian) > 0)
    {
        return Err(unfit("it has to be relocated"));
    }
    let mut loaded =
        file.elf_program_headers().iter().filter(|one| one.p_type(endian) == elf::PT_LOAD);
    let (Some(one), None) = (loaded.next(), loaded.next()) else {
        return Err(unfit("it has several segments, or none"));
    };
    if one.p_flags(endian) & (elf::PF_X | elf::PF_W) != elf::PF_X
        || one.p_filesz(endian) != one.p_memsz(endian)
    {
        return Err(unfit("its segment can be written to, or not be executed"));
    }
    Ok(LoadSegment {
        offset: one.p_offset(endian),
        address: one.p_vaddr(endian),
        length: one.p_filesz(endian),
    })
}
