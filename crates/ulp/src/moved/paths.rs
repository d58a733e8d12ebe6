//! Open files of a ULP that moves to another host, which opens them by their paths.
//!
//! ```text
//! first host                                          second host
//! Ulp::name_files   path, flags, offset, identity ──► ArrivingUlp::open_files   opens, compares
//! ```
//! Only regular files have contents that another host may have, too. The descriptors that share an
//! offset there share one here: [`UlpFile`] is an open file, and each descriptor names one.
//!
//! # The same file
//! Within one kernel it is the same device and inode. Hosts that mount a file system of a server
//! have the same inode numbers, and devices of their own. So the kind of the file system, the
//! inode, the length and the time of the last change must be equal there. A file that the program
//! may write to must be on a file system that hosts share ([`SHARED`]): a copy of it, as clones of
//! one disk have, would get what the program writes afterwards, without an error. Virtual machines
//! that go on from one snapshot look like one kernel. Such a copy counts there as the same file
//! until one of the two is written to.
//!
//! # Data that was not written back
//! Clients of a file system such as NFS have data that the server does not have yet, and a time of
//! the last change that is not the server's. What they promise is that one who opens a file sees
//! what others wrote before they closed it. The first host keeps the file open until the move is
//! decided. So it writes the data back (`fsync`) before it takes the identity, and has the server
//! asked for that. The second host opens the file after that, which has the server asked again.
//! The data is written back by a new open file: an error of an earlier write stays with the
//! program's own, whose next `fsync` or `close` reports it. Within a kernel all have the same data.

use super::arriving::{ArrivingUlp, NotArrived, unfit};
use super::files::STANDARD;
use super::named::{FileIdentity, FileLack, FilePin, FileStays, SHARED, UlpFile};
use super::state::{UlpDescriptor, UlpState};
use crate::own::OwnFiles;
use crate::ulp::Ulp;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::read_link;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Maximum number of open files of a ULP that moves to another host.
const MOST_FILES: usize = 256;
/// Maximum number of descriptors of such a ULP.
const MOST_DESCRIPTORS: usize = 1024;
/// Maximum length of a path, in bytes: the kernel's, without the final 0.
const MOST_PATH: usize = 4095;

/// The access mode, and the status flags that an open file keeps. Flags such as `O_CREAT` and
/// `O_TRUNC` are not among them.
const KEPT: OFlags = OFlags::ACCMODE
    .union(OFlags::APPEND)
    .union(OFlags::NONBLOCK)
    .union(OFlags::DIRECT)
    .union(OFlags::NOATIME)
    .union(OFlags::SYNC)
    .union(OFlags::DSYNC)
    .union(OFlags::LARGEFILE);

/// File systems whose files are the kernel's words about itself: proc, sysfs, debugfs, tracefs,
/// cgroup (two), securityfs, configfs, bpf, efivarfs, selinuxfs, and binfmt_misc.
const OF_KERNEL: [u64; 12] = [
    0x9FA0,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x0027_E0EB,
    0x6367_7270,
    0x7363_6673,
    0x6265_6570,
    0xCAFE_4A11,
    0xDE5E_81E4,
    0xF97C_FF8C,
    0x4249_4E4D,
];

/// What is done with data that was not written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteBack {
    Now,
    Later,
}

/// Identifies the kernel that runs now.
fn own_kernel() -> u128 {
    static OWN: LazyLock<u128> = LazyLock::new(|| {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        u128::from_str_radix(&boot.trim().replace('-', ""), 16).unwrap_or(0)
    });
    *OWN
}

/// What is known of a file, by this host's word or, before a move, by its server's.
fn about(file: BorrowedFd<'_>, when: WriteBack) -> rustix::io::Result<Statx> {
    let asks = match when {
        WriteBack::Now => AtFlags::STATX_FORCE_SYNC,
        WriteBack::Later => AtFlags::STATX_DONT_SYNC,
    };
    rustix::fs::statx(file, "", AtFlags::EMPTY_PATH | asks, StatxFlags::BASIC_STATS)
}

