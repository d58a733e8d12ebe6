//! A call to another machine.

use super::results::{MOST_TEXT_BLOCK, bad};
use super::{Unread, unread};
use crate::binding::{Binding, ServerLocation};
use crate::encode::{Encoder, block_len};
use crate::error::CallError;
use crate::interface::Limits;
use crate::pace::zeroed;
use crate::server::outcome;
use crate::value::{Get, Put};
use std::sync::Arc;
use upcall_net::frame::MOST_BODY;
use upcall_net::{Frame, FrameBody, FrameKind, LateFrame, bodies};
use upcall_sched::{NoReply, run_late};
use upcall_shm::slot::{INLINE, NO_ASTACK, SlotMessage, ValueLocation};
use upcall_shm::span::{Span, WritableSpan};

impl Binding {
    /// Like [`Binding::call`], to another machine.
    #[cold]
    #[inline(never)]
    pub(super) fn call_far_away<A: Put, R: Get>(
        &self,
        number: u16,
        args: &A,
    ) -> Result<R, CallError> {
        let limits = self.limits(number);
        self.call_far(number, block_len(args), args, unread::<R>(), |span| {
            self.decode(span, limits)
        })
    }

    /// A call to another machine. The caller sees the same as from [`Binding::call`].
    #[cold]
    pub(crate) fn call_far<A: Put, T>(
        &self,
        number: u16,
        len: usize,
        args: &A,
        unread: impl Unread,
        read: impl FnOnce(Span<'_>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let (limits, until, bound) =
            (self.limits(number), self.until(), &self.inner.procedures[usize::from(number)]);
        let ServerLocation::Far(far) = &self.inner.way else {
            return Err(bad("a call by the wrong way"));
        };
        if len > MOST_BODY {
            return Err(CallError::NoMemory {
                bytes: len as u64,
                error: format!("a message over the network has {MOST_BODY} at most"),
            });
        }
        let count = len.div_ceil(8);
        let block = if let Some(words) = bodies::old(count) {
            let mut block = FrameBody { words, len };
            Encoder::block_over(WritableSpan::of_words(&mut block.words), args, limits)?;
            block
        } else {
            let words = zeroed(count).ok_or(NoReply::NoMemory { bytes: len })?;
            let mut block = FrameBody { words, len };
            if len > 0 {
                Encoder::block_in_turns(WritableSpan::of_words(&mut block.words), args, limits)?;
            }
            block
        };
        let inner = Arc::downgrade(&self.inner);
        let mut late = || -> LateFrame {
            let inner = inner.clone();
            // Results may hold resources, and dropping those blocks.
            Box::new(move |frame| {
                if frame.head.number == outcome::DONE && frame.body.len > 0 {
                    run_late(move || {
                        let Some(inner) = inner.upgrade() else { return };
                        unread(&Self::of(inner), frame.body.view(), limits);
                    });
                }
            })
        };
        let reply = far.call(bound.tag, block, until, &mut late)?;
        self.release_overdue(until.ends);
        if reply.head.kind != FrameKind::Reply {
            return Err(bad("an answer in place of a reply"));
        }
        if reply.head.number == outcome::DONE {
            return read(reply.body.view());
        }
        let of_text = match reply.head.number {
            outcome::PANICKED => Some(CallError::Panicked as fn(String) -> CallError),
            outcome::REFUSED => Some(CallError::Refused as fn(String) -> CallError),
            _ => None,
        };
        if let Some(of_text) = of_text.filter(|_| reply.body.len > INLINE) {
            if reply.body.len > MOST_TEXT_BLOCK {
                return Err(bad("a text that is too long in place of a result"));
            }
            let text = self.decode(reply.body.view(), Limits::default());
            return Err(text.map_or_else(|bad| bad, of_text));
        }
        Err(self.refusal(&as_image(&reply)))
    }
}

/// The slot message that a reply without results would be.
fn as_image(reply: &Frame) -> SlotMessage {
    let mut image = SlotMessage::new(0, reply.head.number, NO_ASTACK);
    let words = image.values.len().min(reply.body.words.len());
    image.values[..words].copy_from_slice(&reply.body.words[..words]);
    image.place(ValueLocation::Inline, 0, reply.body.len.min(INLINE) as u32);
    image
}
