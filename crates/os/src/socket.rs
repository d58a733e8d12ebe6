//! The control socket: a Unix socket for messages and descriptors.
//!
//! It also reports the identity of the peer. It keeps message boundaries. It is used to bind and
//! for rare events only; no call passes through it. The identity comes from the kernel
//! (`SO_PEERCRED`, `SO_PEERPIDFD`), so a peer cannot choose it, and the pidfd stays right when the
//! process number is reused.

use crate::closer;
use crate::lock::{KernelCondvar, KernelMutex, MutexGuard};
use crate::process;
pub use crate::process::own_user;
use crate::processor::{self, CpuSet};
use crate::reaper::{self, DescriptorCopies};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum length of a message, in bytes.
///
/// It fits the kernel's default socket buffer.
pub const LONGEST: usize = 160 * 1024;

/// Maximum number of descriptors in one message.
pub const MOST_DESCRIPTORS: usize = 8;

/// Maximum number of descriptors that the kernel permits in one message (`SCM_MAX_FD`).
const MOST_THAT_COME: usize = 253;

/// The identity of the process at the other end, as the kernel reports it.
///
/// All of it dates from the time at which that process connected or called `listen`.
#[derive(Debug)]
pub struct Peer {
    /// The process's number in our PID namespace; 0 if the process is not visible there. Use it
    /// for reports only: [`Peer::process`] tells processes apart.
    pub pid: u32,
    /// The effective user, as numbered in our user namespace. A user without a number there has
    /// the overflow number, 65534 as a rule: see [`Peer::user`].
    pub uid: u32,
    /// The effective group, likewise.
    pub gid: u32,
    /// The supplementary groups, likewise.
    pub groups: Vec<u32>,
    /// A descriptor that becomes readable when the process ends. `None` on kernels before 6.5.
    pub pidfd: Option<OwnedFd>,
    /// The host that a peer on another host has proved to be, by the name under which it is trusted
    /// here. Nothing else is known of such a peer: `pid` is 0, and user and group are `u32::MAX`.
    pub host: Option<Arc<str>>,
}

impl Peer {
    /// A peer on another host, which has proved to be this one.
    pub fn on_host(host: Arc<str>) -> Self {
        let (pid, uid, gid) = (0, u32::MAX, u32::MAX);
        Self { pid, uid, gid, groups: Vec::new(), pidfd: None, host: Some(host) }
    }

    /// A process of this user of which nothing else is known.
    pub fn of_user(uid: u32) -> Self {
        Self { pid: 0, uid, gid: u32::MAX, groups: Vec::new(), pidfd: None, host: None }
    }

    /// The value that distinguishes the peer's process from all others.
    ///
    /// It does so in any namespace. `None` if the kernel shows neither a comparable pidfd nor a
    /// number.
    pub fn process(&self) -> Option<process::Identity> {
        let by_pidfd = self.pidfd.as_ref().and_then(process::identity);
        by_pidfd.or_else(|| process::identity_of_number(self.pid))
    }

    /// The effective user, if it has a number in our user namespace.
    ///
    /// `None` for a peer on another host, and for the overflow number, under which the kernel shows
    /// every user without one.
    pub fn user(&self) -> Option<u32> {
        (process::is_known_user(self.uid) && self.host.is_none()).then_some(self.uid)
    }
}

/// A received message: bytes that the peer chose, and descriptors of unknown kind.
#[derive(Debug, Default)]
pub struct SocketMessage {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The descriptors, closed on drop.
    pub descriptors: Vec<OwnedFd>,
    /// `true` if there were more descriptors, which are lost because the descriptor table is full.
    pub lost: bool,
    /// Dropped last, so that the thread that handles the message does not free the sender's memory.
    _kept: DescriptorCopies,
}

/// The result of a poll for a message.
#[derive(Debug)]
pub enum Received {
    /// A message.
    Message(SocketMessage),
    /// No message yet.
    Nothing,
    /// The other end is closed.
    Closed,
}

