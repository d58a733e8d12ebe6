//! The suite `cache`: get and put of 100 bytes on a table of a million entries, under keys of this
//! machine, by Upcall with all methods, by Redis and by Memcached.
//!
//! Each store is a server and a client, two processes that live as long as the run, since filling
//! the table takes seconds. They take turns, A B C A B C …, and the cache line is probed between
//! turns. The client is on the first processor, the server on the second one or on the same. The
//! figures are medians over the rounds, of turns of one placement of the processors only (`like`).
//! All clients check all values.

pub mod case;
pub mod child;
/// Keys and values, which the example `cache` shares.
#[path = "../../../crates/upcall/examples/cache/entries.rs"]
pub mod entries;
mod sockets;
mod table;

use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use self::case::{Case, Contender, OURS, with_spinning};
use self::child::Entry;
use self::entries::Keys;
use crate::built;
use crate::case::Placement;
use crate::error::RunError;
use crate::place;
use crate::process::{ChildError, Process};
use crate::record::Label;
use crate::report::Report;
use crate::run::{Rounds, Run, Said, Series};
use crate::stats::Summary;
use crate::suite::{Offer, Only, Suite};
use crate::table::Table;

/// The stores of this crate, for the benchmark program's table (see [`child::child_main`]).
pub const STORES: [Entry; 2] = [Entry::of::<sockets::Redis>(), Entry::of::<sockets::Memcached>()];

/// Maximum time for filling a table, and the number of entries for which this time is added once
/// more.
const FILL: (Duration, usize) = (Duration::from_secs(60), 1_000_000);
/// Maximum time for a turn beyond its requested duration.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running store.
struct Running {
    name: &'static str,
    // Fields drop in this order: the client goes first.
    client: Process,
    server: Process,
}

/// The suite.
#[derive(Debug, Clone, Default)]
pub struct Cache {
    /// Number of entries of the table; `None` for a million, or 100 000 in a quick run.
    pub entries: Option<usize>,
}

/// Takes about a minute and a half with all peers. Keeps two processors busy.
impl Suite for Cache {
    const NAME: &'static str = "cache";
    const OFFERS: &'static [Offer] = &[
        Offer::System("Only this system, for example `upcall-read` or `redis`; may be repeated"),
        Offer::Case("Only this case, for example `get` or `put-16`; may be repeated"),
        Offer::Placement("Only this placement: `two-cores` or `one-core`"),
    ];
    const TABLES: &'static [&'static str] = &table::TABLES;
    type Peer = Contender;

    fn cases(&self) -> Vec<String> {
        Case::ALL.map(|case| case.name().to_owned()).into()
    }

    fn systems(&self) -> Vec<String> {
        case::all().map(|contender| contender.name.to_owned()).collect()
    }

    fn measure(&self, peers: Vec<Contender>, run: &mut Run<'_>) -> Result<(), RunError> {
        let entries = self.entries.unwrap_or(if run.quick { 100_000 } else { 1_000_000 });
        let keys = Keys::find(1).map_err(RunError::System)?;
        run.report.notes.push(format!(
            "{entries} entries of {} bytes under {}",
            entries::VALUE,
            keys.source
        ));
        let peers = peers.into_iter().flat_map(with_spinning);
        let mut contenders: Vec<Contender> = OURS.into_iter().chain(peers).collect();
        contenders.retain(|contender| Case::ALL.iter().any(|&case| has(run.only, contender, case)));
        let mut why: Vec<String> = contenders.iter().filter_map(missing).collect();
        why.dedup();
        run.report.notes.extend(why);
        contenders.retain(|contender| missing(contender).is_none());
        let mut running = start(&contenders, entries, run)?;
        for placement in [Placement::TwoCores, Placement::OneCore] {
            if run.only.placement(placement) && run.has_room(placement) {
                measure(&mut running, &contenders, placement, run)?;
            }
        }
        if run.report.records.is_empty() && run.report.failures.is_empty() {
            return Err(RunError::Nothing);
        }
        Ok(())
    }

    fn tables(report: &Report) -> Vec<Table> {
        table::tables(report)
    }
}

fn has(only: &Only, contender: &Contender, case: Case) -> bool {
    only.system(contender.name) && only.case(case.name()) && contender.takes_part(case)
}

/// Returns why a peer is skipped.
fn missing(contender: &Contender) -> Option<String> {
    built::absent(contender.store, contender.package?)
}

