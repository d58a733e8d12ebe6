//! The name directory: a folder of sockets.
//!
//! ```text
//!   $XDG_RUNTIME_DIR/upcall/        only this user may enter it
//!     domain.4711.9f3a              the socket of the domain with process number 4711
//!     files -> domain.4711.9f3a     a name that it exports
//!     member.4712.8c01              the socket of a member of a group
//!     group.sieve -> member.4712.…  a group that forms: who takes its members in
//!     job.4713.77aa                 the socket of a job's supervisor
//!     jobs.night -> job.4713.77aa   the job of that name
//!     machine.4714.02c4             the socket of a machine of PVM's tasks, by the number of its first process
//!     turns.now -> job.4713.77aa    whose supervisor lets the jobs take turns
//! ```
//! No daemon keeps it. A domain that is killed leaves its entries behind; whoever next looks at one is refused by the kernel, and removes it. Changes are made
//! under a lock on the folder itself, which dies with its holder.

pub mod jobs;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use upcall_os::socket::{Connection, Listener};

/// Why a name was not found.
#[derive(Debug)]
pub enum NotFound {
    /// It cannot be one.
    BadName {
        /// The name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// Nobody has entered it.
    Unknown {
        /// The name.
        name: String,
        /// The folder that was looked into.
        folder: PathBuf,
    },
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName { name, why } => write!(f, "{name:?} cannot be a name: {why}"),
            Self::Unknown { name, folder } => write!(f, "there is no {name:?} in {}", folder.display()),
        }
    }
}

impl std::error::Error for NotFound {}

/// Why a name was not entered.
#[derive(Debug)]
pub enum NotEntered {
    /// It cannot be one.
    BadName {
        /// The name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// It is that of another process, which lives.
    Taken {
        /// The name.
        name: String,
        /// The process.
        pid: u32,
    },
    /// It is that of the same socket already.
    Here {
        /// The name.
        name: String,
    },
    /// The kernel refused something.
    Resource {
        /// What for.
        what: String,
        /// Its word.
        error: io::Error,
    },
}

impl fmt::Display for NotEntered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName { name, why } => write!(f, "{name:?} cannot be a name: {why}"),
            Self::Taken { name, pid } => write!(f, "{name:?} is the name of process {pid}: stop it, or choose another name"),
            Self::Here { name } => write!(f, "this process has the name {name:?} already"),
            Self::Resource { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for NotEntered {}

/// The folder: `$UPCALL_DIR`, else `upcall` in `$XDG_RUNTIME_DIR` or in `/run/user/UID`, else `/tmp/upcall-UID`.
pub fn folder() -> PathBuf {
    if let Some(dir) = std::env::var_os("UPCALL_DIR") {
        return dir.into();
    }
    let user = upcall_os::socket::own_user();
    let candidates =
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).into_iter().chain([format!("/run/user/{user}").into()]);
    for dir in candidates {
        if dir.is_dir() {
            return dir.join("upcall");
        }
    }
    format!("/tmp/upcall-{user}").into()
}

/// Whose socket it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A server's.
    Domain,
    /// That of a member of a group.
    Member,
    /// That of a job's supervisor.
    Job,
    /// A home's.
    Home,
    /// That of a machine of PVM's tasks.
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

/// What names cannot begin with.
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
const GROUP: &str = "group.";
const OBJECT: &str = "object.";

/// So long a server that was killed may take to end.
const LONGEST_END: Duration = Duration::from_secs(5);

/// Checks that a name can stand in the folder.
///
/// # Errors
/// Why it cannot.
pub fn check(name: &str) -> Result<(), &'static str> {
    match name.as_bytes() {
        [] => Err("it is empty"),
        bytes if bytes.len() > 64 => Err("it has more than 64 characters"),
        [first, ..] if !first.is_ascii_alphanumeric() => Err("it does not begin with a letter or a digit"),
        _ if OWN.iter().any(|own| name.starts_with(own)) => Err(
            "names that begin with \"domain.\", \"member.\", \"home.\", \"machine.\", \"group.\", \"object.\", \"job.\", \"jobs.\" or \"turns.\" are Upcall's own",
        ),
        bytes if !bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b)) => {
            Err("it has something else than ASCII letters, digits, dots, underscores and hyphens")
        }
        _ => Ok(()),
    }
}

