//! The suite `lrpc`: the experiments of LRPC (Bershad et al., TOCS 1990), section 4, on this
//! machine.
//!
//! # Table IV
//! Null, Add, BigIn and BigInOut, in the paper's two settings and by today's alternatives:
//!
//! * *LRPC/MP*, `two-cores`: the server polls on a processor of its own, so that a call takes no
//!   switch. `limit` beside it is a bare line of memory.
//! * *LRPC*, `one-core`: client and server share one processor, with default pacing, as users have
//!   them. Each call takes two switches by the kernel. `limit` beside it is the least that the
//!   machine permits, whose parts are in Table V: two processes that only yield to each other, with
//!   the same arguments in bare shared memory.
//! * The peers, on one processor, as in the suite [`rpc`](crate::rpc) with parked servers. iceoryx2
//!   also polls and yields in [`rpc`](crate::rpc), where it is closer.
//!
//! One turn of a system is one server and one client, which makes all four calls, so that the
//! figures of one system are taken within a tenth of a second. All systems take turns, round by
//! round.
//!
//! # Table V
//! `procedure-call` and `kernel-crossing` (an empty system call) are measured beside each round;
//! two switches are `limit`'s Null minus two crossings. The overhead is divided into the way there
//! and the way back (`null-there`, `null-back`), for which the procedure reads the clock. The paper
//! divides it into stubs and kernel; Upcall has no part in the kernel.
//!
//! # Figure 2
//! `null-p1`, `null-p2` …: calls per second while this number of processors call at once, each by
//! hand-off on itself, as domain caching was disabled in the paper: to one server (`config` is
//! `one-server`), or to one server each (`pairs`).
//!
//! # Domain caching
//! In section 3.4 of the paper, idle processors wait in the domains that are called most.
//! `null-s4-even` and `null-s4-mostly`: one client calls four servers, equally often, or the same
//! server in 13 of 16 calls. All run on one processor (`no-spare`), or the servers can poll on a
//! second one (`one-spare`).

mod paper;
mod table;

use std::convert::Infallible;
use std::time::Duration;

use crate::case::{Case, Mode, Placement};
use crate::child::{Halves, Throughput};
use crate::contender::{self, Contender, Program, UPCALL};
use crate::error::RunError;
use crate::found::Found;
pub use crate::lrpc::paper::{
    FIGURE_2, MINIMUM_US, OVERHEAD_US, SRC_RPC_MOST, TESTS, TableIv, table_iv,
};
use crate::pair::{Pair, Spec};
use crate::place;
use crate::process::ChildError;
use crate::programs::Programs;
use crate::record::{Label, Record};
use crate::report::Report;
use crate::rpc::calls_in;
use crate::run::{Rounds, Run, Said, Series};
use crate::stats::{Clock, Summary};
use crate::suite::{Offer, Suite};
use crate::table::Table;
use crate::threads::child::next;

/// Name of Upcall with default pacing as a system of `bench-child`.
pub const DEFAULT: &str = "upcall-default";

/// Like [`DEFAULT`], with one virtual processor regardless of the number of its processors.
pub const ONE: &str = "upcall-one";

/// The parts of the minimum that are measured separately.
pub const PARTS: [&str; 2] = ["procedure-call", "kernel-crossing"];

/// The halves of a null call.
pub const HALVES: [&str; 2] = ["null-there", "null-back"];

/// How clients and servers of Figure 2 are connected.
pub const CONFIGS: [&str; 2] = ["one-server", "pairs"];

/// Configurations of a mix: the servers share the client's processor, or can use a second one.
pub const SPARES: [&str; 2] = ["no-spare", "one-spare"];

/// Number of servers of a mix.
const SERVERS: usize = 4;

/// Mixes: the names of the cases, and how many of 16 calls go to the first server before the others
/// are spread over all servers.
pub const MIXES: [(&str, usize); 2] = [("null-s4-even", 0), ("null-s4-mostly", 12)];

/// Returns the name of the case of `processors` that call at once.
pub fn null(processors: usize) -> String {
    format!("null-p{processors}")
}

/// Durations of a run.
struct Plan {
    rounds: usize,
    /// One case in one turn, and the preceding warm-up.
    turn: Duration,
    warm_up: Duration,
}

impl Plan {
    fn of(quick: bool) -> Plan {
        let ms = Duration::from_millis;
        match quick {
            true => Plan { rounds: 2, turn: ms(8), warm_up: ms(2) },
            false => Plan { rounds: 9, turn: ms(40), warm_up: ms(8) },
        }
    }
}

