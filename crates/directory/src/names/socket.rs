//! The sockets in a folder of names: how a process listens at one, what a socket's name says, and
//! how dead ones are removed.

use super::entry::{self, Holder};
use super::folder::{Sweeps, prepare, sweeps};
use super::{
    BEGINNING, FolderError, GROUP, NotEntered, OBJECT, Whose, check, folder, is_socket, jobs,
};
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use upcall_os::process::pid_namespace;
use upcall_os::socket::{Listener, own_user};

/// Maximum number of sockets that [`listen`] makes before it fails.
const ATTEMPTS: usize = 100;

/// Which processes may connect to a socket, apart from root's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Mode of the socket, 0600 by default; connecting takes the right to write.
    pub mode: Option<u32>,
    /// Group of the socket, by default the group of this process.
    pub group: Option<u32>,
}

/// Listens at a fresh path in the folder of names, for this user.
///
/// # Errors
/// As [`listen_as`].
pub fn listen(whose: Whose) -> Result<(PathBuf, Listener), NotEntered> {
    listen_as(whose, Access::default())
}

/// A group of users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Group {
    /// By number.
    Number(u32),
    /// By name.
    Name(String),
}

impl Group {
    /// Returns the group's number.
    ///
    /// # Errors
    /// There is no group of that name, or the system's list of groups cannot be read.
    pub fn number(&self) -> io::Result<u32> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Name(name) => upcall_os::group::number_of(name),
        }
    }
}

impl From<u32> for Group {
    fn from(number: u32) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Group {
    fn from(name: &str) -> Self {
        Self::Name(name.into())
    }
}

impl From<String> for Group {
    fn from(name: String) -> Self {
        Self::Name(name)
    }
}

/// Listens at a fresh path in the folder of names.
///
/// The socket gets its name once it listens and has its mode and group. Until then its name begins
/// with a dot, and for a moment it looks like the socket of a dead domain. If a sweep removes it in
/// that moment, another socket is made.
///
/// # Errors
/// There is no usable folder of names, the kernel gives no socket, or this user may not give the
/// socket this group.
pub fn listen_as(whose: Whose, access: Access) -> Result<(PathBuf, Listener), NotEntered> {
    let folder = folder()?;
    prepare(&folder)?;
    sweep_in(&folder);
    let unable = |error: io::Error| not_listening(&folder, access, error);
    let mut found = io::Error::from(io::ErrorKind::ResourceBusy);
    for _ in 0..ATTEMPTS {
        let mark = RandomState::new().build_hasher().finish() as u32;
        let space = pid_namespace().unwrap_or(0);
        let name = format!("{}{}.{space:x}.{mark:08x}", whose.prefix(), std::process::id());
        match listen_at(&folder.join(name), access) {
            Ok(listening) => return Ok(listening),
            Err(error) => match error.kind() {
                io::ErrorKind::AddrInUse | io::ErrorKind::AlreadyExists => found = error,
                io::ErrorKind::NotFound if folder.is_dir() => found = error,
                _ => return Err(unable(error)),
            },
        }
    }
    Err(unable(found))
}

/// Why there is no socket in a folder.
pub(super) fn not_listening(folder: &Path, access: Access, error: io::Error) -> NotEntered {
    let shown = folder.display();
    // The kernel's answer to `chown`. A folder that this user may not write gives EACCES.
    let is_chown = error.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error());
    if let Some(group) = access.group.filter(|group| is_chown && !has_group(*group)) {
        let user = own_user();
        let user = upcall_os::user::name_of(user).unwrap_or_else(|| user.to_string());
        let group = upcall_os::group::name_of(group).unwrap_or_else(|| group.to_string());
        let what = format!(
            "user `{user}` is not a member of group `{group}`, so it cannot give that group to its \
             socket in {shown}"
        );
        return NotEntered::Resource { what, error };
    }
    match error.kind() {
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::ReadOnlyFilesystem
        | io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        // The file system has no sockets.
        | io::ErrorKind::Unsupported => FolderError::Unusable { path: folder.into(), error }.into(),
        _ => {
            let what = format!("a socket in {shown} (UPCALL_DIR chooses another folder)");
            NotEntered::Resource { what, error }
        }
    }
}

