//! The sending end of one pair, in the hands of the thread that sends.

use crate::Rank;
use crate::error::SendError;
use crate::flow::Flow;
use crate::member::{Member, News, Roster};
use crate::wire::{self, Opened, Process, Request, VERSION, shown};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use upcall_os::bell::Bell;
use upcall_os::clapper::Clapper;
use upcall_os::fault::{Point, point};
use upcall_os::socket::{Connection, Message, Received, is_shut};
use upcall_shm::account::Pair;
use upcall_shm::direct::Outgoing;
use upcall_shm::mailbag::Mailbag;
use upcall_shm::region::Shared;
use upcall_shm::station::PeerStation;
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
    far: Arc<FarEnd>,
}

/// Time within which a member that was killed ends, after its connections have.
const TO_END: Duration = Duration::from_millis(30);

impl Link {
    /// Opens a queue to another member, which need not run for that. Takes about 0.1 ms. `None`: the queue of connections at its door is
    /// full, which it is at most until the member runs.
    pub(crate) fn open(
        member: &Arc<Member>,
        roster: &Roster,
        rank: Rank,
        timeout: Option<Duration>,
    ) -> Result<Option<Self>, SendError> {
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
        // A member that leaves, and lives, closes its door before it hangs up on those who wait there.
        let has_left = || Connection::connect(&path).is_err_and(|error| is_shut(&error));
        let lost = |connection: &Connection, why: &str| {
            if connection.peer_ends_within(TO_END) || has_left() { SendError::Ended { rank } } else { unreachable(why.into()) }
        };
        let peer = match connection.peer() {
            Ok(peer) => peer,
            Err(error) => return Err(lost(&connection, &error.to_string())),
        };
        if !Process::of(&peer).is(listed.process) {
            return Err(unreachable(format!("{} is at the door of {}", shown(peer.pid), shown(roster.pid(rank)))));
        }
        let (mut queue, bell) = (Mailbag::create().map_err(failed)?, Bell::new().map_err(failed)?);
        let open = Request::Open { version: VERSION, group: roster.group, from: roster.rank as u32, to: rank as u32 };
        let bytes = wire::pack(&open).map_err(failed)?;
        point(Point::MemberBrings);
        let sent = connection.send(&bytes, &[queue.as_fd(), bell.as_fd()]);
        sent.map_err(|error| lost(&connection, &error.to_string()))?;
        point(Point::MemberBrought);
        let clapper = Clapper::current().map_err(failed)?;
        let far = Arc::new(FarEnd {
            connection,
            rank,
            process: listed.process,
            member: Arc::downgrade(member),
            answered: AtomicBool::new(false),
            left: AtomicBool::new(false),
        });
        // Until it has said where it sleeps each message would ring. Who is stopped does not answer, so this does not wait for long.
        let answer = if rank == roster.rank { OWN_ANSWER } else { ANSWER };
        let ringer = match far.connection.receive_within(EAGER, answer) {
            Ok(Received::Message(message)) => Some(far.said(message).map_err(unreachable)?),
            Ok(Received::Nothing) => None,
            Ok(Received::Closed) => return Err(lost(&far.connection, "it lives, and has hung up without an answer")),
            Err(error) => return Err(lost(&far.connection, &error.to_string())),
        };
        member.watch(far.clone()).map_err(failed)?;
        let pair = member.account.pair(rank);
        queue.count_in(pair.clone());
        let steps = queue.steps();
        let (mut queue, flow) = (Outgoing::new(queue), Flow::new(timeout));
        if flow.is_always_diverted() {
            queue.stay_diverted();
        }
        Ok(Some(Self { queue, flow, steps, bell, clapper, ringer, pair, far }))
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

impl Drop for Link {
    fn drop(&mut self) {
        // The receiver has what was sent, and learns that no more comes. What our own clerk sees of it is nobody's end.
        self.far.left.store(true, Ordering::Relaxed);
        self.far.connection.shut_down();
    }
}

/// The connection by which a queue was brought, as the clerk watches it.
#[derive(Debug)]
struct FarEnd {
    connection: Connection,
    rank: Rank,
    process: Process,
    member: Weak<Member>,
    /// It answers once: each answer takes memory here.
    answered: AtomicBool,
    /// This side has closed it.
    left: AtomicBool,
}

impl FarEnd {
    fn said(&self, message: Message) -> Result<Ringer, String> {
        if self.answered.swap(true, Ordering::Relaxed) { Err("it answers more than once".into()) } else { said(message) }
    }

    /// False when there is no more to hear.
    fn hear(&self, member: &Member) -> bool {
        match self.connection.receive() {
            Ok(Received::Message(message)) => match self.said(message) {
                Ok(ringer) => member.tell(News::Reads(self.rank, ringer)),
                Err(why) => {
                    member.tell(News::Refuses(self.rank, why));
                    return false;
                }
            },
            Ok(Received::Nothing) => {}
            Ok(Received::Closed) | Err(_) => {
                if !self.left.load(Ordering::Relaxed) {
                    member.has_ended(self.rank, self.process);
                }
                return false;
            }
        }
        true
    }
}

/// What the receiver of a queue has answered.
fn said(message: Message) -> Result<Ringer, String> {
    match wire::unpack(&message.bytes)? {
        Opened::Yes { line, makes_fences } => {
            let station = message.descriptors.into_iter().next().ok_or("no station came with the answer")?;
            let station = PeerStation::join(station).map_err(|error| error.to_string())?;
            Ok(Ringer::new(station, line, makes_fences))
        }
        Opened::No(why) => Err(why),
    }
}

impl Watched for FarEnd {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        self.member.upgrade().is_some_and(|member| self.hear(&member))
    }

    fn failed(&self) -> bool {
        if let Some(member) = self.member.upgrade() {
            member.tell(News::Ended(self.rank));
        }
        false
    }
}
