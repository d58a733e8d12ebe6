//! The suite `rpc`: calls between two processes.
//!
//! For each setting (placement and mode) and case, the contenders take turns, A B C A B C …, each
//! turn with a new server and client, and the cache line is probed between turns. The figures are
//! medians over the rounds, so that a move of the processors by the host, or one unlucky layout of
//! a process, decides nothing. Rounds go on until the case's share of the time is used.

mod table;

use std::time::{Duration, Instant};

use crate::case::{BINDS, Case, Mode, Placement, SETTINGS, THREADS};
use crate::child::{Binds, Entry};
pub use crate::contender::Contender;
use crate::contender::{self, LIMITS, PEERS, Program, UPCALL};
use crate::error::RunError;
use crate::found::Found;
use crate::limits::{Descriptors, Eventfd, Futex, Limit, Look, Pipe, Socket};
use crate::pair::{Pair, Spec};
use crate::process::ChildError;
use crate::programs::Programs;
use crate::record::{self, Label, Record};
use crate::remains::Remains;
use crate::report::{Idle, Properties, Report};
use crate::run::{Rounds, Run, Said, Series};
use crate::socket::UnixSocket;
use crate::stats::Summary;
use crate::suite::{Offer, Only, Suite};
use crate::table::Table;

/// The systems of this crate, for the benchmark program's table (see [`crate::child::child_main`]).
pub const SYSTEMS: [Entry; 6] = [
    Entry::of::<Limit<Look>>(),
    Entry::of::<Limit<Futex>>(),
    Entry::of::<Limit<Descriptors<Eventfd>>>(),
    Entry::of::<Limit<Descriptors<Pipe>>>(),
    Entry::of::<Limit<Descriptors<Socket>>>(),
    Entry::of::<UnixSocket>(),
];

/// The suite.
#[derive(Debug, Clone, Default)]
pub struct Rpc {
    /// Modes to measure. An empty list means all.
    pub modes: Vec<Mode>,
}

/// Durations of a run.
struct Plan {
    /// The whole run without building.
    total: Duration,
    /// Measuring in one turn, and the preceding warm-up.
    turn: Duration,
    /// Sum of the gaps before the calls of one turn.
    gaps: Duration,
    warm_up: Duration,
    idle: Duration,
    most_rounds: usize,
    /// Minimum number of binds of each kind measured in one turn.
    binds: u64,
}

impl Plan {
    fn of(quick: bool, peers: usize) -> Plan {
        let ms = Duration::from_millis;
        if quick {
            let total = ms(10_000) + ms(6_000) * peers as u32;
            Plan {
                total,
                turn: ms(12),
                gaps: ms(30),
                warm_up: ms(3),
                idle: ms(200),
                most_rounds: 3,
                binds: 20,
            }
        } else {
            let total = ms(52_000) + ms(32_000) * peers as u32;
            Plan {
                total,
                turn: ms(50),
                gaps: ms(150),
                warm_up: ms(10),
                idle: ms(1000),
                most_rounds: 9,
                binds: 200,
            }
        }
    }

    /// Maximum time of calls whose number was chosen to fill half a turn. The number comes from the
    /// time of a few preceding calls, and the calls may take many times as long while other
    /// programs have the processors.
    fn most(&self) -> Duration {
        2 * self.turn
    }
}

/// Name of the case without calls: idle and killed systems.
const PROPERTIES: &str = "properties";

/// The measurement of a group of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Measure {
    Latency(Case),
    Throughput(usize),
    Bind,
}

impl Measure {
    fn all() -> impl Iterator<Item = Measure> {
        let latency = Case::ALL.into_iter().map(Measure::Latency);
        latency.chain(THREADS.into_iter().map(Measure::Throughput)).chain([Measure::Bind])
    }

    fn is_for(self, placement: Placement, mode: Mode) -> bool {
        match self {
            Measure::Latency(case) => case.is_for(placement, mode),
            Measure::Throughput(_) | Measure::Bind => placement != Placement::Unpinned,
        }
    }

    fn name(self) -> String {
        match self {
            Measure::Latency(case) => case.name().to_owned(),
            Measure::Throughput(callers) => format!("null-t{callers}"),
            Measure::Bind => BINDS[0].to_owned(),
        }
    }
}

/// A measurement in which contenders are compared.
#[derive(Clone, Copy)]
struct Group {
    placement: Placement,
    mode: Mode,
    measure: Measure,
}

