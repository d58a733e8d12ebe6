//! The program `file-server`: one tree, served by Upcall under a name and optionally at a Unix
//! socket.

use crate::files::export;
use crate::socket::listen;
use crate::tree::Tree;
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::{fs, process, thread};

/// The line on standard output that reports that the tree is served.
pub const READY: &str = "ready";

/// The arguments of `file-server`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The directory whose files are served
    #[arg(default_value = "/usr/share/doc")]
    pub root: PathBuf,
    /// The name to export under
    #[arg(long, default_value = "files")]
    pub name: String,
    /// Also serve at a Unix socket, created at this path
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Stop when standard input is closed, that is, when the process that started this one has
    /// ended
    #[arg(long)]
    pub until_stdin_closes: bool,
}

/// Serves until SIGINT or SIGTERM, or the end of its input if that option is set. Then nothing of
/// it is left in the file system. A second signal ends the process at once.
///
/// # Errors
/// Why nothing can be served, in words.
pub fn run(options: &Options) -> Result<(), String> {
    let tree = Arc::new(Tree::open(&options.root).map_err(|e| e.to_string())?);
    // This comes before anything is in the file system that has to be removed again.
    let stop =
        stops(options.until_stdin_closes).map_err(|e| format!("cannot handle signals: {e}"))?;
    let serving = upcall::Server::new()
        .export(&options.name, export(tree.clone()))
        .start()
        .map_err(|e| e.to_string())?;
    if let Some(path) = &options.socket {
        let server = listen(path, tree.clone()).map_err(|e| {
            let advice = if e.kind() == io::ErrorKind::AddrInUse {
                "; remove it if no server runs there"
            } else {
                ""
            };
            format!("cannot listen at {}: {e}{advice}", path.display())
        })?;
        let started =
            thread::Builder::new().name("listener".to_owned()).spawn(move || server.run());
        started.map_err(|e| format!("cannot start a thread for the socket: {e}"))?;
    }
    if !options.until_stdin_closes {
        eprintln!(
            "file-server: {} is served under the name {:?}",
            tree.path().display(),
            options.name
        );
    }
    let mut out = io::stdout();
    // The files are served even if nothing reads this line.
    let _ = writeln!(out, "{READY}").and_then(|()| out.flush());
    // Fails if there are no senders left that could stop the server, which is also a reason to
    // stop.
    let _ = stop.recv();
    if let Some(path) = &options.socket {
        // The client removes the socket as soon as it is connected. This is for a client that did
        // not get that far.
        let _ = fs::remove_file(path);
    }
    drop(serving);
    Ok(())
}

/// A receiver of the one request to stop.
fn stops(with_input: bool) -> io::Result<Receiver<()>> {
    let (stop, stopped) = channel();
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    let by_signal = stop.clone();
    let wait = move || {
        let mut coming = signals.forever();
        let _ = coming.next().map(|_| by_signal.send(()));
        if let Some(again) = coming.next() {
            process::exit(128 + again);
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
    if with_input {
        let wait = move || {
            let mut ignored = [0; 64];
            while !matches!(io::stdin().read(&mut ignored), Ok(0) | Err(_)) {}
            stop.send(())
        };
        thread::Builder::new().name("input".to_owned()).spawn(wait)?;
    }
    Ok(stopped)
}
