//! The suite `hosts`: calls and messages between two hosts, which are network namespaces on one
//! machine.
//!
//! For calls, each system has a server on one host and a client on the other, two processes that
//! live as long as the run, pinned to one processor each. They take turns, A B C A B C …, and the
//! cache line is probed between turns. The figures are medians over the rounds, of turns of one
//! placement of the processors only (`like`). Beside them is the processor time of both processes.
//! PVM's tasks are started for each turn ([`tasks`]).

pub mod case;
pub mod child;
mod network;
mod table;
mod tasks;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use self::case::{Case, Contender, LIMIT, Program, Served, UPCALL};
use self::child::Told;
use self::network::{ADDRESSES, Network, Side};
use self::tasks::Tasks;
use crate::case::{Mode, Placement};
use crate::child::Outcome;
use crate::error::RunError;
use crate::process::{ChildError, Process, pause};
use crate::programs::Programs;
use crate::record::{Label, Record, Turn, tenths};
use crate::report::Report;
use crate::run::{Rounds, Run, Said, Series};
use crate::stats::{Summary, median};
use crate::suite::{Offer, Suite};
use crate::table::Table;

/// Maximum time for a command of a turn.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time until a connection without calls is idle, and time for which it is watched then. Upcall
/// judges the trust in the other host every 5 s: for the first time before the watch, and once in
/// it.
const SETTLING: Duration = Duration::from_millis(5500);
const WATCHED: Duration = Duration::from_secs(5);

/// The same for a quick run.
const QUICKLY: Duration = Duration::from_millis(200);

/// Makes an identity for each of the hosts with these addresses, in these folders. Each trusts the
/// other under its address.
pub type Introduce = fn(folders: &[&Path; 2], addresses: &[&str; 2]) -> Outcome<()>;

/// The suite.
#[derive(Debug, Clone)]
pub struct Hosts {
    /// Makes the identities of the hosts.
    pub introduce: Introduce,
    /// The command `upcall`, which runs `pvm run`.
    pub upcall: PathBuf,
}

/// A running system.
struct Running {
    name: &'static str,
    // Fields drop in this order: the client goes first.
    client: Process,
    server: Process,
}

/// The finding of a turn.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Found {
    times: Summary,
    /// Processor time of client and server a call, in nanoseconds; `None` if other calls took some
    /// of it.
    cpu_ns: Option<[f64; 2]>,
}

/// A system in a case.
type Measured = Series<(Contender, Case), Found>;

/// Takes about four minutes with all peers. Keeps two processors busy.
impl Suite for Hosts {
    const NAME: &'static str = "hosts";
    const OFFERS: &'static [Offer] = &[
        Offer::System("Only this system, for example `upcall` or `grpc`; may be repeated"),
        Offer::Case("Only this case, for example `null` or `connect`; may be repeated"),
    ];
    const TABLES: &'static [&'static str] = &table::TABLES;
    type Peer = Contender;

    fn cases(&self) -> Vec<String> {
        Case::ALL.map(|case| case.name().to_owned()).into()
    }

    fn systems(&self) -> Vec<String> {
        let all = [LIMIT, UPCALL].into_iter().chain(case::PEERS);
        all.map(|contender| contender.name.to_owned()).collect()
    }

    fn measure(&self, peers: Vec<Contender>, run: &mut Run<'_>) -> Result<(), RunError> {
        let only = run.only;
        let has = |contender: &Contender, case: Case| {
            only.system(contender.name) && only.case(case.name()) && contender.takes_part(case)
        };
        let mut contenders: Vec<Contender> = [LIMIT, UPCALL].into_iter().chain(peers).collect();
        contenders.retain(|contender| Case::ALL.iter().any(|&case| has(contender, case)));
        if contenders.is_empty() {
            return Err(RunError::Nothing);
        }
        if !run.has_room(Placement::TwoCores) {
            return Ok(());
        }
        let network = match Network::make() {
            Ok(network) => network,
            Err(why) => {
                run.report.notes.push(format!("nothing was measured between hosts: {why}"));
                return Ok(());
            }
        };
        let with = |tasks: bool, one: &Contender| {
            Case::ALL.iter().any(|&case| case.tasks().is_some() == tasks && has(one, case))
        };
        let of_calls = contenders.iter().filter(|one| with(false, one));
        let mut served = of_calls.filter_map(|one| Some((one.name, one.served?))).collect();
        let programs = case::programs(&mut served, run.exe)?;
        programs.say(&mut run.report);
        let folders = [Side::Client, Side::Server].map(|side| identity(run.dir, side));
        (self.introduce)(&[&folders[0], &folders[1]], &ADDRESSES)
            .map_err(|error| RunError::System(io::Error::other(error)))?;
        let mut running = start(&served, &programs, &network, run)?;
        let of_tasks: Vec<Contender> =
            contenders.iter().copied().filter(|one| with(true, one)).collect();
        let mut tasks = Tasks::of(&of_tasks, &self.upcall, &network, run)?;
        let of =
            |case| contenders.iter().filter(move |one| has(one, case)).map(move |&one| (one, case));
        let mut series: Vec<Measured> =
            Case::ALL.into_iter().flat_map(of).map(Series::of).collect();
        let rounds = if run.quick { 1 } else { 5 };
        let say = |round, (contender, case): &(Contender, Case)| Said {
            what: format!("round {round} of {rounds}, {case}"),
            detail: contender.name.to_owned(),
            fault: case.name().to_owned(),
        };
        let turn = |run: &mut Run<'_>, &mut (contender, case): &mut (Contender, Case)| match case
            .tasks()
        {
            Some(of) => {
                let times = tasks.take(contender.name, of, run)?;
                Ok(times.map(|times| Found { times, cpu_ns: None }))
            }
            None => turn(&mut running, contender, case, run),
        };
        run.rounds(&Rounds::count(rounds, 0..100), &mut series, say, turn)?;
        run.leave_like("", &mut series);
        let measured = series.iter().filter(|one| !one.turns.is_empty());
        run.report.records.extend(measured.map(record));
        Ok(())
    }

    fn tables(report: &Report) -> Vec<Table> {
        table::tables(report)
    }
}

