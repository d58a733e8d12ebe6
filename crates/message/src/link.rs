//! The sending end of one pair, in the hands of the thread that sends.

use crate::Rank;
use crate::error::SendError;
use crate::member::{Bringing, ForNow, Member, News, Refusal, Roster};
use crate::proto::offers::Schedule;
use crate::proto::send_queue::SendQueue;
use crate::wire::{self, Lacks, Opened, Process, Request, VERSION, shown};
use std::cell::Cell;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use upcall_directory::clerk::Watched;
use upcall_os::atomic::{AtomicBool, AtomicU64, Ordering};
use upcall_os::doorbell::Doorbell;
use upcall_os::fault::{Point, point};
use upcall_os::lock::Mutex;
use upcall_os::memory::AdoptError;
use upcall_os::poll::Report;
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_os::socket::{
    Connection, Message, Peer, Received, ends_within, has_ended, is_ending, is_shut, says_ended,
};
use upcall_sched::post::Ringer;
use upcall_shm::account::Pair;
use upcall_shm::mailbag::Mailbag;
use upcall_shm::region::Shared;
use upcall_shm::station::{NotAStation, PeerStation};
use upcall_shm::steps::Steps;

/// So long the answer of a receiver is looked for, and then waited for. Another one's clerk takes
/// some 0.1 ms.
const EAGER: Duration = Duration::from_micros(30);
const ANSWER: Duration = Duration::from_millis(5);

/// Time limit for the answer to a member's queue to itself. The answer comes from the clerk of this
/// process, which waits for no peer. So a message to the sender itself is there when `send`
/// returns, however busy the machine is.
const OWN_ANSWER: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) queue: SendQueue<Mailbag>,
    /// What this member reports beside its messages.
    pub(crate) steps: Shared<Steps>,
    doorbell: Doorbell,
    safe_doorbell: &'static SafeDoorbell,
    /// `None` until the receiver has said where it sleeps.
    ringer: Option<Ringer>,
    /// In this member's account.
    pair: Shared<Pair>,
    brought: Brought,
    /// The receiver does not read the queue for now.
    is_refused: bool,
    /// When it is offered again by itself.
    offers: Schedule,
    /// The receiver may wait for a report of this member's.
    has_reported: Cell<bool>,
}

/// The way to another member.
#[derive(Debug)]
pub(crate) enum Outward {
    /// Nothing was sent yet.
    Unopened,
    Open(Box<Link>),
    Closed(Why),
}

/// Why nothing more is sent there.
#[derive(Clone, Debug)]
pub(crate) enum Why {
    Ended,
    Violation,
    Refused(String),
}

impl Why {
    pub(crate) fn of(&self, rank: Rank) -> SendError {
        match self {
            Self::Ended => SendError::Ended { rank },
            Self::Violation => SendError::Violation { rank },
            Self::Refused(why) => SendError::Unreachable { rank, why: why.clone() },
        }
    }
}

/// Time within which a member that was killed ends, after its connections have.
const TO_END: Duration = Duration::from_millis(30);

/// What is known of a member that lives, and has closed the connection of a queue.
const HUNG_UP: &str = "it lives, and has hung up without an answer";

/// Why a queue is not in the hands of its receiver.
#[derive(Debug)]
pub(crate) enum NotBrought {
    /// The receiver has ended, or has left the group.
    Ended,
    /// The receiver lives, and does not read it.
    Refused(Refusal),
    /// This member lacks something for it, or does not reach the receiver.
    Failed(String),
}

