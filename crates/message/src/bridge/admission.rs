//! Where members on other hosts connect: to become members, to open a pair, or to go on with one.

use super::admitted::AdmittedWire;
use super::gate::{BridgeGate, EarlyPair, PairSlot};
use super::inward::PairLost;
use super::late::{FarGuest, FarPetitioner, LateApplicant};
use super::pair::FarPair;
use super::reopening::{self, PairReader};
use super::requests::{
    FarRequest, LateWelcome, NoRequest, PairReply, PetitionReply, RequestStart, answer,
};
use crate::forming::{Asks, MemberCandidate};
use crate::member::MemberEvent;
use crate::petition::{MOST_PETITION, Petition};
use crate::place::{MachineKey, MemberPlace};
use crate::wire::{Listed, VERSION, Welcome};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_directory::names;
use upcall_net::identity::HostStore;
use upcall_net::record::SessionKey;
use upcall_net::{
    Admit, Attend, BufferOwner, ConnectionOwner, Frame, FrameBody, FrameError, FrameHeader,
    FrameKind, HostLink, Lost, NetworkListener, ProvedClient, Resumed, TakeOver, Wanted, Wire,
};

/// Listens at an address, and admits members from now on.
///
/// # Errors
/// The kernel's.
pub(super) fn open(gate: &Arc<BridgeGate>, at: SocketAddr) -> std::io::Result<SocketAddr> {
    let listener = NetworkListener::new(at)?;
    let address = listener.address();
    listener.open(gate.link_terms(), BridgeAdmission(gate.clone()))?;
    gate.listens(listener);
    Ok(address)
}

/// Why a client of this version is refused.
fn other_version(version: u32) -> String {
    format!("it speaks version {VERSION} of the protocol, and this process version {version}")
}

/// Decides which connections are admitted.
struct BridgeAdmission(Arc<BridgeGate>);

fn farewell(why: &str) -> FrameBody {
    FrameBody::from(why.as_bytes())
}

impl Admit for BridgeAdmission {
    fn store(&self) -> Option<Arc<HostStore>> {
        self.0.home.store().cloned()
    }

    fn lost_after(&self) -> Duration {
        self.0.home.terms.lost_after
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
        let admitted = self.0.wires.count(account).map_err(|why| farewell(&why))?;
        Ok(Box::new(NewConnection(self.0.clone(), admitted)))
    }

    fn resume(&mut self, session: SessionKey, client: &ProvedClient) -> Resumed {
        let Some((_, pairs)) = self.0.group() else { return Resumed::Unknown };
        let pair = pairs.iter().flatten().find(|pair| pair.way.has_session(session));
        let Some(pair) = pair.cloned() else { return Resumed::Unknown };
        let Ok(identity) = self.0.home.proved(client) else { return Resumed::NotNow };
        let place = pair.place();
        if place.is_none_or(|place| place.identity.is_some() && identity != place.identity()) {
            return Resumed::Unknown;
        }
        match reopening::resume(&pair, session) {
            Some(link) => Resumed::Yes(link, Box::new(ResumedPair(Some(pair)))),
            None => Resumed::NotNow,
        }
    }

    fn due(&self) -> Option<Instant> {
        self.0.wires.due(Instant::now())
    }

    fn tick(&mut self, now: Instant) {
        self.0.wires.end_overdue(now);
    }
}

/// A connection that is admitted, and has not asked yet.
struct NewConnection(Arc<BridgeGate>, Arc<AdmittedWire>);

impl TakeOver for NewConnection {
    fn take_over(self: Box<Self>, wire: Arc<Wire>, first: &[u8]) {
        let Self(gate, admitted) = *self;
        gate.admits(&wire, &admitted);
        let reader = GuestReader {
            session: wire.session(),
            wire: wire.clone(),
            slot: PairSlot::default(),
            has_asked: false,
            guest: None,
            petitions: false,
            reader: None,
            gate,
            admitted,
        };
        // Without a thread for it the connection ends, and its client connects again.
        let _ = wire.start(first, Box::new(reader));
    }
}

/// The connection of a pair that goes on. If it is not taken over, the pair is over.
struct ResumedPair(Option<Arc<FarPair>>);

