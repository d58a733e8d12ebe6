//! Waiting for a process that has not entered a name yet.
//!
//! [`wait_while_absent`] repeats an attempt until it succeeds, until it fails for another reason
//! than an absent name or holder, or until the time limit is reached. Between two attempts the
//! waiting thread sleeps until a file appears in the folder of names (inotify).
//!
//! No name is missed: the watch starts before an attempt, so a name that is entered after that
//! attempt has looked leaves an event, and the event ends the sleep. A name can be in the folder
//! before its holder listens, and a server on another machine leaves no event. Both are polled, at
//! intervals that grow from [`FIRST_PAUSE`] to [`MOST_PAUSE`].
//!
//! Another user who may enter names can make an event at any time. So attempts start at least
//! [`FIRST_PAUSE`] apart, and a flood of names costs the waiting process a few hundredths of a CPU.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Minimum time from the start of an attempt to the next, in milliseconds, and the first pause that
/// no event can end.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// Maximum pause between two attempts that no event can end, in milliseconds.
const MOST_PAUSE: Duration = Duration::from_millis(100);

/// Maximum sleep while the folder of names is watched, in seconds. It covers a folder that is
/// removed and made again, for which the watch reports nothing.
const MOST_SLEEP: Duration = Duration::from_secs(1);

/// What an attempt has missed.
#[derive(Clone, Copy, Debug)]
pub enum Absence<'a> {
    /// The name is not in this folder of names.
    Name(&'a Path),
    /// The name's holder does not answer, or the name leads to another machine.
    Holder,
}

/// Repeats `attempt` until it succeeds, until `absence` says of its error that nothing is absent,
/// or until `limit` is over. The attempts run on the calling thread, which blocks. Between them
/// other threads of its virtual processor run. An attempt that runs when the limit is reached is
/// not cut short.
///
/// # Errors
/// The error of the last attempt.
pub fn wait_while_absent<T, E>(
    limit: Duration,
    mut attempt: impl FnMut() -> Result<T, E>,
    absence: impl Fn(&E) -> Option<Absence<'_>>,
) -> Result<T, E> {
    let end = Instant::now().checked_add(limit);
    let (mut watch, mut pause) = (None, FIRST_PAUSE);
    loop {
        let began = Instant::now();
        let error = match attempt() {
            Err(error) => error,
            done => return done,
        };
        let Some(absent) = absence(&error) else { return Err(error) };
        let left = end.map_or(MOST_SLEEP, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(error);
        }
        match (absent, &watch) {
            (Absence::Name(_), Some(watch)) => {
                upcall_thread::blocking(|| sleep(watch, left.min(MOST_SLEEP)));
                upcall_thread::sleep(FIRST_PAUSE.saturating_sub(began.elapsed()));
            }
            (Absence::Name(folder), None) => {
                watch = watch_folder(folder);
                // The next attempt looks again, now that the folder is watched.
                if watch.is_some() {
                    continue;
                }
                upcall_thread::sleep(left.min(pause));
            }
            _ => upcall_thread::sleep(left.min(pause)),
        }
        pause = (pause * 2).min(MOST_PAUSE);
    }
}

/// Watches a folder for new files. `None` if the kernel has no watch left for this user.
fn watch_folder(folder: &Path) -> Option<OwnedFd> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    let events = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE_SELF;
    inotify::add_watch(&watch, folder, events).ok()?;
    Some(watch)
}

/// Sleeps until the folder has a new file or a signal arrives, for at most `most`. Drops up to
/// 16 KiB of events; events that are left end the next sleep.
fn sleep(watch: &OwnedFd, most: Duration) {
    let most = Timespec::try_from(most).ok();
    let _ = poll(&mut [PollFd::new(watch, PollFlags::IN)], most.as_ref());
    let _ = rustix::io::read(watch, &mut [0_u8; 16 << 10]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use upcall_thread::Processors;

    /// Longest wait for a file, in seconds.
    const GUARD: Duration = Duration::from_secs(60);

    /// Number of turns of the other thread before it makes the file. If the sleep held the
    /// processor, the thread would get some ten turns for each sleep, and [`GUARD`] would be over
    /// first.
    const TURNS: usize = 100_000;

    #[test]
    fn other_threads_of_the_processor_run_while_one_waits() {
        let folder = std::env::temp_dir().join(format!("upcall-absent-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let file = folder.join("name");
        let made = file.clone();
        let found = Processors::new().count(1).run(|| {
            let other = upcall_thread::spawn(move || {
                (0..TURNS).for_each(|_| upcall_thread::yield_now());
                fs::write(made, "")
            });
            let look = || if file.exists() { Ok(()) } else { Err(folder.clone()) };
            let found = wait_while_absent(GUARD, look, |folder| Some(Absence::Name(folder)));
            if found.is_ok() {
                other.join().unwrap().unwrap();
            }
            found
        });
        fs::remove_dir_all(&folder).unwrap();
        found.unwrap().unwrap();
    }
}
