//! The choice of the cheapest method, for each operation of a handle.
//!
//! Source: Psyche, sections 3.3 and 4 (P8 here): the choice is between a remote access and an
//! invocation, by their costs. The costs depend on the lines that have to move, on other users of
//! the object, and on what the home is doing, all of which change while programs run. So they are
//! measured: now and then some operations in a row are timed, usually by the method that is
//! cheapest so far. Another method is tried when the time that this may waste is a 128th of what
//! was spent since; the first time an eighth, because the initial estimate may be wrong. So a
//! handle that works for long loses about two per cent to exploration, and notices changes. The
//! initial estimates are what `upcall calibrate` has measured on this machine
//! ([`costs`](crate::costs)).
//!
//! Each handle has its own record of each operation: it is used by one thread, and other threads
//! may be on processors where all costs differ.

use crate::account::{AccessMethod, Counts};
use crate::costs::Costs;

use std::any::TypeId;
use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Number of operations that are measured in a row: the first finds the data in another cache,
/// another may be an outlier, and the rest count.
const BURST: usize = 8;

/// Number of operations in the first burst of a method, in which a lane is opened and both sides
/// learn how long to poll.
const ACQUAINTED: usize = 2 * BURST;

/// Share of the time that may go to each method other than the best.
const SHARE: f64 = 1.0 / 128.0;

/// Share of the time spent so far that the first try of a method may take. Its estimate may be out
/// of date, or a guess.
const EARLY: f64 = 1.0 / 8.0;

/// Time that a handle's first invocation takes to open its lane, in ns.
const LANE: f64 = 300_000.0;

/// Overhead of measuring a burst, in ns, which is to be a hundredth of the time between two bursts.
/// Between two bursts there are [`FEWEST`] to [`MOST`] operations.
const BURST_NS: f64 = 600.0;
const FEWEST: f64 = 64.0;
const MOST: f64 = 4096.0;
/// Number of operations before the next burst, after another method was chosen.
const SOON: u32 = 16;

/// Ratio of costs below which another method is chosen.
const CLEARLY: f64 = 0.97;

/// Ratio of an operation's time to its estimate above which its burst ends, unless its method is
/// the best.
const TOO_LONG: f64 = 16.0;

/// Time that may be wasted before a method that is not possible now is tried again, in ns.
const AGAIN: f64 = 1e6;

/// The records of a handle's operations.
#[derive(Debug, Default)]
pub(crate) struct Choices(RefCell<Vec<Choice>>);

#[derive(Debug)]
pub(crate) struct Choice {
    of: TypeId,
    way: Cell<AccessMethod>,
    /// Number of operations that are run before the next one is measured.
    pub(crate) left: Cell<u32>,
    record: RefCell<OperationRecord>,
}

/// What is known of one operation.
#[derive(Debug)]
pub(crate) struct OperationRecord {
    pub(crate) best: AccessMethod,
    /// Only the best method will ever be possible.
    fixed: bool,
    ways: [CostEstimate; 3],
    /// Number of operations that were run since the last burst.
    pub(crate) ran: u32,
    /// Time that all operations before that took, in ns.
    spent: f64,
    pub(crate) burst: Option<Burst>,
}

#[derive(Clone, Copy, Debug)]
struct CostEstimate {
    /// Cost in ns; infinite if the method is never possible.
    cost: f64,
    measured: bool,
    /// Time that may be wasted on the method, in ns.
    budget: f64,
}

#[derive(Debug)]
pub(crate) struct Burst {
    way: AccessMethod,
    found: Vec<f64>,
}

impl OperationRecord {
    pub(crate) fn new(costs: &Costs, can: [bool; 3]) -> Self {
        // The estimate assumes one line beside the lock's.
        let first = [costs.lock_far, 2.0 * costs.line, costs.urgent];
        let known = |way| {
            let cost = if can[way as usize] { first[way as usize] } else { f64::INFINITY };
            CostEstimate { cost, measured: false, budget: 0.0 }
        };
        let fixed = can.into_iter().filter(|can| *can).count() < 2;
        let mut new = Self {
            best: AccessMethod::Access,
            fixed,
            ways: AccessMethod::ALL.map(known),
            ran: 0,
            spent: 0.0,
            burst: None,
        };
        new.best = new.cheapest();
        new
    }

    fn cheapest(&self) -> AccessMethod {
        let least =
            AccessMethod::ALL.into_iter().min_by(|a, b| self.cost(*a).total_cmp(&self.cost(*b)));
        least.unwrap_or(AccessMethod::Access)
    }

