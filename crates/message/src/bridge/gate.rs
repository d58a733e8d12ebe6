//! Where members on other hosts connect: to become members, to open a pair, or to go on with one.

use super::inward::PairLost;
use super::pair::FarPair;
use crate::Rank;
use crate::forming::{Asks, MemberCandidate};
use crate::member::{Member, Roster};
use crate::place::{MachineKey, MemberPlace};
use crate::wire::{GroupId, Listed, ProcessKey, VERSION, Welcome, pack, unpack};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use upcall_directory::names;
use upcall_net::identity::{Fingerprint, HostStore, IdentityError};
use upcall_net::record::SessionKey;
use upcall_net::{
    Admit, BufferOwner, ConnectionOwner, Frame, FrameBody, FrameError, FrameHeader, FrameKind,
    HostLink, LinkTerms, Lost, NetworkListener, OutMessage, Protection, ProvedClient, Resumed,
    TakeOver, Wanted, Wire, WireTerms, own_store,
};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::lock::KernelMutex;
use upcall_sched::post::Post;

/// Maximum number of connections of one owner: more than a group has members.
const MOST_ADMITTED: usize = 2 * crate::MOST_MEMBERS;

/// Maximum length of an answer, or of the reason why there is none, in bytes.
const MOST_SAID: usize = 16 << 10;

/// Maximum length of a request, in bytes.
const MOST_ASKED: usize = 1 << 20;

/// A request on a new connection.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FarRequest {
    /// To the leader: asks to become a member.
    Apply {
        version: u32,
        group: String,
        size: u32,
        rank: Option<u32>,
        kinds: Vec<(String, String)>,
        process: ProcessKey,
        socket: String,
        machine: MachineKey,
        /// The port at which it listens, at the address from which it has connected.
        port: u16,
    },
    /// To another member: opens the pair.
    Open {
        version: u32,
        group: GroupId,
        from: u32,
        to: u32,
        /// Maximum length of a message that the client takes, in bytes.
        most: u64,
    },
}

/// The answer to [`FarRequest::Open`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum PairReply {
    Yes {
        /// Maximum length of a message that the server takes, in bytes.
        most: u64,
    },
    No(String),
}

/// What a group agrees on about members on other hosts.
#[derive(Clone, Debug)]
pub(super) struct BridgeTerms {
    /// The name of the group.
    pub(super) name: String,
    /// Time for which a pair goes on after a cut.
    pub(super) patience: Duration,
    /// Time after which a host that gives no sign of life is cut off.
    pub(super) lost_after: Duration,
    /// Maximum length of a message, in bytes.
    pub(super) most: usize,
    /// For tests; see [`MachineKey`].
    pub(super) apart: u64,
}

/// An admitted connection, counted while this exists.
struct AdmittedWire {
    gate: Arc<BridgeGate>,
    owner: ConnectionOwner,
}

impl Drop for AdmittedWire {
    fn drop(&mut self) {
        let mut wires = self.gate.wires.lock();
        if let Entry::Occupied(mut count) = wires.counts.entry(self.owner.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// All pairs of a member, by rank.
pub(super) type Pairs = Arc<[Option<Arc<FarPair>>]>;

/// See the module.
pub(crate) struct BridgeGate {
    pub(super) terms: BridgeTerms,
    member: Weak<Member>,
    /// Where the bridge's thread waits.
    post: Post,
    news: AtomicBool,
    /// The identity of this host, unless all members are on this machine.
    store: Option<Arc<HostStore>>,
    state: KernelMutex<GateState>,
    wires: KernelMutex<AdmittedWires>,
}

#[derive(Default)]
struct GateState {
    listener: Option<NetworkListener>,
    /// Pairs that were opened before this member knew the others.
    early: Vec<EarlyPair>,
    formed: Option<(Arc<Roster>, Pairs)>,
    is_shut: bool,
}

struct EarlyPair {
    wire: Arc<Wire>,
    slot: PairSlot,
    call: u32,
    group: GroupId,
    from: u32,
    to: u32,
    most: u64,
}

/// Where the reader of a connection finds its pair, once that is known. `None` within: the
/// connection has ended before.
type PairSlot = Arc<OnceLock<Option<Arc<FarPair>>>>;

/// The admitted connections.
#[derive(Default)]
struct AdmittedWires {
    counts: HashMap<ConnectionOwner, usize>,
    /// All of them, to end them.
    all: Vec<Weak<Wire>>,
}

impl BridgeGate {
    pub(super) fn new(
        member: &Arc<Member>,
        terms: BridgeTerms,
        post: Post,
        store: Option<Arc<HostStore>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            terms,
            member: Arc::downgrade(member),
            post,
            news: AtomicBool::new(false),
            store,
            state: KernelMutex::default(),
            wires: KernelMutex::default(),
        })
    }

    /// Listens at an address, and admits members from now on.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn open(self: &Arc<Self>, at: SocketAddr) -> std::io::Result<SocketAddr> {
        let listener = NetworkListener::new(at)?;
        let address = listener.address();
        let terms = LinkTerms { window: u16::MAX, patience: self.terms.patience };
        listener.open(terms, BridgeAdmission(self.clone()))?;
        self.state.lock().listener = Some(listener);
        Ok(address)
    }

