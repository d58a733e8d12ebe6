//! A queue is brought to its receiver, which answers that it reads the queue, or refuses it.
//!
//! The connection stays open while the queue is in use. The clerk watches it, and learns from it
//! that the receiver answers, has hung up, or has ended.

use crate::Rank;
use crate::error::SendError;
use crate::far::{CarriedQueue, FarMember};
use crate::member::{Bringing, ForNow, Member, MemberEvent, QueueRefusal, Roster};
use crate::wire::{self, Lacks, MemberRequest, ProcessKey, QueueOpenReply, VERSION, shown};
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;
use upcall_directory::clerk::Watched;
use upcall_os::atomic::{AtomicBool, AtomicU64, Ordering};
use upcall_os::fault::{Point, point};
use upcall_os::lock::KernelMutex;
use upcall_os::memory::AdoptError;
use upcall_os::poll::Report;
use upcall_os::socket::{
    Connection, Peer, Received, SocketMessage, ends_within, has_ended, is_ending, is_shut,
    says_ended,
};
use upcall_sched::ringer::Ringer;
use upcall_shm::station::{NotAStation, PeerStation};

/// Time for which a thread that brings a queue polls for the answer before it sleeps.
const EAGER: Duration = Duration::from_micros(30);

/// Time within which a killed member's process ends, after its connections have.
const TO_END: Duration = Duration::from_millis(30);

/// The text for a member that lives and has closed the connection of a queue.
const HUNG_UP: &str = "it lives, and has hung up without an answer";

/// The reason why a receiver does not have a queue.
#[derive(Debug)]
pub(crate) enum NotBrought {
    /// The receiver has ended, or has left the group.
    Ended,
    /// The receiver lives, and does not read it.
    Refused(QueueRefusal),
    /// This member lacks a resource for it, or does not reach the receiver.
    Failed(String),
}

impl NotBrought {
    /// Converts to the error of a sender with `waiting` messages in the queue.
    pub(crate) fn error(self, rank: Rank, waiting: u64) -> SendError {
        match self {
            Self::Ended => SendError::Ended { rank },
            Self::Refused(QueueRefusal::ForNow(ForNow::Lacks(Lacks { lack, errno }))) => {
                SendError::Refused { rank, lack, errno, waiting }
            }
            Self::Refused(QueueRefusal::ForNow(ForNow::HungUp)) => {
                SendError::Unreachable { rank, why: HUNG_UP.into() }
            }
            Self::Refused(QueueRefusal::ForGood(why)) | Self::Failed(why) => {
                SendError::Unreachable { rank, why }
            }
        }
    }
}

