//! The suite `lrpc`: the experiments of LRPC (Bershad et al., TOCS 1990), section 4, on this
//! machine.
//!
//! # Table IV
//! Null, Add, BigIn and BigInOut, in the paper's two ways and by its rivals of today:
//!
//! * *LRPC/MP*, `two-cores`: the server polls on a processor of its own, so that a call takes no
//!   switch. `limit` beside it is a bare line of memory.
//! * *LRPC*, `one-core`: client and server have one processor together, with default pacing, as
//!   users have them: each call takes the kernel, two switches. `limit` beside it is the least that
//!   the machine permits, of which Table V has the parts: two processes that do nothing but yield
//!   to each other, with the same arguments in bare shared memory.
//! * The peers, on one processor, as in the suite [`rpc`](crate::rpc) with parked servers; iceoryx2
//!   also polls and yields in [`rpc`](crate::rpc), where it comes nearer.
//!
//! One turn of a system is one server and one client, who make all four calls, so that what is
//! compared of one system happens within a tenth of a second. All systems take turns, round by
//! round.
//!
//! # Table V
//! `procedure-call` and `kernel-crossing` (an empty system call) are measured beside each round;
//! two switches are what is left of `limit`'s Null without two crossings. The overhead is divided
//! by the way there and the way back (`null-there`, `null-back`): the procedure reads the clock.
//! The paper divides by stubs and kernel; there is none of ours in the kernel.
//!
//! # Figure 2
//! `null-p1`, `null-p2` …: calls a second while so many processors call at once, each by hand-off
//! on itself, as domain caching was disabled for the paper's: to one server (`config` is
//! `one-server`), to one server each (`pairs`).

//!
//! # Domain caching
//! Section 3.4 of the paper has processors that idle in the domains which are called most.
//! `null-s4-even` and `null-s4-mostly`: one client calls four servers, as often each, or 13 of 16
//! times the same; all on one processor (`no-spare`), or with a second one for the servers to poll
//! on (`one-spare`).

mod paper;
mod table;

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::case::{Mode, Placement};
use crate::child::{Halves, Throughput};
use crate::contender::{Contender, Program, UPCALL};
pub use crate::error::RunError;
use crate::interrupted::Interrupted;
use crate::like::Like;
use crate::line;
pub use crate::lrpc::paper::{
    FIGURE_2, MINIMUM_US, OVERHEAD_US, SRC_RPC_MOST, TESTS, TableIv, table_iv,
};
use crate::output;
use crate::pair::{Pair, Spec};
use crate::place::{self, Cpus};
use crate::process::ChildError;
use crate::programs::Programs;
use crate::progress::Progress;
use crate::record::{Label, Record, Turn};
pub use crate::report::Report;
use crate::report::busy;
pub use crate::rpc::Peers;
use crate::rpc::calls_in;
use crate::scratch::Scratch;
use crate::stats::{Clock, Summary};
use crate::threads::child::next;

/// The name of Upcall with default pacing as a system of `bench-child`.
pub const DEFAULT: &str = "upcall-default";

/// The same with one virtual processor, however many processors it may run on.
pub const ONE: &str = "upcall-one";

/// The parts of the minimum that are measured by themselves.
pub const PARTS: [&str; 2] = ["procedure-call", "kernel-crossing"];

/// The halves of a null call.
pub const HALVES: [&str; 2] = ["null-there", "null-back"];

/// How clients and servers of Figure 2 are joined.
pub const CONFIGS: [&str; 2] = ["one-server", "pairs"];

/// Whether the servers of a mix have a processor besides the client's.
pub const SPARES: [&str; 2] = ["no-spare", "one-spare"];

/// Servers of a mix.
const SERVERS: usize = 4;

/// Mixes: the names of the cases, and how many of 16 calls are to the first server before all have
/// their turns.
pub const MIXES: [(&str, usize); 2] = [("null-s4-even", 0), ("null-s4-mostly", 12)];

