//! One client on another machine as its server sees it: its connection, its bindings, and its
//! calls.
//!
//! It corresponds to [`crate::peer`], which is for clients that share memory. Everything that
//! arrives is untrusted, and a message that breaks the protocol closes the connection. When the
//! connection ends, for whichever reason, the bindings are revoked and the client's objects are
//! dropped. Calls that run go on to their end, and their replies are dropped.

use super::WINDOW;
use crate::bound::{ClientBinding, ServerBinding};
use crate::endpoint::Endpoint;
use crate::interface::{WantedProcedure, plan};
use crate::pace::Pace;
use crate::reaper::Reaper;
use crate::server::answers::unkept;
use crate::server::network::{serve_guest, text_block};
use crate::server::{RELEASE, outcome};
use crate::session::Session;
use crate::wire::{self, BindRefusal, CarriedCounts, CarriedReading, ClientRequest, ServerReply};
use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Weak};
use std::time::Instant;
use upcall_net::frame::MOST_ANSWER;
use upcall_net::{
    Admitted, Attend, BufferOwner, Frame, FrameBody, FrameError, FrameHeader, FrameKind, Lost,
    Wanted, Wire,
};
use upcall_os::atomic::{AtomicBool, AtomicUsize, Ordering};
use upcall_os::clock;
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_sched::quota::{Holding, QuotaAccount, QuotaKind as Held};

/// Maximum length of a request that is not a call, in bytes: as on a control connection.
const MOST_ASKED: usize = 160 << 10;
/// Maximum number of bindings of one connection.
const MOST_BINDINGS: usize = 1024;

/// What the server knows about a client.
#[derive(Clone, Debug)]
pub(crate) struct ClientIdentity {
    /// The client's user, if the kernel reports it.
    pub(crate) uid: Option<u32>,
    /// The host that it has proved to be.
    pub(crate) host: Option<Arc<str>>,
}

/// One client; see the module.
pub(crate) struct NetworkClient {
    wire: Arc<Wire>,
    identity: ClientIdentity,
    endpoint: Weak<Endpoint>,
    keeper: Arc<Reaper>,
    account: Arc<QuotaAccount>,
    bindings: KernelMutex<HashMap<u32, Arc<ServerBinding>>>,
    /// The calls that are not answered, and whether their callers have given them up.
    calls: KernelMutex<HashMap<u32, Arc<AtomicBool>>>,
    /// Number of calls that have arrived and are not answered.
    under_way: AtomicUsize,
    ended: AtomicBool,
    /// The charge for the connection's descriptor.
    _held: Holding,
    _counted: Admitted,
}

/// Passes requests that have arrived to the client's part of the server.
struct RequestReader(Arc<NetworkClient>);

/// A client whose connection is charged to its account.
pub(crate) struct Charged {
    identity: ClientIdentity,
    account: Arc<QuotaAccount>,
    held: Holding,
}

impl Charged {
    /// Charges a client for its connection.
    pub(crate) fn new(identity: ClientIdentity, endpoint: &Endpoint) -> Result<Self, BindRefusal> {
        let account = endpoint.ledger().account(None, identity.uid);
        let held = account
            .hold(Held::Descriptors, 1)
            .map_err(|over| BindRefusal::Quota(over.to_string()))?;
        Ok(Self { identity, account, held })
    }
}

impl NetworkClient {
    /// Admits a client.
    pub(crate) fn new(
        wire: Arc<Wire>,
        charged: Charged,
        counted: Admitted,
        endpoint: &Arc<Endpoint>,
    ) -> Arc<Self> {
        let Charged { identity, account, held } = charged;
        Arc::new(Self {
            wire,
            identity,
            endpoint: Arc::downgrade(endpoint),
            keeper: endpoint.keeper().clone(),
            account,
            bindings: KernelMutex::default(),
            calls: KernelMutex::default(),
            under_way: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            _held: held,
            _counted: counted,
        })
    }

    /// Begins to handle requests. `first` has the bytes that were read already.
    pub(crate) fn attend(self: Arc<Self>, first: &[u8]) {
        let wire = self.wire.clone();
        let started = wire.start(first, Box::new(RequestReader(self.clone())));
        // Without the process's driver there is no connection.
        if started.is_err() {
            self.end();
        }
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<u32, Arc<AtomicBool>>> {
        self.calls.lock()
    }

    fn bindings(&self) -> MutexGuard<'_, HashMap<u32, Arc<ServerBinding>>> {
        self.bindings.lock()
    }

