//! The name directory: a folder of sockets.
//!
//! ```text
//!   $XDG_RUNTIME_DIR/upcall/           only this user may enter it
//!     domain.4711.effffffc.9f3a01b2    the socket of the domain with process number 4711
//!     files/                           a name: a folder with one link in it (see `entry`)
//!       domain.4711.… -> ../domain…    the domain that exports the name
//!     member.4712.effffffc.8c01aa31    the socket of a member of a group
//!     group.sieve/                     a group that forms: the member that takes others in
//!     job.4713.effffffc.77aa1c09       the socket of a job's supervisor
//!     jobs.night/                      the job of that name
//!     turns.now/                       the supervisor that lets the jobs take turns
//!     machine.4714.effffffc.02c4b6d8   the socket of a machine of PVM's tasks
//! ```
//! The parts of a socket's name are its kind, a process number, the PID namespace in which that
//! number holds, and a random mark. The number is a hint for reports: whether a process lives, and
//! which user it is, is the kernel's answer on a connection.
//!
//! No daemon keeps the folder, and no lock guards it: each change is one atomic operation of the
//! file system, so that a process that is stopped or killed in the middle holds up no other. The
//! entries of a killed domain stay until another process finds them dead and removes them. A domain
//! is dead when the process that called `listen` has ended, even if a process that it forked still
//! holds the socket and the kernel accepts connections for it.

mod entry;
mod folder;
pub mod jobs;
mod seen;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use upcall_os::process::pid_namespace;
use upcall_os::socket::{Listener, own_user};

use entry::Holder;
pub use folder::{FolderError, folder};
use folder::{Sweeps, prepare, sweeps};
pub use seen::{domains_in, folders, names_in};

/// Why a name was not found.
pub enum NotFound {
    /// The text cannot be a name.
    BadName {
        /// The name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// No process has entered the name.
    Unknown {
        /// The name.
        name: String,
        /// The folder of names.
        folder: PathBuf,
    },
    /// There is no usable folder of names.
    Folder(FolderError),
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName { name, why } => write!(f, "{name:?} cannot be a name: {why}"),
            Self::Unknown { name, folder } => {
                write!(f, "there is no {name:?} in {}", folder.display())
            }
            Self::Folder(error) => error.fmt(f),
        }
    }
}

upcall_os::error_debug!(NotFound {
    BadName { name, why }, Unknown { name, folder }, Folder(error),
});

impl std::error::Error for NotFound {}

impl From<FolderError> for NotFound {
    fn from(error: FolderError) -> Self {
        Self::Folder(error)
    }
}