fn device_of(about: &Statx) -> [u32; 2] {
    [about.stx_dev_major, about.stx_dev_minor]
}

/// The kind of the file system of a file.
fn system_of(file: BorrowedFd<'_>) -> rustix::io::Result<u64> {
    // Kinds have 32 bits, and some kernels extend their sign.
    rustix::fs::fstatfs(file).map(|system| u64::from(system.f_type as u32))
}

/// Which file this is, in which state.
fn identity_of(file: BorrowedFd<'_>, when: WriteBack) -> rustix::io::Result<FileIdentity> {
    let about = about(file, when)?;
    Ok(FileIdentity {
        kernel: own_kernel(),
        system: system_of(file)?,
        device: device_of(&about),
        inode: about.stx_ino,
        length: about.stx_size,
        seconds: about.stx_mtime.tv_sec,
        nanoseconds: about.stx_mtime.tv_nsec,
    })
}

/// Returns `true` if a file with these flags can be written to.
fn writes(flags: OFlags) -> bool {
    flags & OFlags::ACCMODE != OFlags::RDONLY
}

/// The path of an open file in `/proc`, which leads to that file even after it was renamed.
fn own_path(file: RawFd) -> PathBuf {
    format!("/proc/self/fd/{file}").into()
}

/// Whether two descriptors of this process are one open file. `None`: the kernel does not say.
fn are_one(one: RawFd, other: RawFd) -> Option<bool> {
    /// From Linux 6.10 on.
    const F_DUPFD_QUERY: i32 = 1027;
    const KCMP_FILE: i32 = 0;
    // SAFETY: compares descriptors, and uses no memory.
    match unsafe { libc::fcntl(one, F_DUPFD_QUERY, other) } {
        found @ 0.. => return Some(found == 1),
        _ if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL) => return None,
        _ => {}
    }
    let own = std::process::id();
    // SAFETY: as above.
    match unsafe { libc::syscall(libc::SYS_kcmp, own, own, KCMP_FILE, one, other) } {
        found @ 0..=3 => Some(found == 0),
        _ => None,
    }
}

/// What the kind of a file's contents means for a move to another host.
fn check_kind(about: &Statx) -> Result<(), FileStays> {
    match FileType::from_raw_mode(about.stx_mode.into()) {
        FileType::RegularFile => Ok(()),
        FileType::Fifo => Err(FileStays::Pipe),
        FileType::Socket => Err(FileStays::Socket),
        FileType::CharacterDevice | FileType::BlockDevice => Err(FileStays::Device),
        FileType::Directory => Err(FileStays::Folder),
        _ => Err(FileStays::Events),
    }
}

