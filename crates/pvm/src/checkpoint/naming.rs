//! How the file of a checkpoint gets its name, and what a writer leaves that is killed.
//!
//! ```text
//! Create       a file without a name (O_TMPFILE), locked
//! Sync         all of it is on the disk
//! Link         FILE is not there: it is this file from now on
//!              FILE is there: this file is FILE.new.PROCESS.RANDOM
//! Rename       it takes the place of FILE
//! SyncFolder   the name is on the disk
//! Clean        what writers of FILE have left that were killed
//! ```
//! Where a file system has no files without names, the file is FILE.new.PROCESS.RANDOM from Create
//! on.
//!
//! # A writer that is killed
//! FILE leads to the former file until Link or Rename, and to the new one from then on. Both are
//! one step of the kernel, and the new file is whole by then. A file without a name goes with its
//! writer. The kernel lets no link take another file's place, so between Link and Rename there are
//! two names, and FILE.new… can stay behind. It stays until the next checkpoint of the same name,
//! or a restart from it, and not longer:
//!
//! | killed before | left, with O_TMPFILE | left, without |
//! |---|---|---|
//! | Create, Sync | nothing | FILE.new… after Create |
//! | Link | nothing | (no such step) |
//! | Rename | FILE.new… if FILE was there | FILE.new… |
//! | SyncFolder, Clean | nothing | nothing |
//!
//! # Why nothing is removed that is in use
//! A writer holds a lock of its file as long as the file has a name of its own. The kernel gives
//! the lock back when the writer ends. With O_TMPFILE, the lock is there before the name.
//! Otherwise, the writer locks the file and then checks that the name still leads to it. [`clean`]
//! locks a file before it removes the name, and checks then that the name leads to this file. So
//! the writer has ended, or has not begun: then it finds its file without a name, and makes
//! another one. Any process that can open the file can hold its lock. So a writer and [`clean`]
//! wait for no lock: what is locked stays.

use super::MAGIC;
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, fsync, linkat, open,
    renameat, statat, unlink,
};
use rustix::io::Errno;
use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::BuildHasher;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Only the owner reads a checkpoint: it has the memory of all tasks.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Comes between the file's name and the process that writes it.
const NEW: &str = ".new.";
/// Number of digits of the random part.
const DIGITS: usize = 16;
/// Maximum length of what such a name has of the file's name, in bytes. With the rest it is shorter
/// than what any file system allows.
const LONGEST: usize = 100;
/// Maximum number of attempts to make a file that is locked and still has its name.
const ATTEMPTS: usize = 16;

/// What the writer is about to do; see the module. Tests kill it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamingStep {
    Create,
    Sync,
    Link,
    Rename,
    SyncFolder,
    Clean,
}

/// Whether a file is to have no name until it is whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UntilWhole {
    /// If the file system can do that.
    #[default]
    Unnamed,
    /// As if it could not.
    Named,
}

/// The file that had the name before, if there was one. Its contents go when this is dropped.
pub(super) type FormerFile = Option<OwnedFd>;

/// A file that is not visible under its name yet.
#[derive(Debug)]
pub(super) struct NewFile {
    pub(super) file: File,
    /// Its name until then, where it has to have one.
    name: Option<PathBuf>,
}

