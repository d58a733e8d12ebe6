//! Processes that cannot reach each other, although the first process reaches both.
//!
//! Each of the two drops messages for the other one, so one of them has to end: the one with the
//! higher rank. If only one of them has reported the other, that one ends: a process that reports
//! others without a reason ends itself, and no other one.
//!
//! A process that is reported may just have ended, or its whole host may be out of reach. The first
//! process finds that out by itself within the patience. So it waits for as long.

use std::time::{Duration, Instant};
use upcall_message::Rank;

/// Time beyond the patience after which the first process knows whether a process has ended.
const MARGIN: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Partitions {
    /// Time from the report until it is certain.
    after: Duration,
    pairs: Vec<PartedPair>,
}

/// Two processes that do not reach each other, the lower rank first.
#[derive(Debug)]
struct PartedPair {
    until: Instant,
    ranks: [Rank; 2],
    /// Which of them have reported the other one.
    reported: [bool; 2],
}

impl PartedPair {
    /// The two of them. The second one is to end.
    fn decided(self) -> [Rank; 2] {
        let [low, high] = self.ranks;
        if self.reported == [true, false] { [high, low] } else { [low, high] }
    }
}

impl Partitions {
    /// None, in a machine whose hosts may be out of reach for this time.
    pub(crate) fn new(patience: Duration) -> Self {
        Self { after: patience.saturating_add(MARGIN), pairs: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Adds two processes, of which `one` has reported the other. Returns when to look at them,
    /// unless they are known.
    pub(crate) fn add(&mut self, one: Rank, other: Rank, now: Instant) -> Option<Instant> {
        let ranks = [one.min(other), one.max(other)];
        let reported = ranks.map(|rank| rank == one);
        if let Some(known) = self.pairs.iter_mut().find(|pair| pair.ranks == ranks) {
            known.reported = [0, 1].map(|at| known.reported[at] | reported[at]);
            return None;
        }
        let until = now.checked_add(self.after)?;
        self.pairs.push(PartedPair { until, ranks, reported });
        Some(until)
    }

    /// The processes that have not reached each other for long enough. Of each pair, the second one
    /// is to end.
    pub(crate) fn due(&mut self, now: Instant, is_lost: impl Fn(Rank) -> bool) -> Vec<[Rank; 2]> {
        self.pairs.retain(|pair| !pair.ranks.iter().any(|rank| is_lost(*rank)));
        let due = self.pairs.extract_if(.., |pair| pair.until <= now);
        due.map(PartedPair::decided).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_two_is_ended_when_neither_has_ended_for_long_enough() {
        let now = Instant::now();
        let mut all = Partitions::new(Duration::from_secs(30));
        let until = now + Duration::from_secs(35);
        assert_eq!(all.add(4, 2, now), Some(until));
        assert_eq!(all.add(2, 4, now), None);
        assert_eq!(all.add(1, 3, now), Some(until));
        assert!(all.due(now, |_| false).is_empty());
        assert_eq!(all.due(until, |rank| rank == 3), [[2, 4]]);
        assert!(all.is_empty() && all.due(until, |_| false).is_empty());
        // The other one reaches it.
        for [reports, other] in [[4, 2], [2, 4]] {
            assert_eq!(all.add(reports, other, now), Some(until));
            assert_eq!(all.add(reports, other, now), None);
            assert_eq!(all.due(until, |_| false), [[other, reports]]);
        }
    }
}