/// A system that makes the four calls, and its placement.
#[derive(Debug, Clone, Copy)]
struct Caller {
    /// Name in records.
    name: &'static str,
    /// Name for `bench-child`.
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

/// The findings of one turn of a caller.
#[derive(Debug, Clone)]
struct Tested {
    tests: Vec<Summary>,
    halves: Option<Halves>,
}

/// The measurement of a point.
#[derive(Debug, Clone, Copy)]
enum Measure {
    /// Figure 2, with this number of processors.
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

/// One turn of a round.
enum Seat {
    /// The parts of the minimum.
    Minimum,
    /// The four tests.
    Tests(Caller),
    /// A point of Figure 2, or of domain caching.
    Point { caller: Caller, config: &'static str, measure: Measure },
}

/// The findings of one turn.
enum Turned {
    Minimum([Summary; 2]),
    Tests(Tested),
    Point(Throughput),
}

impl Seat {
    fn name(&self) -> String {
        match self {
            Seat::Minimum => "minimum".to_owned(),
            Seat::Tests(caller) => format!("{}, {}", caller.name, caller.placement),
            Seat::Point { caller, config, measure } => {
                format!("{}, {}, {config}", measure.name(), caller.name)
            }
        }
    }
}

/// The suite.
#[derive(Debug, Clone, Default)]
pub struct Lrpc;

/// Takes about half a minute, and some seconds more for each peer. Keeps all processors busy that
/// it may use.
impl Suite for Lrpc {
    const NAME: &'static str = "lrpc";
    const OFFERS: &'static [Offer] = &[Offer::Plot(
        "Draw the four calls, and throughput by processors, into this folder, as SVG files",
    )];
    const TABLES: &'static [&'static str] = &table::TABLES;
    type Peer = Contender;

    fn cases(&self) -> Vec<String> {
        Vec::new()
    }

    fn measure(&self, peers: Vec<Contender>, run: &mut Run<'_>) -> Result<(), RunError> {
        let mut contenders = [vec![UPCALL], peers].concat();
        let programs = contender::programs(&mut contenders, run.exe)?;
        programs.say(&mut run.report);
        let runner = Runner { programs, plan: Plan::of(run.quick) };
        let two = run.has_room(Placement::TwoCores);
        let all = Caller::all(&contenders[1..]);
        let tests = all.iter().filter(|caller| two || caller.placement == Placement::OneCore);
        let seats = [Seat::Minimum].into_iter().chain(tests.map(|&caller| Seat::Tests(caller)));
        let seats = seats.chain(points(&all, run.allowed.len()));
        let mut series: Vec<Series<Seat, Turned>> = seats.map(Series::of).collect();
        let rounds = runner.plan.rounds;
        let say = |round, seat: &Seat| Said {
            what: format!("round {round} of {rounds}"),
            detail: seat.name(),
            fault: seat.name(),
        };
        let turn = |run: &mut Run<'_>, seat: &mut Seat| runner.turn(seat, run).map(Some);
        run.rounds(&Rounds::count(rounds, 0..100), &mut series, say, turn)?;
        let two = |seat: &Seat| {
            matches!(
                seat,
                Seat::Tests(caller) if caller.placement == Placement::TwoCores
            )
        };
        run.leave_like("two-cores", series.iter_mut().filter(|one| two(&one.of)));
        run.report.records.extend(series.iter().flat_map(recorded));
        Ok(())
    }

    fn tables(report: &Report) -> Vec<Table> {
        table::tables(report)
    }
}

/// The durations of turns and the programs.
struct Runner {
    programs: Programs<Program>,
    plan: Plan,
}

impl Runner {
    fn turn(&self, seat: &Seat, run: &mut Run<'_>) -> Result<Turned, ChildError> {
        Ok(match *seat {
            Seat::Minimum => Turned::Minimum(minimal(run.cpus.first).map_err(|error| {
                ChildError::Child { who: "minimum".into(), what: error.to_string() }
            })?),
            Seat::Tests(ref caller) => Turned::Tests(self.tests(caller, run)?),
            Seat::Point { ref caller, config, measure } => Turned::Point(match measure {
                Measure::Processors(processors) => self.crowd(caller, config, processors, run)?,
                Measure::Mix(mix) => self.mix(caller, config, MIXES[mix].1, run)?,
            }),
        })
    }

