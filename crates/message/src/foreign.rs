//! Support for members in other languages.
//!
//! Kinds of messages have signatures that are set when the program runs ([`Carried`]), payloads are
//! bytes, and waits can be interrupted. Such members are like all others. What Rust checks by types
//! is checked here when a message is sent, and again, on a copy, when it has arrived. A message
//! that does not match the signature of its kind is a violation by its sender.

use crate::forming::WaitChecks;
use crate::group::Group;
use crate::kinds::{Handlers, MOST_KINDS, OWN};
use crate::message::Kind;
use crate::payload::{Payload, Reader, Writer};
use crate::signature::{Carried, Unfit};
use crate::{Interrupt, Message, NothingThere, Rank, RunError, SendError};
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Maximum time that a member waits before it checks whether it is interrupted.
const LOOK: Duration = Duration::from_millis(500);

/// A kind of message with its signature. It belongs to the group that is joined with the
/// [`Handlers`] that it came from.
#[derive(Clone, Debug)]
pub struct ForeignKind {
    index: u16,
    carries: Rc<Carried>,
    /// The size of `carries`.
    size: Option<usize>,
}

impl ForeignKind {
    /// Its index among the registered kinds.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Its signature.
    pub fn carries(&self) -> &Carried {
        &self.carries
    }

    /// Size of its payloads, in bytes, if fixed: [`Carried::size`].
    #[inline]
    pub fn size(&self) -> Option<usize> {
        self.size
    }

    /// Returns `true` if a payload of this kind can have this number of bytes. Nothing else can be
    /// checked where its sender can still write; a copy is checked by [`check`](Self::check).
    pub fn may_have(&self, bytes: usize) -> bool {
        match (self.size, &*self.carries) {
            (Some(expected), _) => bytes == expected,
            (None, Carried::AnyWords) => bytes.is_multiple_of(8),
            (None, _) => true,
        }
    }

    /// Checks a payload: [`Carried::check`].
    ///
    /// # Errors
    /// Returns why it is no payload of this kind.
    #[inline]
    pub fn check(&self, payload: &[u8]) -> Result<(), Unfit> {
        self.carries.check_of_size(self.size, payload)
    }
}

/// The reason why a kind of message could not be registered.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadKind {
    /// There is a kind of this name already.
    Taken {
        /// The name.
        name: String,
    },
    /// The name is reserved for the group itself.
    Own {
        /// The name.
        name: String,
    },
    /// The maximum number of kinds is registered already.
    TooMany,
}

impl fmt::Display for BadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken { name } => write!(f, "there is a kind of message {name:?} already"),
            Self::Own { name } => {
                write!(
                    f,
                    "{name:?} cannot be a kind of message: names with {OWN:?} are those of the \
                     group's own"
                )
            }
            Self::TooMany => write!(f, "more than {MOST_KINDS} kinds of messages"),
        }
    }
}

