//! A pair of members on two hosts: what the bridge of this process keeps of the other one.
//!
//! # Locks
//! The two directions have a lock each, and so has the way to the other host ([`super::way`]). A
//! holder of the first two may take the last one. What judges messages that begin takes none.

mod loss;
mod past;

use super::batch;
use super::home::{AGAIN, BridgeHome, LONGEST};
use super::inward::{FarArrival, FirstEnd, Inward, PairLost, RoomGiver};
use super::outward::{OutwardQueue, Pumped, decode};
use super::pace::{MovedBy, SendPace};
use super::requests::PairReply;
use super::room::{ReceiveRoom, SendRoom, SenderWaits};
use super::way::{NotAnswered, PairLane, PairWay, SharedWay};
use crate::Rank;
use crate::far::{CarriedQueue, FarMember, RoomWait, SentPast};
use crate::member::MemberEvent;
use crate::place::MemberPlace;
use crate::wire::unpack;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use upcall_net::link::LinkSide;
use upcall_net::record::SessionKey;
use upcall_net::{
    Frame, FrameBody, FrameError, FrameHeader, FrameKind, Lost, OutMessage, Wanted, Wire,
};
use upcall_os::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use upcall_os::doorbell::Doorbell;
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_sched::Domain;
use upcall_sched::post::Post;
use upcall_sched::ringer::Ringer;
use upcall_shm::mailbag::Mailbag;
use upcall_shm::span::WritableSpan;
use upcall_shm::station::PeerStation;

/// Number of times that a rest for memory doubles: to 1.28 s.
const LONGEST_REST: u32 = 7;

/// How far this member has left the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PairLeaving {
    No,
    /// As soon as all messages are sent.
    Wanted,
    /// The other side gets to know.
    Told,
    /// The other side knows, or is gone.
    Done,
}

/// The sending direction.
struct OutwardWay {
    queue: Option<OutwardQueue>,
    leaving: PairLeaving,
    /// Number of losses that were reported to the other member.
    losses: usize,
}

/// All pairs of a member, by rank.
pub(super) type Pairs = Arc<[Option<Arc<FarPair>>]>;

/// See the module.
pub(crate) struct FarPair {
    this: Weak<FarPair>,
    pub(super) rank: Rank,
    /// Where it is. A member that has not joined yet has no place.
    place: OnceLock<MemberPlace>,
    /// Whether it had no place when this member joined.
    pub(super) joins_late: bool,
    /// Set once it has joined.
    has_joined: AtomicBool,
    /// Whether this side connects.
    pub(super) side: LinkSide,
    pub(super) home: Arc<BridgeHome>,
    outward: KernelMutex<OutwardWay>,
    inward: KernelMutex<Inward>,
    pub(super) way: SharedWay,
    /// How the sender wakes the bridge.
    ringer: OnceLock<Ringer>,
    pace: SendPace,
    send_room: SendRoom,
    receive_room: ReceiveRoom,
    /// Number of attempts to open the pair, as its client.
    attempts: AtomicU32,
    /// Number of cuts for lack of memory since messages last arrived.
    shortages: AtomicU32,
    /// Maximum length of a message that this member takes, in bytes.
    pub(super) most: usize,
    /// The same of the other one.
    theirs: AtomicU64,
}

