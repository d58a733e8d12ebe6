//! One name: a folder that holds one symbolic link.
//!
//! The link is named like the socket to which it leads:
//!
//! ```text
//!   files/domain.4711.effffffc.9f3a01b2 -> ../domain.4711.effffffc.9f3a01b2
//! ```
//! A name changes hands without a lock, because two operations of the kernel compare and change
//! atomically. `rename` replaces a folder only if that folder is *empty*, so exactly one of several
//! processes that enter a name succeeds. `unlink` of the link removes the claim of *that* socket
//! and of no other: the name of a socket is never reused, so a process that learned of a death long
//! ago cannot take away what a living process has entered since. `rmdir` removes a name that is
//! empty.
//!
//! A process that is killed or stopped between two of these leaves a state that others can read as
//! it is: a folder beside the name (removed by a sweep), or an empty name (free).

use super::{NotEntered, is_socket, refused};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use upcall_os::socket::Connection;

/// Maximum number of links that are read in a name. There is one; more are another user's doing.
const MOST_LINKS: usize = 16;
/// Maximum number of attempts to enter a name that other processes are changing.
const ATTEMPTS: usize = 1000;
/// Mode of the folder of a name. The sticky bit sets it apart from folders of other programs.
const MODE: u32 = 0o1755;
/// Prefix of the folder of a name before it is renamed to its place.
pub(super) const ENTERING: &str = ".enter.";

/// The state of the process that listens at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The process lives and has this number; 0 if the process cannot be seen from here.
    Lives(u32),
    /// The process has ended, or there is none. A child of it may still hold the descriptor.
    Gone,
}

/// Asks the kernel which process listens at a socket.
///
/// # Errors
/// The kernel does not tell: no descriptor is left, or the socket is of another kind.
pub(super) fn holder(socket: &Path) -> io::Result<Holder> {
    match Connection::connect(socket) {
        Ok(connection) => Ok(Holder::Lives(connection.peer().map_or(0, |peer| peer.pid))),
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Ok(Holder::Gone),
            // A stopped server with a full queue.
            io::ErrorKind::WouldBlock => Ok(Holder::Lives(super::process_of(socket).unwrap_or(0))),
            // A socket of another user that does not let this one ask.
            io::ErrorKind::PermissionDenied => Ok(unasked(socket)),
            _ => Err(error),
        },
    }
}

/// The state of the process behind a socket to which this user may not connect.
fn unasked(socket: &Path) -> Holder {
    if super::has_ended(socket) { Holder::Gone } else { Holder::Lives(0) }
}

/// The folder of a name, and the links in it.
struct NameFolder {
    folder: OwnedFd,
    links: Vec<String>,
}

impl NameFolder {
    /// Opens the folder of a name, or returns `None` if there is none. Never follows a symbolic
    /// link.
    fn new(entry: &Path) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match rustix::fs::open(entry, flags, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut links = Vec::new();
        for found in Dir::read_from(&folder)?.take(MOST_LINKS) {
            let found = found?;
            links.extend(
                found.file_name().to_str().ok().filter(|name| is_socket(name)).map(String::from),
            );
        }
        links.sort();
        Ok(Some(Self { folder, links }))
    }

    fn remove(&self, link: &str) -> rustix::io::Result<()> {
        match rustix::fs::unlinkat(&self.folder, link, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed,
        }
    }
}

/// Finds the socket that a name leads to, or `None` if the name is not entered.
///
/// # Errors
/// The kernel does not tell.
pub(crate) fn find(folder: &Path, name: &str) -> io::Result<Option<PathBuf>> {
    let open = match NameFolder::new(&folder.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(None),
        open => open?,
    };
    Ok(open.and_then(|open| open.links.into_iter().next()).map(|link| folder.join(link)))
}

/// Enters a name for the process with this socket, unless a living process has the name.
pub(crate) fn enter(name: &str, socket: &Path) -> Result<(), NotEntered> {
    let folder = super::folder_of(socket);
    let own = socket.file_name().and_then(|own| own.to_str()).unwrap_or_default();
    let made = folder.join(format!("{ENTERING}{own}.{name}"));
    let entered =
        (0..ATTEMPTS).find_map(|_| attempt(name, &folder.join(name), &made, own).transpose());
    let _ = fs::remove_file(made.join(own));
    let _ = fs::remove_dir(&made);
    entered.unwrap_or_else(|| Err(refused(name, folder, io::ErrorKind::ResourceBusy.into())))
}