/// The name of the case of `processors` that call at once.
pub fn null(processors: usize) -> String {
    format!("null-p{processors}")
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program that answers to `bench-child` for Upcall, the limits and `unix-socket`:
    /// normally this one.
    pub exe: PathBuf,
    /// Who else takes part.
    pub peers: Peers,
    /// Where the records go as a JSON array; `-` is standard output, which then has no table.
    pub json: Option<PathBuf>,
    /// Less time: for trying out, not for numbers.
    pub quick: bool,
}

/// Times of a run.
struct Plan {
    rounds: usize,
    /// Of one case in one turn, and of warming up before.
    turn: Duration,
    warm_up: Duration,
}

impl Plan {
    fn of(options: &Options) -> Plan {
        let ms = Duration::from_millis;
        match options.quick {
            true => Plan { rounds: 2, turn: ms(8), warm_up: ms(2) },
            false => Plan { rounds: 9, turn: ms(40), warm_up: ms(8) },
        }
    }
}

/// Who makes the four calls, and where.
#[derive(Debug, Clone, Copy)]
struct Caller {
    /// In records.
    name: &'static str,
    /// For `bench-child`.
    system: &'static str,
    program: Program,
    placement: Placement,
    mode: Mode,
}

impl Caller {
    fn own(name: &'static str, system: &'static str, placement: Placement, mode: Mode) -> Caller {
        Caller { name, system, program: Program::Own, placement, mode }
    }

    fn peer(peer: &Contender) -> Caller {
        Caller {
            name: peer.name,
            system: peer.name,
            program: peer.program,
            placement: Placement::OneCore,
            mode: Mode::Parked,
        }
    }

    fn all(peers: &[Contender]) -> Vec<Caller> {
        let own = [
            Caller::own("limit", "limit", Placement::OneCore, Mode::Polling),
            Caller::own("upcall", DEFAULT, Placement::OneCore, Mode::Parked),
            Caller::own("limit", "limit", Placement::TwoCores, Mode::Polling),
            Caller::own("upcall", "upcall", Placement::TwoCores, Mode::Polling),
        ];
        own.into_iter().chain(peers.iter().map(Caller::peer)).collect()
    }

    fn label<'a>(&self, case: &'a str) -> Label<'a> {
        Label { suite: "lrpc", case, system: self.name, placement: self.placement, mode: self.mode }
    }
}

/// What one turn of a caller found.
#[derive(Debug, Clone)]
struct Tested {
    tests: Vec<Summary>,
    halves: Option<Halves>,
}

/// A caller, and what its turns have come to.
struct Tester {
    caller: Caller,
    turns: Vec<Turn<Tested>>,
    out: bool,
}

/// What is measured of a point.
#[derive(Debug, Clone, Copy)]
enum Measure {
    /// Figure 2, by so many processors.
    Processors(usize),
    /// The mix with this number.
    Mix(usize),
}

impl Measure {
    fn name(self) -> String {
        match self {
            Measure::Processors(processors) => null(processors),
            Measure::Mix(mix) => MIXES[mix].0.to_owned(),
        }
    }
}

/// A point of Figure 2, or of domain caching.
struct Point {
    caller: Caller,
    config: &'static str,
    measure: Measure,
    turns: Vec<Turn<Throughput>>,
    out: bool,
}

/// Runs the suite, shows progress on standard error, prints tables on standard output and writes
/// the records where `options` say. Takes about half a minute, and some seconds more for each peer;
/// busies all processors that it may use. Leaves no process and no file behind.
///
/// # Errors
/// [`RunError`]. What fails is in the report's `failures` and does not stop the rest.
pub fn run(options: &Options) -> Result<Report, RunError> {
    let cpus = Cpus::allowed().map_err(RunError::System)?;
    let allowed = place::allowed().map_err(RunError::System)?;
    let mut contenders = [vec![UPCALL], options.peers.meant()].concat();
    let programs = Programs::of(&mut contenders, &options.exe)?;
    let interrupted = Interrupted::watch().map_err(RunError::System)?;
    let scratch = Scratch::make()?;
    let note = busy();
    let mut runner = Runner {
        cpus,
        allowed,
        programs: &programs,
        scratch: &scratch,
        interrupted: &interrupted.flag,
        plan: Plan::of(options),
        report: Report {
            notes: programs.notes.clone(),
            failures: programs.failures.clone(),
            ..Report::default()
        },
        line_ns: line::round_trip_ns(&cpus),
        pairs: 0,
        progress: Progress::new(),
    };
    runner.suite(&contenders[1..])?;
    runner.progress.clear();
    let mut report = runner.report;
    report.notes.extend(note);
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
    programs: &'a Programs,
    scratch: &'a Scratch,
    interrupted: &'a AtomicBool,
    plan: Plan,
    report: Report,
    /// The latest probe.
    line_ns: f64,
    pairs: u32,
    progress: Progress,
}

