//! Machines of several hosts that run for minutes and hours of their own time. They drive the code
//! of the rounds ([`BalancingRounds`]): measurements, reports, plans and moves.

use super::super::probation::{AT_ONCE, PROBATION, STAYS, WAIT};
use super::super::rounds::{BalancingRounds, LeftTasks, PERIOD, RoundPhase, SETTLES};
use super::super::tests::Random;
use super::super::{BalancePlan, MeasuredLoads, MeasuredTask};
use super::*;
use crate::machine::TaskEntry;
use crate::moves::{NotMoved, Pin, Refusal};
use crate::shown::MoveCost;

const SECOND: Duration = Duration::from_secs(1);

/// What a host says about its loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Honesty {
    /// What they are.
    Honest,
    /// That it has nothing to do.
    Idle,
    /// That each of its tasks needs a processor.
    Busy,
    /// One of the two at random, in each round.
    Fickle,
    /// Nothing.
    Silent,
}

/// A move of a task.
#[derive(Clone, Copy, Debug)]
struct SimMove {
    at: Duration,
    tid: Tid,
    from: HostIndex,
    to: HostIndex,
}

/// A machine of several hosts.
struct Sim {
    rounds: BalancingRounds,
    begun: Instant,
    now: Instant,
    /// The host of each process.
    of_ranks: Vec<HostIndex>,
    honesty: BTreeMap<HostIndex, Honesty>,
    tasks: BTreeMap<Tid, (TaskEntry, u64)>,
    /// What keeps each task from moving to a host.
    refuses: BTreeMap<(Tid, HostIndex), NotMoved>,
    pause: Duration,
    /// Moves between hosts.
    moves: Vec<SimMove>,
    near_moves: usize,
    /// Number of moves between hosts that were asked for and refused.
    refused: usize,
    random: Random,
}

impl Sim {
    /// A machine whose hosts have so many processes each.
    fn new(kind: BalancerKind, hosts: &[usize]) -> Self {
        let of = |(host, count): (HostIndex, &usize)| std::iter::repeat_n(host, *count);
        let of_ranks = hosts.iter().enumerate().flat_map(of).collect::<Vec<_>>();
        let least = of_ranks.len();
        let plan = BalancePlan { balancer: Some(kind), least, is_alone: false };
        let now = Instant::now();
        Self {
            rounds: BalancingRounds::new(plan),
            begun: now,
            now,
            of_ranks,
            honesty: BTreeMap::new(),
            tasks: BTreeMap::new(),
            refuses: BTreeMap::new(),
            pause: Duration::from_millis(20),
            moves: Vec::new(),
            near_moves: 0,
            refused: 0,
            random: Random(11),
        }
    }

    /// Adds tasks with these loads, in percent, in a process.
    fn add(&mut self, rank: Rank, percents: &[u64]) {
        for percent in percents {
            let tid = Tid::new(0, self.tasks.len() as u32 + 1);
            let entry = TaskEntry::in_process("a", rank);
            self.tasks.insert(tid, (entry, percent * WHOLE / 100));
        }
    }

    fn time(&self) -> Duration {
        self.now - self.begun
    }

    fn host(&self, rank: Rank) -> HostIndex {
        self.of_ranks[rank]
    }

    /// What a process reports of its tasks. `None`: nothing.
    fn report(&mut self, rank: Rank) -> Option<MeasuredLoads> {
        let host = self.host(rank);
        let said = match self.honesty.get(&host).copied().unwrap_or(Honesty::Honest) {
            Honesty::Fickle if self.random.below(2) == 0 => Honesty::Idle,
            Honesty::Fickle => Honesty::Busy,
            said => said,
        };
        let own = self.tasks.iter().filter(|(_, (entry, _))| entry.rank == rank);
        let task = |(tid, (_, load)): (&Tid, &(TaskEntry, u64))| {
            let load = match said {
                Honesty::Busy => WHOLE,
                _ => *load,
            };
            MeasuredTask { tid: *tid, load, is_pinned: false }
        };
        let tasks = own.map(task).filter(|task| task.load > 0).collect();
        match said {
            Honesty::Silent => None,
            Honesty::Idle => Some(MeasuredLoads::default()),
            _ => Some(MeasuredLoads { tasks, bytes: Vec::new() }),
        }
    }

