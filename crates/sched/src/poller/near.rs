//! The rule for parking near a caller that may not move the server.
//!
//! While a virtual processor parks there, its other clients find it on a foreign CPU, which may be
//! busy: a hostile client can keep it so. So from such a park to the next one, the only event may
//! be calls of that caller with the caller's CPU. Any other event is a disturbance, in any order: a
//! call of another client, a call for which another thread of that caller has woken the processor,
//! a message, a reply, a deadline, a thread that goes on. A caller that changes its CPU often
//! counts as a disturbance too, since each change costs a migration.
//!
//! After a disturbance the processor goes home with the next park, and the next parks are at home:
//! four times as many as the last time, until as many parks near callers went well. So a hostile
//! client delays few events of others, each by a turn on a CPU that the client keeps busy. After
//! *n* of them in a row, the next is at least 4ⁿ · [`LEAST_AT_HOME`] parks away.

/// Minimum and maximum number of parks at home after a disturbance.
pub(super) const LEAST_AT_HOME: u32 = 1 << 6;
const MOST_AT_HOME: u32 = 1 << 20;

/// Minimum number of parks near callers that went well between two changes of the CPU.
const PARKS_ON_A_CPU: u32 = 16;

/// The events since the last park.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SincePark {
    /// Of no importance: the park was not near a caller, or a disturbance is counted.
    #[default]
    Any,
    /// Nothing.
    Nothing,
    /// Calls of the caller, and nothing else.
    Calls,
}

/// The state of this rule; see the module.
#[derive(Debug, Default)]
pub(super) struct NearParks {
    since: SincePark,
    /// Number of parks that are still at home.
    left_out: u32,
    interval: u32,
    /// Number of parks near callers that went well, since the last disturbance.
    well: u32,
    /// The CPU of the last park near a caller, if there was no disturbance since, and how many
    /// parks there went well.
    on_cpu: Option<(u32, u32)>,
}

impl NearParks {
    /// Returns `true` if it may stay near a caller with this park.
    pub(super) fn may_stay(&self) -> bool {
        self.left_out == 0
    }

    /// Returns `true` if it may park near a caller on `cpu`, which asks for that. Counts the parks
    /// that are left out.
    pub(super) fn may_park(&mut self, cpu: u32) -> bool {
        if self.left_out > 0 {
            self.left_out -= 1;
            return false;
        }
        match self.on_cpu {
            Some((before, _)) if before == cpu => true,
            Some((_, well)) if well < PARKS_ON_A_CPU => {
                self.disturbed();
                false
            }
            _ => {
                self.on_cpu = Some((cpu, 0));
                true
            }
        }
    }

    /// Notes that it parks near a caller, or stays there with a park.
    pub(super) fn parks(&mut self) {
        if self.since == SincePark::Calls {
            self.well += 1;
            if let Some((_, well)) = &mut self.on_cpu {
                *well = well.saturating_add(1);
            }
            if self.well > self.interval {
                (self.interval, self.well) = (0, 0);
            }
        }
        self.since = SincePark::Nothing;
    }

    /// Notes that it leaves the caller's CPU.
    pub(super) fn leaves(&mut self) {
        self.since = SincePark::Any;
    }

    /// Notes that the caller near which it parked has called, and has given its CPU.
    #[inline]
    pub(super) fn called(&mut self) {
        if self.since == SincePark::Nothing {
            self.since = SincePark::Calls;
        }
    }

    /// Notes any other event.
    #[inline]
    pub(super) fn other_came(&mut self) {
        if self.since != SincePark::Any {
            self.disturbed();
        }
    }

    /// Notes that it could not move to the caller's CPU.
    pub(super) fn failed(&mut self) {
        self.disturbed();
    }

    #[cold]
    fn disturbed(&mut self) {
        self.interval = (self.interval.saturating_mul(4)).clamp(LEAST_AT_HOME, MOST_AT_HOME);
        (self.left_out, self.well) = (self.interval, 0);
        (self.since, self.on_cpu) = (SincePark::Any, None);
    }
}

/// For the explorer: a copy with its numbers cut, and the number of that state.
#[cfg(test)]
impl NearParks {
    pub(super) fn cut(&self) -> (Self, u8) {
        let left_out = self.left_out.min(1);
        let key = left_out as u8 + 2 * self.since as u8;
        (Self { since: self.since, left_out, ..Self::default() }, key)
    }

    pub(super) fn counts(&self) -> bool {
        self.since != SincePark::Any
    }
}