impl std::fmt::Debug for FarPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FarPair").field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl FarPair {
    pub(super) fn new(
        rank: Rank,
        place: Option<MemberPlace>,
        side: LinkSide,
        home: &Arc<BridgeHome>,
    ) -> Arc<Self> {
        let most = home.terms.most;
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            rank,
            joins_late: place.is_none(),
            has_joined: AtomicBool::new(place.is_some()),
            place: place.map_or_else(OnceLock::new, OnceLock::from),
            side,
            home: home.clone(),
            outward: KernelMutex::new(OutwardWay {
                queue: None,
                leaving: PairLeaving::No,
                losses: 0,
            }),
            inward: KernelMutex::default(),
            way: SharedWay::new(),
            ringer: OnceLock::new(),
            pace: SendPace::new(Instant::now()),
            send_room: SendRoom::default(),
            receive_room: ReceiveRoom::new(most),
            attempts: AtomicU32::new(0),
            shortages: AtomicU32::new(0),
            most,
            theirs: AtomicU64::new(most as u64),
        })
    }

    /// Where the other member is. `None`: it has not joined yet.
    pub(super) fn place(&self) -> Option<&MemberPlace> {
        self.place.get()
    }

    /// The address at which the other member listens.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.place.get().map(|place| place.address)
    }

    /// Returns `true` if the other member has not joined yet.
    pub(super) fn is_dormant(&self) -> bool {
        self.place.get().is_none()
    }

    /// Returns `true` if the other member's host has this identity.
    pub(super) fn is_of(&self, identity: Option<&str>) -> bool {
        self.place.get().is_some_and(|place| place.identity.as_deref() == identity)
    }

    /// The number of another attempt to open the pair, as its client.
    pub(super) fn next_attempt(&self) -> u32 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns `true` if a turn finds something to send.
    pub(super) fn has_work(&self) -> bool {
        !self.send_room.is_awaited()
            && self.outward.lock().queue.as_ref().is_some_and(OutwardQueue::waits)
            && self.way.is_open()
    }

    /// Gives the pair a turn. Returns what is left, and when to look again at the latest.
    pub(super) fn turn(&self, now: Instant) -> (Pumped, Option<Instant>) {
        let pumped = if self.way.is_open() { self.pump() } else { Pumped::All };
        (pumped, self.pass_on(now))
    }

    fn pump(&self) -> Pumped {
        self.pump_queue(&mut self.outward.lock()).0
    }

    /// Moves messages on the sender's thread, if no other thread does so. Returns what is left, and
    /// the number of bytes that it has moved.
    fn pump_here(&self) -> (Pumped, usize) {
        let pump = |mut outward: MutexGuard<'_, _>| self.pump_queue(&mut outward);
        self.outward.try_lock().map_or((Pumped::More, 0), pump)
    }

    fn pump_queue(&self, outward: &mut OutwardWay) -> (Pumped, usize) {
        self.report_losses(outward);
        let mut bytes = 0;
        let pumped = match &mut outward.queue {
            Some(queue) => queue.pump(&self.send_room, |kind, body| {
                bytes += body.len;
                self.way.send(PairLane::Messages, kind, body);
            }),
            None => Pumped::All,
        };
        if pumped == Pumped::Broken {
            outward.queue = None;
        }
        if outward.leaving == PairLeaving::Wanted && matches!(pumped, Pumped::All | Pumped::Broken)
        {
            outward.leaving = PairLeaving::Told;
            self.way.send(PairLane::Messages, FrameKind::Leave, said(LEAVES));
        }
        (pumped, bytes)
    }

    /// Passes on what has arrived. Returns when to look again.
    fn pass_on(&self, now: Instant) -> Option<Instant> {
        let member = self.home.member.upgrade()?;
        let mut inward = self.inward.lock();
        let this: Weak<dyn RoomGiver> = self.this.clone();
        let bytes = inward.pass_on(&member, (self.rank, &this), now);
        let due = inward.due();
        if bytes > 0 {
            self.gives_room(bytes);
        }
        due
    }

    /// Judges a message that begins.
    pub(super) fn begun(&self, head: &FrameHeader) -> Result<Wanted, FrameError> {
        match head.kind {
            FrameKind::Deliver => {
                let is_long = head.len > batch::size_of(self.most);
                if is_long || self.receive_room.begins(head.len).is_err() {
                    return Err(FrameError("more messages than there is room for"));
                }
            }
            FrameKind::Report | FrameKind::Room | FrameKind::Leave | FrameKind::Loss
                if head.len <= 64 => {}
            _ => return Err(FrameError("what is no message between members")),
        }
        Ok(Wanted::Yes(None))
    }

    /// Takes what has arrived.
    pub(super) fn came(&self, frame: Frame) -> Result<(), FrameError> {
        let bad = FrameError("what is no message between members");
        let arrival = match frame.head.kind {
            FrameKind::Deliver => {
                batch::check(&frame.body.words).map_err(|_| bad)?;
                self.shortages.store(0, Ordering::Relaxed);
                FarArrival::Messages { body: frame.body, at: 0 }
            }
            FrameKind::Report => FarArrival::Report(decode(&frame.body).ok_or(bad)?),
            FrameKind::Room => return self.has_room(&frame.body).ok_or(bad),
            FrameKind::Leave => return self.heard_of_leaving(&frame.body).ok_or(bad),
            FrameKind::Loss => return self.hears_of_loss(&frame.body).ok_or(bad),
            _ => return Err(bad),
        };
        self.inward.lock().add(arrival);
        if self.pass_on(Instant::now()).is_some() {
            self.home.rouse();
        }
        Ok(())
    }

    fn has_room(&self, body: &FrameBody) -> Option<()> {
        let [room] = body.words[..] else { return None };
        if self.send_room.freed(room).ok()? == SenderWaits::Yes {
            self.home.rouse();
        }
        Some(())
    }

    fn heard_of_leaving(&self, body: &FrameBody) -> Option<()> {
        match body.words[..] {
            [LEAVES] => {
                let first = self.inward.lock().ends(PairLost::Gone);
                if first == FirstEnd::Yes {
                    self.way.send(PairLane::Room, FrameKind::Leave, said(KNOWS));
                }
                // It takes nothing more.
                self.finish();
                self.pass_on(Instant::now());
            }
            [KNOWS] => {
                self.finish();
            }
            _ => return None,
        }
        Some(())
    }

    /// Nothing more has to be sent.
    fn finish(&self) {
        let mut outward = self.outward.lock();
        outward.leaving = PairLeaving::Done;
        let queue = outward.queue.take();
        drop(outward);
        drop(queue);
        self.home.rouse();
    }

    /// Leaves the pair once all messages are sent. This member takes no more: what arrives is
    /// dropped, so that the other side has room to leave as well. A member that has not joined yet
    /// cannot join any more.
    pub(super) fn leave(&self) {
        let is_unopened = self.way.with(|way| {
            let is_unopened = matches!(way, PairWay::Unopened);
            if is_unopened {
                *way = PairWay::Over;
            }
            is_unopened
        });
        if is_unopened {
            return;
        }
        {
            let mut outward = self.outward.lock();
            if outward.leaving == PairLeaving::No {
                outward.leaving = PairLeaving::Wanted;
            }
        }
        self.inward.lock().drops_all();
        self.pass_on(Instant::now());
    }

    /// Returns `true` if the other side has everything, or is gone.
    pub(super) fn has_left(&self) -> bool {
        !self.has_joined.load(Ordering::Acquire)
            || self.way.is_over()
            || self.outward.lock().leaving == PairLeaving::Done
    }

    /// The other side answers the request to open the pair.
    pub(super) fn answered(&self, body: &FrameBody) {
        let reply = unpack(&body.to_vec()).unwrap_or_else(PairReply::No);
        if let PairReply::Yes { most } = reply {
            self.takes(most);
        }
        let refused = self.way.with(|way| {
            let PairWay::Asks(wire) = way else { return None };
            let wire = wire.clone();
            match reply {
                PairReply::Yes { .. } => {
                    *way = PairWay::open(&wire);
                    // The server waits for a first message.
                    let (head, body) = (FrameHeader::of(FrameKind::Room), said(0));
                    way.send(PairLane::Room.number(), OutMessage { head, body, owner: None });
                    None
                }
                PairReply::No(why) => {
                    *way = PairWay::Refused(why);
                    Some(wire)
                }
                PairReply::Left => {
                    *way = PairWay::Over;
                    Some(wire)
                }
            }
        });
        if let Some(wire) = refused {
            wire.hang_up();
        }
        if self.way.is_over() {
            self.over(PairLost::Gone);
        }
        self.home.rouse();
    }

    /// The other side knows that the pair is open: its first message arrived in this session.
    pub(super) fn is_known(&self, session: SessionKey) {
        self.way.is_known(session);
        self.home.rouse();
    }

    /// The other side takes messages of at most so many bytes.
    pub(super) fn takes(&self, most: u64) {
        self.theirs.store(most, Ordering::Relaxed);
    }

    /// The other side gives a reason why it closes the connection.
    pub(super) fn parted(&self, body: &FrameBody) {
        let why = String::from_utf8_lossy(&body.to_vec()).into_owned();
        self.way.with(|way| {
            if let PairWay::Asks(_) = way {
                *way = PairWay::Refused(why);
            }
        });
    }

    /// A connection of this session has ended, and the session with it.
    pub(super) fn ended(&self, session: SessionKey, why: &Lost) {
        let asked = self.way.with(|way| match way {
            // An attempt to open the pair that was replaced, or refused.
            way if !way.has_session(session) => true,
            PairWay::Asks(_) => {
                *way = match why.is_cut() {
                    true => PairWay::Unopened,
                    false => PairWay::Refused(why.to_string()),
                };
                true
            }
            _ => false,
        });
        if !asked {
            self.over(match why {
                Lost::Link(_) => PairLost::Broke(why.to_string()),
                _ => PairLost::Gone,
            });
        }
    }

    /// Ends the connection, and the pair with it.
    pub(super) fn hang_up(&self) {
        self.way.leave(PairWay::Over);
    }

    /// Opens the pair with the connection of its client, as [`PairWay::answer`] does. A member that
    /// joins late is at this place from then on.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn opened(
        &self,
        wire: &Arc<Wire>,
        attempt: u32,
        (answer, place): (OutMessage, MemberPlace),
        joins: impl FnOnce() -> bool,
    ) -> Result<(), String> {
        let before = self.way.with(|way| {
            let before = way.answer(wire, attempt, answer, joins)?;
            // The place of the others is known.
            let _ = self.place.set(place);
            self.joins();
            Ok(before)
        });
        before.map(PairWay::hang_up).map_err(|why| match why {
            NotAnswered::OpenedBefore => format!("member {} has opened the pair before", self.rank),
            NotAnswered::Over => format!("member {} has come too late", self.rank),
            NotAnswered::Ended => "the connection has ended".into(),
        })
    }

    /// The other member has joined. This member learns of it once, before the first message.
    fn joins(&self) {
        if !self.has_joined.swap(true, Ordering::AcqRel)
            && let Some(member) = self.home.member.upgrade()
        {
            member.tell(MemberEvent::Joined(self.rank));
        }
    }

    /// Time until memory is tried for again, after this process had none for what arrives. It
    /// doubles from one to the next.
    pub(super) fn rest_for_memory(&self) -> Duration {
        let count = self.shortages.fetch_add(1, Ordering::Relaxed).min(LONGEST_REST);
        AGAIN * 2_u32.pow(count)
    }

    /// Ends the pair, also if the other member has not joined yet. Then this member does not learn
    /// of it.
    pub(super) fn expel(&self) {
        self.way.leave(PairWay::Over);
        // From now on it cannot join.
        if self.has_joined.load(Ordering::Acquire) {
            self.over(PairLost::Gone);
        }
    }

    /// Nothing can be sent or received any more.
    pub(super) fn over(&self, lost: PairLost) {
        self.way.leave(PairWay::Over);
        // Messages to a member that has ended need no memory.
        self.finish();
        {
            let mut inward = self.inward.lock();
            // The member here learns of it after that.
            if inward.ends(lost) == FirstEnd::Yes {
                self.home.losses.add(self.rank);
            }
        }
        self.pass_on(Instant::now());
        self.home.rouse();
    }
}

