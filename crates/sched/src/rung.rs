//! Notifications for a thread that computes: for receivers that are interrupted.
//!
//! The thread is announced at its post as if it slept ([`Post::announce_to_be_rung_for`]), and the
//! clerk watches the doorbells in its place. The clerk sees each notification (the edge, not the
//! level), even while the thread itself sleeps at the post. The clerk then interrupts the thread,
//! for example by a signal. [`mask`](crate::mask) argues why no notification is lost.

use crate::post::Post;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::{fmt, io};
use upcall_directory::clerk::{Clerk, Watched};
use upcall_os::poll::Report;
use upcall_os::timer::Timer;

/// The reason why a thread cannot be interrupted.
#[derive(Debug)]
#[non_exhaustive]
pub enum InterruptError {
    /// The thread is a virtual processor, on which handlers run at safe points.
    SafePoints,
    /// The kernel makes no fence for others (`membarrier(2)`), so senders could miss that the
    /// thread is announced.
    NoFence,
    /// The signal handler could not be installed.
    Signal(io::Error),
    /// A descriptor, memory, or another resource was not available.
    Resource {
        /// The resource.
        what: String,
        /// The kernel's error.
        error: io::Error,
    },
}

impl fmt::Display for InterruptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SafePoints => f.write_str(
                "a virtual processor is not interrupted: handlers run at its safe points, so call \
                 upcall::thread::safe_point() now and then",
            ),
            Self::NoFence => f.write_str(
                "the kernel has no membarrier(2), or a sandbox refuses it: poll instead",
            ),
            Self::Signal(error) => write!(f, "the handler for SIGURG cannot be installed: {error}"),
            Self::Resource { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for InterruptError {}

/// A source of notifications, with a descriptor that becomes readable on each.
pub trait Rings: Send + Sync + 'static {
    /// The descriptor.
    fn rings(&self) -> BorrowedFd<'_>;
}

impl Rings for Post {
    fn rings(&self) -> BorrowedFd<'_> {
        Self::rings(self)
    }
}

impl Rings for Timer {
    fn rings(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

/// A watch by the clerk, which ends when this is dropped.
#[must_use = "the clerk stops watching when this is dropped"]
pub struct Rung {
    clerk: &'static Clerk,
    key: u64,
}

impl fmt::Debug for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rung").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Checks that a thread that computes can be notified, and starts the clerk.
///
/// Senders must see that the thread is announced, which takes a fence by the kernel.
///
/// # Errors
/// [`InterruptError::NoFence`], [`InterruptError::Resource`].
pub fn can_be() -> Result<(), InterruptError> {
    if !Post::makes_fences() {
        return Err(InterruptError::NoFence);
    }
    clerk().map(drop)
}

fn clerk() -> Result<&'static Clerk, InterruptError> {
    Clerk::current()
        .map_err(|error| InterruptError::Resource { what: "the clerk's thread".into(), error })
}

impl Rung {
    /// Makes the clerk's thread call `tell` after each notification. `tell` must be short and must
    /// not block. A call that is under way may outlast the returned value.
    pub fn tells(
        rings: Arc<impl Rings>,
        tell: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, InterruptError> {
        let unable = |error| InterruptError::Resource {
            what: "an entry in the clerk's poll set".into(),
            error,
        };
        let clerk = clerk()?;
        let key = clerk
            .watch(Arc::new(DoorbellWatch { rings, tell }), Report::EachRing)
            .map_err(unable)?;
        Ok(Self { clerk, key })
    }
}

impl Drop for Rung {
    fn drop(&mut self) {
        self.clerk.forget(self.key);
    }
}

/// The clerk's view of the watch.
struct DoorbellWatch<R, F> {
    rings: Arc<R>,
    tell: F,
}

impl<R: Rings, F: Fn() + Send + Sync> Watched for DoorbellWatch<R, F> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.rings.rings()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        (self.tell)();
        true
    }

    fn failed(&self) -> bool {
        true
    }
}
