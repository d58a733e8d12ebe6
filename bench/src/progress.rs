//! Progress reports of a run.

use std::io::{self, IsTerminal, Write};

/// Progress on standard error: one changing line on a terminal, otherwise one line per case.
pub struct Progress {
    terminal: bool,
    /// Percentage of the run that is done.
    pub percent: u32,
    last: String,
}

impl Progress {
    /// Begins a run.
    pub fn new() -> Progress {
        Progress { terminal: io::stderr().is_terminal(), percent: 0, last: String::new() }
    }

    /// Reports the current measurement. Without a terminal, only `what` is printed, and once. On a
    /// terminal, `detail` is shown too.
    pub fn say(&mut self, what: &str, detail: &str) {
        if self.terminal {
            eprint!("\r\x1b[K{:3} %  {what}, {detail}", self.percent);
            io::stderr().flush().ok();
        } else if self.last != what {
            eprintln!("{:3} %  {what}", self.percent);
            self.last = what.to_owned();
        }
    }

    /// Clears the line on the terminal.
    pub fn clear(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}