impl NotBrought {
    /// What a sender gets, of whose messages so many wait.
    pub(crate) fn error(self, rank: Rank, waiting: u64) -> SendError {
        match self {
            Self::Ended => SendError::Ended { rank },
            Self::Refused(Refusal::ForNow(ForNow::Lacks(Lacks { lack, errno }))) => {
                SendError::Refused { rank, lack, errno, waiting }
            }
            Self::Refused(Refusal::ForNow(ForNow::HungUp)) => {
                SendError::Unreachable { rank, why: HUNG_UP.into() }
            }
            Self::Refused(Refusal::ForGood(why)) | Self::Failed(why) => {
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

impl Link {
    /// Opens a queue to another member, which need not run for that. Takes about 0.1 ms. `None`:
    /// the queue of connections at its door is full, which it is at most until the member runs.
    pub(crate) fn open(
        member: &Arc<Member>,
        roster: &Roster,
        rank: Rank,
        timeout: Option<Duration>,
    ) -> Result<Option<Self>, SendError> {
        let failed = |error: io::Error| SendError::Unreachable { rank, why: error.to_string() };
        // All that this member needs comes first: a queue that was brought is not given up for want
        // of it.
        let (mut queue, doorbell) =
            (Mailbag::create().map_err(failed)?, Doorbell::new().map_err(failed)?);
        let safe_doorbell = SafeDoorbell::current().map_err(failed)?;
        let descriptors = (queue.as_fd(), doorbell.as_fd());
        let brought = bring(member, roster, rank, descriptors, answer_within(roster, rank));
        let Some((brought, ringer)) = brought.map_err(|why| why.error(rank, 0))? else {
            return Ok(None);
        };
        let pair = member.account.pair(rank);
        queue.count_in(pair.clone());
        let steps = queue.steps();
        let queue = SendQueue::new(queue, timeout);
        let (is_refused, offers, has_reported) = (false, Schedule::default(), Cell::new(false));
        Ok(Some(Self {
            queue,
            steps,
            doorbell,
            safe_doorbell,
            ringer,
            pair,
            brought,
            is_refused,
            offers,
            has_reported,
        }))
    }

    /// Brings the queue again to a receiver that has refused it for now.
    ///
    /// All messages that were sent before lie in it. Waits for the answer for `limit`; a later one
    /// comes as news. Returns `false` if the queue of connections at the receiver's door is full.
    pub(crate) fn bring_again(
        &mut self,
        member: &Arc<Member>,
        roster: &Roster,
        rank: Rank,
        limit: Duration,
    ) -> Result<bool, NotBrought> {
        let descriptors = (self.queue.outgoing().memory().as_fd(), self.doorbell.as_fd());
        let Some((brought, ringer)) = bring(member, roster, rank, descriptors, limit)? else {
            return Ok(false);
        };
        (self.brought, self.ringer, self.is_refused) = (brought, ringer, false);
        // What waits in it was launched without a receiver.
        self.notify();
        Ok(true)
    }

    /// The same by itself, not for a send: does not wait for the answer.
    pub(crate) fn offer(
        &mut self,
        member: &Arc<Member>,
        roster: &Roster,
        rank: Rank,
        now: Instant,
    ) -> Result<(), NotBrought> {
        self.offers.offered(now);
        let brought = self.bring_again(member, roster, rank, Duration::ZERO);
        if self.is_refused {
            self.offers.refused(now);
        }
        brought.map(drop)
    }

    /// The receiver does not read for now what was brought so. Returns when the queue is to be
    /// offered again; `None` if it was brought otherwise since.
    pub(crate) fn refuse(&mut self, bringing: Bringing, now: Instant) -> Option<Instant> {
        self.is_brought_by(bringing).then(|| {
            self.is_refused = true;
            self.offers.refused(now)
        })
    }

    /// Returns `true` if this is how the queue was brought last.
    pub(crate) fn is_brought_by(&self, bringing: Bringing) -> bool {
        self.brought.far.bringing == bringing
    }

    /// Returns `true` if the receiver does not read the queue for now.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// When the queue is to be offered again, if it is refused.
    pub(crate) fn offer_due(&self) -> Option<Instant> {
        self.offers.due().filter(|_| self.is_refused)
    }

    /// Number of messages that were sent by this queue.
    #[inline]
    pub(crate) fn sent(&self) -> u64 {
        self.queue.outgoing().sent()
    }

    /// Returns `true` if the receiver does not read the queue for now, and may wait for a report in
    /// it.
    pub(crate) fn keeps_a_report_back(&self) -> bool {
        self.is_refused() && self.has_reported.get()
    }

    /// Reads the receiver's answer in place of the clerk.
    pub(crate) fn hear(&self, member: &Arc<Member>) {
        self.brought.far.hear(member, Reader::Thread(TO_END));
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
        self.pair.sent(self.sent());
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
            Some(ringer) => ringer.launched(self.safe_doorbell, &self.doorbell),
            None => self.notify(),
        }
    }

    #[cold]
    fn notify(&self) {
        self.safe_doorbell.notify(&self.doorbell);
    }

    /// Whether the receiver has said where it sleeps.
    #[inline]
    pub(crate) fn is_read(&self) -> bool {
        self.ringer.is_some()
    }
}

/// Maximum wait of a sender for the answer to its queue. A stopped receiver does not answer, so the
/// wait is short.
pub(crate) fn answer_within(roster: &Roster, rank: Rank) -> Duration {
    if rank == roster.rank { OWN_ANSWER } else { ANSWER }
}

/// Brings a queue to its receiver, by descriptors of its memory and of its doorbell.
///
/// `limit` is the wait for the answer; if it is zero, nothing is waited for. `None`: the queue of
/// connections at the receiver's door is full. Once the queue was brought, no lack of resources
/// here ends its connection: the receiver would take that for the end of this member.
fn bring(
    member: &Arc<Member>,
    roster: &Roster,
    rank: Rank,
    (memory, doorbell): (BorrowedFd<'_>, BorrowedFd<'_>),
    limit: Duration,
) -> Result<Option<(Brought, Option<Ringer>)>, NotBrought> {
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
    if !Process::of(&peer).is(listed.process) {
        let who = format!("{} is at the door of {}", shown(peer.pid), shown(roster.pid(rank)));
        return Err(NotBrought::Failed(who));
    }
    let open = Request::Open {
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
        heard: Mutex::new(Heard::Nothing),
        left: AtomicBool::new(false),
    });
    let key = member.watch_for(far.clone(), Report::EachRing)?;
    let brought = Brought { far, key };
    let far = &brought.far;
    // A receiver without a descriptor for this member's process answers before it has the queue.
    let early = |message| match far.heard.lock().answer(message) {
        Answer::Refuses(refusal) => NotBrought::Refused(refusal),
        Answer::Reads(_) => NotBrought::Failed("it answers before it has the queue".into()),
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
    // Until the receiver has said where it sleeps each message would ring.
    let ringer = match far.connection.receive_within(EAGER, limit) {
        Ok(Received::Message(message)) => match far.heard.lock().answer(message) {
            Answer::Reads(ringer) => ringer,
            Answer::Refuses(refusal) => return Err(NotBrought::Refused(refusal)),
        },
        Ok(Received::Nothing) => None,
        Ok(Received::Closed) => {
            return Err(lost(
                &far.connection,
                NotBrought::Refused(Refusal::ForNow(ForNow::HungUp)),
            ));
        }
        Err(error) => return Err(lost(&far.connection, error.into())),
    };
    far.opening.store(false, Ordering::SeqCst);
    // While the queue was offered, the clerk left here what it was notified of.
    far.hear(member, Reader::Thread(to_end));
    Ok(Some((brought, ringer)))
}

/// Connects to a member's door. `None`: the queue of connections there is full.
fn reach(door: &Path) -> Result<Option<Connection>, NotBrought> {
    match Connection::connect(door) {
        Ok(connection) => Ok(Some(connection)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) if is_shut(&error) => Err(NotBrought::Ended),
        Err(error) => Err(error.into()),
    }
}

/// Returns `true` if a member has closed its door. A member that leaves, and lives, does that
/// before it hangs up on those who wait there.
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
        // The receiver has what was sent, and learns that no more comes. Our own clerk takes it for
        // no member's end.
        self.far.left.store(true, Ordering::Relaxed);
        self.far.connection.shut_down();
        if let Some(member) = self.far.member.upgrade() {
            member.unwatch(self.key);
        }
    }
}

/// The number of the next [`Bringing`].
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The connection by which a queue was brought, as the clerk watches it.
#[derive(Debug)]
struct FarEnd {
    connection: Connection,
    bringing: Bringing,
    process: Process,
    /// Of its door.
    socket: PathBuf,
    member: Weak<Member>,
    /// The thread that brings the queue waits for the answer, and reads it.
    opening: AtomicBool,
    /// Locked while a message is read: the clerk and the thread that sends can read at once.
    heard: Mutex<Heard>,
    /// This side has closed it.
    left: AtomicBool,
}

/// What was read from the connection of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Nothing,
    /// The receiver reads the queue. It answers once: each answer takes memory here.
    Reads,
    /// The receiver refuses the queue, or has hung up. What follows means nothing.
    Over,
}