/// Listens at this path in a folder of names. Returns the path with the listener.
///
/// # Errors
/// The kernel's error: the path exists, or a sweep was faster (`NotFound`).
pub fn listen_at(path: &Path, access: Access) -> io::Result<(PathBuf, Listener)> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let hidden = folder_of(path).join(format!("{BEGINNING}{name}"));
    let listener = Listener::bind(&hidden)?;
    let shown = (|| {
        if access.group.is_some() {
            std::os::unix::fs::chown(&hidden, None, access.group)?;
        }
        fs::set_permissions(&hidden, fs::Permissions::from_mode(access.mode.unwrap_or(0o600)))?;
        rename_new(&hidden, path)
    })();
    match shown {
        Ok(()) => Ok((path.into(), listener)),
        Err(error) => {
            let _ = fs::remove_file(&hidden);
            Err(error)
        }
    }
}

/// Renames a file, and fails if the new name exists.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system does not know `NOREPLACE`; the mark in the name is random.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => fs::rename(from, to),
        renamed => Ok(renamed?),
    }
}

/// The folder that holds a socket and the names that lead to it.
pub(super) fn folder_of(socket: &Path) -> &Path {
    socket.parent().unwrap_or(Path::new("/"))
}

/// The process number in a socket's name, if it is of this process's PID namespace.
pub fn process_of(socket: &Path) -> Option<u32> {
    let (pid, space) = number_in(socket.file_name()?.to_str()?)?;
    (Some(space) == pid_namespace()).then_some(pid)
}

/// Returns `true` if this process may give its files to the group, as far as is known.
fn has_group(group: u32) -> bool {
    let groups = rustix::process::getgroups().unwrap_or_default();
    rustix::process::getegid().as_raw() == group || groups.iter().any(|one| one.as_raw() == group)
}

/// The owner of a socket that only another user may remove: neither the socket nor its folder is
/// this user's, who is not root. `None` for other sockets, and if there is no socket.
pub fn foreign_owner(socket: &Path) -> Option<u32> {
    let owner = fs::symlink_metadata(socket).ok()?.uid();
    let may_remove = sweeps(folder_of(socket)) == Sweeps::All || owner == own_user();
    (!may_remove).then_some(owner)
}

/// Why the kernel does not let this process connect to a socket, and what to do.
///
/// # Blocks
/// As [`upcall_os::user::name_of`].
pub fn not_open(socket: &Path) -> String {
    let (user, path) = (own_user(), socket.display());
    let Ok(found) = fs::symlink_metadata(socket) else {
        return format!(
            "user {user} may not connect to {path}: the mode of its folder does not permit it, so \
             ask the owner of that folder"
        );
    };
    let group = (found.gid(), has_group(found.gid()));
    not_permitted(user, socket, found.mode() & 0o7777, found.uid(), group)
}

/// The text of [`not_open`] for a socket with this mode, owner and group. `group` says whether this
/// process is a member.
fn not_permitted(
    user: u32,
    socket: &Path,
    mode: u32,
    owner: u32,
    (group, is_member): (u32, bool),
) -> String {
    let owner = upcall_os::user::name_of(owner).unwrap_or_else(|| owner.to_string());
    let named = upcall_os::group::name_of(group).unwrap_or_else(|| group.to_string());
    let advice = if mode & 0o020 != 0 && !is_member {
        format!("join group `{named}` and log in again, or ask user `{owner}` for another mode")
    } else {
        format!("ask user `{owner}` for another mode and group")
    };
    format!(
        "user {user} may not connect to {}: the socket's mode and group, {mode:04o} and \
         `{named}`, do not permit it. To connect, {advice}",
        socket.display()
    )
}