/// A socket that waits for connections under a path.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Listens at `path`, which must not exist.
    ///
    /// The file stays behind if the process is killed. A process whose connection to it is refused
    /// may remove it.
    ///
    /// # Errors
    /// The path exists (`EADDRINUSE`), is too long for a socket address (more than 107 bytes,
    /// `ENAMETOOLONG`), or its folder cannot be written.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let socket = seqpacket()?;
        net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        net::listen(&socket, 1024)?;
        Ok(Self(socket))
    }

    /// Takes the next connection, if one waits. Never blocks.
    ///
    /// # Errors
    /// No descriptor is left (`EMFILE`, `ENFILE`): the connection stays in the queue.
    pub fn accept(&self) -> io::Result<Option<Connection>> {
        match net::accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => Ok(Some(Connection::from(fd))),
            Err(
                rustix::io::Errno::AGAIN | rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR,
            ) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Accepts the waiting connections and hangs up: the kernel would close here what they carry.
impl Drop for Listener {
    fn drop(&mut self) {
        // No process connects after this, so that the loop ends.
        let _ = net::shutdown(&self.0, net::Shutdown::Both);
        while let Ok(Some(connection)) = self.accept() {
            drop(connection);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns `true` if [`Connection::peer`] failed because the peer has ended.
///
/// On some kernels it does not fail then.
pub fn says_ended(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ESRCH))
}

/// Returns `true` if [`Connection::connect`] failed for lack of a listener.
pub fn is_shut(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

/// A place in the descriptor table, kept in reserve.
///
/// With it, a process with a full table can still accept one connection and reject it with a
/// reason, and can open one descriptor that it closes again soon.
#[derive(Debug)]
pub struct Reserve {
    place: KernelMutex<ReservedDescriptor>,
    returned: KernelCondvar,
}

#[derive(Debug)]
struct ReservedDescriptor {
    held: Option<OwnedFd>,
    /// Number of descriptors that other threads are about to close. Any of them may be in the
    /// place. Only those of this epoch count.
    lent: usize,
    /// Number of waits in vain. Each gives up the descriptors that were lent before.
    epoch: u64,
    /// When the last wait in vain ended.
    in_vain: Option<Instant>,
}

/// A descriptor that another thread is about to close ([`Reserve::lend`]).
#[derive(Debug)]
pub struct Loan {
    epoch: u64,
}

/// Maximum time for which [`Reserve::spend`] waits for a descriptor that another thread closes.
const RETURN: Duration = Duration::from_millis(50);

/// Time without waiting after a wait in vain. Peers decide how long their descriptors are kept, and
/// with this limit can take at most one part in twenty of the waiting thread's time.
const IN_VAIN: Duration = Duration::from_secs(1);

impl Reserve {
    /// Takes the place.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let place =
            ReservedDescriptor { held: Some(Self::hold()?), lent: 0, epoch: 0, in_vain: None };
        Ok(Self { place: KernelMutex::new(place), returned: KernelCondvar::new() })
    }

    /// Opens a file of its own, so that the place also counts in the machine's table of open files.
    fn hold() -> io::Result<OwnedFd> {
        Ok(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?)
    }

    /// Frees the place while `work` runs, and takes it again afterwards.
    ///
    /// If the place is not free then, the next call takes it.
    ///
    /// # Blocks
    /// If another thread may have the place ([`Reserve::lend`]), this waits for that thread: for 50
    /// ms at most, and not within a second after a wait in vain.
    pub fn spend<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut place = self.awaited();
        drop(place.held.take());
        drop(place);
        let done = work();
        self.refill(&mut self.place());
        done
    }

    /// The place, with a descriptor in it if one is available.
    fn awaited(&self) -> MutexGuard<'_, ReservedDescriptor> {
        let mut place = self.place();
        let now = Instant::now();
        if place.in_vain.is_some_and(|at| now.saturating_duration_since(at) < IN_VAIN) {
            return place;
        }
        let ends = now + RETURN;
        while place.held.is_none() && place.lent > 0 {
            self.refill(&mut place);
            let left = ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                (place.lent, place.epoch, place.in_vain) =
                    (0, place.epoch + 1, Some(Instant::now()));
            } else if place.held.is_none() {
                place = self.returned.wait_timeout(place, left).0;
            }
        }
        place
    }

    /// Records that another thread has a descriptor that it will close soon.
    ///
    /// The descriptor may be in the place. [`Reserve::give_back`] records that it is closed.
    pub fn lend(&self) -> Loan {
        let mut place = self.place();
        place.lent += 1;
        Loan { epoch: place.epoch }
    }

    /// Records that a lent descriptor is closed, and takes the place again.
    pub fn give_back(&self, loan: Loan) {
        let mut place = self.place();
        if loan.epoch == place.epoch {
            place.lent -= 1;
        }
        self.refill(&mut place);
        self.returned.notify_all();
    }

    fn refill(&self, place: &mut ReservedDescriptor) {
        if place.held.is_none() {
            place.held = Self::hold().ok();
        }
    }

    fn place(&self) -> MutexGuard<'_, ReservedDescriptor> {
        self.place.lock()
    }
}

