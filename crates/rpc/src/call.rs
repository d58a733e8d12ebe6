//! The call.
//!
//! Source: LRPC, sections 3.2 and 3.5. A call takes an A-stack if its values do not fit into a
//! slot, writes the arguments there once, sends one line and waits; the results are read from where
//! the server wrote them, once. What fits no A-stack goes by a segment of memory that the client
//! brings, so a server's memory does not depend on what its clients send.
//!
//! A call that is abandoned at its deadline leaves the A-stack and the segment that it brought to
//! its late reply ([`Leavings`]); that is read like one in time, so that the resources in it are
//! dropped, and then they are free again.

use crate::binding::{Binding, Bound, Inner, Near, Shortage, Way};
use crate::brought::{AStack, Brought, Left, TakenSegment};
use crate::decode::{Decoder, Quota, Side};
use crate::encode::{Encoder, block_len};
use crate::error::CallError;
use crate::interface::Limits;
use crate::link::Link;
use crate::server::{self, outcome};
use crate::value::{Get, Put};
use std::mem;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use upcall_os::atomic::Ordering;
use upcall_os::clock;
use upcall_os::fault::{Point, point};
use upcall_os::headroom;
use upcall_sched::{LateReply, Patience, Until, run_late};
use upcall_shm::slot::{INLINE, Image, NO_ASTACK, Place, TIMED_INLINE};
use upcall_shm::span::{Room, Span};

/// The longest result, in bytes, that later calls of its procedure bring room for: the segments of
/// longer ones are not kept.
const MOST_REMEMBERED: u32 = 16 << 20;

/// Results of at most this many bytes are taken without a look at what memory is left.
const SMALL: usize = 16 << 20;

/// How many times the memory of a result there has to be: for the segment that it comes in, and for
/// the value that is read from it, whose parts can be larger than in the segment.
const TIMES: u64 = 4;

/// Returns an error if a result of so many bytes could leave this process without memory. The
/// length is the server's word: the server needs no memory for a result that it only claims to
/// have.
fn affordable(len: usize) -> Result<(), CallError> {
    if len <= SMALL {
        return Ok(());
    }
    let left = headroom::available();
    if len as u64 <= left / TIMES {
        return Ok(());
    }
    let error = format!(
        "a result may take a quarter of the {left} bytes that this process can have; by the server's word the procedure has run"
    );
    Err(CallError::NoMemory { bytes: len as u64, error })
}

