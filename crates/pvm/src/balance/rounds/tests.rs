use super::*;
use crate::balance::{BalancerKind, MeasuredTask};

fn balancing(least: usize) -> BalancingRounds {
    let balancer = Some(BalancerKind::Refine);
    BalancingRounds::new(BalancePlan { balancer, least, is_alone: false })
}

#[test]
fn the_first_processes_are_used_that_are_neither_evacuated_nor_ended() {
    let mut balancing = balancing(2);
    assert_eq!(balancing.used(4), [0, 1]);
    balancing.evacuated.insert(0);
    assert_eq!(balancing.used(4), [1, 2]);
    balancing.ended.insert(2);
    assert_eq!(balancing.used(4), [1, 3]);
    assert_eq!(balancing.used(2), [1]);
}

#[test]
fn loads_are_averaged_and_those_of_tasks_that_have_moved_are_kept() {
    let mut balancing = balancing(2);
    let (one, other) = (Tid::new(0, 1), Tid::new(0, 2));
    let measured = |balancing: &mut BalancingRounds, loads: &[(Tid, u64)]| {
        balancing.begin_measuring(PERIOD);
        let task =
            |(tid, load): &(Tid, u64)| MeasuredTask { tid: *tid, load: *load, is_pinned: false };
        let (tasks, bytes) = (loads.iter().map(task).collect(), Vec::new());
        // A process may report anything. What is no task of its own does not count.
        balancing.measured(MeasuredLoads { tasks, bytes }, |tid| tid != other);
        balancing.loads.get(&one).map(|known| known.load)
    };
    assert_eq!(measured(&mut balancing, &[(one, u64::MAX), (other, 7)]), Some(WHOLE));
    assert_eq!(measured(&mut balancing, &[(one, WHOLE * 3 / 4)]), Some(WHOLE * 7 / 8));
    assert_eq!(balancing.loads.len(), 1);
    balancing.loads.get_mut(&one).unwrap().settles = SETTLES;
    assert_eq!(measured(&mut balancing, &[]), Some(WHOLE * 7 / 8));
    assert_eq!(measured(&mut balancing, &[]), Some(WHOLE * 7 / 16));
    // A load that is another one altogether counts at once.
    assert_eq!(measured(&mut balancing, &[(one, WHOLE)]), Some(WHOLE));
    assert_eq!(measured(&mut balancing, &[(one, WHOLE / 8)]), Some(WHOLE / 8));
    // In the end an idle task is forgotten.
    let left = (0..20).filter_map(|_| measured(&mut balancing, &[])).count();
    assert!(left < 12 && balancing.loads.is_empty());
}

#[test]
fn a_load_that_was_measured_for_longer_counts_for_more() {
    let (mut balancing, mut now) = (balancing(2), Instant::now());
    let tid = Tid::new(1, 1);
    let mut measured = |load, after| {
        now += after;
        let round = balancing.measure(now, 2);
        balancing.report(1, round, loads(load), now, |_| true);
        (balancing.loads[&tid].load, balancing.is_changing)
    };
    assert_eq!(measured(WHOLE / 2, PERIOD), (WHOLE / 2, false));
    // The loads in the process are not those of its last report, until they are nearly so.
    assert_eq!(measured(WHOLE / 4, PERIOD), (WHOLE * 3 / 8, true));
    assert_eq!(measured(WHOLE / 4, 2 * PERIOD), (WHOLE * 9 / 32, true));
    assert_eq!(measured(WHOLE / 4, PERIOD), (WHOLE * 17 / 64, false));
    // In a short time only chance can make such a difference.
    let (short, _) = measured(WHOLE, PERIOD / 50);
    assert!((WHOLE * 17 / 64..WHOLE * 19 / 64).contains(&short), "{short}");
    assert_eq!(measured(WHOLE, PERIOD), (WHOLE, false));
}

