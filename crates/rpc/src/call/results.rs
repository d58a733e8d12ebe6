//! How a client reads a reply: results in the slot, an A-stack or a segment; results that the
//! server keeps until they are fetched; and replies without results.

use super::{ReadResults, ResultReader, Terms, Unread};
use crate::binding::{Binding, BoundProcedure, ServerLocation};
use crate::brought::{AStack, CallMemory, TakenSegment};
use crate::decode::QuotaScope;
use crate::error::CallError;
use crate::interface::Limits;
use crate::server::{self, MOST_TEXT, outcome};
use upcall_os::atomic::Ordering;
use upcall_os::fault::{Point, point};
use upcall_os::headroom;
use upcall_sched::{WaitLimit, run_late};
use upcall_shm::slot::{NO_ASTACK, SlotMessage, ValueLocation};
use upcall_shm::span::Span;

/// Maximum length, in bytes, of a result for which later calls of its procedure bring room.
/// Segments for longer results are not kept.
const MOST_REMEMBERED: u32 = 16 << 20;

/// Maximum length, in bytes, of a result that is fetched without a check of the memory that is
/// left.
const SMALL: usize = 16 << 20;

/// Maximum length, in bytes, of the block of a panic message: its descriptor and its text.
pub(super) const MOST_TEXT_BLOCK: usize = 16 + MOST_TEXT;

/// Factor by which the available memory must exceed a result's length. The segment takes the length
/// once, and the value that is read from it can be larger than its bytes.
const TIMES: u64 = 4;

impl Binding {
    /// Reads a call's results. Records their length if the call brought no room for them.
    #[inline(never)]
    pub(super) fn finish<T>(
        &self,
        bound: &BoundProcedure,
        terms: Terms<'_>,
        reply: &SlotMessage,
        brought: CallMemory<'_>,
        results: ResultReader<impl Unread, impl ReadResults<T>>,
    ) -> Result<T, CallError> {
        let held = (reply.tag() == outcome::HELD).then_some(reply.values[1]);
        let result = self.results(terms, reply, brought, results);
        point(Point::ClientRead);
        // Only a length that was delivered is trusted, and makes the next call bring room.
        if let (Ok(_), Some(Ok(len @ ..=MOST_REMEMBERED))) = (&result, held.map(u32::try_from)) {
            bound.result.store(len, Ordering::Relaxed);
        }
        result
    }

