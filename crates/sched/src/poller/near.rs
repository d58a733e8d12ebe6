//! Whether a virtual processor parks near a caller that may not bring it.
//!
//! While it parks there, its other clients find it on the CPU of a stranger, which may be busy: a
//! hostile client can keep it so. So a park near a caller went well only if what came next is a
//! call of that caller, with the caller's CPU. Anything else is a disturbance: a call of another
//! client or of another thread of that caller, a message, a reply, a deadline. After a disturbance
//! the processor goes home with the next park, and the next parks are at home: four times as many
//! as the last time, until as many parks near callers went well. A caller that changes its CPU
//! often counts as a disturbance too, since each change costs a migration.
//!
//! So a hostile client delays few events of others, each by a turn on a CPU that the client keeps
//! busy: after *n* of them, the next is at least 4ⁿ · [`LEAST_AT_HOME`] parks away.

/// Numbers of parks at home after a disturbance.
pub(super) const LEAST_AT_HOME: u32 = 1 << 6;
const MOST_AT_HOME: u32 = 1 << 20;

/// Minimum number of parks near callers that went well between two changes of the CPU.
const PARKS_ON_A_CPU: u32 = 16;

/// The result of the park before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastPark {
    /// It was not near a caller, or its result is known.
    #[default]
    Known,
    /// It was near a caller, and nothing came since.
    Open,
}

/// The state of this rule; see the module.
#[derive(Debug, Default)]
pub(super) struct NearParks {
    last: LastPark,
    /// Number of parks that are still at home.
    left_out: u32,
    interval: u32,
    /// Number of parks near callers that went well, since the last disturbance.
    well: u32,
    /// The same since the CPU has changed, and that CPU.
    on_cpu: (Option<u32>, u32),
}

impl NearParks {
    /// Whether it may stay near a caller with this park.
    pub(super) fn may_stay(&self) -> bool {
        self.left_out == 0
    }

    /// Whether it may park near a caller on `cpu`, which asks for that. Counts the parks that are
    /// left out.
    pub(super) fn may_park(&mut self, cpu: u32) -> bool {
        if self.left_out > 0 {
            self.left_out -= 1;
            return false;
        }
        let (before, well) = self.on_cpu;
        if before != Some(cpu) {
            self.on_cpu = (Some(cpu), 0);
            if before.is_some() && well < PARKS_ON_A_CPU {
                self.disturbed();
                return false;
            }
        }
        true
    }

    /// It parks near a caller.
    pub(super) fn parks(&mut self) {
        self.last = LastPark::Open;
    }

    /// The caller near which it parked has called, and has given its CPU.
    pub(super) fn called(&mut self) {
        if std::mem::take(&mut self.last) == LastPark::Open {
            self.well += 1;
            self.on_cpu.1 = self.on_cpu.1.saturating_add(1);
            if self.well > self.interval {
                (self.interval, self.well) = (0, 0);
            }
        }
    }

    /// Something else came.
    #[inline]
    pub(super) fn other_came(&mut self) {
        if self.last == LastPark::Open {
            self.last = LastPark::Known;
            self.disturbed();
        }
    }

    /// It could not move to the caller's CPU.
    pub(super) fn failed(&mut self) {
        self.last = LastPark::Known;
        self.disturbed();
    }

    fn disturbed(&mut self) {
        self.interval = (self.interval.saturating_mul(4)).clamp(LEAST_AT_HOME, MOST_AT_HOME);
        (self.left_out, self.well) = (self.interval, 0);
    }
}

/// For the explorer: the same state, but that its numbers are cut, and a number for it.
#[cfg(test)]
impl NearParks {
    pub(super) fn cut(&self) -> (Self, u8) {
        let left_out = self.left_out.min(1);
        let key = left_out as u8 + 2 * self.last as u8;
        (Self { last: self.last, left_out, ..Self::default() }, key)
    }
}