#[test]
fn the_next_round_comes_soon_after_moves_and_while_loads_change() {
    let (mut balancing, mut now) = (balancing(2), Instant::now());
    let mut next = |load, is_moved: bool| {
        let round = balancing.measure(now, 2);
        balancing.report(1, round, loads(load), now, |_| true);
        balancing.begin_moves(Vec::new(), None);
        if let Some(known) = balancing.loads.get_mut(&Tid::new(1, 1)).filter(|_| is_moved) {
            (known.settles, balancing.moved) = (SETTLES, 1);
        }
        balancing.end_round(LeftTasks::None, now, 2);
        let time = balancing.next.unwrap() - now;
        now += time;
        time
    };
    assert_eq!([next(WHOLE / 2, false), next(WHOLE / 2, false)], [2 * PERIOD, 4 * PERIOD]);
    // After a move, and when what has moved was not measured for long.
    assert_eq!([next(WHOLE / 2, true), next(WHOLE / 2, false)], [PERIOD; 2]);
    assert_eq!(next(WHOLE / 2, false), 2 * PERIOD);
    // Until what is known is nearly what was measured last.
    let changing = [next(WHOLE * 3 / 10, false), next(WHOLE / 2, false), next(WHOLE / 2, false)];
    assert_eq!(changing, [PERIOD; 3]);
    assert_eq!(next(WHOLE / 2, false), 2 * PERIOD);
}

fn loads(load: u64) -> MeasuredLoads {
    let task = MeasuredTask { tid: Tid::new(1, 1), load, is_pinned: false };
    let tasks = if load > 0 { vec![task] } else { Vec::new() };
    MeasuredLoads { tasks, bytes: Vec::new() }
}

/// Ends a round without moves.
fn end(balancing: &mut BalancingRounds, left: LeftTasks, now: Instant, size: usize) {
    balancing.begin_moves(Vec::new(), None);
    assert!(balancing.has_moved());
    assert_eq!(balancing.end_round(left, now, size), RoundEnd::Answered);
}

#[test]
fn a_late_report_of_loads_ends_the_rest() {
    let (mut balancing, now) = (balancing(2), Instant::now());
    let round = balancing.measure(now, 2);
    assert_eq!(balancing.report(0, round, loads(0), now, |_| true), LoadReport::Early);
    let late = balancing.timer().unwrap();
    end(&mut balancing, LeftTasks::None, late, 2);
    assert_eq!((balancing.phase, balancing.timer()), (RoundPhase::Rests, None));
    assert_eq!(balancing.report(1, round, loads(0), late, |_| true), LoadReport::Late);
    assert_eq!((balancing.phase, balancing.timer()), (RoundPhase::Rests, None));
    assert_eq!(balancing.report(1, round, loads(7), late, |_| true), LoadReport::Late);
    assert_eq!((balancing.phase, balancing.timer()), (RoundPhase::Waits, Some(late + PERIOD)));
}

#[test]
fn a_report_of_an_earlier_round_is_not_taken_for_a_new_one() {
    let (mut balancing, now) = (balancing(2), Instant::now());
    let first = balancing.measure(now, 2);
    end(&mut balancing, LeftTasks::None, now, 2);
    let second = balancing.measure(now, 2);
    assert_eq!(balancing.report(1, first, loads(0), now, |_| true), LoadReport::Late);
    assert_eq!(balancing.report(0, second, loads(0), now, |_| true), LoadReport::Early);
    assert_eq!(balancing.report(1, second, loads(7), now, |_| true), LoadReport::Last);
    // A process may report twice.
    assert_eq!(balancing.report(1, second, loads(7), now, |_| true), LoadReport::Late);
    assert_eq!(balancing.loads.get(&Tid::new(1, 1)).map(|known| known.load), Some(7));
}

#[test]
fn the_end_of_the_process_whose_report_is_missing_ends_the_measuring() {
    let (mut balancing, now) = (balancing(3), Instant::now());
    let round = balancing.measure(now, 3);
    assert_eq!(balancing.lose(2), LoadReport::Early);
    assert_eq!(balancing.report(0, round, loads(0), now, |_| true), LoadReport::Early);
    assert_eq!(balancing.lose(1), LoadReport::Last);
}

