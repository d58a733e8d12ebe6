//! One turn of one contender in one case: runs its program and reads the line that it prints.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::ampi;
use super::away::Away;
use super::case::{Case, PAPER_SWEEP_MS};
use super::child::Told;
use super::contender::{Contender, How};
use super::machine::{Machine, Span};
use super::programs::Programs;
use super::saved::{self, Saving};
use crate::case::{Case as Call, Mode, Placement};
use crate::pair::{Pair, Spec};
use crate::place;
use crate::process::{self, ChildError, Process};
use crate::run::Run;
use crate::stats::Summary;

/// Maximum time of a turn beyond its requested duration. PVM's Laplace needs it, and starting
/// hundreds of processes.
const PATIENCE: Duration = Duration::from_secs(90);
/// Maximum time for a program to end after it has printed its figures.
const END: Duration = Duration::from_secs(20);
/// Durations of a run with tasks of different weight, of one with the paper's proportions, and of
/// each part of a run that loses a processor, as multiples of other turns'.
const BALANCING: u32 = 20;
const PAPER: u32 = 8;
const PHASE: u32 = 7;
/// The processes of 16 tasks, of which the first eight cost four times as much: half of the work in
/// each with one border between them, and half of the tasks in each.
const EVEN: &str = "0 0 0 0 0 1 1 1 1 1 1 1 1 1 1 1";
const HALVES: &str = "0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1";
/// Time until waiting tasks are idle.
const SETTLING: Duration = Duration::from_millis(300);

/// The finding of a turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    pub times: Summary,
    pub bare_ns: Option<f64>,
    pub memcpy_ns: Option<f64>,
    pub alone_ns: Option<f64>,
    pub bytes_each: Option<f64>,
    pub pause_ns: Option<f64>,
}

impl Found {
    /// A finding that is nothing but times.
    pub fn of(times: Summary) -> Found {
        Found {
            times,
            bare_ns: None,
            memcpy_ns: None,
            alone_ns: None,
            bytes_each: None,
            pause_ns: None,
        }
    }
}

/// Runs the turns.
pub struct Turns<'a> {
    pub upcall: &'a Path,
    pub programs: &'a Programs,
    /// Approximate durations of a turn's measurement, and of the observation of waiting tasks.
    pub time: Duration,
    pub idle: Duration,
    /// PVM's virtual machine, if it is running.
    pub machine: Option<Machine>,
    /// Rows of the grid that one task sweeps in the paper's time, once it was looked for.
    pub grid: Option<u32>,
    /// The sums of the grids that were computed, by what was computed.
    pub sums: BTreeMap<String, String>,
}