impl RoomGiver for FarPair {
    fn gives_room(&self, bytes: usize) {
        if let Some(room) = self.receive_room.passed(bytes) {
            let body = FrameBody { words: vec![room], len: 8 };
            self.way.send(PairLane::Room, FrameKind::Room, body);
        }
    }
}

impl FarMember for FarPair {
    fn carry(&self, queue: BorrowedFd<'_>, doorbell: BorrowedFd<'_>) -> io::Result<CarriedQueue> {
        let post = self.home.post();
        let station = Domain::current()?.station().as_fd().try_clone_to_owned()?;
        let station = PeerStation::join(station).map_err(io::Error::other)?;
        let ringer = Ringer::new(station, post.line(), Post::makes_fences());
        let queue = Mailbag::join(queue.try_clone_to_owned()?).map_err(io::Error::other)?;
        let doorbell = Doorbell::adopt(doorbell.try_clone_to_owned()?)?;
        if self.way.is_over() {
            return Ok(CarriedQueue::Ended);
        }
        if !self.has_joined.load(Ordering::Acquire) {
            return Ok(CarriedQueue::Absent);
        }
        post.add(&doorbell)?;
        let _ = self.ringer.set(ringer);
        self.outward.lock().queue = Some(OutwardQueue::new(queue, doorbell));
        Ok(CarriedQueue::Yes)
    }

