//! When a domain has its processor, if it shares it.

/// When a domain has its processor: the slice with its number of each round of so many.
#[derive(Clone, Copy, Debug)]
pub struct Slices {
    /// In ns.
    pub length: u64,
    /// Slices in a round.
    pub of: u64,
    /// Which one is its own.
    pub own: u64,
    /// So much later than on a processor that is on time.
    pub skew: u64,
}

impl Slices {
    /// How far into its slice it is, and when it has its processor first: at `time` or later.
    pub(crate) fn first(&self, time: u64) -> (u64, u64) {
        let round = self.length * self.of;
        let begins = self.own * self.length + self.skew;
        let phase = (time + round - begins % round) % round;
        if phase < self.length { (phase, time) } else { (0, time + round - phase) }
    }

    /// When work of so many ns is done that begins at `time` or later.
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
