//! Calls of clients on other machines.

use super::{Asker, Call, FETCH, RELEASE, outcome, processor};
use crate::bound::ServerBinding;
use crate::encode::Encoder;
use std::cell::Cell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;
use upcall_net::FrameBody;
use upcall_net::frame::MOST_BODY;
use upcall_shm::slot::INLINE;
use upcall_shm::span::WritableSpan;
use upcall_shm::tally::Arrival;

/// Runs a request through its binding, for a client on another machine whose arguments are here
/// already. Returns the outcome and the results.
pub(crate) fn serve_guest(
    bound: &ServerBinding,
    procedure: u16,
    args: &FrameBody,
    ends: Option<Instant>,
) -> (u16, FrameBody) {
    if bound.is_revoked() {
        return (outcome::REVOKED, FrameBody::default());
    }
    let answer = Cell::new(None);
    let taken = bound
        .tally
        .as_ref()
        .filter(|tally| tally.of(processor()).is_sampled(procedure))
        .map(|_| Instant::now());
    let (request, args, came) = (Asker::Network(&answer), args.view(), Arrival::Network);
    let call = Call { request, bound, procedure, came, args, astack: None, segment: None, taken };
    let run = || match procedure {
        RELEASE => call.release(),
        FETCH => call.unknown(),
        _ => bound.entry.dispatch.dispatch(call),
    };
    // Generated code replies however the procedure ends. Other code may end in a panic of its own.
    let _replied = catch_unwind(AssertUnwindSafe(|| match ends {
        None => run(),
        Some(ends) => upcall_thread::with_calls_that_end(ends, run),
    }));
    let Some(image) = answer.take() else { return (outcome::UNANSWERED, FrameBody::default()) };
    let number = match image.tag() {
        outcome::HELD => outcome::DONE,
        outcome::PANICKED_HELD => outcome::PANICKED,
        outcome::REFUSED_HELD => outcome::REFUSED,
        tag => return (tag, FrameBody { len: image.len(), words: image.values.to_vec() }),
    };
    // A result that is kept because the client has brought no room is sent at once.
    match bound.session.fetch(image.values[0]) {
        Some(mut kept) if kept.block.len() * 8 <= MOST_BODY => {
            let words = mem::take(&mut kept.block);
            (number, FrameBody { len: words.len() * 8, words })
        }
        Some(kept) => {
            kept.forget();
            (outcome::REFUSED, text_block("results longer than messages"))
        }
        None => (outcome::REVOKED, FrameBody::default()),
    }
}

/// Makes a block of a short text, for replies of the runtime itself.
pub(crate) fn text_block(text: &str) -> FrameBody {
    let mut words = vec![0; INLINE / 8];
    let _ =
        Encoder::block(WritableSpan::of_words(&mut words), text, crate::Limits::default(), None);
    FrameBody { words, len: INLINE }
}