impl Turns<'_> {
    /// Runs one turn.
    ///
    /// # Errors
    /// The program failed, hung, or printed something unexpected. None of its processes is left
    /// running.
    pub fn take(
        &mut self,
        contender: &Contender,
        case: Case,
        run: &mut Run<'_>,
    ) -> Result<Found, ChildError> {
        let found = match case {
            Case::CallOneWay => self.call(contender, run),
            Case::LaplacePaper(_) => {
                self.calibrate(run).and_then(|()| self.program(contender, case, run))
            }
            _ => self.program(contender, case, run),
        };
        if found.is_err() {
            // Tasks that are left would disturb the next ones.
            self.machine = None;
        }
        found
    }

    /// Measures a null call there and back, halved.
    fn call(&self, contender: &Contender, run: &mut Run<'_>) -> Result<Found, ChildError> {
        let (second, first) = (run.other(Placement::TwoCores), run.cpus.first);
        let spec = Spec {
            exe: run.exe,
            system: contender.name,
            placement: contender.placement,
            mode: Mode::Polling,
            server: &[second],
            clients: &[&[first]],
            dir: run.folder(),
        };
        let mut pair = Pair::start(&spec, run.interrupted)?;
        pair.latency(Call::Null, 2_000, self.time)?;
        let times = pair.latency(Call::Null, 50_000, self.time)?.map(|ns| ns / 2.0);
        pair.end()?;
        Ok(Found::of(times))
    }

    /// Finds the grid of the cases `laplace-paper-N`, the first time.
    fn calibrate(&mut self, run: &mut Run<'_>) -> Result<(), ChildError> {
        if self.grid.is_some() {
            return Ok(());
        }
        let mut command = run_on(run.exe, &[run.cpus.first], self.upcall);
        command.args(["pvm", "run"]).arg(self.programs.program(How::Upcall));
        command.args(["grid", &PAPER_SWEEP_MS.to_string()]);
        surround(&mut command, run.dir);
        let mut running =
            Process::start(command, "upcall, grid".to_owned(), run.dir.join("errors"))?;
        let line = running.line("its grid", Instant::now() + PATIENCE, run.interrupted)?;
        let told = serde_json::from_str::<Told>(&line).ok();
        let found = told.and_then(|told| Some((told.grid?, told.alone_ns?)));
        let (grid, ns) = found.ok_or_else(|| running.fault(&format!("said `{line}`")))?;
        running.end(END, run.interrupted)?;
        self.grid = Some(grid);
        run.report.notes.push(format!(
            "laplace-paper: one task sweeps the grid of {grid} x {grid} in {:.1} ms",
            ns / 1e6
        ));
        Ok(())
    }

    fn program(
        &mut self,
        contender: &Contender,
        case: Case,
        run: &Run<'_>,
    ) -> Result<Found, ChildError> {
        let command = self.command(contender, case, run)?;
        let who = format!("{}, {}", contender.name, contender.placement);
        let mut running = Process::start(command, who, run.dir.join("errors"))?;
        let found = match case {
            Case::Checkpoint(tasks) | Case::Restart(tasks) => {
                self.saved(&mut running, contender, case, tasks, run)
            }
            Case::ProcessorAway => self.away(&mut running, contender, case, run),
            _ => self.watched(&mut running, case, run.interrupted),
        };
        if found.is_err() {
            // A launcher that is asked to end also ends the processes that it has started.
            running.terminate(Duration::from_secs(2));
        }
        found
    }

    fn watched(
        &mut self,
        running: &mut Process,
        case: Case,
        interrupted: &AtomicBool,
    ) -> Result<Found, ChildError> {
        let told = told(running, case, self.time, interrupted)?;
        let (times, bytes_each) = match (case, told.times) {
            (Case::Idle(tasks), _) => self.rest(running, tasks, interrupted)?,
            (_, Some(times)) => (times, None),
            (_, None) => return Err(without_times(running)),
        };
        running.end(END + self.idle, interrupted)?;
        if let Some(sum) = told.sum {
            self.compared(case, sum).map_err(|what| running.fault(&what))?;
        }
        Ok(Found {
            times,
            bare_ns: told.bare_ns,
            memcpy_ns: told.memcpy_ns,
            alone_ns: told.alone_ns,
            bytes_each,
            pause_ns: None,
        })
    }

    /// Checks that a grid is the same as in the turns before.
    fn compared(&mut self, case: Case, sum: String) -> Result<(), String> {
        // The same is computed in all ways.
        let what = if matches!(case, Case::Balance(_)) { "balance".into() } else { case.name() };
        let first = self.sums.entry(what).or_insert_with(|| sum.clone());
        if *first == sum {
            Ok(())
        } else {
            Err(format!("has computed a grid with the sum {sum}, and others one with {first}"))
        }
    }

    /// Takes a processor away from a machine, and gives it back.
    fn away(
        &self,
        running: &mut Process,
        contender: &Contender,
        case: Case,
        run: &Run<'_>,
    ) -> Result<Found, ChildError> {
        let away = Away {
            name: case.name(),
            phase: PHASE * self.time,
            go: saved::go(run.dir),
            interrupted: run.interrupted,
            cpus: cpus_of(contender, run),
        };
        away.measure(running)
    }

    /// Returns what makes commands of `upcall pvm` beside a contender.
    fn asks<'a>(
        &'a self,
        contender: &Contender,
        run: &'a Run<'_>,
    ) -> impl Fn(&[&str]) -> (Command, PathBuf) + 'a {
        let cpus = cpus_of(contender, run);
        move |words| {
            let mut command = run_on(run.exe, &cpus, self.upcall);
            command.arg("pvm").args(words);
            surround(&mut command, run.dir);
            (command, run.dir.join("errors-asked"))
        }
    }

    /// Measures checkpoints or restarts of a machine with this number of tasks.
    fn saved(
        &self,
        running: &mut Process,
        contender: &Contender,
        case: Case,
        tasks: usize,
        run: &Run<'_>,
    ) -> Result<Found, ChildError> {
        let asks = self.asks(contender, run);
        let saving = Saving {
            name: case.name(),
            tasks,
            time: self.time,
            dir: run.dir,
            interrupted: run.interrupted,
            asks: &asks,
        };
        match case {
            Case::Checkpoint(_) => saving.checkpoints(running),
            _ => saving.restarts(running),
        }
    }

    /// Measures waiting tasks: processor time per second, and memory.
    fn rest(
        &self,
        running: &Process,
        tasks: usize,
        interrupted: &AtomicBool,
    ) -> Result<(Summary, Option<f64>), ChildError> {
        process::pause(SETTLING, interrupted)?;
        let mut all = vec![running.id()];
        all.extend(process::descendants(running.id()));
        if let Some(machine) = &self.machine {
            all.push(machine.id());
            all.extend(process::descendants(machine.id()));
        }
        let failed = |error| running.fault(&format!("cannot be observed while it waits: {error}"));
        let spent =
            || all.iter().map(|id| process::cpu_ns(*id)).sum::<Result<u64, _>>().map_err(failed);
        let kib =
            all.iter().map(|id| process::pss_kib(*id)).sum::<Result<u64, _>>().map_err(failed)?;
        let (begun, before) = (Instant::now(), spent()?);
        process::pause(self.idle, interrupted)?;
        let ns = (spent()? - before) as f64 / begun.elapsed().as_secs_f64();
        let times = Summary::flat(ns, 1);
        Ok((times, Some((1024 * kib) as f64 / tasks as f64)))
    }

    /// Returns the command of a turn.
    #[expect(clippy::too_many_lines, reason = "one arm for each system")]
    fn command(
        &mut self,
        contender: &Contender,
        case: Case,
        run: &Run<'_>,
    ) -> Result<Command, ChildError> {
        let cpus = cpus_of(contender, run);
        let on = |program: &Path| run_on(run.exe, &cpus, program);
        let time = match case {
            Case::Idle(_) => 2 * SETTLING + self.idle,
            Case::Balance(_) => BALANCING * self.time,
            Case::LaplacePaper(_) => PAPER * self.time,
            _ => self.time,
        };
        let seconds = time.as_secs_f64().to_string();
        let words = case.words();
        let go = saved::go(run.dir);
        fs::remove_file(&go).ok();
        let more = match case {
            Case::Checkpoint(_) | Case::Restart(_) | Case::ProcessorAway => {
                Some(["--until".to_owned(), go.to_string_lossy().into_owned()])
            }
            Case::LaplacePaper(_) => self.grid.map(|grid| ["--grid".to_owned(), grid.to_string()]),
            _ => None,
        };
        let words = words.iter().chain(&more).flatten().map(String::as_str);
        let words = words.chain(["--seconds", &seconds]);
        let list = place::list(&cpus);
        let mut command = match contender.how {
            How::Upcall | How::Limit if case.words().is_none() => {
                let mut command = on(run.exe);
                command.arg("bench-pvm");
                match case {
                    Case::Switch(ulps) => {
                        command.args(["switch", &ulps.to_string(), &seconds]).arg(run.dir)
                    }
                    _ => command.args([&case.name(), &seconds]),
                };
                command
            }
            How::Upcall | How::Limit | How::Call => {
                let mut command = on(self.upcall);
                command.args(["pvm", "run"]).arg(self.programs.program(How::Upcall)).args(words);
                command
            }
            How::Upcall2 { interleave } => {
                let mut command = on(self.upcall);
                let is_away = case == Case::ProcessorAway;
                let processes = if is_away { "1-2" } else { "2" };
                command.args(["pvm", "run", "--procs", processes, "--place"]);
                command.arg(placed(case, interleave, run.dir)?);
                // Neighbours exchange columns, so borders between the processes cost something.
                command.args((case == Case::Balance("on")).then_some("--balance=comm"));
                command.args(is_away.then_some("--balance=refine"));
                // The largest task does not fit into the memory of others.
                command.args((case == Case::Move("1g")).then_some("--memory=2G"));
                command.arg(self.programs.program(contender.how)).args(words);
                command
            }
            How::Pvm { direct } => {
                let folder = self.programs.folder(contender.how);
                if self.machine.is_none() {
                    let dir = run.dir.join("pvm-machine");
                    let started = Machine::start(on, Span::One, &folder, &dir, run.interrupted);
                    self.machine = Some(started?);
                }
                let mut command = on(&self.programs.program(contender.how));
                command.args(words).args(direct.then_some("--direct")).current_dir(folder);
                if cpus.len() > 1 {
                    command.args(["--cpus", &list]);
                }
                if let Some(machine) = &self.machine {
                    machine.confine(&cpus)?;
                    machine.variables(&mut command);
                }
                command
            }
            How::OpenMpi { yields } => {
                let mut command = on(Path::new("orterun"));
                command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
                command.args(if yields { &["--mca", "mpi_yield_when_idle", "1"][..] } else { &[] });
                command
                    .args(["-np", &case.processes().to_string()])
                    .arg(self.programs.program(contender.how));
                command.args(words).args(["--cpus", &list]);
                command
            }
            How::Ampi(layer) => {
                let program = self.programs.program(contender.how);
                let mut command = ampi::run(layer, case, &cpus, &program, on);
                command.args(words);
                command
            }
            How::Mpich => {
                let mut command = on(Path::new("mpirun.mpich"));
                command
                    .args(["-np", &case.processes().to_string()])
                    .arg(self.programs.program(contender.how));
                command.args(words).args(["--cpus", &list]);
                command
            }
        };
        surround(&mut command, run.dir);
        Ok(command)
    }
}