impl<'a> Runner<'a> {
    fn suite(&mut self, peers: &[Contender]) -> Result<(), RunError> {
        let two = self.cpus.second.is_some();
        if !two {
            self.report.notes.push(
                "this process may use one processor only: nothing of two-cores was measured"
                    .to_owned(),
            );
        }
        let callers = Caller::all(peers)
            .into_iter()
            .filter(|caller| two || caller.placement == Placement::OneCore);
        let mut testers: Vec<_> =
            callers.map(|caller| Tester { caller, turns: Vec::new(), out: false }).collect();
        let mut parts: [Vec<Turn<Summary>>; 2] = Default::default();
        let mut points = self.points(peers);
        for round in 0..self.plan.rounds {
            self.progress.percent = (100 * round / self.plan.rounds) as u32;
            let say = format!("round {} of {}", round + 1, self.plan.rounds);
            for (turns, found) in
                parts.iter_mut().zip(minimal(self.cpus.first).map_err(RunError::System)?)
            {
                turns.push(Turn { found, lines: (self.line_ns, self.line_ns) });
            }
            for tester in testers.iter_mut().filter(|tester| !tester.out) {
                let name = format!("{}, {}", tester.caller.name, tester.caller.placement);
                match self.turn(&say, &name, |runner| runner.tests(&tester.caller))? {
                    Some(turn) => tester.turns.push(turn),
                    None => tester.out = true,
                }
            }
            for point in points.iter_mut().filter(|point| !point.out) {
                let name =
                    format!("{}, {}, {}", point.measure.name(), point.caller.name, point.config);
                let measure = |runner: &mut Self| match point.measure {
                    Measure::Processors(processors) => runner.crowd(point, processors),
                    Measure::Mix(mix) => runner.mix(point, MIXES[mix].1),
                };
                match self.turn(&say, &name, measure)? {
                    Some(turn) => point.turns.push(turn),
                    None => point.out = true,
                }
            }
        }
        self.leave_like(&mut testers);
        self.record(&testers, &parts, &points);
        Ok(())
    }

    /// A turn of what is called `name`, with the cache line probed before and after; `None` if it
    /// failed, which the report says.
    fn turn<T>(
        &mut self,
        round: &str,
        name: &str,
        measure: impl FnOnce(&mut Self) -> Result<T, ChildError>,
    ) -> Result<Option<Turn<T>>, RunError> {
        self.progress.say(round, name);
        let before = self.line_ns;
        let found = measure(self);
        self.line_ns = line::round_trip_ns(&self.cpus);
        match found {
            Ok(found) => Ok(Some(Turn { found, lines: (before, self.line_ns) })),
            Err(ChildError::Interrupted) => Err(RunError::Interrupted),
            Err(error) => {
                self.report.failures.push(format!("{name}: {error}"));
                Ok(None)
            }
        }
    }

