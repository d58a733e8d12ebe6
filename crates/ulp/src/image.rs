//! A program's file: whether it can be loaded into slots, and which parts of it go where.

use crate::backtrace::Tables;
use crate::layout::{NOTE, PAGE, PAGES, RANGES, VERSION};
use crate::slot::{self, FILES_BYTES, GAP};
use object::NativeEndian;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, CString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Minimum size of a heap, with the list of a program's maps, in bytes.
const HEAP: u64 = (16 << 20) + RANGES;

/// Maximum size of an image, in bytes: its code reaches its data within 2 GiB. Most images have to
/// be smaller, to fit into [one slot](room).
const LARGEST: u64 = 2 << 30;

/// A part of the file that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageSegment {
    /// Offset from the beginning of the image.
    pub(crate) at: u64,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Number of bytes in the file, and in memory.
    pub(crate) filled: u64,
    pub(crate) length: u64,
    pub(crate) writable: bool,
    pub(crate) executable: bool,
}

/// A program that can be loaded any number of times.
///
/// Its file is kept open. If the file is written to, no more ULPs are loaded from it, and those
/// that run may find what was written.
#[derive(Debug)]
pub struct Image {
    pub(crate) path: PathBuf,
    /// The absolute path, for debuggers, which may run in another folder.
    pub(crate) whole_path: Arc<CStr>,
    pub(crate) file: File,
    pub(crate) parts: Vec<ImageSegment>,
    pub(crate) entry: u64,
    /// Place of the program headers in memory, and their number.
    pub(crate) headers: (u64, u64),
    /// Place of the dynamic section.
    pub(crate) dynamic: u64,
    /// End of the image, rounded up to a page.
    pub(crate) end: u64,
    /// Call frame information.
    pub(crate) tables: Tables,
    /// The file as it was when it was read.
    pub(crate) identity: Option<Arc<ImageIdentity>>,
}

/// Which file a program is, and in which state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageIdentity {
    /// The absolute path.
    pub path: Vec<u8>,
    /// Device, inode, length and times of the file.
    pub stamp: FileStamp,
    /// What the linker calculated of the contents (`--build-id`), if it did.
    pub build_id: Option<Vec<u8>>,
}

/// What shows whether a file is another one, or was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    /// The file's device.
    pub device: u64,
    /// The file's number on its device.
    pub inode: u64,
    /// Size of the file, in bytes.
    pub length: u64,
    /// The time of the last change of the contents, in seconds and nanoseconds.
    pub modified: [i64; 2],
    /// The time of the last change of the contents or of what is known about them.
    pub changed: [i64; 2],
}

impl ImageIdentity {
    /// What differs between two files, if they are not the same program.
    ///
    /// A file with another name, on another device or host, is the same program if both files have
    /// the same build id and length.
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        let (one, two) = (self.stamp, other.stamp);
        if one.length != two.length {
            return Some("length");
        }
        if self.build_id != other.build_id {
            return Some("build id");
        }
        if [one.device, one.inode] == [two.device, two.inode] {
            return (one != two).then_some("time of the last change");
        }
        self.build_id.is_none().then_some("file, which has no build id")
    }
}

/// The reason why a file is not an image.
#[derive(Debug)]
pub enum NoImage {
    /// The file cannot be read.
    File(PathBuf, io::Error),
    /// The file is not a position-independent, self-contained program for this machine.
    Unfit {
        /// The file.
        path: PathBuf,
        /// The reason.
        found: String,
    },
}

impl fmt::Display for NoImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Unfit { path, found } => {
                write!(
                    f,
                    "{} cannot be loaded: {found}. Compile and link it by `upvmcc`",
                    path.display()
                )
            }
        }
    }
}

impl std::error::Error for NoImage {}

