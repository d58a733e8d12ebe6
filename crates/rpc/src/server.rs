//! Serving calls: the guards of a request, the procedure, and the reply in the request's slot.
//!
//! Source: LRPC, section 3.2 (dispatch). Other replies are in `answers.rs`, the runtime's own
//! procedures in `own.rs`, and calls of clients on other machines in `network.rs`.

pub(crate) mod answers;
pub(crate) mod network;
mod own;

use crate::bound::ServerBinding;
use crate::decode::{Decoder, DecoderSide, Malformed};
use crate::encode::{Encoder, block_len};
use crate::pace::Pace;
use crate::shared::ClientState;
use crate::value::Put;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;
use upcall_os::clock;
use upcall_os::cold_path;
use upcall_os::fault::{Point, point};
use upcall_sched::Request;
use upcall_shm::astack::AStackPlan;
use upcall_shm::region::Region;
use upcall_shm::slot::{INLINE, NO_ASTACK, SlotMessage, ValueLocation};
use upcall_shm::span::{Span, WritableSpan};
use upcall_shm::tally::{self, Arrival};

pub use crate::bound::{ClientBinding, MOST_BINDINGS};
pub use crate::endpoint::{BindPolicy, Running, Server};
pub use crate::exports::Export;

/// Procedure numbers of the runtime itself.
pub(crate) const RELEASE: u16 = 1023;
pub(crate) const FETCH: u16 = 1022;

/// A message's tag: six bits of binding, ten of procedure.
pub(crate) fn tag(binding: u16, procedure: u16) -> u16 {
    binding << 10 | procedure & 0x3ff
}

/// The outcome of a call: the tag of its reply.
pub(crate) mod outcome {
    pub(crate) const DONE: u16 = 0;
    pub(crate) const REFUSED: u16 = 1;
    pub(crate) const PANICKED: u16 = 2;
    pub(crate) const NO_SUCH_PROCEDURE: u16 = 3;
    pub(crate) const REVOKED: u16 = 4;
    pub(crate) const HELD: u16 = 5;
    pub(crate) const NO_SUCH_HANDLE: u16 = 6;
    pub(crate) const QUOTA: u16 = 7;
    pub(crate) const NO_MEMORY: u16 = 8;
    /// The procedure has run; its results are not kept.
    pub(crate) const RESULT_QUOTA: u16 = 9;
    /// The procedure has run; there is no memory for its results.
    pub(crate) const RESULT_NO_MEMORY: u16 = 10;
    /// The procedure panicked; the server keeps the message until the client fetches it.
    pub(crate) const PANICKED_HELD: u16 = 11;
    /// The server refused; it keeps the reason until the client fetches it.
    pub(crate) const REFUSED_HELD: u16 = 12;
    pub(crate) const UNANSWERED: u16 = upcall_sched::server::UNANSWERED;
}

/// Maximum length, in bytes, of a text that a server sends in place of a result, and that a client
/// accepts: the message of a panic, or the reason of a refusal.
pub(crate) const MOST_TEXT: usize = 4096;

