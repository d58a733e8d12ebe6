//! How long a caller waits, and how that ends.

use crate::handoff::HandOff;
use crate::turns::give_turn;
use crate::wait_limit::WaitLimit;
use std::fmt;
use upcall_shm::slot::SlotMessage;
use upcall_thread::{Ticket, Waited, Waiter};

/// The reason why a channel takes no more calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The server's process has ended, or has closed the connection.
    PeerEnded,
    /// The server broke the protocol in this way.
    Violation(&'static str),
    /// The server closed the connection, for this reason.
    Refused(String),
    /// This side closed it.
    Here,
    /// A lane could not be opened: the server could not be reached, or a resource was missing on
    /// this side. Under user-level threads the channel stays open.
    Lane(String),
    /// The connection to a server on another machine has ended.
    Lost {
        /// The server's address.
        server: String,
        /// How the end was detected.
        why: String,
    },
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerEnded => write!(f, "the server has ended, or closed the connection"),
            Self::Violation(what) => write!(f, "the server broke the protocol: {what}"),
            Self::Refused(why) => write!(f, "the server closed the connection: {why}"),
            Self::Here => write!(f, "the binding was closed on this side"),
            Self::Lost { server, why } => write!(f, "the connection to {server} is lost: {why}"),
            Self::Lane(error) => write!(f, "a new lane to the server could not be opened: {error}"),
        }
    }
}

impl std::error::Error for Closed {}

/// How long a call waits for its reply, and what happens to a reply that comes later.
pub struct WaitPolicy<'a> {
    /// The limit of the wait.
    pub until: WaitLimit<'a>,
    /// Called once, by a call that was sent and is abandoned. Must not block.
    pub late: &'a mut dyn FnMut() -> LateReply,
    /// When the processor is given to a server that has none.
    pub hand_off: HandOff,
}

/// Takes the reply of an abandoned call, on a thread that may block.
///
/// It is dropped if no reply will come; what it holds is then free.
pub type LateReply = Box<dyn FnOnce(SlotMessage) + Send>;

/// The reason why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoReply {
    /// The channel is closed: no reply will come.
    Closed(Closed),
    /// The caller's wait reached its limit.
    OutOfTime {
        /// `true` if the request is with the server; `false` if the call was still waiting to be
        /// sent.
        sent: bool,
    },
    /// This domain has no memory for the request, which was not sent.
    NoMemory {
        /// Bytes of the request.
        bytes: usize,
    },
}

/// Number of bytes of a value that are copied before the thread [yields](give_way).
pub const PIECE: usize = 256 << 10;

/// Yields to waiting requests and to other threads of the virtual processor. Another kernel thread
/// yields its processor ([`crate::turns`]).
#[cold]
pub fn give_way() {
    if upcall_thread::on_virtual_processor().is_some() {
        // A yield alone would not probe for requests while other threads are ready: two calls that
        // yield to each other would shut them out.
        upcall_thread::safe_point();
        upcall_thread::yield_now();
    } else {
        give_turn();
    }
}

/// How a call waits. It is chosen at compile time, so that a call without a limit pays nothing for
/// limits.
pub(crate) trait WaitMode {
    /// The limit of the wait.
    fn until(&self) -> WaitLimit<'_>;
    /// Returns what takes a reply that comes after the limit.
    fn late(&mut self) -> Option<LateReply>;
    /// When the processor is given to a server that has none.
    fn hand_off(&self) -> HandOff;
}

/// Waits until the reply arrives.
pub(crate) struct Forever(pub(crate) HandOff);

impl WaitMode for Forever {
    #[inline(always)]
    fn until(&self) -> WaitLimit<'_> {
        WaitLimit::FOR_EVER
    }
    #[inline(always)]
    fn late(&mut self) -> Option<LateReply> {
        None
    }
    #[inline(always)]
    fn hand_off(&self) -> HandOff {
        self.0
    }
}

impl WaitMode for WaitPolicy<'_> {
    fn until(&self) -> WaitLimit<'_> {
        self.until
    }
    fn late(&mut self) -> Option<LateReply> {
        Some((self.late)())
    }
    fn hand_off(&self) -> HandOff {
        self.hand_off
    }
}

impl From<Closed> for NoReply {
    fn from(reason: Closed) -> Self {
        Self::Closed(reason)
    }
}

/// A thread that waits, with or without a deadline.
#[derive(Debug)]
pub struct Sleeper(Right);

#[derive(Debug)]
enum Right {
    Patient(Waiter),
    Until(Ticket),
}

impl Sleeper {
    /// Makes the thread ready. Returns `false` if it is ready already, because its deadline has
    /// passed or its wait was cancelled.
    #[inline]
    pub fn wake(self) -> bool {
        match self.0 {
            Right::Patient(waiter) => {
                waiter.wake();
                true
            }
            Right::Until(ticket) => ticket.wake(),
        }
    }

    /// Returns `true` if the thread's wait has ended by its deadline or by a cancellation.
    pub fn has_gone(&self) -> bool {
        matches!(self.0, Right::Until(ticket) if ticket.is_over())
    }
}

/// Blocks the calling thread until the sleeper that `publish` gets is woken, or until the limit
/// `until`. If `publish` returns the sleeper, there is no wait.
#[inline]
pub fn block_unless(
    until: WaitLimit<'_>,
    publish: impl FnOnce(Sleeper) -> Option<Sleeper>,
) -> Waited {
    if until.is_for_ever() {
        upcall_thread::block_unless(|waiter| match publish(Sleeper(Right::Patient(waiter)))?.0 {
            Right::Patient(waiter) => Some(waiter),
            Right::Until(_) => None,
        });
        return Waited::Woken;
    }
    upcall_thread::block_until(until.ends, |ticket| match publish(Sleeper(Right::Until(ticket))) {
        Some(back) => drop(back.wake()),
        None => until.cancel.into_iter().for_each(|token| token.enter(ticket)),
    })
}

/// Runs work that comes late, above all a reply, on a kernel thread of its own. If none can be
/// started, the work is dropped, with all that it holds.
pub fn run_late(work: impl FnOnce() + Send + 'static) {
    drop(std::thread::Builder::new().name("upcall-late".into()).stack_size(256 * 1024).spawn(work));
}