impl Image {
    /// Reads the headers of a program's file.
    ///
    /// # Blocking
    /// Blocks for as long as reading the file takes.
    ///
    /// # Errors
    /// See [`NoImage`].
    pub fn open(path: &Path) -> Result<Self, NoImage> {
        let unreadable = |error| NoImage::File(path.into(), error);
        let mut file = File::open(path).map_err(unreadable)?;
        let (mut bytes, stamp) = (Vec::new(), FileStamp::of(&file));
        file.read_to_end(&mut bytes).map_err(unreadable)?;
        let unfit = |found: String| NoImage::Unfit { path: path.into(), found };
        let ImageLayout { parts, entry, headers, dynamic, end, build_id } =
            read(&bytes).map_err(unfit)?;
        let whole_path = path.canonicalize().map_err(unreadable)?;
        let whole_path: Arc<CStr> =
            CString::new(whole_path.as_os_str().as_bytes()).unwrap_or_default().into();
        let path_bytes = whole_path.to_bytes().to_vec();
        let identity = stamp.map(|stamp| ImageIdentity { path: path_bytes, stamp, build_id });
        let tables = Tables::of(&bytes);
        Ok(Self {
            path: path.into(),
            whole_path,
            file,
            parts,
            entry,
            headers,
            dynamic,
            end,
            tables,
            identity: identity.map(Arc::new),
        })
    }

    /// Which file the program is, as it was read. Returns `None` if that is not known.
    pub fn identity(&self) -> Option<&ImageIdentity> {
        self.identity.as_deref()
    }

    /// Returns `true` if the file has changed since it was read.
    ///
    /// When a linker writes a new file under the same name, this one does not change.
    pub fn has_changed(&self) -> bool {
        self.identity.as_ref().is_none_or(|was| FileStamp::of(&self.file) != Some(was.stamp))
    }

    /// Reads the whole file.
    pub(crate) fn read_to(&self, bytes: &mut Vec<u8>) -> io::Result<()> {
        bytes.resize(self.file.metadata()?.len() as usize, 0);
        self.file.read_exact_at(bytes, 0)
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl FileStamp {
    fn of(file: &File) -> Option<Self> {
        let data = file.metadata().ok()?;
        Some(Self {
            device: data.dev(),
            inode: data.ino(),
            length: data.len(),
            modified: [data.mtime(), data.mtime_nsec()],
            changed: [data.ctime(), data.ctime_nsec()],
        })
    }
}

/// What is read from a file: see [`Image`].
struct ImageLayout {
    parts: Vec<ImageSegment>,
    entry: u64,
    headers: (u64, u64),
    dynamic: u64,
    end: u64,
    build_id: Option<Vec<u8>>,
}

/// Rounds up to a page.
pub(crate) fn up(address: u64) -> u64 {
    address.div_ceil(PAGE) * PAGE
}

/// Maximum size of an image above a stack of this size in slots of `memory` bytes, in bytes.
pub(crate) fn room(memory: u64, stack: u64) -> u64 {
    memory - slot::middle(stack) - PAGES * PAGE - GAP - FILES_BYTES - HEAP
}

fn read(bytes: &[u8]) -> Result<ImageLayout, String> {
    let header = FileHeader64::<NativeEndian>::parse(bytes)
        .map_err(|_| "it is no ELF file of 64 bits".to_owned())?;
    let endian = header.endian().map_err(|error| error.to_string())?;
    if header.e_machine(endian) != elf::EM_X86_64 {
        return Err("it is for another kind of processor".into());
    }
    if header.e_type(endian) != elf::ET_DYN {
        return Err("it has fixed addresses (it is not linked as static-PIE)".into());
    }
    let all = header.program_headers(endian, bytes).map_err(|error| error.to_string())?;
    if all.iter().any(|one| one.p_type(endian) == elf::PT_INTERP) {
        return Err("it needs shared libraries (it is not linked as static-PIE)".into());
    }
    check_version(all, endian, bytes)?;
    let parts = all
        .iter()
        .filter(|one| one.p_type(endian) == elf::PT_LOAD)
        .map(|one| part(one, endian, bytes.len()));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let end = parts
        .iter()
        .map(|part| up(part.at + part.length))
        .max()
        .ok_or("nothing of it is to be loaded")?;
    if end > LARGEST {
        return Err(format!("it takes {} MiB, and {} MiB is the most", end >> 20, LARGEST >> 20));
    }
    let mut ends = 0;
    for part in &parts {
        if part.at / PAGE * PAGE < ends {
            return Err("its parts overlap".into());
        }
        ends = up(part.at + part.length);
    }
    let entry = header.e_entry(endian);
    if !parts
        .iter()
        .any(|part| part.executable && (part.at..part.at + part.filled).contains(&entry))
    {
        return Err("its entry is not in its code".into());
    }
    let headers = header.e_phoff(endian);
    let first = parts.iter().find(|part| {
        part.offset <= headers && headers + 56 * all.len() as u64 <= part.offset + part.filled
    });
    let first = first.ok_or("its program headers are not loaded")?;
    let headers = (first.at + (headers - first.offset), all.len() as u64);
    let dynamic = all
        .iter()
        .find(|one| one.p_type(endian) == elf::PT_DYNAMIC)
        .map_or(0, |one| one.p_vaddr(endian));
    let build_id = note(all, endian, bytes, b"GNU", elf::NT_GNU_BUILD_ID.0).map(<[u8]>::to_vec);
    Ok(ImageLayout { parts, entry, headers, dynamic, end, build_id })
}

/// The contents of a note.
fn note<'a>(
    headers: &[ProgramHeader64<NativeEndian>],
    endian: NativeEndian,
    bytes: &'a [u8],
    name: &[u8],
    kind: u32,
) -> Option<&'a [u8]> {
    headers.iter().filter_map(|one| one.notes(endian, bytes).ok().flatten()).find_map(
        |mut notes| {
            while let Ok(Some(note)) = notes.next() {
                if note.name() == name && note.n_type(endian).0 == kind {
                    return Some(note.desc());
                }
            }
            None
        },
    )
}

