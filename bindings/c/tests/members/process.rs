//! Members that are processes, in any language, of the tests of languages.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A name for a group that no other test has.
pub fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("members-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A member's process, which is ended when this is dropped.
pub struct Member(pub Child);

impl Member {
    /// Starts a member with the arguments that all of them have.
    pub fn start(mut command: Command, name: &str, size: usize, rank: usize, what: &str) -> Self {
        command.args([name, &size.to_string(), &rank.to_string(), what]);
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    }

    pub fn is_ready(&mut self) {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
    }

    pub fn dies(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub fn ends(mut self) {
        let status = self.0.wait().unwrap();
        assert!(status.success(), "a member ended with {status}");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
