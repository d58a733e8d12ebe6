//! The suite `urpc`: the experiments of URPC (Bershad et al., TOCS 1991), section 4, on this
//! machine: the parts of a call (Table II), and latency and throughput of the null call by the
//! number of calling threads (Figures 3 and 4).
//!
//! # The figures
//! A client with C virtual processors calls a server with S from T user-level threads
//! ([`config::Config`], [`case::THREADS`]). Two systems:
//!
//! * `upcall`: pacing and placement are the defaults, as users have them. Client and server may use
//!   all C + S processors of the configuration. With S = 0 these are the client's, and the server
//!   takes one from it when it has work.
//! * `upcall-polling`, where S is not 0: the paper's setting. Each virtual processor has a
//!   processor of its own, and polls continuously while idle.
//!
//! Beside them are the machine's limits, one call at a time: for (1,1) `limit`, a bare line of
//! memory between the two processors; for (1,0) the bare hand-offs of one processor, `limit-futex`,
//! `limit-eventfd`, `limit-pipe`, `limit-socket`, the best of which is also `limit`.
//!
//! Configurations and numbers of threads take turns, round by round, and the cache line is probed
//! between turns. In a round, each configuration has a new server and client, which then make calls
//! by all the numbers of threads, so that compared measurements are within a second, and there are
//! many rounds. The figures are medians over the rounds. If the host moves the processors in
//! between, only turns of one placement count where two processors are compared.
//!
//! # The parts
//! See [`case::Part`]. Each turn is a process of its own, confined to the first processor.

pub mod case;
pub mod child;
pub mod config;
mod contender;
mod pair;
mod table;

use std::time::Duration;

use self::case::{Part, THREADS, is_tried, null};
use self::child::{Calls, Waits};
use self::config::Config;
use self::contender::Contender;
use crate::case::{Case, Mode, Placement};
use crate::error::RunError;
use crate::pair as calls_pair;
use crate::peers::NoPeer;
use crate::process::ChildError;
use crate::record::{self, Label, Record, Turn};
use crate::report::Report;
use crate::rpc::calls_in;
use crate::run::{Rounds, Run, Said, Series};
use crate::stats::{Summary, median};
use crate::suite::{Offer, Only, Suite};
use crate::table::Table;

/// Durations of a run.
struct Plan {
    /// Approximate time of the calls of the figures.
    figures: Duration,
    /// Duration of each of the two measurements in one turn.
    turn: Duration,
    most_rounds: usize,
    /// Number of samples of a part in one turn, and of turns.
    samples: usize,
    part_rounds: usize,
}

impl Plan {
    fn of(quick: bool) -> Plan {
        let ms = Duration::from_millis;
        if quick {
            Plan { figures: ms(4_000), turn: ms(5), most_rounds: 2, samples: 200, part_rounds: 2 }
        } else {
            Plan {
                figures: ms(45_000),
                turn: ms(15),
                most_rounds: 25,
                samples: 2_000,
                part_rounds: 7,
            }
        }
    }
}

/// The suite.
#[derive(Debug, Clone, Default)]
pub struct Urpc {
    /// Configurations of the calls; all if empty. If configurations are selected but no cases, the
    /// parts of a call are not measured.
    pub configs: Vec<Config>,
}

/// Takes about a minute. Keeps as many processors busy as the largest configuration has.
impl Suite for Urpc {
    const NAME: &'static str = "urpc";
    const OFFERS: &'static [Offer] = &[
        Offer::Case("Only this case, for example `null-t2` or `dispatch-server`; may be repeated"),
        Offer::Plot(
            "Draw latency and throughput by the number of threads into this folder, as SVG files",
        ),
    ];
    const TABLES: &'static [&'static str] = &table::TABLES;
    type Peer = NoPeer;

    fn cases(&self) -> Vec<String> {
        let parts = Part::ALL.iter().map(|part| part.name().to_owned());
        THREADS.into_iter().map(null).chain(parts).collect()
    }

    fn measure(&self, _: Vec<NoPeer>, run: &mut Run<'_>) -> Result<(), RunError> {
        let plan = Plan::of(run.quick);
        figures(&plan, self.points(run), run)?;
        let parts = Part::ALL.into_iter().filter(|part| self.has_part(*part, run.only));
        self::parts(&plan, parts.map(Series::of).collect(), run)?;
        record::name_best_limits(&mut run.report.records);
        Ok(())
    }

    fn tables(report: &Report) -> Vec<Table> {
        table::tables(report)
    }
}