/// Takes at most about a minute without peers, and half a minute more for each peer. Keeps two
/// processors busy.
impl Suite for Rpc {
    const NAME: &'static str = "rpc";
    const OFFERS: &'static [Offer] = &[
        Offer::System("Only this system; may be repeated"),
        Offer::Case("Only this case, for example `null` or `null-t32`; may be repeated"),
        Offer::Placement("Only this placement: `two-cores`, `one-core` or `unpinned`"),
    ];
    const TABLES: &'static [&'static str] = &table::TABLES;
    const SAYS_BUSY: bool = false;
    type Peer = Contender;

    fn cases(&self) -> Vec<String> {
        Measure::all().map(Measure::name).chain([PROPERTIES.to_owned()]).collect()
    }

    fn systems(&self) -> Vec<String> {
        let all = LIMITS.iter().chain([&UPCALL]).chain(&PEERS);
        all.map(|contender| contender.name.to_owned()).collect()
    }

    fn measure(&self, peers: Vec<Contender>, run: &mut Run<'_>) -> Result<(), RunError> {
        let plan = Plan::of(run.quick, peers.len());
        let all = LIMITS.into_iter().chain([UPCALL]).chain(peers);
        let mut contenders: Vec<Contender> =
            all.filter(|contender| run.only.system(contender.name)).collect();
        let programs = contender::programs(&mut contenders, run.exe)?;
        programs.say(&mut run.report);
        let wanted = SETTINGS.into_iter().filter(|(placement, mode)| {
            run.only.placement(*placement) && (self.modes.is_empty() || self.modes.contains(mode))
        });
        let groups = wanted.flat_map(|(placement, mode)| {
            let of_setting = Measure::all().filter(move |m| m.is_for(placement, mode));
            of_setting.map(move |measure| Group { placement, mode, measure })
        });
        let groups: Vec<Group> =
            groups.filter(|group| run.only.case(&group.measure.name())).collect();
        let all = run.only.is_all() && self.modes.is_empty();
        let with_idle = all || run.only.cases.iter().any(|case| case == PROPERTIES);
        let modes = self.modes.clone();
        Runner { contenders, programs, plan, modes, hurried: 0 }.suite(&groups, with_idle, run)?;
        let Report { records, idle, failures, .. } = &run.report;
        if records.is_empty() && idle.is_empty() && failures.is_empty() {
            return Err(RunError::Nothing);
        }
        record::name_best_limits(&mut run.report.records);
        Ok(())
    }

    fn tables(report: &Report) -> Vec<Table> {
        table::tables(report)
    }

    /// A file without selected cases has the suite's cases and no others; binds then are in the
    /// table only.
    fn is_filed(record: &Record, only: &Only) -> bool {
        !BINDS.contains(&&*record.case) || only.cases.contains(&record.case)
    }
}

/// The contenders, the durations and the programs.
struct Runner {
    contenders: Vec<Contender>,
    programs: Programs<Program>,
    plan: Plan,
    /// Modes to measure. An empty list means all.
    modes: Vec<Mode>,
    /// Number of groups that had time for only one round.
    hurried: usize,
}

impl Runner {
    fn suite(
        mut self,
        groups: &[Group],
        with_idle: bool,
        run: &mut Run<'_>,
    ) -> Result<(), RunError> {
        let begun = Instant::now();
        let weights: Vec<f64> = groups.iter().map(|group| self.weight(group)).collect();
        let whole: f64 = weights.iter().sum();
        let mut left = whole;
        if with_idle {
            self.idle(run)?;
        }
        for (group, weight) in groups.iter().zip(weights) {
            if !run.has_room(group.placement) {
                continue;
            }
            let time = self.plan.total.saturating_sub(begun.elapsed());
            let time = time.mul_f64(weight / left.max(weight).max(1e-9));
            let percent = |left: f64| (100.0 * (1.0 - left / whole)) as u32;
            let part = percent(left)..percent(left - weight);
            left -= weight;
            self.group(*group, &Rounds { most: self.plan.most_rounds, time, part }, run)?;
        }
        if self.hurried > 0 {
            run.report.notes.push(format!(
                "{} of {} cases had time for one round only: their figures are of one turn each, \
                not medians of several",
                self.hurried,
                groups.len()
            ));
        }
        Ok(())
    }