#[test]
fn a_resting_machine_counts_processors_but_sets_no_timer() {
    let (mut balancing, now) = (balancing(1), Instant::now());
    assert_eq!(balancing.counted(Some(1), 3), ProcessorCount::Changed);
    end(&mut balancing, LeftTasks::None, now, 3);
    assert_eq!((balancing.phase, balancing.timer()), (RoundPhase::Rests, None));
    let counts = balancing.next.unwrap();
    assert_eq!(balancing.counted(Some(1), 3), ProcessorCount::Same);
    assert_eq!(balancing.counted(None, 3), ProcessorCount::Same);
    balancing.go_on(counts, 3);
    assert!(balancing.next > Some(counts) && balancing.timer().is_none());
    for (count, number) in [(2, 2), (9, 3), (0, 1)] {
        assert_eq!(balancing.counted(Some(count), 3), ProcessorCount::Changed);
        assert_eq!(balancing.number, number);
    }
    // Without a range of processes there is nothing to count for.
    end(&mut balancing, LeftTasks::None, now, 1);
    assert_eq!(balancing.next, None);
}

#[test]
fn a_machine_that_computes_counts_processors_between_its_rounds() {
    let (mut balancing, mut now) = (balancing(1), Instant::now());
    let mut counts = Vec::new();
    for _ in 0..6 {
        assert!(!balancing.is_to_count() || balancing.phase == RoundPhase::Rests);
        balancing.measure(now, 2);
        balancing.woken(now);
        end(&mut balancing, LeftTasks::None, now, 2);
        let (next, mut count) = (balancing.next.unwrap(), 0);
        while balancing.is_to_count() {
            let due = balancing.timer().unwrap();
            assert!(now < due && due < next && due <= now + COUNTS);
            now = due;
            balancing.go_on(now, 2);
            count += 1;
        }
        assert_eq!(balancing.timer(), Some(next));
        // A count that comes late is not followed by another one before the round.
        now = next;
        balancing.go_on(now, 2);
        assert!(!balancing.is_to_count());
        counts.push(count);
    }
    assert!(counts.is_sorted() && counts[0] > 1, "{counts:?}");
    // Without a range of processes there is nothing to count for.
    balancing.measure(now, 1);
    balancing.woken(now);
    end(&mut balancing, LeftTasks::None, now, 1);
    assert_eq!((balancing.phase, balancing.is_to_count()), (RoundPhase::Waits, false));
}

#[test]
fn tasks_that_stay_in_an_evacuated_process_are_tried_again_while_nothing_computes() {
    let (mut balancing, mut now) = (balancing(1), Instant::now());
    let mut rounds = |balancing: &mut BalancingRounds, left| {
        let one = |_| {
            end(balancing, left, now, 2);
            now = balancing.timer()?;
            Some(())
        };
        (0..100).map_while(one).count()
    };
    assert_eq!(rounds(&mut balancing, LeftTasks::Soon), RETRIES as usize);
    assert_eq!(rounds(&mut balancing, LeftTasks::Some), 0);
    // Once they have left, the next ones are tried as often.
    assert_eq!(rounds(&mut balancing, LeftTasks::None), 0);
    assert_eq!(rounds(&mut balancing, LeftTasks::Some), RETRIES as usize);
}

#[test]
fn a_long_pause_is_forgotten_so_that_later_moves_can_show_a_shorter_one() {
    let (mut balancing, now) = (balancing(2), Instant::now());
    let (moved, other) = (Tid::new(0, 1), Tid::new(0, 2));
    balancing.note_move(moved, 0, 1, Duration::from_secs(1));
    let costs = |balancing: &mut BalancingRounds, tid| {
        balancing.measure(now, 2);
        balancing.cost(tid, balancing.mean_pause())
    };
    assert!(costs(&mut balancing, moved) > Duration::from_millis(700));
    assert!(costs(&mut balancing, other) > Duration::from_millis(500));
    let rounds = (0..30).find(|_| costs(&mut balancing, other) < PAUSE + 2 * OVERHEAD);
    assert!(rounds.is_some_and(|rounds| rounds > 15), "{rounds:?}");
    // A reader of the last pause still sees it.
    assert_eq!(balancing.moves[&moved].pause, Duration::from_secs(1));
    balancing.note_move(moved, 0, 1, Duration::MAX);
    assert!(costs(&mut balancing, moved) > Duration::from_secs(1));
}