/// Why a name was not entered.
pub enum NotEntered {
    /// The text cannot be a name.
    BadName {
        /// The name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// A living process has the name.
    Taken {
        /// The name.
        name: String,
        /// The process, or 0 if it cannot be seen from this PID namespace.
        pid: u32,
    },
    /// This process has the name already.
    Here {
        /// The name.
        name: String,
    },
    /// A process that has ended has the name, and only another user may remove it.
    Stale {
        /// The name.
        name: String,
        /// The path to remove.
        path: PathBuf,
        /// The user who may remove it, beside root and the owner of the folder of names.
        user: u32,
    },
    /// The name's place in the folder is occupied by something that is not a name.
    InTheWay {
        /// The name.
        name: String,
        /// The path to remove.
        path: PathBuf,
    },
    /// There is no usable folder of names.
    Folder(FolderError),
    /// The kernel refused an operation.
    Resource {
        /// The operation.
        what: String,
        /// The kernel's error.
        error: io::Error,
    },
}

impl fmt::Display for NotEntered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName { name, why } => write!(f, "{name:?} cannot be a name: {why}"),
            Self::Taken { name, pid: 0 } => write!(
                f,
                "{name:?} is the name of a process of another user or PID namespace: \
                 stop it, or choose another name. If it has ended, have its user or root remove \
                 {name} from the folder of names"
            ),
            Self::Taken { name, pid } => {
                write!(f, "{name:?} is the name of process {pid}: stop it, or choose another name")
            }
            Self::Here { name } => write!(f, "this process has the name {name:?} already"),
            Self::Stale { name, path, user } => write!(
                f,
                "{name:?} is the name of a process of user {user} that has ended, and only that \
                 user, root, or the owner of the folder may remove it: have {} removed, or choose \
                 another name",
                path.display()
            ),
            Self::InTheWay { name, path } => write!(
                f,
                "{name:?} cannot be entered, because something that is not a name is in its place: \
                 remove {}, or choose another name",
                path.display()
            ),
            Self::Folder(error) => error.fmt(f),
            Self::Resource { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

upcall_os::error_debug!(NotEntered {
    BadName { name, why }, Taken { name, pid }, Here { name }, Stale { name, path, user },
    InTheWay { name, path }, Folder(error), Resource { what, error },
});

impl std::error::Error for NotEntered {}

impl From<FolderError> for NotEntered {
    fn from(error: FolderError) -> Self {
        Self::Folder(error)
    }
}

/// The kernel refused an operation on a name.
fn refused(name: &str, folder: &Path, error: io::Error) -> NotEntered {
    NotEntered::Resource { what: format!("the name {name:?} in {}", folder.display()), error }
}

/// The kind of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A domain that exports names.
    Domain,
    /// A member of a group.
    Member,
    /// A job's supervisor.
    Job,
    /// A home of objects.
    Home,
    /// A machine of PVM's tasks.
    Machine,
}

impl Whose {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Domain => "domain.",
            Self::Member => "member.",
            Self::Job => "job.",
            Self::Home => "home.",
            Self::Machine => "machine.",
        }
    }
}

/// Prefixes that a program's own names must not have.
const OWN: [&str; 9] = [
    Whose::Domain.prefix(),
    Whose::Member.prefix(),
    Whose::Job.prefix(),
    Whose::Home.prefix(),
    Whose::Machine.prefix(),
    GROUP,
    OBJECT,
    jobs::NAMED,
    jobs::TURNS,
];
/// Prefix of a socket's name before it listens.
const BEGINNING: &str = ".";
const GROUP: &str = "group.";
const OBJECT: &str = "object.";

/// Maximum time that entering a name waits for the end of a killed process that has it.
const LONGEST_END: Duration = Duration::from_secs(5);

/// Maximum number of sockets that [`listen`] makes before it fails.
const ATTEMPTS: usize = 100;