    /// Ends the client: its connection, its bindings, and its objects.
    pub(crate) fn end(&self) {
        if self.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        self.wire.hang_up();
        let bindings = mem::take(&mut *self.bindings());
        bindings.values().for_each(|bound| bound.revoke(&self.keeper));
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.doors().gone(self);
        }
    }

    /// Revokes the bindings for which `which` returns `true`, and returns their number.
    pub(crate) fn revoke_some(&self, which: &mut dyn FnMut(&ClientBinding<'_>) -> bool) -> usize {
        let all: Vec<_> = self.bindings().values().cloned().collect();
        let uid = self.identity.uid.unwrap_or(u32::MAX);
        let stands = all.iter().filter(|bound| !bound.is_revoked());
        let chosen = stands.filter(|bound| {
            let (name, host) = (&*bound.entry.name, self.identity.host.as_deref());
            which(&ClientBinding { name, pid: 0, uid, host, process: None })
        });
        chosen.inspect(|bound| bound.revoke(&self.keeper)).count()
    }

    fn ask(self: &Arc<Self>, frame: &Frame) -> Result<(), FrameError> {
        let unreadable = |_| FrameError("a request that cannot be read");
        let body = frame.body.to_vec();
        let answer = match wire::unpack(&body).map_err(unreadable)? {
            ClientRequest::Bind { name, interface, procedures, .. } => self
                .bind(frame.head.binding, name, interface, &procedures)
                .unwrap_or_else(ServerReply::Refused),
            ClientRequest::List => self.list().unwrap_or_else(ServerReply::Refused),
            ClientRequest::Tallies => return self.count(frame.head),
            ClientRequest::Unbind { .. } => {
                let bound = self.bindings().remove(&frame.head.binding);
                bound.iter().for_each(|bound| bound.revoke(&self.keeper));
                return Ok(());
            }
            _ => return Err(FrameError("a request that has no meaning on the network")),
        };
        self.answer(frame.head, &answer)
    }

    /// Sends an answer. A request of few bytes can have a long answer, so its bytes are charged
    /// like results until the client takes them.
    fn answer(&self, asked: FrameHeader, answer: &ServerReply) -> Result<(), FrameError> {
        let head = FrameHeader { kind: FrameKind::Answer, left: None, ..asked };
        let send = |body: &[u8], kept| {
            self.wire.send(asked.call.into(), head, FrameBody::from(body), kept)
        };
        let body = pack(answer)?;
        let refusal = match self.account.hold(Held::Results, body.len()) {
            _ if body.len() > MOST_ANSWER => BindRefusal::Resource {
                what: "an answer".into(),
                code: rustix::io::Errno::FBIG.raw_os_error(),
            },
            Ok(kept) => {
                let kept: BufferOwner = Box::new(kept);
                send(&body, Some(kept));
                return Ok(());
            }
            Err(over) => BindRefusal::Quota(over.to_string()),
        };
        send(&pack(&ServerReply::Refused(refusal))?, None);
        Ok(())
    }

    /// Lists the exports. Every admitted client may bind them.
    fn list(&self) -> Result<ServerReply, BindRefusal> {
        let endpoint = self
            .endpoint
            .upgrade()
            .ok_or_else(|| BindRefusal::Protocol("the server is ending".into()))?;
        Ok(ServerReply::Listed(endpoint.exports().list()))
    }

    /// Takes a question for the counts of the server. It is answered where calls run, and counts
    /// as a call until then, because reading the counts of many bindings takes long.
    fn count(self: &Arc<Self>, asked: FrameHeader) -> Result<(), FrameError> {
        if self.under_way.fetch_add(1, Ordering::SeqCst) >= WINDOW.into() {
            self.under_way.fetch_sub(1, Ordering::SeqCst);
            return Err(FrameError("more questions than there may be"));
        }
        let question = CountsQuestion { guest: self.clone(), asked, answer: None };
        // Without a server the question is dropped, which answers it.
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.doors().take(|| question.run(), endpoint.processors());
        }
        Ok(())
    }

    fn bind(
        &self,
        id: u32,
        name: &str,
        interface: &str,
        wanted: &[WantedProcedure<'_>],
    ) -> Result<ServerReply, BindRefusal> {
        let endpoint = self
            .endpoint
            .upgrade()
            .ok_or_else(|| BindRefusal::Protocol("the server is ending".into()))?;
        let (entry, procedures) = endpoint.exports().bind(name, interface, wanted)?;
        let mut bindings = self.bindings();
        if bindings.len() >= MOST_BINDINGS {
            return Err(BindRefusal::Quota(format!(
                "this connection has {MOST_BINDINGS} bindings already"
            )));
        }
        if bindings.contains_key(&id) {
            return Err(BindRefusal::Protocol("a binding number used twice".into()));
        }
        let tally = endpoint.tallies().open_far(
            name,
            interface,
            self.wire.peer(),
            clock::stamp(Instant::now()),
        );
        let bound = Arc::new(ServerBinding::new(
            entry,
            tally,
            Session::new(self.account.clone()),
            plan(&[]),
            None,
        ));
        bindings.insert(id, bound.clone());
        drop(bindings);
        // A stopping server has ended the client during this.
        if self.ended.load(Ordering::SeqCst) {
            bound.revoke(&self.keeper);
        }
        Ok(ServerReply::Bound { procedures })
    }

    fn call(self: &Arc<Self>, frame: Frame, room: Option<BufferOwner>) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let ends = frame.head.left.and_then(|left| Instant::now().checked_add(left));
        let call = frame.head.call;
        let bound = self.bindings().get(&frame.head.binding).cloned();
        let bound = bound.filter(|bound| !bound.is_revoked());
        match (bound, room, self.endpoint.upgrade()) {
            (_, None, _) => {
                self.reply(call, outcome::REFUSED, text_block("too many bytes in the server"))
            }
            (Some(bound), Some(room), Some(endpoint)) => {
                let given_up = self.calls().entry(call).or_default().clone();
                let job = NetworkCall {
                    given_up,
                    guest: self.clone(),
                    bound,
                    frame,
                    ends,
                    room: Some(room),
                    stage: Stage::Waits,
                };
                endpoint.doors().take(|| job.run(), endpoint.processors());
            }
            _ => self.reply(call, outcome::REVOKED, FrameBody::default()),
        }
    }

    /// The caller has given a call up: if it has not begun, it need not.
    fn cancel(&self, call: u32) {
        if let Some(given_up) = self.calls().get(&call) {
            given_up.store(true, Ordering::SeqCst);
        }
    }

    /// Replies to a call. The call's place is free before the client can know.
    fn reply(&self, call: u32, outcome: u16, results: FrameBody) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        self.calls().remove(&call);
        let head = FrameHeader { call, number: outcome, ..FrameHeader::of(FrameKind::Reply) };
        // The server keeps results until the client takes them. An error in place of results is
        // short.
        let kept = if outcome == outcome::DONE && results.len > 0 {
            self.account.hold(Held::Results, results.len).map(Some)
        } else {
            Ok(None)
        };
        let (number, why) = match kept {
            Ok(kept) => {
                let kept = kept.map(|kept| Box::new(kept) as BufferOwner);
                return self.wire.send(call.into(), head, results, kept);
            }
            Err(over) => (outcome::RESULT_QUOTA, unkept(results.len, over)),
        };
        free(results);
        self.wire.send(call.into(), FrameHeader { number, ..head }, numbers(why), None);
    }
}

