//! Handing on what has arrived on a connection.

use crate::frame::{Frame, FrameBody, FrameError, FrameHeader};
use crate::incoming::{LinkEvent, Wanted};
use crate::link::HostLink;
use crate::lost::Lost;
use crate::outgoing::BufferOwner;
use std::time::Instant;

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

    /// The body of a farewell, which the other side gets before this side ends the connection for
    /// this reason. `None` if it gets none.
    fn farewell(&self, _why: &Lost) -> Option<FrameBody> {
        None
    }

    /// The connection has ended, and the session with it.
    fn ended(self: Box<Self>, why: Lost);

    /// The connection is lost, and the session can go on with another one. `link` has what the
    /// other side may not have received.
    fn cut(self: Box<Self>, why: Lost, link: HostLink) {
        drop(link);
        self.ended(why);
    }
}

/// Takes plain bytes. `attend` judges messages that begin; those that are complete go to `events`.
pub(crate) fn take(
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
pub(crate) fn dispatch(events: Vec<LinkEvent>, attend: &mut dyn Attend) -> Result<(), Lost> {
    for event in events {
        match event {
            LinkEvent::Came(frame, owner) => attend.came(frame, owner)?,
            LinkEvent::GivenUp(head) => attend.given_up(head)?,
        }
    }
    Ok(())
}
