//! Memory files: anonymous memory of fixed size that is handed over by descriptor.
//!
//! A peer that could shrink a file under our mapping would kill us with SIGBUS. So a file is sealed
//! against growing and shrinking before it is handed over, and [`MemoryFile::adopt`] checks the
//! seals on receipt. Nothing appears in any directory, and the kernel frees the pages with the last
//! descriptor and mapping, also after `kill -9`.
//!
//! # Who pays for a page
//! The kernel charges a page to the process that touches it first. A sealed file can still have
//! holes, and its owner can punch more, so a receiver that uses such a file may pay for all of it.
//! [`MemoryFile::adopt_filled`] accepts only files without holes, and makes holes impossible: the
//! receiver maps the file and then adds `F_SEAL_FUTURE_WRITE`. With that seal
//! `fallocate(PUNCH_HOLE)`, `MADV_REMOVE`, `write` and new writable mappings fail for all holders,
//! through all descriptors and after any reopening, since seals belong to the file. The two
//! mappings that exist stay writable.

use crate::headroom;
use crate::reaper::{self, PIECE, Waste};
use rustix::fs::{self, MemfdFlags, Mode, OFlags, SealFlags, SeekFrom};
use rustix::mm::{self, MapFlags, ProtFlags};
use std::any::Any;
use std::fmt;
use std::hint;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// The seals that a file with two writers must carry, no more and no fewer.
const BOTH_WRITE: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// The seals of a file that only its maker may write.
const ONE_WRITES: SealFlags = BOTH_WRITE.union(SealFlags::FUTURE_WRITE);

/// The seals of a file whose receiver adds the others, after it has mapped the file.
const TO_BE_SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The file system of memory files without huge pages, as `statfs` names it.
const TMPFS: u64 = 0x0102_1994;

/// A sealed memory file. Its length is fixed and at least one byte.
#[derive(Debug)]
pub struct MemoryFile {
    fd: OwnedFd,
    len: usize,
}

/// Why a descriptor that a peer sent is not a memory file that we can map.
#[derive(Debug)]
pub enum AdoptError {
    /// The seals are not exactly the agreed ones: the peer could still resize the file and kill us.
    Seals {
        /// The seals of the file, as `F_SEAL_*` bits.
        found: u32,
        /// The seals that it must have.
        expected: u32,
    },
    /// The file is shorter than the peer announced.
    Short {
        /// Its length in bytes.
        found: u64,
        /// Its minimum length in bytes.
        expected: u64,
    },
    /// The file has holes: the first process to touch one would pay for its page.
    Holes {
        /// Number of bytes of the file that have memory.
        found: u64,
        /// Its length in bytes, in whole pages.
        expected: u64,
    },
    /// The descriptor is not a memory file, or the kernel refused to inspect it.
    Kernel(io::Error),
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seals { found, expected } => {
                write!(
                    f,
                    "the memory file has the seals {found:#x}, not {expected:#x}: \
                     its owner could resize it"
                )
            }
            Self::Short { found, expected } => {
                write!(f, "the memory file has {found} bytes, fewer than the {expected} announced")
            }
            Self::Holes { found, expected } => {
                write!(
                    f,
                    "the memory file has memory for {found} of its {expected} bytes: \
                     allocate it before it is sent"
                )
            }
            Self::Kernel(error) => write!(f, "the descriptor is not a memory file: {error}"),
        }
    }
}

impl std::error::Error for AdoptError {}

impl MemoryFile {
    /// Makes a file of `len` zero bytes that both sides may write, of fixed size.
    ///
    /// `name` shows in `/proc/PID/maps`.
    ///
    /// # Errors
    /// No descriptor or no memory is left (`EMFILE`, `ENFILE`, `ENOMEM`).
    pub fn create(name: &str, len: usize) -> io::Result<Self> {
        let file = Self::unsealed(name, len)?;
        fs::fcntl_add_seals(&file.fd, BOTH_WRITE)?;
        Ok(file)
    }