/// Folder of a host's identity.
fn identity(dir: &Path, side: Side) -> std::path::PathBuf {
    dir.join(format!("identity-{}", side.name()))
}

/// Starts the systems.
fn start(
    contenders: &[(&'static str, Served)],
    programs: &Programs<Program>,
    network: &Network,
    run: &mut Run<'_>,
) -> Result<Vec<Running>, RunError> {
    let mut all = Vec::new();
    for &(name, served) in contenders {
        run.progress.say("starting", name);
        let started = pair(name, served.port, programs.path(served.program), network, run);
        all.extend(run.unless_failed("", started)?);
    }
    Ok(all)
}

fn pair(
    name: &'static str,
    port: u16,
    program: &Path,
    network: &Network,
    run: &Run<'_>,
) -> Result<Running, ChildError> {
    let address = ADDRESSES[Side::Server as usize];
    let server: SocketAddr = match format!("{address}:{port}").parse() {
        Ok(server) => server,
        Err(_) => unreachable!("a number and a port"),
    };
    let start = |side: Side, cpu: usize| {
        let role = side.name();
        let mut command = network.command(side, program);
        command.args(["bench-hosts", name, role, &cpu.to_string(), &server.to_string()]);
        command.arg(run.dir);
        surround(&mut command, side, run);
        let errors = run.dir.join(format!("{name}-{role}-errors"));
        Process::ready(command, format!("{name} {role}"), errors, run.interrupted)
    };
    let server = start(Side::Server, run.other(Placement::TwoCores))?;
    Ok(Running { name, client: start(Side::Client, run.cpus.first)?, server })
}

/// Sets a command's environment: each host has its identity and its names for itself. Without a
/// backtrace the reason of an error is the last line.
fn surround(command: &mut Command, side: Side, run: &Run<'_>) {
    command
        .env("UPCALL_HOSTS", identity(run.dir, side))
        .env("UPCALL_DIR", run.dir.join(format!("names-{}", side.name())))
        .env("RUST_BACKTRACE", "0");
}

/// Measures a system in a case of calls. A system that fails takes no further turns.
fn turn(
    running: &mut Vec<Running>,
    contender: Contender,
    case: Case,
    run: &mut Run<'_>,
) -> Result<Option<Found>, ChildError> {
    let Some(at) = running.iter().position(|system| system.name == contender.name) else {
        return Ok(None);
    };
    let found = match case.command(run.quick) {
        Some(command) => calls(&mut running[at], &command, run),
        None => idle(&running[at], run),
    };
    if found.is_err() {
        // Its next answer may belong to an earlier command.
        running.remove(at);
    }
    found.map(Some)
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

impl Running {
    /// Returns the processor time of client and server so far.
    fn cpu_ns(&self) -> Result<[u64; 2], ChildError> {
        Ok([self.client.cpu_ns()?, self.server.cpu_ns()?])
    }
}

fn record(Series { of: (contender, case), turns, .. }: &Measured) -> Record {
    let label = Label {
        suite: Hosts::NAME,
        case: case.name(),
        system: contender.name,
        placement: Placement::TwoCores,
        mode: Mode::Parked,
    };
    let times: Vec<Turn<Summary>> =
        turns.iter().map(|turn| Turn { found: turn.found.times, lines: turn.lines }).collect();
    let cpu = |side: usize| {
        let all: Option<Vec<f64>> =
            turns.iter().map(|turn| turn.found.cpu_ns.map(|sides| sides[side])).collect();
        all.map(|all| tenths(median(&all)))
    };
    let of_case = label.latency(&times);
    Record {
        // An idle connection has no calls.
        per_s: if *case == Case::Idle { 0.0 } else { of_case.per_s },
        client_cpu_ns: cpu(0),
        server_cpu_ns: cpu(1),
        ..of_case
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_in_the_record_unless_others_took_some() {
        let turn = |ns, cpu_ns| Turn {
            found: Found { times: Summary::flat(ns, 1), cpu_ns },
            lines: (100.0, 100.0),
        };
        let of = |case, turns: &[Turn<Found>]| {
            record(&Series { turns: turns.to_vec(), ..Series::of((UPCALL, case)) })
        };
        let idle = of(Case::Idle, &[turn(7.0, Some([3.0, 4.0])), turn(9.0, Some([5.0, 4.0]))]);
        assert_eq!((idle.p50_ns, idle.per_s), (8.0, 0.0));
        assert_eq!((idle.client_cpu_ns, idle.server_cpu_ns), (Some(4.0), Some(4.0)));
        let beside = of(Case::SmallBesideLarge, &[turn(7.0, None)]);
        assert_eq!((beside.client_cpu_ns, beside.per_s > 0.0), (None, true));
    }
}
