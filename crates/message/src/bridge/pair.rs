//! A pair of members on two hosts: what the bridge of this process keeps of the other one.
//!
//! # Locks
//! The two directions have a lock each, and so has the way to the other host. A holder of the first
//! two may take the last one. What judges messages that begin takes none.

use super::batch;
use super::gate::{BridgeGate, FarReader, PairReply, open_request};
use super::inward::{FarArrival, FirstEnd, Inward, PairLost};
use super::outward::{OutwardQueue, Pumped, decode};
use super::pace::{MovedBy, SendPace};
use super::reopening;
use super::room::{ReceiveRoom, SendRoom, SenderWaits};
use crate::Rank;
use crate::far::{CarriedQueue, FarMember};
use crate::member::{Member, Roster};
use crate::place::MemberPlace;
use crate::wire::unpack;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use upcall_net::frame::MOST_BODY;
use upcall_net::link::LinkSide;
use upcall_net::record::SessionKey;
use upcall_net::{
    Frame, FrameBody, FrameError, FrameHeader, FrameKind, HostLink, Lost, MessageLane,
    NoConnection, OutMessage, Wanted, Wire, dial, new_link,
};
use upcall_os::atomic::{AtomicBool, AtomicU64, Ordering};
use upcall_os::doorbell::Doorbell;
use upcall_os::lock::{KernelCondvar, KernelMutex};
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_sched::Domain;
use upcall_sched::post::Post;
use upcall_sched::ringer::Ringer;
use upcall_shm::mailbag::Mailbag;
use upcall_shm::station::PeerStation;

/// Maximum time for which the connection of a resumed session waits for its predecessor to end.
const HANDED_OVER: Duration = Duration::from_secs(1);

/// Maximum time of an attempt to open a pair.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Maximum length of a message, in bytes.
pub(super) const LONGEST: usize = MOST_BODY - 8;

/// Time between two attempts to open a pair.
const PAUSE: Duration = Duration::from_millis(20);

/// What is sent in order, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairLane {
    Messages,
    /// Room for messages of the other direction, which no message holds up.
    Room,
}

impl PairLane {
    fn number(self) -> MessageLane {
        match self {
            Self::Messages => 1,
            Self::Room => 2,
        }
    }
}

/// The way to the other host.
pub(super) enum PairWay {
    /// There is no connection yet.
    Unopened,
    /// This side has connected and asked.
    Asks(Arc<Wire>),
    /// The other side has refused, for this reason.
    Refused(String),
    Open {
        wire: Arc<Wire>,
        /// Messages for a connection that has ended, until that is known here.
        unsent: Vec<(MessageLane, OutMessage)>,
    },
    Cut {
        /// `None` while a thread tries to connect with it.
        link: Option<Box<HostLink>>,
        session: SessionKey,
        unsent: Vec<(MessageLane, OutMessage)>,
        ends: Instant,
    },
    Over,
}

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
}