/// Checks that a text can be a name in the folder.
///
/// # Errors
/// The reason why it cannot.
pub fn check(name: &str) -> Result<(), &'static str> {
    match name.as_bytes() {
        [] => Err("it is empty"),
        bytes if bytes.len() > 64 => Err("it has more than 64 characters"),
        [first, ..] if !first.is_ascii_alphanumeric() => {
            Err("it does not begin with a letter or a digit")
        }
        _ if OWN.iter().any(|own| name.starts_with(own)) => Err(
            "names that begin with \"domain.\", \"member.\", \"home.\", \"machine.\", \"group.\", \
             \"object.\", \"job.\", \"jobs.\" or \"turns.\" are Upcall's own",
        ),
        bytes if !bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b)) => {
            Err("it has characters other than ASCII letters, digits, dots, underscores and hyphens")
        }
        _ => Ok(()),
    }
}

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
fn not_listening(folder: &Path, access: Access, error: io::Error) -> NotEntered {
    let shown = folder.display();
    match error.kind() {
        // The kernel's answer to `chown`. A folder that this user may not write gives EACCES.
        io::ErrorKind::PermissionDenied
            if error.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error())
                && let Some(group) = access.group
                && !has_group(group) =>
        {
            let user = own_user();
            let user = upcall_os::user::name_of(user).unwrap_or_else(|| user.to_string());
            let group = upcall_os::group::name_of(group).unwrap_or_else(|| group.to_string());
            let what = format!(
                "user `{user}` is not a member of group `{group}`, so it cannot give that group to \
                 its socket in {shown}"
            );
            NotEntered::Resource { what, error }
        }
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

/// Enters a name for the domain with this socket.
///
/// # Errors
/// A living process has the name, or the folder cannot be written.
///
/// # Blocking
/// Waits up to 5 s for the end of a process that has the name and was killed.
pub fn enter(name: &str, domain: &Path) -> Result<(), NotEntered> {
    check(name).map_err(|why| NotEntered::BadName { name: name.into(), why })?;
    enter_entry(name, domain)
}

fn enter_entry(name: &str, domain: &Path) -> Result<(), NotEntered> {
    let deadline = Instant::now() + LONGEST_END;
    loop {
        match entry::enter(name, domain) {
            // If /proc shows another PID namespace, the number is that of another process there.
            Err(NotEntered::Taken { pid, .. })
                if pid_namespace().is_some()
                    && upcall_os::socket::is_ending(pid)
                    && Instant::now() < deadline =>
            {
                // This may be a thread of the server, whose other names are being called already.
                upcall_thread::sleep(Duration::from_millis(1));
            }
            entered => return entered,
        }
    }
}

/// The member that takes in the others of a group that forms under a name.
#[derive(Debug, PartialEq, Eq)]
pub enum Leader {
    /// The member whose socket asked, which is the first one.
    Us,
    /// The member with this socket.
    At(PathBuf),
}

/// Finds the leader of a group, or makes the member with this socket the leader.
///
/// # Errors
/// The text cannot be a name, or the folder cannot be written.
pub fn lead_or_follow(group: &str, member: &Path) -> Result<Leader, NotEntered> {
    check(group).map_err(|why| NotEntered::BadName { name: group.into(), why })?;
    let entry = format!("{GROUP}{group}");
    loop {
        match entry::enter(&entry, member) {
            Ok(()) | Err(NotEntered::Here { .. }) => return Ok(Leader::Us),
            Err(NotEntered::Taken { .. }) => {}
            Err(error) => return Err(error),
        }
        let folder = folder_of(member);
        if let Some(leader) =
            entry::find(folder, &entry).map_err(|error| refused(group, folder, error))?
        {
            return Ok(Leader::At(leader));
        }
    }
}

/// Returns `true` if this may be the name of a member's socket.
pub fn is_member(socket: &str) -> bool {
    let plain = socket.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.');
    plain && socket.starts_with(Whose::Member.prefix()) && number_in(socket).is_some()
}

/// Returns `true` if a socket of process `pid` as a member may have this name.
///
/// `pid` is the number in this PID namespace, or 0 if the process cannot be seen. A number of
/// another PID namespace in the name is not compared.
pub fn is_member_of(socket: &str, pid: u32) -> bool {
    is_member(socket) && process_of(Path::new(socket)).is_none_or(|named| named == pid)
}

/// Withdraws the member with this socket as the leader of a group.
pub fn lead_no_more(group: &str, member: &Path) {
    leave(&format!("{GROUP}{group}"), member);
}

/// The folder that holds a socket and the names that lead to it.
fn folder_of(socket: &Path) -> &Path {
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
fn number_in(socket: &str) -> Option<(u32, u32)> {
    let mut parts = socket.split('.').skip(1);
    let (pid, space) = (parts.next()?.parse().ok()?, u32::from_str_radix(parts.next()?, 16).ok()?);
    // The mark, which distinguishes the sockets of one process.
    parts.next().filter(|mark| !mark.is_empty())?;
    (pid != 0).then_some((pid, space))
}

/// Removes a name of the domain with this socket.
pub fn leave(name: &str, domain: &Path) {
    entry::leave(name, domain);
}

/// Enters an object's name for the home with this socket.
///
/// Names of objects are apart from other names. Waits as [`enter`] does.
///
/// # Errors
/// As [`enter`].
pub fn enter_object(name: &str, home: &Path) -> Result<(), NotEntered> {
    check(name).map_err(|why| NotEntered::BadName { name: name.into(), why })?;
    enter_entry(&format!("{OBJECT}{name}"), home).map_err(|error| match error {
        NotEntered::Taken { pid, .. } => NotEntered::Taken { name: name.into(), pid },
        NotEntered::Here { .. } => NotEntered::Here { name: name.into() },
        other => other,
    })
}

/// Removes an object's name of the home with this socket.
pub fn leave_object(name: &str, home: &Path) {
    leave(&format!("{OBJECT}{name}"), home);
}

/// Finds the socket of an object's home.
///
/// # Errors
/// As [`find`].
pub fn find_object(name: &str) -> Result<PathBuf, NotFound> {
    check(name).map_err(|why| NotFound::BadName { name: name.into(), why })?;
    find_entry(&format!("{OBJECT}{name}"), name)
}

/// Finds the socket of the domain that exports a name.
///
/// # Errors
/// The text cannot be a name, or no domain exports it.
pub fn find(name: &str) -> Result<PathBuf, NotFound> {
    check(name).map_err(|why| NotFound::BadName { name: name.into(), why })?;
    find_entry(name, name)
}

fn find_entry(entry: &str, name: &str) -> Result<PathBuf, NotFound> {
    let folder = folder()?;
    match entry::find(&folder, entry) {
        Ok(Some(socket)) => Ok(socket),
        Ok(None) if folder.exists() && !folder.is_dir() => {
            Err(FolderError::NotAFolder { path: folder }.into())
        }
        Ok(None) => Err(NotFound::Unknown { name: name.into(), folder }),
        Err(error) => Err(FolderError::Unusable { path: folder, error }.into()),
    }
}

/// The entries of the folder of names; none if there is no usable folder.
fn entries() -> impl Iterator<Item = (PathBuf, String)> {
    let found = folder().ok().and_then(|folder| fs::read_dir(folder).ok());
    let entries = found.into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.path(), entry.file_name().into_string().ok()?)))
}