/// One end of a control connection.
///
/// All operations are non-blocking except [`Connection::receive_within`] and the others with a time
/// limit.
#[derive(Debug)]
pub struct Connection(ManuallyDrop<OwnedFd>);

fn seqpacket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

impl Connection {
    /// Connects to the process that listens at `path`.
    ///
    /// # Errors
    /// `ENOENT`: there is no such file. `ECONNREFUSED`: the process that called `listen` has ended,
    /// even if other processes hold its socket and the kernel would connect. `EAGAIN`: its queue is
    /// full. `EACCES`: this user may not connect.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = seqpacket()?;
        net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        let connection = Self::from(socket);
        match connection.peer_has_ended() {
            true => Err(rustix::io::Errno::CONNREFUSED.into()),
            false => Ok(connection),
        }
    }

    /// Connects, and waits until `deadline` for a place in a full queue.
    ///
    /// A queue is full if the listening process is busy or stopped.
    ///
    /// # Blocks
    /// The kernel thread, until then.
    ///
    /// # Errors
    /// As [`Connection::connect`]; `EAGAIN`: the queue was full until then.
    pub fn connect_until(path: &Path, deadline: Instant) -> io::Result<Self> {
        loop {
            match Self::connect(path) {
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                connected => return connected,
            }
        }
    }

    /// Two connected ends, for tests.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::from(a), Self::from(b)))
    }

    /// Sends one message, as a whole or not at all.
    ///
    /// # Errors
    /// `EPIPE` or `ECONNRESET`: the other end is closed. `EAGAIN`: its buffer is full. `EMSGSIZE`:
    /// the message is longer than the buffer.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other(format!(
                "more than {MOST_DESCRIPTORS} descriptors in one message"
            )));
        }
        net::sendmsg(&*self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Sends a request, whose reply is received next.
    ///
    /// The other end may have hung up before it has read the request. That is no error: the reply
    /// is what it sent before, and then the end of the connection.
    ///
    /// # Errors
    /// As [`send`](Self::send), except for `EPIPE` and `ECONNRESET`.
    pub fn ask(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        match self.send(bytes, descriptors) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                Ok(())
            }
            sent => sent,
        }
    }

    /// Polls for a message. Never blocks.
    ///
    /// # Errors
    /// A message longer than [`LONGEST`], with more descriptors than [`MOST_DESCRIPTORS`], or with
    /// a descriptor that is neither a memory file nor an eventfd. The message is lost, and the
    /// connection is of no more use. The same holds if there is no memory for a message, or if many
    /// descriptors of the peer's user cannot be closed.
    pub fn receive(&self) -> io::Result<Received> {
        if self.is_crowded() {
            return Err(io::Error::other(
                "descriptors that processes of the peer's user sent cannot be closed",
            ));
        }
        thread_local! {
            static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.is_empty() {
                buffer.try_reserve_exact(LONGEST).map_err(|_| io::ErrorKind::OutOfMemory)?;
                buffer.resize(LONGEST, 0);
            }
            self.receive_by(buffer)
        })
    }

    fn receive_by(&self, bytes: &mut [u8]) -> io::Result<Received> {
        // There is room for all that can arrive: descriptors without room would be closed by the
        // kernel here and now. Credentials come before the descriptors, once `has_unread` has
        // enabled them.
        let mut space = [MaybeUninit::uninit();
            rustix::cmsg_space!(ScmRights(MOST_THAT_COME), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut reset = false;
        let got = loop {
            let mut parts = [IoSliceMut::new(bytes)];
            match net::recvmsg(&*self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(got) => break got,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                    return Ok(Received::Nothing);
                }
                // The other end closed without reading all. The kernel reports this once, and
                // before what that end had sent until then.
                Err(rustix::io::Errno::CONNRESET) if !reset => reset = true,
                Err(rustix::io::Errno::CONNRESET) => return Ok(Received::Closed),
                Err(error) => return Err(error.into()),
            }
        };
        let mut descriptors = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                descriptors.extend(fds);
            }
        }
        let (descriptors, others): (Vec<_>, Vec<_>) =
            descriptors.into_iter().partition(closer::is_plain);
        let strange = !others.is_empty();
        closer::close(others, self.user());
        let mut copy = Vec::new();
        let useless = if got.flags.contains(ReturnFlags::TRUNC) {
            Err(io::Error::other(format!("a control message of more than {LONGEST} bytes")))
        } else if strange {
            Err(io::Error::other(
                "a control message with a descriptor that is neither memory nor a doorbell",
            ))
        } else if descriptors.len() > MOST_DESCRIPTORS {
            Err(io::Error::other(format!(
                "a control message with more than {MOST_DESCRIPTORS} descriptors"
            )))
        } else if got.bytes == 0 {
            Ok(Received::Closed)
        } else if copy.try_reserve_exact(got.bytes).is_err() {
            Err(io::ErrorKind::OutOfMemory.into())
        } else {
            copy.extend_from_slice(&bytes[..got.bytes]);
            let (lost, kept) =
                (got.flags.contains(ReturnFlags::CTRUNC), DescriptorCopies::of(&descriptors));
            return Ok(Received::Message(SocketMessage {
                bytes: copy,
                descriptors,
                lost,
                _kept: kept,
            }));
        };
        // The sender may have closed them already, and then this frees their memory.
        reaper::close(descriptors);
        useless
    }

    /// Waits for a message: polls for `eager`, then blocks until `limit`.
    ///
    /// `limit` counts from the beginning. A thread that is confined to one processor yields between
    /// polls, since the sender may have only that processor.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn receive_within(&self, eager: Duration, limit: Duration) -> io::Result<Received> {
        let start = Instant::now();
        let single = CpuSet::allowed().is_ok_and(|allowed| allowed.count() < 2);
        loop {
            match self.receive()? {
                Received::Nothing => {}
                found => return Ok(found),
            }
            let spent = start.elapsed();
            if spent >= limit {
                return Ok(Received::Nothing);
            }
            if spent >= eager {
                let rest =
                    rustix::time::Timespec::try_from(limit - spent).map_err(io::Error::other)?;
                let _ =
                    rustix::event::poll(&mut [PollFd::new(&*self.0, PollFlags::IN)], Some(&rest));
            } else if single {
                processor::give_way();
            }
        }
    }

    /// Returns `true` if a message waits.
    ///
    /// This includes a message without bytes, which otherwise looks like the end of the connection.
    /// From here on the kernel adds its sender's credentials to each message. This call has no room
    /// for them, which the kernel reports.
    fn has_unread(&self) -> bool {
        let _ = net::sockopt::set_socket_passcred(&*self.0, true);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        loop {
            match net::recvmsg(&*self.0, &mut [], &mut RecvAncillaryBuffer::default(), flags) {
                Ok(found) => {
                    return found.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC);
                }
                // The kernel reports this once, before the messages that were sent until then.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
                Err(_) => return false,
            }
        }
    }

    /// Ends the connection: both sides see it closed.
    pub fn shut_down(&self) {
        let _ = net::shutdown(&*self.0, net::Shutdown::Both);
    }

    /// Returns the identity of the process at the other end.
    ///
    /// # Errors
    /// The process has ended (`EINVAL` or `ESRCH` of `SO_PEERPIDFD`; newer kernels know ended
    /// processes too), no descriptor is left, or the kernel's refusal.
    pub fn peer(&self) -> io::Result<Peer> {
        let credentials = self.credentials()?;
        let pidfd = match self.peer_pidfd() {
            Ok(fd) => Some(fd),
            // Linux before 6.5. Without the pidfd, only the closing of the socket reports the
            // peer's end.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => None,
            // The other end of a pair made by `pair` is ourselves and has no recorded process.
            Err(error) if error.raw_os_error() == Some(libc::ENODATA) => None,
            Err(error) => return Err(error),
        };
        let groups = self.groups()?;
        Ok(Peer {
            pid: credentials.pid.unsigned_abs(),
            uid: credentials.uid,
            gid: credentials.gid,
            groups,
            pidfd,
            host: None,
        })
    }

    /// The peer's user, or a number that no user has if the kernel does not report it.
    fn user(&self) -> u32 {
        self.credentials().map_or(u32::MAX, |credentials| credentials.uid)
    }

    /// Returns `true` if too many descriptors of the peer's user wait to be closed.
    fn is_crowded(&self) -> bool {
        closer::is_crowded(|| self.user())
    }

    /// The peer's credentials.
    ///
    /// The kernel reports the number 0 for a process in a PID namespace that ours does not contain.
    fn credentials(&self) -> io::Result<libc::ucred> {
        let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: `found` and `len` are valid for writes of the sizes that are passed, `ucred`
        // holds plain numbers, and the socket is open.
        let done = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut len,
            )
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        if len as usize != size_of::<libc::ucred>() {
            return Err(io::Error::other("the kernel returned credentials of another size"));
        }
        Ok(found)
    }

    /// The peer's supplementary groups.
    fn groups(&self) -> io::Result<Vec<u32>> {
        // Enough for most processes; if not, the kernel reports the number of groups.
        let mut groups = vec![0_u32; 64];
        loop {
            let mut len =
                libc::socklen_t::try_from(size_of_val(&*groups)).map_err(io::Error::other)?;
            // SAFETY: `groups` is valid for writes of `len` bytes, `len` for writes, and the socket
            // is open.
            let done = unsafe {
                libc::getsockopt(
                    self.0.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_PEERGROUPS,
                    groups.as_mut_ptr().cast(),
                    &raw mut len,
                )
            };
            let count = len as usize / size_of::<u32>();
            if done == 0 {
                groups.truncate(count);
                return Ok(groups);
            }
            match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ERANGE) && count > groups.len() => {
                    groups.resize(count, 0)
                }
                // A pair made by `pair` has no recorded process.
                error if error.raw_os_error() == Some(libc::ENODATA) => return Ok(Vec::new()),
                error => return Err(error),
            }
        }
    }

    fn peer_pidfd(&self) -> io::Result<OwnedFd> {
        const SO_PEERPIDFD: libc::c_int = 77;
        let mut fd: libc::c_int = -1;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: `fd` and `len` are valid for writes of the sizes that are passed, and the socket
        // is open.
        let done = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERPIDFD,
                (&raw mut fd).cast(),
                &raw mut len,
            )
        };
        if done != 0 || fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us, and it has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Returns `true` if the process at the other end has ended.
    ///
    /// That is the process that connected, or the process that called `listen`. Its descriptors may
    /// live on in other processes, which it forked or gave them to, and then the kernel connects
    /// all the same. On kernels before 6.5 the end is not known, and the result is `false`.
    fn peer_has_ended(&self) -> bool {
        self.peer_ends_within(Duration::ZERO)
    }

    /// Returns `true` if the peer's process has ended or ends within `patience`.
    ///
    /// A process that is killed closes its connections some moments before it has ended.
    ///
    /// # Blocks
    /// The kernel thread, for as long as `patience` if the process lives.
    pub fn peer_ends_within(&self, patience: Duration) -> bool {
        match self.peer_pidfd() {
            Ok(process) => ends_within(process, patience),
            Err(error) => says_ended(&error),
        }
    }

    /// Waits for a message, and for the end of `process`.
    ///
    /// It waits as [`Connection::receive_within`] does. The end of `process` is reported as
    /// `Closed`: another process may hold the other end open after that.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn receive_while(
        &self,
        process: BorrowedFd<'_>,
        eager: Duration,
        limit: Duration,
    ) -> io::Result<Received> {
        let start = Instant::now();
        match self.receive_within(eager, eager.min(limit))? {
            Received::Nothing => {}
            found => return Ok(found),
        }
        loop {
            let rest = limit.saturating_sub(start.elapsed());
            let time = rustix::time::Timespec::try_from(rest).map_err(io::Error::other)?;
            let mut both = [
                PollFd::new(&*self.0, PollFlags::IN),
                PollFd::from_borrowed_fd(process, PollFlags::IN),
            ];
            let _ = rustix::event::poll(&mut both, Some(&time));
            let ended = !both[1].revents().is_empty();
            match self.receive()? {
                Received::Nothing if ended => return Ok(Received::Closed),
                Received::Nothing if rest.is_zero() => return Ok(Received::Nothing),
                Received::Nothing => {}
                found => return Ok(found),
            }
        }
    }
}

