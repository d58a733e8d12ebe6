//! Calls of clients on other machines.

use super::{Asker, Call, FETCH, RELEASE, outcome, processor};
use crate::bound::Bound;
use crate::encode::Encoder;
use std::cell::Cell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;
use upcall_net::Block;
use upcall_net::frame::MOST_BODY;
use upcall_shm::slot::INLINE;
use upcall_shm::span::Room;
use upcall_shm::tally::Came;

/// The same for a client on another machine, whose arguments are here already. Gives the outcome,
/// and the results.
pub(crate) fn serve_guest(
    bound: &Bound,
    procedure: u16,
    args: &Block,
    ends: Option<Instant>,
) -> (u16, Block) {
    if bound.is_revoked() {
        return (outcome::REVOKED, Block::default());
    }
    let answer = Cell::new(None);
    let taken = bound
        .tally
        .as_ref()
        .filter(|tally| tally.of(processor()).is_sampled(procedure))
        .map(|_| Instant::now());
    let (request, args, came) = (Asker::Network(&answer), args.view(), Came::Network);
    let call = Call { request, bound, procedure, came, args, astack: None, segment: None, taken };
    let run = || match procedure {
        RELEASE => call.release(),
        FETCH => call.unknown(),
        _ => bound.entry.dispatch.dispatch(call),
    };
    // Generated code answers however the procedure ends. Other code may end in a panic of its own.
    let _replied = catch_unwind(AssertUnwindSafe(|| match ends {
        None => run(),
        Some(ends) => upcall_thread::with_calls_that_end(ends, run),
    }));
    let Some(image) = answer.take() else { return (outcome::UNANSWERED, Block::default()) };
    if image.tag() != outcome::HELD {
        return (image.tag(), Block { len: image.len(), words: image.values.to_vec() });
    }
    // What was kept for a client that has no room is sent at once.
    match bound.session.fetch(image.values[0]) {
        Some(mut kept) if kept.block.len() * 8 <= MOST_BODY => {
            let words = mem::take(&mut kept.block);
            (outcome::DONE, Block { len: words.len() * 8, words })
        }
        Some(kept) => {
            kept.forget();
            (outcome::REFUSED, text_block("results longer than messages"))
        }
        None => (outcome::REVOKED, Block::default()),
    }
}

/// A short text as a block, for replies of the runtime itself.
pub(crate) fn text_block(text: &str) -> Block {
    let mut words = vec![0; INLINE / 8];
    let _ = Encoder::block(Room::of_words(&mut words), text, crate::Limits::default(), None);
    Block { words, len: INLINE }
}
