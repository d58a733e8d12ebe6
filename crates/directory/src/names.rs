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
mod hint;
pub mod jobs;
mod seen;
mod socket;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use upcall_os::process::pid_namespace;

#[cfg(test)]
pub(crate) use entry::enter as enter_in;
pub(crate) use entry::find as find_in;
pub use folder::{FolderError, folder};
pub use hint::NameHint;
pub(crate) use seen::listening;
pub use seen::{domains_in, folders, names_in};
pub use socket::{
    Access, Group, foreign_owner, has_ended, listen, listen_as, listen_at, not_open, process_of,
    sweep,
};
use socket::{folder_of, number_in};

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
        /// Where the name may be instead: see [`NotFound::with_hint`].
        hint: NameHint,
    },
    /// There is no usable folder of names.
    Folder(FolderError),
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName { name, why } => write!(f, "{name:?} cannot be a name: {why}"),
            Self::Unknown { name, folder, hint } => {
                write!(f, "there is no {name:?} in {}{hint}", folder.display())
            }
            Self::Folder(error) => error.fmt(f),
        }
    }
}

upcall_os::error_debug!(NotFound {
    BadName { name, why }, Unknown { name, folder, hint }, Folder(error),
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
    pub(crate) const fn prefix(self) -> &'static str {
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
pub(crate) const OBJECT: &str = "object.";

/// Maximum time that entering a name waits for the end of a killed process that has it.
const LONGEST_END: Duration = Duration::from_secs(5);

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
            let is_link = folder.is_symlink();
            Err(FolderError::NotAFolder { path: folder, is_link }.into())
        }
        Ok(None) => Err(unknown(name, folder)),
        Err(error) => Err(FolderError::Unusable { path: folder, error }.into()),
    }
}

/// The error for a name that is not in the folder. Looks for nothing else.
fn unknown(name: &str, folder: PathBuf) -> NotFound {
    NotFound::Unknown { name: name.into(), folder, hint: NameHint::None }
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

#[cfg(test)]
mod tests;