    fn pair(
        &mut self,
        caller: &Caller,
        servers: &[usize],
        clients: &[usize],
    ) -> Result<Pair<'a>, ChildError> {
        self.pairs += 1;
        let spec = Spec {
            exe: self.programs.path(caller.program),
            system: caller.system,
            placement: caller.placement,
            mode: caller.mode,
            cpus: (servers, clients),
            dir: self.scratch.dir.join(self.pairs.to_string()),
        };
        Pair::start(&spec, self.interrupted)
    }

    /// The four tests by one pair, and the halves of a call.
    fn tests(&mut self, caller: &Caller) -> Result<Tested, ChildError> {
        let client = self.cpus.first;
        let server =
            self.cpus.second.filter(|_| caller.placement == Placement::TwoCores).unwrap_or(client);
        let mut pair = self.pair(caller, &[server], &[client])?;
        let most = 2 * self.plan.turn;
        let mut tests = Vec::new();
        let mut calls = 0;
        for test in TESTS {
            let first = pair.latency(test, 10, most)?.mean_ns;
            let warm =
                pair.latency(test, calls_in(self.plan.warm_up, first, 4, 2_000), most)?.mean_ns;
            calls = calls_in(self.plan.turn, warm, 50, 300_000);
            tests.push(pair.latency(test, calls, most)?);
        }
        let halves =
            if caller.placement == Placement::OneCore { pair.halves(calls)? } else { None };
        pair.end()?;
        Ok(Tested { tests, halves })
    }

    /// Who calls from how many processors: all of one config, then the other.
    fn points(&self, peers: &[Contender]) -> Vec<Point> {
        let mut points = Vec::new();
        let one_core = |caller: &Caller| caller.placement == Placement::OneCore;
        // Of the peers the one that needs nothing but the kernel.
        let taking_part = |caller: &Caller| {
            one_core(caller) && ["limit", "upcall", "unix-socket"].contains(&caller.name)
        };
        for caller in Caller::all(peers).into_iter().filter(taking_part) {
            for config in
                CONFIGS.into_iter().filter(|config| *config == "pairs" || caller.name == "upcall")
            {
                for processors in 1..=self.allowed.len() {
                    points.push(Point {
                        caller,
                        config,
                        measure: Measure::Processors(processors),
                        turns: Vec::new(),
                        out: false,
                    });
                }
            }
            let spares = SPARES.into_iter().take(if caller.name == "upcall" {
                self.allowed.len().min(2)
            } else {
                0
            });
            for config in spares {
                let mixes = (0..MIXES.len()).map(Measure::Mix);
                let caller = Caller { system: ONE, ..caller };
                points.extend(mixes.map(|measure| Point {
                    caller,
                    config,
                    measure,
                    turns: Vec::new(),
                    out: false,
                }));
            }
        }
        points
    }

    fn mix(&mut self, point: &Point, first: usize) -> Result<Throughput, ChildError> {
        let cpus = self.allowed[..if point.config == SPARES[1] { 2 } else { 1 }].to_vec();
        let mut pairs = Vec::new();
        for _ in 0..SERVERS {
            pairs.push(self.pair(&point.caller, &cpus, &cpus[..1])?);
        }
        // Servers find their places.
        Pair::mix(&mut pairs, first, 4 * self.plan.turn)?;
        let found = Pair::mix(&mut pairs, first, 2 * self.plan.turn)?;
        pairs.into_iter().try_for_each(Pair::end)?;
        Ok(found.unwrap_or(Throughput { calls: 0, elapsed_ns: 1 }))
    }

    fn crowd(&mut self, point: &Point, processors: usize) -> Result<Throughput, ChildError> {
        let cpus = self.allowed[..processors].to_vec();
        let mut pairs = Vec::new();
        if point.config == "pairs" {
            for cpu in cpus {
                pairs.push(self.pair(&point.caller, &[cpu], &[cpu])?);
            }
        } else {
            pairs.push(self.pair(&point.caller, &cpus, &cpus)?);
        }
        Pair::together(&mut pairs, self.plan.warm_up)?;
        let found = Pair::together(&mut pairs, self.plan.turn)?.unwrap_or_default();
        pairs.into_iter().try_for_each(Pair::end)?;
        // As if all had called for the same time.
        let per_s: f64 =
            found.iter().map(|each| each.calls as f64 / each.elapsed_ns.max(1) as f64).sum();
        let calls = found.iter().map(|each| each.calls).sum::<u64>();
        Ok(Throughput { calls, elapsed_ns: (calls as f64 / per_s.max(f64::MIN_POSITIVE)) as u64 })
    }

    /// Leaves the turns that may be compared, where two processors are, if the host moved them
    /// meanwhile; says so in the report.
    fn leave_like(&mut self, testers: &mut [Tester]) {
        let two = |tester: &&mut Tester| tester.caller.placement == Placement::TwoCores;
        let probes: Vec<Vec<_>> = testers
            .iter_mut()
            .filter(two)
            .map(|tester| tester.turns.iter().map(|turn| turn.lines).collect())
            .collect();
        let like = Like::of(&probes);
        let all = probes.iter().flatten().count();
        testers
            .iter_mut()
            .filter(two)
            .for_each(|tester| tester.turns.retain(|turn| like.has(turn.lines)));
        let left = testers.iter_mut().filter(two).map(|tester| tester.turns.len()).sum::<usize>();
        if left < all || like.moved() {
            let (least, most) = Like::span(probes.iter().flatten());
            self.report.notes.push(format!(
                "on two processors: the line took {least:.0} to {most:.0} ns; only {left} of {all} turns, beside lines of one placement, count"
            ));
        }
    }

    fn record(&mut self, testers: &[Tester], parts: &[Vec<Turn<Summary>>; 2], points: &[Point]) {
        let records = &mut self.report.records;
        let bare = Caller::own("limit", "limit", Placement::OneCore, Mode::Polling);
        for (part, turns) in PARTS.into_iter().zip(parts) {
            records.push(bare.label(part).latency(turns));
        }
        for Tester { caller, turns, .. } in testers.iter().filter(|tester| !tester.turns.is_empty())
        {
            for (at, test) in TESTS.into_iter().enumerate() {
                let turns: Vec<_> = turns
                    .iter()
                    .map(|turn| Turn { found: turn.found.tests[at], lines: turn.lines })
                    .collect();
                records.push(caller.label(test.name()).latency(&turns));
            }
            for (half, of) in HALVES
                .into_iter()
                .zip([|halves: Halves| halves.there, |halves: Halves| halves.back])
            {
                let turns = turns.iter().filter_map(|turn| {
                    Some(Turn { found: of(turn.found.halves?), lines: turn.lines })
                });
                let turns: Vec<_> = turns.collect();
                if !turns.is_empty() {
                    records.push(caller.label(half).latency(&turns));
                }
            }
        }
        for Point { caller, config, measure, turns, .. } in
            points.iter().filter(|point| !point.turns.is_empty())
        {
            let callers =
                if let Measure::Processors(processors) = measure { *processors } else { 1 };
            let record = caller.label(&measure.name()).throughput(callers, turns);
            records.push(Record { config: Some((*config).to_owned()), ..record });
        }
    }
}