    /// Returns the weight of a group's share of the time.
    fn weight(&self, group: &Group) -> f64 {
        let runs =
            |c: &&Contender| c.runs(group.mode) && (c.binds || group.measure != Measure::Bind);
        let running = self.contenders.iter().filter(runs).count() as f64;
        match group.measure {
            // The basis of all comparisons and the shortest call, so its ratios need the most
            // rounds.
            Measure::Latency(Case::Null) => 3.0 * running,
            // Most of the time is gaps.
            Measure::Latency(Case::NullGap(_)) => 1.5 * running,
            Measure::Throughput(_) => 0.5 * running,
            Measure::Latency(_) | Measure::Bind => running,
        }
    }

    /// Measures the contenders of one group in turn, round by round.
    fn group(&mut self, group: Group, rounds: &Rounds, run: &mut Run<'_>) -> Result<(), RunError> {
        let Group { placement, mode, measure } = group;
        let case = measure.name();
        let mut series: Vec<Series<Contender, Vec<Found>>> =
            self.in_group(group, &run.report.records).into_iter().map(Series::of).collect();
        let say = |round, contender: &Contender| Said {
            what: format!("{placement}, {mode}: {case}"),
            detail: format!("round {round} {}", contender.name),
            fault: case.clone(),
        };
        let turn = |run: &mut Run<'_>, contender: &mut Contender| self.turn(contender, group, run);
        let done = run.rounds(rounds, &mut series, say, turn)?;
        self.hurried += usize::from(done == 1 && series.iter().any(|one| !one.turns.is_empty()));
        if placement == Placement::TwoCores {
            run.leave_like(&format!("{placement}, {mode}, {case}"), &mut series);
        }
        let callers = if let Measure::Throughput(callers) = measure { callers } else { 1 };
        let cases = if measure == Measure::Bind { &BINDS[..] } else { &[&*case] };
        for Series { of: Contender { name: system, .. }, turns, .. } in &series {
            run.report.records.extend(cases.iter().enumerate().filter_map(|(at, case)| {
                let label = Label { suite: Rpc::NAME, case, system, placement, mode };
                label.found(callers, turns, |found| Some(found[at]))
            }));
        }
        Ok(())
    }

    /// Returns the contenders of a group. All bare hand-offs run `null`; in later groups only the
    /// best of them does, according to these records.
    fn in_group(
        &self,
        Group { placement, mode, measure }: Group,
        records: &[Record],
    ) -> Vec<Contender> {
        let best = records
            .iter()
            .filter(|r| (r.placement, r.mode, r.case.as_str()) == (placement, mode, "null"))
            .filter(|r| r.system.starts_with("limit-"))
            .min_by(|a, b| a.p50_ns.total_cmp(&b.p50_ns));
        let runs = |c: &&Contender| {
            let several = match measure {
                Measure::Throughput(callers) => callers,
                Measure::Latency(_) => 1,
                Measure::Bind if c.binds => 1,
                Measure::Bind => return false,
            };
            let beaten = c.hand_off
                && measure != Measure::Latency(Case::Null)
                && best.is_some_and(|best| best.system != c.name);
            c.runs(mode) && several <= c.outstanding && !beaten
        };
        self.contenders.iter().filter(runs).copied().collect()
    }

    fn turn(
        &self,
        contender: &Contender,
        Group { placement, mode, measure }: Group,
        run: &mut Run<'_>,
    ) -> Result<Option<Vec<Found>>, ChildError> {
        let mut pair = self.pair(contender, placement, mode, false, run)?;
        let found = match measure {
            Measure::Latency(case) => Some(vec![Found::Times(self.latency(case, &mut pair)?)]),
            Measure::Throughput(callers) => match pair.throughput(callers, self.plan.warm_up)? {
                None => None,
                Some(_) => {
                    pair.throughput(callers, self.plan.turn)?.map(|found| vec![Found::Rate(found)])
                }
            },
            // The first few binds warm up.
            Measure::Bind => match pair.bind(self.plan.binds / 10)? {
                None => None,
                Some(_) => pair.bind(self.plan.binds)?.map(|Binds { first, further }| {
                    vec![Found::Times(first), Found::Times(further)]
                }),
            },
        };
        pair.end()?;
        Ok(found)
    }