impl From<io::Error> for NotBrought {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Brings a queue to its receiver, as descriptors of its memory and of its doorbell.
///
/// `limit` bounds the wait for the answer; if it is zero, there is no wait. Returns `None` if the
/// queue of connections at the receiver's door is full. Once the queue was brought, no lack of
/// resources here ends its connection: the receiver would take that for the end of this member.
pub(crate) fn bring(
    member: &Arc<Member>,
    roster: &Roster,
    rank: Rank,
    (memory, doorbell): (BorrowedFd<'_>, BorrowedFd<'_>),
    limit: Duration,
) -> Result<Option<(DeliveredQueue, Option<Ringer>)>, NotBrought> {
    if let Some(other) = member.far(rank) {
        return Ok(Some((bring_far(other, rank, (memory, doorbell))?, None)));
    }
    let listed = &roster.members[rank];
    let path = member.folder().join(&listed.socket);
    let Some(connection) = reach(&path)? else { return Ok(None) };
    let to_end = if limit.is_zero() { Duration::ZERO } else { TO_END };
    let lost = |connection: &Connection, why: NotBrought| {
        if connection.peer_ends_within(to_end) || has_left(&path) { NotBrought::Ended } else { why }
    };
    let peer = match connection.peer() {
        Ok(peer) => peer,
        Err(error) => return Err(lost(&connection, error.into())),
    };
    if !ProcessKey::of(&peer).is(listed.process) {
        let who = format!("{} is at the door of {}", shown(peer.pid), shown(roster.pid(rank)));
        return Err(NotBrought::Failed(who));
    }
    let open = MemberRequest::Open {
        version: VERSION,
        group: roster.group,
        from: roster.rank as u32,
        to: rank as u32,
    };
    let bytes = wire::pack(&open)?;
    let far = Arc::new(FarEnd {
        connection,
        bringing: Bringing { rank, number: NEXT.fetch_add(1, Ordering::Relaxed) },
        process: listed.process,
        socket: path.clone(),
        member: Arc::downgrade(member),
        opening: AtomicBool::new(true),
        heard: KernelMutex::new(ConnectionState::Nothing),
        left: AtomicBool::new(false),
    });
    let key = member.watch_for(far.clone(), Report::EachRing)?;
    let brought = DeliveredQueue::Near { far: far.clone(), key };
    let far = &far;
    // A receiver without a descriptor for this member's process answers before it has the queue.
    let early = |message| match far.heard.lock().answer(message) {
        OfferReply::Refuses(refusal) => NotBrought::Refused(refusal),
        OfferReply::Reads(_) => NotBrought::Failed("it answers before it has the queue".into()),
    };
    // After this the thread has its memory for answers.
    match far.connection.receive() {
        Ok(Received::Message(message)) => return Err(early(message)),
        Err(error) if Lacks::of(&error).is_some() => return Err(error.into()),
        _ => {}
    }
    point(Point::MemberBrings);
    far.connection.ask(&bytes, &[memory, doorbell])?;
    point(Point::MemberBrought);
    // Until the receiver has reported where it sleeps, each message would notify it.
    let ringer = match far.connection.receive_within(EAGER, limit) {
        Ok(Received::Message(message)) => match far.heard.lock().answer(message) {
            OfferReply::Reads(ringer) => ringer,
            OfferReply::Refuses(refusal) => return Err(NotBrought::Refused(refusal)),
        },
        Ok(Received::Nothing) => None,
        Ok(Received::Closed) => {
            return Err(lost(
                &far.connection,
                NotBrought::Refused(QueueRefusal::ForNow(ForNow::HungUp)),
            ));
        }
        Err(error) => return Err(lost(&far.connection, error.into())),
    };
    far.opening.store(false, Ordering::SeqCst);
    // While the queue was offered, the clerk left what arrived on the connection to this thread.
    far.hear(member, ConnectionReader::Thread(to_end));
    Ok(Some((brought, ringer)))
}

/// Brings a queue to the bridge, for a member on another host.
fn bring_far(
    other: Arc<dyn FarMember>,
    rank: Rank,
    (memory, doorbell): (BorrowedFd<'_>, BorrowedFd<'_>),
) -> Result<DeliveredQueue, NotBrought> {
    match other.carry(memory, doorbell)? {
        CarriedQueue::Yes => {
            let bringing = Bringing { rank, number: NEXT.fetch_add(1, Ordering::Relaxed) };
            Ok(DeliveredQueue::Far { bringing, other })
        }
        CarriedQueue::Ended => Err(NotBrought::Ended),
        CarriedQueue::Absent => Err(NotBrought::Failed("it has not joined the group yet".into())),
    }
}

/// Connects to a member's door. `None` if the queue of connections there is full.
fn reach(door: &Path) -> Result<Option<Connection>, NotBrought> {
    match Connection::connect(door) {
        Ok(connection) => Ok(Some(connection)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) if is_shut(&error) => Err(NotBrought::Ended),
        Err(error) => Err(error.into()),
    }
}

/// Returns `true` if a member has closed its door. A member that leaves, and lives, does that
/// before it hangs up on the connections that wait there.
fn has_left(socket: &Path) -> bool {
    std::fs::symlink_metadata(socket).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        || Connection::connect(socket).is_err_and(|error| is_shut(&error))
}

/// A queue that its receiver has, until this is dropped.
#[derive(Debug)]
pub(crate) enum DeliveredQueue {
    /// To a member on this host.
    Near {
        far: Arc<FarEnd>,
        /// The clerk's key for the connection.
        key: u64,
    },
    /// To the bridge, for a member on another host. The bridge goes on until all is sent.
    Far { bringing: Bringing, other: Arc<dyn FarMember> },
}

impl DeliveredQueue {
    /// Returns `true` if the queue was brought by `bringing`.
    pub(crate) fn is_by(&self, bringing: Bringing) -> bool {
        match self {
            Self::Near { far, .. } => far.bringing == bringing,
            Self::Far { bringing: own, .. } => *own == bringing,
        }
    }

