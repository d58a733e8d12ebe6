//! A connection: a link, what protects it, and its socket.
//!
//! Senders write to the socket themselves while the kernel takes bytes. The driver
//! ([`crate::driver`]) reads, and writes the rest. So only a caller that waits for a reply waits
//! for the network, and a connection has no thread of its own.
//!
//! # Which thread reads
//! The holder of the lock of `attend` reads: mostly the driver. A caller on a kernel thread that
//! waits for a reply reads by itself if no other thread does ([`Wire::read_here`]), which saves a
//! wake of the driver and one of the caller. During that time the socket reports nothing to the
//! driver. The caller gives the lock back before it lets the socket report again, and a socket that
//! is readable then reports at once. So no bytes are left unread: those that came before are
//! reported, and those that come later are news. A driver that finds the lock taken leaves the
//! reading to its holder.
//!
//! # How the end of the other side is noticed
//! When a process ends, its kernel closes its connections, which the other side notices at once.
//! When a machine or a cable is gone, nothing arrives. On an idle connection the kernel probes the
//! other side. While bytes are on their way, the driver asks the kernel when the other side last
//! gave a sign of life. In both cases the connection is lost after [`WireTerms::lost_after`]. Signs
//! of life come from the other side's kernel, so a stopped process counts as alive, as it does
//! where memory is shared. Upcall sends no heartbeat of its own.
//!
//! # How the end of trust is noticed
//! The driver judges the other host again every [`JUDGED_AGAIN`], by the files as they are then. A
//! connection to a host that is no longer trusted ends, on either side. All connections of a
//! process are judged in one wake.

use crate::driver::{LinkDriver, READS};
use crate::frame::{Frame, FrameBody, FrameError, FrameHeader};
use crate::identity::{Fingerprint, HostName, HostStore, PeerRole};
use crate::incoming::{LinkEvent, Wanted};
use crate::link::{HostLink, LinkError};
use crate::outgoing::{BufferOwner, GivenUp, MessageLane, OutMessage};
use crate::secure::{Secure, SecureError};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, sockopt};
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_os::poll::Changes;
use upcall_os::tcp::{Acknowledged, acknowledged, round_trip};

/// Time after which a peer that gives no sign of life is lost, unless another is chosen.
pub const LOST_AFTER: Duration = Duration::from_secs(5);

/// Interval at which the trust in the host at the other end is judged again.
pub const JUDGED_AGAIN: Duration = Duration::from_secs(5);

/// Size of the buffer that bytes are read into, in bytes.
pub(crate) const BUFFER: usize = 64 << 10;
/// Size of the buffer that a caller reads into, in bytes: that of a record of TLS.
const SHORT: usize = (16 << 10) + 512;
/// Time after which the driver looks at a socket that cannot report.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Number of buffers that are read from one connection before others get a turn.
const TURN: usize = 4;
/// Number of bytes that are written, without a pause for others who want the lock.
const WRITTEN: usize = 128 << 10;
/// Number of bytes that the kernel holds and has not sent, beyond which it takes no more. A message
/// that is sent next waits for these bytes.
const UNSENT: u32 = 128 << 10;

/// Why a connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The other side closed the connection, often because its process ended.
    Ended,
    /// The kernel's error.
    Error(String),
    /// The other side gave no sign of life for this time.
    Silent(Duration),
    /// The other side sent bytes that do not continue the link.
    Link(LinkError),
    /// The other side sent bytes that do not continue the protected connection.
    Unprotected(String),
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => {
                write!(
                    f,
                    "the other side closed the connection without a reason: its process may be \
                     gone, may have stopped serving, or may lack memory or threads"
                )
            }
            Self::Error(error) | Self::Unprotected(error) => f.write_str(error),
            Self::Silent(after) => write!(
                f,
                "the other side gave no sign of life for {} s: its machine or the network may be \
                 down",
                after.as_secs_f32()
            ),
            Self::Link(error) => error.fmt(f),
        }
    }
}

impl From<LinkError> for Lost {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}

impl From<FrameError> for Lost {
    fn from(error: FrameError) -> Self {
        Self::Link(error.into())
    }
}

impl From<SecureError> for Lost {
    fn from(error: SecureError) -> Self {
        Self::Unprotected(error.to_string())
    }
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Ended,
            _ => Self::Error(error.to_string()),
        }
    }
}

impl From<Errno> for Lost {
    fn from(error: Errno) -> Self {
        io::Error::from(error).into()
    }
}

