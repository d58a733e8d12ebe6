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
//! reading to its holder. Another caller may take the lock in between, so callers are counted: only
//! the last of them lets the socket report, and each of them has given the lock back by then.
//!
//! # How the end of the other side is noticed
//! When a process ends, its kernel closes its connections, which the other side notices at once.
//! When a machine or a cable is gone, nothing arrives. On an idle connection the kernel probes the
//! other side. While bytes are on their way, the driver asks the kernel when the other side last
//! gave a sign of life. In both cases the connection is lost after [`WireTerms::lost_after`]. Signs
//! of life come from the other side's kernel, so a stopped process counts as alive, as it does
//! where memory is shared. Upcall sends no heartbeat of its own. A child that the process forks
//! keeps none of its connections ([`upcall_os::unforked`]): they end with the process.
//!
//! # How the end of trust is noticed
//! The driver judges the other host again every [`JUDGED_AGAIN`], by the files as they are then. A
//! connection to a host that is no longer trusted ends, on either side. A client gets the reason
//! before that ([`Attend::farewell`]). All connections of a process are judged in one wake.

mod host;
mod reading;
mod signs;

pub use host::WireHost;
pub use reading::ReadHere;
pub(crate) use reading::{BUFFER, WireStep};
pub(crate) use signs::AfterTick;

use crate::attend::{Attend, dispatch, take};
use crate::driver::{LinkDriver, READS};
use crate::frame::{FrameBody, FrameHeader, FrameKind};
use crate::identity::{Fingerprint, HostName};
use crate::link::{HostLink, MOST_OUTPUT};
use crate::lost::Lost;
use crate::outgoing::{BufferOwner, GivenUp, MessageLane, OutMessage};
use crate::record::SessionKey;
use crate::secure::{Secure, Wrote};
use rustix::net::sockopt;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicU32, Ordering};
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_os::loopback;
use upcall_os::poll::Changes;
use upcall_os::tcp::round_trip;
use upcall_os::unforked::Unforked;

/// Time after which a peer that gives no sign of life is lost, unless another is chosen.
pub const LOST_AFTER: Duration = Duration::from_secs(5);

/// Maximum of that time.
pub const LATEST_LOST: Duration = Duration::from_secs(12 * 3600);

/// Interval at which the trust in the host at the other end is judged again.
pub const JUDGED_AGAIN: Duration = Duration::from_secs(5);

/// Time after which the driver looks at a socket that cannot report.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Number of bytes that are written, without a pause for others who want the lock.
const WRITTEN: usize = 256 << 10;
/// Maximum number of bytes that the sender of a message writes at once, if no other thread wants
/// the lock. The driver writes the rest, and may wait for the sender's processor.
const MOST_WRITTEN: usize = 2 << 20;
/// Number of bytes that the kernel holds and has not sent, beyond which it takes no more. A message
/// that is sent next waits for these bytes.
const UNSENT: u32 = 256 << 10;

/// Length from which the sender of a message writes one record of it alone at first. The receiver
/// wakes from that while the rest is encrypted.
const WAKES_EARLY: usize = 512 << 10;
const FIRST_WRITTEN: usize = 16 << 10;

/// Maximum number of pieces that are written at once: four records of a long message and some short
/// ones.
const PIECES: usize = 16;

/// The lane of farewells. Those of replies have the numbers of their calls.
const FAREWELLS: MessageLane = 1 << 32;

/// How a connection is kept.
#[derive(Clone, Debug)]
pub struct WireTerms {
    /// Time after which a peer that gives no sign of life is lost: from a second to
    /// [`LATEST_LOST`].
    pub lost_after: Duration,
    /// The host at the other end, unless it is this one.
    pub host: Option<WireHost>,
}

impl Default for WireTerms {
    fn default() -> Self {
        Self { lost_after: LOST_AFTER, host: None }
    }
}

/// A socket that is ready for a link.
pub(crate) struct LinkSocket {
    pub(crate) stream: Unforked<TcpStream>,
    pub(crate) peer: SocketAddr,
}

impl LinkSocket {
    /// Prepares a socket.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn new(stream: Unforked<TcpStream>, terms: &WireTerms) -> io::Result<Self> {
        let peer = Self::prepare(&stream, terms)?;
        Ok(Self { stream, peer })
    }

    /// Prepares a socket, and returns the address of the other side.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn prepare(stream: &TcpStream, terms: &WireTerms) -> io::Result<SocketAddr> {
        stream.set_nodelay(true)?;
        // The kernel probes an idle peer after two fifths of the time, and then three times.
        let seconds = within(terms.lost_after).as_secs();
        let idle = (seconds * 2 / 5).max(1);
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, Duration::from_secs(idle))?;
        let interval = ((seconds - idle.min(seconds)) / 3).max(1);
        sockopt::set_tcp_keepintvl(stream, Duration::from_secs(interval))?;
        sockopt::set_tcp_keepcnt(stream, 3)?;
        upcall_os::tcp::hold_unsent(stream, UNSENT)?;
        stream.peer_addr()
    }
}

