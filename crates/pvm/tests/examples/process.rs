//! Programs that are started, given their input, and ended when they take too long.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What came of a program.
pub struct Ended {
    pub out: String,
    pub err: String,
    /// None: it was ended here, after its time.
    pub status: Option<ExitStatus>,
}

/// Runs a program to its end, or for `limit`. Its outputs go to files in `dir`, as to any that a
/// user names.
pub fn run(mut command: Command, stdin: &str, limit: Duration, dir: &Path) -> Ended {
    let (out, err) = (dir.join("stdout"), dir.join("stderr"));
    let create = |path| File::create(path).expect("a file for output");
    command.stdin(Stdio::piped()).stdout(create(&out)).stderr(create(&err)).process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // It may end without having read.
    child.stdin.take().expect("a pipe").write_all(stdin.as_bytes()).ok();
    let status = wait(&mut child, limit);
    if status.is_none() {
        kill(&mut child);
    }
    // Programs print what they like: bytes that are no text must not end the test.
    let text = |path| String::from_utf8_lossy(&fs::read(path).expect("its output")).into_owned();
    Ended { out: text(&out), err: text(&err), status }
}

/// None: it still runs after `limit`.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait().expect("a child") {
            None if begun.elapsed() < limit => thread::sleep(Duration::from_millis(5)),
            status => return status,
        }
    }
}

/// Ends it with all that it has started; it has a process group of its own.
pub fn kill(child: &mut Child) {
    Command::new("kill")
        .args(["-KILL", "--", &format!("-{}", child.id())])
        .stderr(Stdio::null())
        .status()
        .ok();
    child.wait().ok();
}

/// As the comparison has it if it was ended here.
pub const RUNS: &str = "it has not ended";

/// As the comparison has it.
pub fn told(status: Option<ExitStatus>) -> String {
    match status {
        None => RUNS.into(),
        Some(status) => status.code().map_or_else(
            || format!("ended by signal {:?}", status.signal()),
            |code| format!("status {code}"),
        ),
    }
}
