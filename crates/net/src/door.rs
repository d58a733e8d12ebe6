//! The listener for a server's network connections.
//!
//! One kernel thread accepts them, and waits for the first message of each in a [`Lobby`]. A
//! connection is handed on only when its first message has arrived.

use crate::frame::{FrameBody, FrameHeader, FrameKind};
use crate::identity::{HostName, HostStore, PeerRole, Stranger};
use crate::link::{HostLink, LinkTerms};
use crate::lobby::{Awaits, ConnectionOwner, Lobby, LobbyStep, NoClient};
use crate::outgoing::OutMessage;
use crate::record::{Hello, SessionKey, SessionStart, VERSION};
use crate::secure::{Secure, Wrote};
use crate::tls::TlsChannel;
use crate::wire::{LOST_AFTER, LinkSocket, Wire, WireHost, WireTerms, is_here};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::convert::Infallible;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::loopback;
use upcall_os::poll::{PollSet, Report};
use upcall_os::unforked::Unforked;

/// Time for which no connection is accepted when the descriptor table is full.
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of connections that wait to be admitted.
const MOST_WAITING: usize = 256;
/// Time within which a connection's first message must arrive, counted from its beginning.
const GREETING: Duration = Duration::from_secs(5);
/// Time that a refused client is given to read the reason.
const PARTING: Duration = Duration::from_secs(1);
/// Maximum number of connections that are accepted before waiting ones get a turn.
const TURN: usize = 16;
/// The listener's key in the poll set. Connections are numbered from the next key on.
const LISTENER: u64 = 0;
/// The first byte of a connection that is protected by TLS: the type of a handshake's record.
const HANDSHAKE: u8 = 22;
/// Size of the stack, in bytes: policies of programs run on this thread.
const STACK: usize = upcall_directory::clerk::STACK;

/// A farewell: a message that gives the reason for not admitting a connection.
pub type FarewellBody = FrameBody;

/// What is known of a client.
#[derive(Clone, Debug)]
pub enum ProvedClient {
    /// A process of this machine, by a connection in the clear. Its user, if the kernel knows it.
    Here(Option<u32>),
    /// A host that has proved its name.
    Host(HostName),
    /// A host that has proved an identity which is not trusted.
    Stranger(Stranger),
    /// Not proved: a connection in the clear from another machine.
    Nobody,
}

impl ProvedClient {
    fn host(&self) -> Option<&HostName> {
        match self {
            Self::Host(name) => Some(name),
            Self::Here(_) | Self::Stranger(_) | Self::Nobody => None,
        }
    }
}

/// Admits connections. Called on the listener's thread; must not block for long.
pub trait Admit: Send {
    /// The identity of this host, and those that it trusts; `None` if it has no identity.
    fn store(&self) -> Option<Arc<HostStore>>;

    /// Time after which a client that gives no sign of life is lost: a second at least.
    fn lost_after(&self) -> Duration {
        LOST_AFTER
    }

    /// Judges a client as soon as it is known who it is.
    ///
    /// # Errors
    /// A farewell that gives the reason for not admitting it.
    fn judge(&mut self, client: &ProvedClient) -> Result<(), FarewellBody>;

    /// Decides whether a connection whose first message has arrived is admitted.
    ///
    /// # Errors
    /// A farewell that gives the reason for not admitting it.
    fn admit(
        &mut self,
        account: ConnectionOwner,
        client: ProvedClient,
    ) -> Result<Box<dyn TakeOver>, FarewellBody>;

    /// Finds the session that a client wants to go on with, and the owner of its connection.
    fn resume(&mut self, _session: SessionKey, _client: &ProvedClient) -> Resumed {
        Resumed::Unknown
    }

    /// The next time at which [`tick`](Self::tick) has something to do.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Time has passed. Called after each wake of the listener's thread.
    fn tick(&mut self, _now: Instant) {}
}

/// Whether a session goes on with a new connection.
pub enum Resumed {
    /// It does.
    Yes(Box<HostLink>, Box<dyn TakeOver>),
    /// No session of this client has this key.
    Unknown,
    /// Not with this connection: the client may try again.
    NotNow,
}