    /// Admits no further connection.
    pub(super) fn shut(&self) {
        let mut state = self.state.lock();
        state.is_shut = true;
        let (listener, early) = (state.listener.take(), std::mem::take(&mut state.early));
        // The pairs own the gate, too.
        let formed = state.formed.take();
        drop(state);
        drop((listener, formed, early));
        let wires = std::mem::take(&mut self.wires.lock().all);
        wires.iter().filter_map(Weak::upgrade).for_each(|wire| wire.hang_up());
    }

    /// Counts a connection of this owner. `None`: it has too many.
    fn count(self: &Arc<Self>, owner: ConnectionOwner) -> Option<AdmittedWire> {
        let mut wires = self.wires.lock();
        let count = wires.counts.entry(owner.clone()).or_default();
        if *count >= MOST_ADMITTED {
            return None;
        }
        *count += 1;
        Some(AdmittedWire { gate: self.clone(), owner })
    }

    /// Keeps a connection in view until the gate is shut.
    fn admits(&self, wire: &Arc<Wire>) {
        let mut wires = self.wires.lock();
        wires.all.retain(|wire| wire.strong_count() > 0);
        wires.all.push(Arc::downgrade(wire));
        drop(wires);
        if self.state.lock().is_shut {
            wire.hang_up();
        }
    }

    /// The others are known from now on.
    pub(super) fn formed(&self, roster: &Arc<Roster>, pairs: &Pairs) {
        let mut state = self.state.lock();
        state.formed = Some((roster.clone(), pairs.clone()));
        let early = std::mem::take(&mut state.early);
        drop(state);
        early.into_iter().for_each(|early| self.open_pair(early, roster, pairs));
    }

    /// The identity of the host at the other end of a connection, in hexadecimal digits.
    ///
    /// A connection in the clear is within this machine, so it is this host's.
    pub(super) fn identity_of(&self, wire: &Wire) -> Option<String> {
        let proved = wire.identity().map(|identity| identity.hex());
        proved.or_else(|| self.own_identity(wire.own().ok()?))
    }

    /// The identity that a client has proved.
    fn proved(&self, client: &ProvedClient) -> Result<Option<Fingerprint>, IdentityError> {
        let Some(store) = &self.store else { return Ok(None) };
        let credentials = store.credentials()?;
        Ok(match client {
            ProvedClient::Host(name) => {
                credentials.trust().host(name).map(|host| host.certificate.fingerprint())
            }
            _ => Some(credentials.fingerprint()),
        })
    }

    /// How the host at a place is proved. In the clear, only if it is this one.
    pub(super) fn protection(&self, place: &MemberPlace) -> Result<Protection, String> {
        let Some(store) = &self.store else { return Ok(Protection::Clear) };
        let Some(identity) = place.identity() else { return Ok(Protection::Clear) };
        let credentials = store.credentials().map_err(|error| error.to_string())?;
        if identity == credentials.fingerprint() {
            return Ok(Protection::Clear);
        }
        let host = credentials.trust().host_of(identity).map(|host| host.name.clone());
        let host = host.ok_or_else(|| {
            format!("its host, {identity}, is not trusted here: see `upcall host trust --help`")
        })?;
        Ok(Protection::Host(store.clone(), credentials, host))
    }

    /// The identity of this host, for members that reach it at `address`.
    pub(super) fn own_identity(&self, address: SocketAddr) -> Option<String> {
        if address.ip().to_canonical().is_loopback() {
            return None;
        }
        let credentials = self.store.as_ref()?.credentials().ok()?;
        Some(credentials.fingerprint().hex())
    }

    /// Time for which a pair goes on after a cut.
    pub(super) fn patience(&self) -> Duration {
        self.terms.patience
    }

    /// How a connection is kept.
    pub(super) fn wire_terms(&self) -> WireTerms {
        WireTerms { lost_after: self.terms.lost_after, host: None }
    }

    pub(super) fn post(&self) -> &Post {
        &self.post
    }

