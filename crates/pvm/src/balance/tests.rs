use super::*;

const PERIOD: Duration = Duration::from_millis(250);
const COST: Duration = Duration::from_millis(2);

fn tid(number: u32) -> Tid {
    Tid::new(0, number + 1)
}

fn task(number: u32, rank: Rank, percent: u64) -> TaskLoad {
    let (load, freedom) = (percent * WHOLE / 100, TaskFreedom::Free);
    TaskLoad { tid: tid(number), rank, load, freedom, cost: COST }
}

/// A machine of `count` processes, with tasks of these percentages in each.
fn view(loads: &[&[u64]]) -> LoadView {
    let places = loads.iter().enumerate();
    let places = places.flat_map(|(rank, own)| own.iter().map(move |load| (rank, *load)));
    let tasks = (0..).zip(places).map(|(number, (rank, load))| task(number, rank, load)).collect();
    let processes = vec![ProcessUse::InUse; loads.len()];
    let (hosts, bytes) = (HostView::default(), BTreeMap::new());
    LoadView { processes, hosts, tasks, bytes, period: PERIOD }
}

/// Carries out a plan.
fn carry_out(view: &mut LoadView, plan: &[PlannedMove]) {
    for PlannedMove { tid, to } in plan {
        let task = view.tasks.iter_mut().find(|task| task.tid == *tid).unwrap();
        assert_ne!(task.rank, *to, "a task moves to where it is");
        task.rank = *to;
    }
}

/// The load of each process in percent.
fn percents(view: &LoadView) -> Vec<u64> {
    let load = |rank| view.tasks.iter().filter(move |task| task.rank == rank).map(|task| task.load);
    (0..view.processes.len()).map(|rank| load(rank).sum::<u64>() * 100 / WHOLE).collect()
}

fn kinds() -> [BalancerKind; 3] {
    BalancerKind::ALL.map(|(_, kind)| kind)
}

#[test]
fn names_are_those_of_the_kinds() {
    for (name, kind) in BalancerKind::ALL {
        assert_eq!((BalancerKind::of(name), kind.to_string()), (Some(kind), name.to_owned()));
    }
    assert_eq!(BalancerKind::of("off"), None);
}

#[test]
fn an_expensive_move_waits_until_the_overload_has_cost_as_much() {
    for kind in kinds() {
        let mut view = view(&[&[20, 20, 20, 20], &[]]);
        assert_eq!(view.overloaded(), Some(0));
        // Two moves gain 40 %.
        view.tasks.iter_mut().for_each(|task| task.cost = PERIOD / 2);
        assert_eq!(view.plan(Some(kind)), [], "{kind}");
        view.period = 3 * PERIOD;
        let plan = view.plan(Some(kind));
        carry_out(&mut view, &plan);
        assert_eq!((percents(&view), view.overloaded()), (vec![40, 40], None), "{kind}");
    }
}

#[test]
fn tasks_of_an_overloaded_process_are_shared() {
    for kind in kinds() {
        let mut view = view(&[&[25, 25, 25, 25], &[]]);
        let plan = view.plan(Some(kind));
        carry_out(&mut view, &plan);
        assert_eq!(percents(&view), [50, 50], "{kind}");
        assert_eq!(plan.len(), 2, "{kind}");
        assert_eq!(view.plan(Some(kind)), [], "{kind}");
    }
}

#[test]
fn what_is_balanced_within_the_tolerance_stays() {
    for kind in kinds() {
        for loads in [[&[50, 50][..], &[90]], [&[2][..], &[]], [&[100][..], &[]]] {
            assert_eq!(view(&loads).plan(Some(kind)), [], "{kind} {loads:?}");
        }
    }
}

#[test]
fn a_move_that_costs_more_than_it_gains_is_not_made() {
    for kind in kinds() {
        let mut view = view(&[&[20, 20], &[]]);
        // Each move gains 20 percent of 250 ms.
        view.tasks.iter_mut().for_each(|task| task.cost = Duration::from_millis(51));
        assert_eq!(view.plan(Some(kind)), [], "{kind}");
        view.tasks.iter_mut().for_each(|task| task.cost = Duration::from_millis(49));
        assert_eq!(view.plan(Some(kind)).len(), 1, "{kind}");
        view.tasks.iter_mut().for_each(|task| task.freedom = TaskFreedom::Settling);
        assert_eq!(view.plan(Some(kind)), [], "{kind}");
    }
}

#[test]
fn among_tasks_that_help_alike_the_one_that_talks_to_the_other_process_moves() {
    let mut view = view(&[&[30, 30, 30], &[10]]);
    view.bytes = BTreeMap::from([((tid(1), tid(3)), 1000), ((tid(0), tid(2)), 1000)]);
    assert_eq!(view.plan(Some(BalancerKind::Comm)), [PlannedMove { tid: tid(1), to: 1 }]);
    // Tasks that exchange bytes within their process stay together.
    view.bytes = BTreeMap::from([((tid(0), tid(1)), 1000)]);
    assert_eq!(view.plan(Some(BalancerKind::Comm)), [PlannedMove { tid: tid(2), to: 1 }]);
}