/// Takes over a connection that is admitted.
pub trait TakeOver {
    /// Takes over. `first` are the plain bytes that came after the hello.
    fn take_over(self: Box<Self>, wire: Arc<Wire>, first: &[u8]);
}

/// A listening socket, which is shut down when this is dropped.
pub struct NetworkListener {
    listener: Arc<Unforked<TcpListener>>,
    address: SocketAddr,
    shut: Arc<AtomicBool>,
}

impl fmt::Debug for NetworkListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NetworkListener({})", self.address)
    }
}

impl NetworkListener {
    /// Listens at `address`; port 0 stands for a free port.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let listener = Arc::new(Unforked::new(listener)?);
        Ok(Self { listener, address, shut: Arc::default() })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts to accept connections, for links on these terms.
    ///
    /// That is done by a kernel thread of its own, which ends when the listener is dropped.
    ///
    /// # Errors
    /// There is no kernel thread or no descriptor left.
    pub fn open(&self, terms: LinkTerms, admit: impl Admit + 'static) -> io::Result<()> {
        let set = PollSet::new()?;
        self.listener.set_nonblocking(true)?;
        set.add(&*self.listener, LISTENER, Report::WhileReadable)?;
        let keeper = NetworkAcceptor {
            listener: self.listener.clone(),
            shut: self.shut.clone(),
            set,
            lobby: Lobby::new(MOST_WAITING, LISTENER + 1),
            terms,
            admit: Box::new(admit),
        };
        let thread = std::thread::Builder::new().name("upcall-net-door".into()).stack_size(STACK);
        thread.spawn(move || keeper.work())?;
        Ok(())
    }
}

impl Drop for NetworkListener {
    fn drop(&mut self) {
        self.shut.store(true, Ordering::SeqCst);
        // The accepting thread sees the listener hang up.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
    }
}

/// The state of the accepting thread.
struct NetworkAcceptor {
    listener: Arc<Unforked<TcpListener>>,
    shut: Arc<AtomicBool>,
    set: PollSet,
    lobby: Lobby<Guest>,
    terms: LinkTerms,
    admit: Box<dyn Admit>,
}

/// A connection that is not admitted yet.
struct Guest {
    stream: Unforked<TcpStream>,
    /// What protects it, and its client, once that is known.
    secure: Option<Secure>,
    client: Option<ProvedClient>,
    /// Why it will not be.
    farewell: Option<FarewellBody>,
    /// The link, once the client's hello has arrived.
    link: Option<HostLink>,
}

impl NetworkAcceptor {
    fn work(mut self) {
        let mut ready = Vec::new();
        while !self.shut.load(Ordering::SeqCst) {
            let due = self.lobby.due().into_iter().chain(self.admit.due()).min();
            let due = due.map(|due| due.saturating_duration_since(Instant::now()));
            self.set.wait(&mut ready, due);
            for event in ready.drain(..) {
                match event.key {
                    LISTENER => (0..TURN).take_while(|_| self.accept()).for_each(drop),
                    number => self.read(number),
                }
            }
            // Dropping a connection closes it, which also removes it from the poll set.
            let now = Instant::now();
            drop(self.lobby.expired(now));
            self.admit.tick(now);
        }
    }

