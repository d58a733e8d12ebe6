//! The suite `hosts`: calls and messages between two hosts, which are network namespaces on one
//! machine.
//!
//! For calls, each system has a server on one host and a client on the other, two processes that
//! live as long as the run, pinned to one processor each ([`calls`]). They take turns, A B C A B C
//! …, and the cache line is probed between turns. The figures are medians over the rounds, of turns
//! of one placement of the processors only (`like`). Beside them is the processor time of both
//! processes, and of those that they start. PVM's tasks and Open MPI's processes, which poll, are
//! started for each turn ([`tasks`]).

mod calls;
pub mod case;
pub mod child;
mod network;
mod running;
mod table;
mod tasks;
mod there;

use std::io;
use std::path::{Path, PathBuf};

use self::calls::{Calls, Found};
use self::case::{Case, Contender, LIMIT, UPCALL};
use self::network::{ADDRESSES, Network, Side, identity};
use self::tasks::Tasks;
use self::there::There;
use crate::case::Placement;
use crate::child::Outcome;
use crate::error::RunError;
use crate::record::{Label, Record, Turn, tenths};
use crate::report::Report;
use crate::run::{Rounds, Run, Said, Series};
use crate::stats::{Summary, median};
use crate::suite::{Offer, Suite};
use crate::table::Table;

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

/// A system in a case.
type Measured = Series<(Contender, Case), Found>;

/// Takes about seven minutes with all peers. Keeps two processors busy.
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
        let mut calls = Calls::of(of_calls, &network, run)?;
        let folders = [Side::Client, Side::Server].map(|side| identity(run.dir, side));
        (self.introduce)(&[&folders[0], &folders[1]], &ADDRESSES)
            .map_err(|error| RunError::System(io::Error::other(error)))?;
        let there = There::write(&network, run)?;
        calls.start(run)?;
        let of_tasks: Vec<Contender> =
            contenders.iter().copied().filter(|one| with(true, one)).collect();
        let mut tasks = Tasks::of(&of_tasks, &self.upcall, &network, &there, run)?;
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
            None => calls.take(contender, case, run),
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

fn record(Series { of: (contender, case), turns, .. }: &Measured) -> Record {
    let label = Label {
        suite: Hosts::NAME,
        case: case.name(),
        system: contender.name,
        placement: Placement::TwoCores,
        mode: contender.mode(),
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