/// Frees the block of a call over the network, as [`Pace`] does.
fn free(mut block: FrameBody) {
    Pace::new(true).free(mem::take(&mut block.words));
}

fn pack(answer: &ServerReply) -> Result<Vec<u8>, FrameError> {
    wire::pack(answer).map_err(|_| FrameError("an answer that cannot be written"))
}

impl Attend for RequestReader {
    fn begun(&mut self, head: &FrameHeader, unsent: usize) -> Result<Wanted, FrameError> {
        let guest = &self.0;
        // A client that keeps to the protocol never has more requests whose answers it has not
        // read.
        if unsent > WINDOW.into() {
            return Err(FrameError("answers that are not read"));
        }
        match head.kind {
            FrameKind::Ask if head.len <= MOST_ASKED => {
                let room = guest.account.hold(Held::Results, head.len);
                let room = room.map_err(|_| FrameError("requests that exceed a quota"))?;
                Ok(Wanted::Yes(Some(Box::new(room))))
            }
            FrameKind::Ask => Err(FrameError("a request that is longer than requests are")),
            FrameKind::Call => {
                if guest.under_way.load(Ordering::SeqCst) >= WINDOW.into() {
                    return Err(FrameError("more calls under way than there may be"));
                }
                Ok(match guest.account.hold(Held::Results, head.len) {
                    Ok(room) => Wanted::Yes(Some(Box::new(room))),
                    Err(_) => Wanted::No,
                })
            }
            FrameKind::Cancel => Ok(Wanted::No),
            FrameKind::Answer | FrameKind::Reply | FrameKind::Farewell => {
                Err(FrameError("an answer from a client"))
            }
            _ => Err(FrameError("a message that is neither a request nor a call")),
        }
    }

