//! Saying how far a run is.

use std::io::{self, IsTerminal, Write};

/// Progress on standard error: one changing line on a terminal, else one line a case.
pub struct Progress {
    terminal: bool,
    /// How much of the run is done.
    pub percent: u32,
    last: String,
}

impl Progress {
    /// At the start of a run.
    pub fn new() -> Progress {
        Progress { terminal: io::stderr().is_terminal(), percent: 0, last: String::new() }
    }

    /// What is measured now: `what` is said once where the lines stay, `detail` only where they
    /// change.
    pub fn say(&mut self, what: &str, detail: &str) {
        if self.terminal {
            eprint!("\r\x1b[K{:3} %  {what}, {detail}", self.percent);
            io::stderr().flush().ok();
        } else if self.last != what {
            eprintln!("{:3} %  {what}", self.percent);
            self.last = what.to_owned();
        }
    }

    /// Leaves nothing on the terminal.
    pub fn clear(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}