impl Urpc {
    fn has_part(&self, part: Part, only: &Only) -> bool {
        only.case(part.name()) && (!only.cases.is_empty() || self.configs.is_empty())
    }

    /// Returns the points in the order of their turns. Notes the configurations for which there are
    /// too few processors.
    fn points(&self, run: &mut Run<'_>) -> Vec<Series<Point, Calls>> {
        let only = run.only;
        let threads: Vec<usize> =
            THREADS.into_iter().filter(|&threads| only.case(&null(threads))).collect();
        let wanted = |config: &Config| {
            !threads.is_empty() && (self.configs.is_empty() || self.configs.contains(config))
        };
        let (configs, absent): (Vec<_>, Vec<_>) = Config::ALL
            .into_iter()
            .filter(wanted)
            .partition(|config| config.place(&run.allowed).is_some());
        let count = run.allowed.len();
        run.report.notes.extend(absent.into_iter().map(|config| {
            let needed = config.processors();
            format!(
                "C,S = {config} was not run: it takes {needed} processors, and this process \
                may use {count}"
            )
        }));
        let mut points: Vec<Point> = Vec::new();
        for config in configs {
            let tried = threads.iter().filter(|&&threads| is_tried(threads, config));
            points.extend(tried.flat_map(|&threads| {
                let all = Contender::of(config, threads);
                all.map(move |contender| Point { config, threads, contender })
            }));
        }
        // The sort is stable: points with the same server are adjacent, in the order of T.
        points.sort_by_key(|point| (point.config, point.contender.name()));
        points.into_iter().map(Series::of).collect()
    }
}

/// A point of the figures.
struct Point {
    config: Config,
    threads: usize,
    contender: Contender,
}

/// The pair that is running.
type Standing<'a> = Option<(Config, Contender, pair::Pair<'a>)>;

/// Measures every point in turn, round by round.
fn figures<'a>(
    plan: &Plan,
    mut points: Vec<Series<Point, Calls>>,
    run: &mut Run<'a>,
) -> Result<(), RunError> {
    let mut standing: Standing<'a> = None;
    let say = |round, point: &Point| {
        let (name, config) = (null(point.threads), point.config);
        Said {
            what: format!("round {round}"),
            detail: format!("C,S = {config} {name} {}", point.contender.name()),
            fault: format!("C,S = {config}, {name}"),
        }
    };
    let turn = |run: &mut Run<'a>, point: &mut Point| {
        let found = turn(plan, point, &mut standing, run);
        if found.is_err() {
            standing = None;
        }
        found.map(Some)
    };
    let rounds = Rounds { most: plan.most_rounds, time: plan.figures, part: 0..90 };
    if run.rounds(&rounds, &mut points, say, turn)? == 1 {
        run.report.notes.push(
            "there was time for one round only: the figures are of one turn \
            each, not medians of several"
                .into(),
        );
    }
    // A killed pair would leave its server's names behind.
    let ended = standing.map_or(Ok(()), |(.., pair)| pair.end());
    run.unless_failed("", ended)?;
    let two = points.iter_mut().filter(|point| point.of.config.servers > 0);
    run.leave_like("with processors of the server's own", two);
    let measured = points.iter().filter(|point| !point.turns.is_empty());
    run.report.records.extend(measured.map(recorded));
    Ok(())
}

