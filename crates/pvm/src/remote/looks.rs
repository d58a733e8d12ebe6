//! How a wait for messages of other hosts begins.
//!
//! A message between two hosts takes some 10 µs if its receiver polls, and more than twice that if
//! a thread has to be woken for it. A wait that ends late was not worth polling for. So a process
//! that has waited long several times in a row polls no more, until a wait was short again.
//!
//! If another thread wants the processor, a poller uses up its own share of it, and then waits for
//! milliseconds where a sleeper would be woken at once. A process that notices that does not poll
//! in its next waits.
//!
//! Time is an argument.

use super::MOVE_LOOK;
use std::time::Duration;
use upcall_message::LinkPoll;

/// Time for which a wait polls: that of some messages there and back.
const LIMIT: Duration = Duration::from_micros(60);

/// Number of long waits in a row after which a wait does not poll the links.
const FRUITLESS: u32 = 4;

/// Number of waits that do not poll after another thread wanted the processor.
const RESTS: u32 = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LinkLooks {
    /// Number of waits in a row that took longer than polling may.
    long: u32,
    /// Number of waits that are still to come without polling.
    rests: u32,
}

/// How a wait begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextLook {
    /// It polls the links, and memory, for at most so long.
    Links(Duration),
    /// It polls memory.
    Memory,
    /// It does not poll.
    Nothing,
}

impl LinkLooks {
    /// How the next wait begins. `moves`: a task moves, which is stopped for as long as that takes.
    pub(super) fn next(&mut self, moves: bool) -> NextLook {
        if self.rests > 0 {
            self.rests -= 1;
            NextLook::Nothing
        } else if moves {
            NextLook::Links(MOVE_LOOK)
        } else if self.long < FRUITLESS {
            NextLook::Links(LIMIT)
        } else {
            NextLook::Memory
        }
    }

    /// A wait has taken so long, and its polling has found this.
    pub(super) fn waited(&mut self, took: Duration, found: LinkPoll) {
        self.long = if took <= 2 * LIMIT { 0 } else { self.long.saturating_add(1) };
        if found == LinkPoll::Displaced {
            self.rests = RESTS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_end_polling_and_a_short_one_begins_it_again() {
        let mut looks = LinkLooks::default();
        for _ in 0..FRUITLESS {
            assert_eq!(looks.next(false), NextLook::Links(LIMIT));
            looks.waited(3 * LIMIT, LinkPoll::Nothing);
        }
        for _ in 0..3 {
            assert_eq!(looks.next(false), NextLook::Memory);
            looks.waited(Duration::MAX, LinkPoll::Nothing);
        }
        assert_eq!(looks.next(true), NextLook::Links(MOVE_LOOK));
        looks.waited(LIMIT, LinkPoll::Nothing);
        assert_eq!(looks.next(false), NextLook::Links(LIMIT));
    }

    #[test]
    fn who_is_displaced_does_not_poll_for_a_while() {
        let mut looks = LinkLooks::default();
        looks.waited(LIMIT, LinkPoll::Displaced);
        for _ in 0..RESTS {
            assert_eq!(looks.next(true), NextLook::Nothing);
            looks.waited(LIMIT, LinkPoll::Nothing);
        }
        assert_eq!(looks.next(false), NextLook::Links(LIMIT));
    }
}