    /// Accepts one connection. Returns `true` if there may be another.
    fn accept(&mut self) -> bool {
        let stream = match self.listener.accept().and_then(|(stream, _)| Unforked::new(stream)) {
            Ok(stream) => stream,
            Err(error) => {
                let full = matches!(error.raw_os_error(), Some(23 | 24));
                // A waiting connection gives up its place in the descriptor table.
                if full && self.lobby.evict().is_none() {
                    std::thread::sleep(PAUSE);
                }
                return full;
            }
        };
        if self.shut.load(Ordering::SeqCst) {
            return false;
        }
        // Replies of the handshake do not wait for the client to acknowledge those before.
        if stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).is_err() {
            return true;
        }
        // The connection may already be reset.
        let Ok(peer) = stream.peer_addr() else { return true };
        let account = match user(&stream) {
            Some(user) => ConnectionOwner::User(user),
            None => ConnectionOwner::of(peer.ip()),
        };
        let (awaits, ends) = (Awaits::Message, Instant::now() + GREETING);
        let guest = Guest { stream, secure: None, client: None, farewell: None, link: None };
        let (number, gone) = self.lobby.enter(guest, account, awaits, ends);
        drop(gone);
        if let Some((guest, _)) = self.lobby.wanted(number)
            && self.set.add(guest.stream.as_fd(), number, Report::WhileReadable).is_err()
        {
            self.lobby.leave(number);
        }
        true
    }

    /// Sends the reason why a connection is not admitted, and awaits its end.
    ///
    /// If it were closed with bytes unread, it would be reset and the reason lost.
    fn dismiss(&mut self, number: u64, farewell: FarewellBody) {
        let said = self.lobby.wanted(number).is_some_and(|(guest, _)| {
            guest.part(farewell) && guest.stream.shutdown(Shutdown::Write).is_ok()
        });
        match said {
            true => self.lobby.dismiss(number, Instant::now() + PARTING),
            false => drop(self.lobby.leave(number)),
        }
    }

    fn read(&mut self, number: u64) {
        let Some((guest, wanted)) = self.lobby.wanted(number) else { return };
        let mut bytes = [0; 4096];
        let most = wanted.min(bytes.len());
        let step = match rustix::net::recv(&guest.stream, &mut bytes[..most], RecvFlags::DONTWAIT) {
            Ok((0, _)) => None,
            Ok((count, _)) => self.take(number, &bytes[..count]),
            Err(Errno::AGAIN | Errno::INTR) => Some(LobbyStep::More),
            Err(_) => None,
        };
        match step {
            Some(LobbyStep::More) => {}
            None => drop(self.lobby.leave(number)),
            Some(LobbyStep::Admit) => self.hand_on(number),
        }
    }

    /// Takes bytes of a connection. `None` if it is not one of a client.
    fn take(&mut self, number: u64, mut bytes: &[u8]) -> Option<LobbyStep> {
        let (guest, _) = self.lobby.wanted(number)?;
        if guest.secure.is_none() {
            let credentials = match bytes.first() {
                Some(&HANDSHAKE) => Some(self.admit.store()?.credentials().ok()?),
                _ => None,
            };
            guest.secure = Some(match credentials {
                Some(credentials) => Secure::Tls(Box::new(TlsChannel::server(&credentials).ok()?)),
                None => Secure::Clear,
            });
        }
        let mut plain = Vec::new();
        let taken = guest.secure.as_mut()?.take(&mut bytes, |piece| {
            plain.extend_from_slice(piece);
            Ok::<_, Infallible>(())
        });
        // Replies and alerts of the handshake.
        let wrote = guest.secure.as_mut()?.write(&guest.stream);
        if taken.is_err() || !matches!(wrote, Ok(Wrote::All)) {
            return None;
        }
        if guest.client.is_none() {
            self.prove(number)?;
        }
        if plain.is_empty() {
            return Some(LobbyStep::More);
        }
        match self.lobby.came(number, &plain) {
            Ok(step) => self.greet(number).then_some(step),
            Err(NoClient::Version) => {
                self.tell_version(number);
                None
            }
            Err(NoClient::Broken(_)) => None,
        }
    }

    /// Finds out who a client is, if that is known by now, and judges it.
    fn prove(&mut self, number: u64) -> Option<()> {
        let mut account = self.lobby.account(number)?;
        let (guest, _) = self.lobby.wanted(number)?;
        let client = match guest.secure.as_ref()? {
            Secure::Clear => match &account {
                ConnectionOwner::User(user) => ProvedClient::Here(Some(*user)),
                ConnectionOwner::Address(ip) if ip.is_loopback() => ProvedClient::Here(None),
                _ => ProvedClient::Nobody,
            },
            Secure::Tls(channel) if channel.is_handshaking() => return Some(()),
            Secure::Tls(channel) => {
                let credentials = self.admit.store()?.credentials().ok()?;
                match channel.peer(&credentials, SystemTime::now()) {
                    None => return Some(()),
                    Some(Ok(name)) => ProvedClient::Host(name),
                    Some(Err(stranger)) => ProvedClient::Stranger(stranger),
                }
            }
        };
        // A policy that panics refuses this connection, and is asked again for the next one.
        let judged = catch_unwind(AssertUnwindSafe(|| self.admit.judge(&client))).ok()?;
        if let ProvedClient::Host(name) = &client {
            account = ConnectionOwner::Host(name.clone());
        }
        let awaits = if judged.is_err() { Awaits::Hello } else { Awaits::Message };
        let (guest, _) = self.lobby.wanted(number)?;
        (guest.client, guest.farewell) = (Some(client), judged.err());
        self.lobby.judge(number, account, awaits);
        Some(())
    }

    /// Says hello to a client, if its own has arrived. Returns `false` if it can have no link.
    fn greet(&mut self, number: u64) -> bool {
        let Some(hello) = self.lobby.hello(number) else { return true };
        if hello.begins == SessionStart::GoesOn {
            return true;
        }
        let terms = self.terms;
        let Some((guest, _)) = self.lobby.wanted(number) else { return true };
        guest.link.is_some() || guest.greet(&hello, terms)
    }

    /// Tells a client of another version which one is spoken here, or a client whose session is not
    /// known that it has none.
    fn tell_version(&mut self, number: u64) {
        let hello = Hello {
            version: VERSION,
            window: self.terms.window,
            begins: SessionStart::Begins,
            session: Default::default(),
            received: 0,
            patience: Duration::ZERO,
        };
        if let Some((guest, _)) = self.lobby.wanted(number) {
            guest.put(&hello.to_bytes());
        }
    }

    /// Hands the connection on to the session that its client wants to go on with.
    fn go_on(&mut self, number: u64, hello: &Hello, client: &ProvedClient) {
        let terms = self.wire_terms(client);
        let Some((guest, _)) = self.lobby.wanted(number) else { return };
        self.set.remove(&guest.stream);
        // A link is only asked for when nothing is left that can fail and lose it.
        let ready = terms.and_then(|terms| Some((guest.prepare(&terms).ok()?, terms)));
        let resumed = match &ready {
            Some(_) => self.admit.resume(hello.session, client),
            None => return drop(self.lobby.leave(number)),
        };
        if let Resumed::Unknown = resumed {
            self.tell_version(number);
        }
        let Some((guest, first)) = self.lobby.leave(number) else { return };
        let Guest { stream, secure: Some(secure), .. } = guest else { return };
        if let (Some((peer, terms)), Resumed::Yes(mut link, takes)) = (ready, resumed)
            && link.accept(hello).is_ok()
        {
            takes.take_over(Wire::on(LinkSocket { stream, peer }, secure, *link, terms), &first);
        }
    }

    /// How the connection to a client is kept. `None`: its host is no longer trusted.
    fn wire_terms(&self, client: &ProvedClient) -> Option<WireTerms> {
        let host = match client.host() {
            Some(name) => Some(WireHost::new(self.admit.store()?, name.clone(), PeerRole::Client)?),
            None => None,
        };
        Some(WireTerms { host, lost_after: self.admit.lost_after() })
    }

    /// Hands a connection on, or sends it away.
    fn hand_on(&mut self, number: u64) {
        let Some(account) = self.lobby.account(number) else { return };
        let Some((guest, _)) = self.lobby.wanted(number) else { return };
        // The client stays known, so that bytes of a dismissed one are not judged again.
        let (farewell, client) = (guest.farewell.take(), guest.client.clone());
        let goes_on = |hello: &Hello| hello.begins == SessionStart::GoesOn;
        if let (None, Some(client), Some(hello)) =
            (&farewell, &client, self.lobby.hello(number).filter(goes_on))
        {
            return self.go_on(number, &hello, client);
        }
        let proved = client.clone();
        let admitted = match (farewell, client) {
            (Some(farewell), _) => Err(farewell),
            (None, Some(client)) => self.admit.admit(account, client),
            (None, None) => return drop(self.lobby.leave(number)),
        };
        let takes = match admitted {
            Ok(takes) => takes,
            Err(farewell) => return self.dismiss(number, farewell),
        };
        let Some((guest, first)) = self.lobby.leave(number) else { return };
        let Guest { stream, secure: Some(secure), link: Some(link), .. } = guest else { return };
        self.set.remove(&stream);
        // The trust may have ended a moment ago.
        let Some(terms) = proved.and_then(|client| self.wire_terms(&client)) else { return };
        if let Ok(wire) = Wire::new(stream, secure, link, terms) {
            takes.take_over(wire, &first);
        }
    }
}