    fn came(&mut self, frame: Frame, owner: Option<BufferOwner>) -> Result<(), FrameError> {
        match frame.head.kind {
            FrameKind::Ask => self.0.ask(&frame)?,
            FrameKind::Cancel => self.0.cancel(frame.head.call),
            _ => self.0.call(frame, owner),
        }
        Ok(())
    }

    /// The call has not run, and its charge is gone with its bytes.
    fn given_up(&mut self, _head: FrameHeader) -> Result<(), FrameError> {
        Ok(())
    }

    /// The client has proved its host until now, so it learns why that is refused.
    fn farewell(&self, why: &Lost) -> Option<FrameBody> {
        let Lost::Untrusted(why) = why else { return None };
        Some(super::doors::farewell(&BindRefusal::Denied(why.clone())))
    }

    fn ended(self: Box<Self>, _why: Lost) {
        self.0.end();
    }
}

/// A question for the counts of the server. It is answered when it is dropped.
struct CountsQuestion {
    guest: Arc<NetworkClient>,
    asked: FrameHeader,
    answer: Option<ServerReply>,
}

impl CountsQuestion {
    fn run(mut self) {
        if self.guest.ended.load(Ordering::SeqCst) {
            return;
        }
        self.answer = self.guest.endpoint.upgrade().map(|endpoint| {
            let tallies = endpoint.tallies();
            ServerReply::Counted(CarriedCounts {
                uncounted: tallies.uncounted(),
                holdings: tallies.holdings().map(|held| held.read()).unwrap_or_default(),
                bindings: tallies.read().into_iter().map(CarriedReading::from).collect(),
            })
        });
    }
}

impl Drop for CountsQuestion {
    fn drop(&mut self) {
        let ending = || BindRefusal::Protocol("the server is ending, or lacks memory".into());
        let answer = self.answer.take().unwrap_or_else(|| ServerReply::Refused(ending()));
        // Its place is free before the client can know.
        self.guest.under_way.fetch_sub(1, Ordering::SeqCst);
        if self.guest.answer(self.asked, &answer).is_err() {
            self.guest.wire.hang_up();
        }
    }
}

/// A call that has arrived, to be run on a thread of the server. It is answered however it ends.
pub(crate) struct NetworkCall {
    guest: Arc<NetworkClient>,
    bound: Arc<ServerBinding>,
    frame: Frame,
    ends: Option<Instant>,
    /// The charge for the bytes of the call.
    room: Option<BufferOwner>,
    /// `true` if the caller has given the call up.
    given_up: Arc<AtomicBool>,
    stage: Stage,
}

/// The numbers that detail an outcome.
fn numbers(why: [u64; 3]) -> FrameBody {
    FrameBody { words: why.to_vec(), len: size_of_val(&why) }
}

/// The stage of a [`NetworkCall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waits,
    Runs,
    Answered,
}

impl NetworkCall {
    pub(crate) fn run(mut self) {
        self.stage = Stage::Runs;
        let (call, number) = (self.frame.head.call, self.frame.head.number);
        let args = mem::take(&mut self.frame.body);
        // A call that was given up before it began has no effect. An object is dropped all the
        // same: its client does not ask again.
        let given_up = number != RELEASE && self.given_up.load(Ordering::SeqCst);
        let given_up = given_up || self.guest.ended.load(Ordering::SeqCst);
        let (outcome, results) = if given_up {
            (outcome::REVOKED, FrameBody::default())
        } else {
            serve_guest(&self.bound, number, &args, self.ends)
        };
        free(args);
        self.room = None;
        self.stage = Stage::Answered;
        self.guest.reply(call, outcome, results);
    }
}

impl Drop for NetworkCall {
    fn drop(&mut self) {
        let call = self.frame.head.call;
        match self.stage {
            // There was no memory to queue the call.
            Stage::Waits => {
                self.room = None;
                self.guest.reply(
                    call,
                    outcome::NO_MEMORY,
                    numbers([self.frame.body.len as u64, 0, 0]),
                );
            }
            Stage::Runs => self.guest.reply(call, outcome::UNANSWERED, FrameBody::default()),
            Stage::Answered => {}
        }
    }
}