/// Unread messages are taken out first. Otherwise the kernel would close their descriptors here,
/// which may take as long as the sender likes.
impl Drop for Connection {
    fn drop(&mut self) {
        // From here on nothing more arrives.
        self.shut_down();
        while self.has_unread() {
            if self.is_crowded() {
                // SAFETY: the field is not used any more: `self` is being dropped, and this
                // returns.
                return closer::hang_up(unsafe { ManuallyDrop::take(&mut self.0) });
            }
            // The short buffer cuts the message off, as is intended here.
            drop(self.receive_by(&mut [0; 16]));
        }
        // SAFETY: the field is not used any more: `self` is being dropped.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

impl From<OwnedFd> for Connection {
    fn from(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Maximum number of descriptors of this process: its soft limit (`ulimit -n`).
///
/// The largest number if there is no limit.
pub fn most_descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// Returns `true` if the process behind a pidfd has ended. Never blocks.
pub fn has_ended(pidfd: impl AsFd) -> bool {
    ends_within(pidfd, Duration::ZERO)
}

/// Returns `true` if a process has ended or ends within `patience`.
///
/// # Blocks
/// The kernel thread until the process ends, for as long as `patience` at most.
pub fn ends_within(pidfd: impl AsFd, patience: Duration) -> bool {
    let ends = Instant::now() + patience;
    loop {
        let left = ends.saturating_duration_since(Instant::now());
        let limit = rustix::time::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            found => return matches!(found, Ok(n) if n > 0),
        }
    }
}

/// Returns `true` if a process can do nothing but end.
///
/// Such a process was killed (SIGKILL is on its way), or is already exiting. That takes a while if
/// it has much memory, and until then its sockets look alive. Returns `false` if /proc does not
/// show the process, or it has ended.
pub fn is_ending(pid: u32) -> bool {
    const EXITING: u64 = 0x4; // PF_EXITING of linux/sched.h, in the ninth word of proc_pid_stat(5)
    const KILL: u64 = 1 << (9 - 1);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = |line: &str| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    process::stat(pid, 9).is_some_and(|flags| flags & EXITING != 0)
        || status.lines().filter_map(pending).any(|mask| mask & KILL != 0)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::memory::MemoryFile;

    #[test]
    fn bytes_and_descriptors_arrive_together() {
        let (a, b) = Connection::pair().unwrap();
        let file = MemoryFile::create("t", 4096).unwrap();
        a.send(b"hello", &[file.as_fd()]).unwrap();
        let Received::Message(message) = b.receive().unwrap() else { panic!("no message") };
        assert_eq!(message.bytes, b"hello");
        let [fd] = <[_; 1]>::try_from(message.descriptors).unwrap();
        assert_eq!(MemoryFile::adopt(fd, 4096).unwrap().len(), 4096);
        assert!(matches!(b.receive().unwrap(), Received::Nothing));
        drop(a);
        assert!(matches!(b.receive().unwrap(), Received::Closed));
    }

    #[test]
    fn last_words_are_heard_from_who_did_not_listen() {
        let (a, b) = Connection::pair().unwrap();
        b.send(b"not read", &[]).unwrap();
        a.send(b"farewell", &[]).unwrap();
        drop(a);
        let Received::Message(message) = b.receive().unwrap() else { panic!("no message") };
        assert_eq!(message.bytes, b"farewell");
        assert!(matches!(b.receive().unwrap(), Received::Closed));
        // Even if a send reports the end first, that does not hide what was sent before it.
        let (a, b) = Connection::pair().unwrap();
        b.send(b"not read", &[]).unwrap();
        a.send(b"farewell", &[]).unwrap();
        drop(a);
        assert!(b.send(b"too late", &[]).is_err());
        assert!(matches!(b.receive().unwrap(), Received::Message(_)));
    }

    #[test]
    fn one_that_hung_up_before_it_was_asked_has_answered() {
        for words in [&[][..], &[b"it lacks a descriptor"]] {
            let (a, b) = Connection::pair().unwrap();
            words.iter().for_each(|word| a.send(*word, &[]).unwrap());
            drop(a);
            b.ask(b"a request", &[]).unwrap();
            for word in words {
                let Received::Message(message) = b.receive().unwrap() else { panic!("no message") };
                assert_eq!(message.bytes, *word);
            }
            assert!(matches!(b.receive().unwrap(), Received::Closed));
        }
        let (_a, b) = Connection::pair().unwrap();
        assert_eq!(b.ask(&vec![0; 1 << 24], &[]).unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
    }

    /// Returns `true` if this process has a memory file of this name open.
    fn is_open(name: &str) -> bool {
        let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        entries
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .any(|target| target.to_string_lossy().contains(name))
    }

    #[test]
    fn memory_of_useless_messages_is_not_freed_by_who_hears_them() {
        /// Holds up the reaper until a message arrives.
        struct Holds(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>);
        impl Drop for Holds {
            fn drop(&mut self) {
                let _ = self.0.send(());
                let _ = self.1.recv();
            }
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        for (at, (bytes, strange, is_heard)) in
            [(&b"x"[..], true, true), (b"", false, true), (b"x", false, false), (b"x", true, false)]
                .into_iter()
                .enumerate()
        {
            let name = format!("upcall-useless-{at}");
            let ((held, is_held), (go, may_go)) =
                (std::sync::mpsc::channel(), std::sync::mpsc::channel());
            reaper::free(Holds(held, may_go), reaper::PIECE + 1);
            is_held.recv().unwrap();
            let (a, b) = Connection::pair().unwrap();
            let file = MemoryFile::create(&name, 1 << 20).unwrap();
            file.allocate().unwrap();
            let both = [file.as_fd(), null.as_fd()];
            a.send(bytes, if strange { &both } else { &both[..1] }).unwrap();
            drop((a, file));
            assert!(!is_open(&name), "only the message holds it");
            if is_heard {
                assert!(matches!(b.receive(), Err(_) | Ok(Received::Closed)), "{at}");
            } else {
                drop(b);
            }
            assert!(is_open(&name), "{at}: the receiver of the message has freed its memory");
            go.send(()).unwrap();
            let start = Instant::now();
            while is_open(&name) {
                assert!(start.elapsed() < Duration::from_secs(60), "{at}: it is not closed");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn what_was_not_read_is_closed_where_nobody_waits() {
        for bytes in [&b"x"[..], b""] {
            let (a, b) = Connection::pair().unwrap();
            assert!(!b.has_unread());
            a.send(bytes, &[]).unwrap();
            assert!(b.has_unread());
            let (mut reader, writer) = std::io::pipe().unwrap();
            (0..3).for_each(|_| a.send(bytes, &[writer.as_fd()]).unwrap());
            drop((a, writer));
            for _ in 0..4 {
                assert!(b.has_unread());
                let found = b.receive();
                assert!(
                    found.is_err() || matches!(found, Ok(Received::Message(_) | Received::Closed)),
                    "{found:?}"
                );
            }
            assert!(!b.has_unread() && matches!(b.receive().unwrap(), Received::Closed));
            // The same if the connection is dropped without having been read.
            let (a, b) = Connection::pair().unwrap();
            let (mut other, writer) = std::io::pipe().unwrap();
            a.send(bytes, &[]).unwrap();
            a.send(bytes, &[writer.as_fd()]).unwrap();
            drop((b, writer));
            assert_eq!(std::io::Read::read(&mut reader, &mut [0]).unwrap(), 0);
            assert_eq!(std::io::Read::read(&mut other, &mut [0]).unwrap(), 0);
        }
    }

    /// A socket whose last close waits for an hour, and the other end, which does not read.
    fn lingering() -> (std::net::TcpStream, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut socket, &[1; 65_536]).is_ok() {}
        net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
        (socket, listener.accept().unwrap().0)
    }

    #[test]
    fn lingering_sockets_do_not_hold_up_connections_that_are_hung_up() {
        let connection = |carried: &dyn AsFd| {
            let (a, b) = Connection::pair().unwrap();
            a.send(b"x", &[carried.as_fd()]).unwrap();
            b
        };
        let (mut first, writer) = std::io::pipe().unwrap();
        // One for each closing thread, so that none is left for the last connection.
        let (slow, mute): (Vec<_>, Vec<_>) = (0..closer::MOST).map(|_| lingering()).unzip();
        let carried = slow.iter().map(|socket| socket as &dyn AsFd).chain([&writer as &dyn AsFd]);
        let connections: Vec<_> = carried.map(connection).map(ManuallyDrop::new).collect();
        // From here on only the messages have them.
        drop((slow, writer));
        for mut connection in connections {
            // SAFETY: the connection is not used any more.
            closer::hang_up(unsafe { ManuallyDrop::take(&mut connection.0) });
        }
        assert_eq!(std::io::Read::read(&mut first, &mut [0]).unwrap(), 0);
        drop(mute);
    }

    #[test]
    fn the_peer_is_known() {
        let folder = std::env::temp_dir().join(format!("upcall-os-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("s");
        let listener = Listener::bind(&path).unwrap();
        assert!(Listener::bind(&path).is_err());
        let client = Connection::connect(&path).unwrap();
        let server = listener.accept().unwrap().unwrap();
        assert_eq!(client.peer().unwrap().pid, std::process::id());
        let peer = server.peer().unwrap();
        assert_eq!((peer.uid, peer.user()), (own_user(), Some(own_user())));
        let mut own: Vec<_> = rustix::process::getgroups()
            .unwrap()
            .into_iter()
            .map(rustix::fs::Gid::as_raw)
            .collect();
        let mut groups = peer.groups.clone();
        own.sort_unstable();
        groups.sort_unstable();
        assert_eq!(groups, own);
        assert_eq!(peer.process(), client.peer().unwrap().process());
        assert!(peer.process().is_some());
        assert!(!has_ended(peer.pidfd.unwrap()));
        drop(listener);
        assert_eq!(
            Connection::connect(&path).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        std::fs::remove_dir_all(folder).unwrap();
    }
}
