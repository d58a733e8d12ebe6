//! The suite `cache`: get and put of 100 bytes on a table of a million entries, under keys of this
//! machine, by ours in all ways, by Redis and by Memcached.
//!
//! Each store is a server and a client, two processes that live as long as the run, since filling
//! the table takes seconds. They take turns, A B C A B C …, and the cache line is probed between
//! turns: the client on the first processor, the server on the second one or on the same. What
//! counts are medians over the rounds, of turns of one placement of the processors only (`like`).
//! All clients check all values.

pub mod case;
pub mod child;
/// Keys and values, which the example `cache` has as well.
#[path = "../../../crates/upcall/examples/cache/entries.rs"]
pub mod entries;
mod options;
mod sockets;
mod table;

use std::env;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::Deserialize;

use self::case::{Case, Contender, OURS, with_spinning};
use self::child::Entry;
use self::entries::Keys;
pub use self::options::{Only, Options, Peers};
use crate::case::Placement;
pub use crate::error::RunError;
use crate::interrupted::Interrupted;
use crate::like::Like;
use crate::line;
use crate::output;
use crate::place::{self, Cpus};
use crate::process::{ChildError, Process};
use crate::progress::Progress;
use crate::record::{Label, Record, Turn};
use crate::report::{Report, busy};
use crate::scratch::Scratch;
use crate::stats::Summary;

/// The stores of this crate, for the table of the program that runs the benchmark (see
/// [`child::child_main`]).
pub const STORES: [Entry; 2] = [Entry::of::<sockets::Redis>(), Entry::of::<sockets::Memcached>()];

/// Longest time for a table to be filled, for so many entries more.
const FILL: (Duration, usize) = (Duration::from_secs(60), 1_000_000);
/// Longest time for a turn, over what it was asked to take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a client says.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Done(Summary),
    Error { error: String },
}

/// A store that runs.
struct Running {
    name: &'static str,
    // Fields drop in this order: the client goes first.
    client: Process,
    server: Process,
}

/// One way of one store in one case.
struct Series {
    contender: Contender,
    case: Case,
    turns: Vec<Turn<Summary>>,
}

/// Runs the suite, shows progress on standard error, prints a table on standard output and writes
/// the records where `options` say. Takes about a minute and a half with all peers, and busies two
/// processors meanwhile. Leaves no process and no file behind.
///
/// # Errors
/// [`RunError`]. A system that fails is in the report's `failures` and does not stop the others.
pub fn run(options: &Options) -> Result<Report, RunError> {
    options.only.check()?;
    let cpus = Cpus::allowed().map_err(RunError::System)?;
    let entries = options.entries();
    let mut report = Report { notes: busy().into_iter().collect(), ..Report::default() };
    let keys = Keys::find(1).map_err(RunError::System)?;
    report.notes.push(format!(
        "{entries} entries of {} bytes under {}",
        entries::VALUE,
        keys.source
    ));

    let peers = options.peers.meant().into_iter();
    let mut contenders: Vec<Contender> =
        OURS.into_iter().chain(peers.flat_map(with_spinning)).collect();
    contenders.retain(|contender| Case::ALL.iter().any(|&case| options.only.has(contender, case)));
    let mut why: Vec<String> = contenders.iter().filter_map(missing).collect();
    why.dedup();
    report.notes.extend(why);
    contenders.retain(|contender| missing(contender).is_none());
    let interrupted = Interrupted::watch().map_err(RunError::System)?;
    let scratch = Scratch::make()?;
    let mut runner = Runner {
        exe: &options.exe,
        dir: &scratch.dir,
        entries,
        cpus,
        interrupted: &interrupted.flag,
        progress: Progress::new(),
        running: Vec::new(),
        report,
    };
    runner.start(&contenders)?;
    let (rounds, time) = if options.quick { (3, 10) } else { (9, 100) };
    for placement in [Placement::TwoCores, Placement::OneCore]
        .into_iter()
        .filter(|&placement| options.only.at(placement))
    {
        if placement == Placement::TwoCores && cpus.second.is_none() {
            runner.report.notes.push(
                "this process may use one processor only: two-cores was not measured".to_owned(),
            );
            continue;
        }
        let has = |contender: &Contender, case| {
            options.only.has(contender, case) && contender.is_for(placement)
        };
        let series = Case::ALL.into_iter().flat_map(|case| {
            let of_case = contenders.iter().filter(move |contender| has(contender, case));
            of_case.map(move |&contender| Series { contender, case, turns: Vec::new() })
        });
        runner.placement(placement, series.collect(), rounds, Duration::from_millis(time))?;
    }
    runner.progress.clear();
    let Runner { report, running, .. } = runner;
    drop(running);
    if report.records.is_empty() && report.failures.is_empty() {
        return Err(RunError::Nothing);
    }
    let json = options.json.as_deref();
    output::asides(json, &report.notes, &report.failures);
    output::table(json, |out, colour| table::print(&report, out, colour))?;
    output::records(json, &report.records)?;
    Ok(report)
}

/// Why a peer takes no part.
fn missing(contender: &Contender) -> Option<String> {
    let [program, package] = contender.package?;
    let path = env::var_os("PATH").unwrap_or_default();
    let there = env::split_paths(&path).any(|folder| folder.join(program).is_file());
    (!there).then(|| {
        format!("{} takes no part: no {program} is on the path; install it (Debian: apt-get install {package})", contender.store)
    })
}

/// A run under way.
struct Runner<'a> {
    exe: &'a Path,
    dir: &'a Path,
    entries: usize,
    cpus: Cpus,
    interrupted: &'a AtomicBool,
    progress: Progress,
    running: Vec<Running>,
    report: Report,
}

