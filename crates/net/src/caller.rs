//! The calling end of a connection: many calls wait for their replies at once.
//!
//! A call takes one of the places that the server has for calls of one connection, or waits for one
//! in first-come order. It is entered under a number and sent, and then its thread blocks: a
//! user-level thread blocks only itself. The reading thread finds the call by the number in the
//! reply. A call that is given up before all of it is sent never runs. Otherwise it leaves its
//! place and its number to the late reply, as in a channel ([`upcall_sched::calls`]), and notifies
//! the server, so that it need not begin the call.

mod at_post;
mod places;

use crate::attend::Attend;
use crate::dial::{NoConnection, Protection, dial, new_link};
use crate::frame::{Frame, FrameBody, FrameError, FrameHeader, FrameKind, MOST_ANSWER};
use crate::identity::{Fingerprint, HostName};
use crate::incoming::Wanted;
use crate::lost::Lost;
use crate::outgoing::{BufferOwner, GivenUp, MessageLane};
use crate::wire::{ReadHere, Wire, WireTerms};
use at_post::CallWaiter;
use std::collections::hash_map::{Entry, HashMap};
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_sched::{CancelToken, WaitLimit};
use upcall_sched::{Closed, NoReply, block_unless};
use upcall_thread::Waited;

/// Interval at which a waiting kernel thread asks whether to go on.
///
/// See [`CancelToken::asking`].
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// The lane of messages that get no reply. Those of calls have their numbers.
const NOTES: MessageLane = 1 << 32;

/// Takes the reply of a call that was given up.
///
/// It runs on a thread that must not be blocked. It is dropped if no reply will arrive.
pub type LateFrame = Box<dyn FnOnce(Frame) + Send>;

/// What a client knows of the servers that it calls.
#[derive(Clone, Copy, Debug)]
pub struct CallerTerms {
    /// Maximum length of a reply, in bytes.
    pub most_reply: usize,
    /// Whether the server counts requests that are not calls among the calls under way. If not,
    /// they wait for no place.
    pub counts_asks: bool,
}

/// The calling end of a connection, which ends when this is dropped.
pub struct NetworkCaller {
    wire: Arc<Wire>,
    server: CallerTerms,
    table: Arc<PendingTable>,
}

/// The table has an owner of its own: a message is judged under the wire's lock, where the last
/// owner of a caller must not drop it.
struct PendingTable(KernelMutex<PendingCalls>);

struct PendingCalls {
    closed: Option<Closed>,
    /// How the connection has ended, unless this side has closed it.
    lost: Option<Lost>,
    /// What the server sent before it closed the connection.
    farewell: Option<FrameBody>,
    last: u32,
    /// How many calls may be under way, and how many are.
    places: usize,
    taken: usize,
    /// Callers that wait for a place. A caller that is woken has one.
    queue: VecDeque<CallWaiter>,
    calls: HashMap<u32, CallState>,
    /// The calls that have no place.
    placeless: HashSet<u32>,
}

enum CallState {
    /// No thread waits yet.
    Sent,
    Waits(CallWaiter),
    /// The reply has arrived.
    Done(Frame),
    /// The caller has given the call up.
    Late(LateFrame),
}

impl fmt::Debug for NetworkCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NetworkCaller({})", self.wire.peer())
    }
}

/// Passes what has arrived to the caller.
struct ReplyReader {
    caller: Weak<NetworkCaller>,
    table: Arc<PendingTable>,
    /// The calls whose replies have begun, and 0 for a farewell: a server says each once.
    begun: HashSet<u32>,
    server: CallerTerms,
}

impl Attend for ReplyReader {
    fn begun(&mut self, head: &FrameHeader, _unsent: usize) -> Result<Wanted, FrameError> {
        match head.kind {
            FrameKind::Answer | FrameKind::Farewell if head.len > MOST_ANSWER => {
                Err(FrameError("an answer that is longer than answers are"))
            }
            FrameKind::Reply if head.len > self.server.most_reply => {
                Err(FrameError("a reply that is longer than replies are"))
            }
            FrameKind::Answer | FrameKind::Reply | FrameKind::Farewell => {
                let call = if head.kind == FrameKind::Farewell { 0 } else { head.call };
                if call != 0 && !self.table.awaits(call) {
                    return Ok(Wanted::No);
                }
                match self.begun.insert(call) {
                    true => Ok(Wanted::Yes(None)),
                    false => Err(FrameError("a second reply to one call")),
                }
            }
            _ => Err(FrameError("a request from a server")),
        }
    }

    fn came(&mut self, frame: Frame, _owner: Option<BufferOwner>) -> Result<(), FrameError> {
        self.begun.remove(&frame.head.call);
        self.caller.upgrade().map_or(Ok(()), |caller| caller.came(frame))
    }

    fn given_up(&mut self, _head: FrameHeader) -> Result<(), FrameError> {
        Err(FrameError("a reply that does not go on"))
    }

    fn ended(self: Box<Self>, why: Lost) {
        if let Some(caller) = self.caller.upgrade() {
            let server = caller.wire.peer().to_string();
            caller.table().lost.get_or_insert(why.clone());
            caller.close(Closed::Lost { server, why: why.to_string() });
        }
    }
}

