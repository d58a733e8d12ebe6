//! The signals by which a user ends a program, as descriptors to wait for.

use rustix::process::Signal;
use signal_hook::SigId;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use upcall_os::poll::{PollSet, Report};

const ALL: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// SIGINT, SIGTERM and SIGHUP, as descriptors to wait for.
pub struct Signals(Vec<(Signal, UnixStream, SigId)>);

impl Signals {
    /// Reports them under a key, until this is dropped.
    ///
    /// Signals that were ignored when this process started (`nohup`, and a shell's background
    /// processes) stay ignored.
    ///
    /// # Errors
    /// No descriptor is left, or the kernel permits no handler.
    pub fn new(poll: &PollSet, key: u64) -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status
            .lines()
            .find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
        let heeded = |signal: &&Signal| ignored.unwrap_or(0) & (1 << (signal.as_raw() - 1)) == 0;
        let mut signals = Self(Vec::new());
        for &signal in ALL.iter().filter(heeded) {
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            poll.add(&ours, key, Report::WhileReadable)?;
            let id = signal_hook::low_level::pipe::register(signal.as_raw(), theirs)?;
            signals.0.push((signal, ours, id));
        }
        Ok(signals)
    }

    /// Signals that arrived since the last call.
    pub fn take(&mut self) -> Vec<Signal> {
        let come = self.0.iter_mut().filter_map(|(signal, pipe, _)| {
            (pipe.read(&mut [0; 64]).unwrap_or(0) > 0).then_some(*signal)
        });
        come.collect()
    }

    /// Ends this process as this signal does, so that its parent sees what has ended it.
    pub fn end_by(signal: Signal) {
        // This fails for signals that no process may have a handler for.
        let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (.., id) in &self.0 {
            signal_hook::low_level::unregister(*id);
        }
    }
}
