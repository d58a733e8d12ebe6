//! A connection: read by one kernel thread, and written by another.
//!
//! The writing thread writes only the bytes that the kernel does not take at once.
//!
//! # How the end of the other side is noticed
//! When a process ends, its kernel closes its connections, which the other side notices at once.
//! When a machine or a cable is gone, nothing arrives: after [`IDLE`] of silence the kernel probes
//! the other side, and again every [`AGAIN`]. If probes are not answered, or sent bytes not
//! acknowledged, for [`SILENT`], the connection is lost. The answer comes from the other side's
//! kernel, so a stopped process counts as alive, as it does where memory is shared. Upcall sends no
//! heartbeat of its own.
//!
//! # Slow peers
//! Once a message has begun it has to arrive at [`SLOWEST`] bytes a second at least, after
//! [`GRACE`]. Between two messages a side may be silent as long as it likes.

use crate::frame::{Deframer, Frame, FrameError, FrameHeader, PREAMBLE, Preamble};
use rustix::net::SendFlags;
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::mem::take;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::lock::{KernelCondvar, KernelMutex, MutexGuard};
use upcall_os::memory::free_in_pieces;

/// Time of silence after which the kernel probes the other side.
pub const IDLE: Duration = Duration::from_secs(10);
/// Interval between further probes.
pub const AGAIN: Duration = Duration::from_secs(5);
/// Time after which a peer that answers no probe is lost.
///
/// The same holds for a peer that does not acknowledge bytes.
pub const SILENT: Duration = Duration::from_secs(25);
/// Time that a message may take, plus a second for each [`SLOWEST`] bytes.
pub const GRACE: Duration = Duration::from_secs(10);
/// Minimum rate of a message after [`GRACE`], in bytes per second.
pub const SLOWEST: usize = 64 << 10;

/// Size of the buffer that a connection's bytes are read into, in bytes.
const PIECE: usize = 64 << 10;
const STACK: usize = 128 << 10;

/// Why a connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The other side closed the connection, often because its process ended.
    Ended,
    /// The kernel's error.
    Error(String),
    /// The other side sent bytes that are not a message, or not the right one.
    Broken(FrameError),
    /// The other side began a message and did not finish it in time.
    Slow,
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
            Self::Error(error) => f.write_str(error),
            Self::Broken(how) => write!(f, "the other side broke the protocol: {how}"),
            Self::Slow => write!(f, "the other side began a message and did not finish it in time"),
        }
    }
}

impl From<FrameError> for Lost {
    fn from(how: FrameError) -> Self {
        Self::Broken(how)
    }
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        Self::Error(error.to_string())
    }
}

/// Handles what is read. Called only on the reading thread.
pub trait Attend: Send {
    /// A message has begun. Returns `true` if its body is wanted.
    ///
    /// # Errors
    /// Such a message is not allowed; the connection is closed.
    fn begun(&mut self, head: &FrameHeader) -> Result<bool, FrameError>;

    /// A message has arrived. Must not block for long, because nothing else is read until it
    /// returns.
    ///
    /// # Errors
    /// As [`Attend::begun`].
    fn came(&mut self, frame: Frame) -> Result<(), FrameError>;

    /// The connection has ended.
    fn ended(self: Box<Self>, why: Lost);
}

/// An object that is kept until bytes are written, and then dropped.
pub type BufferOwner = Box<dyn Any + Send>;

/// A connection; see the module.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    peer: SocketAddr,
    out: KernelMutex<Out>,
    more: KernelCondvar,
}

#[derive(Default)]
struct Out {
    queue: VecDeque<QueuedWrite>,
    /// The writing thread is sending a piece, so other pieces queue behind it.
    writing: bool,
    /// The connection has ended or is being closed: `send` takes nothing more.
    closing: bool,
}

struct QueuedWrite {
    bytes: Vec<u8>,
    done: usize,
    _kept: Option<BufferOwner>,
}

/// Frees the memory in pieces, because a peer decided how long it is.
impl Drop for QueuedWrite {
    fn drop(&mut self) {
        free_in_pieces(take(&mut self.bytes), upcall_sched::PIECE, |_| {});
    }
}

impl fmt::Debug for Out {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Out")
            .field("queued", &self.queue.len())
            .field("closing", &self.closing)
            .finish_non_exhaustive()
    }
}

