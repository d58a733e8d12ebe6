//! Kinds of messages, and their handlers.
//!
//! A message names its handler by an index: that of its kind in the list that all members have
//! exchanged when the group formed. So no member can name a kind that the receiver has not
//! registered.

use crate::error::JoinError;
use crate::message::{Kind, Message};
use crate::payload::Payload;
use crate::proto::receive_queue::BorrowedQueue;
use crate::{Group, Interrupt, Rank};
use std::fmt;
use std::rc::Rc;
use upcall_os::fault::{Point, point};
use upcall_shm::direct::Arrived;
use upcall_shm::mailbag::Mailbag;

/// Prefix of the names of the groups' own messages.
pub(crate) const OWN: &str = "upcall:";

/// Returns `true` to end the waits of a group; see [`Handlers::interruption`].
pub(crate) type Interruption = Box<dyn Fn() -> bool>;

/// Maximum number of kinds of messages in a group.
pub(crate) const MOST_KINDS: usize = u16::MAX as usize;

/// The kind of the parts of collective operations. Every group has it, and no program can register
/// it.
pub(crate) const COLLECTIVE: u16 = u16::MAX;

/// Maximum size of their names and signatures, in bytes: all fit into one control message with its
/// other contents.
const MOST_BYTES: usize = upcall_os::socket::LONGEST - 4096;

