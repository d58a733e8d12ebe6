//! Waiting for a server that does not serve a name yet.
//!
//! [`wait_while_absent`] repeats an attempt to bind until a server is there, an attempt fails for
//! another reason than an absent server, or the time limit is reached. Between two attempts the
//! waiting thread sleeps until a file appears in the folder of names (inotify).
//!
//! No name is missed: the watch starts before an attempt, so a name that is entered after that
//! attempt has looked leaves an event, and the event ends the sleep. A name can be in the folder
//! before its server listens, and a server on another machine leaves no event. Both are polled, at
//! intervals that grow from [`FIRST_PAUSE`] to [`MOST_PAUSE`].
//!
//! Another user who may enter names can make an event at any time. So attempts start at least
//! [`FIRST_PAUSE`] apart, and a flood of names costs the waiting process a few hundredths of a CPU.

use crate::error::BindError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Minimum time from the start of an attempt to the next, in milliseconds, and the first pause that
/// no event can end.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// Maximum pause between two attempts that no event can end, in milliseconds.
const MOST_PAUSE: Duration = Duration::from_millis(100);

/// Maximum sleep while the folder of names is watched, in seconds. It covers a folder that is
/// removed and made again, for which the watch reports nothing.
const MOST_SLEEP: Duration = Duration::from_secs(1);

/// Repeats `attempt` until it succeeds, until it fails although a server is there, or until
/// `limit` is over. Blocks the calling kernel thread. An attempt that runs when the limit is
/// reached is not cut short.
///
/// # Errors
/// The error of the last attempt.
pub fn wait_while_absent<T>(
    limit: Duration,
    mut attempt: impl FnMut() -> Result<T, BindError>,
) -> Result<T, BindError> {
    let end = Instant::now().checked_add(limit);
    let (mut watch, mut pause) = (None, FIRST_PAUSE);
    loop {
        let began = Instant::now();
        let error = match attempt() {
            Err(error) if is_absence(&error) => error,
            done => return done,
        };
        let left = end.map_or(MOST_SLEEP, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(error);
        }
        match (&error, &watch) {
            (BindError::NoSuchName { .. }, Some(watch)) => {
                sleep(watch, left.min(MOST_SLEEP));
                thread::sleep(FIRST_PAUSE.saturating_sub(began.elapsed()));
            }
            (BindError::NoSuchName { folder, .. }, None) => {
                watch = watch_folder(folder);
                // The next attempt looks again, now that the folder is watched.
                if watch.is_some() {
                    continue;
                }
                thread::sleep(left.min(pause));
            }
            _ => thread::sleep(left.min(pause)),
        }
        pause = (pause * 2).min(MOST_PAUSE);
    }
}

/// Returns `true` if the error says that no server is there now, and one may be there later.
fn is_absence(error: &BindError) -> bool {
    matches!(
        error,
        BindError::NoSuchName { .. }
            | BindError::ServerGone { .. }
            | BindError::HungUp { .. }
            | BindError::NoAnswer { .. }
            | BindError::Unreachable { .. }
            | BindError::NotThere { .. }
    )
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