/// A process, as the first one asks it for loads ([`meter`](crate::node)).
#[derive(Default)]
struct ModelProcess {
    /// Whether a task has computed since the last report.
    computed: bool,
    rests: bool,
    /// Questions that have not arrived.
    asked: VecDeque<u64>,
    /// Messages to the first process that have not arrived. `None`: a task computes.
    sent: VecDeque<Option<(u64, u64)>>,
}

impl ModelProcess {
    fn compute(&mut self) {
        self.computed = true;
        if std::mem::take(&mut self.rests) {
            self.sent.push_back(None);
        }
    }

    fn answer(&mut self) {
        let Some(round) = self.asked.pop_front() else { return };
        let computed = std::mem::take(&mut self.computed);
        self.rests = !computed;
        self.sent.push_back(Some((round, computed.into())));
    }

    /// Returns `true` if a message or a wake will report that a task computes.
    fn will_wake(&self) -> bool {
        let wakes = |one: &Option<(u64, u64)>| one.is_none_or(|(_, load)| load > 0);
        self.rests || !self.asked.is_empty() || self.sent.iter().any(wakes)
    }
}

#[test]
fn a_machine_does_not_rest_while_a_process_that_computes_keeps_silent() {
    let (mut balancing, mut now) = (balancing(3), Instant::now());
    balancing.begin(RoundPhase::Waits, now, PERIOD);
    let mut all = [(); 3].map(|()| ModelProcess::default());
    let (mut random, mut rests) = (crate::balance::tests::Random(7), 0);
    for step in 0..200_000 {
        let rank = random.below(3) as usize;
        let mut is_over = false;
        match random.below(40) {
            0 => all[rank].compute(),
            // A phase mostly ends before all have reported.
            1..8 if balancing.timer().is_some() => {
                now = balancing.timer().unwrap();
                is_over = balancing.phase == RoundPhase::Measures;
                if balancing.phase == RoundPhase::Waits {
                    let round = balancing.measure(now, 3);
                    all.iter_mut().for_each(|one| one.asked.push_back(round));
                }
            }
            8..20 => all[rank].answer(),
            _ => match all[rank].sent.pop_front() {
                Some(Some((round, load))) => {
                    let report = balancing.report(rank, round, loads(load), now, |_| true);
                    is_over = report == LoadReport::Last;
                }
                Some(None) => balancing.woken(now),
                None => {}
            },
        }
        if is_over {
            end(&mut balancing, LeftTasks::None, now, 3);
        }
        if balancing.phase == RoundPhase::Rests {
            rests += 1;
            assert!(all.iter().all(ModelProcess::will_wake), "step {step}");
        }
    }
    assert!(rests > 1000, "{rests} rests");
}

#[test]
fn the_longer_a_process_has_too_much_to_do_the_more_a_move_may_cost() {
    let (mut balancing, now) = (balancing(2), Instant::now());
    let mut notes = |rank, periods| {
        balancing.note_overload(rank, now + periods * PERIOD);
        balancing.time_to_pay(now + (periods + 1) * PERIOD)
    };
    assert_eq!([notes(None, 0), notes(None, 1)], [PERIOD; 2]);
    assert_eq!([notes(Some(1), 2), notes(Some(1), 4)], [2 * PERIOD, 4 * PERIOD]);
    // Another process, and none.
    assert_eq!([notes(Some(0), 5), notes(Some(0), 6)], [2 * PERIOD, 3 * PERIOD]);
    assert_eq!([notes(None, 7), notes(Some(0), 8)], [PERIOD, 2 * PERIOD]);
    // The time of a rest does not count.
    end(&mut balancing, LeftTasks::None, now + 9 * PERIOD, 2);
    assert_eq!(balancing.phase, RoundPhase::Rests);
    assert_eq!(balancing.time_to_pay(now + 1000 * PERIOD), PERIOD);
}
