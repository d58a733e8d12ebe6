//! What members in other languages need: kinds of messages whose signatures are told when the
//! program runs ([`Carried`]), payloads as bytes, a wait that something else ends.
//!
//! Such members are members like others: what is checked by types in Rust is checked here when a
//! message is sent, and again, on a copy, when it has arrived. One that does not carry what its
//! kind says is a violation of its sender's.

use crate::group::Group;
use crate::kinds::{Handlers, MOST_KINDS, OWN};
use crate::message::Kind;
use crate::payload::{Payload, Reader, Writer};
use crate::signature::{Carried, Unfit};
use crate::{Interrupt, Message, NothingThere, Rank, RunError, SendError};
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// So long a member waits at most before it asks whether it is interrupted.
const LOOK: Duration = Duration::from_millis(500);

/// A kind of message by its signature. Good for the group that is joined with the [`Handlers`]
/// which it came from.
#[derive(Clone, Debug)]
pub struct ForeignKind {
    index: u16,
    carries: Rc<Carried>,
    /// Of `carries`.
    size: Option<usize>,
}

impl ForeignKind {
    /// Its place among those that were registered.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// What it carries.
    pub fn carries(&self) -> &Carried {
        &self.carries
    }

    /// [`Carried::size`].
    #[inline]
    pub fn size(&self) -> Option<usize> {
        self.size
    }

    /// Whether so many bytes can be a payload of this kind: all that is to be said of one that lies
    /// where its sender can still write. More is to be said of a copy ([`check`](Self::check)).
    pub fn may_have(&self, bytes: usize) -> bool {
        match (self.size, &*self.carries) {
            (Some(expected), _) => bytes == expected,
            (None, Carried::AnyWords) => bytes.is_multiple_of(8),
            (None, _) => true,
        }
    }

    /// [`Carried::check`].
    ///
    /// # Errors
    /// It is no payload of this kind's: why.
    #[inline]
    pub fn check(&self, payload: &[u8]) -> Result<(), Unfit> {
        self.carries.check_of_size(self.size, payload)
    }
}

/// Why there is no kind of message of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadKind {
    /// There is one already.
    Taken {
        /// The name.
        name: String,
    },
    /// It is one of those that groups have for themselves.
    Own {
        /// The name.
        name: String,
    },
    /// There are as many as there can be.
    TooMany,
}

impl fmt::Display for BadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken { name } => write!(f, "there is a kind of message {name:?} already"),
            Self::Own { name } => {
                write!(
                    f,
                    "{name:?} cannot be a kind of message: names with {OWN:?} are those of the group's own"
                )
            }
            Self::TooMany => write!(f, "more than {MOST_KINDS} kinds of messages"),
        }
    }
}

impl std::error::Error for BadKind {}

/// A payload that was checked.
pub(crate) struct Checked<'a>(pub(crate) &'a [u8]);

impl Payload for Checked<'_> {
    type Owned = ();

    fn signature() -> String {
        String::new()
    }

    #[inline(always)]
    fn size(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn write(&self, writer: &mut Writer<'_, '_>) {
        match self.0.as_chunks() {
            (words, []) if words.len() <= 16 => {
                words.iter().for_each(|word| writer.word(u64::from_ne_bytes(*word)))
            }
            _ => writer.bytes(self.0),
        }
    }

    fn read(_: &mut Reader<'_, '_>) -> Option<()> {
        None
    }
}

impl Handlers {
    /// Another kind of message, as [`kind`](Self::kind).
    ///
    /// # Errors
    /// See [`BadKind`].
    pub fn foreign(&mut self, name: &str, carries: Carried) -> Result<ForeignKind, BadKind> {
        if name.starts_with(OWN) {
            return Err(BadKind::Own { name: name.into() });
        }
        if self.kinds.iter().any(|(known, _)| known == name) {
            return Err(BadKind::Taken { name: name.into() });
        }
        if self.kinds.len() >= MOST_KINDS {
            return Err(BadKind::TooMany);
        }
        Ok(ForeignKind {
            index: self.enter(name, carries.to_string()),
            size: carries.size(),
            carries: Rc::new(carries),
        })
    }

    /// Has messages of this kind run `run` with what `read` has made of them, as [`on`](Self::on).
    /// `read` sees a message where it lies, copies it, and checks the copy; `None`: it is not what
    /// the kind carries, which is a violation. It must neither send nor poll.
    ///
    /// # Panics
    /// The kind comes from elsewhere.
    pub fn on_foreign<R>(
        &mut self,
        kind: &ForeignKind,
        read: impl Fn(&Message<'_, '_>) -> Option<R> + 'static,
        run: impl Fn(&Group, Rank, R) + 'static,
    ) {
        assert!(usize::from(kind.index) < self.kinds.len(), "a kind of these handlers");
        self.on_value(kind.index, read, run);
    }

