//! Whose request gets a stack when stacks run low.
//!
//! A server's stacks (LRPC's E-stacks) have a ceiling. Without a second rule a client whose calls
//! wait for what never comes would have all of them, and no other client would be served.
//! The rule is that of dynamic thresholds (Choudhury and Hahne, 1998, for the buffers of a switch):
//! who has as many as are free gets no more. So one that takes all it can get leaves half, two
//! leave a third, and *n* one part in *n* + 1. While half are free the rule cannot forbid anything,
//! and is not asked.
//!
//! The rule holds for each client. Where the server bounds users, it holds once more for all
//! clients of a user together: a user can start many processes.
//!
//! A request that gets none stays in its lane. Nobody has to be woken for it: what lets it go on is
//! the end of a call, and who ends one looks at the lanes again.

use crate::server::{Owner, ServerLane};
use std::sync::Arc;
use upcall_thread::Vp;

/// Where the next request may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stacks {
    /// From everybody.
    Many,
    /// From clients with fewer calls under way than this.
    Few(usize),
}

impl Stacks {
    #[inline]
    pub(super) fn of(vp: &Vp) -> Self {
        let (busy, most) = vp.work_under_way();
        match Self::left(busy, most, vp.count()) {
            Self::Few(0) => Self::Few(0),
            // No memory: as though the ceiling were reached.
            _ if !vp.can_begin_work() => Self::Few(0),
            left => left,
        }
    }

    #[inline]
    fn left(busy: usize, most: usize, processors: usize) -> Self {
        let free = most.saturating_sub(busy);
        if busy < free {
            return Self::Many;
        }
        // A client's calls are counted over all processors; so are the free stacks, as though the
        // others had as many.
        Self::Few(if free == 0 { 0 } else { free.saturating_mul(processors) })
    }

    /// Whether a request in `lanes[at]` may be taken.
    #[inline]
    pub(super) fn allow(self, lanes: &[Arc<ServerLane>], at: usize) -> bool {
        match self {
            Self::Many => true,
            Self::Few(0) => false,
            Self::Few(free) => {
                let Owner { client, user } = lanes[at].owner();
                calls_of(lanes, |owner| owner.client == client) < free
                    && (user.is_none() || calls_of(lanes, |owner| owner.user == user) < free)
            }
        }
    }
}

#[cold]
fn calls_of(lanes: &[Arc<ServerLane>], is_meant: impl Fn(Owner) -> bool) -> usize {
    lanes.iter().filter(|lane| is_meant(lane.owner())).map(|lane| lane.calls()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_is_asked_when_half_are_taken() {
        assert_eq!(Stacks::left(0, 1, 1), Stacks::Many);
        assert_eq!(Stacks::left(1, 1, 1), Stacks::Few(0));
        assert_eq!(Stacks::left(3, 8, 1), Stacks::Many);
        assert_eq!(Stacks::left(4, 8, 1), Stacks::Few(4));
        assert_eq!(Stacks::left(7, 8, 2), Stacks::Few(2));
        assert_eq!(Stacks::left(8, 8, 2), Stacks::Few(0));
        assert_eq!(Stacks::left(9, 8, 2), Stacks::Few(0));
        assert_eq!(Stacks::left(1 << 20, usize::MAX, 32), Stacks::Many);
    }

    #[test]
    fn who_takes_all_it_can_get_leaves_as_much() {
        // Clients of which each takes whenever it may, in turns.
        for clients in 1..8 {
            let (most, mut calls) = (64, vec![0_usize; clients]);
            for turn in 0..64 * clients {
                let busy = calls.iter().sum();
                let mine = &mut calls[turn % clients];
                *mine += usize::from(match Stacks::left(busy, most, 1) {
                    Stacks::Many => true,
                    Stacks::Few(free) => *mine < free,
                });
            }
            let left = most - calls.iter().sum::<usize>();
            assert!(left >= most / (clients + 1), "{clients} clients leave {left} of {most}");
        }
    }
}