/// Takes the next message of a member's queue, which is of its kind, and runs the handler. Returns
/// `false` if the payload does not match the kind.
pub(crate) type Handler = Box<dyn Fn(&Group, Rank, BorrowedQueue<'_, Mailbag>) -> bool>;

/// Runs the handler with a message in shared memory. Returns `false` if the payload does not match
/// the kind: a poll then handles that.
pub(crate) type Interrupting = Rc<dyn Fn(&Interrupt<'_>, &Message<'_, '_>) -> bool>;

/// The kinds of messages that a member knows, and their handlers.
///
/// All members of a group have the same kinds in the same order; each member has handlers of its
/// own.
#[derive(Default)]
pub struct Handlers {
    pub(crate) kinds: Vec<(String, String)>,
    pub(crate) handlers: Vec<Option<Handler>>,
    pub(crate) interruption: Option<Interruption>,
    /// Asked only while the member joins.
    pub(crate) join_interruption: Option<Interruption>,
    /// Handlers for interrupts.
    pub(crate) interrupting: Vec<Option<Interrupting>>,
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handlers").field("kinds", &self.kinds).finish_non_exhaustive()
    }
}

impl Handlers {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a kind of message. Without a handler, its messages wait until they are taken by
    /// [`Group::receive`].
    ///
    /// # Panics
    /// If the name is registered already, if 65535 kinds are, or if the name begins with `upcall:`,
    /// which is reserved for the groups' own messages.
    pub fn kind<T: Payload + ?Sized>(&mut self, name: &str) -> Kind<T> {
        assert!(
            !name.starts_with(OWN),
            "{name:?} cannot be a kind of message: names with {OWN:?} are those of the group's own"
        );
        assert!(
            self.kinds.iter().all(|(known, _)| known != name),
            "two kinds of messages with the name {name:?}"
        );
        assert!(self.kinds.len() < MOST_KINDS, "more than {MOST_KINDS} kinds of messages");
        Kind::at(self.enter(name, T::signature()))
    }

    /// Adds a kind, and returns its index. The caller has checked the number of kinds and the name.
    pub(crate) fn enter(&mut self, name: &str, signature: String) -> u16 {
        self.kinds.push((name.into(), signature));
        self.handlers.push(None);
        self.interrupting.push(None);
        (self.kinds.len() - 1) as u16
    }

    /// Sets the handler for messages of this kind. It gets the group, the sender and the payload.
    ///
    /// It runs on the thread that polls. The message was taken before, so a handler may send, poll
    /// and wait; while it waits, others run.
    ///
    /// # Panics
    /// If the kind belongs to other handlers.
    pub fn on<T: Payload + ?Sized>(
        &mut self,
        kind: Kind<T>,
        handler: impl Fn(&Group, Rank, T::Owned) + 'static,
    ) {
        self.check(kind);
        self.on_value(kind.index, |message| T::read(&mut message.reader()), handler);
    }

    /// Sets the handler for messages of kind `place`. It gets the result of `read`, which returns
    /// `None` if the payload does not match the kind.
    pub(crate) fn on_value<R>(
        &mut self,
        place: u16,
        read: impl Fn(&Message<'_, '_>) -> Option<R> + 'static,
        handler: impl Fn(&Group, Rank, R) + 'static,
    ) {
        self.handlers[usize::from(place)] = Some(Box::new(move |group, from, mut queue| {
            let Ok(Some(arrived)) = queue.peek() else { return false };
            let Some(value) = read(&Message::new(from, &arrived)) else { return false };
            point(Point::MemberReads);
            arrived.dispose();
            point(Point::MemberTook);
            // The handler can take further messages of this sender.
            drop(queue);
            handler(group, from, value);
            true
        }));
    }

    /// Sets a handler that gets messages of this kind in shared memory.
    ///
    /// So a message of any size is copied only where the handler copies it. The message is disposed
    /// of after the handler. No other message of the same sender is taken before. The sender can
    /// still write there: two reads may differ.
    ///
    /// # Panics
    /// If the kind belongs to other handlers.
    pub fn on_message<T: Payload + ?Sized>(
        &mut self,
        kind: Kind<T>,
        handler: impl Fn(&Group, &Message<'_, '_>) + 'static,
    ) {
        self.check(kind);
        self.on_lying(kind.index, move |group, message| {
            handler(group, message);
            true
        });
    }

    /// Sets a handler that gets messages of kind `place` in shared memory. It returns `false` if
    /// the payload does not match the kind.
    fn on_lying(
        &mut self,
        place: u16,
        handler: impl Fn(&Group, &Message<'_, '_>) -> bool + 'static,
    ) {
        self.handlers[usize::from(place)] = Some(Box::new(move |group, from, mut queue| {
            let Ok(Some(arrived)) = queue.peek() else { return false };
            let mut taken = DisposeGuard(Some(arrived));
            let is_good = taken
                .0
                .as_ref()
                .is_some_and(|arrived| handler(group, &Message::new(from, arrived)));
            if !is_good {
                taken.0 = None;
            }
            is_good
        }));
    }

    /// Sets a handler that runs on messages in shared memory, even in interrupts.
    ///
    /// It runs in the middle of the thread's computation, while that is
    /// [interruptible](Group::interruptible). So it must be fit for a signal handler, as
    /// [`Promise`](crate::Promise) describes. It may read numbers ([`Message::get`],
    /// [`Message::word`]), copy bytes out, touch atomics, and send messages for which there is
    /// room. Where the group is polled, it runs as others do.
    ///
    /// # Panics
    /// If the kind belongs to other handlers.
    pub fn on_interrupt<T: Payload + ?Sized>(
        &mut self,
        kind: Kind<T>,
        handler: impl Fn(&Interrupt<'_>, &Message<'_, '_>) + 'static,
    ) {
        self.check(kind);
        self.on_signal(kind.index, move |interrupt, message| {
            handler(interrupt, message);
            true
        });
    }

    /// Like [`on_interrupt`](Self::on_interrupt) for kind `place`. The handler returns `false` if
    /// the payload does not match the kind.
    pub(crate) fn on_signal(
        &mut self,
        place: u16,
        handler: impl Fn(&Interrupt<'_>, &Message<'_, '_>) -> bool + 'static,
    ) {
        let run: Interrupting = Rc::new(handler);
        self.interrupting[usize::from(place)] = Some(run.clone());
        self.on_lying(place, move |group, message| run(&Interrupt::new(group), message));
    }

    /// Checks that members can exchange the list of all kinds.
    pub(crate) fn check_bytes(&self) -> Result<(), JoinError> {
        // Each text is preceded by its length.
        let bytes: usize =
            self.kinds.iter().map(|(name, carries)| name.len() + carries.len() + 2 * 3).sum();
        if bytes <= MOST_BYTES {
            return Ok(());
        }
        Err(JoinError::TooManyKinds { kinds: self.kinds.len(), bytes, most: MOST_BYTES })
    }

    fn check<T: Payload + ?Sized>(&self, kind: Kind<T>) {
        let known = self.kinds.get(usize::from(kind.index));
        assert!(
            known.is_some_and(|(_, carries)| *carries == T::signature()),
            "a kind of other handlers"
        );
    }
}

/// Disposes of a message when its handler has returned, or panicked.
struct DisposeGuard<'a>(Option<Arrived<'a, Mailbag>>);

impl Drop for DisposeGuard<'_> {
    fn drop(&mut self) {
        if let Some(arrived) = self.0.take() {
            point(Point::MemberReads);
            arrived.dispose();
            point(Point::MemberTook);
        }
    }
}