/// All sockets of domains in the folder.
pub fn domains() -> Vec<PathBuf> {
    folder().map_or_else(|_| Vec::new(), |folder| domains_in(&folder))
}

/// The processes that have sockets as members of groups, and how many each has.
///
/// Processes of other PID namespaces are left out.
pub fn members() -> BTreeMap<u32, usize> {
    let mut members = BTreeMap::new();
    for (path, _) in entries().filter(|(_, name)| name.starts_with(Whose::Member.prefix())) {
        process_of(&path).into_iter().for_each(|pid| *members.entry(pid).or_default() += 1);
    }
    members
}

/// The machines of PVM's tasks: the first process of each, and its socket.
pub fn machines() -> BTreeMap<u32, PathBuf> {
    let of_machines = entries().filter(|(_, name)| name.starts_with(Whose::Machine.prefix()));
    of_machines.filter_map(|(path, _)| Some((process_of(&path)?, path))).collect()
}

/// The objects in this PID namespace, with the process and socket of their homes.
pub fn objects() -> BTreeMap<String, (u32, PathBuf)> {
    let named = entries().filter_map(|(path, entry)| {
        let name = entry.strip_prefix(OBJECT)?.to_string();
        let socket = entry::find(folder_of(&path), &entry).ok()??;
        let home = process_of(&socket)?;
        check(&name).is_ok().then_some((name, (home, socket)))
    });
    named.collect()
}

/// Returns `true` if a socket may have this name.
fn is_socket(name: &str) -> bool {
    const ALL: [Whose; 5] = [Whose::Domain, Whose::Member, Whose::Job, Whose::Home, Whose::Machine];
    ALL.into_iter().any(|whose| name.starts_with(whose.prefix()))
}

/// Removes what dead domains have left in the folder, as far as this user may.
///
/// This costs a connection attempt for each socket.
pub fn sweep() {
    if let Ok(folder) = folder() {
        sweep_in(&folder);
    }
}