/// Runs an interface's procedures. Implemented by generated code.
pub trait Dispatch: Send + Sync {
    /// Runs one call.
    fn dispatch(&self, call: Call<'_>) -> Replied;
}

/// The guards of every call, in order. Each guard that fails answers with its reason (LRPC, section
/// 3.2: the kernel verifies the binding, the procedure and the A-stack).
pub(crate) fn serve(shared: &ClientState, request: Request<'_>, came: Arrival) {
    let image = request.image();
    let Some(bound) = shared.bound(image.tag() >> 10) else {
        return refuse(request, outcome::REVOKED);
    };
    if bound.is_revoked() {
        return refuse(request, outcome::REVOKED);
    }
    match image.segment() {
        0 => serve_bound(bound, request, None, came),
        number => serve_with_segment(shared, bound, request, number, came),
    }
}

#[cold]
fn refuse(request: Request<'_>, tag: u16) {
    request.reply(&mut SlotMessage::new(0, tag, NO_ASTACK));
}

#[inline(never)]
fn serve_with_segment(
    shared: &ClientState,
    bound: &ServerBinding,
    request: Request<'_>,
    number: u16,
    came: Arrival,
) {
    let Some(region) = shared.segment(number) else { return refuse(request, outcome::REFUSED) };
    serve_bound(bound, request, region.room(0, region.len()), came);
}

/// Runs a request through its binding, with the segment that the client has brought. The code is
/// laid out for the most frequent calls: on a processor that has just switched to this code, each
/// line of it comes from distant memory.
#[inline(always)]
fn serve_bound(
    bound: &ServerBinding,
    request: Request<'_>,
    segment: Option<WritableSpan<'_>>,
    came: Arrival,
) {
    let image = request.image();
    let Some((args, astack)) = brought(image, &bound.plan, bound.astacks.get(), segment) else {
        return refuse(request, outcome::REFUSED);
    };
    let procedure = image.tag() & 0x3ff;
    let mut taken = None;
    if bound.tally.as_ref().is_some_and(|tally| tally.of(processor()).is_sampled(procedure)) {
        cold_path();
        taken = Some(Instant::now());
    }
    let ends = image.deadline();
    let call = Call {
        request: Asker::Channel(request),
        bound,
        procedure,
        came,
        args,
        astack,
        segment,
        taken,
    };
    if procedure >= FETCH || ends.is_some() {
        return serve_uncommon(call, ends);
    }
    let _replied = bound.entry.dispatch.dispatch(call);
}

/// Serves requests to the runtime itself, and requests with a deadline.
#[inline(never)]
fn serve_uncommon(call: Call<'_>, ends: Option<u64>) {
    let dispatch = &call.bound.entry.dispatch;
    let _replied = match call.procedure {
        RELEASE => call.release(),
        FETCH => call.fetch(),
        _ => match ends.and_then(clock::moment) {
            None => dispatch.dispatch(call),
            Some(ends) => upcall_thread::with_calls_that_end(ends, || dispatch.dispatch(call)),
        },
    };
}

/// Returns the arguments of a request and the A-stack that it names. `None` if either lies outside
/// of the client's memory.
#[inline]
pub(crate) fn brought<'a>(
    image: &'a SlotMessage,
    plan: &AStackPlan,
    astacks: Option<&'a Arc<Region>>,
    segment: Option<WritableSpan<'a>>,
) -> Option<(Span<'a>, Option<WritableSpan<'a>>)> {
    let astack = match image.astack() {
        NO_ASTACK => None,
        number => {
            let (at, len) = plan.place(number)?;
            Some(astacks?.room(at, len)?)
        }
    };
    let args = match image.values_in()? {
        // A deadline takes the last word, and the values end before it. If a client claims
        // otherwise, its values include the deadline's bytes, which harms no one else.
        ValueLocation::Inline => Span::of_words(&image.values).part(0, image.len()),
        ValueLocation::AStack => astack.and_then(|room| room.part(0, image.len())),
        ValueLocation::Segment => usize::try_from(image.values[0])
            .ok()
            .and_then(|len| segment.and_then(|room| room.part(0, len))),
    };
    Some((args?, astack))
}

/// A call that has arrived. Answer it by one of the methods that return a [`Replied`].
pub struct Call<'a> {
    request: Asker<'a>,
    bound: &'a ServerBinding,
    procedure: u16,
    came: Arrival,
    args: Span<'a>,
    /// Room for results that do not fit into a slot.
    astack: Option<WritableSpan<'a>>,
    segment: Option<WritableSpan<'a>>,
    /// When the request was taken, if the call's time is measured.
    taken: Option<Instant>,
}

/// The client that waits for the reply.
enum Asker<'a> {
    /// A client that shares memory.
    Channel(Request<'a>),
    /// A client on another machine. The network code takes the reply from this cell.
    Network(&'a Cell<Option<SlotMessage>>),
}

impl Asker<'_> {
    #[inline]
    fn reply(self, reply: &mut SlotMessage) {
        match self {
            Self::Channel(request) => request.reply(reply),
            Self::Network(answer) => answer.set(Some(*reply)),
        }
    }
}