    /// Makes and maps a file of `len` bytes with memory for all of them.
    ///
    /// It is for a peer that takes it by [`MemoryFile::adopt_filled`]. Only that peer can write it
    /// as well, and only if it maps the file before it seals it.
    ///
    /// # Errors
    /// As [`MemoryFile::create`] and [`MemoryFile::allocate`].
    pub fn create_filled(name: &str, len: usize) -> io::Result<(Self, Mapping)> {
        let file = Self::unsealed(name, len)?;
        file.allocate()?;
        let map = Mapping::shared(&file)?;
        map.enter()?;
        fs::fcntl_add_seals(&file.fd, TO_BE_SEALED)?;
        Ok((file, map))
    }

    /// Makes and maps a file of `len` bytes, and seals it against other writers.
    ///
    /// No mapping but the returned one can ever write, in any process.
    ///
    /// # Errors
    /// As [`MemoryFile::create`]; also `EINVAL` before Linux 5.1, which lacks the seal.
    pub fn create_for_one_writer(name: &str, len: usize) -> io::Result<(Self, Mapping)> {
        let file = Self::unsealed(name, len)?;
        let map = Mapping::map(&file, ProtFlags::READ | ProtFlags::WRITE)?;
        fs::fcntl_add_seals(&file.fd, ONE_WRITES)?;
        Ok((file, map))
    }

    /// Makes a sealed file with these bytes that no process can write any more.
    ///
    /// # Errors
    /// As [`MemoryFile::create`].
    pub fn frozen(name: &str, bytes: &[u8]) -> io::Result<Self> {
        let file = Self::unsealed(name, bytes.len().max(1))?;
        let mut done = 0;
        while done < bytes.len() {
            done += rustix::io::pwrite(&file.fd, &bytes[done..], done as u64)?;
        }
        fs::fcntl_add_seals(&file.fd, BOTH_WRITE | SealFlags::WRITE)?;
        Ok(file)
    }

