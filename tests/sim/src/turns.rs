//! Whose turn it is on a processor that two jobs share: one job after the other, in gangs, or
//! co-scheduled.
//!
//! Source: UDM, section 5.3. Gangs have fixed slices, at the same time everywhere but for the skew,
//! and their yields are ignored. The co-scheduler has each processor go on to the other job when a
//! slice ends or the job yields, whatever the other processors do, and brings all to the same job
//! at each [`SYNCHRONISED`]th slice.

use crate::synth::SLICE;

/// At each so many slices all processors turn to the same job.
pub const SYNCHRONISED: u64 = 15;

/// How two jobs take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// The second one begins when the first one has ended everywhere.
    Batch,
    /// In slices, at the same time everywhere.
    Gang,
    /// Each processor by itself. A job that has found nothing to do for so long gives its time
    /// away.
    Co {
        /// In cycles.
        patience: u64,
    },
}

/// Whose turn it is on one processor, and until when.
#[derive(Debug)]
pub struct Turns {
    schedule: Schedule,
    /// So much later all begins here.
    skew: u64,
    /// Of the two jobs.
    pub job: usize,
    /// In cycles of the clock.
    pub ends: u64,
    /// How often all were brought to the same job.
    synchronised: u64,
}

impl Turns {
    /// The first job begins.
    pub fn new(schedule: Schedule, skew: u64) -> Self {
        let ends = if schedule == Schedule::Batch { u64::MAX } else { SLICE + skew };
        Self { schedule, skew, job: 0, ends, synchronised: 0 }
    }

    /// Whether a job gives its time away that has found nothing to do for so long.
    pub fn yields(&self, idle: u64) -> bool {
        matches!(self.schedule, Schedule::Co { patience } if idle >= patience)
    }

    /// A turn has ended, or was given away.
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