/// A connection; see the module.
pub struct Wire {
    stream: Unforked<TcpStream>,
    peer: SocketAddr,
    terms: WireTerms,
    core: KernelMutex<WireCore>,
    /// Number of threads that wait for that lock, or are about to.
    wanted: AtomicU32,
    attend: KernelMutex<Option<Box<dyn Attend>>>,
}

struct WireCore {
    link: HostLink,
    secure: Secure,
    /// The kernel took no more bytes: the driver goes on when it does.
    blocked: bool,
    /// Number of callers that read, or that have read and not told the driver yet.
    callers: u32,
    /// What the socket reports to the driver.
    watched: Changes,
    /// The socket could not be made to report what it should.
    unwatched: bool,
    /// Why a thread other than the driver found that the connection has ended. The driver ends it.
    lost: Option<Lost>,
    /// The connection has ended or is being closed: nothing more is sent.
    closing: bool,
    /// The driver's number, and the next time at which it asks for a sign of life.
    driven: Option<(Arc<LinkDriver>, u64)>,
    checks: Option<Instant>,
    /// The next time at which the other host is judged.
    judges: Option<Instant>,
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
        stream: Unforked<TcpStream>,
        secure: Secure,
        link: HostLink,
        terms: WireTerms,
    ) -> io::Result<Arc<Self>> {
        let socket = LinkSocket::new(stream, &terms)?;
        Ok(Self::on(socket, secure, link, terms))
    }

    /// Makes a connection of a socket that is ready for it.
    pub(crate) fn on(
        socket: LinkSocket,
        secure: Secure,
        link: HostLink,
        terms: WireTerms,
    ) -> Arc<Self> {
        let LinkSocket { stream, peer } = socket;
        let terms = WireTerms { lost_after: within(terms.lost_after), ..terms };
        let core = WireCore {
            link,
            secure,
            blocked: false,
            callers: 0,
            watched: READS,
            unwatched: false,
            lost: None,
            closing: false,
            driven: None,
            checks: None,
            judges: None,
        };
        Arc::new(Self {
            stream,
            peer,
            terms,
            core: KernelMutex::new(core),
            wanted: AtomicU32::new(0),
            attend: KernelMutex::default(),
        })
    }

    /// The other side's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The host that the other side has proved to be.
    pub fn host(&self) -> Option<&HostName> {
        self.terms.host.as_ref().map(|host| &host.name)
    }

    /// The identity that the other side has proved.
    pub fn identity(&self) -> Option<Fingerprint> {
        self.terms.host.as_ref().map(|host| host.identity)
    }

    /// The user of the other side, if that is on this machine and the kernel knows it.
    pub fn user(&self) -> Option<u32> {
        let own = self.own().ok()?;
        is_here(self.peer, own).then(|| loopback::user_of(self.peer, own)).flatten()
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
        // Held until the driver is known here: its first turn waits for that. A turn that writes
        // much has to tell the driver to go on.
        let mut core = self.core();
        let driven = match LinkDriver::take_in(self) {
            Ok(driven) => driven,
            Err(error) => {
                let why = Lost::Error(error.to_string());
                drop(core);
                let (attend, link) = (self.attend.lock().take(), self.core().leave(&why));
                self.hang_up();
                if let (Some(attend), Some(link)) = (attend, link) {
                    attend.cut(why, link);
                }
                return Err(error);
            }
        };
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
        // Its body may be long: it is freed without the lock.
        drop(self.try_send(lane, OutMessage { head, body, owner }));
    }

    /// Sends a message after all others of its lane. Never blocks.
    ///
    /// Returns the message if the connection has ended. A session that goes on then has all
    /// messages that were sent before.
    pub fn try_send(&self, lane: MessageLane, message: OutMessage) -> Option<OutMessage> {
        let mut core = self.core();
        if core.closing {
            return Some(message);
        }
        let first = if message.body.len >= WAKES_EARLY { FIRST_WRITTEN } else { MOST_OUTPUT };
        core.link.send(lane, message);
        self.flush_up_to(core, first, MOST_WRITTEN);
        None
    }

    /// Takes the session off a connection that the other side has left, and ends the connection.
    /// The attendant is dropped, and hears nothing more.
    ///
    /// `None`: the connection has ended already, or its session does not go on.
    ///
    /// # Blocking
    /// Waits for a thread that hands on what has arrived.
    pub fn detach(&self) -> Option<HostLink> {
        if !self.core().goes_on_after(&Lost::Ended) {
            return None;
        }
        // A thread that reads here lets go of the attendant.
        let _ = self.stream.shutdown(Shutdown::Both);
        // One step: the driver, which ends a connection in the same way, finds both or none.
        let (attend, link) = {
            let mut attend = self.attend.lock();
            let link = self.core().leave(&Lost::Ended);
            (link.is_some().then(|| attend.take()), link)
        };
        self.hang_up();
        drop(attend);
        link
    }

    /// Gives up the messages of a lane.
    pub fn give_up(&self, lane: MessageLane) -> GivenUp {
        let mut core = self.core();
        let given_up = core.link.give_up(lane);
        self.flush(core);
        given_up
    }

    /// The key of the session.
    pub fn session(&self) -> SessionKey {
        self.core().link.session()
    }

    /// Maximum number of calls that the other side takes at once.
    pub fn peer_window(&self) -> u16 {
        self.core().link.peer_window().unwrap_or(1)
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
    fn flush(&self, core: MutexGuard<'_, WireCore>) -> WroteAll {
        self.flush_up_to(core, MOST_OUTPUT, WRITTEN)
    }

    /// The same, but beyond [`WRITTEN`] up to `most` bytes unless others want the lock. At first it
    /// writes `first` bytes at most.
    fn flush_up_to(
        &self,
        mut core: MutexGuard<'_, WireCore>,
        first: usize,
        most: usize,
    ) -> WroteAll {
        let (mut alarm, mut wrote) = (None, WroteAll::Yes);
        if !core.closing && !core.blocked {
            let others = || self.wanted.load(Ordering::Relaxed) > 0;
            let goes_on = |written| written < WRITTEN || written < most && !others();
            let written = core.write(&self.stream, first, goes_on);
            wrote = *written.as_ref().unwrap_or(&WroteAll::Yes);
            // After a turn the socket is writable, which it reports at once, unless the driver
            // waited for that already. Then this is the driver, which goes on.
            core.blocked = wrote != WroteAll::Yes;
            self.watch(&mut core);
            if let Err(why) = written {
                // The driver reads the reason, if there is one. Messages wait for it.
                core.blocked = true;
                if why == Lost::NoMemory {
                    core.lost = Some(why);
                }
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
        let changes = Changes { readable: core.callers == 0, writable: core.blocked };
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

    /// Sends the other side the reason for the end of the connection, if it gets one. What the
    /// kernel does not take at once is lost.
    fn part(&self, why: &Lost) {
        // A caller that reads holds the lock: such a side is a client, which sends no farewell.
        let body = self.attend.try_lock().and_then(|attend| attend.as_ref()?.farewell(why));
        let Some(body) = body else { return };
        self.send(FAREWELLS, FrameHeader::of(FrameKind::Farewell), body, None);
    }

    /// The connection has ended.
    pub(crate) fn end(&self, why: Lost) {
        self.part(&why);
        // In both cases a thread that reads here lets go of the attendant.
        let goes_on = self.core().goes_on_after(&why);
        match goes_on {
            true => _ = self.stream.shutdown(Shutdown::Both),
            false => self.hang_up(),
        }
        let (attend, link) = {
            let mut attend = self.attend.lock();
            (attend.take(), self.core().leave(&why))
        };
        self.hang_up();
        self.core().driven = None;
        match (attend, link) {
            (Some(attend), Some(link)) => attend.cut(why, link),
            (Some(attend), None) => attend.ended(why),
            (None, link) => drop(link),
        }
    }

    fn core(&self) -> MutexGuard<'_, WireCore> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let core = self.core.lock();
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        core
    }
}

/// The time after which a silent peer is lost, within what the kernel knows.
fn within(lost_after: Duration) -> Duration {
    lost_after.clamp(Duration::from_secs(1), LATEST_LOST)
}

/// Returns `true` if a connection between these addresses is within this machine.
///
/// Both are those of loopback, or they are the same: nothing that comes from outside has an address
/// of this machine.
pub(crate) fn is_here(theirs: SocketAddr, ours: SocketAddr) -> bool {
    let (theirs, ours) = (theirs.ip().to_canonical(), ours.ip().to_canonical());
    theirs.is_loopback() || theirs == ours
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
    /// Returns `true` if the session goes on after the end of the connection.
    fn goes_on_after(&self, why: &Lost) -> bool {
        !self.closing && self.link.survives() && why.is_cut()
    }

    /// Takes the link out, if its session goes on. Nothing more is sent here.
    fn leave(&mut self, why: &Lost) -> Option<HostLink> {
        self.goes_on_after(why).then(|| {
            self.closing = true;
            self.link.take_out()
        })
    }

    /// Writes until the kernel takes no more, all is written, or `goes_on` ends it after so many
    /// bytes. At first it writes `first` bytes at most.
    fn write(
        &mut self,
        stream: &TcpStream,
        first: usize,
        goes_on: impl Fn(usize) -> bool,
    ) -> Result<WroteAll, Lost> {
        let mut written = 0;
        while goes_on(written) {
            if self.secure.write(stream)? == Wrote::Some {
                return Ok(WroteAll::Full);
            }
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let most = if written == 0 { first } else { MOST_OUTPUT };
            let count = self.link.output_pieces(&mut pieces, most)?;
            if count == 0 {
                return Ok(WroteAll::Yes);
            }
            let count = self.secure.put(&pieces[..count], stream)?;
            if count == 0 {
                return Ok(WroteAll::Full);
            }
            self.link.sent(count);
            written += count;
        }
        Ok(WroteAll::Turn)
    }
}
