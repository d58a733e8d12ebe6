//! The slow paths of a call: with a deadline or a cancel token, or without a free A-stack.
//!
//! A call that is given up leaves its A-stack and its segment to its late reply ([`Leavings`]). The
//! late reply is read like a reply in time, so that the resources in it are dropped. Then the
//! memory is free again.

use super::{ReadResults, ResultReader, Terms, Unread};
use crate::binding::{Binding, BindingState, BoundProcedure, ServerLocation, WhenFull};
use crate::brought::{AStack, AbandonedMemory, CallMemory, TakenSegment};
use crate::encode::Encoder;
use crate::error::CallError;
use crate::interface::Limits;
use crate::link::DomainLink;
use crate::value::Put;
use std::mem;
use std::sync::{Arc, Weak};
use upcall_os::clock;
use upcall_os::fault::{Point, point};
use upcall_sched::{LateReply, WaitLimit, WaitPolicy};
use upcall_shm::slot::{NO_ASTACK, SlotMessage, ValueLocation};
use upcall_shm::span::WritableSpan;

impl Binding {
    /// Calls with a deadline or a cancel token, or without a free A-stack.
    #[inline(never)]
    pub(super) fn call_slow<A: Put, T>(
        &self,
        bound: &BoundProcedure,
        terms: Terms<'_>,
        (len, wish): (usize, usize),
        args: &A,
        results: ResultReader<impl Unread, impl ReadResults<T>>,
    ) -> Result<T, CallError> {
        // A call whose time is over takes, maps and encodes nothing.
        if terms.until.has_come() {
            return Err(CallError::Aborted { sent: false });
        }
        let mut brought = self.bring(bound, terms, wish)?;
        point(Point::ClientTook);
        let mut request = SlotMessage::new(
            0,
            bound.tag,
            brought.astack.as_ref().map_or(NO_ASTACK, AStack::number),
        );
        let number = brought.segment.as_ref().map_or(0, TakenSegment::number);
        if len <= terms.inline() {
            Encoder::block(WritableSpan::of_words(&mut request.values), args, terms.limits, None)?;
            request.place(ValueLocation::Inline, number, len as u32);
        } else if let Some(room) = brought.astack.as_ref().and_then(AStack::room) {
            Encoder::block(room, args, terms.limits, None)?;
            request.place(ValueLocation::AStack, 0, len as u32);
        } else if let Some(room) = brought.segment.as_ref().and_then(TakenSegment::room) {
            Encoder::block(room, args, terms.limits, None)?;
            request.values[0] = len as u64;
            request.place(ValueLocation::Segment, number, 8);
        }
        point(Point::ClientWrote);
        self.send(terms, &mut request, &mut brought, results.late)?;
        point(Point::ClientAnswered);
        self.finish(bound, terms, &request, brought, results)
    }

    /// Takes an A-stack. If none is free and `wish` bytes do not fit into the slot, takes a
    /// segment.
    #[inline]
    fn bring<'a>(
        &'a self,
        bound: &BoundProcedure,
        terms: Terms<'a>,
        wish: usize,
    ) -> Result<CallMemory<'a>, CallError> {
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
        // A segment in place of an A-stack has room for the results as well.
        let wish = stacks.map_or(wish, |stacks| stacks.size);
        let segment = match astack {
            None if wish > terms.inline() => Some(TakenSegment::take(&near.link, wish, until)?),
            _ => None,
        };
        Ok(CallMemory { astack, segment })
    }

    #[cold]
    fn waits_for_astacks(&self) -> bool {
        self.when_full == WhenFull::Wait && !upcall_thread::runs_outside_work()
    }

    /// Sends a request, and waits for its reply for as long as the terms allow. After that the
    /// memory that the call brought is left to the late reply, whose results `unread` reads.
    #[inline]
    pub(super) fn send<'a>(
        &'a self,
        terms: Terms<'_>,
        message: &mut SlotMessage,
        brought: &mut CallMemory<'a>,
        unread: impl Unread,
    ) -> Result<(), CallError> {
        if terms.until.is_for_ever() {
            return self.send_for_ever(terms.near, message);
        }
        self.send_until(terms, message, brought, unread)
    }

    #[cold]
    pub(crate) fn send_until<'a>(
        &'a self,
        terms: Terms<'_>,
        message: &mut SlotMessage,
        brought: &mut CallMemory<'a>,
        unread: impl Unread,
    ) -> Result<(), CallError> {
        let Terms { near, limits, until } = terms;
        // If it were sent, its reply could arrive at once, and the call would return as if it had
        // been in time.
        if until.has_come() {
            return Err(CallError::Aborted { sent: false });
        }
        // The server's own calls on behalf of this call end at the same time.
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
            .call_within(message, WaitPolicy { until, late: &mut late, hand_off: self.hand_off })?;
        self.release_overdue(until.ends);
        Ok(())
    }
}

/// The memory that a call leaves to its late reply. It does not keep the binding alive: when the
/// binding is dropped, so is its A-stack. The segment belongs to the link.
struct Leavings {
    inner: Weak<BindingState>,
    link: Weak<DomainLink>,
    brought: AbandonedMemory,
}

impl Leavings {
    /// Reads the late reply and drops its results, with the resources in them. Then frees the
    /// call's memory. May block.
    fn read(mut self, limits: Limits, reply: &SlotMessage, late: impl Unread) {
        let Some(inner) = self.inner.upgrade() else { return };
        let binding = Binding::of(inner);
        let ServerLocation::Near(near) = &binding.inner.way else { return };
        let brought = CallMemory::from(near, mem::take(&mut self.brought));
        let terms = Terms { near, limits, until: WaitLimit::FOR_EVER };
        // The caller has left, so an error has no receiver.
        let _ =
            binding.results(terms, reply, brought, ResultReader::unread(&binding, limits, late));
        binding.release_overdue(None);
    }
}

/// No reply arrives, or none could be read: frees the memory.
impl Drop for Leavings {
    fn drop(&mut self) {
        if let Some(left) = self.brought.astack.take()
            && let Some(inner) = self.inner.upgrade()
            && let ServerLocation::Near(near) = &inner.way
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