/// Runs a command that does nothing but measure a case for about `time`, and returns the times that
/// it reports.
///
/// # Errors
/// The program failed, hung, or printed something unexpected. It is not left running.
pub(crate) fn times(
    command: Command,
    who: &str,
    case: Case,
    time: Duration,
    run: &Run<'_>,
) -> Result<Summary, ChildError> {
    let mut running = Process::start(command, who.to_owned(), run.dir.join("errors"))?;
    let told = told(&mut running, case, time, run.interrupted)?;
    let times = told.times.ok_or_else(|| without_times(&running))?;
    running.end(END, run.interrupted)?;
    Ok(times)
}

/// Reads what a program prints about the case that it measures for about `time`.
fn told(
    running: &mut Process,
    case: Case,
    time: Duration,
    interrupted: &AtomicBool,
) -> Result<Told, ChildError> {
    let line = running.line(&case.name(), Instant::now() + PATIENCE + time, interrupted)?;
    let told: Told =
        serde_json::from_str(&line).map_err(|_| running.fault(&format!("said `{line}`")))?;
    if told.case != case.name() {
        return Err(running.fault(&format!("reported {}, but {case} was requested", told.case)));
    }
    Ok(told)
}

fn without_times(running: &Process) -> ChildError {
    running.fault("reported no times")
}

