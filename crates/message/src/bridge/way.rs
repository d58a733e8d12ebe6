//! The way of a pair to the other host: its connection, or what a cut has left of it.

use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_net::record::SessionKey;
use upcall_net::{FrameBody, FrameHeader, FrameKind, HostLink, MessageLane, OutMessage, Wire};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::lock::{KernelCondvar, KernelMutex};

/// What is sent in order, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairLane {
    Messages,
    /// Room for messages of the other direction, which no message holds up.
    Room,
}

impl PairLane {
    pub(super) fn number(self) -> MessageLane {
        match self {
            Self::Messages => 1,
            Self::Room => 2,
        }
    }
}

/// Messages for a connection that has ended, until that is known here.
#[derive(Debug, Default)]
pub(super) struct UnsentFarMessages(Vec<(MessageLane, OutMessage)>);

impl UnsentFarMessages {
    /// Sends a message on a connection, after all that waits here. If the connection has ended, the
    /// message waits, too.
    fn send_after(&mut self, wire: &Wire, lane: MessageLane, message: OutMessage) {
        let refused = if self.0.is_empty() { wire.try_send(lane, message) } else { Some(message) };
        self.0.extend(refused.map(|message| (lane, message)));
    }

    /// Hands all messages to the link of the session.
    fn hand_to(&mut self, link: &mut HostLink) {
        self.0.drain(..).for_each(|(lane, message)| link.send(lane, message));
    }
}

/// How far the opening of a pair is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// This side has answered this attempt of the client, which may not know it. Nothing else was
    /// sent in the session.
    Answered { attempt: u32 },
    /// Both sides know.
    Known,
}

/// When a pair that is cut may be opened again.
#[derive(Clone, Copy, Debug)]
pub(super) struct CutLimits {
    /// Before this time no connection is made, because this process lacks memory.
    pub(super) begins: Instant,
    /// When the patience is over.
    pub(super) ends: Instant,
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
        opening: Opening,
        unsent: UnsentFarMessages,
    },
    Cut {
        /// `None` while a thread tries to connect with it.
        link: Option<Box<HostLink>>,
        session: SessionKey,
        opening: Opening,
        unsent: UnsentFarMessages,
        limits: CutLimits,
    },
    Over,
}

impl PairWay {
    /// A way on this connection, of which both sides know.
    pub(super) fn open(wire: &Arc<Wire>) -> Self {
        Self::opened(wire, Opening::Known)
    }

    fn opened(wire: &Arc<Wire>, opening: Opening) -> Self {
        Self::Open { wire: wire.clone(), opening, unsent: UnsentFarMessages::default() }
    }

    /// The opening of a way that has a session.
    pub(super) fn opening(&self) -> Option<Opening> {
        match self {
            Self::Open { opening, .. } | Self::Cut { opening, .. } => Some(*opening),
            Self::Unopened | Self::Asks(_) | Self::Refused(_) | Self::Over => None,
        }
    }

    /// Returns `true` if this is the key of its session.
    pub(super) fn has_session(&self, key: SessionKey) -> bool {
        match self {
            Self::Asks(wire) | Self::Open { wire, .. } => wire.session() == key,
            Self::Cut { session, .. } => *session == key,
            Self::Unopened | Self::Refused(_) | Self::Over => false,
        }
    }

    /// Answers an attempt of the client to open the pair. Returns the way before; its connection
    /// has to be ended.
    ///
    /// `joins` makes the reader of the connection know the pair, and returns `false` if the
    /// connection has ended.
    ///
    /// An attempt replaces earlier ones while the client may know of no answer. The client makes
    /// another attempt only if it has no answer to the last one. So no message is lost with an
    /// attempt that is replaced.
    ///
    /// # Errors
    /// The pair was opened before, is over, or the connection has ended.
    pub(super) fn answer(
        &mut self,
        wire: &Arc<Wire>,
        attempt: u32,
        answer: OutMessage,
        joins: impl FnOnce() -> bool,
    ) -> Result<Self, NotAnswered> {
        match (&*self, self.opening()) {
            (Self::Unopened, _) => {}
            (_, Some(Opening::Answered { attempt: before })) if before < attempt => {}
            (Self::Over, _) => return Err(NotAnswered::Over),
            _ => return Err(NotAnswered::OpenedBefore),
        }
        // In this order: the client may send messages as soon as it has the answer. Messages to it
        // wait for the lock of the way.
        if !joins() || wire.try_send(PairLane::Messages.number(), answer).is_some() {
            return Err(NotAnswered::Ended);
        }
        Ok(std::mem::replace(self, Self::opened(wire, Opening::Answered { attempt })))
    }

    /// The client knows that the pair is open: its first message arrived in this session.
    fn is_known(&mut self, key: SessionKey) {
        if !self.has_session(key) {
            return;
        }
        if let Self::Open { opening, .. } | Self::Cut { opening, .. } = self {
            *opening = Opening::Known;
        }
    }

    /// Sends a message after all others of its lane. A way without a session drops it.
    pub(super) fn send(&mut self, lane: MessageLane, message: OutMessage) {
        match self {
            Self::Open { wire, unsent, .. } => unsent.send_after(wire, lane, message),
            Self::Cut { link: Some(link), .. } => link.send(lane, message),
            Self::Cut { unsent, .. } => unsent.0.push((lane, message)),
            Self::Unopened | Self::Asks(_) | Self::Refused(_) | Self::Over => {}
        }
    }

    /// Gives the link of the session back to a way that is cut. Returns whether it was.
    pub(super) fn give_back(&mut self, mut held: Box<HostLink>) -> GaveBack {
        let Self::Cut { link: link @ None, unsent, .. } = self else { return GaveBack::No };
        unsent.hand_to(&mut held);
        *link = Some(held);
        GaveBack::Yes
    }