impl TakeOver for ResumedPair {
    fn take_over(mut self: Box<Self>, wire: Arc<Wire>, first: &[u8]) {
        let Some(pair) = self.0.take() else { return };
        let reader = PairReader::of(&pair, wire.session());
        if wire.start(first, Box::new(reader)).is_ok() {
            reopening::reopened(&pair, &wire);
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

/// Reads a connection that this side has admitted.
struct GuestReader {
    wire: Arc<Wire>,
    session: SessionKey,
    slot: PairSlot,
    has_asked: bool,
    guest: Option<Arc<FarGuest>>,
    /// The guest has sent a petition.
    petitions: bool,
    /// Reads on once the pair is known.
    reader: Option<PairReader>,
    gate: Arc<BridgeGate>,
    admitted: Arc<AdmittedWire>,
}

impl GuestReader {
    /// The reader of the pair, if that is known.
    fn reader(&mut self) -> Option<&mut PairReader> {
        if self.reader.is_none()
            && let Some(Some(pair)) = self.slot.get()
        {
            self.reader = Some(PairReader::after_request(pair, self.session));
        }
        self.reader.as_mut()
    }

    fn gate(&self) -> &Arc<BridgeGate> {
        &self.gate
    }

    /// The process at the other end, which waits for an answer.
    fn guest(&self, call: u32) -> Arc<FarGuest> {
        Arc::new(FarGuest::new(&self.gate().home, &self.wire, &self.admitted, call))
    }

    fn asked(&mut self, frame: &Frame) -> Result<(), FrameError> {
        let call = frame.head.call;
        match FarRequest::read(&frame.body.to_vec()) {
            Ok(FarRequest::Open { group, from, to, attempt, port, most, pass, .. }) => {
                let (wire, slot) = (self.wire.clone(), self.slot.clone());
                // Also before the members are known: the number of those that wait is bounded.
                self.admitted.has_pair();
                let early =
                    EarlyPair { wire, slot, call, group, from, to, attempt, port, most, pass };
                self.gate().opens(early);
            }
            Ok(request @ FarRequest::Apply { .. }) => self.applies(call, request),
            Ok(request @ FarRequest::ApplyLate { .. }) => self.applies_late(call, request),
            Ok(FarRequest::Petition { bytes, .. }) => self.asks(call, bytes),
            // The answer is of the kind that the client reads.
            Err(NoRequest::Version(RequestStart::Open { version })) => {
                answer(&self.wire, call, &PairReply::No(other_version(version)));
            }
            Err(NoRequest::Version(RequestStart::Apply { version })) => {
                answer(&self.wire, call, &Welcome::Refused(other_version(version)));
            }
            Err(NoRequest::Version(RequestStart::ApplyLate { version })) => {
                answer(&self.wire, call, &LateWelcome::Refused(other_version(version)));
            }
            Err(NoRequest::Version(RequestStart::Petition { version })) => {
                answer(&self.wire, call, &PetitionReply::Refused(other_version(version)));
            }
            Err(NoRequest::Broken) => return Err(FrameError("a request that cannot be read")),
        }
        Ok(())
    }

    /// Handles an application. If it cannot be accepted now, its answer is the end of the
    /// connection: its applicant looks again.
    fn applies(&mut self, call: u32, request: FarRequest) {
        let FarRequest::Apply {
            group,
            size,
            room,
            rank,
            kinds,
            process,
            socket,
            machine,
            port,
            ..
        } = request
        else {
            return;
        };
        let Some(member) = self.gate().home.member.upgrade() else { return self.wire.hang_up() };
        let guest = self.guest(call);
        let refuses = |why| {
            member.account.refuses();
            guest.welcome(&Welcome::Refused(why));
        };
        if group != self.gate().home.terms.name {
            let own = &self.gate().home.terms.name;
            return refuses(format!("the group at this address is {own:?}, not {group:?}"));
        }
        if room as usize != self.gate().home.terms.room {
            let own = self.gate().home.terms.room;
            return refuses(format!(
                "it leaves room for {own} further members, and this process for {room}"
            ));
        }
        if !names::is_member(&socket) {
            return refuses(format!("{socket:?} is no socket of a member"));
        }
        // Members on this machine connect in the clear. Another host that gives the key of this
        // machine would be reached through memory.
        let own = MachineKey::read(member.folder(), self.gate().home.terms.apart);
        if Some(machine) == own && self.wire.identity().is_some() {
            return refuses("it gives the key of a machine that is not its own".into());
        }
        let address = SocketAddr::new(self.wire.peer().ip(), port);
        let identity = self.gate().home.identity_of(&self.wire);
        let place = Some(MemberPlace { machine, address, identity });
        let asks = Asks { size, rank, kinds: &kinds };
        let candidate: Arc<dyn MemberCandidate> = guest.clone();
        match member.forming.apply(&candidate, asks, Listed { process, socket, place }) {
            Ok(()) => self.guest = Some(guest.clone()),
            Err(Some(why)) => refuses(why),
            Err(None) => self.wire.hang_up(),
        }
    }

    /// Handles an application to a group that has formed.
    fn applies_late(&mut self, call: u32, request: FarRequest) {
        let FarRequest::ApplyLate {
            group,
            rank,
            total,
            kinds,
            process,
            socket,
            machine,
            port,
            invitation,
            ..
        } = request
        else {
            return;
        };
        let gate = self.gate().clone();
        let Some(member) = gate.home.member.upgrade() else { return self.wire.hang_up() };
        let guest = self.guest(call);
        let refuses = |why: String| {
            member.account.refuses();
            guest.reply(&LateWelcome::Refused(why));
        };
        let own = &gate.home.terms.name;
        if group != *own {
            return refuses(format!("the group at this address is {own:?}, not {group:?}"));
        }
        let Some(issuer) = gate.home.issuer().filter(|_| gate.leads()) else {
            return refuses("this member does not take in others".into());
        };
        // An applicant that comes too early looks again.
        let Some((roster, pairs)) = gate.group() else { return self.wire.hang_up() };
        if roster.members.len() != total as usize {
            return refuses(format!("it has other room for members than {total}"));
        }
        if kinds != gate.home.terms.kinds {
            return refuses("the kinds of its messages are others".into());
        }
        if !names::is_member(&socket) {
            return refuses(format!("{socket:?} is no socket of a member"));
        }
        let address = SocketAddr::new(self.wire.peer().ip(), port);
        let identity = gate.home.identity_of(&self.wire);
        let place = Some(MemberPlace { machine, address, identity });
        // Before the application: the answer may make the other side hang up at once.
        self.guest = Some(guest.clone());
        let listed = Listed { process, socket, place };
        let (rank, guest) = (rank as usize, guest.clone());
        let applicant = LateApplicant { rank, guest, listed, invitation };
        let applied = gate.late.lock().apply(applicant, (&roster, &pairs), issuer);
        match applied {
            Ok(None) => {}
            Ok(Some(batch)) => batch.welcome(),
            Err(why) => refuses(why.to_string()),
        }
    }

    /// Handles a petition.
    fn asks(&mut self, call: u32, bytes: Vec<u8>) {
        let gate = self.gate().clone();
        let Some(member) = gate.home.member.upgrade() else { return self.wire.hang_up() };
        let guest = self.guest(call);
        if !gate.leads() {
            return guest.refuse("this member does not take in others");
        }
        if gate.group().is_none() {
            // The other process asks again.
            return self.wire.hang_up();
        }
        if bytes.len() > MOST_PETITION {
            return guest.refuse("the request is too long");
        }
        let Some(place) = gate.wires.count_petition() else {
            return guest.refuse("too many requests wait: ask again later");
        };
        self.petitions = true;
        self.guest = Some(guest.clone());
        let from = Arc::new(FarPetitioner::new(guest, place));
        let host = gate.home.identity_of(&self.wire);
        member.tell(MemberEvent::Asked(Petition::new(bytes, host, from)));
    }
}

impl Attend for GuestReader {
    fn begun(&mut self, head: &FrameHeader, unsent: usize) -> Result<Wanted, FrameError> {
        if let Some(reader) = self.reader() {
            return reader.begun(head, unsent);
        }
        match head.kind {
            FrameKind::Ask if head.len <= self.gate.most_asked && !self.has_asked => {
                self.has_asked = true;
                Ok(Wanted::Yes(None))
            }
            _ => Err(FrameError("a message that has no place here")),
        }
    }

    fn came(&mut self, frame: Frame, owner: Option<BufferOwner>) -> Result<(), FrameError> {
        match self.reader() {
            Some(reader) => reader.came(frame, owner),
            None => self.asked(&frame),
        }
    }

    fn given_up(&mut self, _head: FrameHeader) -> Result<(), FrameError> {
        Err(FrameError("messages that do not go on"))
    }

    fn ended(self: Box<Self>, why: Lost) {
        match self.ends() {
            Some(reader) => Box::new(reader).ended(why),
            None => self.lost_guest(),
        }
    }

    fn cut(self: Box<Self>, why: Lost, link: HostLink) {
        match self.ends() {
            Some(reader) => Box::new(reader).cut(why, link),
            None => self.lost_guest(),
        }
    }
}

impl GuestReader {
    /// The connection has ended. From now on it gets no pair.
    fn ends(&self) -> Option<PairReader> {
        let pair = self.slot.get_or_init(|| None).as_ref()?;
        Some(PairReader::after_request(pair, self.session))
    }

    fn lost_guest(&self) {
        if let (Some(guest), Some(member)) = (&self.guest, self.gate().home.member.upgrade()) {
            member.forming.lost(&**guest, None);
            self.gate().late.lock().lost(guest);
            guest.has_gone();
            if self.petitions {
                member.forget_gone_petitions();
            }
        }
    }
}