    fn cost(&self, way: AccessMethod) -> f64 {
        self.ways[way as usize].cost
    }

    /// The method to measure now. At the beginning of a burst, also what was done since the last
    /// one.
    pub(crate) fn begin(&mut self) -> (AccessMethod, Option<Counts>) {
        if let Some(burst) = &self.burst {
            return (burst.way, None);
        }
        let counts = self.accounted();
        let took = f64::from(std::mem::take(&mut self.ran)) * self.cost(self.best);
        self.spent += took;
        self.ways.iter_mut().for_each(|known| known.budget += took * SHARE);
        let affordable =
            |way: &AccessMethod| *way != self.best && self.affordable_after(*way) <= self.spent;
        let way = AccessMethod::ALL.into_iter().find(affordable).unwrap_or(self.best);
        self.burst = Some(Burst { way, found: Vec::with_capacity(BURST) });
        (way, Some(counts))
    }

    /// Total time in ns after which the method can be tried; infinite if it is never possible.
    fn affordable_after(&self, way: AccessMethod) -> f64 {
        let known = self.ways[way as usize];
        if known.measured {
            return self.spent + (known.cost * BURST as f64 - known.budget) / SHARE;
        }
        let lane = if way == AccessMethod::Urgent { LANE } else { 0.0 };
        let price = known.cost * ACQUAINTED as f64 + lane;
        // A method that is believed to be cheaper need not wait for long.
        if known.cost < self.cost(self.best) * CLEARLY { price } else { price / EARLY }
    }

    /// What was run since the last burst, and what each method would have taken for it.
    fn accounted(&self) -> Counts {
        let ran = u64::from(self.ran);
        let mut counts = Counts::default();
        counts.chosen[self.best as usize] = ran;
        let otherwise = self.cost(if self.cost(AccessMethod::Access).is_finite() {
            AccessMethod::Access
        } else {
            self.best
        });
        for (would, known) in counts.would.iter_mut().zip(self.ways) {
            *would =
                (ran as f64 * if known.cost.is_finite() { known.cost } else { otherwise }) as u64;
        }
        counts
    }

    /// Records that an operation of a burst took `took` ns. Returns how many to run before the next
    /// one is measured.
    pub(crate) fn measured(&mut self, took: f64) -> u32 {
        let best = self.best;
        if self.fixed {
            self.burst = None;
            return MOST as u32;
        }
        let Some(burst) = &mut self.burst else { return 0 };
        burst.found.push(took);
        let way = burst.way;
        let known = &mut self.ways[way as usize];
        // The first one may have had to open a lane.
        let too_long = way != best && burst.found.len() > 1 && took > TOO_LONG * known.cost;
        let all = if known.measured { BURST } else { ACQUAINTED };
        if burst.found.len() < all && !too_long {
            return 0;
        }
        let mut found = std::mem::take(&mut burst.found);
        self.burst = None;
        let spent = found.iter().sum::<f64>();
        let cost = if too_long {
            found.into_iter().fold(took, f64::min)
        } else {
            // Drops the first, which found the data where another method had left it, and the
            // longest.
            found.drain(..(found.len() + 1).saturating_sub(BURST).min(found.len() - 1));
            found.sort_by(f64::total_cmp);
            found.pop();
            found.iter().sum::<f64>() / found.len().max(1) as f64
        };
        let cost = cost.max(1.0);
        let mixed = if known.measured && way == best { (known.cost + cost) / 2.0 } else { cost };
        // The budget does not pile up while the method is the best.
        let budget = if way == best { 0.0 } else { known.budget - spent };
        *known = CostEstimate { cost: mixed, measured: true, budget };
        let cheapest = self.cheapest();
        if cheapest != best && self.cost(cheapest) < self.cost(best) * CLEARLY {
            self.best = cheapest;
            return SOON;
        }
        let untried = AccessMethod::ALL
            .into_iter()
            .filter(|way| *way != best && !self.ways[*way as usize].measured);
        let tries = untried.map(|way| (self.affordable_after(way) - self.spent) / self.cost(best));
        tries.fold(100.0 * BURST_NS / self.cost(best), f64::min).clamp(FEWEST, MOST) as u32
    }