    /// One round, with the wait before it.
    fn round(&mut self) {
        let size = self.of_ranks.len();
        self.now = self.rounds.due().filter(|due| *due > self.now).unwrap_or(self.now + PERIOD);
        let round = self.rounds.measure(self.now, size);
        for rank in 0..size {
            if let Some(loads) = self.report(rank) {
                let ranks = &self.tasks;
                let is_there = |tid: Tid| ranks.get(&tid).is_some_and(|one| one.0.rank == rank);
                self.rounds.report(rank, round, loads, self.now, is_there);
            }
        }
        assert_eq!(self.rounds.phase, RoundPhase::Measures);
        let entries = self.tasks.iter().map(|(tid, (entry, _))| (*tid, entry));
        let (host_of, of_ranks) = (|rank: Rank| self.of_ranks[rank], self.of_ranks.len());
        let view = self.rounds.view(of_ranks, entries, |_| false, host_of, self.now);
        let plan = self.rounds.plan_round(&view, None, self.now);
        self.rounds.begin_moves(plan.clone(), None);
        plan.into_iter().for_each(|planned| self.carry_out(planned));
        self.rounds.queue.clear();
        self.rounds.end_round(LeftTasks::None, self.now, size);
    }

    fn carry_out(&mut self, PlannedMove { tid, to }: PlannedMove) {
        let (from, now) = (self.tasks[&tid].0.rank, self.now);
        let (host, other) = (self.host(from), self.host(to));
        let far = (host != other).then_some(other);
        if let Some(known) = self.rounds.loads.get_mut(&tid) {
            known.settles = SETTLES;
        }
        if let Some(why) = far.and_then(|far| self.refuses.get(&(tid, far))) {
            self.refused += 1;
            return self.rounds.was_refused((tid, "a"), to, far, why, now);
        }
        let cost = MoveCost { pause: self.pause, total: self.pause, bytes: 0 };
        self.rounds.note_move(tid, from, to, Duration::from_millis(2));
        self.rounds.has_moved_between((tid, "a"), (host, other), cost, now);
        self.rounds.moved += 1;
        match far {
            Some(to) => self.moves.push(SimMove { at: self.time(), tid, from: host, to }),
            None => self.near_moves += 1,
        }
        self.tasks.get_mut(&tid).unwrap().0.rank = to;
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.round();
        }
    }

    /// What the tasks of each host need, in percent.
    fn needs(&self) -> Vec<u64> {
        let hosts = self.of_ranks.last().unwrap() + 1;
        let own = |host| self.tasks.values().filter(move |one| self.host(one.0.rank) == host);
        (0..hosts).map(|host| own(host).map(|one| one.1).sum::<u64>() * 100 / WHOLE).collect()
    }

    fn arrivals(&self, host: HostIndex) -> usize {
        self.moves.iter().filter(|one| one.to == host).count()
    }
}

/// Returns `true` if two hosts of one process differ no more than what is left alone.
fn are_alike(one: u64, other: u64) -> bool {
    one.abs_diff(other) * WHOLE / 100 <= tolerance(one * WHOLE / 100, other * WHOLE / 100)
}

fn kinds() -> [BalancerKind; 3] {
    BalancerKind::ALL.map(|(_, kind)| kind)
}

#[test]
fn tasks_of_a_busy_host_go_to_an_idle_one_once_the_difference_lasts() {
    for kind in kinds() {
        let mut sim = Sim::new(kind, &[1, 1]);
        sim.add(0, &[25; 8]);
        sim.run(60 * SECOND);
        assert_eq!(sim.needs(), [100, 100], "{kind}");
        assert_eq!(sim.moves.len(), 4, "{kind}");
        assert!(sim.moves[0].at >= LASTS, "{kind}: {:?}", sim.moves);
        // And then nothing moves for an hour.
        sim.run(3600 * SECOND);
        assert_eq!(sim.moves.len(), 4, "{kind}");
    }
}

#[test]
fn what_is_uneven_within_hosts_is_moved_within_hosts() {
    for kind in kinds() {
        let mut sim = Sim::new(kind, &[2, 2]);
        sim.add(0, &[20; 6]);
        sim.add(2, &[20; 6]);
        sim.run(600 * SECOND);
        assert_eq!((sim.moves.len(), sim.needs()), (0, vec![120, 120]), "{kind}");
        assert_eq!(sim.near_moves, 6, "{kind}");
    }
}