upcall_os::error_debug!(BadKind { Taken { name }, Own { name }, TooMany });

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
    /// Registers a kind of message, like [`kind`](Self::kind).
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

    /// Sets the handler `run` for messages of this kind, like [`on`](Self::on).
    ///
    /// `run` gets the result of `read`. `read` sees a message in shared memory, copies it, and
    /// checks the copy. If it returns `None`, the message does not match the kind's signature,
    /// which is a violation. `read` must neither send nor poll.
    ///
    /// # Panics
    /// If the kind belongs to other handlers.
    pub fn on_foreign<R>(
        &mut self,
        kind: &ForeignKind,
        read: impl Fn(&Message<'_, '_>) -> Option<R> + 'static,
        run: impl Fn(&Group, Rank, R) + 'static,
    ) {
        assert!(usize::from(kind.index) < self.kinds.len(), "a kind of these handlers");
        self.on_value(kind.index, read, run);
    }

    /// Sets a handler that runs on messages in shared memory, even in interrupts.
    ///
    /// Works like [`on_interrupt`](Self::on_interrupt). `run` copies the message and checks the
    /// copy. If it returns `false`, the message does not match the kind's signature, which is a
    /// violation.
    ///
    /// # Panics
    /// If the kind belongs to other handlers.
    pub fn on_foreign_interrupt(
        &mut self,
        kind: &ForeignKind,
        run: impl Fn(&Interrupt<'_>, &Message<'_, '_>) -> bool + 'static,
    ) {
        assert!(usize::from(kind.index) < self.kinds.len(), "a kind of these handlers");
        self.on_signal(kind.index, run);
    }

    /// Makes all waits of the group call `ask` to find out whether they are to end.
    ///
    /// [`Group::run_until`], [`Group::barrier`] and [`Group::reduce`] then end with
    /// [`RunError::Interrupted`], [`Group::send`] with [`SendError::Interrupted`], and
    /// [`Group::wait_foreign`] likewise. [`Group::wait`] returns then, and also each time that
    /// `ask` returned `false`. A wait calls `ask` when a probe has found nothing, after each sleep
    /// that ended early, by the handler of a signal for example, and twice a second.
    /// [`GroupBuilder::join`](crate::GroupBuilder::join) calls it, too, five times a second. It is
    /// not called on a virtual processor.
    pub fn interruption(&mut self, ask: impl Fn() -> bool + 'static) {
        self.interruption = Some(Box::new(ask));
    }

    /// The same while the member [joins](crate::GroupBuilder::join) alone. A member that has joined
    /// does not ask, and sleeps for as long as nothing happens.
    pub fn join_interruption(&mut self, ask: impl Fn() -> bool + 'static) {
        self.join_interruption = Some(Box::new(ask));
    }

    #[inline]
    pub(crate) fn is_interrupted(&self) -> bool {
        [&self.interruption, &self.join_interruption]
            .iter()
            .any(|one| one.as_ref().is_some_and(|ask| ask()))
    }

    /// How often the wait in which the member joins checks whether it has to end.
    pub(crate) fn checks(&self) -> WaitChecks {
        match (&self.interruption, &self.join_interruption) {
            (None, None) => WaitChecks::Rarely,
            _ => WaitChecks::Often,
        }
    }
}

impl Interrupt<'_> {
    /// Sends a message with this payload, like [`try_send`](Self::try_send).
    ///
    /// # Errors
    /// [`SendError::Unfit`]: the payload does not match the kind's signature. Otherwise as
    /// [`try_send`](Self::try_send).
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
    /// Sends a message with this payload, like [`send`](Self::send).
    ///
    /// # Errors
    /// [`SendError::Unfit`]: the payload does not match the kind's signature. Otherwise as
    /// [`send`](Self::send).
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

    /// Sends a message with this payload if there is room now, like [`try_send`](Self::try_send).
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

    /// Sends a message with this payload, and waits at most `limit` for room.
    ///
    /// Works like [`send_within`](Self::send_within).
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

    /// Takes the next message that matches its kind's signature. `read` copies the message, and
    /// returns `None` if it does not match: such a message is a violation, and the next one is
    /// taken.
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

    /// Reads the message that [`receive_foreign`](Self::receive_foreign) would take.
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

    /// Waits like [`wait`](Self::wait), but does not return for a mere check for an interruption.
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

    /// Begins an atomic section like [`atomic`](Self::atomic), for languages without guards.
    pub fn begin_atomic(&self) {
        std::mem::forget(self.atomic());
    }

    /// Ends the section that was begun last, as dropping [`Atomic`](crate::Atomic) does. Returns
    /// `false` if there is none.
    #[must_use]
    pub fn end_atomic(&self) -> bool {
        self.begun().map(drop).is_some()
    }

    /// Returns `true` if waits are to end.
    #[inline]
    pub(crate) fn is_interrupted(&self) -> bool {
        self.0.handlers.is_interrupted()
    }

    /// Maximum time of one sleep in a wait with this limit.
    pub(crate) fn until_it_asks(&self, limit: Option<Duration>) -> Option<Duration> {
        match &self.0.handlers.interruption {
            None => limit,
            Some(_) => Some(limit.map_or(LOOK, |limit| limit.min(LOOK))),
        }
    }
}