    /// Wakes the bridge's thread.
    pub(super) fn rouse(&self) {
        self.news.store(true, Ordering::Release);
        self.post.rouse();
    }

    /// Returns `true` if the thread was woken since the last [`take_news`](Self::take_news).
    pub(super) fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire)
    }

    pub(super) fn take_news(&self) {
        self.news.store(false, Ordering::Release);
    }

    fn opens(&self, early: EarlyPair) {
        let mut state = self.state.lock();
        match &state.formed {
            Some((roster, pairs)) => {
                let (roster, pairs) = (roster.clone(), pairs.clone());
                drop(state);
                self.open_pair(early, &roster, &pairs);
            }
            None if state.early.len() < crate::MOST_MEMBERS && !state.is_shut => {
                state.early.push(early);
            }
            None => early.wire.hang_up(),
        }
    }

    fn open_pair(&self, early: EarlyPair, roster: &Roster, pairs: &Pairs) {
        let EarlyPair { wire, slot, call, group, from, to, most } = early;
        let identity = self.identity_of(&wire);
        let opened =
            check_open(identity.as_deref(), (group, from, to), roster, pairs).and_then(|pair| {
                // The reader has it before the answer, after which messages may come.
                slot.set(Some(pair.clone())).map_err(|_| "the connection has ended".to_string())?;
                pair.takes(most);
                let yes = answer_of(call, &PairReply::Yes { most: self.terms.most as u64 });
                pair.opened(&wire, yes.ok_or("no answer can be written")?)
            });
        if let Err(why) = opened {
            if let Some(no) = answer_of(call, &PairReply::No(why)) {
                drop(wire.try_send(0, no));
            }
            wire.hang_up();
        }
    }
}

/// Finds the pair that a connection may open.
fn check_open(
    identity: Option<&str>,
    (group, from, to): (GroupId, u32, u32),
    roster: &Roster,
    pairs: &Pairs,
) -> Result<Arc<FarPair>, String> {
    if group != roster.group {
        return Err("the pair is of another group".into());
    }
    if to as usize != roster.rank {
        return Err(format!("the pair is for member {to}, and this is member {}", roster.rank));
    }
    let pair = pairs.get(from as usize).and_then(Option::as_ref);
    let pair = pair.ok_or_else(|| format!("there is no member {from} on another host"))?;
    if pair.place.identity.as_deref() != identity {
        return Err(format!("member {from} is on another host than the one that was proved"));
    }
    Ok(pair.clone())
}

/// The answer to a request.
fn answer_of(call: u32, reply: &impl Serialize) -> Option<OutMessage> {
    let head = FrameHeader { call, ..FrameHeader::of(FrameKind::Answer) };
    let body = FrameBody::from(&*pack(reply).ok()?);
    Some(OutMessage { head, body, owner: None })
}

fn answer(wire: &Wire, call: u32, reply: &impl Serialize) {
    // A connection that has ended needs no answer.
    drop(answer_of(call, reply).and_then(|answer| wire.try_send(0, answer)));
}

/// Decides which connections are admitted.
struct BridgeAdmission(Arc<BridgeGate>);

fn farewell(why: &str) -> FrameBody {
    FrameBody::from(why.as_bytes())
}

impl Admit for BridgeAdmission {
    fn store(&self) -> Option<Arc<HostStore>> {
        self.0.store.clone()
    }

    fn lost_after(&self) -> Duration {
        self.0.terms.lost_after
    }

    fn judge(&mut self, client: &ProvedClient) -> Result<(), FrameBody> {
        let own = upcall_os::socket::own_user();
        match client {
            ProvedClient::Host(_) => Ok(()),
            ProvedClient::Here(Some(user)) if *user == own => Ok(()),
            ProvedClient::Here(_) => Err(farewell("only processes of this user are admitted")),
            ProvedClient::Stranger(stranger) => Err(farewell(&stranger.to_string())),
            ProvedClient::Nobody => Err(farewell("connections from other hosts need TLS")),
        }
    }

    fn admit(
        &mut self,
        account: ConnectionOwner,
        _client: ProvedClient,
    ) -> Result<Box<dyn TakeOver>, FrameBody> {
        let counted = self.0.count(account).ok_or_else(|| farewell("too many connections"))?;
        Ok(Box::new(NewConnection(counted)))
    }