    fn unsealed(name: &str, len: usize) -> io::Result<Self> {
        // Beyond this limit (`ulimit -f`) the kernel would not only refuse, but also send a signal
        // that ends the process.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if limit.is_some_and(|limit| len as u64 > limit) {
            return Err(rustix::io::Errno::FBIG.into());
        }
        let fd = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fs::ftruncate(&fd, len as u64)?;
        Ok(Self { fd, len })
    }

    /// Takes a descriptor from a peer, for a file that both sides write.
    ///
    /// It checks the seals, and that the file has at least `len` bytes; only these are used.
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub fn adopt(fd: OwnedFd, len: usize) -> Result<Self, AdoptError> {
        Self::adopt_with(fd, len, BOTH_WRITE)
    }

    /// Takes a descriptor from a peer, for a file that only its maker writes.
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub fn adopt_read_only(fd: OwnedFd, len: usize) -> Result<Self, AdoptError> {
        Self::adopt_with(fd, len, ONE_WRITES)
    }

    /// Maps a file from a peer that [created it filled](Self::create_filled).
    ///
    /// `len` bytes are mapped for reading and writing. Afterwards the file has no hole and cannot
    /// get one, so no access can cost this process a page.
    ///
    /// # Errors
    /// See [`AdoptError`].
    ///
    /// # Blocks
    /// Sealing waits for the file's lock in the kernel, which its owner can hold for as long as an
    /// `fallocate` takes.
    pub fn adopt_filled(fd: OwnedFd, len: usize) -> Result<Mapping, AdoptError> {
        let kernel = |error: rustix::io::Errno| AdoptError::Kernel(error.into());
        let file = Self::adopt_with(fd, len, TO_BE_SEALED)?;
        // The file is mapped before it is sealed: the seal forbids later mappings that write.
        let map = Mapping::shared(&file).map_err(AdoptError::Kernel)?;
        fs::fcntl_add_seals(&file.fd, ONE_WRITES).map_err(kernel)?;
        // The owner may have allocated pages beyond the end (FALLOC_FL_KEEP_SIZE), which would make
        // up for holes in the count. Truncating a file to its own length removes these pages, and
        // the seals permit it.
        let size = fs::fstat(&file.fd).map_err(kernel)?.st_size as u64;
        fs::ftruncate(&file.fd, size).map_err(kernel)?;
        let (found, expected) =
            (file.allocated(), size.next_multiple_of(rustix::param::page_size() as u64));
        if found == expected { Ok(map) } else { Err(AdoptError::Holes { found, expected }) }
    }

    /// A descriptor of the file for reading and for read-only mappings only.
    ///
    /// From now on no process can reopen the file to write. A program of the same user, or of root,
    /// could change that: memory that no other process at all may write is [for one
    /// writer](Self::create_for_one_writer).
    ///
    /// # Errors
    /// No descriptor is left, or there is no /proc.
    pub fn for_readers(&self) -> io::Result<OwnedFd> {
        fs::fchmod(&self.fd, Mode::RUSR)?;
        let own = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        Ok(fs::open(own, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    fn adopt_with(fd: OwnedFd, len: usize, expected: SealFlags) -> Result<Self, AdoptError> {
        let kernel = |error: rustix::io::Errno| AdoptError::Kernel(error.into());
        let found = fs::fcntl_get_seals(&fd).map_err(kernel)?;
        // The kernel itself sets EXEC if the administrator requires memory files without execution.
        if found.difference(SealFlags::from_bits_retain(0x20)) != expected {
            return Err(AdoptError::Seals { found: found.bits(), expected: expected.bits() });
        }
        // Huge pages can be removed by punching holes even with these seals, so only plain shared
        // memory is accepted.
        if fs::fstatfs(&fd).map_err(kernel)?.f_type as u64 != TMPFS {
            return Err(AdoptError::Kernel(io::Error::other("it is not plain shared memory")));
        }
        // The seals are checked before the length: the other order would leave a moment for
        // shrinking.
        let found = fs::fstat(&fd).map_err(kernel)?.st_size as u64;
        if found < len as u64 || len == 0 {
            return Err(AdoptError::Short { found, expected: len as u64 });
        }
        Ok(Self { fd, len })
    }

    /// Reads a whole frozen file that a peer sent, at most `limit` bytes.
    ///
    /// The bytes are a private copy.
    ///
    /// # Errors
    /// The file is too long, or the kernel refuses.
    pub fn read_all(fd: &OwnedFd, limit: usize) -> io::Result<Vec<u8>> {
        let size = fs::fstat(fd)?.st_size as usize;
        if size > limit {
            return Err(io::Error::other(format!("{size} bytes, more than the {limit} allowed")));
        }
        let mut bytes = vec![0; size];
        let mut done = 0;
        while done < size {
            match rustix::io::pread(fd, &mut bytes[done..], done as u64)? {
                0 => break,
                n => done += n,
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    /// Allocates all its pages now.
    ///
    /// If the machine lacks the memory, that is an error here and not a fault at the first touch.
    ///
    /// # Errors
    /// `ENOSPC` or `ENOMEM`: not enough memory.
    pub fn allocate(&self) -> io::Result<()> {
        // The kernel would go on until the machine has no memory left, and then end some process.
        if self.len > LARGE && self.len as u64 > headroom::available() {
            return Err(rustix::io::Errno::NOMEM.into());
        }
        Ok(fs::fallocate(&self.fd, fs::FallocateFlags::empty(), 0, self.len as u64)?)
    }

    /// Gives pages back to the machine.
    ///
    /// They are zero afterwards, in all mappings of the file. `at` and `len` are whole pages.
    ///
    /// # Errors
    /// Only its maker may write the file, or the kernel refuses.
    pub fn give_back(&self, at: usize, len: usize) -> io::Result<()> {
        let flags = fs::FallocateFlags::PUNCH_HOLE | fs::FallocateFlags::KEEP_SIZE;
        Ok(fs::fallocate(&self.fd, flags, at as u64, len as u64)?)
    }

    /// Bytes of memory that the file has.
    pub fn allocated(&self) -> u64 {
        fs::fstat(&self.fd).map_or(0, |stat| stat.st_blocks as u64 * 512)
    }

    /// Calls `found` for each run of existing pages in a range.
    ///
    /// It passes the offset and length of the run. The runs come in ascending order. All other
    /// pages are zeros that no process has allocated, and this call does not allocate them. It
    /// takes two system calls for each run. Other processes may allocate or free pages at the same
    /// time.
    ///
    /// # Errors
    /// The kernel's, of `lseek`; or that of `found`, which ends the search.
    pub fn each_backed(
        &self,
        range: Range<usize>,
        mut found: impl FnMut(Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut at, end) = (range.start as u64, range.end.min(self.len) as u64);
        while at < end {
            let begins = match fs::seek(&self.fd, SeekFrom::Data(at)) {
                Ok(begins) if begins < end => begins,
                Ok(_) | Err(rustix::io::Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            };
            let ends = match fs::seek(&self.fd, SeekFrom::Hole(begins)) {
                Ok(ends) => ends.clamp(begins + 1, end),
                // The page was given back in between.
                Err(rustix::io::Errno::NXIO) => begins + 1,
                Err(error) => return Err(error.into()),
            };
            found(begins as usize..ends as usize)?;
            at = ends;
        }
        Ok(())
    }

    /// Length in bytes, which is fixed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `false`: a memory file has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// The memory files of this name that a process has open, opened for reading.
///
/// They are found through /proc, which takes some µs for each descriptor of the process. The
/// process takes no part, and may be stopped.
///
/// # Errors
/// There is no such process, or this one may not inspect it (another user's, or a process that has
/// made itself unreadable).
pub fn files_of(pid: u32, name: &str) -> io::Result<Vec<OwnedFd>> {
    let wanted = format!("/memfd:{name} (deleted)");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let path = entry.path();
        if std::fs::read_link(&path).is_ok_and(|target| target.as_os_str() == wanted.as_str()) {
            // Another file may have the number by now, so these flags keep the open free of side
            // effects.
            let flags = fs::OFlags::RDONLY
                | fs::OFlags::CLOEXEC
                | fs::OFlags::NONBLOCK
                | fs::OFlags::NOCTTY;
            match fs::open(&path, flags, fs::Mode::empty()) {
                Ok(fd) => files.push(fd),
                Err(rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(files)
}

/// Size of a file, in bytes, above which [`MemoryFile::allocate`] first checks the machine's
/// memory.
const LARGE: usize = 16 << 20;

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A shared mapping of a memory file.
///
/// It gives out no references: its contents may change at any time, and the layer above (`shm`)
/// defines how they may be accessed.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    held: reaper::MemoryCharge,
}

// SAFETY: a mapping is an address range that belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: its methods only report the range; access through it is the caller's, under `shm`'s
// rules.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the whole file for reading and writing.
    ///
    /// # Errors
    /// `ENOMEM`: no address space, or too many mappings (`vm.max_map_count`); `EPERM`: the file is
    /// sealed against writing.
    pub fn shared(file: &MemoryFile) -> io::Result<Self> {
        Self::map(file, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps the whole file for reading.
    ///
    /// # Errors
    /// As [`Mapping::shared`].
    pub fn read_only(file: &MemoryFile) -> io::Result<Self> {
        Self::map(file, ProtFlags::READ)
    }

    /// Keeps `held` until the range is unmapped, for a count of what is mapped.
    ///
    /// That may be some time after the mapping was dropped. Replaces what was kept before.
    #[must_use]
    pub fn with(mut self, held: impl Any + Send + Sync) -> Self {
        self.held = Some(Box::new(held));
        self
    }

    /// Enters all pages in the page table, so that no access faults later.
    ///
    /// It does so [piece](PIECE) by piece. Only for files that have all their pages: this would
    /// allocate those that are missing.
    ///
    /// # Errors
    /// The kernel's. Before Linux 5.14, and in a sandbox that refuses it, nothing is entered, and
    /// that is no error: the first accesses fault.
    pub fn enter(&self) -> io::Result<()> {
        for at in (0..self.len).step_by(PIECE) {
            // SAFETY: `at < len`.
            let start = unsafe { self.start.add(at) };
            // SAFETY: the range lies within this mapping; populating it changes no byte of it.
            let entered = unsafe {
                mm::madvise(
                    start.as_ptr().cast(),
                    PIECE.min(self.len - at),
                    mm::Advice::LinuxPopulateWrite,
                )
            };
            match entered {
                Ok(()) => {}
                Err(
                    rustix::io::Errno::INVAL | rustix::io::Errno::PERM | rustix::io::Errno::NOSYS,
                ) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Maps a part of the file, from `at` on, for reading and writing.
    ///
    /// `at` is a whole number of pages.
    ///
    /// # Errors
    /// As [`Mapping::shared`]; `EINVAL`: the part is empty, or does not lie within the file.
    pub fn part(file: &MemoryFile, at: usize, len: usize) -> io::Result<Self> {
        if len == 0 || at.checked_add(len).is_none_or(|end| end > file.len) {
            return Err(rustix::io::Errno::INVAL.into());
        }
        Self::map_part(file, (at, len), ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map(file: &MemoryFile, prot: ProtFlags) -> io::Result<Self> {
        Self::map_part(file, (0, file.len), prot)
    }

    fn map_part(file: &MemoryFile, (at, len): (usize, usize), prot: ProtFlags) -> io::Result<Self> {
        // SAFETY: no address is requested, so no existing mapping is replaced; the file outlives
        // the call, and the kernel keeps its pages for the mapping.
        let start = unsafe {
            mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, &file.fd, at as u64)
        }?;
        let start = NonNull::new(start.cast())
            .ok_or_else(|| io::Error::other("mmap gave a null address"))?;
        Ok(Self { start, len, writable: prot.contains(ProtFlags::WRITE), held: None })
    }

    /// Address of the first byte, which is page-aligned.
    ///
    /// It is valid for [`Mapping::len`] bytes while `self` lives.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `false`: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns `true` if stores are permitted.
    ///
    /// A store to a read-only mapping ends the process.
    pub fn writable(&self) -> bool {
        self.writable
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The range was mapped by `map`, and no view of it outlives `self` (shm ties every view to
        // the mapping's lifetime).
        let range = reaper::AddressRange { start: self.start, len: self.len };
        if self.len > PIECE {
            reaper::take(Waste::Range(range, self.held.take()))
        } else {
            reaper::unmap(range)
        }
    }
}

/// Maximum number of bytes of a freed allocation that the C library may keep for the next one
/// (`M_MMAP_THRESHOLD` in mallopt(3)).
const MOST_KEPT: usize = 32 << 20;

/// Returns `true` if an allocation of `bytes` is freed to the kernel as a whole.
///
/// Calling [`discard`] on it piece by piece before costs nothing more, and never takes long.
pub fn returns_to_the_kernel(bytes: usize) -> bool {
    bytes > MOST_KEPT
}

/// Drops a list, and returns its memory to the kernel in pieces of `piece` bytes.
///
/// This applies to memory that [would return](returns_to_the_kernel) as a whole: so `mmap` in other
/// threads waits for one piece at most. `between` gets the bytes of each piece.
pub fn free_in_pieces<T>(mut list: Vec<T>, piece: usize, mut between: impl FnMut(usize)) {
    list.clear();
    if !returns_to_the_kernel(list.capacity().saturating_mul(size_of::<T>())) {
        return;
    }
    for piece in list.spare_capacity_mut().chunks_mut((piece / size_of::<T>().max(1)).max(1)) {
        discard(piece);
        between(size_of_val(piece));
    }
}

/// Makes the C library merge small freed blocks. They stay in memory.
///
/// The GNU library puts blocks of up to 128 bytes into lists, and merges all of them when a larger
/// block is next freed (`M_MXFAST` in mallopt(3)): for 250,000 blocks of 32 bytes that takes 2.6
/// ms. A request for a block of 1 KiB or more merges them as well.
pub fn merge_freed() {
    let mut block = Vec::<u8>::new();
    // Without memory nothing is merged.
    let _ = block.try_reserve_exact(MERGES);
    drop(hint::black_box(block));
}

/// Size of a request that makes the C library merge, in bytes. A smaller request, of up to 1,032
/// bytes, could come from the thread's cache.
const MERGES: usize = 4096;

/// Gives the whole pages within `room` back to the kernel.
///
/// They are allocated again when they are next touched. If the kernel refuses, nothing happens.
pub fn discard<T>(room: &mut [MaybeUninit<T>]) {
    let page = rustix::param::page_size();
    let range = room.as_mut_ptr_range();
    let (start, end) = (range.start.addr().next_multiple_of(page), range.end.addr() & !(page - 1));
    if start < end {
        let first = range.start.with_addr(start);
        // SAFETY: these are whole pages of memory that is borrowed exclusively, and that holds no
        // value.
        let _ = unsafe { mm::madvise(first.cast(), end - start, mm::Advice::LinuxDontNeed) };
    }
}

/// Maximum number of mappings of a process (`vm.max_map_count`).
///
/// If /proc does not show it, this is the kernel's default.
pub fn most_mappings() -> usize {
    let said = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    said.ok().and_then(|said| said.trim().parse().ok()).unwrap_or(65_530)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// Bytes of freed blocks that the C library has not merged, in all threads.
    #[cfg(all(target_env = "gnu", not(miri)))]
    fn unmerged() -> usize {
        /// `struct mallinfo2`.
        #[repr(C)]
        struct Counts {
            before: [usize; 6],
            fsmblks: usize,
            after: [usize; 3],
        }
        unsafe extern "C" {
            fn mallinfo2() -> Counts;
        }
        // SAFETY: it takes no arguments, and any thread may call it at any time.
        unsafe { mallinfo2() }.fsmblks
    }

    #[cfg(all(target_env = "gnu", not(miri)))]
    #[test]
    fn freed_blocks_are_merged() {
        const BYTES: usize = 24;
        let blocks: Vec<_> = (0..100_000_u32).map(|_| Box::new([0_u8; BYTES])).collect();
        // The list itself is kept: freeing it would merge the blocks.
        let mut blocks: Vec<_> = blocks.into_iter().map(Some).collect();
        blocks.iter_mut().for_each(|block| drop(block.take()));
        let all = blocks.len() * BYTES;
        assert!(unmerged() >= all, "{} of {all}", unmerged());
        merge_freed();
        assert!(unmerged() < all / 2, "{} of {all}", unmerged());
        drop(blocks);
    }

    #[test]
    fn a_file_of_huge_pages_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let fd = match fs::memfd_create("t", flags) {
            Ok(fd) => fd,
            Err(error) => return eprintln!("skipped: a file of huge pages: {error}"),
        };
        fs::ftruncate(&fd, 2 << 20).unwrap();
        fs::fcntl_add_seals(&fd, TO_BE_SEALED).unwrap();
        let refused = MemoryFile::adopt_filled(fd, 2 << 20).unwrap_err();
        assert!(
            matches!(
                &refused,
                AdoptError::Kernel(error) if error.to_string().contains("plain shared memory")
            ),
            "{refused:?}"
        );
    }

    #[test]
    fn an_unsealed_file_is_refused() {
        let fd = fs::memfd_create("t", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        fs::ftruncate(&fd, 4096).unwrap();
        assert!(matches!(MemoryFile::adopt(fd, 4096), Err(AdoptError::Seals { found: 0, .. })));
    }

    #[test]
    fn a_file_that_could_not_be_written_is_refused_where_both_write() {
        let file = MemoryFile::frozen("t", b"abc").unwrap();
        assert!(matches!(MemoryFile::adopt(file.fd, 3), Err(AdoptError::Seals { .. })));
    }

    #[test]
    fn a_short_file_is_refused() {
        let file = MemoryFile::create("t", 4096).unwrap();
        assert!(matches!(
            MemoryFile::adopt(file.fd, 4097),
            Err(AdoptError::Short { found: 4096, expected: 4097 })
        ));
    }

    #[test]
    fn something_else_is_refused() {
        let fd = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(matches!(MemoryFile::adopt(fd, 1), Err(AdoptError::Kernel(_))));
    }

    #[test]
    fn a_sealed_file_keeps_its_size() {
        let file = MemoryFile::create("t", 4096).unwrap();
        assert!(fs::ftruncate(&file.fd, 0).is_err());
        assert!(fs::ftruncate(&file.fd, 8192).is_err());
    }

    #[test]
    fn only_the_maker_writes_a_one_writer_file() {
        let (file, map) = MemoryFile::create_for_one_writer("t", 4096).unwrap();
        assert!(map.writable());
        assert!(Mapping::shared(&file).is_err());
        assert!(!Mapping::read_only(&file).unwrap().writable());
    }

    fn holes(fd: &OwnedFd) -> Result<Mapping, AdoptError> {
        MemoryFile::adopt_filled(fd.try_clone().unwrap(), 1 << 20)
    }

    #[test]
    fn a_file_with_a_hole_is_refused_wherever_its_memory_lies() {
        let make = |allocate: &dyn Fn(&OwnedFd)| {
            let file = MemoryFile::unsealed("t", 1 << 20).unwrap();
            allocate(&file.fd);
            fs::fcntl_add_seals(&file.fd, TO_BE_SEALED).unwrap();
            file.fd
        };
        let fill = |fd: &OwnedFd, flags, at, len| fs::fallocate(fd, flags, at, len).unwrap();
        let (none, beyond) = (fs::FallocateFlags::empty(), fs::FallocateFlags::KEEP_SIZE);
        assert!(matches!(
            holes(&make(&|_| {})),
            Err(AdoptError::Holes { found: 0, expected: 0x10_0000 })
        ));
        assert!(matches!(
            holes(&make(&|fd| fill(fd, none, 4096, 1 << 19))),
            Err(AdoptError::Holes { .. })
        ));
        // As many pages as the file has bytes for, but all of them beyond its end.
        assert!(matches!(
            holes(&make(&|fd| fill(fd, beyond, 1 << 20, 1 << 20))),
            Err(AdoptError::Holes { found: 0, .. })
        ));
        // The announced part has no pages.
        let longer = |fd: &OwnedFd| {
            fs::ftruncate(fd, 2 << 20).unwrap();
            fill(fd, none, 1 << 20, 1 << 20);
        };
        assert!(matches!(holes(&make(&longer)), Err(AdoptError::Holes { .. })));
        assert!(holes(&make(&|fd| fill(fd, none, 0, 1 << 20))).is_ok());
    }

    #[test]
    fn a_file_that_was_adopted_without_holes_cannot_get_one() {
        let (file, own) = MemoryFile::create_filled("t", 1 << 20).unwrap();
        let other = holes(&file.fd).unwrap();
        let reopened =
            fs::open(format!("/proc/self/fd/{}", file.fd.as_raw_fd()), OFlags::RDWR, Mode::empty())
                .unwrap();
        for fd in [&file.fd, &reopened] {
            let punch = fs::FallocateFlags::PUNCH_HOLE | fs::FallocateFlags::KEEP_SIZE;
            assert!(fs::fallocate(fd, punch, 0, 4096).is_err());
            assert!(fs::ftruncate(fd, 0).is_err() && rustix::io::pwrite(fd, &[1], 0).is_err());
            assert!(fs::fcntl_add_seals(fd, SealFlags::WRITE).is_err());
        }
        assert!(Mapping::shared(&file).is_err(), "no third mapping writes");
        for map in [&own, &other] {
            // SAFETY: the page is in the mapping.
            let removed =
                unsafe { mm::madvise(map.start.as_ptr().cast(), 4096, mm::Advice::LinuxRemove) };
            assert!(removed.is_err());
        }
        // SAFETY: the byte is in the mapping, which only this thread writes.
        unsafe { own.start.as_ptr().write_volatile(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { other.start.as_ptr().read_volatile() }, 7);
        assert_eq!(file.allocated(), 1 << 20);
    }

    #[test]
    fn files_with_other_seals_are_not_adopted_filled() {
        let sealed = |seals| {
            let file = MemoryFile::unsealed("t", 1 << 20).unwrap();
            file.allocate().unwrap();
            fs::fcntl_add_seals(&file.fd, seals).unwrap();
            file.fd
        };
        for seals in [
            BOTH_WRITE,
            ONE_WRITES,
            TO_BE_SEALED | SealFlags::WRITE,
            SealFlags::GROW,
            SealFlags::SHRINK,
        ] {
            assert!(matches!(holes(&sealed(seals)), Err(AdoptError::Seals { .. })), "{seals:?}");
        }
        assert!(holes(&sealed(TO_BE_SEALED)).is_ok());
    }

    #[test]
    fn a_part_that_was_given_back_is_zero_and_takes_no_memory() {
        let file = MemoryFile::create("t", 1 << 40).unwrap();
        let part = Mapping::part(&file, 1 << 39, 1 << 16).unwrap();
        assert_eq!((part.len(), file.allocated()), (1 << 16, 0));
        rustix::io::pwrite(&file.fd, &[1; 8192], 1 << 39).unwrap();
        assert_eq!(file.allocated(), 8192);
        file.give_back(1 << 39, 1 << 16).unwrap();
        assert_eq!(file.allocated(), 0);
        for (at, len) in [
            (1 << 40, 4096),
            ((1 << 40) - 4096, 8192),
            (0, 0),
            (1, 4096),
            (usize::MAX - 4095, 4096),
        ] {
            assert!(Mapping::part(&file, at, len).is_err(), "{at}, {len}");
        }
    }

    #[test]
    fn the_search_for_pages_that_exist_finds_those_and_makes_none() {
        const PAGE: usize = 4096;
        let file = MemoryFile::create("t", 1 << 34).unwrap();
        let found = |range: Range<usize>| {
            let mut runs = Vec::new();
            file.each_backed(range, |run| {
                runs.push(run);
                Ok(())
            })
            .unwrap();
            runs
        };
        assert!(found(0..1 << 34).is_empty());
        for page in [3, 4, 1 << 20] {
            rustix::io::pwrite(&file.fd, b"x", (page * PAGE) as u64 + 17).unwrap();
        }
        let all = vec![3 * PAGE..5 * PAGE, PAGE << 20..(PAGE << 20) + PAGE];
        assert_eq!(found(0..1 << 34), all);
        assert_eq!(found(4 * PAGE..5 * PAGE), vec![4 * PAGE..5 * PAGE; 1]);
        assert_eq!(file.allocated(), 3 * PAGE as u64);
    }

    #[test]
    fn frozen_bytes_come_back() {
        let file = MemoryFile::frozen("t", b"hello").unwrap();
        assert_eq!(MemoryFile::read_all(&file.fd, 100).unwrap(), b"hello");
        assert!(MemoryFile::read_all(&file.fd, 4).is_err());
    }

    #[test]
    fn what_a_process_has_open_is_found_by_its_name() {
        let name = format!("upcall-found-{}", std::process::id());
        let own = std::process::id();
        assert!(files_of(own, &name).unwrap().is_empty());
        let (file, _map) = MemoryFile::create_for_one_writer(&name, 100).unwrap();
        let _other = MemoryFile::create(&format!("{name}-not"), 100).unwrap();
        let found = files_of(own, &name).unwrap();
        assert_eq!(found.len(), 1);
        let found = MemoryFile::adopt_read_only(found.into_iter().next().unwrap(), 100).unwrap();
        assert!(Mapping::shared(&found).is_err() && Mapping::read_only(&found).is_ok());
        drop(file);
        assert_eq!(files_of(own, &name).unwrap().len(), 1);
        drop(found);
        assert!(files_of(own, &name).unwrap().is_empty() && files_of(u32::MAX, &name).is_err());
    }
}