#[test]
fn a_short_difference_moves_no_task_to_another_host() {
    for kind in kinds() {
        let mut sim = Sim::new(kind, &[1, 1]);
        sim.add(0, &[0; 8]);
        for _ in 0..100 {
            sim.tasks.values_mut().for_each(|one| one.1 = WHOLE / 4);
            let until = sim.now + LASTS;
            while sim.now + 2 * PERIOD < until {
                sim.round();
            }
            sim.tasks.values_mut().for_each(|one| one.1 = WHOLE / 100);
            sim.run(4 * SECOND);
        }
        assert_eq!(sim.moves.len(), 0, "{kind}");
    }
}

#[test]
fn an_expensive_move_waits_until_the_difference_has_cost_as_much() {
    for kind in kinds() {
        let mut sim = Sim::new(kind, &[1, 1]);
        sim.pause = 20 * SECOND;
        sim.add(0, &[50; 4]);
        sim.run(15 * SECOND);
        // The pause of the first move is not known before.
        assert_eq!(sim.moves.len(), 1, "{kind}");
        sim.run(120 * SECOND);
        assert_eq!(sim.needs(), [100, 100], "{kind}");
        // The second one gains half of a processor, and is paid for after 40 s, less what was
        // forgotten of the first pause.
        let between = sim.moves[1].at - sim.moves[0].at;
        assert!(between > 15 * SECOND, "{kind}: {between:?}");
    }
}

#[test]
fn no_task_goes_back_and_forth_whatever_loads_do() {
    for seed in 0..12 {
        let kind = kinds()[seed as usize % 3];
        let mut sim = Sim::new(kind, &[1, 2, 1]);
        sim.random = Random(seed);
        let honesty = [Honesty::Honest, Honesty::Fickle][seed as usize % 2];
        sim.honesty.insert(2, honesty);
        (0..4).for_each(|rank| sim.add(rank, &[10; 5]));
        while sim.time() < 1800 * SECOND {
            for one in sim.tasks.values_mut() {
                if sim.random.below(8) == 0 {
                    one.1 = sim.random.below(WHOLE + 1);
                }
            }
            sim.run(5 * SECOND);
        }
        let mut by_task = BTreeMap::<Tid, Vec<SimMove>>::new();
        sim.moves.iter().for_each(|one| by_task.entry(one.tid).or_default().push(*one));
        for (tid, moves) in by_task {
            // Each stay is twice the last one, unless the task has stayed for far longer.
            let mut stays = STAYS;
            for pair in moves.windows(2) {
                let stayed = pair[1].at - pair[0].at;
                assert_eq!(pair[0].to, pair[1].from);
                assert!(stayed >= stays, "seed {seed}: {tid}: {moves:?}");
                stays = if stayed < 8 * stays { (2 * stays).min(60 * STAYS) } else { STAYS };
            }
        }
    }
}

#[test]
fn a_host_that_claims_to_be_idle_attracts_few_tasks() {
    for kind in kinds() {
        for honesty in [Honesty::Idle, Honesty::Fickle] {
            let mut sim = Sim::new(kind, &[1, 1, 1]);
            sim.honesty.insert(1, honesty);
            sim.add(0, &[10; 60]);
            let time = 600 * SECOND;
            sim.run(time);
            // The wait for the next task doubles with each.
            let log = (time.as_secs() / WAIT.as_secs()).ilog2() as usize;
            let most = 2 * (log + 2) + AT_ONCE as usize;
            // A fickle one also gives tasks away, so that some come again.
            let most = if honesty == Honesty::Idle { most } else { 2 * most };
            assert!(sim.arrivals(1) <= most, "{kind} {honesty:?}: {}", sim.arrivals(1));
            // The honest hosts share what they have.
            let needs = sim.needs();
            let (home, other) = (needs[0], needs[2]);
            assert!(are_alike(home, other), "{kind} {honesty:?}: {needs:?}");
            assert!(other >= 200, "{kind} {honesty:?}: {needs:?}");
            // And later it gets no more than that for each time on probation.
            sim.run(2 * PROBATION);
            assert!(sim.arrivals(1) <= 3 * most, "{kind} {honesty:?}: {}", sim.arrivals(1));
        }
    }
}

#[test]
fn a_host_that_claims_loads_keeps_no_others_from_sharing_theirs() {
    for kind in kinds() {
        let mut sim = Sim::new(kind, &[1, 1, 1]);
        sim.honesty.insert(1, Honesty::Busy);
        sim.add(0, &[10; 20]);
        sim.add(1, &[1; 30]);
        sim.run(600 * SECOND);
        let (home, other) = (sim.needs()[0], sim.needs()[2]);
        assert!(are_alike(home, other), "{:?}", sim.needs());
    }
}