    /// The first calls bind, fault pages in and so on. The next few warm up and show how long a
    /// call takes.
    fn latency(&self, case: Case, pair: &mut Pair<'_>) -> Result<Summary, ChildError> {
        let most = self.plan.most();
        if let Some(gap) = case.gap() {
            pair.latency(Case::Null, 4, most)?;
            let count = gaps_in(self.plan.gaps, gap);
            pair.latency(case, 4, most)?;
            return pair.latency(case, count, 4 * self.plan.gaps + most);
        }
        let first = pair.latency(case, 4, most)?.mean_ns;
        let warm = pair.latency(case, calls_in(self.plan.warm_up, first, 4, 2_000), most)?.mean_ns;
        pair.latency(case, calls_in(self.plan.turn, warm, 50, 300_000), most)
    }

    /// Measures the cost of each server without calls while a client is bound, and each system's
    /// properties.
    fn idle(&self, run: &mut Run<'_>) -> Result<(), RunError> {
        for contender in self.contenders.iter().filter(|c| !c.name.starts_with("limit")) {
            let Contender { name: system, trust, .. } = *contender;
            let (mut left, mut percents) = (None, Vec::new());
            let wanted = |mode: &Mode| self.modes.is_empty() || self.modes.contains(mode);
            let modes = [Mode::Polling, Mode::Parked].into_iter().filter(wanted);
            for mode in modes.filter(|&mode| contender.runs(mode)) {
                run.progress.say("idle", contender.name);
                let found = self.rest(contender, mode, run);
                if let Some((idle, client_ns_per_s, remains)) = run.unless_failed("idle", found)? {
                    percents.push((mode, (idle.cpu_ns_per_s + client_ns_per_s) / 1e7));
                    run.report.idle.push(idle);
                    left = Some(remains);
                }
            }
            let properties = left.map(|left| Properties {
                system: system.to_owned(),
                trust,
                left,
                idle: percents,
            });
            run.report.properties.extend(properties);
        }
        Ok(())
    }

    /// Measures a bound, idle pair until it is killed, and the CPU time of its client.
    fn rest(
        &self,
        contender: &Contender,
        mode: Mode,
        run: &mut Run<'_>,
    ) -> Result<(Idle, f64, Remains), ChildError> {
        let placement =
            if run.cpus.second.is_some() { Placement::TwoCores } else { Placement::OneCore };
        let mut pair = self.pair(contender, placement, mode, true, run)?;
        pair.latency(Case::Null, 100, self.plan.most())?;
        let memory_kib = pair.memory_kib()?.into();
        std::thread::sleep(self.plan.idle / 4); // time to become idle
        let [cpu_ns_per_s, client] = pair.idle_ns_per_s(self.plan.idle)?;
        let idle = Idle { system: contender.name.to_owned(), mode, cpu_ns_per_s, memory_kib };
        Ok((idle, client, pair.killed()))
    }

    fn pair<'a>(
        &self,
        contender: &Contender,
        placement: Placement,
        mode: Mode,
        at_home: bool,
        run: &mut Run<'a>,
    ) -> Result<Pair<'a>, ChildError> {
        let [server, client] = contender.processors(placement, &run.allowed);
        let spec = Spec {
            exe: self.programs.path(contender.program),
            system: contender.name,
            placement,
            mode,
            server: &server,
            clients: &[&client],
            dir: run.folder(),
        };
        Pair::start_at(&spec, at_home, run.interrupted)
    }
}

/// Returns the number of calls, half of them timed, that fill `time` at `ns` each, within limits.
pub(crate) fn calls_in(time: Duration, ns: f64, least: u64, most: u64) -> u64 {
    ((time.as_nanos() as f64 / 2.0 / ns.max(1.0)) as u64).clamp(least, most)
}

/// Returns the number of calls whose gaps fill `time`.
fn gaps_in(time: Duration, gap: Duration) -> u64 {
    let gaps = time.as_nanos() / gap.as_nanos().max(1);
    u64::try_from(gaps).unwrap_or(u64::MAX).clamp(20, 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_fill_the_time_within_limits() {
        let (us, ms) = (Duration::from_micros, Duration::from_millis);
        assert_eq!([us(20), ms(1), ms(50)].map(|gap| gaps_in(ms(200), gap)), [1000, 200, 20]);
    }

    #[test]
    fn counts_fill_the_time_within_limits() {
        let ms = Duration::from_millis;
        assert_eq!(calls_in(ms(50), 250.0, 50, 300_000), 100_000);
        assert_eq!(calls_in(ms(50), 5e6, 50, 300_000), 50);
        assert_eq!(calls_in(ms(50), 0.0, 50, 300_000), 300_000);
    }
}
