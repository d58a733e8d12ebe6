//! What is known of a ULP's open files on another host, and why they are not to be had there.

use serde::{Deserialize, Serialize};
use std::fmt;

/// File systems that several hosts can have in common: NFS, SMB (three), Ceph, AFS (two), Coda, 9P,
/// GFS2, OCFS2, Lustre, GPFS, BeeGFS, PanFS, OrangeFS, VirtualBox, and programs (FUSE).
pub(super) const SHARED: [u64; 18] = [
    0x6969,
    0x517B,
    0xFF53_4D42,
    0xFE53_4D42,
    0x00C3_6400,
    0x5346_414F,
    0x6B41_4653,
    0x7375_7245,
    0x0102_1997,
    0x0116_1970,
    0x7461_636F,
    0x0BD0_0BD0,
    0x4750_4653,
    0x1983_0326,
    0xAAD7_AAEA,
    0x2003_0528,
    0x786F_4256,
    0x6573_5546,
];

/// A regular file that a ULP has open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UlpFile {
    /// The absolute path.
    pub path: Vec<u8>,
    /// Access mode and status flags, as `fcntl(F_GETFL)` returns them.
    pub flags: u32,
    /// The position.
    pub offset: u64,
    /// Which file it is.
    pub identity: FileIdentity,
}

/// What shows whether a file on another host is the same one, in the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    /// The kernel that has opened it, which is another one after each start. 0: not known.
    pub kernel: u128,
    /// Kind of the file system.
    pub system: u64,
    /// The device, as major and minor number.
    pub device: [u32; 2],
    /// The number on the device.
    pub inode: u64,
    /// Size, in bytes.
    pub length: u64,
    /// The time of the last change of the contents, in seconds.
    pub seconds: i64,
    /// The nanoseconds of that.
    pub nanoseconds: u32,
}

/// The reason why a ULP's open file is not to be had on another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileLack {
    /// There is no file with this path.
    Missing,
    /// The path leads to a symbolic link, or to what is not a regular file.
    Kind,
    /// The kernel does not let the process open it.
    Denied,
    /// The path leads to another file.
    OtherFile,
    /// The file has another length.
    Length,
    /// The file was changed at another time.
    Time,
    /// The file is open for writing, and on a file system that hosts do not share.
    NotShared,
    /// The kernel has another reason not to open it, with this number.
    Error(i32),
}

impl fmt::Display for FileLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "is not there",
            Self::Kind => "is not a regular file there",
            Self::Denied => "cannot be opened there",
            Self::OtherFile => "is another file there",
            Self::Length => "has another length there",
            Self::Time => "was changed at another time there",
            Self::NotShared => "is open for writing, and not on a file system that hosts share",
            Self::Error(number) => {
                let error = std::io::Error::from_raw_os_error(*number);
                return write!(f, "cannot be opened there ({error})");
            }
        })
    }
}

/// A descriptor that keeps a ULP on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePin {
    /// The program's number.
    pub number: i32,
    /// The reason.
    pub why: FileStays,
}

/// The reason why a descriptor keeps a ULP on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileStays {
    /// It is a pipe or FIFO.
    Pipe,
    /// It is a socket.
    Socket,
    /// It is a device.
    Device,
    /// It is a folder.
    Folder,
    /// It is for events, such as those of `eventfd` and `epoll_create`, or has no path for another
    /// reason.
    Events,
    /// It only names a file (`O_PATH`).
    Name,
    /// It is a file of `/proc`, `/sys` or a similar folder.
    Kernel,
    /// Its file was deleted.
    Deleted,
    /// The path that its file had does not lead to that file now.
    Renamed,
    /// The path is too long.
    LongPath,
    /// It has a lock.
    Locked,
    /// It is the standard input, output or error of the process, under another number.
    Standard,
    /// Data that was written to the file cannot be written back.
    NotWritten,
    /// The ULP has more descriptors or open files than can move to another host.
    TooMany,
    /// The kernel does not show what it is, or whether it shares its offset with another one.
    Unknown,
}

impl fmt::Display for FilePin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.why {
            FileStays::Pipe => "is a pipe",
            FileStays::Socket => "is a socket",
            FileStays::Device => "is a device",
            FileStays::Folder => "is a folder",
            FileStays::Events => "is no file with a path",
            FileStays::Name => "only names a file (O_PATH)",
            FileStays::Kernel => "is a file of the kernel",
            FileStays::Deleted => "is a deleted file",
            FileStays::Renamed => "is a file that was replaced, or moved away",
            FileStays::LongPath => "is a file whose path is too long",
            FileStays::Locked => "has a lock",
            FileStays::Standard => "is the standard input, output or error of its process",
            FileStays::NotWritten => "has data that cannot be written back",
            FileStays::TooMany => "is one of too many",
            FileStays::Unknown => "cannot be examined",
        };
        write!(f, "its descriptor {} {what}, and stays on its host", self.number)
    }
}

impl FileIdentity {
    fn is_shared(&self) -> bool {
        SHARED.contains(&self.system)
    }

    /// Why a file that was found on another host is not this one. `None`: it is.
    pub(super) fn difference(&self, found: &Self, writes: bool) -> Option<FileLack> {
        let is_one_kernel = self.kernel == found.kernel && self.kernel != 0;
        // The devices of a file system that hosts share may differ within a kernel, too.
        let is_known = is_one_kernel && self.device == found.device || self.is_shared();
        if [self.system, self.inode] != [found.system, found.inode] || is_one_kernel && !is_known {
            Some(FileLack::OtherFile)
        } else if writes && !is_known {
            Some(FileLack::NotShared)
        } else if self.length != found.length {
            Some(FileLack::Length)
        } else if (self.seconds, self.nanoseconds) != (found.seconds, found.nanoseconds) {
            Some(FileLack::Time)
        } else {
            None
        }
    }
}