/// See the module.
pub(crate) struct FarPair {
    pub(super) rank: Rank,
    pub(super) place: MemberPlace,
    /// Whether this side connects.
    pub(super) side: LinkSide,
    pub(super) gate: Arc<BridgeGate>,
    member: Weak<Member>,
    outward: KernelMutex<OutwardWay>,
    inward: KernelMutex<Inward>,
    way: KernelMutex<PairWay>,
    /// Set while a thread reopens the pair. Changes under the lock of the way.
    reopens: AtomicBool,
    changed: KernelCondvar,
    /// How the sender wakes the bridge.
    ringer: OnceLock<Ringer>,
    pace: SendPace,
    send_room: SendRoom,
    receive_room: ReceiveRoom,
    /// Maximum length of a message that this member takes, in bytes.
    most: usize,
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
        place: MemberPlace,
        side: LinkSide,
        gate: &Arc<BridgeGate>,
        member: &Arc<Member>,
    ) -> Arc<Self> {
        let most = gate.terms.most;
        Arc::new(Self {
            rank,
            place,
            side,
            gate: gate.clone(),
            member: Arc::downgrade(member),
            outward: KernelMutex::new(OutwardWay { queue: None, leaving: PairLeaving::No }),
            inward: KernelMutex::default(),
            way: KernelMutex::new(PairWay::Unopened),
            reopens: AtomicBool::new(false),
            changed: KernelCondvar::default(),
            ringer: OnceLock::new(),
            pace: SendPace::new(Instant::now()),
            send_room: SendRoom::default(),
            receive_room: ReceiveRoom::new(most),
            most,
            theirs: AtomicU64::new(most as u64),
        })
    }

    /// Returns `true` if a turn finds something to send.
    pub(super) fn has_work(&self) -> bool {
        !self.send_room.is_awaited()
            && self.outward.lock().queue.as_ref().is_some_and(OutwardQueue::waits)
            && self.is_open()
    }

    /// Gives the pair a turn. Returns what is left, and when to look again at the latest.
    pub(super) fn turn(&self, now: Instant) -> (Pumped, Option<Instant>) {
        let pumped = if self.is_open() { self.pump() } else { Pumped::All };
        (pumped, self.pass_on(now))
    }

    fn pump(&self) -> Pumped {
        self.pump_queue(&mut self.outward.lock())
    }

    /// Moves messages on the sender's thread, if no other thread does so.
    fn pump_here(&self) -> Pumped {
        self.outward.try_lock().map_or(Pumped::More, |mut outward| self.pump_queue(&mut outward))
    }

    fn pump_queue(&self, outward: &mut OutwardWay) -> Pumped {
        let pumped = match &mut outward.queue {
            Some(queue) => queue.pump(&self.send_room, |kind, body| {
                self.send(PairLane::Messages, kind, body);
            }),
            None => Pumped::All,
        };
        if pumped == Pumped::Broken {
            outward.queue = None;
        }
        if outward.leaving == PairLeaving::Wanted && matches!(pumped, Pumped::All | Pumped::Broken)
        {
            outward.leaving = PairLeaving::Told;
            self.send(PairLane::Messages, FrameKind::Leave, said(LEAVES));
        }
        pumped
    }

    /// Passes on what has arrived. Returns when to look again.
    fn pass_on(&self, now: Instant) -> Option<Instant> {
        let member = self.member.upgrade()?;
        let mut inward = self.inward.lock();
        let bytes = inward.pass_on(&member, self.rank, now);
        let due = inward.due();
        if bytes > 0
            && let Some(room) = self.receive_room.passed(bytes)
        {
            let body = FrameBody { words: vec![room], len: 8 };
            self.send(PairLane::Room, FrameKind::Room, body);
        }
        due
    }

    /// Sends something after all others of its lane. Never blocks.
    pub(super) fn send(&self, lane: PairLane, kind: FrameKind, body: FrameBody) {
        let message = OutMessage { head: FrameHeader::of(kind), body, owner: None };
        let mut way = self.way.lock();
        match &mut *way {
            PairWay::Open { wire, unsent } if unsent.is_empty() => {
                unsent.extend(wire.try_send(lane.number(), message).map(|it| (lane.number(), it)));
            }
            PairWay::Open { unsent, .. } => unsent.push((lane.number(), message)),
            PairWay::Cut { link: Some(link), .. } => link.send(lane.number(), message),
            PairWay::Cut { unsent, .. } => unsent.push((lane.number(), message)),
            PairWay::Unopened | PairWay::Asks(_) | PairWay::Refused(_) | PairWay::Over => {}
        }
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
            FrameKind::Report | FrameKind::Room | FrameKind::Leave if head.len <= 64 => {}
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
                FarArrival::Messages { body: frame.body, at: 0 }
            }
            FrameKind::Report => FarArrival::Report(decode(&frame.body).ok_or(bad)?),
            FrameKind::Room => return self.has_room(&frame.body).ok_or(bad),
            FrameKind::Leave => return self.heard_of_leaving(&frame.body).ok_or(bad),
            _ => return Err(bad),
        };
        self.inward.lock().add(arrival);
        if self.pass_on(Instant::now()).is_some() {
            self.gate.rouse();
        }
        Ok(())
    }

    fn has_room(&self, body: &FrameBody) -> Option<()> {
        let [room] = body.words[..] else { return None };
        if self.send_room.freed(room).ok()? == SenderWaits::Yes {
            self.gate.rouse();
        }
        Some(())
    }

    fn heard_of_leaving(&self, body: &FrameBody) -> Option<()> {
        match body.words[..] {
            [LEAVES] => {
                let first = self.inward.lock().ends(PairLost::Gone);
                if first == FirstEnd::Yes {
                    self.send(PairLane::Room, FrameKind::Leave, said(KNOWS));
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
        self.gate.rouse();
    }

    /// Leaves the pair once all messages are sent. This member takes no more: what arrives is
    /// dropped, so that the other side has room to leave as well.
    pub(super) fn leave(&self) {
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
        self.is_over() || self.outward.lock().leaving == PairLeaving::Done
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(*self.way.lock(), PairWay::Open { .. })
    }

    pub(super) fn is_unopened(&self) -> bool {
        matches!(*self.way.lock(), PairWay::Unopened)
    }

    /// Returns `true` if this is the key of its session.
    pub(super) fn has_session(&self, key: SessionKey) -> bool {
        match &*self.way.lock() {
            PairWay::Open { wire, .. } => wire.session() == key,
            PairWay::Cut { session, .. } => *session == key,
            _ => false,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(*self.way.lock(), PairWay::Over)
    }

    /// Opens the pair, as its client. Returns `true` if it is open or the other member has ended,
    /// `false` if that takes longer.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(super) fn open(
        self: &Arc<Self>,
        roster: &Roster,
        limit: Duration,
    ) -> Result<bool, NotOpened> {
        if !self.is_unopened() {
            return Ok(self.await_opening(limit)?);
        }
        let protection = self.gate.protection(&self.place)?;
        let request = open_request(roster, self.rank, self.most)
            .ok_or_else(|| "the request cannot be written".to_string())?;
        let mut link = match new_link(self.gate.terms.patience) {
            Ok(link) => link,
            Err(NoConnection::NoKey(error)) => return Err(NotOpened::NoKey(error)),
            Err(error) => return Err(error.to_string().into()),
        };
        let deadline = Instant::now() + ATTEMPT;
        let (address, terms) = (self.place.address, self.gate.wire_terms());
        let (wire, first) = match dial(address, &protection, &mut link, terms, deadline) {
            Ok(dialled) => dialled,
            Err(NoConnection::NotProved(error)) => return Err(error.to_string().into()),
            // It has listened since before it became a member.
            Err(NoConnection::Refused(error)) if reopening::is_gone(&error) => {
                self.over(PairLost::Gone);
                return Ok(true);
            }
            Err(_) => {
                self.wait(PAUSE.min(limit), |_| None::<()>);
                return Ok(false);
            }
        };
        match owner(&wire) {
            WireOwner::Own => {}
            WireOwner::Another => {
                wire.hang_up();
                return Err(NotOpened::Refused("another user listens there".into()));
            }
            WireOwner::Unknown => {
                wire.hang_up();
                return Ok(false);
            }
        }
        self.leave_way(PairWay::Asks(wire.clone()));
        let reader = FarReader::of_pair(self, &wire);
        if wire.start(&first, Box::new(reader)).is_err() {
            self.leave_way(PairWay::Unopened);
            return Ok(false);
        }
        drop(wire.try_send(PairLane::Messages.number(), request));
        Ok(self.await_opening(limit)?)
    }

    /// Waits until the client opens the pair. Returns `true` if it is open or the other member has
    /// ended, `false` if that takes longer.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(super) fn await_client(&self, limit: Duration) -> Result<bool, NotOpened> {
        if self.await_opening(limit)? {
            return Ok(true);
        }
        let is_gone = reopening::has_ended(self.place.address);
        if is_gone {
            self.over(PairLost::Gone);
        }
        Ok(is_gone)
    }

    /// Waits until the pair is open. Returns `false` if that takes longer.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(super) fn await_opening(&self, limit: Duration) -> Result<bool, String> {
        let opened = self.wait(limit, |way| match way {
            PairWay::Open { .. } | PairWay::Cut { .. } | PairWay::Over => Some(Ok(true)),
            PairWay::Refused(why) => Some(Err(why.clone())),
            PairWay::Unopened if self.side == LinkSide::Client => Some(Ok(false)),
            PairWay::Unopened | PairWay::Asks(_) => None,
        });
        opened.unwrap_or(Ok(false))
    }

    /// The other side answers the request to open the pair.
    pub(super) fn answered(&self, body: &FrameBody) {
        let reply = unpack(&body.to_vec()).unwrap_or_else(PairReply::No);
        if let PairReply::Yes { most } = reply {
            self.takes(most);
        }
        let refused = self.with_way(|way| {
            let PairWay::Asks(wire) = way else { return None };
            let wire = wire.clone();
            match reply {
                PairReply::Yes { .. } => {
                    *way = PairWay::Open { wire, unsent: Vec::new() };
                    None
                }
                PairReply::No(why) => {
                    *way = PairWay::Refused(why);
                    Some(wire)
                }
            }
        });
        if let Some(wire) = refused {
            wire.hang_up();
        }
        self.gate.rouse();
    }

    /// The other side takes messages of at most so many bytes.
    pub(super) fn takes(&self, most: u64) {
        self.theirs.store(most, Ordering::Relaxed);
    }

    /// The other side gives a reason why it closes the connection.
    pub(super) fn parted(&self, body: &FrameBody) {
        let why = String::from_utf8_lossy(&body.to_vec()).into_owned();
        self.with_way(|way| {
            if let PairWay::Asks(_) = way {
                *way = PairWay::Refused(why);
            }
        });
    }

    /// The connection has ended, and the session with it.
    pub(super) fn ended(&self, why: &Lost) {
        let asked = self.with_way(|way| match way {
            PairWay::Asks(_) => {
                *way = match why.is_cut() {
                    true => PairWay::Unopened,
                    false => PairWay::Refused(why.to_string()),
                };
                true
            }
            PairWay::Unopened | PairWay::Refused(_) => true,
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
        self.leave_way(PairWay::Over);
    }

    /// Changes the way, and ends a connection that it was on.
    fn leave_way(&self, to: PairWay) {
        let before = self.with_way(|way| std::mem::replace(way, to));
        if let PairWay::Open { wire, .. } | PairWay::Asks(wire) = before {
            wire.hang_up();
        }
    }

    /// Changes the way with `change`, and wakes who waits for that.
    pub(super) fn with_way<R>(&self, change: impl FnOnce(&mut PairWay) -> R) -> R {
        let result = change(&mut self.way.lock());
        self.changed.notify_all();
        result
    }

    /// Waits until `done` returns a value for the way, or for this time.
    pub(super) fn wait<R>(
        &self,
        limit: Duration,
        done: impl Fn(&PairWay) -> Option<R>,
    ) -> Option<R> {
        let way = self.way.lock();
        let waits = |way: &mut PairWay| done(way).is_none();
        let (way, _) = self.changed.wait_timeout_while(way, limit, waits);
        done(&way)
    }

    /// Opens the pair with the connection of its client, which gets this answer.
    ///
    /// # Errors
    /// The pair was opened before, or the connection has ended.
    pub(super) fn opened(&self, wire: &Arc<Wire>, answer: OutMessage) -> Result<(), String> {
        let opened = self.with_way(|way| {
            if !matches!(way, PairWay::Unopened) {
                return Err(format!("member {} has opened the pair before", self.rank));
            }
            // Before any message, which waits for the lock of the way.
            match wire.try_send(PairLane::Messages.number(), answer) {
                None => {
                    *way = PairWay::Open { wire: wire.clone(), unsent: Vec::new() };
                    Ok(())
                }
                Some(_) => Err("the connection has ended".into()),
            }
        });
        self.gate.rouse();
        opened
    }

    /// The connection is lost, and its session may go on.
    pub(super) fn cut(self: &Arc<Self>, why: &Lost, link: HostLink) {
        let mut link = Box::new(link);
        let ends = Instant::now() + link.patience();
        let is_cut = self.with_way(|way| match way {
            PairWay::Open { unsent, .. } => {
                unsent.drain(..).for_each(|(lane, message)| link.send(lane, message));
                let (session, unsent) = (link.session(), Vec::new());
                *way = PairWay::Cut { link: Some(link), session, unsent, ends };
                true
            }
            // A new connection was lost before it was known here.
            PairWay::Cut { link: place @ None, unsent, .. } => {
                unsent.drain(..).for_each(|(lane, message)| link.send(lane, message));
                *place = Some(link);
                true
            }
            // This side connects again.
            PairWay::Asks(_) => {
                *way = PairWay::Unopened;
                false
            }
            _ => false,
        });
        if is_cut {
            self.begin_to_reopen(why);
        }
    }

    /// Starts the thread that reopens the pair, unless there is one.
    fn begin_to_reopen(self: &Arc<Self>, why: &Lost) {
        if !self.with_way(|_| self.reopens.swap(true, Ordering::Relaxed)) {
            reopening::begin(self, why);
        }
    }

    /// Ends the thread that reopens the pair, unless the way is cut.
    pub(super) fn ends_to_reopen(&self) -> ReopeningEnds {
        self.with_way(|way| {
            if let PairWay::Cut { .. } = way {
                return ReopeningEnds::No;
            }
            self.reopens.store(false, Ordering::Relaxed);
            ReopeningEnds::Yes
        })
    }

    /// Takes the link out, to connect with it.
    ///
    /// `None`: the way is not cut, or another thread has the link.
    pub(super) fn take_link(&self) -> Option<Box<HostLink>> {
        match &mut *self.way.lock() {
            PairWay::Cut { link, .. } => link.take(),
            _ => None,
        }
    }

    /// Puts a link back with which no connection was made.
    pub(super) fn put_back(&self, mut link: Box<HostLink>) {
        self.with_way(|way| {
            if let PairWay::Cut { link: place @ None, unsent, .. } = way {
                unsent.drain(..).for_each(|(lane, message)| link.send(lane, message));
                *place = Some(link);
            }
        });
    }

    /// The session goes on with another connection, unless that is lost or the pair is over.
    pub(super) fn reopened(&self, wire: &Arc<Wire>) {
        let goes_on = self.with_way(|way| {
            let PairWay::Cut { link: None, unsent, .. } = way else { return false };
            // What the connection does not take waits for the next one.
            let mut left = Vec::new();
            for (lane, message) in unsent.drain(..) {
                let refused =
                    if left.is_empty() { wire.try_send(lane, message) } else { Some(message) };
                left.extend(refused.map(|message| (lane, message)));
            }
            *way = PairWay::Open { wire: wire.clone(), unsent: left };
            true
        });
        if !goes_on {
            wire.hang_up();
        }
        self.gate.rouse();
    }

    /// Nothing can be sent or received any more.
    pub(super) fn over(&self, lost: PairLost) {
        self.leave_way(PairWay::Over);
        // Messages to a member that has ended need no memory.
        self.finish();
        self.inward.lock().ends(lost);
        self.pass_on(Instant::now());
        self.gate.rouse();
    }

    /// Takes the link of the session with this key, with which the other side wants to go on.
    /// `None`: not now.
    ///
    /// # Blocking
    /// If the old connection is just ending, waits for that, for a second at most.
    pub(super) fn resume(self: &Arc<Self>, session: SessionKey) -> Option<Box<HostLink>> {
        let until = Instant::now() + HANDED_OVER;
        while Instant::now() < until {
            let open = match &mut *self.way.lock() {
                PairWay::Cut { link, session: own, .. } if *own == session => return link.take(),
                PairWay::Open { wire, .. } if wire.session() == session => wire.clone(),
                _ => return None,
            };
            // The other side has noticed the cut first.
            let Some(link) = open.detach() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            let ends = Instant::now() + link.patience();
            let is_cut = self.with_way(|way| {
                let PairWay::Open { unsent, .. } = way else { return false };
                let unsent = std::mem::take(unsent);
                *way = PairWay::Cut { link: None, session, unsent, ends };
                true
            });
            if is_cut {
                self.begin_to_reopen(&Lost::Silent(Duration::ZERO));
                return Some(Box::new(link));
            }
        }
        None
    }
}

/// Whether the thread that reopens a pair ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReopeningEnds {
    Yes,
    /// The pair is cut again.
    No,
}

impl FarMember for FarPair {
    fn carry(&self, queue: BorrowedFd<'_>, doorbell: BorrowedFd<'_>) -> io::Result<CarriedQueue> {
        let post = self.gate.post();
        let station = Domain::current()?.station().as_fd().try_clone_to_owned()?;
        let station = PeerStation::join(station).map_err(io::Error::other)?;
        let ringer = Ringer::new(station, post.line(), Post::makes_fences());
        let queue = Mailbag::join(queue.try_clone_to_owned()?).map_err(io::Error::other)?;
        let doorbell = Doorbell::adopt(doorbell.try_clone_to_owned()?)?;
        if self.is_over() {
            return Ok(CarriedQueue::Ended);
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
        if !self.is_open() {
            return;
        }
        if self.pace.decide(Instant::now()) == MovedBy::Bridge || self.pump_here() != Pumped::All {
            ringer.launched(safe_doorbell, doorbell);
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
        self.is_over()
    }
}

/// Why a pair cannot be opened.
#[derive(Debug)]
pub(super) enum NotOpened {
    /// One side does not prove its host, or the other side refuses, for this reason.
    Refused(String),
    /// The kernel gives no random bytes for the key of a session.
    NoKey(io::Error),
}

impl From<String> for NotOpened {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

/// The owner of the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireOwner {
    /// A host that is proved, or this user. Its process may be a member.
    Own,
    /// Another user of this machine.
    Another,
    /// The connection has ended, or the kernel does not know.
    Unknown,
}

/// Finds the owner of the other end of a connection.
pub(super) fn owner(wire: &Wire) -> WireOwner {
    match wire.user() {
        _ if wire.host().is_some() => WireOwner::Own,
        Some(user) if user == upcall_os::socket::own_user() => WireOwner::Own,
        Some(_) => WireOwner::Another,
        None => WireOwner::Unknown,
    }
}

/// What a member says when it leaves, and what the other side answers.
const LEAVES: u64 = 1;
const KNOWS: u64 = 2;

fn said(word: u64) -> FrameBody {
    FrameBody { words: vec![word], len: 8 }
}