    /// The receiver, if it is on another host.
    pub(crate) fn far(&self) -> Option<&Arc<dyn FarMember>> {
        match self {
            Self::Near { .. } => None,
            Self::Far { other, .. } => Some(other),
        }
    }

    /// Reads the receiver's answer in place of the clerk.
    pub(crate) fn hear(&self, member: &Arc<Member>) {
        if let Self::Near { far, .. } = self {
            far.hear(member, ConnectionReader::Thread(TO_END));
        }
    }
}

impl Drop for DeliveredQueue {
    fn drop(&mut self) {
        let Self::Near { far, key } = self else { return };
        // The receiver has all that was sent, and learns that no more comes. Our own clerk does not
        // take this for the end of a member.
        far.left.store(true, Ordering::Relaxed);
        far.connection.shut_down();
        if let Some(member) = far.member.upgrade() {
            member.unwatch(*key);
        }
    }
}

/// The number of the next [`Bringing`].
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The connection through which a queue was brought, as the clerk watches it.
#[derive(Debug)]
pub(crate) struct FarEnd {
    connection: Connection,
    bringing: Bringing,
    process: ProcessKey,
    /// The socket of the receiver's door.
    socket: PathBuf,
    member: Weak<Member>,
    /// Set while the thread that brings the queue waits for the answer, and reads it.
    opening: AtomicBool,
    /// Locked while a message is read: the clerk and the sending thread can read at the same time.
    heard: KernelMutex<ConnectionState>,
    /// Set once this side has closed the connection.
    left: AtomicBool,
}

/// The state of a queue's connection, by what was read from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    Nothing,
    /// The receiver reads the queue. It answers once: each answer takes memory here.
    Reads,
    /// The receiver refuses the queue, or has hung up. What follows is ignored.
    Over,
}

/// The answer to a queue.
enum OfferReply {
    /// The receiver reads it. Without a ringer each message notifies: this process cannot map the
    /// receiver's station.
    Reads(Option<Ringer>),
    Refuses(QueueRefusal),
}

impl ConnectionState {
    fn answer(&mut self, message: SocketMessage) -> OfferReply {
        let answer = match self {
            Self::Nothing => {
                said(message).unwrap_or_else(|why| OfferReply::Refuses(QueueRefusal::ForGood(why)))
            }
            Self::Reads | Self::Over => {
                OfferReply::Refuses(QueueRefusal::ForGood("it answers more than once".into()))
            }
        };
        *self = match answer {
            OfferReply::Reads(_) => Self::Reads,
            OfferReply::Refuses(_) => Self::Over,
        };
        answer
    }
}

/// The thread that reads the connection of a queue.
#[derive(Clone, Copy, Debug)]
enum ConnectionReader {
    Clerk,
    /// Another thread, which waits for this time for the end of a process that has hung up.
    Thread(Duration),
}

/// The next event of a queue's connection.
enum ConnectionEvent {
    Answer(OfferReply),
    Nothing,
    /// There is no memory, or no descriptor, to read it.
    Unheard,
    /// The receiver has closed it, in this state.
    HungUp(ConnectionState),
    /// There was a final event before: no more follow.
    Over,
}

impl FarEnd {
    /// Reads once. Of two threads that read at the same time only one gets a message, and the
    /// second one knows what the first one has read.
    fn next(&self) -> ConnectionEvent {
        let heard = &mut *self.heard.lock();
        if *heard == ConnectionState::Over {
            return ConnectionEvent::Over;
        }
        match self.connection.receive() {
            Ok(Received::Message(message)) => ConnectionEvent::Answer(heard.answer(message)),
            Ok(Received::Nothing) => ConnectionEvent::Nothing,
            Err(error) if Lacks::of(&error).is_some() => ConnectionEvent::Unheard,
            Ok(Received::Closed) | Err(_) => {
                ConnectionEvent::HungUp(mem::replace(heard, ConnectionState::Over))
            }
        }
    }