/// Returns `true` if the process that made a socket has certainly ended.
///
/// The kernel is asked for the process number in the socket's name, so this works also where this
/// user may not connect. The answer is `false` for a number of another PID namespace, and for a
/// number that another process has now.
pub fn has_ended(socket: &Path) -> bool {
    let number = process_of(socket).and_then(|pid| i32::try_from(pid).ok());
    let process = number.and_then(rustix::process::Pid::from_raw);
    let found = process.map(rustix::process::test_kill_process);
    found == Some(Err(rustix::io::Errno::SRCH))
}

/// The process number in the name of a socket, and the PID namespace in which it holds.
///
/// The namespace is 0 if the process did not know its own.
pub(super) fn number_in(socket: &str) -> Option<(u32, u32)> {
    let mut parts = socket.split('.').skip(1);
    let (pid, space) = (parts.next()?.parse().ok()?, u32::from_str_radix(parts.next()?, 16).ok()?);
    // The mark, which distinguishes the sockets of one process.
    parts.next().filter(|mark| !mark.is_empty())?;
    (pid != 0).then_some((pid, space))
}

/// Removes what dead domains have left in the folder, as far as this user may.
///
/// This costs a connection attempt for each socket.
pub fn sweep() {
    if let Ok(folder) = folder() {
        sweep_in(&folder);
    }
}

pub(super) fn sweep_in(folder: &Path) {
    let sweeps = sweeps(folder);
    let Ok(entries) = fs::read_dir(folder) else { return };
    if sweeps == Sweeps::Nothing {
        return;
    }
    let may = |entry: &fs::DirEntry| {
        sweeps == Sweeps::All || entry.metadata().is_ok_and(|found| found.uid() == own_user())
    };
    let names =
        entries.flatten().filter(may).filter_map(|entry| entry.file_name().into_string().ok());
    let (sockets, names): (Vec<_>, Vec<_>) =
        names.partition(|name| is_socket(name.strip_prefix(BEGINNING).unwrap_or(name)));
    for socket in sockets.iter().map(|name| folder.join(name)) {
        if matches!(entry::holder(&socket), Ok(Holder::Gone)) {
            let _ = fs::remove_file(socket);
        }
    }
    let is_name = |name: &&String| name.starts_with(entry::ENTERING) || may_be_name(name);
    names.iter().filter(is_name).for_each(|name| entry::sweep(folder, name));
}

/// Returns `true` if an entry of the folder may have this name.
///
/// Such a name is either chosen by a program, or has a prefix of Upcall's own.
fn may_be_name(entry: &str) -> bool {
    let named = [GROUP, OBJECT, jobs::NAMED, jobs::TURNS];
    check(entry).is_ok() || named.iter().any(|prefix| entry.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_socket_states_its_mode_and_group_and_what_to_do() {
        // Neither these users nor the group have names.
        let (owner, group) = (4_000_001, 4_000_002);
        let text = |mode, is_member| {
            not_permitted(61_002, Path::new("/names/domain.1"), mode, owner, (group, is_member))
        };
        for (mode, is_member, advice) in [
            (0o660, false, "join group `4000002` and log in again, or ask user `4000001`"),
            (0o600, false, "To connect, ask user `4000001` for another mode and group"),
            (0o600, true, "To connect, ask user `4000001` for another mode and group"),
        ] {
            let text = text(mode, is_member);
            let state = format!("mode and group, {mode:04o} and `4000002`, do not permit it");
            assert!(text.starts_with("user 61002 may not connect to /names/domain.1"), "{text}");
            assert!(text.contains(&state) && text.contains(advice), "{text}");
        }
        let gone = not_open(Path::new("/no/such/socket"));
        assert!(gone.contains("may not connect to /no/such/socket"), "{gone}");
    }
}
