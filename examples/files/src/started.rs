//! A server process that the client starts, and that ends with the client.

use crate::server::READY;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// Longest wait until a server serves.
const PATIENCE: Duration = Duration::from_secs(10);

/// Longest wait for the end of a server after a request to stop.
const FAREWELL: Duration = Duration::from_secs(2);

/// The hidden subcommand under which `file-client` itself is the server, if `file-server` was not
/// built.
pub const AS_SERVER: &str = "as-server";

/// A running server. It is stopped on drop, and stops by itself when this process is killed, since
/// this process holds its standard input.
#[derive(Debug)]
pub struct Started {
    child: Child,
    /// The name that it exports.
    pub name: String,
    /// Its socket.
    pub socket: PathBuf,
    /// The folder that holds the socket.
    folder: PathBuf,
}

impl Started {
    /// Starts a server of `root` and waits until it serves.
    ///
    /// # Errors
    /// In words; the server has written more to standard error.
    pub fn start(root: &Path) -> Result<Self, String> {
        let own =
            env::current_exe().map_err(|e| format!("cannot tell where this program lies: {e}"))?;
        let program = own.with_file_name("file-server");
        let folder = private_folder()?;
        let socket = folder.join("files.socket");
        let name = format!("files-{}", std::process::id());
        let mut command = if program.is_file() {
            Command::new(&program)
        } else {
            let mut command = Command::new(&own);
            command.arg(AS_SERVER);
            command
        };
        command
            .arg("--name")
            .arg(&name)
            .arg("--socket")
            .arg(&socket)
            .arg("--until-stdin-closes")
            .arg("--")
            .arg(root);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().map_err(|e| {
            drop(fs::remove_dir_all(&folder));
            format!("cannot start {}: {e}", command.get_program().display())
        })?;
        let mut started = Self { child, name, socket, folder };
        started.wait_until_ready()?;
        Ok(started)
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let Some(output) = self.child.stdout.take() else {
            return Err("the server has no standard output".to_owned());
        };
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(output).read_line(&mut line);
            tell.send(read.is_ok() && line.trim() == READY)
        });
        match told.recv_timeout(PATIENCE) {
            Ok(true) => Ok(()),
            Ok(false) => match self.child.wait() {
                Ok(status) => Err(format!("the server ended before it served anything ({status})")),
                Err(e) => Err(format!("the server did not begin to serve: {e}")),
            },
            Err(_) => {
                Err(format!("the server did not begin to serve within {} s", PATIENCE.as_secs()))
            }
        }
    }

    /// Removes the socket once the client is connected to it, so that nothing of it is left behind
    /// in any case.
    pub fn forget_socket(&self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let since = Instant::now();
        while since.elapsed() < FAREWELL {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        // Both do nothing if the server has ended.
        drop(self.child.kill());
        drop(self.child.wait());
        self.forget_socket();
    }
}

fn private_folder() -> Result<PathBuf, String> {
    let below = env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|p| p.is_dir())
        .unwrap_or_else(env::temp_dir);
    let folder = below.join(format!("upcall-files-{}", std::process::id()));
    // The folder may be left from an earlier process with this ID, which was killed before it could
    // clean up.
    drop(fs::remove_dir_all(&folder));
    let made = fs::DirBuilder::new().mode(0o700).create(&folder);
    made.map_err(|e| format!("cannot make the folder {} for the socket: {e}", folder.display()))?;
    Ok(folder)
}