    /// Starts a server, and a client on each of `clients`' processors.
    fn pair<'a>(
        &self,
        caller: &Caller,
        (server, clients): (&[usize], &[usize]),
        run: &mut Run<'a>,
    ) -> Result<Pair<'a>, ChildError> {
        let Caller { system, placement, mode, .. } = *caller;
        let exe = self.programs.path(caller.program);
        let clients: Vec<&[usize]> = clients.chunks(1).collect();
        let dir = run.folder();
        let spec = Spec { exe, system, placement, mode, server, clients: &clients, dir };
        Pair::start(&spec, run.interrupted)
    }

    /// Measures the four tests by one pair, and the halves of a call.
    fn tests(&self, caller: &Caller, run: &mut Run<'_>) -> Result<Tested, ChildError> {
        let (server, client) = (run.other(caller.placement), run.cpus.first);
        let mut pair = self.pair(caller, (&[server], &[client]), run)?;
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

    fn mix(
        &self,
        caller: &Caller,
        config: &str,
        first: usize,
        run: &mut Run<'_>,
    ) -> Result<Throughput, ChildError> {
        let cpus = run.allowed[..if config == SPARES[1] { 2 } else { 1 }].to_vec();
        let mut pairs = Vec::new();
        for _ in 0..SERVERS {
            pairs.push(self.pair(caller, (&cpus, &cpus[..1]), run)?);
        }
        // Lets the servers settle on processors.
        Pair::mix(&mut pairs, first, 4 * self.plan.turn)?;
        let found = Pair::mix(&mut pairs, first, 2 * self.plan.turn)?;
        pairs.into_iter().try_for_each(Pair::end)?;
        Ok(found.unwrap_or(Throughput { calls: 0, elapsed_ns: 1 }))
    }

    fn crowd(
        &self,
        caller: &Caller,
        config: &str,
        processors: usize,
        run: &mut Run<'_>,
    ) -> Result<Throughput, ChildError> {
        let cpus = run.allowed[..processors].to_vec();
        let mut pairs = Vec::new();
        if config == "pairs" {
            for cpu in cpus {
                pairs.push(self.pair(caller, (&[cpu], &[cpu]), run)?);
            }
        } else {
            pairs.push(self.pair(caller, (&cpus, &cpus), run)?);
        }
        Pair::together(&mut pairs, self.plan.warm_up)?;
        let found = Pair::together(&mut pairs, self.plan.turn)?.unwrap_or_default();
        pairs.into_iter().try_for_each(Pair::end)?;
        // The sum of rates, as if all had called for the same time.
        let per_s: f64 =
            found.iter().map(|each| each.calls as f64 / each.elapsed_ns.max(1) as f64).sum();
        let calls = found.iter().map(|each| each.calls).sum::<u64>();
        Ok(Throughput { calls, elapsed_ns: (calls as f64 / per_s.max(f64::MIN_POSITIVE)) as u64 })
    }
}

/// Returns the points of calls from `processors` processors: for each caller all configurations,
/// one after the other.
fn points(all: &[Caller], processors: usize) -> Vec<Seat> {
    let mut points = Vec::new();
    // The only peer here is the one without a library: it needs nothing but the kernel.
    let names = ["limit", "upcall", "unix-socket"];
    let one_core = all.iter().filter(|caller| caller.placement == Placement::OneCore);
    for &caller in one_core.filter(|caller| names.contains(&caller.name)) {
        let ours = caller.name == "upcall";
        for config in CONFIGS.into_iter().filter(|config| *config == "pairs" || ours) {
            let measures = (1..=processors).map(Measure::Processors);
            points.extend(measures.map(|measure| Seat::Point { caller, config, measure }));
        }
        for config in SPARES.into_iter().take(if ours { processors.min(2) } else { 0 }) {
            let caller = Caller { system: ONE, ..caller };
            let mixes = (0..MIXES.len()).map(Measure::Mix);
            points.extend(mixes.map(|measure| Seat::Point { caller, config, measure }));
        }
    }
    points
}

fn recorded(Series { of: seat, turns, .. }: &Series<Seat, Turned>) -> Vec<Record> {
    let times = |caller: &Caller, case: &str, of: &dyn Fn(&Turned) -> Option<Summary>| {
        caller.label(case).found(1, turns, |turned| of(turned).map(Found::Times))
    };
    match seat {
        Seat::Minimum => {
            let bare = Caller::own("limit", "limit", Placement::OneCore, Mode::Polling);
            let part = |(at, part): (usize, &&str)| {
                times(&bare, part, &|turned| match turned {
                    Turned::Minimum(parts) => Some(parts[at]),
                    _ => None,
                })
            };
            PARTS.iter().enumerate().filter_map(part).collect()
        }
        Seat::Tests(caller) => {
            let tested = |turned: &Turned| match turned {
                Turned::Tests(tested) => Some(tested.clone()),
                _ => None,
            };
            let test = |(at, test): (usize, Case)| {
                times(caller, test.name(), &|turned| Some(tested(turned)?.tests[at]))
            };
            let halves: [fn(Halves) -> Summary; 2] = [|halves| halves.there, |halves| halves.back];
            let half = |(case, of): (&str, fn(Halves) -> Summary)| {
                times(caller, case, &|turned| tested(turned)?.halves.map(of))
            };
            let tests = TESTS.into_iter().enumerate().filter_map(test);
            tests.chain(HALVES.into_iter().zip(halves).filter_map(half)).collect()
        }
        Seat::Point { caller, config, measure } => {
            let callers =
                if let Measure::Processors(processors) = measure { *processors } else { 1 };
            let rate = |turned: &Turned| match turned {
                Turned::Point(found) => Some(Found::Rate(*found)),
                _ => None,
            };
            let record = caller.label(&measure.name()).found(callers, turns, rate);
            let config = Some((*config).to_owned());
            record.map(|record| Record { config, ..record }).into_iter().collect()
        }
    }
}

/// Measures a procedure call and an empty system call, on processor `cpu`, in nanoseconds.
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
        let [call, crossing] = minimal(place::Cpus::allowed().unwrap().first).unwrap();
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