/// Makes the folder if it is missing, and checks that it is ours alone.
fn prepare(folder: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).recursive(true).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = fs::symlink_metadata(folder)?;
    let own = upcall_os::socket::own_user();
    if !found.is_dir() || found.uid() != own {
        return Err(io::Error::other(format!(
            "{} is not a folder of user {own}: remove it, or set UPCALL_DIR",
            folder.display()
        )));
    }
    Ok(())
}

/// Whether the folder is one, and this user's.
fn is_ours(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir() && found.uid() == upcall_os::socket::own_user())
}

/// Holds the lock on the folder until it is dropped.
#[derive(Debug)]
struct Lock(#[expect(dead_code, reason = "held for its lock")] fs::File);

fn lock(folder: &Path) -> io::Result<Lock> {
    let file = fs::File::open(folder)?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(Lock(file))
}

/// The same, if nobody has it.
fn try_lock(folder: &Path) -> Option<Lock> {
    let file = fs::File::open(folder).ok()?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(Lock(file))
}

/// Which processes may connect to a socket, apart from root's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Mode of the socket; connecting takes the right to write. 0600 if it is not given.
    pub mode: Option<u32>,
    /// Group of the socket; that of this process if it is not given.
    pub group: Option<u32>,
}

/// Listens at a fresh path, for this user.
///
/// # Errors
/// As [`listen_as`].
pub fn listen(whose: Whose) -> Result<(PathBuf, Listener), NotEntered> {
    listen_as(whose, Access::default())
}

/// Listens at a fresh path, under the folder's lock: between its making and its listening a socket looks like a dead domain's.
///
/// # Errors
/// The folder cannot be made, or is somebody else's; the kernel does not give a socket.
pub fn listen_as(whose: Whose, access: Access) -> Result<(PathBuf, Listener), NotEntered> {
    let folder = folder();
    let unable = |error| NotEntered::Resource { what: format!("the folder of names, {}", folder.display()), error };
    prepare(&folder).map_err(unable)?;
    let _lock = lock(&folder).map_err(unable)?;
    sweep_all(&folder);
    let mark = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.subsec_nanos());
    let path = folder.join(format!("{}{}.{mark:x}", whose.prefix(), std::process::id()));
    let what = || format!("a socket in {} (UPCALL_DIR chooses another folder)", folder.display());
    let listener = Listener::bind(&path).map_err(|error| NotEntered::Resource { what: what(), error })?;
    let set = (|| {
        if access.group.is_some() {
            std::os::unix::fs::chown(&path, None, access.group)?;
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(access.mode.unwrap_or(0o600)))
    })();
    set.map_err(|error| NotEntered::Resource { what: what(), error })?;
    Ok((path, listener))
}

/// Enters a name for the domain with this socket. Waits for the end of a process that has the name and was killed, but not longer than 5 s.
///
/// # Errors
/// It is taken by a process that lives, or the folder cannot be written.
pub fn enter(name: &str, domain: &Path) -> Result<(), NotEntered> {
    check(name).map_err(|why| NotEntered::BadName { name: name.into(), why })?;
    enter_entry(name, domain)
}

fn enter_entry(name: &str, domain: &Path) -> Result<(), NotEntered> {
    let deadline = Instant::now() + LONGEST_END;
    loop {
        match try_enter(name, domain) {
            Err(NotEntered::Taken { pid, .. }) if upcall_os::socket::is_ending(pid) && Instant::now() < deadline => {
                // On a thread of the server, whose other names are called already.
                upcall_thread::sleep(Duration::from_millis(1));
            }
            entered => return entered,
        }
    }
}

/// Who takes in the members of a group that forms under a name.
#[derive(Debug, PartialEq, Eq)]
pub enum Leader {
    /// The member whose socket asked: nobody did before.
    Us,
    /// The one with this socket.
    At(PathBuf),
}