fn turn<'a>(
    plan: &Plan,
    point: &Point,
    standing: &mut Standing<'a>,
    run: &mut Run<'a>,
) -> Result<Calls, ChildError> {
    let (exe, dir) = (run.exe, run.folder());
    let Some((clients, servers)) = point.config.place(&run.allowed) else {
        unreachable!("a configuration without processors has no points");
    };
    let before = standing
        .take_if(|(config, contender, _)| (*config, *contender) != (point.config, point.contender));
    if let Some((.., pair)) = before {
        pair.end()?;
    }
    match (standing.as_mut(), point.contender) {
        (Some((.., pair)), _) => pair.calls(point.threads, plan.turn),
        (None, Contender::Limit(system)) => {
            let (placement, mode) = setting(point.config);
            let (server, clients) = (&servers[..1], &[&clients[..1]]);
            let spec = calls_pair::Spec { exe, system, placement, mode, server, clients, dir };
            limit(plan, calls_pair::Pair::start(&spec, run.interrupted)?)
        }
        (None, Contender::Upcall(waits)) => {
            let cpus = match waits {
                Waits::Polling => (clients.to_vec(), servers.to_vec()),
                Waits::Default => {
                    let all = &run.allowed[..point.config.processors()];
                    (all.to_vec(), all.to_vec())
                }
            };
            let spec = pair::Spec { exe, config: point.config, waits, cpus, dir };
            let mut pair = pair::Pair::start(&spec, run.interrupted)?;
            let found = pair.calls(point.threads, plan.turn);
            *standing = Some((point.config, point.contender, pair));
            found
        }
    }
}

/// Measures a limit of the machine, one call at a time, as in the suite `rpc`.
fn limit(plan: &Plan, mut pair: calls_pair::Pair<'_>) -> Result<Calls, ChildError> {
    let most = 2 * plan.turn;
    let first = pair.latency(Case::Null, 50, most)?.mean_ns;
    let latency = pair.latency(Case::Null, calls_in(2 * plan.turn, first, 50, 300_000), most)?;
    pair.end()?;
    Ok(Calls { calls: latency.count, per_s: 1e9 / latency.mean_ns, latency })
}

/// Measures the parts of a call in turn, round by round.
fn parts(
    plan: &Plan,
    mut parts: Vec<Series<Part, Summary>>,
    run: &mut Run<'_>,
) -> Result<(), RunError> {
    let errors = run.dir.join("stderr");
    let say = |round, part: &Part| Said {
        what: part.name().to_owned(),
        detail: format!("round {round}"),
        fault: part.to_string(),
    };
    let turn = |run: &mut Run<'_>, part: &mut Part| {
        let (cpu, interrupted) = (run.cpus.first, run.interrupted);
        pair::part(run.exe, *part, plan.samples, cpu, &errors, interrupted).map(Some)
    };
    run.rounds(&Rounds::count(plan.part_rounds, 90..100), &mut parts, say, turn)?;
    let label = |part: Part| label(part.name(), "upcall", (Placement::OneCore, Mode::Polling));
    let measured = parts.iter().filter(|part| !part.turns.is_empty());
    run.report.records.extend(measured.map(|part| label(part.of).latency(&part.turns)));
    Ok(())
}

fn label<'a>(case: &'a str, system: &'a str, (placement, mode): (Placement, Mode)) -> Label<'a> {
    Label { suite: Urpc::NAME, case, system, placement, mode }
}

/// Returns the placement and mode of a configuration's records.
fn setting(config: Config) -> (Placement, Mode) {
    match config.servers {
        0 => (Placement::OneCore, Mode::Parked),
        _ => (Placement::TwoCores, Mode::Polling),
    }
}

fn recorded(Series { of: point, turns, .. }: &Series<Point, Calls>) -> Record {
    let latency: Vec<_> =
        turns.iter().map(|turn| Turn { found: turn.found.latency, lines: turn.lines }).collect();
    let per_s = median(&turns.iter().map(|turn| turn.found.per_s).collect::<Vec<_>>());
    let case = null(point.threads);
    Record {
        config: Some(point.config.to_string()),
        per_s: (per_s * 10.0).round() / 10.0,
        ..label(&case, point.contender.name(), setting(point.config)).latency(&latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_measured_when_they_are_meant() {
        let has = |cases: &[&str], configs: &[&str]| {
            let cases = cases.iter().map(|&name| name.to_owned()).collect();
            let configs = configs.iter().map(|config| config.parse().unwrap()).collect();
            Urpc { configs }.has_part(Part::SendClient, &Only { cases, ..Only::default() })
        };
        assert!(has(&[], &[]) && !has(&[], &["1,1"]));
        assert!(has(&["send-client"], &["1,1"]) && !has(&["null-t1"], &[]));
    }
}