/// Handles what is read. Called on one thread at a time, mostly the driver's.
pub trait Attend: Send {
    /// A message has begun, while `unsent` messages wait to be sent. Returns whether its body is
    /// wanted. Must not use the wire.
    ///
    /// # Errors
    /// Such a message is not allowed; the connection is closed.
    fn begun(&mut self, head: &FrameHeader, unsent: usize) -> Result<Wanted, FrameError>;

    /// A message has arrived, without its body if that was not wanted. Must not block for long,
    /// because nothing else is read until it returns.
    ///
    /// # Errors
    /// As [`Attend::begun`].
    fn came(&mut self, frame: Frame, owner: Option<BufferOwner>) -> Result<(), FrameError>;

    /// The other side gave up the rest of a message that was wanted.
    ///
    /// # Errors
    /// It may not do so.
    fn given_up(&mut self, head: FrameHeader) -> Result<(), FrameError>;

    /// The connection has ended.
    fn ended(self: Box<Self>, why: Lost);
}

/// The host at the other end of a connection.
#[derive(Clone, Debug)]
pub struct WireHost {
    /// The files by which it is judged.
    pub store: Arc<HostStore>,
    /// The name that it has proved.
    pub name: HostName,
    /// The identity that it has proved.
    pub identity: Fingerprint,
    /// What it does on this connection.
    pub role: PeerRole,
}

impl WireHost {
    /// The trusted host of this name, by the files as they are now.
    pub fn new(store: Arc<HostStore>, name: HostName, role: PeerRole) -> Option<Self> {
        let credentials = store.credentials().ok()?;
        let identity = credentials.trust().host(&name)?.certificate.fingerprint();
        Some(Self { store, name, identity, role })
    }

    /// Judges the host by the files as they are now.
    fn is_trusted(&self) -> Result<(), Lost> {
        let unprotected = |error: &dyn fmt::Display| Lost::Unprotected(error.to_string());
        let credentials = self.store.credentials().map_err(|error| unprotected(&error))?;
        let trust = credentials.trust();
        let host = trust.host_of(self.identity).filter(|host| host.name == self.name);
        let host = host.ok_or_else(|| {
            Lost::Unprotected(format!("the host {} is no longer trusted here", self.name))
        })?;
        trust.admit(host, self.role, SystemTime::now()).map_err(|error| unprotected(&error))
    }
}

/// How a connection is kept.
#[derive(Clone, Debug)]
pub struct WireTerms {
    /// Time after which a peer that gives no sign of life is lost: a second at least.
    pub lost_after: Duration,
    /// The host at the other end, unless it is this one.
    pub host: Option<WireHost>,
}

impl Default for WireTerms {
    fn default() -> Self {
        Self { lost_after: LOST_AFTER, host: None }
    }
}

/// A connection; see the module.
pub struct Wire {
    stream: TcpStream,
    peer: SocketAddr,
    terms: WireTerms,
    core: KernelMutex<WireCore>,
    attend: KernelMutex<Option<Box<dyn Attend>>>,
}

struct WireCore {
    link: HostLink,
    secure: Secure,
    /// The kernel took no more bytes: the driver goes on when it does.
    blocked: bool,
    /// Who reads.
    reader: WireReader,
    /// What the socket reports to the driver.
    watched: Changes,
    /// The socket could not be made to report what it should.
    unwatched: bool,
    /// Why a caller that has read found that the connection has ended. The driver ends it.
    lost: Option<Lost>,
    /// The connection has ended or is being closed: nothing more is sent.
    closing: bool,
    /// The driver's number, and the next time at which it asks for a sign of life.
    driven: Option<(Arc<LinkDriver>, u64)>,
    checks: Option<Instant>,
    /// The next time at which the other host is judged.
    judges: Option<Instant>,
    /// Plain bytes of the last read.
    plain: Vec<u8>,
}

/// Who reads a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WireReader {
    Driver,
    /// A caller that waits for its reply.
    Caller,
}

/// Whether a caller has read in place of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadHere {
    /// It has, and what it waited for has arrived.
    Done,
    /// Another thread reads, or has to go on.
    No,
}

/// What the driver does with a connection whose alarm has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterTick {
    /// Nothing.
    Rest,
    /// It gives it a turn.
    Turn,
}

/// What reading a connection has found.
#[derive(Debug)]
pub(crate) enum WireStep {
    /// Everything that is there now was read.
    Read,
    /// There may be more, which is read after other connections got a turn.
    More,
    /// The connection has ended.
    Lost(Lost),
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wire({})", self.peer)
    }
}