/// Reads the late results of a call that was given up, so that the resources in them are let go.
pub(crate) trait Unread: Fn(&Binding, Span<'_>, Limits) + Copy + Send + 'static {}

impl<F: Fn(&Binding, Span<'_>, Limits) + Copy + Send + 'static> Unread for F {}

/// Reads results as an `R`, and drops it.
#[inline]
fn unread<R: Get>() -> impl Unread {
    // Nobody is there to be told of an error.
    |binding: &Binding, span: Span<'_>, limits| drop(binding.decode::<R>(span, limits))
}

/// For replies of the runtime itself, which hold no resources.
fn nothing(_: &Binding, _: Span<'_>, _: Limits) {}

/// Reads results from where they lie.
pub(crate) trait Read<T>: FnOnce(Span<'_>) -> Result<T, CallError> {}

impl<T, F: FnOnce(Span<'_>) -> Result<T, CallError>> Read<T> for F {}

/// What reads a call's results.
pub(crate) struct Results<U, R> {
    /// Those that come after the call was given up.
    late: U,
    /// Those that come in time.
    read: R,
}

impl<U: Unread, R> Results<U, R> {
    #[inline]
    pub(crate) fn new<T>(late: U, read: R) -> Self
    where
        R: Read<T>,
    {
        Self { late, read }
    }
}

impl Results<(), ()> {
    /// For calls that were given up: all results are late.
    fn unread<U: Unread>(binding: &Binding, limits: Limits, late: U) -> Results<U, impl Read<()>> {
        Results::new(late, move |span: Span<'_>| {
            late(binding, span, limits);
            Ok(())
        })
    }
}

/// What holds for all that a call does.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    /// Where it goes.
    pub(crate) near: &'a Near,
    pub(crate) limits: Limits,
    /// When it is given up.
    pub(crate) until: Until<'a>,
}

impl Terms<'_> {
    /// As [`inline_room`].
    #[inline]
    pub(crate) fn inline(&self) -> usize {
        inline_room(self.until)
    }
}

/// Bytes of values for which a request has room: less if it says when its caller gives up.
#[inline]
pub(crate) fn inline_room(until: Until<'_>) -> usize {
    if until.ends.is_none() { INLINE } else { TIMED_INLINE }
}

impl Binding {
    /// Calls procedure `number`. Blocks the calling thread until the reply is there: a user-level
    /// one if its virtual processors poll channels (`upcall::thread::processors`), else the
    /// kernel thread.
    ///
    /// If the server's process ends, the call returns [`CallError::Failed`], within milliseconds;
    /// at its deadline, if it has one, [`CallError::Aborted`].
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// `number` is not one of the interface: generated stubs never ask for such a one.
    #[inline]
    pub fn call<A: Put, R: Get>(&self, number: u16, args: &A) -> Result<R, CallError> {
        let inner = &*self.inner;
        let number = self.first + number;
        let bound = &inner.procedures[usize::from(number)];
        let Way::Near(near) = &inner.way else { return self.call_far_away(number, args) };
        let until = self.until();
        let results = |terms: Terms<'_>| {
            Results::new(unread::<R>(), move |span: Span<'_>| self.decode::<R>(span, terms.limits))
        };
        // Both blocks fit into slots: decided when this is compiled, but for those that a deadline
        // would leave no room for. Then no value has a length to limit.
        if A::FIXED
            && R::FIXED
            && A::SIZE <= INLINE
            && R::SIZE <= INLINE
            && (A::SIZE <= TIMED_INLINE || until.ends.is_none())
        {
            // The reply takes the request's place.
            let mut message = Image::new(0, bound.tag, NO_ASTACK);
            if A::SIZE > 0 {
                Encoder::block(Room::of_words(&mut message.values), args, Limits::default(), None)?;
                message.place(Place::Inline, 0, A::SIZE as u32);
            }
            point(Point::ClientWrote);
            // As `send`, but nothing was brought: it would make places for what was, on each call.
            if until.is_for_ever() {
                self.send_for_ever(near, &mut message)?;
            } else {
                let terms = self.terms(near, number, until);
                self.send_until(terms, &mut message, &mut Brought::nothing(), unread::<R>())?;
            }
            point(Point::ClientAnswered);
            if message.tag() == outcome::DONE && message.values_in() == Some(Place::Inline) {
                return self.decode::<R>(Span::of_words(&message.values), Limits::default());
            }
            let terms = self.terms(near, number, until);
            return self.uncommon(terms, &message, Brought::nothing(), results(terms));
        }
        let terms = self.terms(near, number, until);
        self.call_in_memory(bound, terms, block_len(args), args, results(terms))
    }

    /// As [`Binding::call`], to another machine.
    #[cold]
    #[inline(never)]
    fn call_far_away<A: Put, R: Get>(&self, number: u16, args: &A) -> Result<R, CallError> {
        let limits = self.limits(number);
        self.call_far(number, block_len(args), args, unread::<R>(), |span| {
            self.decode(span, limits)
        })
    }

    /// The terms of a call.
    #[inline]
    pub(crate) fn terms<'a>(&self, near: &'a Near, number: u16, until: Until<'a>) -> Terms<'a> {
        Terms { near, limits: self.limits(number), until }
    }

    #[inline]
    pub(crate) fn limits(&self, number: u16) -> Limits {
        self.inner.interface.procedures[usize::from(number)].limits
    }

    #[inline]
    pub(crate) fn until(&self) -> Until<'_> {
        Until { ends: self.ends(), abandon: self.abandon.as_ref() }
    }

    #[inline]
    pub(crate) fn ends(&self) -> Option<Instant> {
        match self.deadline {
            None => upcall_thread::calls_end(),
            Some(deadline) => ends_after(deadline),
        }
    }

    /// Sends a request, and waits for its reply, as long as the terms allow: then what it brought
    /// is left to the late reply, whose results are for `unread`.
    #[inline]
    fn send<'a>(
        &'a self,
        terms: Terms<'_>,
        message: &mut Image,
        brought: &mut Brought<'a>,
        unread: impl Unread,
    ) -> Result<(), CallError> {
        if terms.until.is_for_ever() {
            return self.send_for_ever(terms.near, message);
        }
        self.send_until(terms, message, brought, unread)
    }

    #[inline]
    pub(crate) fn send_for_ever(&self, near: &Near, message: &mut Image) -> Result<(), CallError> {
        near.link.channel.call(message, self.hand_off)?;
        self.release_overdue(None);
        Ok(())
    }

    #[cold]
    pub(crate) fn send_until<'a>(
        &'a self,
        terms: Terms<'_>,
        message: &mut Image,
        brought: &mut Brought<'a>,
        unread: impl Unread,
    ) -> Result<(), CallError> {
        let Terms { near, limits, until } = terms;
        // Sent all the same, it might be answered at once and return as if it had been in time.
        if until.has_come() {
            return Err(CallError::Aborted { sent: false });
        }
        // The server's own calls on behalf of this one end then too.
        until.ends.into_iter().for_each(|ends| message.set_deadline(clock::stamp(ends)));
        let mut late = || -> LateReply {
            point(Point::ClientLeaves);
            let leavings = Leavings {
                inner: Arc::downgrade(&self.inner),
                link: Arc::downgrade(&near.link),
                brought: brought.leave(),
            };
            Box::new(move |reply| leavings.read(limits, &reply, unread))
        };
        near.link
            .channel
            .call_within(message, Patience { until, late: &mut late, hand_off: self.hand_off })?;
        self.release_overdue(until.ends);
        Ok(())
    }

    #[cold]
    fn waits_for_astacks(&self) -> bool {
        self.shortage == Shortage::Wait && !upcall_thread::runs_outside_work()
    }

    fn decode<R: Get>(&self, span: Span<'_>, limits: Limits) -> Result<R, CallError> {
        Ok(R::get(&Decoder::new(span, R::SIZE, limits, Side::Client(self)), 0)?)
    }

    /// Calls with an A-stack, or a segment.
    #[inline(always)]
    pub(crate) fn call_in_memory<A: Put, T>(
        &self,
        bound: &Bound,
        terms: Terms<'_>,
        len: usize,
        args: &A,
        results: Results<impl Unread, impl Read<T>>,
    ) -> Result<T, CallError> {
        let wish = len.max(bound.result.load(Ordering::Relaxed) as usize);
        let stacks = bound
            .class
            .and_then(|class| terms.near.stacks.get(class))
            .filter(|stacks| wish <= stacks.size);
        // As most calls are, without a look at what else they may need.
        if terms.until.is_for_ever()
            && let Some(stacks) = stacks
            && let Some(astack) = AStack::try_take(terms.near, stacks)
            && let Some(room) = astack.room()
        {
            point(Point::ClientTook);
            let mut message = Image::new(0, bound.tag, astack.number());
            if len <= INLINE {
                Encoder::block(Room::of_words(&mut message.values), args, terms.limits, None)?;
                message.place(Place::Inline, 0, len as u32);
            } else {
                Encoder::block(room, args, terms.limits, None)?;
                message.place(Place::AStack, 0, len as u32);
            }
            point(Point::ClientWrote);
            self.send_for_ever(terms.near, &mut message)?;
            point(Point::ClientAnswered);
            let values = match message.values_in() {
                Some(Place::AStack) => room.part(0, message.len()),
                Some(Place::Inline) => Span::of_words(&message.values).part(0, message.len()),
                _ => None,
            };
            if let (outcome::DONE, Some(values)) = (message.tag(), values) {
                let read = (results.read)(values);
                point(Point::ClientRead);
                return read;
            }
            let brought = Brought { astack: Some(astack), segment: None };
            return self.finish(bound, terms, &message, brought, results);
        }
        self.call_slow(bound, terms, (len, wish), args, results)
    }

    /// The same for calls with a deadline or a word that gives them up, and those for which there
    /// is no A-stack.
    #[inline(never)]
    fn call_slow<A: Put, T>(
        &self,
        bound: &Bound,
        terms: Terms<'_>,
        (len, wish): (usize, usize),
        args: &A,
        results: Results<impl Unread, impl Read<T>>,
    ) -> Result<T, CallError> {
        // Nothing is taken, mapped or encoded for a call whose time is up.
        if terms.until.has_come() {
            return Err(CallError::Aborted { sent: false });
        }
        let mut brought = self.bring(bound, terms, wish)?;
        point(Point::ClientTook);
        let mut request =
            Image::new(0, bound.tag, brought.astack.as_ref().map_or(NO_ASTACK, AStack::number));
        let number = brought.segment.as_ref().map_or(0, TakenSegment::number);
        if len <= terms.inline() {
            Encoder::block(Room::of_words(&mut request.values), args, terms.limits, None)?;
            request.place(Place::Inline, number, len as u32);
        } else if let Some(room) = brought.astack.as_ref().and_then(AStack::room) {
            Encoder::block(room, args, terms.limits, None)?;
            request.place(Place::AStack, 0, len as u32);
        } else if let Some(room) = brought.segment.as_ref().and_then(TakenSegment::room) {
            Encoder::block(room, args, terms.limits, None)?;
            request.values[0] = len as u64;
            request.place(Place::Segment, number, 8);
        }
        point(Point::ClientWrote);
        self.send(terms, &mut request, &mut brought, results.late)?;
        point(Point::ClientAnswered);
        self.finish(bound, terms, &request, brought, results)
    }

    /// Takes an A-stack, or a segment if there is none and `wish` bytes need one.
    #[inline]
    fn bring<'a>(
        &'a self,
        bound: &Bound,
        terms: Terms<'a>,
        wish: usize,
    ) -> Result<Brought<'a>, CallError> {
        let Terms { near, until, .. } = terms;
        let stacks = bound
            .class
            .and_then(|class| near.stacks.get(class))
            .filter(|stacks| wish <= stacks.size);
        let astack = match stacks {
            Some(stacks) => match AStack::try_take(near, stacks) {
                None if self.waits_for_astacks() => AStack::wait_for(near, stacks, until)?,
                taken => taken,
            },
            None => None,
        };
        // In the place of an A-stack it has room for the results as well.
        let wish = stacks.map_or(wish, |stacks| stacks.size);
        let segment = match astack {
            None if wish > terms.inline() => Some(TakenSegment::take(&near.link, wish, until)?),
            _ => None,
        };
        Ok(Brought { astack, segment })
    }

    /// Reads a call's results, and remembers how long they are if it brought no room for them.
    #[inline(never)]
    fn finish<T>(
        &self,
        bound: &Bound,
        terms: Terms<'_>,
        reply: &Image,
        brought: Brought<'_>,
        results: Results<impl Unread, impl Read<T>>,
    ) -> Result<T, CallError> {
        let held = (reply.tag() == outcome::HELD).then_some(reply.values[1]);
        let result = self.results(terms, reply, brought, results);
        point(Point::ClientRead);
        // Only a length that was there is believed, and brought room for the next time.
        if let (Ok(_), Some(Ok(len @ ..=MOST_REMEMBERED))) = (&result, held.map(u32::try_from)) {
            bound.result.store(len, Ordering::Relaxed);
        }
        result
    }

    /// Reads a reply's results from where the server says they are.
    #[inline]
    fn results<T>(
        &self,
        terms: Terms<'_>,
        reply: &Image,
        brought: Brought<'_>,
        results: Results<impl Unread, impl Read<T>>,
    ) -> Result<T, CallError> {
        if reply.tag() != outcome::DONE {
            return self.uncommon(terms, reply, brought, results);
        }
        let read = results.read;
        match reply.values_in() {
            Some(Place::Inline) => {
                let values = Span::of_words(&reply.values).part(0, reply.len());
                read(values.ok_or_else(|| bad("more results than a slot carries"))?)
            }
            Some(Place::AStack) => {
                let room = brought
                    .astack
                    .as_ref()
                    .and_then(AStack::room)
                    .and_then(|room| room.part(0, reply.len()));
                read(room.ok_or_else(|| bad("results in an A-stack that was not given"))?)
            }
            Some(Place::Segment) => {
                let len = usize::try_from(reply.values[0]).unwrap_or(usize::MAX);
                let room = brought
                    .segment
                    .as_ref()
                    .and_then(TakenSegment::room)
                    .and_then(|room| room.part(0, len));
                read(room.ok_or_else(|| bad("results in a segment that was not given"))?)
            }
            None => Err(bad("results in no known place")),
        }
    }

    /// What does not happen on most calls, in one place.
    #[cold]
    pub(crate) fn uncommon<T>(
        &self,
        terms: Terms<'_>,
        reply: &Image,
        brought: Brought<'_>,
        results: Results<impl Unread, impl Read<T>>,
    ) -> Result<T, CallError> {
        match reply.tag() {
            // What was taken for the call stays taken until the result is here: so a server keeps
            // no more results than there are A-stacks and places.
            outcome::HELD => {
                let _turn = brought.astack;
                self.fetch(terms, reply, brought.segment, results)
            }
            _ => Err(self.refusal(reply)),
        }
    }

    /// What a reply without results says.
    #[cold]
    pub(crate) fn refusal(&self, reply: &Image) -> CallError {
        let text = || self.text(reply);
        match reply.tag() {
            outcome::REFUSED => text().map_or_else(|bad| bad, CallError::Refused),
            outcome::PANICKED => text().map_or_else(|bad| bad, CallError::Panicked),
            outcome::QUOTA | outcome::RESULT_QUOTA => match reply.values {
                [bytes, limit, of, ..] => {
                    let of = [Quota::Call, Quota::Client]
                        .into_iter()
                        .find(|known| *known as u64 == of)
                        .unwrap_or(Quota::All);
                    if reply.tag() == outcome::QUOTA {
                        CallError::Quota { bytes, limit, of }
                    } else {
                        CallError::ResultQuota { bytes, limit, of }
                    }
                }
            },
            outcome::NO_MEMORY => CallError::NoMemory {
                bytes: reply.values[0],
                error: "the server has none for the arguments; the procedure did not run".into(),
            },
            outcome::RESULT_NO_MEMORY => CallError::NoMemory {
                bytes: reply.values[0],
                error: "the server has none for the result; the procedure has run".into(),
            },
            outcome::NO_SUCH_HANDLE => CallError::NoSuchHandle,
            outcome::REVOKED => CallError::Revoked,
            outcome::NO_SUCH_PROCEDURE => CallError::NoSuchProcedure,
            outcome::UNANSWERED => CallError::Panicked("the server's code did not answer".into()),
            other => bad(&format!("an unknown outcome, {other}")),
        }
    }

    fn text(&self, reply: &Image) -> Result<String, CallError> {
        match reply.values_in() {
            // The runtime's own text, as long as a slot at most; the interface limits its
            // procedures' values.
            Some(Place::Inline) => self.decode(Span::of_words(&reply.values), Limits::default()),
            _ => Err(bad("an error text in an odd place")),
        }
    }

    /// Fetches a result that was larger than what the call brought, into a segment that is large
    /// enough and replaces the segment that the call brought. A result that cannot be fetched in
    /// time is fetched afterwards and dropped, so that no resource in it stays in the server.
    fn fetch<T>(
        &self,
        terms: Terms<'_>,
        reply: &Image,
        brought: Option<TakenSegment<'_>>,
        results: Results<impl Unread, impl Read<T>>,
    ) -> Result<T, CallError> {
        let late = results.late;
        let fetched = self.fetch_by(terms, reply, brought, results);
        if !matches!(fetched, Err(CallError::Aborted { sent: false })) {
            return fetched;
        }
        let (binding, reply, limits) =
            (Self { abandon: None, ..self.with_deadline(None) }, *reply, terms.limits);
        run_late(move || {
            let Way::Near(near) = &binding.inner.way else { return };
            let terms = Terms { near, limits, until: Until::FOR_EVER };
            drop(binding.fetch_by(terms, &reply, None, Results::unread(&binding, limits, late)));
        });
        // The procedure has run.
        Err(CallError::Aborted { sent: true })
    }

    fn fetch_by<T>(
        &self,
        terms: Terms<'_>,
        reply: &Image,
        brought: Option<TakenSegment<'_>>,
        results: Results<impl Unread, impl Read<T>>,
    ) -> Result<T, CallError> {
        let near = terms.near;
        let [key, len, ..] = reply.values;
        let len = usize::try_from(len).map_err(|_| bad("a result larger than memory"))?;
        let mut request = Image::new(0, server::tag(near.id, server::FETCH), NO_ASTACK);
        request.values[0] = key;
        let larger = affordable(len).and_then(|()| match brought {
            Some(brought) => brought.exchange(len, terms.until),
            None => TakenSegment::take(&near.link, len, terms.until),
        });
        let mut brought = match larger {
            Ok(segment) => Brought { astack: None, segment: Some(segment) },
            Err(error @ CallError::Aborted { .. }) => return Err(error),
            Err(error) => {
                // Without a segment the server forgets the result.
                request.place(Place::Inline, 0, 8);
                self.send(terms, &mut request, &mut Brought::nothing(), nothing)?;
                return Err(error);
            }
        };
        let number = brought.segment.as_ref().map_or(0, TakenSegment::number);
        request.place(Place::Inline, number, 8);
        point(Point::ClientFetches);
        self.send(terms, &mut request, &mut brought, results.late)?;
        let reply = &request;
        match (reply.tag(), reply.values_in()) {
            (outcome::DONE, Some(Place::Segment)) => {}
            (tag, _) => {
                if !matches!(tag, outcome::DONE | outcome::HELD) {
                    return Err(self.refusal(reply));
                }
                return Err(bad("a result that was held cannot be fetched"));
            }
        }
        let len = usize::try_from(reply.values[0]).unwrap_or(usize::MAX);
        let room = brought
            .segment
            .as_ref()
            .and_then(TakenSegment::room)
            .and_then(|room| room.part(0, len));
        (results.read)(room.ok_or_else(|| bad("a result longer than its segment"))?)
    }
}