impl Guest {
    fn prepare(&self, terms: &WireTerms) -> io::Result<SocketAddr> {
        LinkSocket::prepare(&self.stream, terms)
    }

    /// Answers a client's hello. Returns `false` if there can be no link.
    fn greet(&mut self, hello: &Hello, terms: LinkTerms) -> bool {
        let Ok(mut link) = HostLink::server(hello, terms) else { return false };
        if link.accept(hello).is_err() {
            return false;
        }
        self.link = Some(link);
        self.say()
    }

    /// Sends a farewell. Returns `false` if the kernel does not take it at once.
    fn part(&mut self, farewell: FarewellBody) -> bool {
        let head = FrameHeader::of(FrameKind::Farewell);
        if let Some(link) = &mut self.link {
            link.send(0, OutMessage { head, body: farewell, owner: None });
        }
        self.say()
    }

    /// Sends what the link has to say. Returns `false` if the kernel does not take it at once.
    fn say(&mut self) -> bool {
        loop {
            let Some(link) = &mut self.link else { return false };
            let Ok(output) = link.output() else { return false };
            if output.is_empty() {
                return true;
            }
            let output = output.to_vec();
            link.sent(output.len());
            if !self.put(&output) {
                return false;
            }
        }
    }

    /// Sends a few bytes. Returns `false` if the kernel does not take them at once.
    fn put(&mut self, mut bytes: &[u8]) -> bool {
        let Some(secure) = &mut self.secure else { return false };
        while !bytes.is_empty() {
            match secure.put(&[IoSlice::new(bytes)], &self.stream) {
                Ok(count @ 1..) => bytes = &bytes[count..],
                Ok(0) | Err(_) => return false,
            }
        }
        matches!(secure.write(&self.stream), Ok(Wrote::All))
    }
}

