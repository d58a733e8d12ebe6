//! A thread that computes, and that others ring for all the same: for those that are interrupted.
//!
//! It is announced at its post as one who sleeps ([`Post::announce_to_be_rung_for`]), and the clerk
//! hears the doorbells in its place, each ring of them (the edge, not the level), also beside the
//! thread itself, which may sleep there now and then. The clerk has it come by: by a signal, say.
//! Why no ring is lost is argued in [`mask`](crate::mask).

use crate::post::Post;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::{fmt, io};
use upcall_directory::clerk::{Clerk, Watched};
use upcall_os::poll::Report;
use upcall_os::timer::Timer;

/// Why a thread cannot be interrupted.
#[derive(Debug)]
#[non_exhaustive]
pub enum InterruptError {
    /// It is a virtual processor, on which handlers run at safe points.
    SafePoints,
    /// The kernel makes no fence for others (`membarrier(2)`), so that senders could not know of it
    /// for sure.
    NoFence,
    /// The handler of the signal could not be installed.
    Signal(io::Error),
    /// A descriptor, memory, or another resource could not be had.
    Resource {
        /// What for.
        what: String,
        /// The kernel's word.
        error: io::Error,
    },
}

impl fmt::Display for InterruptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SafePoints => f.write_str(
                "a virtual processor is not interrupted: handlers run at its safe points, so call upcall::thread::safe_point() now and then",
            ),
            Self::NoFence => f.write_str("the kernel has no membarrier(2), or a sandbox refuses it: poll instead"),
            Self::Signal(error) => write!(f, "no handler for SIGURG: {error}"),
            Self::Resource { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for InterruptError {}

/// What becomes readable when somebody rings.
pub trait Rings: Send + Sync + 'static {
    /// Its descriptor.
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

/// The clerk hears it, until this is dropped.
#[must_use = "nobody hears it any more when this is dropped"]
pub struct Rung {
    clerk: &'static Clerk,
    key: u64,
}

impl fmt::Debug for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rung").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Whether a thread that computes can be rung for: senders know of it, and somebody hears them.
/// Starts the clerk.
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
    /// From now on `tell` is called after each ring, by the clerk's thread. It is to be short, and
    /// may not block. One that is under way may outlast this.
    ///
    /// # Errors
    /// [`InterruptError::Resource`].
    pub fn tells(
        rings: Arc<impl Rings>,
        tell: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, InterruptError> {
        let unable = |error| InterruptError::Resource {
            what: "a place among what the clerk watches".into(),
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

/// As the clerk watches it.
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