#[test]
fn a_silent_host_gives_and_gets_no_tasks_and_delays_one_round() {
    for kind in kinds() {
        let mut sim = Sim::new(kind, &[1, 1, 1]);
        sim.honesty.insert(1, Honesty::Silent);
        sim.add(0, &[25; 8]);
        sim.add(1, &[25; 8]);
        sim.run(120 * SECOND);
        assert_eq!(sim.needs(), [100, 200, 100], "{kind}");
        // No round waits for it, until it reports.
        use super::super::rounds::LoadReport::{Early, Last, Late};
        let loads = MeasuredLoads::default;
        let first = sim.rounds.measure(sim.now, 3);
        assert_eq!(sim.rounds.report(0, first, loads(), sim.now, |_| true), Early);
        assert_eq!(sim.rounds.report(2, first, loads(), sim.now, |_| true), Last);
        sim.rounds.begin_moves(Vec::new(), None);
        assert_eq!(sim.rounds.report(1, first, loads(), sim.now, |_| true), Late);
        let second = sim.rounds.measure(sim.now, 3);
        assert_eq!(sim.rounds.report(0, second, loads(), sim.now, |_| true), Early);
        assert_eq!(sim.rounds.report(2, second, loads(), sim.now, |_| true), Early);
        assert_eq!(sim.rounds.report(1, second, loads(), sim.now, |_| true), Last);
    }
}

#[test]
fn tasks_stay_away_from_hosts_that_refuse_them() {
    for (why, most) in [
        // One task tries for all, once in a while.
        (NotMoved::Refused(Refusal::Program), 12),
        (NotMoved::Refused(Refusal::Folder), 8 * 12),
        (NotMoved::Pinned(Pin::Wish), 8 * 12),
        // Nothing bars a host for more than 16 minutes.
        (NotMoved::TimedOut, 14),
    ] {
        let mut sim = Sim::new(BalancerKind::Refine, &[1, 1, 1]);
        sim.add(0, &[25; 8]);
        let tids = sim.tasks.keys().copied().collect::<Vec<_>>();
        sim.refuses.extend(tids.into_iter().map(|tid| ((tid, 1), why.clone())));
        sim.run(3600 * SECOND);
        assert!((1..=most).contains(&sim.refused), "{why:?}: {}", sim.refused);
        // The others go where they are taken.
        assert_eq!(sim.needs(), [100, 0, 100], "{why:?}");
        // What was refused is known, and forgotten with the task.
        let tid = *sim.rounds.refused.keys().next().unwrap();
        assert_eq!(sim.rounds.refused[&tid].why, why);
    }
}

#[test]
fn hosts_with_more_processes_get_more_tasks() {
    for kind in kinds() {
        let mut sim = Sim::new(kind, &[1, 3]);
        sim.add(0, &[20; 20]);
        sim.run(300 * SECOND);
        let needs = sim.needs();
        assert!((80..=140).contains(&needs[0]), "{kind}: {needs:?}");
        // One for each process at a time.
        let at = sim.moves.iter().map(|one| one.at).collect::<BTreeSet<_>>();
        let together = at.iter().map(|at| sim.moves.iter().filter(|one| one.at == *at).count());
        assert_eq!(together.max(), Some(3), "{kind}: {:?}", sim.moves);
        let most = (1..4).map(|rank| {
            let own = sim.tasks.values().filter(|one| one.0.rank == rank);
            own.map(|one| one.1).sum::<u64>() * 100 / WHOLE
        });
        assert!(most.max().unwrap() <= 120, "{kind}: {needs:?}");
    }
}

#[test]
fn among_tasks_that_help_alike_those_move_whose_messages_cross_the_network() {
    let mut sim = Sim::new(BalancerKind::Comm, &[1, 1]);
    sim.add(0, &[40, 40, 40]);
    sim.add(1, &[10]);
    let tids = sim.tasks.keys().copied().collect::<Vec<_>>();
    let view = |sim: &Sim| {
        let entries = sim.tasks.iter().map(|(tid, (entry, _))| (*tid, entry));
        let mut view = sim.rounds.view(2, entries, |_| false, |rank| rank, sim.now);
        view.bytes = BTreeMap::from([((tids[1], tids[3]), 1000), ((tids[0], tids[2]), 1000)]);
        view.tasks.iter_mut().for_each(|task| task.load = sim.tasks[&task.tid].1);
        view
    };
    for _ in 1..ROUNDS {
        let plan = sim.rounds.between.plan(&view(&sim), BalancerKind::Comm, sim.now);
        assert_eq!(plan, []);
        sim.now += LASTS;
    }
    let plan = sim.rounds.between.plan(&view(&sim), BalancerKind::Comm, sim.now);
    assert_eq!(plan, [PlannedMove { tid: tids[1], to: 1 }]);
}

