//! The suite `links`: what simulated hosts cost whose links are cut, by their number.
//!
//! The simulator runs the shipped state machine of links (`upcall-net`'s `HostLink`) on a virtual
//! clock: two machines for each link, with pipes between them that delay, cut and lose bytes. Each
//! message has to arrive once, in order. A turn is a child process that runs the simulator once on
//! one processor. Its time is processor time, so other programs matter little. This crate does not
//! depend on Upcall: the benchmark program answers to `bench-links`.

pub mod case;
pub mod child;
mod table;

use std::process::Command;
use std::time::{Duration, Instant};

use self::case::Case;
use self::child::Growth;
use crate::case::{Mode, Placement};
use crate::error::RunError;
use crate::found::Throughput;
use crate::messages::own::available_memory;
use crate::peers::NoPeer;
use crate::place;
use crate::process::{ChildError, Process};
use crate::record::{Label, Record, Turn};
use crate::report::Report;
use crate::run::{Rounds, Run, Said, Series};
use crate::stats::median;
use crate::suite::{Offer, Suite};
use crate::table::Table;

/// Maximum time for a run of the simulator.
const PATIENCE: Duration = Duration::from_secs(1800);
/// Maximum time for a child to end.
const END: Duration = Duration::from_secs(60);

/// The suite.
#[derive(Debug, Clone, Default)]
pub struct Links;

/// Takes some minutes, and 8 GiB of memory for the largest number of hosts. Keeps one processor
/// busy.
impl Suite for Links {
    const NAME: &'static str = "links";
    const OFFERS: &'static [Offer] = &[
        Offer::Case("Only this case, for example `hosts-1000`; may be repeated"),
        Offer::Plot("Draw time and memory by the number of hosts into this folder, as an SVG file"),
    ];
    const TABLES: &'static [&'static str] = &table::TABLES;
    type Peer = NoPeer;

    fn cases(&self) -> Vec<String> {
        Case::ALL.map(Case::name).into()
    }

    fn measure(&self, _: Vec<NoPeer>, run: &mut Run<'_>) -> Result<(), RunError> {
        let most = if run.quick { Case::QUICK } else { u32::MAX };
        let cases = Case::ALL.into_iter().filter(|case| case.hosts() <= most);
        let mut series: Vec<Series<Case, Growth>> =
            cases.filter(|case| run.only.case(&case.name())).map(Series::of).collect();
        let available = available_memory().unwrap_or(u64::MAX);
        for one in series.iter_mut().filter(|one| one.of.memory() > available) {
            let (case, [needs, has]) = (one.of, [one.of.memory(), available].map(|of| of >> 20));
            run.report.notes.push(format!(
                "{case} was not measured: it needs {needs} MiB of memory, and {has} MiB are \
                available"
            ));
            one.leave();
        }
        // A run of minutes is not repeated.
        let large = series.iter_mut().filter(|one| one.of.hosts() > Case::LARGE);
        large.for_each(|one| one.most = one.most.min(1));
        let rounds = if run.quick { 1 } else { 3 };
        let say = |round, case: &Case| Said {
            what: format!("round {round} of {rounds}"),
            detail: case.name(),
            fault: case.name(),
        };
        let measure = |run: &mut Run<'_>, &mut case: &mut Case| turn(case, run).map(Some);
        run.rounds(&Rounds::count(rounds, 0..100), &mut series, say, measure)?;
        let measured = series.iter().filter(|one| !one.turns.is_empty());
        run.report.records.extend(measured.map(|one| recorded(one.of, &one.turns)));
        Ok(())
    }

    fn tables(report: &Report) -> Vec<Table> {
        table::tables(report)
    }
}

/// Runs a child, and returns the cost of its run.
fn turn(case: Case, run: &Run<'_>) -> Result<Growth, ChildError> {
    let mut command = Command::new(run.exe);
    // Without a backtrace the reason is the last line; the harness shows the last lines.
    command.args(["bench-links", &case.name()]).env("RUST_BACKTRACE", "0");
    let errors = run.dir.join("links.stderr");
    let started = place::on(run.cpus.first, || Process::start(command, case.name(), errors));
    let mut process: Process =
        started.map_err(|error| ChildError::Start { exe: run.exe.to_owned(), error })??;
    let line = process.line("its run", Instant::now() + PATIENCE, run.interrupted)?;
    let found: Growth = process.finding(&line, END, run.interrupted)?;
    if found.messages == case.messages() {
        Ok(found)
    } else {
        let what = format!("{} of {} messages arrived", found.messages, case.messages());
        Err(ChildError::Child { who: case.name(), what })
    }
}

/// Makes the record of a case.
fn recorded(case: Case, turns: &[Turn<Growth>]) -> Record {
    let name = case.name();
    let (placement, mode) = (Placement::OneCore, Mode::Polling);
    let label = Label { suite: Links::NAME, case: &name, system: "upcall", placement, mode };
    let rate = |turn: &Turn<Growth>| Turn {
        found: Throughput { calls: turn.found.messages, elapsed_ns: turn.found.cpu_ns },
        lines: turn.lines,
    };
    let over = |figure: fn(&Growth) -> u64| {
        median(&turns.iter().map(|turn| figure(&turn.found) as f64).collect::<Vec<_>>())
    };
    let grown_kib = over(|growth| growth.peak_kib - growth.base_kib);
    Record {
        peak_kib: Some(over(|growth| growth.peak_kib) as u64),
        bytes_each: Some((grown_kib * 1024.0 / case.links() as f64).round()),
        ..label.throughput(1, &turns.iter().map(rate).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_time_and_memory() {
        let turn = |cpu_ns, peak_kib| Turn {
            found: Growth { messages: 400, cpu_ns, base_kib: 1000, peak_kib },
            lines: (100.0, 100.0),
        };
        let case: Case = "hosts-10".parse().unwrap();
        let record =
            recorded(case, &[turn(4_000_000, 1100), turn(8_000_000, 1300), turn(6_000_000, 1200)]);
        assert_eq!((case.hosts(), case.links(), case.messages()), (10, 20, 400));
        assert_eq!((record.p50_ns, record.per_s, record.samples), (15_000.0, 66_666.7, 1200));
        assert_eq!((record.peak_kib, record.bytes_each), (Some(1200), Some(10_240.0)));
        assert!("hosts-11".parse::<Case>().unwrap_err().contains("hosts-100000"));
    }
}