    /// Records that a method is not possible now. It is tried again some time later.
    pub(crate) fn cannot(&mut self, way: AccessMethod) {
        self.burst = None;
        // Twice the dearest of the others, so that this method is not chosen when they are dear
        // because they wait.
        let others = AccessMethod::ALL
            .into_iter()
            .filter(|other| *other != way)
            .map(|other| self.cost(other));
        let dearest = others.filter(|cost| cost.is_finite()).fold(AGAIN / BURST as f64, f64::max);
        self.ways[way as usize] = CostEstimate { cost: 2.0 * dearest, measured: true, budget: 0.0 };
        if self.best == way {
            self.best = self.cheapest();
        }
    }
}

/// Cost of reading the clock twice, in ns.
pub(crate) fn clock() -> f64 {
    static CLOCK: OnceLock<f64> = OnceLock::new();
    *CLOCK.get_or_init(|| {
        let looks = (0..64).map(|_| Instant::now().elapsed());
        looks.min().unwrap_or(Duration::ZERO).as_nanos() as f64
    })
}

impl Choices {
    /// The method of the next operation, or `None` if that is to be measured.
    #[inline]
    pub(crate) fn next(&self, of: TypeId) -> Option<AccessMethod> {
        let known = self.0.borrow();
        let choice = known.first().filter(|choice| choice.of == of);
        let choice = choice.or_else(|| known.iter().find(|choice| choice.of == of))?;
        let left = choice.left.get();
        choice.left.set(left.checked_sub(1)?);
        Some(choice.way.get())
    }

    pub(crate) fn with<R>(
        &self,
        of: TypeId,
        new: impl FnOnce() -> OperationRecord,
        then: impl FnOnce(&Choice, &mut OperationRecord) -> R,
    ) -> R {
        let at = self.0.borrow().iter().position(|choice| choice.of == of);
        let at = at.unwrap_or_else(|| {
            let record = RefCell::new(new());
            let mut known = self.0.borrow_mut();
            known.push(Choice {
                of,
                way: Cell::new(AccessMethod::Access),
                left: Cell::new(0),
                record,
            });
            known.len() - 1
        });
        let known = self.0.borrow();
        let choice = &known[at];
        let mut record = choice.record.borrow_mut();
        let result = then(choice, &mut record);
        choice.way.set(record.best);
        result
    }

