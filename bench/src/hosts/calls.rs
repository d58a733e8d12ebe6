//! Calls and messages between the hosts: the systems' turns.

use std::time::Duration;

use super::case::{self, Case, Contender, Lives, Program, Served};
use super::child::Told;
use super::network::Network;
use super::running::Running;
use crate::built;
use crate::error::RunError;
use crate::process::{ChildError, pause};
use crate::programs::Programs;
use crate::run::Run;
use crate::stats::Summary;

/// Maximum time for a command of a turn.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time until a connection without calls is idle, and time for which it is watched then. Upcall
/// judges the trust in the other host every 5 s: for the first time before the watch, and once in
/// it.
const SETTLING: Duration = Duration::from_millis(5500);
const WATCHED: Duration = Duration::from_secs(5);

/// The same for a quick run.
const QUICKLY: Duration = Duration::from_millis(200);

/// The finding of a turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Found {
    pub times: Summary,
    /// Processor time of client and server a call, in nanoseconds; `None` if other calls took some
    /// of it.
    pub cpu_ns: Option<[f64; 2]>,
}

/// Runs the turns of calls and messages.
pub(super) struct Calls<'a> {
    network: &'a Network,
    programs: Programs<Program>,
    /// The systems that take part.
    served: Vec<(&'static str, Served)>,
    /// Those of them that live as long as the run.
    running: Vec<Running>,
}

impl<'a> Calls<'a> {
    /// Finds the programs of `contenders`. Those for which that fails take no part, and the report
    /// says so.
    ///
    /// # Errors
    /// The run was interrupted.
    pub(super) fn of<'c>(
        contenders: impl Iterator<Item = &'c Contender>,
        network: &'a Network,
        run: &mut Run<'_>,
    ) -> Result<Calls<'a>, RunError> {
        let mut served = Vec::new();
        for (name, one) in contenders.filter_map(|one| Some((one.name, one.served?))) {
            match one.daemon.and_then(|daemon| built::absent(name, daemon)) {
                Some(why) => run.report.notes.push(why),
                None => served.push((name, one)),
            }
        }
        let programs = case::programs(&mut served, run.exe)?;
        programs.say(&mut run.report);
        Ok(Calls { network, programs, served, running: Vec::new() })
    }

    /// Starts the systems that live as long as the run.
    ///
    /// # Errors
    /// The run was interrupted.
    pub(super) fn start(&mut self, run: &mut Run<'_>) -> Result<(), RunError> {
        for (name, served) in self.served.clone() {
            if served.lives() == Lives::Turn {
                continue;
            }
            run.progress.say("starting", name);
            let started = self.started(name, served, run);
            match run.unless_failed("", started)? {
                Some(started) => self.running.push(started),
                None => self.leave(name),
            }
        }
        Ok(())
    }

    fn started(
        &self,
        name: &'static str,
        served: Served,
        run: &Run<'_>,
    ) -> Result<Running, ChildError> {
        Running::start(name, served, self.programs.path(served.program), self.network, run)
    }

    /// Measures a system in a case; `None` if the system takes no part. A system that fails takes
    /// no further turns.
    ///
    /// # Errors
    /// The system failed.
    pub(super) fn take(
        &mut self,
        contender: Contender,
        case: Case,
        run: &Run<'_>,
    ) -> Result<Option<Found>, ChildError> {
        let name = contender.name;
        let Some(&(_, served)) = self.served.iter().find(|one| one.0 == name) else {
            return Ok(None);
        };
        let found = match self.running.iter_mut().find(|system| system.name == name) {
            Some(system) => measure(system, case, run),
            None => self.started(name, served, run).and_then(|mut system| {
                let found = measure(&mut system, case, run)?;
                system.end(run)?;
                Ok(found)
            }),
        };
        if found.is_err() {
            // Its next answer may belong to an earlier command.
            self.leave(name);
        }
        found.map(Some)
    }

    fn leave(&mut self, name: &str) {
        self.served.retain(|one| one.0 != name);
        self.running.retain(|system| system.name != name);
    }
}

fn measure(system: &mut Running, case: Case, run: &Run<'_>) -> Result<Found, ChildError> {
    match case.command(run.quick) {
        Some(command) => calls(system, &command, run),
        None => idle(system, run),
    }
}

fn calls(system: &mut Running, command: &str, run: &Run<'_>) -> Result<Found, ChildError> {
    let before = system.cpu_ns()?;
    let told: Option<Told> = system.client.ask(command, PATIENCE, run.interrupted)?;
    let told = told.ok_or_else(|| system.client.fault("does not support a case, as it must"))?;
    let after = system.cpu_ns()?;
    let each = |at: usize| (after[at] - before[at]) as f64 / told.calls as f64;
    Ok(Found { times: told.times, cpu_ns: (told.calls > 0).then(|| [each(0), each(1)]) })
}

/// Measures the processor time of both sides without calls, in nanoseconds per second.
fn idle(system: &Running, run: &Run<'_>) -> Result<Found, ChildError> {
    let (settling, time) = if run.quick { (QUICKLY, QUICKLY) } else { (SETTLING, WATCHED) };
    pause(settling, run.interrupted)?;
    let before = system.cpu_ns()?;
    pause(time, run.interrupted)?;
    let after = system.cpu_ns()?;
    let sides = [0, 1].map(|at| (after[at] - before[at]) as f64 / time.as_secs_f64());
    Ok(Found { times: Summary::flat(sides[0] + sides[1], 1), cpu_ns: Some(sides) })
}
