//! The listener for a server's network connections.
//!
//! One kernel thread accepts them, and waits for the first message of each in a [`Lobby`]. A
//! connection is handed on, and gets threads of its own, only when its first message has arrived.

use crate::frame::{PREAMBLE, Preamble, VERSION};
use crate::lobby::{Awaits, ConnectionOwner, Lobby, LobbyStep};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::poll::{PollSet, Report};

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
/// Size of the stack, in bytes: policies of programs run on this thread.
const STACK: usize = upcall_directory::clerk::STACK;

/// Admits connections. Called on the listener's thread; must not block for long.
pub trait Admit: Send {
    /// Judges a new connection. Returns the account that is charged with it.
    ///
    /// # Errors
    /// The account, and a farewell that gives the reason for not admitting it.
    fn came(&mut self, stream: &TcpStream) -> Result<ConnectionOwner, (ConnectionOwner, Vec<u8>)>;

    /// Takes over a connection whose first message has arrived.
    ///
    /// `stream` is blocking again and past the preambles. `first` is what was read of the message.
    ///
    /// # Errors
    /// The connection, and a farewell that gives the reason for not admitting it.
    fn admit(
        &mut self,
        stream: TcpStream,
        account: ConnectionOwner,
        first: Vec<u8>,
    ) -> Result<(), (TcpStream, Vec<u8>)>;
}

/// A listening socket, which is shut down when this is dropped.
pub struct NetworkListener {
    listener: Arc<TcpListener>,
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
        Ok(Self { listener: Arc::new(listener), address, shut: Arc::default() })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts to accept connections, each of which is greeted with `greeting`.
    ///
    /// That is done by a kernel thread of its own, which ends when the listener is dropped.
    ///
    /// # Errors
    /// There is no kernel thread or no descriptor left.
    pub fn open(&self, greeting: Preamble, admit: impl Admit + 'static) -> io::Result<()> {
        let set = PollSet::new()?;
        self.listener.set_nonblocking(true)?;
        set.add(&*self.listener, LISTENER, Report::WhileReadable)?;
        let keeper = NetworkAcceptor {
            listener: self.listener.clone(),
            shut: self.shut.clone(),
            set,
            lobby: Lobby::new(MOST_WAITING, LISTENER + 1),
            greeting: greeting.to_bytes(),
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
    listener: Arc<TcpListener>,
    shut: Arc<AtomicBool>,
    set: PollSet,
    lobby: Lobby<TcpStream>,
    greeting: [u8; PREAMBLE],
    admit: Box<dyn Admit>,
}

impl NetworkAcceptor {
    fn work(mut self) {
        let mut ready = Vec::new();
        while !self.shut.load(Ordering::SeqCst) {
            let due = self.lobby.due().map(|due| due.saturating_duration_since(Instant::now()));
            self.set.wait(&mut ready, due);
            for event in ready.drain(..) {
                match event.key {
                    LISTENER => (0..TURN).take_while(|_| self.accept()).for_each(drop),
                    number => self.read(number),
                }
            }
            // Dropping a connection closes it, which also removes it from the poll set.
            drop(self.lobby.expired(Instant::now()));
        }
    }

    /// Accepts one connection. Returns `true` if there may be another.
    fn accept(&mut self) -> bool {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
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
        // A policy that panics refuses this connection, and is asked again for the next one.
        let came = catch_unwind(AssertUnwindSafe(|| self.admit.came(&stream)));
        let Ok(came) = came else { return true };
        if stream.set_nonblocking(true).is_err() || !said(&stream, &self.greeting) {
            return true;
        }
        let now = Instant::now();
        let (account, farewell) = match came {
            Ok(account) => (account, None),
            Err((account, farewell)) => (account, Some(farewell)),
        };
        let (number, gone) = self.lobby.enter(stream, account, Awaits::Message, now + GREETING);
        drop(gone);
        if let Some((stream, _)) = self.lobby.wanted(number)
            && self.set.add(stream.as_fd(), number, Report::WhileReadable).is_err()
        {
            self.lobby.leave(number);
        }
        if let Some(farewell) = farewell {
            self.dismiss(number, &farewell, now);
        }
        true
    }

    /// Sends the reason why a connection is not admitted, and awaits its end.
    ///
    /// If it were closed with bytes unread, it would be reset and the reason lost.
    fn dismiss(&mut self, number: u64, farewell: &[u8], now: Instant) {
        let told = self.lobby.wanted(number).is_some_and(|(stream, _)| {
            said(stream, farewell) && stream.shutdown(Shutdown::Write).is_ok()
        });
        match told {
            true => self.lobby.dismiss(number, now + PARTING),
            false => drop(self.lobby.leave(number)),
        }
    }

    fn read(&mut self, number: u64) {
        let Some((stream, wanted)) = self.lobby.wanted(number) else { return };
        let mut bytes = [0; 4096];
        let most = wanted.min(bytes.len());
        let step = match rustix::net::recv(stream, &mut bytes[..most], RecvFlags::DONTWAIT) {
            Ok((0, _)) => None,
            Ok((count, _)) => self.lobby.came(number, &bytes[..count]).ok(),
            Err(Errno::AGAIN | Errno::INTR) => Some(LobbyStep::More),
            Err(_) => None,
        };
        match step {
            Some(LobbyStep::More) => {}
            None => drop(self.lobby.leave(number)),
            Some(LobbyStep::Admit) => self.hand_on(number),
        }
    }

    fn hand_on(&mut self, number: u64) {
        let Some(account) = self.lobby.account(number) else { return };
        let Some((stream, first)) = self.lobby.leave(number) else { return };
        self.set.remove(&stream);
        if stream.set_nonblocking(false).is_err() {
            return;
        }
        let Err((stream, farewell)) = self.admit.admit(stream, account, first) else { return };
        let now = Instant::now();
        let (number, _) = self.lobby.enter(stream, account, Awaits::End, now + PARTING);
        match self
            .lobby
            .wanted(number)
            .map(|(stream, _)| self.set.add(stream, number, Report::WhileReadable))
        {
            Some(Ok(())) => self.dismiss(number, &farewell, now),
            _ => drop(self.lobby.leave(number)),
        }
    }
}

/// Sends a few bytes to a connection on which little was sent before.
///
/// Returns `false` if the kernel does not take them at once.
fn said(stream: &TcpStream, bytes: &[u8]) -> bool {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::send(stream, bytes, flags).is_ok_and(|sent| sent == bytes.len())
}

/// The preamble that a server sends to its clients.
pub const fn greeting(window: u16) -> Preamble {
    Preamble { version: VERSION, window }
}