/// Starts the stores, each with its client, which fills it.
fn start(
    contenders: &[Contender],
    entries: usize,
    run: &mut Run<'_>,
) -> Result<Vec<Running>, RunError> {
    let mut stores: Vec<&'static str> =
        contenders.iter().map(|contender| contender.store).collect();
    stores.dedup();
    let mut all = Vec::new();
    for name in stores {
        run.progress.say("filling", name);
        let found = filled(name, entries, run);
        all.extend(run.unless_failed("", found)?);
    }
    Ok(all)
}

fn filled(name: &'static str, entries: usize, run: &Run<'_>) -> Result<Running, ChildError> {
    let start = |role: &str| {
        let mut command = Command::new(run.exe);
        command.args(["bench-cache", name, role, &entries.to_string()]).arg(run.dir);
        // Names are for this run only. Without a backtrace the reason is the last line.
        command.env("UPCALL_DIR", run.dir.join("names")).env("RUST_BACKTRACE", "0");
        let errors = run.dir.join(format!("{name}-{role}-errors"));
        let started =
            place::on(run.cpus.first, || Process::start(command, format!("{name} {role}"), errors));
        started.map_err(|error| ChildError::Start { exe: run.exe.to_owned(), error })?
    };
    let server = start("server")?;
    server.confine(&[run.other(Placement::TwoCores)])?;
    let mut client = start("client")?;
    let time = FILL.0 * (1 + entries / FILL.1) as u32;
    let ready = client.line("filling", Instant::now() + time, run.interrupted);
    let ready = ready.map_err(|error| match error {
        ChildError::Child { who, what } => {
            ChildError::Child { who, what: format!("{what}; {}", server.fault("its server")) }
        }
        error => error,
    })?;
    if ready == "ready" {
        Ok(Running { name, client, server })
    } else {
        Err(client.fault(&format!("said `{ready}`")))
    }
}

/// Measures all contenders of a placement in turn, round by round.
fn measure(
    running: &mut Vec<Running>,
    contenders: &[Contender],
    placement: Placement,
    run: &mut Run<'_>,
) -> Result<(), RunError> {
    for store in running.iter() {
        let confined = store.server.confine(&[run.other(placement)]);
        run.unless_failed("", confined)?;
    }
    let (rounds, millis) = if run.quick { (3, 10) } else { (9, 100) };
    let time = Duration::from_millis(millis);
    let only = run.only;
    let all = Case::ALL.into_iter().flat_map(|case| {
        let takes_part =
            move |contender: &&Contender| has(only, contender, case) && contender.is_for(placement);
        contenders.iter().filter(takes_part).map(move |&contender| (contender, case))
    });
    let mut series: Vec<Series<(Contender, Case), Summary>> = all.map(Series::of).collect();
    let say = |round, (contender, case): &(Contender, Case)| Said {
        what: format!("{placement}, round {round} of {rounds}"),
        detail: format!("{case} {}", contender.name),
        fault: format!("{case}, {placement}"),
    };
    let turn = |run: &mut Run<'_>, &mut (contender, case): &mut (Contender, Case)| {
        let Some(at) = running.iter().position(|store| store.name == contender.store) else {
            return Ok(None);
        };
        let found = turn(&mut running[at].client, case, contender.way, time, run.interrupted);
        if found.is_err() {
            // Its next answer may belong to an earlier command.
            running.remove(at);
        }
        found.map(Some)
    };
    run.rounds(&Rounds::count(rounds, 0..100), &mut series, say, turn)?;
    run.leave_like(&placement.to_string(), &mut series);
    let measured = series.iter().filter(|one| !one.turns.is_empty());
    run.report.records.extend(measured.map(|Series { of: (contender, case), turns, .. }| {
        let Contender { name: system, mode, .. } = *contender;
        Label { suite: Cache::NAME, case: case.name(), system, placement, mode }.latency(turns)
    }));
    Ok(())
}

fn turn(
    client: &mut Process,
    case: Case,
    way: &str,
    time: Duration,
    interrupted: &AtomicBool,
) -> Result<Summary, ChildError> {
    let command = format!("time {case} {way} {}", time.as_millis());
    let found = client.ask(&command, PATIENCE + 3 * time, interrupted)?;
    found.ok_or_else(|| client.fault("does not support times, which every store must"))
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
