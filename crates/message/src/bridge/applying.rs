//! A process that asks the leader of a group over several hosts to become a member.

use super::way::{WireOwner, owner};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_net::tls::TlsError;
use upcall_net::{
    Attend, BufferOwner, Frame, FrameBody, FrameError, FrameHeader, FrameKind, Lost, NoConnection,
    OutMessage, Protection, Wanted, Wire, WireTerms, dial, new_link,
};
use upcall_os::lock::{KernelCondvar, KernelMutex};

/// Maximum time until the leader's hello arrives.
const HELLO: Duration = Duration::from_secs(5);

/// Maximum length of an answer, in bytes.
const MOST_ANSWERED: usize = 4 << 20;

/// What came of an application.
#[derive(Clone, Debug)]
pub(super) enum ApplicationResult {
    /// The leader's answer.
    Reply(Vec<u8>),
    /// It does not admit this process, for this reason.
    Parted(String),
    /// The connection has ended.
    Ended(String),
}

/// An application, which ends when this is dropped.
pub(super) struct Application {
    wire: Arc<Wire>,
    answer: Arc<LeaderAnswer>,
}

#[derive(Default)]
struct LeaderAnswer {
    answered: KernelMutex<Option<ApplicationResult>>,
    changed: KernelCondvar,
}

impl LeaderAnswer {
    /// The first one stays.
    fn is(&self, answered: ApplicationResult) {
        self.answered.lock().get_or_insert(answered);
        self.changed.notify_all();
    }
}

impl Application {
    /// Connects to a leader.
    ///
    /// # Errors
    /// See [`NoConnection`].
    ///
    /// # Blocking
    /// Blocks the kernel thread, for 5 s at most.
    pub(super) fn connect(at: SocketAddr, protection: &Protection) -> Result<Self, NoConnection> {
        let mut link = new_link(Duration::ZERO)?;
        let deadline = Instant::now() + HELLO;
        let (wire, first) = dial(at, protection, &mut link, WireTerms::default(), deadline)?;
        check_owner(owner(&wire)).inspect_err(|_| wire.hang_up())?;
        let answer = Arc::new(LeaderAnswer::default());
        let reader = Box::new(AnswerReader { answer: answer.clone(), begun: false });
        wire.start(&first, reader).map_err(NoConnection::NoThread)?;
        Ok(Self { wire, answer })
    }

    /// This side's address.
    pub(super) fn own(&self) -> std::io::Result<SocketAddr> {
        self.wire.own()
    }

    /// The connection to the leader.
    pub(super) fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Sends the request.
    pub(super) fn ask(&self, bytes: &[u8]) {
        let head = FrameHeader { call: 1, ..FrameHeader::of(FrameKind::Ask) };
        // If the connection has ended, its end is the answer.
        drop(self.wire.try_send(0, OutMessage { head, body: FrameBody::from(bytes), owner: None }));
    }

    /// Waits for the answer for this time.
    pub(super) fn wait(&self, limit: Duration) -> Option<ApplicationResult> {
        let answered = self.answer.answered.lock();
        let waits = |answered: &mut Option<ApplicationResult>| answered.is_none();
        self.answer.changed.wait_timeout_while(answered, limit, waits).0.clone()
    }
}

/// Checks whose process listens. A connection that has ended at once has no owner any more, and
/// the leader may be well.
fn check_owner(owner: WireOwner) -> Result<(), NoConnection> {
    match owner {
        WireOwner::Own => Ok(()),
        WireOwner::Another => {
            let what = "the process that listens there is another user's".into();
            Err(NoConnection::NotProved(TlsError::Broken { what }))
        }
        WireOwner::Unknown => Err(NoConnection::Lost(Lost::Ended)),
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.wire.hang_up();
    }
}

struct AnswerReader {
    answer: Arc<LeaderAnswer>,
    /// The leader answers once.
    begun: bool,
}

impl Attend for AnswerReader {
    fn begun(&mut self, head: &FrameHeader, _unsent: usize) -> Result<Wanted, FrameError> {
        match head.kind {
            FrameKind::Answer | FrameKind::Farewell if head.len <= MOST_ANSWERED && !self.begun => {
                self.begun = true;
                Ok(Wanted::Yes(None))
            }
            _ => Err(FrameError("what is no answer")),
        }
    }

    fn came(&mut self, frame: Frame, _owner: Option<BufferOwner>) -> Result<(), FrameError> {
        let bytes = frame.body.to_vec();
        self.answer.is(match frame.head.kind {
            FrameKind::Farewell => {
                ApplicationResult::Parted(String::from_utf8_lossy(&bytes).into_owned())
            }
            _ => ApplicationResult::Reply(bytes),
        });
        Ok(())
    }

    fn given_up(&mut self, _head: FrameHeader) -> Result<(), FrameError> {
        Err(FrameError("an answer that does not go on"))
    }

    fn ended(self: Box<Self>, why: Lost) {
        self.answer.is(ApplicationResult::Ended(why.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_process_of_another_user_is_refused_for_good() {
        assert!(check_owner(WireOwner::Own).is_ok());
        assert!(matches!(check_owner(WireOwner::Another), Err(NoConnection::NotProved(_))));
        assert!(matches!(check_owner(WireOwner::Unknown), Err(NoConnection::Lost(Lost::Ended))));
    }
}