impl Wire {
    /// Takes over a connection.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(
        stream: TcpStream,
        secure: Secure,
        link: HostLink,
        terms: WireTerms,
    ) -> io::Result<Arc<Self>> {
        stream.set_nodelay(true)?;
        // The kernel probes an idle peer after two fifths of the time, and then three times.
        let seconds = terms.lost_after.as_secs().max(1);
        let idle = (seconds * 2 / 5).max(1);
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(idle))?;
        let interval = ((seconds - idle.min(seconds)) / 3).max(1);
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(interval))?;
        sockopt::set_tcp_keepcnt(&stream, 3)?;
        upcall_os::tcp::hold_unsent(&stream, UNSENT)?;
        let peer = stream.peer_addr()?;
        let core = WireCore {
            link,
            secure,
            blocked: false,
            reader: WireReader::Driver,
            watched: READS,
            unwatched: false,
            lost: None,
            closing: false,
            driven: None,
            checks: None,
            judges: None,
            plain: Vec::new(),
        };
        Ok(Arc::new(Self {
            stream,
            peer,
            terms,
            core: KernelMutex::new(core),
            attend: KernelMutex::default(),
        }))
    }

    /// The other side's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// This side's address.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn own(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Gives the connection to the process's driver, after `first`, plain bytes that were read
    /// already.
    ///
    /// # Errors
    /// There is no kernel thread or no descriptor left. The connection cannot be used then.
    pub fn start(self: &Arc<Self>, first: &[u8], attend: Box<dyn Attend>) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        let mut attend = attend;
        let (mut events, now) = (Vec::new(), Instant::now());
        let taken = {
            let mut core = self.core();
            let core = &mut *core;
            take(&mut core.link, first, now, &mut *attend, &mut events)
        };
        let told = dispatch(events, &mut *attend);
        if let Err(lost) = taken.and(told) {
            self.hang_up();
            attend.ended(lost);
            return Ok(());
        }
        *self.attend.lock() = Some(attend);
        let driven = LinkDriver::take_in(self).inspect_err(|_| {
            self.hang_up();
            drop(self.attend.lock().take());
        })?;
        let mut core = self.core();
        if let Ok(took) = round_trip(&self.stream) {
            core.link.note_round_trip(took);
        }
        if self.terms.host.is_some() {
            let (driver, number) = &driven;
            let at = driver.next_round(JUDGED_AGAIN);
            driver.alarm(*number, at);
            core.judges = Some(at);
        }
        core.driven = Some(driven);
        self.note_due(&core);
        self.flush(core);
        Ok(())
    }

    /// Sends a message after all others of its lane. Never blocks.
    ///
    /// `owner` is dropped when the message is sent, or will not be. A connection that has ended
    /// drops the message.
    pub fn send(
        &self,
        lane: MessageLane,
        head: FrameHeader,
        body: FrameBody,
        owner: Option<BufferOwner>,
    ) {
        let message = OutMessage { head, body, owner };
        let mut core = self.core();
        if core.closing {
            // Its body may be long: it is freed without the lock.
            drop(core);
            return drop(message);
        }
        core.link.send(lane, message);
        self.flush(core);
    }

    /// Gives up the messages of a lane.
    pub fn give_up(&self, lane: MessageLane) -> GivenUp {
        let mut core = self.core();
        let given_up = core.link.give_up(lane);
        self.flush(core);
        given_up
    }

    /// Number of messages of which not everything is sent.
    pub fn unsent(&self) -> usize {
        self.core().link.unsent()
    }

    /// Ends the connection in both directions. The driver notices.
    pub fn hang_up(&self) {
        let mut core = self.core();
        if !core.closing {
            core.secure.close(&self.stream);
        }
        core.closing = true;
        core.link.end();
        let done = core.link.take_done();
        drop(core);
        drop(done);
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Writes what the kernel takes now, and drops what is sent.
    fn flush(&self, mut core: MutexGuard<'_, WireCore>) -> WroteAll {
        let (mut alarm, mut wrote) = (None, WroteAll::Yes);
        if !core.closing && !core.blocked {
            let written = core.write(&self.stream);
            wrote = *written.as_ref().unwrap_or(&WroteAll::Yes);
            // After a turn the socket is writable, which it reports at once, unless the driver
            // waited for that already. Then this is the driver, which goes on.
            core.blocked = wrote != WroteAll::Yes;
            self.watch(&mut core);
            if written.is_err() {
                // The driver reads the reason, if there is one.
                core.closing = true;
                let _ = self.stream.shutdown(Shutdown::Both);
            }
            if core.checks.is_none() && core.driven.is_some() {
                let at = Instant::now() + self.terms.lost_after;
                core.checks = Some(at);
                alarm = core.driven.clone().map(|(driver, number)| (driver, number, at));
            }
        }
        let done = core.link.take_done();
        drop(core);
        drop(done);
        if let Some((driver, number, at)) = alarm {
            driver.alarm(number, at);
        }
        wrote
    }

    /// Tells the driver what the socket has to report, if that has changed.
    fn watch(&self, core: &mut WireCore) {
        let changes =
            Changes { readable: core.reader == WireReader::Driver, writable: core.blocked };
        if let Some((driver, number)) = core.driven.as_ref().filter(|_| core.watched != changes) {
            match driver.watch(*number, self, changes) {
                Ok(()) => core.watched = changes,
                // The kernel refused for lack of memory: the driver looks by itself.
                Err(_) => {
                    core.unwatched = true;
                    driver.alarm(*number, Instant::now() + LOOK_AGAIN);
                }
            }
        }
    }

    /// Reads on the calling kernel thread until `done` returns `true`, or until `ends`, if no
    /// other thread reads. Long messages are left to the driver.
    ///
    /// # Blocking
    /// Blocks the kernel thread.
    pub fn read_here(&self, ends: Option<Instant>, done: &mut dyn FnMut() -> bool) -> ReadHere {
        let Some(mut attend) = self.attend.try_lock() else { return ReadHere::No };
        if attend.is_none() {
            return ReadHere::No;
        }
        {
            let mut core = self.core();
            core.reader = WireReader::Caller;
            self.watch(&mut core);
        }
        let (mut buffer, mut read) = ([0; SHORT], ReadHere::Done);
        while !done() {
            match self.read_once(&mut buffer, ends, &mut attend) {
                Ok(true) => {}
                Ok(false) => {
                    read = ReadHere::No;
                    break;
                }
                Err(lost) => {
                    self.core().lost = Some(lost);
                    let _ = self.stream.shutdown(Shutdown::Both);
                    read = ReadHere::No;
                    break;
                }
            }
        }
        // In this order; see the module.
        drop(attend);
        let mut core = self.core();
        core.reader = WireReader::Driver;
        self.watch(&mut core);
        read
    }

    /// Waits for bytes and reads them. Returns `false` if there is no time, or if they are those of
    /// a long message.
    fn read_once(
        &self,
        buffer: &mut [u8],
        ends: Option<Instant>,
        attend: &mut Option<Box<dyn Attend>>,
    ) -> Result<bool, Lost> {
        let left = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| rustix::time::Timespec::try_from(left).ok());
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN | PollFlags::RDHUP)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            // The caller asks whether it has to go on.
            Err(Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        match rustix::net::recv(&self.stream, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(Lost::Ended),
            Ok((count, _)) => {
                self.take(&buffer[..count], attend)?;
                Ok(count < buffer.len())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// The driver's turn: writes and reads what can be.
    ///
    /// `hung_up` is `true` if the end of the connection may have arrived already.
    pub(crate) fn turn(&self, buffer: &mut [u8], hung_up: bool) -> WireStep {
        let mut core = self.core();
        core.blocked = false;
        let lost = core.lost.take();
        let done = match self.flush(core) {
            WroteAll::Turn => WireStep::More,
            WroteAll::Yes | WroteAll::Full => WireStep::Read,
        };
        if let Some(lost) = lost {
            return WireStep::Lost(lost);
        }
        let Some(mut attend) = self.attend.try_lock() else { return done };
        for _ in 0..TURN {
            let (count, _) =
                match rustix::net::recv(&self.stream, &mut *buffer, RecvFlags::DONTWAIT) {
                    Ok((0, _)) => return WireStep::Lost(Lost::Ended),
                    Ok(read) => read,
                    Err(Errno::AGAIN) => return done,
                    Err(Errno::INTR) => continue,
                    Err(error) => return WireStep::Lost(error.into()),
                };
            if let Err(lost) = self.take(&buffer[..count], &mut attend) {
                return WireStep::Lost(lost);
            }
            // The kernel had no more. The end is read if it was there before.
            if count < buffer.len() && !hung_up {
                return done;
            }
        }
        WireStep::More
    }

    /// Takes bytes of the network.
    fn take(&self, mut bytes: &[u8], attend: &mut Option<Box<dyn Attend>>) -> Result<(), Lost> {
        let Some(attend) = attend else { return Ok(()) };
        let (mut events, now) = (Vec::new(), Instant::now());
        let taken = {
            let mut core = self.core();
            let taken = core.take(&mut bytes, now, &mut **attend, &mut events);
            self.note_due(&core);
            self.flush(core);
            taken
        };
        // What came before the error is valid.
        dispatch(events, &mut **attend)?;
        taken
    }

    /// Tells the driver when the link next has something to do.
    fn note_due(&self, core: &WireCore) {
        if let (Some(due), Some((driver, number))) = (core.link.due(), &core.driven) {
            driver.alarm(*number, due);
        }
    }

    /// The driver's alarm: time has passed.
    pub(crate) fn tick(&self, now: Instant) -> Result<AfterTick, Lost> {
        let mut core = self.core();
        core.link.tick(now)?;
        let after = match std::mem::take(&mut core.unwatched) {
            true => AfterTick::Turn,
            false => AfterTick::Rest,
        };
        self.note_due(&core);
        self.judge(&mut core, now)?;
        if core.checks.is_none_or(|at| at > now) {
            return Ok(after);
        }
        core.checks = None;
        let bound = self.terms.lost_after;
        if let Ok(took) = round_trip(&self.stream) {
            core.link.note_round_trip(took);
        }
        let next = match acknowledged(&self.stream) {
            Ok(Acknowledged::Silent(since)) if since >= bound => return Err(Lost::Silent(bound)),
            Ok(Acknowledged::Silent(since)) => Some(now + (bound - since)),
            Ok(Acknowledged::All) if core.blocked => Some(now + bound),
            Ok(Acknowledged::All) | Err(_) => None,
        };
        core.checks = next;
        if let (Some(at), Some((driver, number))) = (next, &core.driven) {
            driver.alarm(*number, at);
        }
        Ok(after)
    }

    /// Judges the host at the other end again, if it is time.
    fn judge(&self, core: &mut WireCore, now: Instant) -> Result<(), Lost> {
        let Some(host) =
            self.terms.host.as_ref().filter(|_| core.judges.is_some_and(|at| at <= now))
        else {
            return Ok(());
        };
        host.is_trusted()?;
        if let Some((driver, number)) = &core.driven {
            let at = driver.next_round(JUDGED_AGAIN);
            driver.alarm(*number, at);
            core.judges = Some(at);
        }
        Ok(())
    }

    /// The connection has ended.
    pub(crate) fn end(&self, why: Lost) {
        self.hang_up();
        self.core().driven = None;
        let attend = self.attend.lock().take();
        if let Some(attend) = attend {
            attend.ended(why);
        }
    }

    fn core(&self) -> MutexGuard<'_, WireCore> {
        self.core.lock()
    }
}

/// Whether all bytes were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WroteAll {
    Yes,
    /// The kernel takes no more.
    Full,
    /// Others get a turn.
    Turn,
}