/// The answer to a queue.
enum Answer {
    /// It is read. Without a ringer each message rings: this process cannot map the receiver's
    /// station.
    Reads(Option<Ringer>),
    Refuses(Refusal),
}

impl Heard {
    fn answer(&mut self, message: Message) -> Answer {
        let answer = match self {
            Self::Nothing => {
                said(message).unwrap_or_else(|why| Answer::Refuses(Refusal::ForGood(why)))
            }
            Self::Reads | Self::Over => {
                Answer::Refuses(Refusal::ForGood("it answers more than once".into()))
            }
        };
        *self = match answer {
            Answer::Reads(_) => Self::Reads,
            Answer::Refuses(_) => Self::Over,
        };
        answer
    }
}

/// The thread that reads the connection of a queue.
#[derive(Clone, Copy, Debug)]
enum Reader {
    Clerk,
    /// Another thread, which waits so long for the end of a process that has hung up.
    Thread(Duration),
}

/// The next thing that the connection of a queue says.
enum Next {
    Answer(Answer),
    Nothing,
    /// There is no memory, or no descriptor, to read it.
    Unheard,
    /// The receiver has closed it, after this.
    HungUp(Heard),
    /// What it said last was its last word.
    Over,
}

impl FarEnd {
    /// Reads once. Two threads that read at the same time do not both hear one thing, and the
    /// second one knows what the first one has heard.
    fn next(&self) -> Next {
        let heard = &mut *self.heard.lock();
        if *heard == Heard::Over {
            return Next::Over;
        }
        match self.connection.receive() {
            Ok(Received::Message(message)) => Next::Answer(heard.answer(message)),
            Ok(Received::Nothing) => Next::Nothing,
            Err(error) if Lacks::of(&error).is_some() => Next::Unheard,
            Ok(Received::Closed) | Err(_) => Next::HungUp(mem::replace(heard, Heard::Over)),
        }
    }

