//! What each handle to an object has done, for observers of the object.
//!
//! Each handle has a line of its own in the object's memory.
//!
//! An operation that is run on the object itself adds nothing here: the lock's sequence counts the
//! operations of all parties. A line is written by its party, and read by any process that has the
//! object mapped. Its content is treated as numbers and nothing else.

use crate::body::Body;
use std::cell::Cell;
use upcall_shm::span::WritableSpan;

/// The methods between which [`auto`](crate::Homed::auto) chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessMethod {
    Access,
    Look,
    Urgent,
}

impl AccessMethod {
    pub(crate) const ALL: [Self; 3] = [Self::Access, Self::Look, Self::Urgent];
}

/// What one handle has done, or several together.
///
/// Times are sums over the operations that [`auto`](crate::Homed::auto) has run, as far as they
/// were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Number of operations that `auto` ran: locked, by reads, by urgent invocations.
    pub chosen: [u64; 3],
    /// Number of urgent invocations, including those by `auto`.
    pub urgent: u64,
    /// Number of ordinary invocations.
    pub invoked: u64,
    /// Estimated time of `auto`'s operations by each of its three methods, in ns.
    ///
    /// The first is the time of all of them under the lock, the second by reads, and the third by
    /// urgent invocations.
    ///
    /// An operation that one of these methods cannot run counts as run under the lock.
    pub would: [u64; 3],
}

/// Number of words in a line.
const WORDS: usize = 8;

impl Counts {
    fn words(self) -> [u64; WORDS] {
        let ([a, b, c], [d, e, f]) = (self.chosen, self.would);
        [a, b, c, self.urgent, self.invoked, d, e, f]
    }

    /// Decodes words that any party may have written.
    pub(crate) fn of([a, b, c, urgent, invoked, d, e, f]: [u64; WORDS]) -> Self {
        Self { chosen: [a, b, c], urgent, invoked, would: [d, e, f] }
    }

    pub(crate) fn read(word: impl Fn(usize) -> Option<u64>) -> Self {
        Self::of(std::array::from_fn(|at| word(at * 8).unwrap_or(0)))
    }

    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let (own, others) = (self.words(), other.words());
        Self::of(std::array::from_fn(|at| own[at].saturating_add(others[at])))
    }

    /// The difference from an earlier reading.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let (own, others) = (self.words(), before.words());
        Self::of(std::array::from_fn(|at| own[at].saturating_sub(others[at])))
    }

    fn put(self, line: WritableSpan<'_>) {
        for (at, word) in self.words().into_iter().enumerate() {
            line.put_u64(at * 8, word);
        }
    }
}

/// The counts of one handle.
#[derive(Debug, Default)]
pub(crate) struct HandleStats(Cell<Counts>);

impl HandleStats {
    /// Counts an event, and publishes the counts if the handle has a line.
    ///
    /// A handle that may only read or only invoke has none.
    pub(crate) fn count(&self, line: Option<WritableSpan<'_>>, what: impl FnOnce(&mut Counts)) {
        let mut counts = self.0.get();
        what(&mut counts);
        self.0.set(counts);
        if let Some(line) = line {
            counts.put(line);
        }
    }
}

/// Adds the counts of a party that has left to place 0, because another party will get its place.
/// Called at the home.
pub(crate) fn keep(body: &Body, place: u16) {
    let (Some(kept), Some(line)) = (body.account(0), body.account(place)) else { return };
    let read = |line: &WritableSpan<'_>| Counts::read(|at| line.u64(at));
    read(&kept).and(read(&line)).put(kept);
    Counts::default().put(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_party_has_done_is_kept_when_it_has_left() {
        let body = Body::create("accounts", 7, 64, false).unwrap();
        let (first, second) = (HandleStats::default(), HandleStats::default());
        first.count(body.account(3), |counts| counts.urgent += 5);
        second.count(body.account(255), |counts| {
            (counts.chosen, counts.would) = ([1, 2, 3], [10, 20, u64::MAX])
        });
        assert!(body.account(256).is_none());
        let read = |place| Counts::read(|at| body.account(place).unwrap().u64(at));
        assert_eq!((read(3).urgent, read(255).chosen), (5, [1, 2, 3]));
        keep(&body, 3);
        keep(&body, 255);
        // Any numbers that a party may have written there do no harm.
        second.count(body.account(255), |counts| counts.would = [u64::MAX; 3]);
        keep(&body, 255);
        assert_eq!((read(3), read(255)), (Counts::default(), Counts::default()));
        let all = read(0);
        assert_eq!((all.urgent, all.chosen, all.would), (5, [2, 4, 6], [u64::MAX; 3]));
        assert_eq!(all.since(all), Counts::default());
    }
}
