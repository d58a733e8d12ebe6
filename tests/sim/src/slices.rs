//! The times at which a domain has its processor, if it shares it.

/// The slices in which a domain has its processor: slice `own` of each round of `of`.
#[derive(Clone, Copy, Debug)]
pub struct Slices {
    /// Length of a slice, in ns.
    pub length: u64,
    /// Number of slices in a round.
    pub of: u64,
    /// Number of the domain's own slice.
    pub own: u64,
    /// Delay of the slices against a processor that is on time, in ns.
    pub skew: u64,
}

impl Slices {
    /// How far into its slice the domain is, and when it first has its processor, at `time` or
    /// later.
    pub(crate) fn first(&self, time: u64) -> (u64, u64) {
        let round = self.length * self.of;
        let begins = self.own * self.length + self.skew;
        let phase = (time + round - begins % round) % round;
        if phase < self.length { (phase, time) } else { (0, time + round - phase) }
    }

    /// When work of `cost` ns is done that begins at `time` or later.
    pub(crate) fn done(&self, time: u64, mut cost: u64) -> u64 {
        let (phase, mut time) = self.first(time);
        let mut left = self.length - phase;
        while cost >= left {
            cost -= left;
            time = self.first(time + left).1;
            left = self.length;
        }
        time + cost
    }
}