    fn resume(&mut self, session: SessionKey, client: &ProvedClient) -> Resumed {
        let Some((_, pairs)) = self.0.state.lock().formed.clone() else { return Resumed::Unknown };
        let pair = pairs.iter().flatten().find(|pair| pair.has_session(session));
        let Some(pair) = pair else { return Resumed::Unknown };
        let Ok(identity) = self.0.proved(client) else { return Resumed::NotNow };
        if pair.place.identity.is_some() && identity != pair.place.identity() {
            return Resumed::Unknown;
        }
        match pair.resume(session) {
            Some(link) => Resumed::Yes(link, Box::new(ResumedPair(Some(pair.clone())))),
            None => Resumed::NotNow,
        }
    }
}

/// A connection that is admitted, and has not asked yet.
struct NewConnection(AdmittedWire);

impl TakeOver for NewConnection {
    fn take_over(self: Box<Self>, wire: Arc<Wire>, first: &[u8]) {
        let gate = self.0.gate.clone();
        gate.admits(&wire);
        let slot = PairSlot::default();
        let counted = Some(self.0);
        let reader =
            FarReader { gate, wire: wire.clone(), slot, guest: None, said: Said::Nothing, counted };
        // Without a thread for it the connection ends, and its client connects again.
        let _ = wire.start(first, Box::new(reader));
    }
}

/// The connection of a pair that goes on. If it is not taken over, the pair is over.
struct ResumedPair(Option<Arc<FarPair>>);

impl TakeOver for ResumedPair {
    fn take_over(mut self: Box<Self>, wire: Arc<Wire>, first: &[u8]) {
        let Some(pair) = self.0.take() else { return };
        let reader = FarReader::of_pair(&pair, &wire);
        if wire.start(first, Box::new(reader)).is_ok() {
            pair.reopened(&wire);
        }
    }
}

impl Drop for ResumedPair {
    fn drop(&mut self) {
        if let Some(pair) = self.0.take() {
            pair.over(PairLost::Broke("it wants bytes again that it has acknowledged".into()));
        }
    }
}

/// An applicant on a connection.
struct FarGuest {
    wire: Arc<Wire>,
    call: u32,
}

impl MemberCandidate for FarGuest {
    fn pid(&self) -> u32 {
        0
    }

    fn lives(&self) -> bool {
        true
    }

    fn shut_down(&self) {
        self.wire.hang_up();
    }

    fn welcome(&self, welcome: &Welcome) {
        answer(&self.wire, self.call, welcome);
    }
}

/// Reads a connection.
pub(super) struct FarReader {
    gate: Arc<BridgeGate>,
    wire: Arc<Wire>,
    slot: PairSlot,
    guest: Option<Arc<dyn MemberCandidate>>,
    said: Said,
    /// Counts the connection, if this side has admitted it.
    #[expect(dead_code, reason = "held for its end")]
    counted: Option<AdmittedWire>,
}

/// What the other side has said beside messages. It says one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    /// It has asked, or answered.
    Something,
    /// It has also given a reason for the end of the connection.
    Farewell,
}

impl FarReader {
    /// The reader of a pair's connection.
    pub(super) fn of_pair(pair: &Arc<FarPair>, wire: &Arc<Wire>) -> Self {
        let slot = PairSlot::default();
        let _ = slot.set(Some(pair.clone()));
        let (gate, wire) = (pair.gate.clone(), wire.clone());
        Self { gate, wire, slot, guest: None, said: Said::Nothing, counted: None }
    }

    fn pair(&self) -> Option<&Arc<FarPair>> {
        self.slot.get()?.as_ref()
    }

    fn asked(&mut self, frame: &Frame) -> Result<(), FrameError> {
        let bytes = frame.body.to_vec();
        let request = unpack(&bytes).map_err(|_| FrameError("a request that cannot be read"))?;
        match request {
            FarRequest::Open { version: VERSION, group, from, to, most } => {
                let (wire, slot, call) = (self.wire.clone(), self.slot.clone(), frame.head.call);
                self.gate.opens(EarlyPair { wire, slot, call, group, from, to, most });
            }
            FarRequest::Apply { version: VERSION, .. } => self.applies(frame.head.call, request),
            FarRequest::Open { version, .. } | FarRequest::Apply { version, .. } => {
                let why = format!(
                    "it speaks version {VERSION} of the protocol, and this process version \
                     {version}"
                );
                answer(&self.wire, frame.head.call, &Welcome::Refused(why));
            }
        }
        Ok(())
    }