/// Finds who takes in the members of a group, or has the member with this socket do it.
///
/// # Errors
/// A name that cannot be one, or the folder cannot be written.
pub fn lead_or_follow(group: &str, member: &Path) -> Result<Leader, NotEntered> {
    check(group).map_err(|why| NotEntered::BadName { name: group.into(), why })?;
    let entry = format!("{GROUP}{group}");
    loop {
        match try_enter(&entry, member) {
            Ok(()) | Err(NotEntered::Here { .. }) => return Ok(Leader::Us),
            Err(NotEntered::Taken { .. }) => {}
            Err(error) => return Err(error),
        }
        let folder = folder_of(member);
        if let Ok(target) = fs::read_link(folder.join(&entry)) {
            return Ok(Leader::At(folder.join(target.file_name().unwrap_or_default())));
        }
    }
}

/// Whether this is how the socket of a member may be called that is this process.
pub fn is_member(socket: &str, pid: u32) -> bool {
    let rest = socket.strip_prefix(Whose::Member.prefix());
    rest.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.')) && process_of(Path::new(socket)) == pid
}

/// The member with this socket takes nobody in any more.
pub fn lead_no_more(group: &str, member: &Path) {
    leave(&format!("{GROUP}{group}"), member);
}

fn try_enter(name: &str, domain: &Path) -> Result<(), NotEntered> {
    let _lock = lock(folder_of(domain)).map_err(|error| unable(name, error))?;
    enter_locked(name, domain)
}

/// Where a socket is, and the names that lead to it.
fn folder_of(socket: &Path) -> &Path {
    socket.parent().unwrap_or(Path::new("/"))
}

fn unable(name: &str, error: io::Error) -> NotEntered {
    NotEntered::Resource { what: format!("the name {name:?}"), error }
}

/// Under the folder's lock.
fn enter_locked(name: &str, domain: &Path) -> Result<(), NotEntered> {
    let unable = |error| unable(name, error);
    let folder = folder_of(domain);
    let entry = folder.join(name);
    if let Ok(target) = fs::read_link(&entry) {
        let target = folder.join(target);
        if target == domain {
            return Err(NotEntered::Here { name: name.into() });
        }
        match Connection::connect(&target) {
            Ok(connection) => {
                let pid = connection.peer().map_or(0, |peer| peer.pid);
                return Err(NotEntered::Taken { name: name.into(), pid });
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
                // The one who had it has left that, too.
                if target.parent() == Some(folder) && is_socket(&target) {
                    let _ = fs::remove_file(&target);
                }
            }
            // A stopped server with a full queue, most likely: it lives.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(NotEntered::Taken { name: name.into(), pid: process_of(&target) });
            }
            Err(error) => return Err(unable(error)),
        }
        fs::remove_file(&entry).map_err(unable)?;
    }
    let own = domain.file_name().unwrap_or_default();
    std::os::unix::fs::symlink(own, &entry).map_err(unable)
}

/// The number in the name of a domain's socket; 0 if there is none.
fn process_of(socket: &Path) -> u32 {
    let name = socket.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.split('.').nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Takes a name of the domain with this socket out.
pub fn leave(name: &str, domain: &Path) {
    let folder = folder_of(domain);
    let entry = folder.join(name);
    if let Ok(_lock) = lock(folder)
        && fs::read_link(&entry).is_ok_and(|target| folder.join(target) == domain)
    {
        let _ = fs::remove_file(entry);
    }
}

/// Enters an object's name for the home with this socket: a name of its own, whatever else has the same. Waits as [`enter`] does.
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

/// Takes it out.
pub fn leave_object(name: &str, home: &Path) {
    leave(&format!("{OBJECT}{name}"), home);
}

/// The socket of an object's home.
///
/// # Errors
/// As [`find`].
pub fn find_object(name: &str) -> Result<PathBuf, NotFound> {
    check(name).map_err(|why| NotFound::BadName { name: name.into(), why })?;
    find_entry(&format!("{OBJECT}{name}"), name)
}

/// The socket of the domain that exports a name.
///
/// # Errors
/// A bad name, or nobody exports it.
pub fn find(name: &str) -> Result<PathBuf, NotFound> {
    check(name).map_err(|why| NotFound::BadName { name: name.into(), why })?;
    find_entry(name, name)
}

fn find_entry(entry: &str, name: &str) -> Result<PathBuf, NotFound> {
    let folder = folder();
    match fs::read_link(folder.join(entry)) {
        Ok(target) => Ok(folder.join(target.file_name().unwrap_or_default())),
        Err(_) => Err(NotFound::Unknown { name: name.into(), folder }),
    }
}

/// All sockets of domains in the folder, and the names that lead to them.
pub fn domains() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder()) else { return Vec::new() };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(|path| is_of(path, Whose::Domain)).collect();
    paths.sort();
    paths
}