/// Returns an error unless the note of the runtime's archive has our version.
fn check_version(
    headers: &[ProgramHeader64<NativeEndian>],
    endian: NativeEndian,
    bytes: &[u8],
) -> Result<(), String> {
    let version = note(headers, endian, bytes, b"UPVM", NOTE as u32);
    let version = version.and_then(|version| version.try_into().ok().map(u32::from_ne_bytes));
    match version {
        Some(version) if u64::from(version) == VERSION => Ok(()),
        Some(version) => Err(format!(
            "it was linked for version {version} of the runtime, and this is {VERSION}"
        )),
        None => Err("it was linked without the runtime's archive".into()),
    }
}

fn part(
    header: &ProgramHeader64<NativeEndian>,
    endian: NativeEndian,
    file: usize,
) -> Result<ImageSegment, String> {
    let part = ImageSegment {
        at: header.p_vaddr(endian),
        offset: header.p_offset(endian),
        filled: header.p_filesz(endian),
        length: header.p_memsz(endian),
        writable: header.p_flags(endian).0 & elf::PF_W.0 != 0,
        executable: header.p_flags(endian).0 & elf::PF_X.0 != 0,
    };
    let whole = part.offset.checked_add(part.filled).is_some_and(|end| end <= file as u64);
    let sound = whole
        && part.filled <= part.length
        && part.at.checked_add(part.length).is_some_and(|end| end <= LARGEST)
        && part.at % PAGE == part.offset % PAGE
        && (part.filled == part.length || part.writable);
    if sound { Ok(part) } else { Err(format!("a part of it cannot be mapped (at {:#x})", part.at)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_image_is_said_with_the_way_out() {
        let said = |path: &str| Image::open(path.as_ref()).unwrap_err().to_string();
        assert!(said("/nowhere/at/all").contains("No such file"));
        assert!(
            said("/etc/passwd").contains("no ELF file") && said("/etc/passwd").contains("upvmcc")
        );
        let own = std::env::current_exe().unwrap();
        assert!(said(own.to_str().unwrap()).contains("shared libraries"));
    }
}