    /// Reports what was done since the last burst of each operation, when the handle is dropped.
    pub(crate) fn at_last(&self, mut count: impl FnMut(Counts)) {
        for choice in &*self.0.borrow() {
            let mut record = choice.record.borrow_mut();
            record.ran = record.ran.saturating_sub(choice.left.replace(0));
            count(record.accounted());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        hit: 1.0,
        line: 100.0,
        lock: 10.0,
        lock_far: 150.0,
        urgent: 500.0,
        asleep: 9000.0,
        invoke: 1500.0,
    };

    /// Runs `times` operations that each take as long as `cost` says. Returns the total time, and
    /// how often each method was used.
    fn run(
        record: &mut OperationRecord,
        times: u32,
        mut cost: impl FnMut(AccessMethod, u32) -> f64,
    ) -> (f64, [u32; 3]) {
        let (mut left, mut all, mut ways) = (0, 0.0, [0; 3]);
        for at in 0..times {
            let way = if left > 0 { record.best } else { record.begin().0 };
            let took = cost(way, at);
            (all, ways[way as usize]) = (all + took, ways[way as usize] + 1);
            if left > 0 {
                left -= 1;
            } else {
                record.ran += 1;
                left = record.measured(took);
                record.ran += left;
            }
        }
        (all, ways)
    }

    #[test]
    fn the_cheapest_is_found_whichever_it_is_and_looking_around_takes_little() {
        for cheap in AccessMethod::ALL {
            for (cheapest, others) in
                [(20.0, 1000.0), (100.0, 130.0), (500.0, 50_000.0), (10_000.0, 100_000.0)]
            {
                let mut record = OperationRecord::new(&COSTS, [true; 3]);
                let cost = |way, _| if way == cheap { cheapest } else { others };
                run(&mut record, 10_000, cost);
                let (all, _) = run(&mut record, 300_000, cost);
                assert_eq!(record.best, cheap, "{cheapest} and {others}");
                let wasted = all / (300_000.0 * cheapest) - 1.0;
                assert!(wasted < 0.03, "{cheap:?}, {cheapest} and {others}: {wasted:.3}");
            }
        }
    }

    #[test]
    fn what_is_believed_wrongly_is_found_out_soon_and_at_little_cost() {
        for believed in [5.0, 4000.0, 50_000.0] {
            let mut record =
                OperationRecord::new(&Costs { urgent: believed, ..COSTS }, [true, false, true]);
            let cost = |way, _| if way == AccessMethod::Access { 230.0 } else { 160.0 };
            // 15 ms, and more for a method that is believed to take long.
            run(&mut record, if believed > 10_000.0 { 50_000 } else { 20_000 }, cost);
            assert_eq!(record.best, AccessMethod::Urgent, "believed to take {believed}");
        }
        for believed in [5.0, 500.0] {
            let mut record =
                OperationRecord::new(&Costs { urgent: believed, ..COSTS }, [true, false, true]);
            let (all, _) =
                run(
                    &mut record,
                    10_000,
                    |way, _| if way == AccessMethod::Access { 100.0 } else { 2000.0 },
                );
            assert_eq!(record.best, AccessMethod::Access, "believed to take {believed}");
            assert!(all < 1.1 * 10_000.0 * 100.0, "believed to take {believed}: {all:.0}");
        }
    }

    #[test]
    fn what_changes_is_noticed() {
        let mut record = OperationRecord::new(&COSTS, [true, false, true]);
        run(&mut record, 100_000, |way, _| if way == AccessMethod::Access { 100.0 } else { 600.0 });
        assert_eq!(record.best, AccessMethod::Access);
        // Other parties arrive, and operations wait for the lock.
        let (_, ways) =
            run(
                &mut record,
                100_000,
                |way, _| if way == AccessMethod::Access { 1500.0 } else { 600.0 },
            );
        assert_eq!(record.best, AccessMethod::Urgent);
        assert!(ways[0] < 10_000, "{ways:?}");
        // They leave again, which is found when the method is tried.
        run(&mut record, 100_000, |way, _| if way == AccessMethod::Access { 100.0 } else { 600.0 });
        assert_eq!(record.best, AccessMethod::Access);
        // Outliers change nothing.
        run(&mut record, 100_000, |way, at| match way {
            AccessMethod::Access if at % 997 == 0 => 1e6,
            AccessMethod::Access => 100.0,
            _ => 600.0,
        });
        assert_eq!(record.best, AccessMethod::Access);
    }

    #[test]
    fn a_way_that_takes_for_ever_is_tried_once_and_then_seldom() {
        let mut record = OperationRecord::new(&COSTS, [true, false, true]);
        let (_, ways) =
            run(
                &mut record,
                1_000_000,
                |way, _| if way == AccessMethod::Access { 100.0 } else { 1e6 },
            );
        assert!((1..=2).contains(&ways[2]), "{ways:?}");
    }

    #[test]
    fn what_cannot_be_done_is_never_tried_and_what_cannot_now_seldom() {
        let mut record = OperationRecord::new(&COSTS, [true, false, true]);
        let (_, ways) =
            run(
                &mut record,
                100_000,
                |way, _| if way == AccessMethod::Urgent { 10.0 } else { 1e5 },
            );
        assert_eq!((ways[1], record.best), (0, AccessMethod::Urgent));
        let mut record =
            OperationRecord::new(&Costs { urgent: 50.0, ..COSTS }, [true, false, true]);
        assert_eq!(record.best, AccessMethod::Urgent);
        record.cannot(AccessMethod::Urgent);
        assert_eq!(record.best, AccessMethod::Access);
        let (_, ways) = run(&mut record, 100_000, |_, _| 100.0);
        assert!(ways[2] == 0, "{ways:?}");
        // The same where the other methods have to wait for long.
        run(&mut record, 1000, |_, _| 1e7);
        record.best = AccessMethod::Urgent;
        record.cannot(AccessMethod::Urgent);
        assert_eq!(record.best, AccessMethod::Access);
        let only = OperationRecord::new(&COSTS, [false, false, true]);
        assert!(only.fixed && only.best == AccessMethod::Urgent);
    }

    #[test]
    fn what_was_run_and_would_have_been_is_accounted() {
        let mut record = OperationRecord::new(&COSTS, [true, false, true]);
        run(&mut record, 50_000, |way, _| if way == AccessMethod::Access { 100.0 } else { 600.0 });
        record.ran = 10;
        let counts = record.accounted();
        assert_eq!((counts.chosen, counts.would[0], counts.would[1]), ([10, 0, 0], 1000, 1000));
        assert!(counts.would[2] >= 5000, "{counts:?}");
    }
}