    /// Handles an application. If it cannot be accepted now, its answer is the end of the
    /// connection: its applicant looks again.
    fn applies(&mut self, call: u32, request: FarRequest) {
        let FarRequest::Apply { group, size, rank, kinds, process, socket, machine, port, .. } =
            request
        else {
            return;
        };
        let Some(member) = self.gate.member.upgrade() else { return self.wire.hang_up() };
        let guest: Arc<dyn MemberCandidate> = Arc::new(FarGuest { wire: self.wire.clone(), call });
        let refuses = |why| {
            member.account.refuses();
            guest.welcome(&Welcome::Refused(why));
        };
        if group != self.gate.terms.name {
            let own = &self.gate.terms.name;
            return refuses(format!("the group at this address is {own:?}, not {group:?}"));
        }
        if !names::is_member(&socket) {
            return refuses(format!("{socket:?} is no socket of a member"));
        }
        // Members on this machine connect in the clear. Another host that gives the key of this
        // machine would be reached through memory.
        let own = MachineKey::read(member.folder(), self.gate.terms.apart);
        if Some(machine) == own && self.wire.identity().is_some() {
            return refuses("it gives the key of a machine that is not its own".into());
        }
        let address = SocketAddr::new(self.wire.peer().ip(), port);
        let identity = self.gate.identity_of(&self.wire);
        let place = Some(MemberPlace { machine, address, identity });
        let asks = Asks { size, rank, kinds: &kinds };
        match member.forming.apply(&guest, asks, Listed { process, socket, place }) {
            Ok(()) => self.guest = Some(guest),
            Err(Some(why)) => refuses(why),
            Err(None) => self.wire.hang_up(),
        }
    }
}

impl upcall_net::Attend for FarReader {
    fn begun(&mut self, head: &FrameHeader, _unsent: usize) -> Result<Wanted, FrameError> {
        match (self.slot.get(), head.kind, self.said) {
            // A pair that has not asked drops it.
            (Some(Some(_)), FrameKind::Answer, Said::Nothing) if head.len <= MOST_SAID => {
                self.said = Said::Something;
            }
            (_, FrameKind::Farewell, Said::Nothing | Said::Something) if head.len <= MOST_SAID => {
                self.said = Said::Farewell;
            }
            (None, FrameKind::Ask, Said::Nothing) if head.len <= MOST_ASKED => {
                self.said = Said::Something;
            }
            (Some(Some(pair)), ..) => return pair.begun(head),
            _ => return Err(FrameError("a message that has no place here")),
        }
        Ok(Wanted::Yes(None))
    }

    fn came(&mut self, frame: Frame, _owner: Option<BufferOwner>) -> Result<(), FrameError> {
        match (self.pair(), frame.head.kind) {
            (Some(pair), FrameKind::Answer) => pair.answered(&frame.body),
            (Some(pair), FrameKind::Farewell) => pair.parted(&frame.body),
            (Some(pair), _) => pair.came(frame)?,
            (None, FrameKind::Ask) => self.asked(&frame)?,
            (None, _) => return Err(FrameError("an answer to no request")),
        }
        Ok(())
    }

    fn given_up(&mut self, _head: FrameHeader) -> Result<(), FrameError> {
        Err(FrameError("messages that do not go on"))
    }

    fn ended(self: Box<Self>, why: Lost) {
        match self.ends() {
            Some(pair) => pair.ended(&why),
            None => self.lost_guest(),
        }
    }

    fn cut(self: Box<Self>, why: Lost, link: HostLink) {
        match self.ends() {
            Some(pair) => pair.cut(&why, link),
            None => self.lost_guest(),
        }
    }
}

impl FarReader {
    /// The connection has ended. From now on it gets no pair.
    fn ends(&self) -> Option<&Arc<FarPair>> {
        self.slot.get_or_init(|| None).as_ref()
    }

    fn lost_guest(&self) {
        if let (Some(guest), Some(member)) = (&self.guest, self.gate.member.upgrade()) {
            member.forming.lost(&**guest, None);
        }
    }
}

/// The identity of this host, which members at `at` need unless all are on this machine.
///
/// # Errors
/// There is none, and the address is not one of this machine only.
pub(super) fn identity(at: SocketAddr) -> Result<Option<Arc<HostStore>>, String> {
    let found = own_store().and_then(|store| store.credentials().map(|_| store.clone()));
    match found {
        Ok(store) => Ok(Some(store)),
        Err(_) if at.ip().to_canonical().is_loopback() => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// A request to open a pair.
pub(super) fn open_request(roster: &Roster, to: Rank, most: usize) -> Option<OutMessage> {
    let (from, to, most) = (roster.rank as u32, to as u32, most as u64);
    let request = FarRequest::Open { version: VERSION, group: roster.group, from, to, most };
    let head = FrameHeader { call: 1, ..FrameHeader::of(FrameKind::Ask) };
    let body = FrameBody::from(&*pack(&request).ok()?);
    Some(OutMessage { head, body, owner: None })
}
