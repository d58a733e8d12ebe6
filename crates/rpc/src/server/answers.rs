//! The replies that do not fit into a slot, and replies without results.

use super::{Call, MOST_TEXT, Replied, outcome};
use crate::decode::{Malformed, QuotaScope};
use crate::encode::{EncodeError, Encoder, block_len};
use crate::interface::Limits;
use crate::pace::{Pace, zeroed};
use crate::value::Put;
use std::any::Any;
use upcall_os::fault::{Point, point};
use upcall_sched::quota::{Over, QuotaBound as Crossed};
use upcall_shm::slot::{INLINE, NO_ASTACK, SlotMessage, ValueLocation};
use upcall_shm::span::WritableSpan;

impl Call<'_> {
    /// Answers that there is no such procedure.
    #[cold]
    pub fn unknown(self) -> Replied {
        self.plain(outcome::NO_SUCH_PROCEDURE)
    }

    pub(crate) fn plain(self, tag: u16) -> Replied {
        self.answer(&mut SlotMessage::new(0, tag, NO_ASTACK), 0)
    }

    /// Writes a result that does not fit into a slot to where the client can read it, in the
    /// A-stack or the segment. Otherwise keeps it until the client fetches it.
    #[inline(always)]
    pub(super) fn reply_in_memory<R: Put>(self, result: &R, len: usize, limits: Limits) -> Replied {
        let session = Some(&self.bound.session);
        let mut reply = SlotMessage::new(0, outcome::DONE, NO_ASTACK);
        let fault = if let Some(room) = self.astack.filter(|room| room.len() >= len) {
            reply.place(ValueLocation::AStack, 0, len as u32);
            Encoder::block(room, result, limits, session)
        } else if let Some(room) = self.segment.filter(|room| room.len() >= len) {
            reply.values[0] = len as u64;
            reply.place(ValueLocation::Segment, 0, 8);
            Encoder::block(room, result, limits, session)
        } else {
            // Charged before the block is made, so that a result over the client's quota costs no
            // memory.
            let counted = match self.bound.session.count_result(len.div_ceil(8)) {
                Ok(counted) => counted,
                Err(over) => return self.numbers(outcome::RESULT_QUOTA, unkept(len, over)),
            };
            let Some(mut block) = zeroed(len.div_ceil(8)) else {
                return self.numbers(outcome::RESULT_NO_MEMORY, [len as u64, 0, 0]);
            };
            let fault = Encoder::block(WritableSpan::of_words(&mut block), result, limits, session);
            if fault.is_ok() {
                point(Point::ServerHolds);
                let key = self.bound.session.hold(block, counted);
                reply = SlotMessage::new(0, outcome::HELD, NO_ASTACK);
                (reply.values[0], reply.values[1]) = (key, len as u64);
                reply.place(ValueLocation::Inline, 0, 16);
            } else {
                Pace::new(true).free(block);
            }
            fault
        };
        match fault {
            Ok(()) => self.answer(&mut reply, len),
            Err(fault) => self.unwritten(fault),
        }
    }

    /// Answers that the result could not be written.
    #[cold]
    pub(super) fn unwritten(self, fault: EncodeError) -> Replied {
        match fault {
            EncodeError::TooLong { what, len, limit } => self.refused(&format!(
                "the procedure has run, but its result has a {what} of {len}, longer than the \
                 interface's limit of {limit}: raise it in the TOML file beside the interface, or \
                 return less at a time"
            )),
            EncodeError::TooManyObjects => self.refused(
                "the procedure has run, but the client holds too many objects to get another one: \
                 drop some",
            ),
            EncodeError::NoMemory => self.refused(
                "the procedure has run, but the server has no memory to keep its result's object",
            ),
            _ => self.refused("the procedure has run, but its result does not fit its space"),
        }
    }

    #[cold]
    pub(super) fn malformed(self, malformed: &Malformed) -> Replied {
        match malformed {
            Malformed::NoSuchHandle { .. } => self.plain(outcome::NO_SUCH_HANDLE),
            Malformed::Quota { bytes, limit, of } => {
                self.numbers(outcome::QUOTA, [*bytes, *limit, *of as u64])
            }
            Malformed::NoMemory { bytes } => self.numbers(outcome::NO_MEMORY, [*bytes, 0, 0]),
            Malformed::TooLong { len, limit, .. } => self.refused(&format!(
                "an argument has a length of {len}, more than this server's limit of {limit}; the \
                 procedure did not run: send less at a time, or build client and server with the \
                 same limits"
            )),
            Malformed::NotUtf8 { .. } => self.refused(
                "an argument of the type string is not UTF-8; the procedure did not run: send \
                 other bytes as list<u8>",
            ),
            // Only a client that breaks the protocol causes the others. It gets a short text, which
            // the server does not keep.
            other => {
                let text = other.to_string();
                self.text(outcome::REFUSED, &text)
            }
        }
    }

    /// Answers that the procedure panicked. A message that is too long for the slot is kept until
    /// the client fetches it, as a result is.
    #[cold]
    pub(super) fn panicked(self, panic: &(dyn Any + Send)) -> Replied {
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("the panic carries no text");
        let text = upcall_os::text::cut(text, MOST_TEXT);
        match self.hold_text(text) {
            Some((key, len)) => self.numbers(outcome::PANICKED_HELD, [key, len as u64, 0]),
            None => self.text(outcome::PANICKED, text),
        }
    }

    /// Answers that the server refuses, for this reason. A long one is kept as a panic's message
    /// is.
    #[cold]
    fn refused(self, text: &str) -> Replied {
        match self.hold_text(text) {
            Some((key, len)) => self.numbers(outcome::REFUSED_HELD, [key, len as u64, 0]),
            None => self.text(outcome::REFUSED, text),
        }
    }

    /// Keeps `text` for the client, and returns its key and the length of its block. Returns `None`
    /// if the text fits into a slot, or if the client has no quota left or the server no memory.
    fn hold_text(&self, text: &str) -> Option<(u64, usize)> {
        let session = &self.bound.session;
        let len = block_len(text);
        if len <= INLINE {
            return None;
        }
        let counted = session.count_result(len.div_ceil(8)).ok()?;
        let mut block = zeroed(len.div_ceil(8))?;
        let limits = crate::Limits::default();
        Encoder::block(WritableSpan::of_words(&mut block), text, limits, None).ok()?;
        Some((session.hold(block, counted), len))
    }

    pub(super) fn numbers(self, tag: u16, numbers: [u64; 3]) -> Replied {
        let mut reply = SlotMessage::new(0, tag, NO_ASTACK);
        reply.values[..3].copy_from_slice(&numbers);
        reply.place(ValueLocation::Inline, 0, 24);
        self.answer(&mut reply, 0)
    }

    /// Replies with a short text, cut to what a slot carries.
    pub(super) fn text(self, tag: u16, text: &str) -> Replied {
        let mut reply = SlotMessage::new(0, tag, NO_ASTACK);
        let _ = Encoder::block(
            WritableSpan::of_words(&mut reply.values),
            upcall_os::text::cut(text, INLINE - 16),
            crate::Limits::default(),
            None,
        );
        reply.place(ValueLocation::Inline, 0, INLINE as u32);
        self.answer(&mut reply, 0)
    }
}

/// The numbers of a reply to a client whose result is not kept.
pub(crate) fn unkept(bytes: usize, over: Over) -> [u64; 3] {
    let of = if over.bound == Crossed::Client { QuotaScope::Client } else { QuotaScope::All };
    [bytes as u64, over.most as u64, of as u64]
}
