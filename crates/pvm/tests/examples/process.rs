//! Runs programs with an input and a time limit.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The result of a program.
pub struct Ended {
    pub out: String,
    pub err: String,
    /// `None`: the program was killed after its time limit.
    pub status: Option<ExitStatus>,
}

/// Runs a program to its end, or for `limit`. Its output goes to files in `dir`.
pub fn run(mut command: Command, stdin: &str, limit: Duration, dir: &Path) -> Ended {
    let (out, err) = (dir.join("stdout"), dir.join("stderr"));
    let create = |path| File::create(path).expect("a file for output");
    command.stdin(Stdio::piped()).stdout(create(&out)).stderr(create(&err)).process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // The program may end without reading its input.
    child.stdin.take().expect("a pipe").write_all(stdin.as_bytes()).ok();
    let status = wait(&mut child, limit);
    if status.is_none() {
        kill(&mut child);
    }
    // The output need not be valid text.
    let text = |path| String::from_utf8_lossy(&fs::read(path).expect("its output")).into_owned();
    Ended { out: text(&out), err: text(&err), status }
}

/// Waits for a program. `None`: it still runs after `limit`.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait().expect("a child") {
            None if begun.elapsed() < limit => thread::sleep(Duration::from_millis(5)),
            status => return status,
        }
    }
}

/// Kills a program with its process group.
pub fn kill(child: &mut Child) {
    Command::new("kill")
        .args(["-KILL", "--", &format!("-{}", child.id())])
        .stderr(Stdio::null())
        .status()
        .ok();
    child.wait().ok();
}

/// The status of a program that was killed after its time limit.
pub const RUNS: &str = "it has not ended";

/// The status as the comparison shows it.
pub fn told(status: Option<ExitStatus>) -> String {
    match status {
        None => RUNS.into(),
        Some(status) => status.code().map_or_else(
            || format!("ended by signal {:?}", status.signal()),
            |code| format!("status {code}"),
        ),
    }
}
