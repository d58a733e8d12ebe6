//! The suite `urpc`: the experiments of URPC (Bershad et al., TOCS 1991), section 4, on this
//! machine: the parts of a call (Table II), and latency and throughput of the null call by the
//! number of threads that call (Figures 3 and 4).
//!
//! # The figures
//! A client with C virtual processors calls a server with S from T user-level threads
//! ([`config::Config`], [`case::THREADS`]). Two systems:
//!
//! * `upcall`: pacing and placement are the defaults, as users have them. Client and server may use
//!   all C + S processors of the configuration. With S = 0 these are the client's: the server, when
//!   it has something to do, takes one from it.
//! * `upcall-polling`, where S is not 0: the paper's setting. Each virtual processor has a
//!   processor of its own, and looks for messages all the time while idle.
//!
//! Beside them the machine's limits, one call at a time: for (1,1) `limit`, a bare line of memory
//! between the two processors; for (1,0) the bare hand-offs of one processor, `limit-futex`,
//! `limit-eventfd`, `limit-pipe`, `limit-socket`, the best of which is `limit` too.
//!
//! Configurations and numbers of threads take turns, round by round, and the cache line is probed
//! between turns. In a round, each configuration has a fresh server and client, which then make
//! calls by all the numbers of threads: so those that are compared follow each other within a
//! second, and there are many rounds. What counts are medians over the rounds. If the host moves
//! the processors meanwhile, only turns of one placement count where two processors are compared.
//!
//! # The parts
//! See [`case::Part`]. Each turn is a process of its own, confined to the first processor.

pub mod case;
pub mod child;
pub mod config;
mod contender;
mod options;
mod pair;
mod table;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use self::case::{Part, THREADS, is_tried, null};
use self::child::{Calls, Waits};
use self::config::Config;
use self::contender::Contender;
pub use self::options::{Only, Options};
use crate::case::{Case, Mode, Placement};
pub use crate::error::RunError;
use crate::interrupted::Interrupted;
use crate::like::Like;
use crate::line;
use crate::output;
use crate::pair as calls_pair;
use crate::place::{self, Cpus};
use crate::process::ChildError;
use crate::progress::Progress;
use crate::record::{self, Label, Record, Turn};
pub use crate::report::Report;
use crate::report::busy;
use crate::rpc::calls_in;
use crate::scratch::Scratch;
use crate::stats::{Summary, median};

/// Times of a run.
struct Plan {
    /// For the calls of the figures, about.
    figures: Duration,
    /// Of each of the two measurements in one turn.
    turn: Duration,
    most_rounds: usize,
    /// Samples of a part in one turn, and turns.
    samples: usize,
    part_rounds: usize,
}

