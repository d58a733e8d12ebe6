//! A folder of names for one test, and the programs that run in it.

use crate::party::Party;
use rustix::process::Uid;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use upcall_directory::names::{Access, listen_at};
use upcall_os::socket::Listener;

/// A folder of names of its own.
#[derive(Debug)]
pub struct Place {
    folder: TempDir,
    program: &'static str,
}

/// Copies a program, so that other users can reach it. Another process makes the copy. If this
/// process made it, a child started in another thread at that time would hold the copy open for
/// writing, and the copy could not be run (ETXTBSY).
///
/// # Panics
/// If the program cannot be copied.
pub fn copy_program(program: &Path, copy: &Path) {
    let status = Command::new("cp").arg(program).arg(copy).status().expect("cp runs");
    assert!(status.success(), "cp {} {}: {status}", program.display(), copy.display());
}

impl Place {
    /// Creates an empty folder, for parties made from `program`.
    ///
    /// # Panics
    /// If the folder cannot be created.
    pub fn new(program: &'static str) -> Self {
        Self { folder: TempDir::new().expect("a temporary folder"), program }
    }

    /// The folder of names. The first server creates it.
    pub fn names(&self) -> PathBuf {
        self.folder.path().join("names")
    }

    /// The folder around it, for other files.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The command that starts a party with these arguments.
    pub fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(self.program);
        command
            .args(arguments.split_whitespace())
            .env("UPCALL_DIR", self.names())
            .env_remove("XDG_RUNTIME_DIR")
            .env("RUST_BACKTRACE", "0");
        command
    }

    /// Creates a folder of names for servers of user `owner`, which clients of every user may read.
    ///
    /// # Panics
    /// If the folder cannot be created.
    pub fn shared(program: &'static str, owner: u32) -> Self {
        let place = Self::new(program);
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
        fs::create_dir(place.names()).expect("a folder of names");
        open(place.path()).and_then(|()| open(&place.names())).expect("its mode");
        std::os::unix::fs::chown(place.names(), Some(owner), None).expect("its owner");
        place
    }

    /// Starts a party through another command that runs it, such as `unshare`.
    pub fn start_by(&self, wrapper: &[String], arguments: &str) -> Party {
        let plain = self.command(arguments);
        let Some((first, rest)) = wrapper.split_first() else {
            return Party::start(plain, arguments);
        };
        let mut command = Command::new(first);
        command.args(rest).arg(plain.get_program()).args(plain.get_args());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Party::start(command, &format!("{} {arguments}", wrapper.join(" ")))
    }

    /// Starts a party, which dies with the thread that starts it.
    pub fn start(&self, arguments: &str) -> Party {
        Party::start(self.command(arguments), arguments)
    }

    /// Starts a party with a variable in its environment.
    pub fn start_with(&self, arguments: &str, variable: &str, value: &str) -> Party {
        let mut command = self.command(arguments);
        command.env(variable, value);
        Party::start(command, &format!("{arguments} ({variable}={value})"))
    }

    /// Starts a server and waits until it serves.
    pub fn serve(&self, arguments: &str) -> Party {
        let mut server = self.start(&format!("serve {arguments}"));
        server.hear().expect_ok("a server's start");
        server
    }

    /// Starts a server that also listens for clients on other machines (`tcp`), and waits until it
    /// serves. Also returns its address.
    ///
    /// # Panics
    /// If the server does not listen.
    pub fn serve_far(&self, arguments: &str) -> (Party, String) {
        let mut server = self.start(&format!("serve {arguments}"));
        let addresses = server.hear().expect_ok("a server's start");
        let address = addresses.into_iter().next().expect("it listens");
        (server, address)
    }

    /// Starts a client.
    pub fn client(&self) -> Party {
        self.start("client")
    }

    /// Lets every user reach the folder's contents.
    ///
    /// # Panics
    /// If that is not possible.
    pub fn open_to_all(&self) {
        for folder in [self.path(), &self.names()] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
    }

    /// The entries of the folder of names.
    pub fn entries(&self) -> Vec<String> {
        let entries = fs::read_dir(self.names()).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// The sockets in the folder of names.
    pub fn sockets(&self) -> Vec<PathBuf> {
        let own = self.entries().into_iter().filter(|name| name.starts_with("domain."));
        own.map(|name| self.names().join(name)).collect()
    }

    /// Waits until the folder of names is empty.
    ///
    /// # Panics
    /// If it is not after 60 s.
    pub fn expect_empty(&self) {
        eventually("the folder of names is empty", || {
            let left = self.entries();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
    }
}

/// Sets a flag on drop, also after a failed check. Threads of a scope that run until the flag is
/// set would otherwise keep the test from ending.
#[derive(Debug)]
pub struct AtLast<'a>(pub &'a AtomicBool);

impl Drop for AtLast<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A user ID that is unused on all machines.
pub const STRANGER: u32 = 61_003;

/// Runs `work` on a kernel thread of this process as [`STRANGER`]. This requires root.
///
/// # Panics
/// If that is not permitted, or `work` panics.
pub fn as_stranger<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let work = || {
        rustix::thread::set_thread_res_uid(None, Uid::from_raw(STRANGER), None)
            .expect("another user");
        work()
    };
    std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"))
}

/// Retries a check until it holds.
///
/// # Panics
/// If it does not within 60 s.
pub fn eventually(what: &str, mut holds: impl FnMut() -> Result<(), String>) {
    let start = Instant::now();
    while let Err(found) = holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within 60 s: {what}: {found}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Listens in a folder of names, as a domain does.
///
/// # Panics
/// If that is not possible.
pub fn listen(path: &Path) -> Listener {
    loop {
        match listen_at(path, Access::default()) {
            Ok((_, listener)) => return listener,
            // A sweep has removed the socket before this process listened, as that of a dead
            // domain.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => panic!("listening at {}: {error}", path.display()),
        }
    }
}

/// Enters a name by hand. The socket need not exist.
///
/// # Panics
/// If that is not possible.
pub fn enter(folder: &Path, name: &str, socket: &str) {
    let made = folder.join(format!(".{name}"));
    fs::create_dir(&made).unwrap();
    std::os::unix::fs::symlink(Path::new("..").join(socket), made.join(socket)).unwrap();
    fs::rename(made, folder.join(name)).unwrap_or_else(|error| panic!("the name {name}: {error}"));
}

/// The socket that a name leads to.
pub fn entered(folder: &Path, name: &str) -> Option<PathBuf> {
    let link = fs::read_dir(folder.join(name)).ok()?.flatten().next()?;
    Some(folder.join(link.file_name()))
}