impl NetworkCaller {
    /// Connects to the server at this address.
    ///
    /// # Errors
    /// See [`NoConnection`].
    ///
    /// # Blocking
    /// Blocks the kernel thread, until `deadline` at most.
    pub fn connect(
        address: SocketAddr,
        protection: &Protection,
        terms: WireTerms,
        server: CallerTerms,
        deadline: Instant,
    ) -> Result<Arc<Self>, NoConnection> {
        let mut link = new_link(Duration::ZERO)?;
        let (wire, first) = dial(address, protection, &mut link, terms, deadline)?;
        let places = wire.peer_window();
        let table = PendingCalls {
            closed: None,
            lost: None,
            farewell: None,
            last: 0,
            places: places.into(),
            taken: 0,
            queue: VecDeque::new(),
            calls: HashMap::new(),
            placeless: HashSet::new(),
        };
        let table = Arc::new(PendingTable(KernelMutex::new(table)));
        let caller = Arc::new(Self { wire, server, table: table.clone() });
        let (own, begun) = (Arc::downgrade(&caller), HashSet::new());
        let reader = Box::new(ReplyReader { caller: own, table, begun, server });
        caller.wire.start(&first, reader).map_err(NoConnection::NoThread)?;
        Ok(caller)
    }

    /// The server's address.
    pub fn server(&self) -> SocketAddr {
        self.wire.peer()
    }