/// The processes that are members of groups, or want to be, and how many sockets of such each has.
pub fn members() -> BTreeMap<u32, usize> {
    let mut members = BTreeMap::new();
    for entry in fs::read_dir(folder()).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let pid = process_of(&entry);
        if is_of(&entry, Whose::Member) && pid != 0 {
            *members.entry(pid).or_default() += 1;
        }
    }
    members
}

/// The machines of PVM's tasks: their first processes, and the sockets at which those can be asked.
pub fn machines() -> BTreeMap<u32, PathBuf> {
    let entries = fs::read_dir(folder()).into_iter().flatten().flatten().map(|entry| entry.path());
    entries
        .filter(|path| is_of(path, Whose::Machine))
        .map(|path| (process_of(&path), path))
        .filter(|(pid, _)| *pid != 0)
        .collect()
}

/// The objects that this user's processes are the homes of; those processes, and the sockets at which they hear of them.
pub fn objects() -> BTreeMap<String, (u32, PathBuf)> {
    let entries = fs::read_dir(folder()).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let name = entry.file_name().to_str()?.strip_prefix(OBJECT)?.to_string();
        let socket = fs::read_link(entry.path()).ok()?;
        let home = process_of(&socket);
        (check(&name).is_ok() && home != 0).then_some((name, (home, socket)))
    });
    named.collect()
}

fn is_of(path: &Path, whose: Whose) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(whose.prefix()))
}

fn is_socket(path: &Path) -> bool {
    [Whose::Domain, Whose::Member, Whose::Job, Whose::Home, Whose::Machine].into_iter().any(|whose| is_of(path, whose))
}

/// Removes what dead domains have left in the folder. Costs a connection attempt for each domain.
pub fn sweep() {
    let folder = folder();
    // Somebody else may be at it, or be stopped while at it: then it is left to them.
    if is_ours(&folder)
        && let Some(_lock) = try_lock(&folder)
    {
        sweep_all(&folder);
    }
}

/// Under the folder's lock.
fn sweep_all(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    for socket in entries.iter().filter(|path| is_socket(path)) {
        if matches!(Connection::connect(socket), Err(error) if error.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = fs::remove_file(socket);
        }
    }
    for entry in &entries {
        if fs::read_link(entry).is_ok_and(|target| !folder.join(target).exists()) {
            let _ = fs::remove_file(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sockets_name_tells_its_process() {
        assert_eq!(process_of(Path::new("/run/user/0/upcall/domain.4711.9f3a")), 4711);
        assert_eq!(process_of(Path::new("/run/user/0/upcall/domain")), 0);
    }

    #[test]
    fn the_first_leads_and_others_follow() {
        let folder = std::env::temp_dir().join(format!("upcall-names-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let paths = ["member.1.a", "member.1.b"].map(|name| folder.join(name));
        let first = Listener::bind(&paths[0]).unwrap();
        let _second = Listener::bind(&paths[1]).unwrap();
        assert_eq!(lead_or_follow("g", &paths[0]).unwrap(), Leader::Us);
        assert_eq!(lead_or_follow("g", &paths[0]).unwrap(), Leader::Us);
        assert_eq!(lead_or_follow("g", &paths[1]).unwrap(), Leader::At(paths[0].clone()));
        // It ends without a word.
        drop(first);
        assert_eq!(lead_or_follow("g", &paths[1]).unwrap(), Leader::Us);
        lead_no_more("g", &paths[0]);
        assert!(folder.join("group.g").is_symlink());
        lead_no_more("g", &paths[1]);
        assert!(!folder.join("group.g").is_symlink());
        assert!(matches!(lead_or_follow("a/b", &paths[1]), Err(NotEntered::BadName { .. })));
        fs::remove_dir_all(folder).unwrap();
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