    /// Has messages of this kind run `run` where they lie, also in interrupts, as
    /// [`on_interrupt`](Self::on_interrupt). `run` copies the message and checks the copy; false:
    /// it is not what the kind carries, which is a violation.
    ///
    /// # Panics
    /// The kind comes from elsewhere.
    pub fn on_foreign_interrupt(
        &mut self,
        kind: &ForeignKind,
        run: impl Fn(&Interrupt<'_>, &Message<'_, '_>) -> bool + 'static,
    ) {
        assert!(usize::from(kind.index) < self.kinds.len(), "a kind of these handlers");
        self.on_signal(kind.index, run);
    }

    /// Has all waits of the group ask whether they are to end: [`Group::run_until`],
    /// [`Group::barrier`] and [`Group::reduce`] with [`RunError::Interrupted`], [`Group::send`]
    /// with [`SendError::Interrupted`], [`Group::wait_foreign`] likewise; [`Group::wait`]
    /// returns then, and each time that it was asked in vain. They ask when they have looked in
    /// vain, after each sleep that something has ended, the handler of a signal included, and twice
    /// a second. [`GroupBuilder::join`](crate::GroupBuilder::join) asks, too, five times a second. On a
    /// virtual processor nobody asks.
    pub fn interruption(&mut self, ask: impl Fn() -> bool + 'static) {
        self.interruption = Some(Box::new(ask));
    }

    #[inline]
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interruption.as_ref().is_some_and(|ask| ask())
    }
}

impl Interrupt<'_> {
    /// Sends a message with this payload, as [`try_send`](Self::try_send).
    ///
    /// # Errors
    /// [`SendError::Unfit`]: the payload is not what the kind carries. Else as [`try_send`](Self::try_send).
    pub fn try_send_foreign(
        &self,
        to: Rank,
        kind: &ForeignKind,
        payload: &[u8],
    ) -> Result<(), SendError> {
        kind.carries().check(payload).map_err(SendError::Unfit)?;
        self.try_send(to, Kind::at(kind.index()), &Checked(payload))
    }
}

impl Group {
    /// Sends a message with this payload, as [`send`](Self::send).
    ///
    /// # Errors
    /// [`SendError::Unfit`]: the payload is not what the kind carries. Else as [`send`](Self::send).
    #[inline]
    pub fn send_foreign(
        &self,
        to: Rank,
        kind: &ForeignKind,
        payload: &[u8],
    ) -> Result<(), SendError> {
        kind.check(payload).map_err(SendError::Unfit)?;
        self.send(to, Kind::at(kind.index), &Checked(payload))
    }

    /// The same, if there is room now, as [`try_send`](Self::try_send).
    ///
    /// # Errors
    /// As [`send_foreign`](Self::send_foreign) and [`try_send`](Self::try_send).
    pub fn try_send_foreign(
        &self,
        to: Rank,
        kind: &ForeignKind,
        payload: &[u8],
    ) -> Result<(), SendError> {
        kind.check(payload).map_err(SendError::Unfit)?;
        self.try_send(to, Kind::at(kind.index), &Checked(payload))
    }

    /// The same, and waits for room for `limit` at most, as [`send_within`](Self::send_within).
    ///
    /// # Errors
    /// As [`send_foreign`](Self::send_foreign) and [`send_within`](Self::send_within).
    pub fn send_foreign_within(
        &self,
        to: Rank,
        kind: &ForeignKind,
        payload: &[u8],
        limit: Duration,
    ) -> Result<(), SendError> {
        kind.check(payload).map_err(SendError::Unfit)?;
        self.send_within(to, Kind::at(kind.index), &Checked(payload), limit)
    }

    /// Takes the next message that is what its kind carries: `read` copies it, and says `None` of
    /// one that is not. Such a message is a violation, and the next one is taken.
    ///
    /// # Errors
    /// [`NothingThere`].
    pub fn receive_foreign<R>(
        &self,
        read: impl Fn(&Message<'_, '_>) -> Option<R>,
    ) -> Result<R, NothingThere> {
        loop {
            let (from, kind, taken) =
                self.receive(|message| (message.from(), message.kind(), read(message)))?;
            match taken {
                Some(taken) => return Ok(taken),
                None => self.violates_by(from, kind),
            }
        }
    }

    /// Looks at the message that [`receive_foreign`](Self::receive_foreign) would take.
    ///
    /// # Errors
    /// [`NothingThere`].
    pub fn peek_foreign<R>(
        &self,
        read: impl Fn(&Message<'_, '_>) -> Option<R>,
    ) -> Result<R, NothingThere> {
        loop {
            let (from, kind, seen) =
                self.peek(|message| (message.from(), message.kind(), read(message)))?;
            match seen {
                Some(seen) => return Ok(seen),
                None => self.violates_by(from, kind),
            }
        }
    }

    /// Waits as [`wait`](Self::wait), and goes on where that returns to have asked only.
    ///
    /// # Errors
    /// [`RunError::Interrupted`].
    pub fn wait_foreign(&self, limit: Option<Duration>) -> Result<bool, RunError> {
        let changes = self.changes();
        let ends = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let left = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
            let there = self.wait_since(left, changes);
            if self.is_interrupted() {
                return Err(RunError::Interrupted);
            }
            if there || left == Some(Duration::ZERO) {
                return Ok(there);
            }
        }
    }

    /// Begins an atomic section, as [`atomic`](Self::atomic), for languages without guards.
    pub fn begin_atomic(&self) {
        std::mem::forget(self.atomic());
    }

    /// Ends the section that was begun last, as the end of [`Atomic`](crate::Atomic) does. False:
    /// none is.
    #[must_use]
    pub fn end_atomic(&self) -> bool {
        self.begun().map(drop).is_some()
    }

    /// Whether waits are to end.
    #[inline]
    pub(crate) fn is_interrupted(&self) -> bool {
        self.0.handlers.is_interrupted()
    }

    /// So long a wait may sleep that may take as long as `limit`.
    pub(crate) fn until_it_asks(&self, limit: Option<Duration>) -> Option<Duration> {
        match &self.0.handlers.interruption {
            None => limit,
            Some(_) => Some(limit.map_or(LOOK, |limit| limit.min(LOOK))),
        }
    }
}