/// Tasks leave a host that is to be deleted. A process of the same host is no refuge then.
#[test]
fn an_evacuated_task_goes_to_a_host_that_takes_it_and_first_to_its_own() {
    let mut sim = Sim::new(BalancerKind::Refine, &[1, 2, 1]);
    sim.add(1, &[10]);
    sim.add(0, &[50]);
    // The process of the same host has more to do than that of the last host.
    sim.add(2, &[5]);
    sim.run(SECOND);
    let tid = *sim.tasks.keys().next().unwrap();
    let to = |sim: &Sim| {
        let entries = sim.tasks.iter().map(|(tid, (entry, _))| (*tid, entry));
        let host_of = |rank: Rank| sim.of_ranks[rank];
        let view = sim.rounds.view(4, entries, |_| false, host_of, sim.now);
        let plan = view.plan(None);
        plan.iter().find(|one| one.tid == tid).map(|one| one.to)
    };
    sim.rounds.evacuated.insert(1);
    assert_eq!(to(&sim), Some(2));
    sim.rounds.absent.extend([1, 2]);
    assert_eq!(to(&sim), Some(3));
    let (why, now) = (NotMoved::Refused(Refusal::Program), sim.now);
    sim.rounds.was_refused((tid, "a"), 3, Some(2), &why, now);
    assert_eq!(to(&sim), Some(0));
    // With no other choice it tries again.
    sim.rounds.was_refused((tid, "a"), 0, Some(0), &why, now);
    assert_eq!(to(&sim), Some(3));
}

/// Reports from hosts are bounded and hold only what their processes can know.
#[test]
fn a_report_counts_only_what_its_process_has_and_is_bounded() {
    let mut sim = Sim::new(BalancerKind::Comm, &[1, 1]);
    sim.add(1, &[10]);
    let own = *sim.tasks.keys().next().unwrap();
    let tasks = (1..20_000).map(|number| Tid::new(0, number));
    let tasks = tasks.chain([own; 3]).map(|tid| MeasuredTask { tid, load: 7, is_pinned: false });
    let pair = |number| ((Tid::new(1, number), Tid::new(1, number + 1)), u64::MAX);
    let bytes = (1..20_000).map(pair).chain([((own, Tid::new(1, 1)), 3)]);
    let loads = MeasuredLoads { tasks: tasks.collect(), bytes: bytes.collect() };
    let bounded = loads.clone().bounded();
    assert!(bounded.tasks.len() <= 4096 && bounded.bytes.len() <= 4096);
    let mut twice = bounded.tasks.iter().map(|task| task.tid).collect::<Vec<_>>();
    twice.dedup();
    assert_eq!(twice.len(), bounded.tasks.len());
    let round = sim.rounds.measure(sim.now, 2);
    sim.rounds.report(1, round, loads, sim.now, |tid| tid == own);
    assert!(sim.rounds.loads.keys().all(|tid| *tid == own));
    assert_eq!(sim.rounds.bytes.len(), 0);
}

/// The pause of a move is what another host says. It counts as far as the home can have waited.
#[test]
fn a_pause_that_another_host_claims_is_no_longer_than_the_move() {
    let mut sim = Sim::new(BalancerKind::Refine, &[1, 1]);
    sim.add(0, &[10]);
    let tid = *sim.tasks.keys().next().unwrap();
    let cost = MoveCost { pause: Duration::MAX, total: Duration::from_millis(30), bytes: 0 };
    sim.rounds.has_moved_between((tid, "a"), (0, 1), cost, sim.now);
    assert_eq!(sim.rounds.between.far.pause(tid, 1, sim.now), cost.total);
    let cost = MoveCost { total: Duration::MAX, ..cost };
    sim.rounds.has_moved_between((tid, "a"), (1, 0), cost, sim.now);
    let pause = sim.rounds.between.far.pause(tid, 0, sim.now);
    assert!(pause < 1000 * SECOND, "{pause:?}");
}
