//! The sending end of one pair, in the hands of the thread that sends.

use crate::Rank;
use crate::error::SendError;
use crate::flow::Flow;
use crate::member::{Member, News, Roster};
use crate::wire::{self, Lacks, Opened, Process, Request, VERSION, shown};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use upcall_os::bell::Bell;
use upcall_os::clapper::Clapper;
use upcall_os::fault::{Point, point};
use upcall_os::memory::AdoptError;
use upcall_os::poll::Report;
use upcall_os::socket::{Connection, Message, Peer, Received, ends_within, has_ended, is_ending, is_shut, says_ended};
use upcall_shm::account::Pair;
use upcall_shm::direct::Outgoing;
use upcall_shm::mailbag::Mailbag;
use upcall_shm::region::Shared;
use upcall_shm::station::{NotAStation, PeerStation};
use upcall_shm::steps::Steps;
use upcall_transfer::clerk::Watched;
use upcall_transfer::post::Ringer;

/// So long the answer of a receiver is looked for, and then waited for. Another one's clerk takes some 0.1 ms.
const EAGER: Duration = Duration::from_micros(30);
const ANSWER: Duration = Duration::from_millis(5);

/// Time limit for the answer to a member's queue to itself. The answer comes from the clerk of this process, which
/// waits for no peer. So a message to the sender itself is there when `send` returns, however busy the machine is.
const OWN_ANSWER: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) queue: Outgoing<Mailbag>,
    pub(crate) flow: Flow,
    /// What this member reports beside its messages.
    pub(crate) steps: Shared<Steps>,
    bell: Bell,
    clapper: &'static Clapper,
    /// `None` until the receiver has said where it sleeps.
    ringer: Option<Ringer>,
    /// In this member's account.
    pair: Shared<Pair>,
    brought: Brought,
    /// Why the receiver does not read the queue for now, if it does not.
    refused: Option<ForNow>,
    /// The receiver may wait for a report of this member's.
    has_reported: Cell<bool>,
}

/// Time within which a member that was killed ends, after its connections have.
const TO_END: Duration = Duration::from_millis(30);

/// What is known of a member that lives, and has closed the connection of a queue.
const HUNG_UP: &str = "it lives, and has hung up without an answer";

/// A member that lives does not read this one's queue.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It has read nothing of it, and may read it later.
    ForNow(ForNow),
    /// Nothing more is sent to it, for this reason.
    ForGood(String),
}

/// Why a member does not read a queue for now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ForNow {
    /// It lacks a resource for it.
    Lacks(Lacks),
    /// It has closed the connection, and not answered.
    HungUp,
}

impl Refusal {
    /// What a sender gets, of whose messages so many wait.
    fn error(self, rank: Rank, waiting: u64) -> SendError {
        match self {
            Self::ForNow(ForNow::Lacks(Lacks { lack, errno })) => SendError::Refused { rank, lack, errno, waiting },
            Self::ForNow(ForNow::HungUp) => SendError::Unreachable { rank, why: HUNG_UP.into() },
            Self::ForGood(why) => SendError::Unreachable { rank, why },
        }
    }
}

impl Link {
    /// Opens a queue to another member, which need not run for that. Takes about 0.1 ms. `None`: the
    /// queue of connections at its door is full, which it is at most until the member runs.
    pub(crate) fn open(
        member: &Arc<Member>,
        roster: &Roster,
        rank: Rank,
        timeout: Option<Duration>,
    ) -> Result<Option<Self>, SendError> {
        let failed = |error: io::Error| SendError::Unreachable { rank, why: error.to_string() };
        // All that this member needs comes first: a queue that was brought is not given up for want of it.
        let (mut queue, bell) = (Mailbag::create().map_err(failed)?, Bell::new().map_err(failed)?);
        let clapper = Clapper::current().map_err(failed)?;
        let descriptors = (queue.as_fd(), bell.as_fd());
        let Some((brought, ringer)) = bring(member, roster, rank, descriptors, 0, answer_within(roster, rank))? else {
            return Ok(None);
        };
        let pair = member.account.pair(rank);
        queue.count_in(pair.clone());
        let steps = queue.steps();
        let (mut queue, flow) = (Outgoing::new(queue), Flow::new(timeout));
        if flow.is_always_diverted() {
            queue.stay_diverted();
        }
        let (refused, has_reported) = (None, Cell::new(false));
        Ok(Some(Self { queue, flow, steps, bell, clapper, ringer, pair, brought, refused, has_reported }))
    }