    /// Reads all messages of the connection. Returns `false` if no more can follow.
    fn hear(&self, member: &Arc<Member>, reader: Reader) -> bool {
        loop {
            match self.next() {
                Next::Answer(Answer::Reads(Some(ringer))) => {
                    member.tell(News::Reads(self.bringing, ringer))
                }
                Next::Answer(Answer::Reads(None)) => {}
                Next::Answer(Answer::Refuses(refusal)) => {
                    member.tell(News::Refuses(self.bringing, refusal));
                    return false;
                }
                Next::Nothing => return true,
                // Nothing was read, and the clerk is not called again for it.
                Next::Unheard => {
                    member.tell(News::Unheard(self.bringing.rank));
                    return true;
                }
                Next::HungUp(after) => {
                    if !self.left.load(Ordering::Relaxed) {
                        self.hung_up(member, after, reader);
                    }
                    return false;
                }
                Next::Over => return false,
            }
        }
    }

    /// The receiver has closed the connection, after this. Only the kernel's word and a closed door
    /// are an end.
    fn hung_up(&self, member: &Arc<Member>, after: Heard, reader: Reader) {
        let to_end = match reader {
            Reader::Clerk => TO_END,
            Reader::Thread(to_end) => to_end,
        };
        let has_ended = match self.connection.peer() {
            Ok(Peer { pidfd: Some(pidfd), pid: 0, .. }) => ends_within(pidfd, to_end),
            Ok(Peer { pidfd: Some(pidfd), pid, .. }) => has_ended(pidfd) || is_ending(pid),
            // Before Linux 6.5 the kernel gives no pidfd, and the closed connection is all that is
            // known.
            Ok(Peer { pidfd: None, .. }) => true,
            Err(error) => says_ended(&error),
        };
        if has_ended || has_left(&self.socket) {
            let rank = self.bringing.rank;
            let is_told = match reader {
                Reader::Clerk => false,
                Reader::Thread(_) => {
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
            Heard::Nothing => Refusal::ForNow(ForNow::HungUp),
            Heard::Reads | Heard::Over => Refusal::ForGood(
                "it lives, and has hung up: what was sent before may have been lost".into(),
            ),
        };
        member.tell(News::Refuses(self.bringing, refusal));
    }
}

/// What the receiver of a queue has answered.
fn said(message: Message) -> Result<Answer, String> {
    match wire::unpack(&message.bytes)? {
        Opened::Yes { line, makes_fences } => {
            let Some(station) = message.descriptors.into_iter().next() else {
                return if message.lost {
                    Ok(Answer::Reads(None))
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
            Ok(Answer::Reads(ringer))
        }
        Opened::No(why) => Err(why),
        Opened::Lacks(lacks) => {
            Ok(Answer::Refuses(Refusal::ForNow(ForNow::Lacks(lacks.checked()))))
        }
    }
}

impl Watched for FarEnd {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        self.opening.load(Ordering::SeqCst)
            || self.member.upgrade().is_some_and(|member| self.hear(&member, Reader::Clerk))
    }

    fn failed(&self) -> bool {
        if let Some(member) = self.member.upgrade() {
            member.tell(News::Ended(self.bringing.rank));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Lack;
    use std::thread;
    use upcall_os::atomic::AtomicU32;
    use upcall_os::socket::Listener;
    use upcall_sched::post::Post;
    use upcall_shm::account::Account;
    use upcall_shm::station::Station;

    /// A member, and the connection of its queue to a receiver in this process, which lives.
    struct Scene {
        member: Arc<Member>,
        near: FarEnd,
        far: Option<Connection>,
        _door: Listener,
    }

    impl Scene {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!(
                "upcall-link-{}-{}",
                std::process::id(),
                NEXT.fetch_add(1, Ordering::Relaxed)
            );
            let socket = std::env::temp_dir().join(&name);
            let door = Listener::bind(&socket).unwrap();
            let account = Account::open(&name, 2, 1 << 20).unwrap();
            let process = Process::own().unwrap();
            let member = Member::new(socket.clone(), process, Post::take().unwrap(), account);
            let (connection, far) = Connection::pair().unwrap();
            let near = FarEnd {
                connection,
                bringing: Bringing { rank: 1, number: 7 },
                process,
                socket,
                member: Arc::downgrade(&member),
                opening: AtomicBool::new(false),
                heard: Mutex::new(Heard::Nothing),
                left: AtomicBool::new(false),
            };
            Self { member, near, far: Some(far), _door: door }
        }

        /// The receiver says something, or hangs up.
        fn say(&mut self, answer: Option<(&Opened, &[BorrowedFd<'_>])>) {
            match answer {
                Some((answer, descriptors)) => {
                    self.far
                        .as_ref()
                        .unwrap()
                        .send(&wire::pack(answer).unwrap(), descriptors)
                        .unwrap();
                }
                None => self.far = None,
            }
        }

        /// What was learned since the last time.
        fn news(&self) -> Vec<&'static str> {
            let told = |news| match news {
                News::Reads(..) => "reads",
                News::Refuses(_, Refusal::ForNow(ForNow::Lacks(_))) => "lacks",
                News::Refuses(_, Refusal::ForNow(ForNow::HungUp)) => "hung up",
                News::Refuses(_, Refusal::ForGood(_)) => "for good",
                _ => "else",
            };
            self.member.news().into_iter().map(told).collect()
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            self.member.leave();
        }
    }

    const LACKS: Opened = Opened::Lacks(Lacks { lack: Lack::Memory, errno: None });

    #[test]
    fn the_end_of_a_connection_is_judged_by_what_came_before() {
        // A refusal and the end: read by one thread, or the end by another one later.
        let mut scene = Scene::new();
        scene.say(Some((&LACKS, &[])));
        assert!(!scene.near.hear(&scene.member, Reader::Clerk));
        scene.say(None);
        assert!(!scene.near.hear(&scene.member, Reader::Clerk));
        assert_eq!(scene.news(), ["lacks"]);
        // The end alone.
        let mut scene = Scene::new();
        assert!(scene.near.hear(&scene.member, Reader::Clerk));
        scene.say(None);
        assert!(
            !scene.near.hear(&scene.member, Reader::Clerk)
                && !scene.near.hear(&scene.member, Reader::Clerk)
        );
        assert_eq!(scene.news(), ["hung up"]);
        // The end after the queue was taken.
        let (mut scene, station) = (Scene::new(), Station::new().unwrap());
        scene.say(Some((&Opened::Yes { line: 0, makes_fences: true }, &[station.as_fd()])));
        assert!(scene.near.hear(&scene.member, Reader::Clerk));
        scene.say(None);
        assert!(!scene.near.hear(&scene.member, Reader::Clerk));
        assert_eq!(scene.news(), ["reads", "for good"]);
    }

    /// A process without memory to map a station rings for each message. The test runs itself in a
    /// process of its own, in which no other test needs memory.
    #[test]
    fn a_queue_is_kept_without_memory_for_the_station_of_its_receiver() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        const ALONE: &str = "UPCALL_TEST_WITHOUT_MEMORY";
        if std::env::var_os(ALONE).is_none() {
            let name =
                "link::tests::a_queue_is_kept_without_memory_for_the_station_of_its_receiver";
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let ended =
                alone.args([name, "--exact", "--test-threads=1"]).env(ALONE, "").output().unwrap();
            return assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
        }
        let (mut scene, station) = (Scene::new(), Station::new().unwrap());
        scene.say(Some((&Opened::Yes { line: 0, makes_fences: true }, &[station.as_fd()])));
        let Ok(Received::Message(message)) = scene.near.connection.receive() else {
            panic!("no answer")
        };
        let before = getrlimit(Resource::As);
        setrlimit(Resource::As, Rlimit { current: Some(0), ..before }).unwrap();
        let answer = said(message);
        setrlimit(Resource::As, before).unwrap();
        assert!(matches!(answer, Ok(Answer::Reads(None))), "{:?}", answer.err());
    }

    /// The clerk and the thread that sends.
    #[test]
    fn two_threads_that_read_at_once_hear_one_refusal() {
        for _ in 0..300 {
            let mut scene = Scene::new();
            thread::scope(|scope| {
                let hear = || while scene.near.hear(&scene.member, Reader::Clerk) {};
                let far = scene.far.take().unwrap();
                let readers = [scope.spawn(hear), scope.spawn(hear)];
                far.send(&wire::pack(&LACKS).unwrap(), &[]).unwrap();
                drop(far);
                for reader in readers {
                    reader.join().unwrap();
                }
            });
            assert_eq!(scene.news(), ["lacks"]);
        }
    }
}