/// Tries once to enter a name. Returns `Ok(None)` if another process interfered: try again.
fn attempt(name: &str, entry: &Path, made: &Path, own: &str) -> Result<Option<()>, NotEntered> {
    let folder = entry.parent().unwrap_or(Path::new("/"));
    let unable = |error: io::Error| refused(name, folder, error);
    let in_the_way = || NotEntered::InTheWay { name: name.into(), path: entry.into() };
    let open = match NameFolder::new(entry) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Err(in_the_way()),
        open => open.map_err(unable)?,
    };
    for link in open.iter().flat_map(|open| &open.links) {
        if link == own {
            return Err(NotEntered::Here { name: name.into() });
        }
        let socket = folder.join(link);
        if let Holder::Lives(pid) = holder(&socket).map_err(unable)? {
            return Err(NotEntered::Taken { name: name.into(), pid });
        }
        let _ = fs::remove_file(&socket);
        match open.as_ref().map_or(Ok(()), |open| open.remove(link)) {
            Ok(()) => {}
            Err(Errno::ACCESS | Errno::PERM) => return Err(stale(name, entry)),
            Err(error) => return Err(unable(error.into())),
        }
    }
    match make(made, own).and_then(|()| fs::rename(made, entry)) {
        Ok(()) => Ok(Some(())),
        Err(error) => match error.kind() {
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => Ok(None),
            // A sweep has removed the new folder, which looked like a dead process's for a moment.
            io::ErrorKind::NotFound if folder.is_dir() => Ok(None),
            io::ErrorKind::NotADirectory => Err(in_the_way()),
            io::ErrorKind::PermissionDenied if entry.is_dir() => Err(stale(name, entry)),
            _ => Err(unable(error)),
        },
    }
}

fn stale(name: &str, entry: &Path) -> NotEntered {
    let user = fs::symlink_metadata(entry).map_or(u32::MAX, |found| found.uid());
    NotEntered::Stale { name: name.into(), path: entry.into(), user }
}

/// Makes the folder of a name beside its place. Other users of a shared folder may read it.
fn make(made: &Path, own: &str) -> io::Result<()> {
    let exists = |done: io::Result<()>| match done {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    };
    exists(fs::create_dir(made))?;
    fs::set_permissions(made, fs::Permissions::from_mode(MODE))?;
    exists(std::os::unix::fs::symlink(Path::new("..").join(own), made.join(own)))
}

/// Removes a name of the process with this socket; does nothing if another process has it.
pub(super) fn leave(name: &str, socket: &Path) {
    let entry = super::folder_of(socket).join(name);
    let own = socket.file_name().and_then(|own| own.to_str()).unwrap_or_default();
    match NameFolder::new(&entry) {
        Ok(Some(open)) if open.links.iter().any(|link| link == own) => {
            let _ = open.remove(own);
            let _ = fs::remove_dir(&entry);
        }
        Ok(_) => {}
        // No descriptor is left. The socket's name is this process's own, so the link is its own
        // too.
        Err(_) if fs::symlink_metadata(&entry).is_ok_and(|found| found.is_dir()) => {
            let _ = fs::remove_file(entry.join(own));
            let _ = fs::remove_dir(&entry);
        }
        Err(_) => {}
    }
}

/// Removes the links in a name whose sockets are gone, and the name if it is empty then.
pub(super) fn sweep(folder: &Path, name: &str) {
    let entry = folder.join(name);
    let Ok(Some(open)) = NameFolder::new(&entry) else { return };
    let is_dead = |link: &&String| {
        let found = fs::symlink_metadata(folder.join(link));
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let removed =
        open.links.iter().filter(is_dead).filter(|link| open.remove(link).is_ok()).count();
    let is_name = || fs::symlink_metadata(&entry).is_ok_and(|found| found.mode() & 0o7777 == MODE);
    if removed > 0 || open.links.is_empty() && (name.starts_with(ENTERING) || is_name()) {
        // Fails if the folder has an entry: a link entered just now, or a file that is not
        // Upcall's.
        let _ = fs::remove_dir(&entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user who may not connect to the socket of a killed server learns that it is dead.
    #[test]
    fn a_socket_that_refuses_this_user_tells_whether_its_process_has_ended() {
        let here = upcall_os::process::pid_namespace().unwrap();
        let of = |pid: u32| unasked(Path::new(&format!("/run/upcall/domain.{pid}.{here:x}.9f3a")));
        // The kernel gives this number to no process.
        assert_eq!(of((1 << 22) + 1), Holder::Gone);
        assert_eq!(of(std::process::id()), Holder::Lives(0));
    }
}