/// The user of a connection within this machine, if the kernel knows it.
fn user(stream: &TcpStream) -> Option<u32> {
    let (theirs, ours) = (stream.peer_addr().ok()?, stream.local_addr().ok()?);
    is_here(theirs, ours).then(|| loopback::user_of(theirs, ours)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// Is due once, and then no more.
    struct Due(Option<Instant>, Sender<()>);
    impl Admit for Due {
        fn store(&self) -> Option<Arc<HostStore>> {
            None
        }
        fn judge(&mut self, _: &ProvedClient) -> Result<(), FarewellBody> {
            Ok(())
        }
        fn admit(
            &mut self,
            _: ConnectionOwner,
            _: ProvedClient,
        ) -> Result<Box<dyn TakeOver>, FarewellBody> {
            Err(FarewellBody::from(&b"no"[..]))
        }
        fn due(&self) -> Option<Instant> {
            self.0
        }
        fn tick(&mut self, now: Instant) {
            if self.0.take_if(|due| *due <= now).is_some() {
                self.1.send(()).unwrap();
            }
        }
    }

    #[test]
    fn the_listener_wakes_when_its_owner_is_due() {
        let listener = NetworkListener::new("127.0.0.1:0".parse().unwrap()).unwrap();
        let terms = LinkTerms { window: 1, patience: Duration::ZERO };
        let (ticks, ticked) = channel();
        let due = Instant::now() + Duration::from_millis(20);
        listener.open(terms, Due(Some(due), ticks)).unwrap();
        ticked.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(Instant::now() >= due);
    }
}