#[inline(never)]
fn ends_after(deadline: Duration) -> Option<Instant> {
    Instant::now().checked_add(deadline).into_iter().chain(upcall_thread::calls_end()).min()
}

#[cold]
pub(crate) fn bad(what: &str) -> CallError {
    CallError::BadReply(what.into())
}

/// What an abandoned call leaves to its late reply. Does not keep the binding: if that is gone, so
/// is its A-stack; the segment is the link's.
struct Leavings {
    inner: Weak<Inner>,
    link: Weak<Link>,
    brought: Left,
}

impl Leavings {
    /// Reads the late reply and drops its result, with the resources in it; then what the call
    /// brought is free again. May block.
    fn read(mut self, limits: Limits, reply: &Image, late: impl Unread) {
        let Some(inner) = self.inner.upgrade() else { return };
        let binding = Binding::of(inner);
        let Way::Near(near) = &binding.inner.way else { return };
        let brought = Brought::from(near, mem::take(&mut self.brought));
        let terms = Terms { near, limits, until: Until::FOR_EVER };
        // Nobody is there to be told of an error.
        let _ = binding.results(terms, reply, brought, Results::unread(&binding, limits, late));
        binding.release_overdue(None);
    }
}

/// No reply will come, or nobody could take it: what was brought is free again.
impl Drop for Leavings {
    fn drop(&mut self) {
        if let Some(left) = self.brought.astack.take()
            && let Some(inner) = self.inner.upgrade()
            && let Way::Near(near) = &inner.way
        {
            drop(AStack::from(near, left));
        }
        if let Some(segment) = self.brought.segment.take()
            && let Some(link) = self.link.upgrade()
        {
            drop(TakenSegment::from(&link, segment));
        }
    }
}