    /// Reads a reply's results from where the server says that they are.
    #[inline]
    pub(super) fn results<T>(
        &self,
        terms: Terms<'_>,
        reply: &SlotMessage,
        brought: CallMemory<'_>,
        results: ResultReader<impl Unread, impl ReadResults<T>>,
    ) -> Result<T, CallError> {
        if reply.tag() != outcome::DONE {
            return self.uncommon(terms, reply, brought, results);
        }
        let read = results.read;
        match reply.values_in() {
            Some(ValueLocation::Inline) => {
                let values = Span::of_words(&reply.values).part(0, reply.len());
                read(values.ok_or_else(|| bad("more results than a slot carries"))?)
            }
            Some(ValueLocation::AStack) => {
                let room = brought
                    .astack
                    .as_ref()
                    .and_then(AStack::room)
                    .and_then(|room| room.part(0, reply.len()));
                read(room.ok_or_else(|| bad("results in an A-stack that was not given"))?)
            }
            Some(ValueLocation::Segment) => {
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

    /// Handles all replies that most calls do not get.
    #[cold]
    pub(crate) fn uncommon<T>(
        &self,
        terms: Terms<'_>,
        reply: &SlotMessage,
        brought: CallMemory<'_>,
        results: ResultReader<impl Unread, impl ReadResults<T>>,
    ) -> Result<T, CallError> {
        match reply.tag() {
            // The call keeps its A-stack and its place until the result is here. So a server keeps
            // no more results than there are A-stacks and places.
            outcome::HELD => {
                let _turn = brought.astack;
                self.fetch(terms, reply, brought.segment, results)
            }
            outcome::PANICKED_HELD => {
                let _turn = brought.astack;
                Err(self.fetch_text(terms, reply, brought.segment, CallError::Panicked))
            }
            outcome::REFUSED_HELD => {
                let _turn = brought.astack;
                Err(self.fetch_text(terms, reply, brought.segment, CallError::Refused))
            }
            _ => Err(self.refusal(reply)),
        }
    }

    /// Fetches a text that the server keeps, and makes the error of it that it stands for. A server
    /// that claims a longer text than it may send breaks the protocol, and costs this process no
    /// memory.
    fn fetch_text(
        &self,
        terms: Terms<'_>,
        reply: &SlotMessage,
        brought: Option<TakenSegment<'_>>,
        error: fn(String) -> CallError,
    ) -> CallError {
        if reply.values[1] > MOST_TEXT_BLOCK as u64 {
            return bad("a text that is too long in place of a result");
        }
        let read = |span: Span<'_>| self.decode(span, Limits::default());
        error(
            self.fetch(terms, reply, brought, ResultReader::new(nothing, read))
                .unwrap_or_else(|_| "the reason could not be fetched in time".into()),
        )
    }

    /// The error that a reply without results stands for.
    #[cold]
    pub(crate) fn refusal(&self, reply: &SlotMessage) -> CallError {
        let text = || self.text(reply);
        match reply.tag() {
            outcome::REFUSED => text().map_or_else(|bad| bad, CallError::Refused),
            outcome::PANICKED => text().map_or_else(|bad| bad, CallError::Panicked),
            outcome::QUOTA | outcome::RESULT_QUOTA => match reply.values {
                [bytes, limit, of, ..] => {
                    let of = [QuotaScope::Call, QuotaScope::Client]
                        .into_iter()
                        .find(|known| *known as u64 == of)
                        .unwrap_or(QuotaScope::All);
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

    fn text(&self, reply: &SlotMessage) -> Result<String, CallError> {
        match reply.values_in() {
            // A text of the server's runtime fits into a slot. The interface's limits are for
            // values of its procedures.
            Some(ValueLocation::Inline) => {
                self.decode(Span::of_words(&reply.values), Limits::default())
            }
            _ => Err(bad("an error text in an odd place")),
        }
    }

    /// Fetches a result that was larger than the memory that the call brought, into a large enough
    /// segment, which replaces the call's segment. A result that cannot be fetched in time is
    /// fetched afterwards and dropped, so that no resource in it stays in the server.
    fn fetch<T>(
        &self,
        terms: Terms<'_>,
        reply: &SlotMessage,
        brought: Option<TakenSegment<'_>>,
        results: ResultReader<impl Unread, impl ReadResults<T>>,
    ) -> Result<T, CallError> {
        let late = results.late;
        let fetched = self.fetch_by(terms, reply, brought, results);
        if !matches!(fetched, Err(CallError::Aborted { sent: false })) {
            return fetched;
        }
        let (binding, reply, limits) =
            (Self { cancel: None, ..self.with_deadline(None) }, *reply, terms.limits);
        run_late(move || {
            let ServerLocation::Near(near) = &binding.inner.way else { return };
            let terms = Terms { near, limits, until: WaitLimit::FOR_EVER };
            drop(binding.fetch_by(
                terms,
                &reply,
                None,
                ResultReader::unread(&binding, limits, late),
            ));
        });
        // The procedure has run.
        Err(CallError::Aborted { sent: true })
    }

    fn fetch_by<T>(
        &self,
        terms: Terms<'_>,
        reply: &SlotMessage,
        brought: Option<TakenSegment<'_>>,
        results: ResultReader<impl Unread, impl ReadResults<T>>,
    ) -> Result<T, CallError> {
        let near = terms.near;
        let [key, len, ..] = reply.values;
        let len = usize::try_from(len).map_err(|_| bad("a result larger than memory"))?;
        let mut request = SlotMessage::new(0, server::tag(near.id, server::FETCH), NO_ASTACK);
        request.values[0] = key;
        let larger = affordable(len).and_then(|()| match brought {
            Some(brought) => brought.exchange(len, terms.until),
            None => TakenSegment::take(&near.link, len, terms.until),
        });
        let mut brought = match larger {
            Ok(segment) => CallMemory { astack: None, segment: Some(segment) },
            Err(error @ CallError::Aborted { .. }) => return Err(error),
            Err(error) => {
                // Without a segment the server forgets the result.
                request.place(ValueLocation::Inline, 0, 8);
                self.send(terms, &mut request, &mut CallMemory::nothing(), nothing)?;
                return Err(error);
            }
        };
        let number = brought.segment.as_ref().map_or(0, TakenSegment::number);
        request.place(ValueLocation::Inline, number, 8);
        point(Point::ClientFetches);
        self.send(terms, &mut request, &mut brought, results.late)?;
        let reply = &request;
        match (reply.tag(), reply.values_in()) {
            (outcome::DONE, Some(ValueLocation::Segment)) => {}
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

impl ResultReader<(), ()> {
    /// The reader of a call that was given up: all its results are late.
    pub(super) fn unread<U: Unread>(
        binding: &Binding,
        limits: Limits,
        late: U,
    ) -> ResultReader<U, impl ReadResults<()>> {
        ResultReader::new(late, move |span: Span<'_>| {
            late(binding, span, limits);
            Ok(())
        })
    }
}

/// For replies of the runtime itself, which hold no resources.
fn nothing(_: &Binding, _: Span<'_>, _: Limits) {}

/// Returns an error if a result of `len` bytes could exhaust this process's memory. The server
/// states the length, and needs no memory to claim a result that does not exist.
fn affordable(len: usize) -> Result<(), CallError> {
    if len <= SMALL {
        return Ok(());
    }
    let left = headroom::available();
    if len as u64 <= left / TIMES {
        return Ok(());
    }
    let error = format!(
        "a result may take a quarter of the {left} bytes that this process can have; by the \
        server's word the procedure has run"
    );
    Err(CallError::NoMemory { bytes: len as u64, error })
}

#[cold]
pub(crate) fn bad(what: &str) -> CallError {
    CallError::BadReply(what.into())
}