impl NewFile {
    /// A file that is to have this path.
    ///
    /// # Errors
    /// Those of the kernel. Also those of the name: nothing may be written first.
    pub(super) fn create(path: &Path, until: UntilWhole) -> io::Result<Self> {
        let named = path.file_name().is_some() && !path.is_dir();
        let folder = path.parent().filter(|_| named).ok_or(io::ErrorKind::IsADirectory)?;
        match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map(|stat| kind(&stat)) {
            Ok(FileType::RegularFile | FileType::Symlink) | Err(Errno::NOENT) => {}
            Ok(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "there is something else of this name, which a checkpoint does not replace",
                ));
            }
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let unnamed = match until {
            UntilWhole::Unnamed => open(folder, flags | OFlags::TMPFILE, MODE),
            UntilWhole::Named => Err(Errno::OPNOTSUPP),
        };
        match unnamed {
            Ok(file) => {
                // A file system may have no locks. Then what is left of a killed writer stays.
                let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
                return Ok(Self { file: file.into(), name: None });
            }
            // What file systems, and kernels, without such files say.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        for _ in 0..ATTEMPTS {
            let name = other_name(path);
            let file = open(&name, flags | OFlags::CREATE | OFlags::EXCL, MODE)?;
            let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
            let new = Self { file: file.into(), name: Some(name) };
            // Another process may have taken it for what a killed writer has left.
            if locked != Err(Errno::WOULDBLOCK)
                && new.name.iter().all(|name| names(name, &new.file) == NameLeads::ToFile)
            {
                return Ok(new);
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Puts the file in the place of this one, once it is on the disk. `step` is called before each
    /// step.
    pub(super) fn take_name(
        &mut self,
        path: &Path,
        step: &mut dyn FnMut(NamingStep),
    ) -> io::Result<FormerFile> {
        if self.name.is_none() {
            let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let link = |to: &Path| linkat(CWD, &*own, CWD, to, AtFlags::SYMLINK_FOLLOW);
            step(NamingStep::Link);
            match link(path) {
                Ok(()) => {
                    step(NamingStep::SyncFolder);
                    return sync_folder(path).map(|()| None);
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            let name = other_name(path);
            link(&name)?;
            self.name = Some(name);
        }
        let former = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        step(NamingStep::Rename);
        if let Some(name) = &self.name {
            renameat(CWD, name, CWD, path)?;
        }
        self.name = None;
        step(NamingStep::SyncFolder);
        sync_folder(path)?;
        Ok(former.ok())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        self.name.iter().for_each(|name| _ = unlink(name));
    }
}

/// Where a name leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameLeads {
    ToFile,
    Elsewhere,
}

fn names(name: &Path, file: impl AsFd) -> NameLeads {
    let found = statat(CWD, name, AtFlags::SYMLINK_NOFOLLOW);
    let same = |one: Stat, other: Stat| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino);
    match found.and_then(|found| Ok((found, fstat(file)?))) {
        Ok((found, own)) if same(found, own) => NameLeads::ToFile,
        _ => NameLeads::Elsewhere,
    }
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// What names of new files begin with that are to have this path.
fn beginning(path: &Path) -> OsString {
    let name = path.file_name().unwrap_or_default();
    let mut end = name.len().min(LONGEST);
    if let Some(text) = name.to_str() {
        while !text.is_char_boundary(end) {
            end -= 1;
        }
    }
    let mut bytes = name.as_bytes()[..end].to_vec();
    bytes.extend_from_slice(NEW.as_bytes());
    OsString::from_vec(bytes)
}

/// A name beside the file's, which no other file has. A machine that was killed may have left one,
/// and had the same process number in another namespace.
fn other_name(path: &Path) -> PathBuf {
    let mut name = beginning(path);
    let random = RandomState::new().hash_one(0);
    name.push(format!("{}.{random:0DIGITS$x}", std::process::id()));
    path.with_file_name(name)
}

/// Whether a name is one of a new file that is to have some path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewName {
    Is,
    IsNot,
}

fn is_new(name: &OsStr, beginning: &OsStr) -> NewName {
    let rest = name.as_bytes().strip_prefix(beginning.as_bytes());
    let parts = rest.and_then(|rest| std::str::from_utf8(rest).ok()?.split_once('.'));
    let is_digit = |one: char| one.is_ascii_digit();
    let is_random = |one: char| one.is_ascii_digit() || ('a'..='f').contains(&one);
    match parts {
        Some((process, random))
            if !process.is_empty()
                && process.chars().all(is_digit)
                && random.len() == DIGITS
                && random.chars().all(is_random) =>
        {
            NewName::Is
        }
        _ => NewName::IsNot,
    }
}

/// Removes what writers of this path have left that were killed. Errors end it: the next checkpoint
/// tries again.
pub(crate) fn clean(path: &Path) {
    let (Some(folder), beginning) = (path.parent(), beginning(path)) else { return };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Ok(all) = std::fs::read_dir(folder) else { return };
    for one in all.flatten() {
        if is_new(&one.file_name(), &beginning) == NewName::Is {
            let _ = remove_left(&one.path());
        }
    }
}

/// Removes a file if it is a checkpoint, or the empty beginning of one, and its writer has ended.
fn remove_left(name: &Path) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(name, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Ok(());
    }
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let mut first = Vec::new();
    (&file).take(MAGIC.len() as u64).read_to_end(&mut first)?;
    if MAGIC.starts_with(&first) && names(name, &file) == NameLeads::ToFile {
        unlink(name)?;
    }
    Ok(())
}

/// Makes the file's contents last.
pub(super) fn sync(file: &File) -> io::Result<()> {
    Ok(fsync(file)?)
}

/// Makes the file's name last.
fn sync_folder(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder: OwnedFd = open(path.parent().unwrap_or(path), flags, Mode::empty())?;
    match fsync(&folder) {
        // Some file systems cannot do that.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn files(folder: &Path) -> Vec<String> {
        let all = std::fs::read_dir(folder).unwrap().flatten();
        let mut all = all.map(|one| one.file_name().into_string().unwrap()).collect::<Vec<_>>();
        all.sort();
        all
    }

    #[test]
    fn a_file_takes_its_name_in_either_way_and_leaves_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        for (until, first) in [(UntilWhole::Unnamed, 0), (UntilWhole::Named, 1)] {
            for (number, former) in [(1, false), (2, true)] {
                let mut new = NewFile::create(&path, until).unwrap();
                (&new.file).write_all(&[number]).unwrap();
                let others = files(folder.path()).iter().filter(|one| *one != "state").count();
                assert_eq!(others, first, "{until:?}");
                // What a living writer has is left alone.
                clean(&path);
                let had = new.take_name(&path, &mut |_| {}).unwrap();
                assert_eq!((had.is_some(), files(folder.path())), (former, vec!["state".into()]));
                assert_eq!(std::fs::read(&path).unwrap(), [number]);
            }
            std::fs::remove_file(&path).unwrap();
            drop(NewFile::create(&path, until).unwrap());
            assert!(files(folder.path()).is_empty(), "{until:?}");
        }
    }