impl Runner<'_> {
    /// Starts the stores, each with its client, which fills it.
    fn start(&mut self, contenders: &[Contender]) -> Result<(), RunError> {
        let mut stores: Vec<&'static str> =
            contenders.iter().map(|contender| contender.store).collect();
        stores.dedup();
        for name in stores {
            self.progress.say("filling", name);
            match self.filled(name) {
                Ok(running) => self.running.push(running),
                Err(ChildError::Interrupted) => return Err(RunError::Interrupted),
                Err(error) => self.report.failures.push(error.to_string()),
            }
        }
        Ok(())
    }

    fn filled(&self, name: &'static str) -> Result<Running, ChildError> {
        let start = |role: &str| {
            let mut command = Command::new(self.exe);
            command.args(["bench-cache", name, role, &self.entries.to_string()]).arg(self.dir);
            // Names are for this run alone; and the reason stands in the line before a backtrace.
            command.env("UPCALL_DIR", self.dir.join("names")).env("RUST_BACKTRACE", "0");
            let errors = self.dir.join(format!("{name}-{role}-errors"));
            let started = place::on(self.cpus.first, || {
                Process::start(command, format!("{name} {role}"), errors)
            });
            started.map_err(|error| ChildError::Start { exe: self.exe.to_owned(), error })?
        };
        let server = start("server")?;
        server.confine(&[self.cpus.second.unwrap_or(self.cpus.first)])?;
        let mut client = start("client")?;
        let time = FILL.0 * (1 + self.entries / FILL.1) as u32;
        let ready =
            client.line("filling", Instant::now() + time, self.interrupted).map_err(|error| {
                match error {
                    ChildError::Child { who, what } => ChildError::Child {
                        who,
                        what: format!("{what}; {}", server.fault("its server")),
                    },
                    error => error,
                }
            })?;
        if ready == "ready" {
            Ok(Running { name, client, server })
        } else {
            Err(client.fault(&format!("said `{ready}`")))
        }
    }

    /// All of them in turn, round by round.
    fn placement(
        &mut self,
        placement: Placement,
        mut series: Vec<Series>,
        rounds: usize,
        time: Duration,
    ) -> Result<(), RunError> {
        let own = if placement == Placement::OneCore {
            self.cpus.first
        } else {
            self.cpus.second.unwrap_or(self.cpus.first)
        };
        for running in &self.running {
            if let Err(error) = running.server.confine(&[own]) {
                self.report.failures.push(error.to_string());
            }
        }
        let mut before = line::round_trip_ns(&self.cpus);
        for round in 0..rounds {
            for one in &mut series {
                let Series { contender: Contender { name, store, way, .. }, case, .. } = *one;
                let Some(running) = self.running.iter_mut().find(|running| running.name == store)
                else {
                    continue;
                };
                self.progress.percent = (100 * round / rounds) as u32;
                self.progress.say(
                    &format!("{placement}, round {} of {rounds}", round + 1),
                    &format!("{case} {name}"),
                );
                let found = turn(&mut running.client, case, way, time, self.interrupted);
                let after = line::round_trip_ns(&self.cpus);
                match found {
                    Ok(found) => one.turns.push(Turn { found, lines: (before, after) }),
                    Err(ChildError::Interrupted) => return Err(RunError::Interrupted),
                    Err(error) => {
                        self.report.failures.push(format!("{case}, {placement}: {error}"));
                        // What it would say next belongs to another question, perhaps.
                        self.running.retain(|running| running.name != store);
                    }
                }
                before = after;
            }
        }
        series.retain(|one| !one.turns.is_empty());
        let probes: Vec<Vec<_>> =
            series.iter().map(|one| one.turns.iter().map(|turn| turn.lines).collect()).collect();
        let like = Like::of(&probes);
        let all: usize = probes.iter().map(Vec::len).sum();
        for one in &mut series {
            one.turns.retain(|turn| like.has(turn.lines));
        }
        let left: usize = series.iter().map(|one| one.turns.len()).sum();
        if left < all {
            let (least, most) = Like::span(probes.iter().flatten());
            self.report.notes.push(format!(
                "{placement}: the line took {least:.0} to {most:.0} ns; only the {left} of {all} turns with it in one place count"
            ));
        }
        let records =
            series.iter().filter(|one| !one.turns.is_empty()).map(|one| recorded(placement, one));
        self.report.records.extend(records);
        Ok(())
    }
}

fn turn(
    client: &mut Process,
    case: Case,
    way: &str,
    time: Duration,
    interrupted: &AtomicBool,
) -> Result<Summary, ChildError> {
    let command = format!("time {case} {way} {}", time.as_millis());
    client.say(&command)?;
    let line = client.line(&command, Instant::now() + PATIENCE + 3 * time, interrupted)?;
    match serde_json::from_str(&line) {
        Ok(Answer::Done(found)) => Ok(found),
        Ok(Answer::Error { error }) => {
            Err(ChildError::Call { who: client.who.clone(), what: error })
        }
        Err(_) => Err(client.fault(&format!("answered by `{line}`, which is no answer"))),
    }
}

fn recorded(placement: Placement, series: &Series) -> Record {
    let Series { contender, case, turns } = series;
    Label {
        suite: "cache",
        case: case.name(),
        system: contender.name,
        placement,
        mode: contender.mode,
    }
    .latency(turns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::case::PEERS;

    #[test]
    fn a_peer_that_is_not_here_says_what_to_install() {
        let none = Contender { package: Some(["no-such-program", "some-package"]), ..PEERS[0] };
        let why = missing(&none).unwrap();
        assert!(
            why.contains("redis takes no part") && why.contains("apt-get install some-package"),
            "{why}"
        );
        assert_eq!(OURS.iter().find_map(missing), None);
    }
}
