//! Checkpoints and restarts, which the harness asks for from outside and times itself.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::run::Found;
use crate::process::{self, ChildError, Process};
use crate::stats::{Summary, median};

/// Maximum time of a checkpoint, and of a restart.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum time for all processes of a machine to end.
const END: Duration = Duration::from_secs(20);
/// Minimum and maximum number of samples in a turn.
const LEAST: usize = 3;
const MOST: usize = 30;

/// Makes a command of `upcall pvm` with these arguments, and the name of a file for its errors.
pub(super) type Asks<'a> = &'a dyn Fn(&[&str]) -> (Command, PathBuf);

/// Starts a command of `upcall pvm`.
fn start(asks: Asks<'_>, words: &[&str]) -> Result<Process, ChildError> {
    let (command, errors) = asks(words);
    Process::start(command, format!("upcall pvm {}", words[0]), errors)
}

/// Runs a command of `upcall pvm`, and returns its first line.
pub(super) fn asked(
    asks: Asks<'_>,
    words: &[&str],
    interrupted: &AtomicBool,
) -> Result<String, ChildError> {
    let mut running = start(asks, words)?;
    let line = running.line("its end", Instant::now() + PATIENCE, interrupted)?;
    running.end(END, interrupted)?;
    Ok(line)
}

/// A machine that is to be saved, and the files for that.
pub(super) struct Saving<'a> {
    /// The case's name and its number of tasks.
    pub(super) name: String,
    pub(super) tasks: usize,
    pub(super) time: Duration,
    pub(super) dir: &'a Path,
    pub(super) interrupted: &'a AtomicBool,
    pub(super) asks: Asks<'a>,
}

/// Returns the file whose existence lets the tasks check their memory and end.
pub(super) fn go(dir: &Path) -> PathBuf {
    dir.join("go")
}

impl Saving<'_> {
    /// Measures checkpoints of a running machine, in turn with plain writes of as many bytes.
    pub(super) fn checkpoints(&self, running: &mut Process) -> Result<Found, ChildError> {
        self.line(running)?;
        let state = self.dir.join("state");
        let failed = |error: io::Error| running.fault(&format!("{}: {error}", state.display()));
        let (mut times, mut pauses, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        let first = Instant::now();
        while self.needs_more(&times, first) {
            let (took, pause) = self.save(running.id(), &state)?;
            times.push(took);
            pauses.push(pause);
            plain.push(written(&state, &self.dir.join("copy")).map_err(failed)?);
        }
        let bytes = fs::metadata(&state).map_err(failed)?.len();
        File::create(go(self.dir)).map_err(failed)?;
        self.line(running)?;
        running.end(END, self.interrupted)?;
        Ok(Found {
            memcpy_ns: Some(median(&plain)),
            pause_ns: Some(median(&pauses)),
            bytes_each: Some(bytes as f64 / self.tasks as f64),
            ..Found::of(Summary::of_nanoseconds(times))
        })
    }

    /// Measures restarts of a machine that was saved and killed.
    pub(super) fn restarts(&self, running: &mut Process) -> Result<Found, ChildError> {
        self.line(running)?;
        let state = self.dir.join("state");
        self.save(running.id(), &state)?;
        self.kill(running)?;
        File::create(go(self.dir))
            .map_err(|error| running.fault(&format!("cannot go on: {error}")))?;
        let mut times = Vec::new();
        let first = Instant::now();
        while self.needs_more(&times, first) {
            let begun = Instant::now();
            let mut again = start(self.asks, &["restart", &state.to_string_lossy()])?;
            self.line(&mut again)?;
            times.push(begun.elapsed().as_nanos() as f64);
            again.end(END, self.interrupted)?;
        }
        Ok(Found::of(Summary::of_nanoseconds(times)))
    }

    fn needs_more(&self, times: &[f64], first: Instant) -> bool {
        times.len() < LEAST || (times.len() < MOST && first.elapsed() < self.time)
    }

    /// Saves a machine, and returns the nanoseconds that this took and that its tasks paused.
    fn save(&self, machine: u32, state: &Path) -> Result<(f64, f64), ChildError> {
        let machine = machine.to_string();
        let words = ["checkpoint", &state.to_string_lossy(), "--machine", &machine];
        let begun = Instant::now();
        let line = asked(self.asks, &words, self.interrupted)?;
        let took = begun.elapsed().as_nanos() as f64;
        let fault = || ChildError::Child { who: self.name.clone(), what: format!("`{line}`?") };
        Ok((took, pause_ns(&line).ok_or_else(fault)?))
    }

    /// Waits for a line of the program.
    fn line(&self, running: &mut Process) -> Result<(), ChildError> {
        let line = running.line(&self.name, Instant::now() + PATIENCE, self.interrupted)?;
        if line == format!("{{\"case\":\"{}\"}}", self.name) {
            Ok(())
        } else {
            Err(running.fault(&format!("said `{line}`")))
        }
    }

    /// Kills a machine, and waits until none of its processes is left.
    fn kill(&self, running: &mut Process) -> Result<(), ChildError> {
        let others = process::descendants(running.id());
        running.kill();
        let begun = Instant::now();
        while others.iter().any(|id| Path::new("/proc").join(id.to_string()).exists()) {
            if begun.elapsed() > END {
                return Err(running.fault("was killed, and left processes behind"));
            }
            process::pause(Duration::from_millis(1), self.interrupted)?;
        }
        Ok(())
    }
}

/// Writes the bytes of a file into another one, and returns the nanoseconds until they are on the
/// disk.
fn written(from: &Path, to: &Path) -> io::Result<f64> {
    let bytes = fs::read(from)?;
    let begun = Instant::now();
    let mut file = File::create(to)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    let took = begun.elapsed().as_nanos() as f64;
    fs::remove_file(to)?;
    Ok(took)
}

/// Reads the pause in what `upcall pvm checkpoint` prints: `…; they paused for 7 ms of 12`.
fn pause_ns(line: &str) -> Option<f64> {
    let (_, rest) = line.split_once("; they paused for ")?;
    let ms: f64 = rest.split(' ').next()?.parse().ok()?;
    Some(1e6 * ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_is_read() {
        let line = "10 tasks in /tmp/x: 1.5 MiB; they paused for 7 ms of 12";
        assert_eq!(pause_ns(line), Some(7e6));
        assert_eq!(pause_ns("10 tasks in x: 1.5 MiB"), None);
        assert_eq!(pause_ns("; they paused for some ms"), None);
    }

    #[test]
    fn a_plain_write_leaves_nothing() {
        let name = |part| format!("upcall-saved-{part}-{}", std::process::id());
        let [from, to] = ["from", "to"].map(|part| std::env::temp_dir().join(name(part)));
        fs::write(&from, [7; 100_000]).unwrap();
        assert!(written(&from, &to).unwrap() > 0.0 && !to.exists());
        assert!(written(&to, &from).is_err());
        fs::remove_file(from).unwrap();
    }
}
