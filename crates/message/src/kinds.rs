//! Kinds of messages, and their handlers.
//!
//! A message names its handler by an index: the place of its kind in the list that all members have
//! told alike when the group formed. So nobody can name what the receiver has not registered.

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

/// Names that begin so are those of the groups' own messages.
pub(crate) const OWN: &str = "upcall:";

/// Ends the waits of a group; see [`Handlers::interruption`].
pub(crate) type Interruption = Box<dyn Fn() -> bool>;

/// The most kinds of messages in a group.
pub(crate) const MOST_KINDS: usize = u16::MAX as usize;

/// Bytes of their names and signatures, so that all go into one control message with what is said
/// besides.
const MOST_BYTES: usize = upcall_os::socket::LONGEST - 4096;

/// Takes the next message of a member's queue, which is of its kind, and runs the handler. False if
/// it carries something else.
pub(crate) type Handler = Box<dyn Fn(&Group, Rank, BorrowedQueue<'_, Mailbag>) -> bool>;

/// Runs the handler with a message where it lies. False if it carries something else: then a poll
/// sees to it.
pub(crate) type Interrupting = Rc<dyn Fn(&Interrupt<'_>, &Message<'_, '_>) -> bool>;

/// The kinds of messages that a member knows, and what it does with them. All members of a group
/// have the same kinds in the same order; handlers are each one's own.
#[derive(Default)]
pub struct Handlers {
    pub(crate) kinds: Vec<(String, String)>,
    pub(crate) handlers: Vec<Option<Handler>>,
    pub(crate) interruption: Option<Interruption>,
    /// For interrupts.
    pub(crate) interrupting: Vec<Option<Interrupting>>,
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handlers").field("kinds", &self.kinds).finish_non_exhaustive()
    }
}

impl Handlers {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Another kind of message. Without a handler, its messages wait until they are taken by
    /// [`Group::receive`].
    ///
    /// # Panics
    /// There is one of that name already, or there are 65535; or the name begins with `upcall:`, as
    /// those of the groups' own do.
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

    /// Its place. There is room for it, and it has a name of its own.
    pub(crate) fn enter(&mut self, name: &str, signature: String) -> u16 {
        self.kinds.push((name.into(), signature));
        self.handlers.push(None);
        self.interrupting.push(None);
        (self.kinds.len() - 1) as u16
    }

    /// Has messages of this kind run `handler`, with the group, the sender and what they carry. It
    /// runs on the thread that polls. The message was taken before, so a handler may send, poll and
    /// wait; while it waits, others run.
    ///
    /// # Panics
    /// The kind comes from elsewhere.
    pub fn on<T: Payload + ?Sized>(
        &mut self,
        kind: Kind<T>,
        handler: impl Fn(&Group, Rank, T::Owned) + 'static,
    ) {
        self.check(kind);
        self.on_value(kind.index, |message| T::read(&mut message.reader()), handler);
    }

    /// Has messages of the kind in this place run `handler` with what `read` has made of them;
    /// `None`: it carries something else.
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
            // Others that it sends meanwhile can be taken by the handler.
            drop(queue);
            handler(group, from, value);
            true
        }));
    }

    /// Has messages of this kind run `handler` with the message where it lies, so that one of any
    /// size is not copied but where the handler does. It is disposed of after that. Meanwhile no
    /// other message of the same sender is taken. Its sender can still write there: what was
    /// read twice may differ.
    ///
    /// # Panics
    /// The kind comes from elsewhere.
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

    /// Has messages of the kind in this place run `handler` where they lie. False: it carries
    /// something else.
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

    /// Has messages of this kind run `handler` with the message where it lies, also in the middle
    /// of what the thread computes, while that is [interruptible](Group::interruptible): so it has
    /// to be fit for a handler of a signal, which [`Promise`](crate::Promise) tells of. It may
    /// read numbers ([`Message::get`], [`Message::word`]), copy bytes out, touch atomics, and send
    /// what has room. Where the group is polled it runs as others do.
    ///
    /// # Panics
    /// The kind comes from elsewhere.
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

    /// The same for the kind in this place. False: it carries something else.
    pub(crate) fn on_signal(
        &mut self,
        place: u16,
        handler: impl Fn(&Interrupt<'_>, &Message<'_, '_>) -> bool + 'static,
    ) {
        let run: Interrupting = Rc::new(handler);
        self.interrupting[usize::from(place)] = Some(run.clone());
        self.on_lying(place, move |group, message| run(&Interrupt::new(group), message));
    }

    /// That members can tell each other of all kinds.
    pub(crate) fn check_bytes(&self) -> Result<(), JoinError> {
        // With each text its length.
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