    #[test]
    fn what_a_killed_writer_has_left_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let named = |name: &str, contents: &[u8]| {
            std::fs::write(folder.path().join(name), contents).unwrap();
        };
        named("state.new.12.0123456789abcdef", b"UPVMSAVE and more");
        named("state.new.4294967295.ffffffffffffffff", b"");
        // A foreign file, and names that no writer gives.
        let kept = [
            "state",
            "state.new.1.0123456789abcde",
            "state.new.1.0123456789abcdeF",
            "state.new..0123456789abcdef",
            "state.new.12.0123456789abcdef.gz",
            "other.new.12.0123456789abcdef",
            "xstate.new.12.0123456789abcdef",
        ];
        kept.iter().for_each(|name| named(name, b"UPVMSAVE"));
        named("state.new.7.0123456789abcdef", b"a letter");
        std::fs::create_dir(folder.path().join("state.new.8.0123456789abcdef")).unwrap();
        clean(&path);
        let mut expected = kept.map(String::from).to_vec();
        expected.extend([7, 8].map(|one| format!("state.new.{one}.0123456789abcdef")));
        expected.sort();
        assert_eq!(files(folder.path()), expected);
    }

    #[test]
    fn names_of_any_length_and_bytes_are_written_or_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let longest = "x".repeat(255);
        let long = "é".repeat(127);
        let odd = OsStr::from_bytes(b"a b\n\x1b[2J\xff");
        for name in [OsStr::new(&longest), OsStr::new(&long), odd] {
            let path = folder.path().join(name);
            for until in [UntilWhole::Unnamed, UntilWhole::Named, UntilWhole::Unnamed] {
                let mut new = NewFile::create(&path, until).unwrap();
                new.take_name(&path, &mut |_| {}).unwrap();
            }
            let mut other = beginning(&path);
            other.push("1.0123456789abcdef");
            std::fs::write(folder.path().join(&other), b"").unwrap();
            clean(&path);
            assert!(!folder.path().join(other).exists(), "{name:?}");
        }
        let refused = |path: &Path| NewFile::create(path, UntilWhole::Unnamed).unwrap_err();
        let error = refused(&folder.path().join("x".repeat(256)));
        assert_eq!(error.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
        assert_eq!(refused(folder.path()).kind(), io::ErrorKind::IsADirectory);
        let error = refused(Path::new("/dev/null"));
        assert!(error.to_string().contains("does not replace"), "{error}");
    }
}