    /// Brings the queue again to a receiver that has refused it for now.
    ///
    /// All messages that were sent before lie in it. Waits for the answer for `limit`; a later one comes as news. Returns
    /// `false` if the queue of connections at the receiver's door is full.
    pub(crate) fn bring_again(
        &mut self,
        member: &Arc<Member>,
        roster: &Roster,
        rank: Rank,
        limit: Duration,
    ) -> Result<bool, SendError> {
        let descriptors = (self.queue.memory().as_fd(), self.bell.as_fd());
        let Some((brought, ringer)) = bring(member, roster, rank, descriptors, self.queue.sent(), limit)? else {
            return Ok(false);
        };
        (self.brought, self.ringer, self.refused) = (brought, ringer, None);
        // What waits in it was launched without a receiver.
        self.ring();
        Ok(true)
    }

    /// The receiver does not read the queue for now.
    pub(crate) fn refuse(&mut self, why: ForNow) {
        self.refused = Some(why);
    }

    /// Returns `true` if the receiver does not read the queue for now.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Returns `true` if the receiver does not read the queue for now, and may wait for a report in it.
    pub(crate) fn keeps_a_report_back(&self) -> bool {
        self.is_refused() && self.has_reported.get()
    }

    /// Reads the receiver's answer in place of the clerk.
    pub(crate) fn hear(&self, member: &Member) {
        self.brought.far.hear(member);
    }

    /// The receiver has said where it sleeps.
    pub(crate) fn reads(&mut self, ringer: Ringer) {
        // What was sent meanwhile rang without knowing.
        self.ringer = Some(ringer);
    }

    /// To be called after each message.
    #[inline]
    pub(crate) fn launched(&self) {
        point(Point::MemberLaunched);
        self.pair.sent(self.queue.sent());
        self.wake();
    }

    /// To be called after each report in [`steps`](Self::steps), which wakes as a message does.
    pub(crate) fn reported(&self) {
        self.has_reported.set(true);
        point(Point::MemberLaunched);
        self.wake();
    }

    #[inline]
    fn wake(&self) {
        match &self.ringer {
            Some(ringer) => ringer.launched(self.clapper, &self.bell),
            None => self.ring(),
        }
    }

    #[cold]
    fn ring(&self) {
        self.clapper.ring(&self.bell);
    }

    /// Whether the receiver has said where it sleeps.
    #[inline]
    pub(crate) fn is_read(&self) -> bool {
        self.ringer.is_some()
    }
}

/// Maximum wait of a sender for the answer to its queue. A stopped receiver does not answer, so the wait is short.
pub(crate) fn answer_within(roster: &Roster, rank: Rank) -> Duration {
    if rank == roster.rank { OWN_ANSWER } else { ANSWER }
}

