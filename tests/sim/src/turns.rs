//! The turns of two jobs on a processor that they share: one job after the other, in gangs, or
//! co-scheduled.
//!
//! Source: UDM, section 5.3. Gangs have fixed slices, at the same time everywhere except for the
//! skew, and their yields are ignored. The co-scheduler makes each processor go on to the other job
//! when a slice ends or the job yields, independent of the other processors, and brings all to the
//! same job at each [`SYNCHRONISED`]th slice.

use crate::synth::SLICE;

/// Number of slices after which all processors turn to the same job.
pub const SYNCHRONISED: u64 = 15;

/// How two jobs take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// The second job begins when the first one has ended everywhere.
    Batch,
    /// In slices, at the same time everywhere.
    Gang,
    /// Each processor by itself. A job that has found nothing to do for `patience` gives its time
    /// away.
    Co {
        /// Longest time without anything to do, in cycles.
        patience: u64,
    },
}

/// The turns on one processor: the current job, and until when it runs.
#[derive(Debug)]
pub struct Turns {
    schedule: Schedule,
    /// Delay of all turns here, in cycles.
    skew: u64,
    /// The current one of the two jobs.
    pub job: usize,
    /// End of the turn, in cycles of the clock.
    pub ends: u64,
    /// Number of times that all were brought to the same job.
    synchronised: u64,
}

impl Turns {
    /// Starts with the first job.
    pub fn new(schedule: Schedule, skew: u64) -> Self {
        let ends = if schedule == Schedule::Batch { u64::MAX } else { SLICE + skew };
        Self { schedule, skew, job: 0, ends, synchronised: 0 }
    }

    /// Returns `true` if a job that has found nothing to do for `idle` gives its time away.
    pub fn yields(&self, idle: u64) -> bool {
        matches!(self.schedule, Schedule::Co { patience } if idle >= patience)
    }

    /// Starts the next turn, after one has ended or was given away.
    pub fn next(&mut self, now: u64) {
        match self.schedule {
            Schedule::Batch => self.job = 1,
            Schedule::Gang => {
                let phase = now - self.skew;
                (self.job, self.ends) = ((phase / SLICE % 2) as usize, now + SLICE - phase % SLICE);
            }
            Schedule::Co { .. } => {
                let round = SYNCHRONISED * SLICE;
                let synchronised = now.saturating_sub(self.skew) / round;
                self.job = if synchronised == self.synchronised {
                    1 - self.job
                } else {
                    synchronised as usize % 2
                };
                self.synchronised = synchronised;
                self.ends = (now + SLICE).min((synchronised + 1) * round + self.skew);
            }
        }
    }
}