#[test]
fn an_evacuated_process_keeps_only_tasks_that_cannot_move() {
    for kind in kinds().map(Some).into_iter().chain([None]) {
        let mut view = view(&[&[10, 0, 0], &[50, 5, 0], &[0]]);
        view.processes[1] = ProcessUse::Evacuated;
        (view.tasks[3].freedom, view.tasks[4].freedom) =
            (TaskFreedom::Settling, TaskFreedom::Fixed);
        let plan = view.plan(kind);
        carry_out(&mut view, &plan);
        let left = view.tasks.iter().filter(|task| task.rank == 1).map(|task| task.tid);
        assert_eq!(left.collect::<Vec<_>>(), [tid(4)], "{kind:?}");
        assert_eq!(percents(&view), [10, 5, 50], "{kind:?}");
    }
}

#[test]
fn with_no_process_in_use_nothing_moves() {
    let mut view = view(&[&[10], &[50]]);
    view.processes.fill(ProcessUse::Evacuated);
    for kind in kinds() {
        assert_eq!(view.plan(Some(kind)), [], "{kind}");
    }
    assert_eq!(view.spread(), []);
}

#[test]
fn tasks_are_spread_by_their_number_whatever_their_loads_are() {
    let mut view = view(&[&[0, 90, 0, 0, 10, 0, 7], &[], &[0], &[3, 0]]);
    view.processes[3] = ProcessUse::Evacuated;
    let plan = view.spread();
    carry_out(&mut view, &plan);
    let count = |rank| view.tasks.iter().filter(|task| task.rank == rank).count();
    let mut counts = [0, 1, 2, 3].map(count);
    counts[..3].sort_unstable();
    assert_eq!(counts, [3, 3, 4, 0]);
    assert_eq!(view.spread(), []);
}

/// A linear congruential generator.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % most
    }

    fn view(&mut self) -> LoadView {
        let processes = 1 + self.below(6) as usize;
        let mut view = view(&vec![&[][..]; processes]);
        for one in &mut view.processes {
            *one = if self.below(5) == 0 { ProcessUse::Evacuated } else { ProcessUse::InUse };
        }
        for number in 0..self.below(40) as u32 {
            let percent = [0, 1, 10, 100][self.below(4) as usize];
            let percent = self.below(percent + 1);
            let mut task = task(number, self.below(processes as u64) as Rank, percent);
            task.cost = Duration::from_micros(self.below(20_000));
            task.freedom = match self.below(8) {
                0 => TaskFreedom::Fixed,
                1 => TaskFreedom::Settling,
                _ => TaskFreedom::Free,
            };
            view.tasks.push(task);
        }
        let count = view.tasks.len() as u64;
        for _ in 0..if count > 1 { self.below(60) } else { 0 } {
            let (one, other) = (self.below(count) as u32, self.below(count) as u32);
            if one != other {
                let pair = (tid(one.min(other)), tid(one.max(other)));
                *view.bytes.entry(pair).or_default() += self.below(100_000);
            }
        }
        view
    }
}

/// Plans and moves until nothing is planned, and checks what each plan keeps to.
fn settle(mut view: LoadView, kind: Option<BalancerKind>, what: &str) {
    let is_used = |view: &LoadView, rank: Rank| view.processes[rank] == ProcessUse::InUse;
    for round in 0.. {
        assert!(round < 40, "{what}: no end");
        let before = view.clone();
        let plan = view.plan(kind);
        let mut moved = plan.iter().map(|one| one.tid).collect::<Vec<_>>();
        moved.sort_unstable();
        moved.dedup();
        assert_eq!(moved.len(), plan.len(), "{what}: a task moves twice");
        carry_out(&mut view, &plan);
        let mut evacuates = false;
        for (old, new) in before.tasks.iter().zip(&view.tasks) {
            let leaves = !is_used(&before, old.rank);
            let stays = match old.freedom {
                TaskFreedom::Fixed => true,
                TaskFreedom::Settling => !leaves,
                TaskFreedom::Free => false,
            };
            assert!(!stays || old.rank == new.rank, "{what}: a pinned task moves");
            assert!(old.rank == new.rank || is_used(&before, new.rank), "{what}: to no process");
            evacuates |= leaves && old.rank != new.rank;
            let can_leave =
                before.processes.contains(&ProcessUse::InUse) && old.freedom != TaskFreedom::Fixed;
            assert!(!leaves || !can_leave || new.rank != old.rank, "{what}: a task is left");
        }
        let used = |view: &LoadView| {
            let loads = percents(view).into_iter().enumerate();
            loads.filter(|(rank, _)| is_used(view, *rank)).map(|(_, load)| load).max()
        };
        assert!(evacuates || used(&view) <= used(&before), "{what}: the largest load grows");
        if plan.is_empty() {
            return;
        }
    }
}

#[test]
fn plans_keep_to_their_rules_and_come_to_an_end_with_any_loads() {
    for seed in 1..3000 {
        let view = Random(seed).view();
        for kind in kinds().map(Some).into_iter().chain([None]) {
            settle(view.clone(), kind, &format!("{kind:?}, seed {seed}"));
        }
    }
}

/// A process of another host reports what a move has cost.
#[test]
fn a_cost_that_cannot_be_moves_no_task() {
    let mut view = view(&[&[50, 50, 50, 50], &[], &[]]);
    view.tasks.iter_mut().for_each(|task| task.cost = Duration::MAX);
    for kind in [BalancerKind::Greedy, BalancerKind::Refine, BalancerKind::Comm] {
        assert_eq!(view.plan(Some(kind)), [], "{kind:?}");
    }
}