/// Brings a queue to its receiver, by descriptors of its memory and of its bell.
///
/// `waiting` is the number of messages that wait in it, `limit` the wait for the answer. `None`: the queue of connections at
/// the receiver's door is full. Once the queue was brought, no lack of resources here ends its connection:
/// the receiver would take that for the end of this member.
fn bring(
    member: &Arc<Member>,
    roster: &Roster,
    rank: Rank,
    (memory, bell): (BorrowedFd<'_>, BorrowedFd<'_>),
    waiting: u64,
    limit: Duration,
) -> Result<Option<(Brought, Option<Ringer>)>, SendError> {
    let unreachable = |why: String| SendError::Unreachable { rank, why };
    let failed = |error: io::Error| unreachable(error.to_string());
    let listed = &roster.members[rank];
    let path = member.folder().join(&listed.socket);
    let connection = match Connection::connect(&path) {
        Ok(connection) => connection,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ if is_shut(&error) => Err(SendError::Ended { rank }),
                _ => Err(failed(error)),
            };
        }
    };
    let lost = |connection: &Connection, why: &str| {
        if connection.peer_ends_within(TO_END) || has_left(&path) { SendError::Ended { rank } } else { unreachable(why.into()) }
    };
    let peer = match connection.peer() {
        Ok(peer) => peer,
        Err(error) => return Err(lost(&connection, &error.to_string())),
    };
    if !Process::of(&peer).is(listed.process) {
        return Err(unreachable(format!("{} is at the door of {}", shown(peer.pid), shown(roster.pid(rank)))));
    }
    let open = Request::Open { version: VERSION, group: roster.group, from: roster.rank as u32, to: rank as u32 };
    let bytes = wire::pack(&open).map_err(failed)?;
    let far = Arc::new(FarEnd {
        connection,
        rank,
        process: listed.process,
        socket: path.clone(),
        member: Arc::downgrade(member),
        opening: AtomicBool::new(true),
        answered: AtomicBool::new(false),
        left: AtomicBool::new(false),
    });
    let key = member.watch_for(far.clone(), Report::EachRing).map_err(failed)?;
    let brought = Brought { far, key };
    let far = &brought.far;
    // A receiver without a descriptor for this member's process answers before it has the queue.
    let early = |message| match far.said(message) {
        Answer::Refuses(refusal) => refusal.error(rank, waiting),
        Answer::Reads(_) => unreachable("it answers before it has the queue".into()),
    };
    // After this the thread has its memory for answers.
    match far.connection.receive() {
        Ok(Received::Message(message)) => return Err(early(message)),
        Err(error) if Lacks::of(&error).is_some() => return Err(failed(error)),
        _ => {}
    }
    point(Point::MemberBrings);
    if let Err(error) = far.connection.send(&bytes, &[memory, bell]) {
        return Err(match far.connection.receive() {
            Ok(Received::Message(message)) => early(message),
            _ => lost(&far.connection, &error.to_string()),
        });
    }
    point(Point::MemberBrought);
    // Until the receiver has said where it sleeps each message would ring.
    let ringer = match far.connection.receive_within(EAGER, limit) {
        Ok(Received::Message(message)) => match far.said(message) {
            Answer::Reads(ringer) => ringer,
            Answer::Refuses(refusal) => return Err(refusal.error(rank, waiting)),
        },
        Ok(Received::Nothing) => None,
        Ok(Received::Closed) => return Err(lost(&far.connection, HUNG_UP)),
        Err(error) => return Err(lost(&far.connection, &error.to_string())),
    };
    far.opening.store(false, Ordering::SeqCst);
    // While the queue was offered, the clerk left here what it was notified of.
    far.hear(member);
    Ok(Some((brought, ringer)))
}

/// Returns `true` if a member has closed its door. A member that leaves, and lives, does that before
/// it hangs up on those who wait there.
fn has_left(socket: &Path) -> bool {
    std::fs::symlink_metadata(socket).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        || Connection::connect(socket).is_err_and(|error| is_shut(&error))
}

/// A queue in the hands of its receiver, until this is dropped.
#[derive(Debug)]
struct Brought {
    far: Arc<FarEnd>,
    /// What the clerk knows the connection by.
    key: u64,
}

impl Drop for Brought {
    fn drop(&mut self) {
        // The receiver has what was sent, and learns that no more comes. Our own clerk takes it for no
        // member's end.
        self.far.left.store(true, Ordering::Relaxed);
        self.far.connection.shut_down();
        if let Some(member) = self.far.member.upgrade() {
            member.unwatch(self.key);
        }
    }
}

/// The connection by which a queue was brought, as the clerk watches it.
#[derive(Debug)]
struct FarEnd {
    connection: Connection,
    rank: Rank,
    process: Process,
    /// Of its door.
    socket: PathBuf,
    member: Weak<Member>,
    /// The thread that brings the queue waits for the answer, and reads it.
    opening: AtomicBool,
    /// It answers once: each answer takes memory here.
    answered: AtomicBool,
    /// This side has closed it.
    left: AtomicBool,
}

