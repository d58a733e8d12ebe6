//! The rules of taking turns, step by step, with the test's own clock.

use super::*;
use JobSchedule::{Batch, Co, Gang};

const SLICE: Duration = Duration::from_millis(10);

struct Table {
    turns: JobTurns,
    now: Instant,
    /// What each job may do.
    grants: Vec<RunGrant>,
}

impl Table {
    /// Jobs that were started in this order, on processors 0 and 1.
    fn of(kinds: &[JobSchedule]) -> Self {
        let mut table = Self {
            turns: JobTurns::default(),
            now: Instant::now(),
            grants: vec![RunGrant::Nothing; kinds.len()],
        };
        for (id, &kind) in kinds.iter().enumerate() {
            let (since, places) = (id as u64, BTreeSet::from([0, 1]));
            let job = Newcomer {
                kind,
                slice: SLICE,
                since,
                places,
                grant: RunGrant::Nothing,
                wants: true,
            };
            table.turns.join(id as u64, job);
        }
        table.settle();
        table
    }

    /// All jobs carry out their orders, until there are no more.
    fn settle(&mut self) {
        loop {
            let orders = self.turns.orders(self.now);
            if orders.is_empty() {
                return;
            }
            for (id, order) in orders {
                self.grants[id as usize] = order.grant;
                self.turns.done(id, order.number);
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.settle();
    }

    fn busy<const N: usize>(&mut self, id: u64, places: [u32; N]) {
        self.turns.busy(id, places.into());
        self.settle();
    }

    fn running(&self) -> Vec<usize> {
        (0..self.grants.len()).filter(|&id| self.grants[id] == RunGrant::All).collect()
    }
}

#[test]
fn gangs_run_one_after_another() {
    let mut table = Table::of(&[Gang, Gang, Gang]);
    for expected in [0, 1, 2, 0, 1, 2, 0] {
        assert_eq!(table.running(), [expected]);
        table.pass(SLICE - Duration::from_millis(1));
        assert_eq!(table.running(), [expected]);
        table.pass(Duration::from_millis(1));
    }
    // A job that is stopped, or has ended, takes no turns.
    table.turns.wants(1, false);
    table.settle();
    assert_eq!(table.running(), [2]);
    table.pass(SLICE);
    assert_eq!(table.running(), [0]);
    table.turns.leave(0);
    table.grants[0] = RunGrant::Nothing;
    table.settle();
    assert_eq!((table.running(), table.turns.next()), (vec![2], None));
}

#[test]
fn batch_jobs_run_to_their_ends() {
    let mut table = Table::of(&[Batch, Batch, Batch]);
    table.pass(SLICE * 100);
    assert_eq!((table.running(), table.turns.next()), (vec![0], None));
    table.turns.leave(0);
    table.grants[0] = RunGrant::Nothing;
    table.pass(SLICE);
    assert_eq!(table.running(), [1]);
    // A stopped job gives its turn to the next one. It has the turn again afterwards, since it is
    // older.
    table.turns.wants(1, false);
    table.settle();
    assert_eq!(table.running(), [2]);
    table.turns.wants(1, true);
    table.pass(SLICE);
    assert_eq!(table.running(), [1]);
}

#[test]
fn batch_jobs_are_one_among_others() {
    let mut table = Table::of(&[Gang, Batch, Batch]);
    for expected in [0, 1, 0, 1, 0] {
        assert_eq!(table.running(), [expected]);
        table.pass(SLICE);
    }
}

#[test]
fn a_co_scheduled_job_that_sleeps_gives_its_turn_away() {
    let mut table = Table::of(&[Co, Co]);
    assert_eq!(table.running(), [0]);
    table.pass(Duration::from_millis(2));
    // It sleeps, so it need not be suspended.
    table.busy(0, []);
    assert_eq!((table.running(), table.turns.next()), (vec![0, 1], None));
    // It works again, and waits for its turn.
    table.busy(0, [1]);
    assert_eq!((table.running(), table.grants[0].clone()), (vec![1], RunGrant::Nothing));
    table.pass(SLICE);
    assert_eq!(table.running(), [0]);
    // Its member on processor 0 sleeps, so the other job's member runs there.
    assert_eq!(table.grants[1], RunGrant::On([0].into()));
    table.busy(0, []);
    table.busy(1, []);
    assert_eq!(table.running(), [0, 1]);
}

#[test]
fn a_gang_is_not_disturbed_by_co_scheduled_jobs_with_work() {
    let mut table = Table::of(&[Gang, Co, Co]);
    table.busy(1, [0]);
    table.busy(2, [1]);
    assert_eq!(table.running(), [0]);
    table.pass(SLICE);
    // They are not in each other's way.
    assert_eq!((table.running(), table.grants[2].clone()), (vec![1], RunGrant::On([1].into())));
}

#[test]
fn nobody_runs_before_the_last_one_is_suspended() {
    let mut table = Table::of(&[Gang, Gang]);
    table.now += SLICE;
    let orders = table.turns.orders(table.now);
    assert_eq!(
        orders.iter().map(|(id, order)| (*id, order.grant.clone())).collect::<Vec<_>>(),
        [(0, RunGrant::Nothing)]
    );
    assert!(table.turns.orders(table.now + LIMIT / 2).is_empty());
    // A job that does not confirm is left out, until it sends a message.
    table.now += LIMIT;
    let orders = table.turns.orders(table.now);
    assert_eq!(
        orders.iter().map(|(id, order)| (*id, order.grant.clone())).collect::<Vec<_>>(),
        [(1, RunGrant::All)]
    );
    table.pass(SLICE * 3);
    assert_eq!(table.turns.next(), None);
    table.turns.loose(0);
    table.settle();
    assert_eq!(table.grants[1], RunGrant::Nothing, "its slice was over long ago");
    assert_eq!(table.running(), [0]);
}

/// In any order of events, gangs are never granted anything together, and a job that has work and
/// is not silent always runs.
#[test]
fn at_random() {
    let mut seed = 0x5eed_u64;
    let mut dice = |sides: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % sides
    };
    for _ in 0..200 {
        let kinds: Vec<JobSchedule> =
            (0..1 + dice(5)).map(|_| [Batch, Gang, Co][dice(3) as usize]).collect();
        let mut table = Table::of(&kinds);
        let mut wants = vec![true; kinds.len()];
        for _ in 0..200 {
            let id = dice(kinds.len() as u64);
            match dice(4) {
                0 => table.now += SLICE,
                1 => {
                    wants[id as usize] = dice(2) == 0;
                    table.turns.wants(id, wants[id as usize]);
                }
                2 => table.turns.busy(id, (0..2).filter(|_| dice(2) == 0).collect()),
                _ => table.now += SLICE / 4,
            }
            table.settle();
            let strict = |at: &usize| kinds[*at] != Co && table.grants[*at] != RunGrant::Nothing;
            assert!((0..kinds.len()).filter(strict).count() <= 1, "{kinds:?} {:?}", table.grants);
            let could = (0..kinds.len()).any(|at| wants[at]);
            assert!(
                !could || table.grants.contains(&RunGrant::All),
                "{kinds:?} {:?}",
                table.grants
            );
        }
    }
}