    fn launched(&self, safe_doorbell: &SafeDoorbell, doorbell: &Doorbell) {
        // A bridge that is awake looks at the queue before it sleeps, and so does it when the way
        // opens again.
        let Some(ringer) = self.ringer.get().filter(|ringer| ringer.is_awaited()) else { return };
        if !self.way.is_open() {
            return;
        }
        let left = match self.pace.decide(Instant::now()) {
            MovedBy::Bridge => Pumped::More,
            MovedBy::Sender => {
                let (left, bytes) = self.pump_here();
                self.pace.moved(Instant::now(), bytes);
                left
            }
        };
        if left != Pumped::All {
            ringer.launched(safe_doorbell, doorbell);
        }
    }

    fn send_past(
        &self,
        message: (u16, usize),
        wait: RoomWait,
        write: &mut dyn FnMut(WritableSpan<'_>),
    ) -> SentPast {
        self.past_the_queue(message, wait, write)
    }

    fn make_room(&self) {
        // A bridge that is awake does it.
        if self.ringer.get().is_some_and(Ringer::is_awaited) && self.way.is_open() {
            self.pump_here();
        }
    }

    fn launched_in_interrupt(&self, safe_doorbell: &SafeDoorbell, doorbell: &Doorbell) {
        if let Some(ringer) = self.ringer.get() {
            ringer.launched(safe_doorbell, doorbell);
        }
    }

    fn most(&self) -> usize {
        usize::try_from(self.theirs.load(Ordering::Relaxed)).unwrap_or(usize::MAX).min(LONGEST)
    }

    fn has_ended(&self) -> bool {
        self.way.is_over()
    }

    fn has_joined(&self) -> bool {
        self.has_joined.load(Ordering::Acquire)
    }
}

/// What a member says when it leaves, and what the other side answers.
const LEAVES: u64 = 1;
const KNOWS: u64 = 2;

fn said(word: u64) -> FrameBody {
    FrameBody { words: vec![word], len: 8 }
}