/// The answer to a queue.
enum Answer {
    /// It is read. Without a ringer each message rings: this process cannot map the receiver's station.
    Reads(Option<Ringer>),
    Refuses(Refusal),
}

impl FarEnd {
    fn said(&self, message: Message) -> Answer {
        if self.answered.swap(true, Ordering::Relaxed) {
            return Answer::Refuses(Refusal::ForGood("it answers more than once".into()));
        }
        said(message).unwrap_or_else(|why| Answer::Refuses(Refusal::ForGood(why)))
    }

    /// Reads all messages of the connection. Returns `false` if no more can follow.
    fn hear(&self, member: &Member) -> bool {
        loop {
            match self.connection.receive() {
                // A second answer ends the loop.
                Ok(Received::Message(message)) => match self.said(message) {
                    Answer::Reads(Some(ringer)) => member.tell(News::Reads(self.rank, ringer)),
                    Answer::Reads(None) => {}
                    Answer::Refuses(refusal) => {
                        member.tell(News::Refuses(self.rank, refusal));
                        return false;
                    }
                },
                Ok(Received::Nothing) => return true,
                // Nothing was read, and the clerk is not called again for it.
                Err(error) if Lacks::of(&error).is_some() => {
                    member.tell(News::Unheard(self.rank));
                    return true;
                }
                Ok(Received::Closed) | Err(_) => {
                    if !self.left.load(Ordering::Relaxed) {
                        self.hung_up(member);
                    }
                    return false;
                }
            }
        }
    }

    /// The receiver has closed the connection. Only the kernel's word and a closed door are an end.
    fn hung_up(&self, member: &Member) {
        let has_ended = match self.connection.peer() {
            Ok(Peer { pidfd: Some(pidfd), pid: 0, .. }) => ends_within(pidfd, TO_END),
            Ok(Peer { pidfd: Some(pidfd), pid, .. }) => has_ended(pidfd) || is_ending(pid),
            // Before Linux 6.5 the kernel gives no pidfd, and the closed connection is all that is known.
            Ok(Peer { pidfd: None, .. }) => true,
            Err(error) => says_ended(&error),
        };
        if has_ended || has_left(&self.socket) {
            member.has_ended(self.rank, self.process);
            return;
        }
        let refusal = match self.answered.load(Ordering::Relaxed) {
            // A receiver answers when it has taken the queue in.
            false => Refusal::ForNow(ForNow::HungUp),
            true => Refusal::ForGood("it lives, and has hung up: what was sent before may have been lost".into()),
        };
        member.tell(News::Refuses(self.rank, refusal));
    }
}

/// What the receiver of a queue has answered.
fn said(message: Message) -> Result<Answer, String> {
    match wire::unpack(&message.bytes)? {
        Opened::Yes { line, makes_fences } => {
            let Some(station) = message.descriptors.into_iter().next() else {
                return if message.lost { Ok(Answer::Reads(None)) } else { Err("no station came with the answer".into()) };
            };
            let ringer = match PeerStation::join(station) {
                Ok(station) => Some(Ringer::new(station, line, makes_fences)),
                Err(NotAStation::Map(error) | NotAStation::File(AdoptError::Kernel(error))) if Lacks::of(&error).is_some() => {
                    None
                }
                Err(error) => return Err(error.to_string()),
            };
            Ok(Answer::Reads(ringer))
        }
        Opened::No(why) => Err(why),
        Opened::Lacks(lacks) => Ok(Answer::Refuses(Refusal::ForNow(ForNow::Lacks(lacks.checked())))),
    }
}

impl Watched for FarEnd {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        self.opening.load(Ordering::SeqCst) || self.member.upgrade().is_some_and(|member| self.hear(&member))
    }

    fn failed(&self) -> bool {
        if let Some(member) = self.member.upgrade() {
            member.tell(News::Ended(self.rank));
        }
        false
    }
}
