//! The call.
//!
//! Source: LRPC, sections 3.2 and 3.5. If the values do not fit into a slot, the call takes an
//! A-stack. It writes the arguments once, sends one cache line, and waits; then it reads the
//! results once, from where the server wrote them. Values that fit no A-stack travel in a segment
//! of memory that the client brings, so a server's memory does not depend on what its clients send.
//!
//! This file has the path of most calls. The other paths are in [`slow`] and [`far`], and
//! [`results`] reads replies.

mod far;
mod results;
mod slow;

use crate::binding::{Binding, BoundProcedure, Near, ServerLocation};
use crate::brought::{AStack, CallMemory};
use crate::decode::{Decoder, DecoderSide};
use crate::encode::{Encoder, block_len};
use crate::error::CallError;
use crate::interface::Limits;
use crate::server::outcome;
use crate::value::{Get, Put};
use std::time::{Duration, Instant};
use upcall_os::atomic::Ordering;
use upcall_os::fault::{Point, point};
use upcall_sched::WaitLimit;
use upcall_shm::slot::{INLINE, NO_ASTACK, SlotMessage, TIMED_INLINE, ValueLocation};
use upcall_shm::span::{Span, WritableSpan};

/// Reads the late results of a call that was given up, so that the resources in them are dropped.
pub(crate) trait Unread: Fn(&Binding, Span<'_>, Limits) + Copy + Send + 'static {}

impl<F: Fn(&Binding, Span<'_>, Limits) + Copy + Send + 'static> Unread for F {}

/// Reads results as an `R`, and drops it.
#[inline]
fn unread<R: Get>() -> impl Unread {
    // An error has no receiver any more.
    |binding: &Binding, span: Span<'_>, limits| drop(binding.decode::<R>(span, limits))
}

/// Reads results in place.
pub(crate) trait ReadResults<T>: FnOnce(Span<'_>) -> Result<T, CallError> {}

impl<T, F: FnOnce(Span<'_>) -> Result<T, CallError>> ReadResults<T> for F {}

/// The readers of a call's results.
pub(crate) struct ResultReader<U, R> {
    /// Reads results that arrive after the call was given up.
    late: U,
    /// Reads results that arrive in time.
    read: R,
}

impl<U: Unread, R> ResultReader<U, R> {
    #[inline]
    pub(crate) fn new<T>(late: U, read: R) -> Self
    where
        R: ReadResults<T>,
    {
        Self { late, read }
    }
}

/// The terms that hold for every step of a call.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    /// The server's channel.
    pub(crate) near: &'a Near,
    pub(crate) limits: Limits,
    /// When the call is given up.
    pub(crate) until: WaitLimit<'a>,
}

impl Terms<'_> {
    /// See [`inline_room`].
    #[inline]
    pub(crate) fn inline(&self) -> usize {
        inline_room(self.until)
    }
}

/// Bytes of values that fit into a request. A request that carries a deadline has less room.
#[inline]
pub(crate) fn inline_room(until: WaitLimit<'_>) -> usize {
    if until.ends.is_none() { INLINE } else { TIMED_INLINE }
}

impl Binding {
    /// Calls procedure `number`.
    ///
    /// # Blocking
    /// Blocks the calling thread until the reply arrives: a user-level thread if its virtual
    /// processors poll channels (`upcall::thread::processors`), otherwise the kernel thread.
    ///
    /// # Peer death
    /// If the server's process ends, the call returns [`CallError::Failed`] within milliseconds. At
    /// its deadline, if it has one, it returns [`CallError::Aborted`].
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// `number` is not a procedure of the interface. Generated stubs never cause this.
    #[inline]
    pub fn call<A: Put, R: Get>(&self, number: u16, args: &A) -> Result<R, CallError> {
        let inner = &*self.inner;
        let number = self.first + number;
        let bound = &inner.procedures[usize::from(number)];
        let ServerLocation::Near(near) = &inner.way else {
            return self.call_far_away(number, args);
        };
        let until = self.until();
        let results = |terms: Terms<'_>| {
            ResultReader::new(unread::<R>(), move |span: Span<'_>| {
                self.decode::<R>(span, terms.limits)
            })
        };
        // Both blocks fit into slots, which is decided at compile time, unless a deadline leaves
        // too little room. Then no value has a length to limit.
        if A::FIXED
            && R::FIXED
            && A::SIZE <= INLINE
            && R::SIZE <= INLINE
            && (A::SIZE <= TIMED_INLINE || until.ends.is_none())
        {
            // The reply takes the request's place.
            let mut message = SlotMessage::new(0, bound.tag, NO_ASTACK);
            if A::SIZE > 0 {
                Encoder::block(
                    WritableSpan::of_words(&mut message.values),
                    args,
                    Limits::default(),
                    None,
                )?;
                message.place(ValueLocation::Inline, 0, A::SIZE as u32);
            }
            point(Point::ClientWrote);
            // Like `send`, but this call has brought nothing. `send` would prepare room for it on
            // each call.
            if until.is_for_ever() {
                self.send_for_ever(near, &mut message)?;
            } else {
                let terms = self.terms(near, number, until);
                self.send_until(terms, &mut message, &mut CallMemory::nothing(), unread::<R>())?;
            }
            point(Point::ClientAnswered);
            if message.tag() == outcome::DONE && message.values_in() == Some(ValueLocation::Inline)
            {
                return self.decode::<R>(Span::of_words(&message.values), Limits::default());
            }
            let terms = self.terms(near, number, until);
            return self.uncommon(terms, &message, CallMemory::nothing(), results(terms));
        }
        let terms = self.terms(near, number, until);
        self.call_in_memory(bound, terms, block_len(args), args, results(terms))
    }

    /// The terms of a call.
    #[inline]
    pub(crate) fn terms<'a>(&self, near: &'a Near, number: u16, until: WaitLimit<'a>) -> Terms<'a> {
        Terms { near, limits: self.limits(number), until }
    }

    #[inline]
    pub(crate) fn limits(&self, number: u16) -> Limits {
        self.inner.interface.procedures[usize::from(number)].limits
    }

    #[inline]
    pub(crate) fn until(&self) -> WaitLimit<'_> {
        WaitLimit { ends: self.ends(), cancel: self.cancel.as_ref() }
    }

    #[inline]
    pub(crate) fn ends(&self) -> Option<Instant> {
        match self.deadline {
            None => upcall_thread::calls_end(),
            Some(deadline) => ends_after(deadline),
        }
    }

    #[inline]
    pub(crate) fn send_for_ever(
        &self,
        near: &Near,
        message: &mut SlotMessage,
    ) -> Result<(), CallError> {
        near.link.channel.call(message, self.hand_off)?;
        self.release_overdue(None);
        Ok(())
    }

    fn decode<R: Get>(&self, span: Span<'_>, limits: Limits) -> Result<R, CallError> {
        Ok(R::get(&Decoder::new(span, R::SIZE, limits, DecoderSide::Client(self)), 0)?)
    }

    /// Calls with an A-stack or a segment.
    #[inline(always)]
    pub(crate) fn call_in_memory<A: Put, T>(
        &self,
        bound: &BoundProcedure,
        terms: Terms<'_>,
        len: usize,
        args: &A,
        results: ResultReader<impl Unread, impl ReadResults<T>>,
    ) -> Result<T, CallError> {
        let wish = len.max(bound.result.load(Ordering::Relaxed) as usize);
        let stacks = bound
            .class
            .and_then(|class| terms.near.stacks.get(class))
            .filter(|stacks| wish <= stacks.size);
        // The most frequent calls, without a check for what else they may need.
        if terms.until.is_for_ever()
            && let Some(stacks) = stacks
            && let Some(astack) = AStack::try_take(terms.near, stacks)
            && let Some(room) = astack.room()
        {
            point(Point::ClientTook);
            let mut message = SlotMessage::new(0, bound.tag, astack.number());
            if len <= INLINE {
                Encoder::block(
                    WritableSpan::of_words(&mut message.values),
                    args,
                    terms.limits,
                    None,
                )?;
                message.place(ValueLocation::Inline, 0, len as u32);
            } else {
                Encoder::block(room, args, terms.limits, None)?;
                message.place(ValueLocation::AStack, 0, len as u32);
            }
            point(Point::ClientWrote);
            self.send_for_ever(terms.near, &mut message)?;
            point(Point::ClientAnswered);
            let values = match message.values_in() {
                Some(ValueLocation::AStack) => room.part(0, message.len()),
                Some(ValueLocation::Inline) => {
                    Span::of_words(&message.values).part(0, message.len())
                }
                _ => None,
            };
            if let (outcome::DONE, Some(values)) = (message.tag(), values) {
                let read = (results.read)(values);
                point(Point::ClientRead);
                return read;
            }
            let brought = CallMemory { astack: Some(astack), segment: None };
            return self.finish(bound, terms, &message, brought, results);
        }
        self.call_slow(bound, terms, (len, wish), args, results)
    }
}

#[inline(never)]
fn ends_after(deadline: Duration) -> Option<Instant> {
    Instant::now().checked_add(deadline).into_iter().chain(upcall_thread::calls_end()).min()
}