    /// This side's address.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn own(&self) -> io::Result<SocketAddr> {
        self.wire.own()
    }

    /// The identity that the server has proved.
    pub fn identity(&self) -> Option<Fingerprint> {
        self.wire.identity()
    }

    /// The host of the server, if it has proved one.
    pub fn host(&self) -> Option<&HostName> {
        self.wire.host()
    }

    /// The user of a server within this machine, if the kernel knows it.
    pub fn user(&self) -> Option<u32> {
        self.wire.user()
    }

    /// Why calls fail from now on; `None` while the connection is open.
    pub fn closed(&self) -> Option<Closed> {
        self.table().closed.clone()
    }

    /// How the connection has ended, if not by this side.
    pub fn lost(&self) -> Option<Lost> {
        self.table().lost.clone()
    }

    /// What the server sent before it closed the connection.
    pub fn farewell(&self) -> Option<FrameBody> {
        self.table().farewell.clone()
    }

    /// Sends a message that gets no reply.
    pub fn notify(&self, head: FrameHeader, body: FrameBody) {
        self.wire.send(NOTES, head, body, None);
    }

    /// Sends a request, and waits for its reply as long as `until` says.
    ///
    /// `late` is called at most once, when a call that was sent is given up, and must not block.
    /// This function chooses the number of the call in `head`.
    ///
    /// # Errors
    /// No reply will arrive, the caller's time is up, or there is no memory for the request.
    pub fn call(
        &self,
        mut head: FrameHeader,
        body: FrameBody,
        until: WaitLimit<'_>,
        late: &mut dyn FnMut() -> LateFrame,
    ) -> Result<Frame, NoReply> {
        if until.has_come() {
            return Err(NoReply::OutOfTime { sent: false });
        }
        if self.needs_place(&head) {
            self.take_place(until)?;
        }
        head.call = self.send(head, body, until.ends)?;
        // A kernel thread with an asking token asks at intervals whether to go on, because a signal
        // does not end this sleep.
        let asks = until
            .cancel
            .filter(|token| token.is_asking() && upcall_thread::on_virtual_processor().is_none());
        loop {
            let slice = asks.map_or(until, |_| until.no_later_than(Instant::now() + ASK_AGAIN));
            let waited = self.wait_for_reply(head.call, slice);
            if waited == Waited::Woken || until.has_come() || asks.is_none_or(CancelToken::asks) {
                break;
            }
        }
        self.take_reply(head, late)
    }

    /// Sends the request of a call that has a place, or needs none. Returns its number.
    fn send(
        &self,
        mut head: FrameHeader,
        body: FrameBody,
        ends: Option<Instant>,
    ) -> Result<u32, NoReply> {
        head.call = self.enter(self.needs_place(&head))?;
        // Computed only now, because the call may have waited for its place.
        head.left = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
        self.wire.send(head.call.into(), head, body, None);
        Ok(head.call)
    }

    /// Takes the reply of a call, or gives the call up.
    fn take_reply(
        &self,
        head: FrameHeader,
        late: &mut dyn FnMut() -> LateFrame,
    ) -> Result<Frame, NoReply> {
        {
            let mut table = self.table();
            if let Some(CallState::Done(frame)) = table.calls.remove(&head.call) {
                return Ok(frame);
            }
            if table.closed.is_some() {
                return Err(table.why());
            }
            // The reply may come while the call is given up.
            table.calls.insert(head.call, CallState::Sent);
        }
        let given_up = self.wire.give_up(head.call.into());
        let mut table = self.table();
        match table.calls.remove(&head.call) {
            Some(CallState::Done(frame)) => return Ok(frame),
            Some(_) if table.closed.is_none() => {}
            _ => return Err(table.why()),
        }
        if given_up == GivenUp::Unsent {
            drop(table);
            self.leave_place(head.call);
            return Err(NoReply::OutOfTime { sent: false });
        }
        table.calls.insert(head.call, CallState::Late(late()));
        drop(table);
        if head.kind == FrameKind::Call {
            let head = FrameHeader { kind: FrameKind::Cancel, left: None, ..head };
            self.notify(head, FrameBody::default());
        }
        Err(NoReply::OutOfTime { sent: true })
    }

    /// Waits until the reply has arrived or none will, or as long as `until` says.
    fn wait_for_reply(&self, number: u32, until: WaitLimit<'_>) -> Waited {
        // A virtual processor has other threads to run, and a token is not seen while reading.
        if until.cancel.is_none() && upcall_thread::on_virtual_processor().is_none() {
            let mut done = || !self.waits(number);
            if self.wire.read_here(until.ends, &mut done) == ReadHere::Done {
                return Waited::Woken;
            }
        }
        let mut before = None;
        let waited = block_unless(until, |sleeper| {
            let mut table = self.table();
            match table.calls.get_mut(&number) {
                Some(call @ (CallState::Sent | CallState::Waits(_))) => {
                    let waits = CallState::Waits(CallWaiter::Sleeper(sleeper));
                    before = Some(std::mem::replace(call, waits));
                }
                // The reply has arrived, or never will.
                _ => return Some(sleeper),
            }
            None
        });
        // The sleeper of an earlier wait that timed out. It is not dropped under the lock.
        drop(before);
        waited
    }

    /// Returns `true` while the reply of a call may still arrive.
    fn waits(&self, number: u32) -> bool {
        matches!(self.table().calls.get(&number), Some(CallState::Sent | CallState::Waits(_)))
    }

    fn enter(&self, has_place: bool) -> Result<u32, NoReply> {
        let mut table = self.table();
        if table.closed.is_some() {
            return Err(table.why());
        }
        // A call that was given up long ago may still have its number.
        loop {
            table.last = table.last.wrapping_add(1);
            let number = table.last;
            if let Entry::Vacant(free) = table.calls.entry(number) {
                free.insert(CallState::Sent);
                if !has_place {
                    table.placeless.insert(number);
                }
                return Ok(number);
            }
        }
    }

    fn came(&self, frame: Frame) -> Result<(), FrameError> {
        let mut table = self.table();
        if frame.head.kind == FrameKind::Farewell {
            table.farewell = Some(frame.body);
            return Ok(());
        }
        let number = frame.head.call;
        let (mut sleeper, mut late) = (None, None);
        match table.calls.remove(&number) {
            // A call that was given up before all of it was sent, and that the server refused.
            None if number.wrapping_sub(1) < table.last => return Ok(()),
            None | Some(CallState::Done(_)) => {
                return Err(FrameError("a reply to a call that was not made"));
            }
            Some(CallState::Late(takes)) => late = Some((takes, frame)),
            Some(call) => {
                table.calls.insert(number, CallState::Done(frame));
                if let CallState::Waits(waits) = call {
                    sleeper = Some(waits);
                }
            }
        }
        // No thread is woken, and no frame is passed on, under the lock.
        drop(table);
        self.leave_place(number);
        if let Some(sleeper) = sleeper {
            // A caller that has just timed out takes the reply all the same.
            sleeper.wake();
        }
        late.into_iter().for_each(|(late, frame)| late(frame));
        Ok(())
    }

    /// Closes the connection.
    ///
    /// All waiting callers return with the reason, and so do all later calls. The first reason
    /// stays.
    pub fn close(&self, reason: Closed) {
        let mut table = self.table();
        table.closed.get_or_insert(reason);
        let queue = std::mem::take(&mut table.queue);
        let calls = std::mem::take(&mut table.calls);
        // Replies that have arrived are still taken.
        let (done, rest): (HashMap<_, _>, HashMap<_, _>) =
            calls.into_iter().partition(|(_, call)| matches!(call, CallState::Done(_)));
        table.calls = done;
        drop(table);
        self.wire.hang_up();
        for sleeper in queue {
            sleeper.wake();
        }
        for (_, call) in rest {
            if let CallState::Waits(sleeper) = call {
                sleeper.wake();
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, PendingCalls> {
        self.table.0.lock()
    }
}

impl PendingTable {
    /// Returns `true` if a call has no reply yet, whether or not its caller still waits.
    fn awaits(&self, number: u32) -> bool {
        let table = self.0.lock();
        table.calls.get(&number).is_some_and(|call| !matches!(call, CallState::Done(_)))
    }
}

impl PendingCalls {
    fn try_take(&mut self) -> bool {
        let free = self.taken < self.places;
        self.taken += usize::from(free);
        free
    }

    fn why(&self) -> NoReply {
        NoReply::Closed(self.closed.clone().unwrap_or(Closed::Here))
    }
}

impl Drop for NetworkCaller {
    fn drop(&mut self) {
        self.wire.hang_up();
    }
}
