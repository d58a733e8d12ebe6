//! A forked child that does nothing, for tests.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{self, Read};

/// Maximum life of a child whose parent was killed, in seconds.
const LIFE: u32 = 300;

/// A child of this process with a copy of all its memory and descriptors. It sleeps until this is
/// dropped.
#[derive(Debug)]
pub struct ForkedChild(Pid);

impl ForkedChild {
    /// Forks, and waits until the child runs.
    ///
    /// # Errors
    /// There is no process, no descriptor or no memory left.
    pub fn begin() -> io::Result<Self> {
        let (mut runs, tells) = io::pipe()?;
        // SAFETY: the child makes only system calls that are allowed after a fork.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: the call takes no pointer.
            unsafe { libc::alarm(LIFE) };
            let _ = rustix::io::write(&tells, &[1]);
            loop {
                // SAFETY: the call takes no arguments.
                unsafe { libc::pause() };
            }
        }
        let pid = Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error)?;
        let child = Self(pid);
        runs.read_exact(&mut [0])?;
        Ok(child)
    }

    /// The child's process ID.
    pub fn pid(&self) -> u32 {
        self.0.as_raw_nonzero().get().unsigned_abs()
    }
}

impl Drop for ForkedChild {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}