/// A procedure call and an empty system call, on processor `cpu`, in nanoseconds.
fn minimal(cpu: usize) -> std::io::Result<[Summary; 2]> {
    const SAMPLES: usize = 200;
    const EACH: usize = 64;
    place::on(cpu, || {
        let clock = Clock::calibrated();
        let mut count = 0;
        let batch = |body: &mut dyn FnMut()| {
            let mut ticks = vec![1; SAMPLES];
            let Ok(()) = clock.time_each(&mut ticks, || {
                body();
                Ok::<(), Infallible>(())
            });
            Summary::of_nanoseconds(
                ticks.into_iter().map(|ticks| clock.ns(ticks) / EACH as f64).collect(),
            )
        };
        let calls = batch(&mut || (0..EACH).for_each(|_| count = next(count)));
        let crossings = batch(&mut || {
            (0..EACH).for_each(|_| {
                std::hint::black_box(rustix::process::getppid());
            });
        });
        [calls, crossings]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::PEERS;

    #[test]
    fn a_crossing_takes_longer_than_a_call() {
        let [call, crossing] = minimal(Cpus::allowed().unwrap().first).unwrap();
        assert!(0.0 < call.p50_ns && call.p50_ns < crossing.p50_ns, "{call:?} {crossing:?}");
    }

    #[test]
    fn ours_and_the_limit_are_beside_every_peer() {
        let names = |peers: &[Contender]| {
            let all = Caller::all(peers)
                .into_iter()
                .map(|caller| format!("{} {}", caller.name, caller.placement));
            all.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(
            names(&[]),
            "limit one-core, upcall one-core, limit two-cores, upcall two-cores"
        );
        assert!(
            names(&PEERS)
                .ends_with("grpc one-core, grpc-c++ one-core, zeromq one-core, tarpc one-core")
        );
    }
}