    /// The connection is lost, and its session goes on within `limits`. The link has left it.
    pub(super) fn cut(&mut self, session: SessionKey, limits: CutLimits) {
        match self {
            Self::Open { opening, unsent, .. } => {
                let (opening, unsent) = (*opening, std::mem::take(unsent));
                *self = Self::Cut { link: None, session, opening, unsent, limits };
            }
            // A new connection was lost before it was known here.
            Self::Cut { link: None, limits: of_cut, .. } => of_cut.begins = limits.begins,
            _ => {}
        }
    }

    /// Takes the link of the session out. `None`: the way is not cut, it is too early, or another
    /// thread has the link.
    pub(super) fn take_link(&mut self) -> Option<Box<HostLink>> {
        match self {
            Self::Cut { link, limits, .. } if limits.begins <= Instant::now() => link.take(),
            _ => None,
        }
    }

    /// The session goes on with another connection, unless the way is not cut. What the connection
    /// does not take waits for the next one.
    pub(super) fn reopen(&mut self, wire: &Arc<Wire>) -> Reopened {
        let Self::Cut { link: None, opening, unsent, .. } = self else { return Reopened::No };
        let opening = *opening;
        let waiting = std::mem::take(&mut unsent.0);
        let mut unsent = UnsentFarMessages::default();
        waiting.into_iter().for_each(|(lane, message)| unsent.send_after(wire, lane, message));
        *self = Self::Open { wire: wire.clone(), opening, unsent };
        Reopened::Yes
    }

    /// Ends the connection of a way that was left.
    pub(super) fn hang_up(self) {
        if let Self::Open { wire, .. } | Self::Asks(wire) = self {
            wire.hang_up();
        }
    }

    /// When the patience is over. `None`: the way is not cut.
    pub(super) fn ends(&self) -> Option<Instant> {
        match self {
            Self::Cut { limits, .. } => Some(limits.ends),
            _ => None,
        }
    }
}

/// Why an attempt to open a pair is not answered with yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAnswered {
    /// The client has opened the pair before, or has made a later attempt.
    OpenedBefore,
    /// The pair is over.
    Over,
    /// The connection has ended.
    Ended,
}

/// Whether a way has got its link back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GaveBack {
    Yes,
    /// It is not cut, or has its link.
    No,
}

/// Whether a session goes on with another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reopened {
    Yes,
    No,
}

/// The state of the thread that reopens a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reopening {
    /// There was none. The caller has to start one.
    Begins,
    GoesOn,
}

/// Whether the thread that reopens a pair ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReopeningEnds {
    Yes,
    /// The pair is cut again.
    No,
}

/// A way, which several threads change.
pub(super) struct SharedWay {
    way: KernelMutex<PairWay>,
    changed: KernelCondvar,
    /// Set while a thread reopens the pair. Changes under the lock.
    reopens: AtomicBool,
}

impl SharedWay {
    pub(super) fn new() -> Self {
        Self {
            way: KernelMutex::new(PairWay::Unopened),
            changed: KernelCondvar::default(),
            reopens: AtomicBool::new(false),
        }
    }

    /// Changes the way with `change`, and wakes the threads that wait for a change.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut PairWay) -> R) -> R {
        let result = change(&mut self.way.lock());
        self.changed.notify_all();
        result
    }

    /// Reads the way.
    pub(super) fn read<R>(&self, read: impl FnOnce(&PairWay) -> R) -> R {
        read(&self.way.lock())
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

    /// Changes the way, and ends a connection that it was on.
    pub(super) fn leave(&self, to: PairWay) {
        self.with(|way| std::mem::replace(way, to)).hang_up();
    }

    /// The other side knows that the pair is open: its first message arrived in this session.
    pub(super) fn is_known(&self, key: SessionKey) {
        self.with(|way| way.is_known(key));
    }

    /// Sends something after all others of its lane. Never blocks.
    pub(super) fn send(&self, lane: PairLane, kind: FrameKind, body: FrameBody) {
        let message = OutMessage { head: FrameHeader::of(kind), body, owner: None };
        self.way.lock().send(lane.number(), message);
    }

    /// Returns `true` if messages can be sent at once.
    pub(super) fn is_open(&self) -> bool {
        self.read(|way| matches!(way, PairWay::Open { opening: Opening::Known, .. }))
    }

    pub(super) fn is_unopened(&self) -> bool {
        self.read(|way| matches!(way, PairWay::Unopened))
    }

    pub(super) fn is_over(&self) -> bool {
        self.read(|way| matches!(way, PairWay::Over))
    }

    /// Returns `true` if this is the key of its session.
    pub(super) fn has_session(&self, key: SessionKey) -> bool {
        self.read(|way| way.opening().is_some() && way.has_session(key))
    }

    /// As [`PairWay::take_link`].
    pub(super) fn take_link(&self) -> Option<Box<HostLink>> {
        self.way.lock().take_link()
    }

    /// Puts a link back with which no connection was made.
    pub(super) fn put_back(&self, link: Box<HostLink>) {
        self.with(|way| way.give_back(link));
    }

    /// Notes that a thread reopens the pair.
    pub(super) fn begins_to_reopen(&self) -> Reopening {
        match self.with(|_| self.reopens.swap(true, Ordering::Relaxed)) {
            true => Reopening::GoesOn,
            false => Reopening::Begins,
        }
    }

    /// Ends the thread that reopens the pair, unless the way is cut.
    pub(super) fn ends_to_reopen(&self) -> ReopeningEnds {
        self.with(|way| {
            if let PairWay::Cut { .. } = way {
                return ReopeningEnds::No;
            }
            self.reopens.store(false, Ordering::Relaxed);
            ReopeningEnds::Yes
        })
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