/// The path of a regular file, which leads to it now.
fn checked_path(file: BorrowedFd<'_>, about: &Statx) -> Result<Vec<u8>, FileStays> {
    let path = read_link(own_path(file.as_raw_fd())).map_err(|_| FileStays::Unknown)?;
    if !path.is_absolute() {
        return Err(FileStays::Events);
    }
    if about.stx_nlink == 0 {
        return Err(FileStays::Deleted);
    }
    let (flags, mask) = (AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
    let found = rustix::fs::statx(CWD, &path, flags, mask);
    let is_same =
        |found: &Statx| (device_of(found), found.stx_ino) == (device_of(about), about.stx_ino);
    if !found.is_ok_and(|found| is_same(&found)) {
        return Err(FileStays::Renamed);
    }
    let path = path.into_os_string().into_vec();
    if path.len() > MOST_PATH { Err(FileStays::LongPath) } else { Ok(path) }
}

/// Returns an error if an open file has a lock of `flock` or `fcntl`, or a lease.
fn check_locks(file: BorrowedFd<'_>) -> Result<(), FileStays> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()));
    let about = about.map_err(|_| FileStays::Unknown)?;
    let is_locked = about.lines().any(|line| line.starts_with("lock:"));
    if is_locked { Err(FileStays::Locked) } else { Ok(()) }
}

/// Writes back what the file system's server does not have yet; see the module comment.
fn write_back(file: BorrowedFd<'_>, flags: OFlags) -> Result<(), FileStays> {
    let how = flags & OFlags::ACCMODE | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let again = rustix::fs::open(own_path(file.as_raw_fd()), how, Mode::empty());
    again.and_then(|again| rustix::fs::fsync(&again)).map_err(|_| FileStays::NotWritten)
}

/// Names an open file of the ULP, so that another host can open it.
fn named(file: BorrowedFd<'_>, when: WriteBack) -> Result<UlpFile, FileStays> {
    let unknown = |_| FileStays::Unknown;
    let flags = rustix::fs::fcntl_getfl(file).map_err(unknown)?;
    if flags.contains(OFlags::PATH) {
        return Err(FileStays::Name);
    }
    let before = about(file, when).map_err(unknown)?;
    check_kind(&before)?;
    let path = checked_path(file, &before)?;
    let system = system_of(file).map_err(unknown)?;
    if OF_KERNEL.contains(&system) {
        return Err(FileStays::Kernel);
    }
    check_locks(file)?;
    if when == WriteBack::Now && writes(flags) && SHARED.contains(&system) {
        write_back(file, flags)?;
    }
    let identity = identity_of(file, when).map_err(unknown)?;
    let offset = rustix::fs::tell(file).map_err(unknown)?;
    Ok(UlpFile { path, flags: (flags & KEPT).bits(), offset, identity })
}

/// Names the open files of descriptors. Each descriptor learns which one it is.
fn name_all(all: &mut [UlpDescriptor], when: WriteBack) -> Result<Vec<UlpFile>, FilePin> {
    let (mut files, mut firsts) = (Vec::<UlpFile>::new(), Vec::<RawFd>::new());
    if let Some(more) = all.get(MOST_DESCRIPTORS) {
        return Err(FilePin { number: more.number, why: FileStays::TooMany });
    }
    for one in all {
        let pin = |why| FilePin { number: one.number, why };
        let is_one = |other: RawFd| are_one(one.real, other).ok_or(pin(FileStays::Unknown));
        // SAFETY: the descriptor is the ULP's, which does not run, so it stays open.
        let file = unsafe { BorrowedFd::borrow_raw(one.real) };
        let named = named(file, when).map_err(pin)?;
        for standard in 0..STANDARD {
            // A process may have closed it.
            if are_one(one.real, standard) == Some(true) {
                return Err(pin(FileStays::Standard));
            }
        }
        let mut known = None;
        for (at, first) in firsts.iter().enumerate() {
            if files[at].path == named.path && known.is_none() && is_one(*first)? {
                known = Some(at);
            }
        }
        let at = known.unwrap_or(files.len());
        if at == MOST_FILES {
            return Err(pin(FileStays::TooMany));
        }
        if known.is_none() {
            files.push(named);
            firsts.push(one.real);
        }
        one.file = Some(at as u32);
    }
    Ok(files)
}

impl Ulp {
    /// Adds to a state what another host needs to open the ULP's files. Writes data back.
    ///
    /// # Errors
    /// The descriptor that keeps the ULP on this host.
    ///
    /// # Blocking
    /// Until the file system has stored what was written to files that hosts share.
    pub fn name_files(&self, state: &mut UlpState) -> Result<(), FilePin> {
        state.files = name_all(&mut state.descriptors, WriteBack::Now)?;
        Ok(())
    }

    /// The descriptor that keeps the ULP on this host, as far as that is known before it moves.
    pub fn pinned_to_host(&self) -> Option<FilePin> {
        let files = OwnFiles::get().ok()?;
        let mut opened = self.opened(&files.memory).ok()?;
        name_all(&mut opened, WriteBack::Later).err()
    }
}

impl ArrivingUlp {
    /// Opens the ULP's files by their paths, which must lead to the same files as on the host that
    /// it has left.
    ///
    /// Nothing but a regular file is opened: a FIFO or a device in its place has no effect. The
    /// final part of a path may be no symbolic link.
    ///
    /// # Errors
    /// The file that is not the same here, or cannot be opened; or the descriptors are not valid,
    /// or too many.
    pub fn open_files(&mut self) -> Result<(), NotArrived> {
        let UlpState { descriptors, files, .. } = &self.state;
        self.descriptors = opened(descriptors, files)?;
        Ok(())
    }
}

/// Opens files for descriptors that another host has sent.
fn opened(descriptors: &[UlpDescriptor], files: &[UlpFile]) -> Result<Vec<OwnedFd>, NotArrived> {
    let count = descriptors.len();
    if count > MOST_DESCRIPTORS {
        return Err(unfit("number of descriptors", count as u64));
    }
    if files.len() > MOST_FILES.min(count) {
        return Err(unfit("number of files", files.len() as u64));
    }
    let mut firsts = vec![None; files.len()];
    let mut all = Vec::with_capacity(count);
    let mut least = 0;
    for one in descriptors {
        let invalid = unfit("descriptor", u64::from(one.number.cast_unsigned()));
        let at = one.file.and_then(|at| usize::try_from(at).ok()).filter(|at| *at < files.len());
        let (Some(at), true) = (at, one.number >= least) else { return Err(invalid) };
        // The kernel's largest number is far below.
        least = one.number.saturating_add(1);
        let opened = match firsts[at].and_then(|first: usize| all.get(first)) {
            Some(first) => rustix::io::fcntl_dupfd_cloexec(first, STANDARD)
                .map_err(|_| NotArrived::Descriptors(count))?,
            None => {
                firsts[at] = Some(all.len());
                open(&files[at], count)?
            }
        };
        all.push(opened);
    }
    Ok(all)
}

/// Opens a file that another host has named, if it is the same one here.
fn open(file: &UlpFile, count: usize) -> Result<OwnedFd, NotArrived> {
    let flags = OFlags::from_bits_retain(file.flags);
    if !KEPT.contains(flags) || flags & OFlags::ACCMODE == OFlags::ACCMODE {
        return Err(unfit("flags of a file", file.flags.into()));
    }
    let path = Path::new(OsStr::from_bytes(&file.path));
    if !path.is_absolute() || file.path.len() > MOST_PATH || file.path.contains(&0) {
        return Err(unfit("path of a file", file.path.len() as u64));
    }
    if i64::try_from(file.offset).is_err() {
        return Err(unfit("offset of a file", file.offset));
    }
    let lacks = |lack| NotArrived::File { path: path.into(), lack };
    let failed = |error| match error {
        Errno::MFILE | Errno::NFILE => NotArrived::Descriptors(count),
        Errno::NOENT | Errno::NOTDIR => lacks(FileLack::Missing),
        Errno::LOOP => lacks(FileLack::Kind),
        Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY => lacks(FileLack::Denied),
        error => lacks(FileLack::Error(error.raw_os_error())),
    };
    // This opens nothing yet, so it has no effect on what is there.
    let name = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let name = rustix::fs::open(path, name, Mode::empty()).map_err(failed)?;
    let mask = StatxFlags::TYPE;
    let kind = rustix::fs::statx(&name, "", AtFlags::EMPTY_PATH, mask).map_err(failed)?;
    if check_kind(&kind).is_err() {
        return Err(lacks(FileLack::Kind));
    }
    // By the name's descriptor, this is the file that was looked at.
    let how = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(own_path(name.as_raw_fd()), how, Mode::empty());
    let opened = opened.map_err(failed)?;
    let found = identity_of(opened.as_fd(), WriteBack::Now).map_err(failed)?;
    if let Some(lack) = file.identity.difference(&found, writes(flags)) {
        return Err(lacks(lack));
    }
    rustix::fs::fcntl_setfl(&opened, flags).map_err(failed)?;
    rustix::fs::seek(&opened, SeekFrom::Start(file.offset)).map_err(failed)?;
    if opened.as_raw_fd() >= STANDARD {
        return Ok(opened);
    }
    rustix::io::fcntl_dupfd_cloexec(&opened, STANDARD).map_err(failed)
}

#[cfg(test)]
mod tests;
