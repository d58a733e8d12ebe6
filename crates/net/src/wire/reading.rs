//! Reading a connection.

use super::{Wire, WireCore, WroteAll};
use crate::attend::{Attend, dispatch, take};
use crate::incoming::LinkEvent;
use crate::lost::Lost;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::net::Shutdown;
use std::time::Instant;

/// Size of the driver's buffer, in bytes.
pub(crate) const BUFFER: usize = 64 << 10;
/// Size of the buffer that a caller reads into, in bytes: that of a record of TLS.
const SHORT: usize = (16 << 10) + 512;
/// Number of buffers that are read from one connection before others get a turn.
const TURN: usize = 4;

/// Whether a caller has read in place of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadHere {
    /// It has, and what it waited for has arrived.
    Done,
    /// Another thread reads, or has to go on.
    No,
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

impl Wire {
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
            core.callers += 1;
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
        core.callers -= 1;
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
}

impl WireCore {
    fn take(
        &mut self,
        bytes: &mut &[u8],
        now: Instant,
        attend: &mut dyn Attend,
        events: &mut Vec<LinkEvent>,
    ) -> Result<(), Lost> {
        let Self { link, secure, .. } = self;
        secure.take(bytes, |plain| take(link, plain, now, attend, events))?
    }
}