/// Returns the value of `--place`: a name, or a file, which is written.
fn placed(case: Case, interleave: bool, dir: &Path) -> Result<PathBuf, ChildError> {
    let list = match case {
        Case::Balance("ideal") => EVEN,
        Case::Balance(_) | Case::ProcessorAway => HALVES,
        _ if interleave => return Ok("interleave".into()),
        _ => return Ok("block".into()),
    };
    let file = dir.join("placement");
    let written = fs::write(&file, list);
    written.map_err(|error| ChildError::Start { exe: file.clone(), error })?;
    Ok(file)
}

/// Returns the processors of a contender.
fn cpus_of(contender: &Contender, run: &Run<'_>) -> Vec<usize> {
    let second = run.cpus.second.filter(|_| contender.placement == Placement::TwoCores);
    [run.cpus.first].into_iter().chain(second).collect()
}

/// Sets a command's environment: names and files are for this run only. Without a backtrace the
/// reason of an error is the last line.
fn surround(command: &mut Command, dir: &Path) {
    command.env("UPCALL_DIR", dir.join("names")).env("TMPDIR", dir).env("RUST_BACKTRACE", "0");
}

/// Returns the beginning of a command that runs a program on these processors.
fn run_on(exe: &Path, cpus: &[usize], program: &Path) -> Command {
    confined(Command::new(exe), cpus, program)
}

/// Lets a command of the benchmark program, which has no arguments yet, become `program`, confined
/// to these processors.
pub(crate) fn confined(mut command: Command, cpus: &[usize], program: &Path) -> Command {
    command.args(["bench-pvm", "run", &place::list(cpus)]).arg(program);
    command
}