/// Proof that a call was answered.
#[derive(Debug)]
pub struct Replied(());

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({}, procedure {})", self.bound.entry.interface.id, self.procedure)
    }
}

impl Call<'_> {
    /// The procedure's number in the interface.
    #[inline]
    pub fn procedure(&self) -> u16 {
        self.procedure
    }

    /// Runs the procedure on its arguments, and replies with its result. A panic in it is reported
    /// to the client, and the server goes on.
    #[inline]
    pub fn respond<R: Put>(
        self,
        run: impl FnOnce(&Decoder<'_>) -> Result<R, Malformed>,
    ) -> Replied {
        let Some(procedure) =
            self.bound.entry.interface.procedures.get(usize::from(self.procedure))
        else {
            return self.unknown();
        };
        let fixed = procedure.args.fixed as usize;
        let args = Decoder::new(
            self.args,
            fixed,
            procedure.limits,
            DecoderSide::Server(&self.bound.session),
        );
        point(Point::ServerRuns);
        let ran = catch_unwind(AssertUnwindSafe(|| run(&args)));
        point(Point::ServerRan);
        match &ran {
            // By reference: compilers do not remove the copy of a result that is moved.
            Ok(Ok(result)) => {
                let replied = self.reply_with(result, procedure.limits);
                // The client has its reply and no longer waits.
                if let (false, Ok(Ok(result))) = (R::FIXED, ran) {
                    result.free(&Pace::new(true));
                }
                replied
            }
            Ok(Err(malformed)) => self.malformed(malformed),
            Err(panic) => self.panicked(&**panic),
        }
    }

    /// Sends the reply, with this many bytes of results, and counts the call while the reply is on
    /// its way.
    #[inline(never)]
    fn answer(self, reply: &mut SlotMessage, results: usize) -> Replied {
        let Self { request, bound, procedure, came, args, taken, .. } = self;
        let outcome = reply.tag();
        request.reply(reply);
        if let Some(tally) = bound.tally.as_ref().filter(|_| procedure < FETCH) {
            let counts = tally.of(processor());
            counts.count(procedure, came, counted(outcome), args.len(), results);
            if let Some(taken) = taken {
                cold_path();
                counts.time(taken.elapsed());
            }
        }
        Replied(())
    }

    /// Writes the result to where the client can read it: the slot, the A-stack, or the segment.
    /// Otherwise keeps it until the client fetches it.
    #[inline]
    fn reply_with<R: Put>(self, result: &R, limits: crate::Limits) -> Replied {
        let len = block_len(result);
        if len > INLINE {
            return self.reply_in_memory(result, len, limits);
        }
        let mut reply = SlotMessage::new(0, outcome::DONE, NO_ASTACK);
        reply.place(ValueLocation::Inline, 0, len as u32);
        let fault = if len == 0 {
            Ok(())
        } else {
            let session = Some(&self.bound.session);
            Encoder::block(WritableSpan::of_words(&mut reply.values), result, limits, session)
        };
        match fault {
            Ok(()) => self.answer(&mut reply, len),
            Err(fault) => self.unwritten(fault),
        }
    }
}

/// Index of the server's processor on which this procedure runs.
#[inline]
fn processor() -> usize {
    upcall_sched::index()
}

/// The statistic in which an outcome is counted.
fn counted(outcome: u16) -> tally::CallOutcome {
    if outcome == outcome::DONE {
        return tally::CallOutcome::Done;
    }
    cold_path();
    match outcome {
        outcome::HELD => tally::CallOutcome::Done,
        outcome::PANICKED | outcome::PANICKED_HELD | outcome::UNANSWERED => {
            tally::CallOutcome::Panicked
        }
        outcome::NO_SUCH_PROCEDURE | outcome::NO_SUCH_HANDLE => tally::CallOutcome::Unknown,
        _ => tally::CallOutcome::Refused,
    }
}