    /// Reads all messages of the connection. Returns `false` if no more can follow.
    fn hear(&self, member: &Arc<Member>, reader: ConnectionReader) -> bool {
        loop {
            match self.next() {
                ConnectionEvent::Answer(OfferReply::Reads(Some(ringer))) => {
                    member.tell(MemberEvent::Reads(self.bringing, ringer))
                }
                ConnectionEvent::Answer(OfferReply::Reads(None)) => {}
                ConnectionEvent::Answer(OfferReply::Refuses(refusal)) => {
                    member.tell(MemberEvent::Refuses(self.bringing, refusal));
                    return false;
                }
                ConnectionEvent::Nothing => return true,
                // Nothing was read, and the clerk is not called again for it.
                ConnectionEvent::Unheard => {
                    member.tell(MemberEvent::Unheard(self.bringing.rank));
                    return true;
                }
                ConnectionEvent::HungUp(after) => {
                    if !self.left.load(Ordering::Relaxed) {
                        self.hung_up(member, after, reader);
                    }
                    return false;
                }
                ConnectionEvent::Over => return false,
            }
        }
    }

    /// Handles the end of the connection, in state `after`. Only the kernel's report and a closed
    /// door count as an end.
    fn hung_up(&self, member: &Arc<Member>, after: ConnectionState, reader: ConnectionReader) {
        let to_end = match reader {
            ConnectionReader::Clerk => TO_END,
            ConnectionReader::Thread(to_end) => to_end,
        };
        let has_ended = match self.connection.peer() {
            Ok(Peer { pidfd: Some(pidfd), pid: 0, .. }) => ends_within(pidfd, to_end),
            Ok(Peer { pidfd: Some(pidfd), pid, .. }) => has_ended(pidfd) || is_ending(pid),
            // Before Linux 6.5 the kernel gives no pidfd, and only the closed connection is known.
            Ok(Peer { pidfd: None, .. }) => true,
            Err(error) => says_ended(&error),
        };
        if has_ended || has_left(&self.socket) {
            let rank = self.bringing.rank;
            let is_told = match reader {
                ConnectionReader::Clerk => false,
                ConnectionReader::Thread(_) => {
                    member.tell_clerk_of_end(rank, self.process, self.socket.clone()).is_ok()
                }
            };
            if !is_told {
                member.has_ended(rank, self.process);
            }
            return;
        }
        let refusal = match after {
            // A receiver answers when it has taken the queue in.
            ConnectionState::Nothing => QueueRefusal::ForNow(ForNow::HungUp),
            ConnectionState::Reads | ConnectionState::Over => QueueRefusal::ForGood(
                "it lives, and has hung up: what was sent before may have been lost".into(),
            ),
        };
        member.tell(MemberEvent::Refuses(self.bringing, refusal));
    }
}

/// Reads the answer of a queue's receiver.
fn said(message: SocketMessage) -> Result<OfferReply, String> {
    match wire::unpack(&message.bytes)? {
        QueueOpenReply::Yes { line, makes_fences } => {
            let Some(station) = message.descriptors.into_iter().next() else {
                return if message.lost {
                    Ok(OfferReply::Reads(None))
                } else {
                    Err("no station came with the answer".into())
                };
            };
            let ringer = match PeerStation::join(station) {
                Ok(station) => Some(Ringer::new(station, line, makes_fences)),
                Err(NotAStation::Map(error) | NotAStation::File(AdoptError::Kernel(error)))
                    if Lacks::of(&error).is_some() =>
                {
                    None
                }
                Err(error) => return Err(error.to_string()),
            };
            Ok(OfferReply::Reads(ringer))
        }
        QueueOpenReply::No(why) => Err(why),
        QueueOpenReply::Lacks(lacks) => {
            Ok(OfferReply::Refuses(QueueRefusal::ForNow(ForNow::Lacks(lacks.checked()))))
        }
    }
}

impl Watched for FarEnd {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        self.opening.load(Ordering::SeqCst)
            || self
                .member
                .upgrade()
                .is_some_and(|member| self.hear(&member, ConnectionReader::Clerk))
    }

    fn failed(&self) -> bool {
        if let Some(member) = self.member.upgrade() {
            member.tell(MemberEvent::Ended(self.bringing.rank));
        }
        false
    }
}

#[cfg(test)]
mod tests;
