//! A file system that is a program (FUSE), and answers only when it chooses.
//!
//! To its users it is like a network file system: the kernel waits for an answer from elsewhere. It
//! has one file. When a chosen process closes a descriptor of the file, the close waits until
//! [`SlowFiles`] is dropped, and even a kill does not end that. Nothing can be created in its
//! folder.

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation,
    INodeNo,
};
use fuser::{LockOwner, MountOption, ReplyAttr, ReplyEmpty, ReplyEntry, Request};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{getgid, getuid};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use upcall_os::lock::{KernelMutex, MutexGuard};

const FILE: &str = "file";
const FILES_NUMBER: INodeNo = INodeNo(2);

/// Time for which the kernel caches an answer.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// What happens to closes.
#[derive(Debug)]
enum Closings {
    /// They wait.
    Wait(Vec<ReplyEmpty>),
    /// They return.
    End,
}

impl Closings {
    fn take(&mut self, one: ReplyEmpty) {
        match self {
            Self::Wait(all) => all.push(one),
            Self::End => one.ok(),
        }
    }
}

fn locked(closings: &KernelMutex<Closings>) -> MutexGuard<'_, Closings> {
    closings.lock()
}

struct Answers {
    closings: Arc<KernelMutex<Closings>>,
    /// The process whose closes wait.
    of: u32,
}

impl Answers {
    fn attributes(number: INodeNo) -> FileAttr {
        let (kind, perm) = if number == FILES_NUMBER {
            (FileType::RegularFile, 0o600)
        } else {
            (FileType::Directory, 0o700)
        };
        let time = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino: number,
            size: 4096,
            blocks: 8,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid: getuid().as_raw(),
            gid: getgid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Answers {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == FILE {
            reply.entry(&REMEMBERED, &Self::attributes(FILES_NUMBER), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&REMEMBERED, &Self::attributes(number));
    }

    /// The kernel passes the ID of the thread that closes.
    fn flush(&self, request: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        if Path::new(&format!("/proc/{}/task/{}", self.of, request.pid())).exists() {
            locked(&self.closings).take(reply);
        } else {
            reply.ok();
        }
    }
}

/// A mounted slow file system. See the module.
#[derive(Debug)]
pub struct SlowFiles {
    closings: Arc<KernelMutex<Closings>>,
    _session: BackgroundSession,
    folder: TempDir,
}

impl SlowFiles {
    /// Mounts the file system in a folder of its own. Closes by the process `of` wait. Returns
    /// `None`, and prints a line, if the kernel has no FUSE or this process may not mount.
    pub fn mount(of: u32) -> Option<Self> {
        let mounted = Self::try_mount(of);
        mounted
            .inspect_err(|error| eprintln!("skipped: a file system that is a program: {error}"))
            .ok()
    }

    fn try_mount(of: u32) -> io::Result<Self> {
        let closings = Arc::new(KernelMutex::new(Closings::Wait(Vec::new())));
        let folder = TempDir::new()?;
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("upcall-tests".into())];
        let session =
            fuser::spawn_mount(Answers { closings: closings.clone(), of }, &folder, &config)?;
        Ok(Self { closings, _session: session, folder })
    }

    /// The folder where it is mounted.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Opens its file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(&self) -> io::Result<File> {
        File::open(self.folder().join(FILE))
    }

    /// Number of closes that wait.
    pub fn waiting(&self) -> usize {
        match &*locked(&self.closings) {
            Closings::Wait(all) => all.len(),
            Closings::End => 0,
        }
    }
}

impl Drop for SlowFiles {
    fn drop(&mut self) {
        if let Closings::Wait(all) = std::mem::replace(&mut *locked(&self.closings), Closings::End)
        {
            all.into_iter().for_each(ReplyEmpty::ok);
        }
        // Some files may still be open. The file system ends with the last of them.
        let _ = unmount(self.folder.path(), UnmountFlags::DETACH);
    }
}