impl Plan {
    fn of(options: &Options) -> Plan {
        let ms = Duration::from_millis;
        if options.quick {
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

/// Runs the suite, shows progress on standard error, prints tables on standard output and writes
/// the records where `options` say. Takes about a minute; busies as many processors as the largest
/// configuration has. Leaves no process and no file behind.
///
/// # Errors
/// [`RunError`]. What fails is in the report's `failures` and does not stop the rest.
pub fn run(options: &Options) -> Result<Report, RunError> {
    options.only.check()?;
    let cpus = Cpus::allowed().map_err(RunError::System)?;
    let allowed = place::allowed().map_err(RunError::System)?;
    let interrupted = Interrupted::watch().map_err(RunError::System)?;
    let scratch = Scratch::make()?;
    let mut runner = Runner {
        cpus,
        allowed,
        options,
        scratch: &scratch,
        interrupted: &interrupted.flag,
        plan: Plan::of(options),
        report: Report::default(),
        line_ns: f64::NAN,
        pairs: 0,
        standing: None,
        progress: Progress::new(),
    };
    let busy = busy();
    runner.line_ns = line::round_trip_ns(&cpus);
    runner.figures()?;
    runner.parts()?;
    runner.progress.clear();
    let mut report = runner.report;
    if report.records.is_empty() && report.failures.is_empty() && report.notes.is_empty() {
        return Err(RunError::Nothing);
    }
    report.notes.extend(busy);
    record::name_best_limits(&mut report.records);

    let json = options.json.as_deref();
    output::asides(json, &report.notes, &report.failures);
    output::table(json, |out, colour| table::print(&report, out, colour))?;
    output::records(json, &report.records)?;
    Ok(report)
}

/// A run under way.
struct Runner<'a> {
    cpus: Cpus,
    allowed: Vec<usize>,
    options: &'a Options,
    scratch: &'a Scratch,
    interrupted: &'a AtomicBool,
    plan: Plan,
    report: Report,
    /// The latest probe.
    line_ns: f64,
    pairs: u32,
    /// Who calls, and is called, at the moment.
    standing: Option<(Config, Contender, pair::Pair<'a>)>,
    progress: Progress,
}

/// A point of the figures, and what its turns have come to.
struct Point {
    config: Config,
    threads: usize,
    contender: Contender,
    turns: Vec<Turn<Calls>>,
    /// It cannot go on.
    out: bool,
}

impl<'a> Runner<'a> {
    /// Every point in turn, round by round.
    fn figures(&mut self) -> Result<(), RunError> {
        let mut points = self.points();
        let begun = Instant::now();
        let mut rounds = 0;
        while rounds < self.plan.most_rounds && points.iter().any(|point| !point.out) {
            let count = points.len();
            for (at, point) in points.iter_mut().enumerate().filter(|(_, point)| !point.out) {
                let done =
                    (rounds as f64 + at as f64 / count as f64) / self.plan.most_rounds as f64;
                let spent = begun.elapsed().as_secs_f64() / self.plan.figures.as_secs_f64();
                self.progress.percent = (90.0 * done.max(spent)).min(90.0) as u32;
                let (name, system) = (null(point.threads), point.contender.name());
                self.progress.say(
                    &format!("round {}", rounds + 1),
                    &format!("C,S = {} {name} {system}", point.config),
                );
                let before = self.line_ns;
                let found = self.turn(point);
                self.line_ns = line::round_trip_ns(&self.cpus);
                match found {
                    Ok(found) => point.turns.push(Turn { found, lines: (before, self.line_ns) }),
                    Err(ChildError::Interrupted) => return Err(RunError::Interrupted),
                    Err(error) => {
                        self.report
                            .failures
                            .push(format!("C,S = {}, {name}: {error}", point.config));
                        point.out = true;
                    }
                }
            }
            rounds += 1;
            let spent = begun.elapsed();
            if spent + spent / rounds as u32 > self.plan.figures {
                break;
            }
        }
        if rounds == 1 {
            self.report
                .notes
                .push("there was time for one round only: the figures are of one turn each, not medians of several".into());
        }
        // One that is killed leaves its server's names behind.
        if let Some((.., pair)) = self.standing.take()
            && let Err(error) = pair.end()
        {
            self.report.failures.push(error.to_string());
        }
        self.like(&mut points);
        self.report
            .records
            .extend(points.iter().filter(|point| !point.turns.is_empty()).map(recorded));
        Ok(())
    }

    /// In the order of their turns. Says which configurations there are no processors for.
    fn points(&mut self) -> Vec<Point> {
        let threads = THREADS
            .into_iter()
            .filter(|&threads| self.options.only.threads(threads))
            .collect::<Vec<_>>();
        if threads.is_empty() {
            return Vec::new();
        }
        let wanted = Config::ALL.into_iter().filter(|&config| self.options.only.config(config));
        let (configs, absent): (Vec<_>, Vec<_>) =
            wanted.partition(|config| config.place(&self.allowed).is_some());
        let count = self.allowed.len();
        self.report.notes.extend(absent.into_iter().map(|config| {
            let needed = config.processors();
            format!("C,S = {config} was not run: it takes {needed} processors, and this process may use {count}")
        }));
        let point = |config, threads, contender| Point {
            config,
            threads,
            contender,
            turns: Vec::new(),
            out: false,
        };
        let mut points: Vec<Point> = Vec::new();
        for config in configs {
            let tried = threads.iter().filter(|&&threads| is_tried(threads, config));
            points.extend(tried.flat_map(|&threads| {
                Contender::of(config, threads).map(move |who| point(config, threads, who))
            }));
        }
        // The sort is stable: who shares a server stands together, in the order of T.
        points.sort_by_key(|point| (point.config, point.contender.name()));
        points
    }

    fn turn(&mut self, point: &Point) -> Result<Calls, ChildError> {
        let Some((clients, servers)) = point.config.place(&self.allowed) else {
            unreachable!("a configuration without processors has no points");
        };
        let standing = self.standing.take_if(|(config, contender, _)| {
            (*config, *contender) != (point.config, point.contender)
        });
        if let Some((.., pair)) = standing {
            pair.end()?;
        }
        let found = match (self.standing.as_mut(), point.contender) {
            (Some((.., pair)), _) => pair.calls(point.threads, self.plan.turn),
            (None, Contender::Limit(system)) => {
                let (placement, mode) = setting(point.config);
                let (server, client, dir) = ([servers[0]], [clients[0]], self.directory());
                let cpus = (&server[..], &client[..]);
                self.limit(&calls_pair::Spec {
                    exe: &self.options.exe,
                    system,
                    placement,
                    mode,
                    cpus,
                    dir,
                })
            }
            (None, Contender::Upcall(waits)) => {
                let cpus = match waits {
                    Waits::Polling => (clients.to_vec(), servers.to_vec()),
                    Waits::Default => {
                        let all = &self.allowed[..point.config.processors()];
                        (all.to_vec(), all.to_vec())
                    }
                };
                let dir = self.directory();
                let spec =
                    pair::Spec { exe: &self.options.exe, config: point.config, waits, cpus, dir };
                let mut pair = pair::Pair::start(&spec, self.interrupted)?;
                let found = pair.calls(point.threads, self.plan.turn);
                self.standing = Some((point.config, point.contender, pair));
                found
            }
        };
        if found.is_err() {
            self.standing = None;
        }
        found
    }

    fn directory(&mut self) -> PathBuf {
        self.pairs += 1;
        self.scratch.dir.join(self.pairs.to_string())
    }

    /// One call at a time by a limit of the machine, as in the suite `rpc`.
    fn limit(&self, spec: &calls_pair::Spec<'_>) -> Result<Calls, ChildError> {
        let mut pair = calls_pair::Pair::start(spec, self.interrupted)?;
        let most = 2 * self.plan.turn;
        let first = pair.latency(Case::Null, 50, most)?.mean_ns;
        let latency =
            pair.latency(Case::Null, calls_in(2 * self.plan.turn, first, 50, 300_000), most)?;
        pair.end()?;
        Ok(Calls { calls: latency.count, per_s: 1e9 / latency.mean_ns, latency })
    }

    /// Leaves the turns that may be compared, if the host moved the processors meanwhile; says so
    /// in the report.
    fn like(&mut self, points: &mut [Point]) {
        let two = |point: &&mut Point| point.config.servers > 0;
        let probes: Vec<Vec<_>> = points
            .iter_mut()
            .filter(two)
            .map(|point| point.turns.iter().map(|turn| turn.lines).collect())
            .collect();
        let like = Like::of(&probes);
        let all = probes.iter().flatten().count();
        let (least, most) = Like::span(probes.iter().flatten());
        points
            .iter_mut()
            .filter(two)
            .for_each(|point| point.turns.retain(|turn| like.has(turn.lines)));
        let left = points
            .iter()
            .filter(|point| point.config.servers > 0)
            .flat_map(|point| &point.turns)
            .map(|turn| turn.lines);
        let left: Vec<_> = left.collect();
        if left.len() < all {
            let (from, to) = Like::span(left.iter());
            self.report.notes.push(format!(
                "with processors of the server's own: the line took {least:.0} to {most:.0} ns; only the {} of {all} turns beside {from:.0} to {to:.0} ns count",
                left.len()
            ));
        } else if like.moved() {
            self.report.notes.push(format!(
                "with processors of the server's own: the line took {least:.0} to {most:.0} ns, and not like turns are compared"
            ));
        }
    }

    /// The parts of a call in turn, round by round.
    fn parts(&mut self) -> Result<(), RunError> {
        let wanted = Part::ALL.into_iter().filter(|&part| self.options.only.part(part));
        let mut parts: Vec<(Part, Vec<Turn<Summary>>, bool)> =
            wanted.map(|part| (part, Vec::new(), false)).collect();
        let errors = self.scratch.dir.join("stderr");
        for round in 0..self.plan.part_rounds {
            for (part, turns, out) in parts.iter_mut().filter(|(.., out)| !out) {
                self.progress.percent = (90 + 10 * round / self.plan.part_rounds) as u32;
                self.progress.say(part.name(), &format!("round {}", round + 1));
                let before = self.line_ns;
                let exe = &self.options.exe;
                let found = pair::part(
                    exe,
                    *part,
                    self.plan.samples,
                    self.cpus.first,
                    &errors,
                    self.interrupted,
                );
                self.line_ns = line::round_trip_ns(&self.cpus);
                match found {
                    Ok(found) => turns.push(Turn { found, lines: (before, self.line_ns) }),
                    Err(ChildError::Interrupted) => return Err(RunError::Interrupted),
                    Err(error) => {
                        self.report.failures.push(format!("{part}: {error}"));
                        *out = true;
                    }
                }
            }
        }
        let label = |part: Part| label(part.name(), "upcall", (Placement::OneCore, Mode::Polling));
        let measured = parts.iter().filter(|(_, turns, _)| !turns.is_empty());
        self.report.records.extend(measured.map(|(part, turns, _)| label(*part).latency(turns)));
        Ok(())
    }
}

fn label<'a>(case: &'a str, system: &'a str, (placement, mode): (Placement, Mode)) -> Label<'a> {
    Label { suite: "urpc", case, system, placement, mode }
}

/// A configuration in the words of a record.
fn setting(config: Config) -> (Placement, Mode) {
    match config.servers {
        0 => (Placement::OneCore, Mode::Parked),
        _ => (Placement::TwoCores, Mode::Polling),
    }
}

fn recorded(point: &Point) -> Record {
    let latency: Vec<_> = point
        .turns
        .iter()
        .map(|turn| Turn { found: turn.found.latency, lines: turn.lines })
        .collect();
    let per_s = median(&point.turns.iter().map(|turn| turn.found.per_s).collect::<Vec<_>>());
    let record = label(&null(point.threads), point.contender.name(), setting(point.config))
        .latency(&latency);
    Record {
        config: Some(point.config.to_string()),
        per_s: (per_s * 10.0).round() / 10.0,
        ..record
    }
}
