//! A processor that is taken away from a running machine, and given back.
//!
//! All threads of the machine are confined to one processor, and later to both, as an administrator
//! does that with `taskset -a -p`. Nothing tells the machine: it has to notice.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::child::Told;
use super::run::Found;
use crate::place;
use crate::process::{self, ChildError, Process};
use crate::stats::Summary;

/// Maximum time until the program has started, and until it has printed its figures.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum time for the program to end after that.
const END: Duration = Duration::from_secs(20);

/// A machine of at most two processes, which loses one of its two processors for a while.
pub(super) struct Away<'a> {
    /// The case's name.
    pub(super) name: String,
    /// Time until all processes are in use, before the processor is taken away, while it is away,
    /// and after that.
    pub(super) phase: Duration,
    /// The file whose existence ends the program.
    pub(super) go: PathBuf,
    pub(super) interrupted: &'a AtomicBool,
    /// The processors, of which the first one stays.
    pub(super) cpus: Vec<usize>,
}

/// The moments of a turn, in nanoseconds of the system's monotonic clock.
#[derive(Debug, Clone, Copy)]
struct Moments {
    begun: i64,
    /// The processor is taken away.
    gone: i64,
    /// It is given back.
    back: i64,
    end: i64,
}

impl Away<'_> {
    /// Measures a sweep from the moment that the processor is taken away. `alone_ns` is a sweep in
    /// that time if nothing but the processor's time were lost.
    pub(super) fn measure(&self, running: &mut Process) -> Result<Found, ChildError> {
        let deadline = Instant::now() + PATIENCE;
        let line = running.line(&self.name, deadline, self.interrupted)?;
        if line != format!("{{\"case\":\"{}\"}}", self.name) {
            return Err(running.fault(&format!("said `{line}`")));
        }
        process::pause(self.phase, self.interrupted)?;
        let begun = now_ns();
        process::pause(self.phase, self.interrupted)?;
        let gone = now_ns();
        self.confine(running, &self.cpus[..1])?;
        process::pause(self.phase, self.interrupted)?;
        self.confine(running, &self.cpus)?;
        let back = now_ns();
        process::pause(self.phase, self.interrupted)?;
        let moments = Moments { begun, gone, back, end: now_ns() };
        File::create(&self.go).map_err(|error| running.fault(&format!("cannot end: {error}")))?;
        let line = running.line(&self.name, Instant::now() + PATIENCE, self.interrupted)?;
        let told: Told =
            serde_json::from_str(&line).map_err(|_| running.fault(&format!("said `{line}`")))?;
        running.end(END, self.interrupted)?;
        let found = (told.sweeps, told.times);
        let (Some(sweeps), Some(times)) = found else {
            return Err(running.fault("reported no times"));
        };
        let means = means(&told.ends_ns, sweeps, moments);
        let (mean_ns, ideal) = means.ok_or_else(|| running.fault("has computed too little"))?;
        Ok(Found { alone_ns: Some(ideal), ..Found::of(Summary { mean_ns, ..times }) })
    }
}

impl Away<'_> {
    /// Confines all threads of all processes of the machine.
    fn confine(&self, running: &Process, cpus: &[usize]) -> Result<(), ChildError> {
        let mut all = [running.id()].into_iter().chain(process::descendants(running.id()));
        all.try_for_each(|process| place::confine_process(process, cpus))
            .map_err(|error| running.fault(&format!("cannot be confined: {error}")))
    }
}

fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    1_000_000_000 * now.tv_sec + now.tv_nsec
}

/// Returns the mean nanoseconds of a sweep since the processor was taken away, and the same if
/// nothing but its time were lost.
fn means(ends: &[i64], sweeps: u32, moments: Moments) -> Option<(f64, f64)> {
    let Moments { begun, gone, back, end } = moments;
    let runs = |from, to| Some(runs_until(ends, to)? - runs_until(ends, from)?);
    let span = |from: i64, to: i64| (to - from) as f64;
    let rate = runs(begun, gone)? / span(begun, gone);
    let done = runs(gone, end)?;
    // One processor of two.
    let ideal = rate * (span(gone, end) - span(gone, back) / 2.0);
    let each = |runs: f64| span(gone, end) / (runs * f64::from(sweeps));
    (done > 0.0 && ideal > 0.0).then(|| (each(done), each(ideal)))
}

/// Returns the number of runs that have ended by a moment, with the part of the next one. `None` if
/// the moment is not between two ends.
fn runs_until(ends: &[i64], moment: i64) -> Option<f64> {
    let after = ends.partition_point(|end| *end <= moment);
    let (last, next) = (*ends.get(after.checked_sub(1)?)?, *ends.get(after)?);
    Some(after as f64 + (moment - last) as f64 / (next - last) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_of_the_processor_is_not_counted() {
        let moments = Moments { begun: 100, gone: 210, back: 310, end: 420 };
        // Ten each until the processor is gone, and twenty each while it is away.
        let both = |from: i64, to: i64| (from..to).step_by(10);
        let ideal: Vec<i64> =
            both(0, 210).chain((210..310).step_by(20)).chain(both(310, 450)).collect();
        let (found, expected) = means(&ideal, 1, moments).unwrap();
        assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        // It comes back too late.
        let late: Vec<i64> =
            both(0, 210).chain((210..330).step_by(20)).chain(both(330, 450)).collect();
        let (found, expected) = means(&late, 1, moments).unwrap();
        assert!((expected / found - 15.0 / 16.0).abs() < 1e-9, "{found} {expected}");
    }

    #[test]
    fn moments_outside_of_the_runs_have_no_figure() {
        let moments = Moments { begun: 0, gone: 6, back: 7, end: 8 };
        assert_eq!(means(&[], 1, moments), None);
        assert_eq!(means(&[1, 2, 9], 1, moments), None);
        assert_eq!(runs_until(&[10, 20, 40], 30), Some(2.5));
        assert_eq!((runs_until(&[10, 20], 20), runs_until(&[10, 20], 9)), (None, None));
    }
}