fn sweep_in(folder: &Path) {
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

    fn place(what: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("upcall-names-{what}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    fn listening(folder: &Path, name: &str) -> (PathBuf, Listener) {
        listen_at(&folder.join(name), Access::default()).unwrap()
    }

    #[test]
    fn a_sockets_name_tells_its_process_in_this_namespace() {
        let here = pid_namespace().unwrap();
        let of = |name: String| process_of(Path::new(&format!("/run/user/0/upcall/{name}")));
        assert_eq!(of(format!("domain.4711.{here:x}.9f3a")), Some(4711));
        assert_eq!(of(format!("domain.4711.{:x}.9f3a", here ^ 1)), None);
        for none in ["domain", "domain.1", "domain.x.1.1", "domain.0.1.1"] {
            assert_eq!(of(none.into()), None, "{none}");
        }
        assert!(is_member_of(&format!("member.7.{here:x}.1"), 7));
        assert!(
            !is_member_of(&format!("member.7.{here:x}.1"), 8)
                && !is_member_of(&format!("member.7.{here:x}.1"), 0)
        );
        // Numbers of other namespaces are not compared.
        assert!(
            [0, 7, 8].iter().all(|pid| is_member_of(&format!("member.7.{:x}.1", here ^ 1), *pid))
        );
        for none in [
            "domain.7.1.1",
            "member.7",
            "member.x.1.1",
            "member.7.x.1",
            "member.0.1.1",
            "member.7.1.1/../x",
            "",
        ] {
            assert!(!is_member(none), "{none}");
        }
    }

    /// A number that the kernel gives to no process.
    const NOBODY: u32 = (1 << 22) + 1;

    #[test]
    fn a_process_that_has_ended_is_known_by_the_number_in_its_sockets_name() {
        let here = pid_namespace().unwrap();
        let ended = |pid: u32, space: u32| {
            has_ended(Path::new(&format!("/run/upcall/domain.{pid}.{space:x}.9f3a")))
        };
        assert!(ended(NOBODY, here) && !ended(NOBODY, here ^ 1));
        assert!(!ended(std::process::id(), here) && !has_ended(Path::new("/run/upcall/domain")));
    }

    #[test]
    fn a_group_that_a_user_may_not_give_is_named() {
        let text = |access, error: rustix::io::Errno| {
            not_listening(Path::new("/run/upcall"), access, error.into()).to_string()
        };
        // No group of this process, and none with a name.
        let other = Access { mode: None, group: Some(3_999_999_999) };
        let found = text(other, rustix::io::Errno::PERM);
        let user = upcall_os::user::name_of(own_user()).unwrap_or_else(|| own_user().to_string());
        let member = format!("user `{user}` is not a member of group `3999999999`");
        assert!(found.starts_with(&member), "{found}");
        // A file system that knows no owners gives the same error to a member.
        let own = Access { group: Some(rustix::process::getegid().as_raw()), ..other };
        let found = text(own, rustix::io::Errno::PERM);
        assert!(!found.contains("member"), "{found}");
        // A folder that this user may not write has nothing to do with the group.
        let folder = text(other, rustix::io::Errno::ACCESS);
        assert!(folder.contains("/run/upcall") && !folder.contains("group"), "{folder}");
    }

    #[test]
    fn the_first_leads_and_others_follow() {
        let folder = place("leads");
        let (a, first) = listening(&folder, "member.1.0.a");
        let (b, _second) = listening(&folder, "member.1.0.b");
        assert_eq!(lead_or_follow("g", &a).unwrap(), Leader::Us);
        assert_eq!(lead_or_follow("g", &a).unwrap(), Leader::Us);
        assert_eq!(lead_or_follow("g", &b).unwrap(), Leader::At(a.clone()));
        // The leader ends without removing its entries.
        drop(first);
        assert_eq!(lead_or_follow("g", &b).unwrap(), Leader::Us);
        assert!(!a.exists());
        lead_no_more("g", &a);
        assert!(folder.join("group.g").is_dir());
        lead_no_more("g", &b);
        assert!(!folder.join("group.g").exists());
        assert!(matches!(lead_or_follow("a/b", &b), Err(NotEntered::BadName { .. })));
        fs::remove_dir_all(folder).unwrap();
    }

    /// A name that changes hands has one holder: exactly one taker succeeds.
    #[test]
    fn of_all_who_take_over_a_dead_name_one_succeeds() {
        let folder = place("race");
        for round in 0..40 {
            let (dead, listener) = listening(&folder, &format!("domain.1.0.{round:x}dead"));
            enter("files", &dead).unwrap();
            drop(listener);
            let all: Vec<_> = (0..4)
                .map(|taker| listening(&folder, &format!("domain.1.0.{round:x}a{taker}")))
                .collect();
            let (folder, start) = (&folder, &std::sync::Barrier::new(6));
            let won = std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(move || {
                        start.wait();
                        sweep_in(folder);
                    });
                }
                let takers: Vec<_> = all
                    .iter()
                    .map(|(socket, _)| {
                        scope.spawn(move || {
                            start.wait();
                            entry::enter("files", socket)
                        })
                    })
                    .collect();
                let takers = takers.into_iter().map(|taker| taker.join().unwrap());
                takers
                    .enumerate()
                    .filter_map(|(taker, entered)| entered.ok().map(|()| taker))
                    .collect::<Vec<_>>()
            });
            let [winner] = won[..] else { panic!("round {round}: {won:?}") };
            assert_eq!(entry::find(folder, "files").unwrap().as_ref(), Some(&all[winner].0));
            sweep_in(folder);
            assert_eq!(
                entry::find(folder, "files").unwrap().as_ref(),
                Some(&all[winner].0),
                "swept alive"
            );
            drop(all);
            sweep_in(folder);
            assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "round {round}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    /// A process may be killed after any step of listening and entering: others clean up.
    #[test]
    fn each_step_may_be_the_last() {
        let folder = place("steps");
        let (socket, listener) = listening(&folder, "domain.1.0.dead");
        let made = folder.join(format!("{}domain.1.0.dead.files", entry::ENTERING));
        fs::create_dir(&made).unwrap();
        sweep_in(&folder);
        assert!(!made.exists() && socket.exists(), "a folder without a link");
        fs::create_dir(&made).unwrap();
        std::os::unix::fs::symlink("../domain.1.0.dead", made.join("domain.1.0.dead")).unwrap();
        sweep_in(&folder);
        assert!(made.exists(), "of a process that lives");
        enter("files", &socket).unwrap();
        assert!(!made.exists() && entry::find(&folder, "files").unwrap().is_some());
        // A name that was emptied, by its holder or by a sweep, and not removed.
        fs::remove_file(folder.join("files/domain.1.0.dead")).unwrap();
        enter("files", &socket).unwrap();
        fs::remove_file(folder.join("files/domain.1.0.dead")).unwrap();
        drop(listener);
        // A socket that never listened, and entries that are not Upcall's.
        drop(Listener::bind(&folder.join(".domain.1.0.dead")).unwrap());
        fs::create_dir(folder.join("empty")).unwrap();
        fs::write(folder.join("file"), "").unwrap();
        sweep_in(&folder);
        let mut left: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["empty", "file"]);
        let found = listening(&folder, "domain.1.0.b");
        assert!(matches!(enter("file", &found.0), Err(NotEntered::InTheWay { .. })));
        fs::remove_dir_all(folder).unwrap();
    }

    /// A link leads to a folder of another user: nothing in that folder is read or removed.
    #[test]
    fn symbolic_links_are_not_followed() {
        let (folder, other) = (place("links"), place("linked"));
        fs::write(other.join("domain.1.0.x"), "").unwrap();
        std::os::unix::fs::symlink(&other, folder.join("files")).unwrap();
        let (socket, _listener) = listening(&folder, "domain.1.0.a");
        assert!(matches!(enter("files", &socket), Err(NotEntered::InTheWay { .. })));
        assert_eq!(entry::find(&folder, "files").unwrap(), None);
        sweep_in(&folder);
        leave("files", &other.join("domain.1.0.x"));
        assert!(other.join("domain.1.0.x").exists());
        fs::remove_dir_all(folder).unwrap();
        fs::remove_dir_all(other).unwrap();
    }

    #[test]
    fn names() {
        for good in ["files", "a", "my-service.v2", "X_1"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            ".hidden",
            "-x",
            "a/b",
            "a b",
            "ü",
            "domain.1.2",
            "member.1.2",
            "group.x",
            "job.1",
            "jobs.x",
            "turns.x",
            "home.1",
            "machine.1",
            "object.x",
            &"x".repeat(65),
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
