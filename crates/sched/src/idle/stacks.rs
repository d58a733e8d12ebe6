//! The rule for which requests get a stack when stacks run low.
//!
//! A server's stacks (LRPC's E-stacks) have a ceiling. Without a second rule, a client whose calls
//! wait for an event that never comes would take all of them, and no other client would be served.
//! The rule is that of dynamic thresholds (Choudhury and Hahne, 1998, for the buffers of a switch):
//! a client that has as many as are free gets no more. So a client that takes all it can get leaves
//! half, two leave a third, and *n* one part in *n* + 1. While half are free the rule cannot forbid
//! anything, and is not applied.
//!
//! The rule holds for each client. Where the server bounds users, it holds once more for all
//! clients of a user together: a user can start many processes.
//!
//! Processors are shared by the same rule while handlers block some of them: a client whose
//! handlers block leaves processors for the handlers of others ([`takeover`](super::takeover)).
//!
//! A request that gets no stack stays in its lane, and needs no wake: only the end of a call lets
//! it go on, and the processor that ends a call probes the lanes again.

use upcall_thread::Vp;

/// Which clients the next request may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StackHeadroom {
    /// From all clients.
    Many,
    /// From clients with fewer calls under way than this.
    Few(usize),
}

impl StackHeadroom {
    #[inline]
    pub(super) fn of(vp: &Vp) -> Self {
        let (busy, most) = vp.work_under_way();
        match Self::left(busy, most, vp.count()) {
            Self::Few(0) => Self::Few(0),
            // Without memory the ceiling counts as reached.
            _ if !vp.can_begin_work() => Self::Few(0),
            left => left,
        }
    }

    /// Returns the rule if `busy` of `most` are taken, for one of the `processors` that share them.
    #[inline]
    pub(super) fn left(busy: usize, most: usize, processors: usize) -> Self {
        let free = most.saturating_sub(busy);
        if busy < free {
            return Self::Many;
        }
        // A client's calls are counted over all processors. So are the free stacks, assuming that
        // the other processors have as many.
        Self::Few(if free == 0 { 0 } else { free.saturating_mul(processors) })
    }

    /// The stricter of two rules.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Few(one), Self::Few(other)) => Self::Few(one.min(other)),
            (Self::Many, rule) | (rule, Self::Many) => rule,
        }
    }

    /// Returns `true` if a request may be taken. `calls` returns the numbers of calls under way
    /// that the rule compares: of the client, and of its user.
    #[inline]
    pub(super) fn allow<const N: usize>(self, calls: impl FnOnce() -> [usize; N]) -> bool {
        match self {
            Self::Many => true,
            Self::Few(0) => false,
            Self::Few(free) => calls().iter().all(|&calls| calls < free),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_is_asked_when_half_are_taken() {
        assert_eq!(StackHeadroom::left(0, 1, 1), StackHeadroom::Many);
        assert_eq!(StackHeadroom::left(1, 1, 1), StackHeadroom::Few(0));
        assert_eq!(StackHeadroom::left(3, 8, 1), StackHeadroom::Many);
        assert_eq!(StackHeadroom::left(4, 8, 1), StackHeadroom::Few(4));
        assert_eq!(StackHeadroom::left(7, 8, 2), StackHeadroom::Few(2));
        assert_eq!(StackHeadroom::left(8, 8, 2), StackHeadroom::Few(0));
        assert_eq!(StackHeadroom::left(9, 8, 2), StackHeadroom::Few(0));
        assert_eq!(StackHeadroom::left(1 << 20, usize::MAX, 32), StackHeadroom::Many);
    }

    #[test]
    fn who_takes_all_it_can_get_leaves_as_much() {
        // Clients that take a stack whenever they may, in turns.
        for clients in 1..8 {
            let (most, mut calls) = (64, vec![0_usize; clients]);
            for turn in 0..64 * clients {
                let busy = calls.iter().sum();
                let mine = &mut calls[turn % clients];
                *mine += usize::from(match StackHeadroom::left(busy, most, 1) {
                    StackHeadroom::Many => true,
                    StackHeadroom::Few(free) => *mine < free,
                });
            }
            let left = most - calls.iter().sum::<usize>();
            assert!(left >= most / (clients + 1), "{clients} clients leave {left} of {most}");
        }
    }
}