impl Wire {
    /// Prepares a connection on which nothing was sent yet.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(stream: TcpStream) -> io::Result<Arc<Self>> {
        use rustix::net::sockopt;
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, IDLE)?;
        sockopt::set_tcp_keepintvl(&stream, AGAIN)?;
        sockopt::set_tcp_user_timeout(&stream, SILENT.as_millis() as u32)?;
        let peer = stream.peer_addr()?;
        Ok(Arc::new(Self { stream, peer, out: KernelMutex::default(), more: KernelCondvar::new() }))
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

    /// Exchanges preambles, until `deadline` at most.
    ///
    /// This comes before [`Wire::start`].
    ///
    /// # Errors
    /// The reason why the connection cannot be used.
    ///
    /// # Blocking
    /// Blocks the kernel thread.
    pub fn greet(&self, own: Preamble, deadline: Instant) -> Result<Preamble, Lost> {
        (&self.stream).write_all(&own.to_bytes())?;
        let (mut bytes, mut have) = ([0; PREAMBLE], 0);
        while have < PREAMBLE {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Lost::Slow);
            }
            self.stream.set_read_timeout(Some(left))?;
            match (&self.stream).read(&mut bytes[have..]) {
                Ok(0) => return Err(Lost::Ended),
                Ok(count) => have += count,
                Err(error) if may_go_on(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.stream.set_read_timeout(None)?;
        Ok(Preamble::read(&bytes)?)
    }

    /// Starts to read and to write, on two kernel threads that end with the connection.
    ///
    /// # Errors
    /// There is no kernel thread left. The connection cannot be used then.
    pub fn start(self: &Arc<Self>, attend: Box<dyn Attend>) -> io::Result<()> {
        self.start_to_write()?;
        let reader = self.clone();
        let started = thread("upcall-net-in").spawn(move || reader.attend(&[], attend));
        started.inspect_err(|_| self.hang_up())?;
        Ok(())
    }

    /// Starts to write, on a kernel thread that ends with the connection.
    ///
    /// # Errors
    /// There is no kernel thread left.
    pub fn start_to_write(self: &Arc<Self>) -> io::Result<()> {
        let writer = self.clone();
        thread("upcall-net-out").spawn(move || writer.write())?;
        Ok(())
    }

    /// Reads on the calling kernel thread until the connection ends.
    ///
    /// `first` was read already.
    pub fn attend(&self, first: &[u8], mut attend: Box<dyn Attend>) {
        let why = self.read(first, &mut *attend);
        self.hang_up();
        attend.ended(why);
    }

    fn read(&self, first: &[u8], attend: &mut dyn Attend) -> Lost {
        let mut deframer = Deframer::default();
        let mut buffer = vec![0; PIECE.max(first.len())];
        buffer[..first.len()].copy_from_slice(first);
        let mut before = first.len();
        // When the current message began.
        let mut began: Option<Instant> = None;
        loop {
            let read = match take(&mut before) {
                0 => (&self.stream).read(&mut buffer),
                count => Ok(count),
            };
            match read {
                Ok(0) => return Lost::Ended,
                Ok(count) => {
                    let mut bytes = &buffer[..count];
                    while !bytes.is_empty() {
                        let came = deframer.take(&mut bytes, |head| attend.begun(head));
                        let told =
                            came.and_then(|frame| frame.map_or(Ok(()), |frame| attend.came(frame)));
                        if let Err(how) = told {
                            return how.into();
                        }
                        if deframer.is_between() {
                            began = None;
                        }
                    }
                }
                Err(error) if may_go_on(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Lost::Ended,
                Err(error) => return error.into(),
            }
            let waits = if deframer.is_between() {
                None
            } else {
                let ends = *began.get_or_insert_with(Instant::now) + time_for(deframer.under_way());
                let left = ends.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Lost::Slow;
                }
                Some(left)
            };
            if self.stream.read_timeout().ok() != Some(waits)
                && let Err(error) = self.stream.set_read_timeout(waits)
            {
                return error.into();
            }
        }
    }

    /// Sends bytes, as many as the kernel takes at once.
    ///
    /// The writing thread sends the rest.
    ///
    /// Never blocks. `kept` is dropped when all bytes are written, or when the connection has
    /// ended. A connection that has ended drops the bytes.
    pub fn send(&self, bytes: Vec<u8>, kept: Option<BufferOwner>) {
        let mut piece = QueuedWrite { bytes, done: 0, _kept: kept };
        let mut out = self.out();
        if out.closing {
            return;
        }
        if out.queue.is_empty() && !out.writing {
            while piece.done < piece.bytes.len() {
                let sent = rustix::net::send(
                    &self.stream,
                    &piece.bytes[piece.done..],
                    SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
                );
                match sent {
                    Ok(count) => piece.done += count,
                    Err(rustix::io::Errno::INTR) => {}
                    // The writing thread tries again, and gets the error if there is one.
                    Err(_) => break,
                }
            }
            if piece.done == piece.bytes.len() {
                return;
            }
        }
        out.queue.push_back(piece);
        drop(out);
        self.more.notify_one();
    }

    /// Number of messages that wait to be written because the other side does not read.
    pub fn unsent(&self) -> usize {
        self.out().queue.len()
    }

    /// Ends the connection in both directions. The reading thread notices.
    pub fn hang_up(&self) {
        let mut out = self.out();
        out.closing = true;
        let dropped = take(&mut out.queue);
        drop(out);
        drop(dropped);
        let _ = self.stream.shutdown(Shutdown::Both);
        self.more.notify_one();
    }

    /// Writes what is queued until the connection closes.
    fn write(&self) {
        while let Some(piece) = self.next_piece() {
            let written = (&self.stream).write_all(&piece.bytes[piece.done..]);
            // Drops what the piece kept before the next one is taken.
            drop(piece);
            self.out().writing = false;
            if written.is_err() {
                return self.hang_up();
            }
        }
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn next_piece(&self) -> Option<QueuedWrite> {
        let mut out = self.out();
        loop {
            if let Some(piece) = out.queue.pop_front() {
                out.writing = true;
                return Some(piece);
            }
            if out.closing {
                return None;
            }
            out = self.more.wait(out);
        }
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock()
    }
}

fn thread(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.into()).stack_size(STACK)
}

/// Time that a message of this many bytes may take.
fn time_for(bytes: usize) -> Duration {
    GRACE + Duration::from_secs((bytes / SLOWEST) as u64)
}

/// Returns `true` for this side's own read timeout, or a signal.
///
/// `TimedOut` is different: the kernel reports by it that the other side is gone.
fn may_go_on(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