impl WireCore {
    /// Writes until the kernel takes no more, all is written, or it was much.
    fn write(&mut self, stream: &TcpStream) -> Result<WroteAll, Lost> {
        let mut written = 0;
        while written < WRITTEN {
            if self.secure.write(stream)? == crate::secure::Wrote::Some {
                return Ok(WroteAll::Full);
            }
            let output = self.link.output()?;
            if output.is_empty() {
                return Ok(WroteAll::Yes);
            }
            let count = self.secure.put(output, stream)?;
            if count == 0 {
                return Ok(WroteAll::Full);
            }
            self.link.sent(count);
            written += count;
        }
        Ok(WroteAll::Turn)
    }

    fn take(
        &mut self,
        bytes: &mut &[u8],
        now: Instant,
        attend: &mut dyn Attend,
        events: &mut Vec<LinkEvent>,
    ) -> Result<(), Lost> {
        let Self { link, secure, plain, .. } = self;
        if let Secure::Clear = secure {
            return take(link, bytes, now, attend, events);
        }
        while !bytes.is_empty() {
            plain.clear();
            let protected = secure.take(bytes, plain);
            take(link, plain, now, attend, events)?;
            protected?;
        }
        Ok(())
    }
}

fn take(
    link: &mut HostLink,
    bytes: &[u8],
    now: Instant,
    attend: &mut dyn Attend,
    events: &mut Vec<LinkEvent>,
) -> Result<(), Lost> {
    let unsent = link.unsent();
    Ok(link.take(bytes, now, &mut |head| attend.begun(head, unsent), events)?)
}

/// Passes what has arrived on.
fn dispatch(events: Vec<LinkEvent>, attend: &mut dyn Attend) -> Result<(), Lost> {
    for event in events {
        match event {
            LinkEvent::Came(frame, owner) => attend.came(frame, owner)?,
            LinkEvent::GivenUp(head) => attend.given_up(head)?,
        }
    }
    Ok(())
}
