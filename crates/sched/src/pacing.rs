//! How long to spin before sleeping.
//!
//! At most the cost of sleeping and being woken, and less where spinning did not help lately.
//!
//! Source: spin-then-block with a budget equal to the cost of blocking is at most twice as bad as
//! knowing the future (Karlin and others, 1991, whom URPC's section 3.1 follows in spirit). The
//! adaptation is ours: a fruitful spin doubles the budget, a fruitless one halves it, and now and
//! then the full budget is tried again, so that a change of habits is noticed.

use crate::costs::WaitCosts;
use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicU32, Ordering};
use upcall_os::clock;

/// What a waiting processor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pacing {
    /// Spin for a bounded time that adapts, at most [`LONGEST`], then sleep. An idle domain takes
    /// no processor time.
    #[default]
    Adaptive,
    /// Poll for ever. The lowest latency, for a processor that has nothing else to do; it is busy
    /// all the time. A kernel thread that calls a sleeping server still sleeps.
    Poll,
    /// Sleep at once.
    Sleep,
}

/// Maximum time of a spin: about the cost of waking a sleeper on another CPU.
pub const LONGEST: Duration = Duration::from_micros(50);

const LONGEST_NS: u32 = LONGEST.as_nanos() as u32;
const SHORTEST_NS: u32 = 500;
/// Number of fruitless spins after which the full budget is tried again.
const RETRY: u32 = 32;

/// A budget for spinning that adapts; see the module. Races between its users make it only less
/// exact.
#[derive(Debug)]
pub struct SpinBudget {
    budget_ns: AtomicU32,
    fruitless: AtomicU32,
}

impl Default for SpinBudget {
    fn default() -> Self {
        Self { budget_ns: AtomicU32::new(LONGEST_NS), fruitless: AtomicU32::new(0) }
    }
}

impl SpinBudget {
    /// Maximum time of the next spin.
    pub fn budget(&self, pacing: Pacing) -> Duration {
        match pacing {
            Pacing::Poll => Duration::MAX,
            Pacing::Sleep => Duration::ZERO,
            Pacing::Adaptive if self.fruitless.load(Ordering::Relaxed) % RETRY == RETRY - 1 => {
                LONGEST
            }
            Pacing::Adaptive => {
                Duration::from_nanos(u64::from(self.budget_ns.load(Ordering::Relaxed)))
            }
        }
    }

    /// Adapts to a spin that found something.
    pub fn fruitful(&self) {
        let budget = self.budget_ns.load(Ordering::Relaxed);
        if budget < LONGEST_NS {
            self.budget_ns.store((budget * 2).min(LONGEST_NS), Ordering::Relaxed);
        }
    }

    /// Resets the budget, because what was learned no longer holds.
    pub fn renew(&self) {
        self.budget_ns.store(LONGEST_NS, Ordering::Relaxed);
    }

    /// Adapts to a spin that found nothing.
    pub fn fruitless(&self) {
        let budget = self.budget_ns.load(Ordering::Relaxed);
        self.budget_ns.store((budget / 2).max(SHORTEST_NS), Ordering::Relaxed);
        self.fruitless.fetch_add(1, Ordering::Relaxed);
    }
}

/// Yields to other threads on the same CPU while polling.
///
/// It yields at every step as long as other threads take the yields, and seldom otherwise. A poller
/// cannot know whether the thread that it waits for shares its CPU. If it does, polling alone would
/// last for a time slice. A yield that no thread takes costs a system call, so after each such
/// yield the next one is put off for longer.
#[derive(Debug)]
pub struct GiveWay {
    left: u32,
    interval: u32,
    /// [`WaitCosts::taken_yield`].
    taken: Duration,
}

/// Maximum number of steps between two yields: about a quarter of a millisecond of polling.
const LONGEST_INTERVAL: u32 = 16_383;

impl GiveWay {
    /// Creates a policy for a machine with these costs.
    pub fn new(costs: WaitCosts) -> Self {
        Self { left: 0, interval: 0, taken: costs.taken_yield }
    }

    /// Counts one step of polling, and yields if that is due.
    ///
    /// A thread that has the CPU for a time slice has it for longer than any poller may poll. So a
    /// poller with a budget reads the clock after [`CpuShare::Given`].
    #[inline]
    pub fn step(&mut self) -> CpuShare {
        if self.is_due() { self.learn(timed_yield()) } else { CpuShare::Kept }
    }

    /// Counts one step of polling. Returns `true` if a yield is due:
    /// [`learn`](Self::learn) follows.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        let due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        due
    }

    /// Adapts the interval to a yield that took this long.
    pub fn learn(&mut self, took: Duration) -> CpuShare {
        let share = if took > self.taken { CpuShare::Given } else { CpuShare::Kept };
        self.interval = match share {
            CpuShare::Given => 0,
            CpuShare::Kept => (self.interval * 2 + 1).min(LONGEST_INTERVAL),
        };
        self.left = self.interval;
        share
    }
}

/// Whether another thread had the CPU during a step of polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuShare {
    /// No other thread had it.
    Kept,
    /// Another thread had it, perhaps for a time slice.
    Given,
}

/// Yields the CPU once. Returns how long that took.
#[cold]
pub fn timed_yield() -> Duration {
    let start = Instant::now();
    upcall_os::processor::give_way();
    start.elapsed()
}

/// Yields by a caller to a server that was woken on the caller's own CPU.
///
/// Where the wake alone did not make the kernel switch to the server, a yield does. It spares the
/// caller a sleep and the server a wake: a third of the hand-off. If a yield does not bring the
/// reply at once, then the procedure takes long or other threads want the CPU too. Sleeping is then
/// better: a thread that yields goes to the end of their queue. After each such time the yield is
/// left out for longer.
///
/// A third thread that takes such a yield keeps the CPU until the kernel's tick. So yields are
/// measured only if ticks follow each other more closely than `OFFERS_A_TICK`, and then for a while
/// (`WATCHED`): reading the exact clock twice takes a thirtieth of the whole hand-off, reading the
/// tick next to nothing.
#[derive(Debug, Default)]
pub struct HandOver {
    left_out: u32,
    interval: u32,
    /// The last tick that was seen, and the number of yields since.
    tick: u64,
    offers: u32,
    /// Number of yields that are still to be measured.
    watched: u32,
    /// The last yield took so long that a third thread must have taken it, or that the procedure is
    /// a long one.
    slice: bool,
    costs: WaitCosts,
}

/// Minimum number of yields per tick if only the server takes them. A tick has room for more.
const OFFERS_A_TICK: u32 = 512;
/// Number of yields between two readings of the tick: other threads that take every yield are
/// noticed after that many.
const OFFERS_A_LOOK: u32 = 8;
/// Number of yields that are measured after a suspicion. Other threads that took yields lately take
/// one again before that.
const WATCHED: u32 = 1024;
/// Maximum number of yields in a row. The first nearly always brings the reply; the second brings
/// the reply of a server that was preempted by another wake.
const HAND_OVERS: u32 = 2;
const MOST_LEFT_OUT: u32 = 1023;
/// Time of a yield that a third thread must have taken. The kernel's slices take milliseconds;
/// interrupts and hosts take less, as a rule.
const A_SLICE: Duration = Duration::from_micros(500);

/// Whether a caller yields its CPU to the server now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It does not: the last yields did not bring the reply.
    LeftOut,
    /// It yields.
    Untimed,
    /// It yields, and measures how long that takes.
    Timed,
}

/// The result of yielding a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yielded {
    /// The awaited message, or another awaited event, has arrived.
    Arrived,
    /// Nothing arrived: it is better to sleep.
    Nothing,
}

impl Yielded {
    fn of(there: bool) -> Self {
        if there { Self::Arrived } else { Self::Nothing }
    }
}

impl HandOver {
    /// Creates a policy for a machine with these costs.
    pub fn new(costs: WaitCosts) -> Self {
        Self { costs, ..Self::default() }
    }

    /// Yields until `is_there`, or until it is better to sleep. Returns `true` if `is_there` did.
    #[inline]
    pub fn until(&mut self, is_there: impl Fn() -> bool) -> bool {
        self.came_at_once();
        is_there() || self.give_way_until(is_there)
    }

    #[cold]
    fn give_way_until(&mut self, is_there: impl Fn() -> bool) -> bool {
        let offer = self.offer();
        if offer == Offer::LeftOut {
            return false;
        }
        let (yielded, took) = yield_to_server(offer, self.costs, is_there);
        self.learn(yielded, took, clock::tick);
        yielded == Yielded::Arrived
    }

    /// Decides on the next yield. [`learn`](Self::learn) follows, unless the yield is left out.
    pub fn offer(&mut self) -> Offer {
        self.slice = false;
        if self.left_out > 0 {
            self.left_out -= 1;
            Offer::LeftOut
        } else if self.watched > 0 {
            Offer::Timed
        } else {
            Offer::Untimed
        }
    }

    /// Notes that the reply was there before a yield.
    pub fn came_at_once(&mut self) {
        self.slice = false;
    }

    /// Adapts to a yield that took this long, or zero if that was not measured. `tick` returns the
    /// number of the kernel's tick.
    pub fn learn(&mut self, yielded: Yielded, took: Duration, tick: impl FnOnce() -> u64) {
        self.offers += 1;
        let well = yielded == Yielded::Arrived && took <= self.costs.hand_over;
        if !well || self.watched > 0 || self.offers.is_multiple_of(OFFERS_A_LOOK) {
            self.watch(tick(), well);
        }
        self.slice = took > A_SLICE;
        self.interval = if well { 0 } else { (self.interval * 2 + 1).min(MOST_LEFT_OUT) };
        self.left_out = self.interval;
    }

    /// Decides whether the next yields are measured. `well` is `false` if the last yield did not
    /// bring the reply soon. It is enough to call this for every [`OFFERS_A_LOOK`]th yield that
    /// went well.
    #[inline]
    fn watch(&mut self, tick: u64, well: bool) {
        self.watched = self.watched.saturating_sub(1);
        if self.tick != tick || !well {
            if self.offers < OFFERS_A_TICK || !well {
                self.watched = WATCHED;
            }
            (self.tick, self.offers) = (tick, 0);
        }
    }
}

/// Whether a caller asks a server on its own CPU to stay.
///
/// A server that stays yields when it has answered, instead of sleeping, so the next call only has
/// to yield in turn. That spares the server a sleep and the caller a wake, half of the hand-off.
///
/// If a third thread wants the CPU too, such a yield costs a slice of some milliseconds, where a
/// wake would have brought the server the CPU at once; and one such slice outweighs a thousand
/// hand-offs. So after a yield that took long, the caller does not ask for `LEAST_WITHOUT` calls,
/// and for four times as many after the next such yield, until as many yields in a row were short.
/// A procedure that takes long looks the same to its caller, and loses nothing.
#[derive(Debug, Default)]
pub struct Stay {
    left_out: u32,
    interval: u32,
    /// Number of yields in a row that were short.
    short: u32,
}

const LEAST_WITHOUT: u32 = 1 << 10;
const MOST_WITHOUT: u32 = 1 << 16;

impl Stay {
    /// Returns `true` if this call asks the server to stay.
    #[inline]
    pub fn is_wanted(&mut self, hand_over: &HandOver) -> bool {
        if self.left_out > 0 {
            self.left_out -= 1;
            return false;
        }
        hand_over.left_out == 0
    }

    /// Adapts to the last yield to a server that was asked to stay.
    #[inline]
    pub fn learn(&mut self, hand_over: &HandOver) {
        if hand_over.slice {
            self.interval = (self.interval * 4).clamp(LEAST_WITHOUT, MOST_WITHOUT);
            (self.left_out, self.short) = (self.interval, 0);
            return;
        }
        self.short += 1;
        if self.short > self.interval {
            (self.interval, self.short) = (0, 0);
        }
    }
}

/// Yields the CPU to a server on it until `is_there`, as `offer` requires. Also returns how long
/// that took; zero if it is not measured.
pub fn yield_to_server(
    offer: Offer,
    costs: WaitCosts,
    is_there: impl Fn() -> bool,
) -> (Yielded, Duration) {
    let begun = (offer == Offer::Timed).then(Instant::now);
    let took = || begun.map_or(Duration::ZERO, |begun| begun.elapsed());
    let there = offer_until(is_there, || took() > costs.hand_over);
    (Yielded::of(there), took())
}

/// Yields until `is_there`, before a server sleeps on the CPU that its callers gave it.
///
/// Returns `Nothing` if it is better to sleep: no thread took the CPU, or other threads did. These
/// yields are not timed: a caller that finds that other threads take them asks for no more of them
/// ([`Stay`]).
pub fn hand_back(is_there: impl Fn() -> bool) -> Yielded {
    Yielded::of(offer_until(is_there, || false))
}

/// Yields until `is_there`, at most [`HAND_OVERS`] times, and not again if one has taken
/// `too_long`. Returns `true` if `is_there` did.
#[inline]
fn offer_until(is_there: impl Fn() -> bool, too_long: impl Fn() -> bool) -> bool {
    (0..HAND_OVERS).any(|offers| {
        if offers > 0 && too_long() {
            return false;
        }
        upcall_os::processor::give_way();
        is_there()
    })
}

/// For the explorer of the idle policy: a copy with its numbers cut, so that there are finitely
/// many states; and the number of that state.
#[cfg(test)]
impl GiveWay {
    pub(crate) fn cut(&self) -> (Self, u8) {
        let left = self.left.min(1);
        (Self { left, interval: 1, taken: self.taken }, left as u8)
    }
}

#[cfg(test)]
impl HandOver {
    pub(crate) fn cut(&self) -> (Self, u8) {
        let left_out = self.left_out.min(1);
        (Self { left_out, ..Self::default() }, left_out as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_an_offer_that_took_long_calls_by_the_thousand_do_without() {
        let (mut stay, good) = (Stay::default(), HandOver::default());
        let bad = HandOver { left_out: 1, interval: 1, slice: true, ..HandOver::default() };
        for without in [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 16] {
            assert!(stay.is_wanted(&good) && !stay.is_wanted(&bad));
            stay.learn(&good);
            stay.learn(&bad);
            assert_eq!((0..1 << 17).position(|_| stay.is_wanted(&good)), Some(without));
        }
        (0..=1 << 16).for_each(|_| stay.learn(&good));
        stay.learn(&bad);
        assert_eq!((0..1 << 17).position(|_| stay.is_wanted(&good)), Some(1 << 10));
    }

    #[test]
    fn fruitless_spins_shrink_and_full_ones_are_tried_again() {
        let spin_budget = SpinBudget::default();
        assert_eq!(spin_budget.budget(Pacing::Adaptive), LONGEST);
        let full = (0..2 * RETRY).filter(|_| {
            spin_budget.fruitless();
            spin_budget.budget(Pacing::Adaptive) == LONGEST
        });
        assert_eq!(full.count(), 2);
        assert_eq!(
            spin_budget.budget(Pacing::Adaptive),
            Duration::from_nanos(u64::from(SHORTEST_NS))
        );
        for _ in 0..10 {
            spin_budget.fruitful();
        }
        assert_eq!(spin_budget.budget(Pacing::Adaptive), LONGEST);
        spin_budget.fruitless();
        spin_budget.renew();
        assert_eq!(spin_budget.budget(Pacing::Adaptive), LONGEST);
    }

    #[test]
    fn a_yield_that_no_thread_takes_is_told_from_one_that_is_taken() {
        let slow = WaitCosts { taken_yield: Duration::from_nanos(6000), ..WaitCosts::USUAL };
        for (costs, taken, untaken) in [(WaitCosts::USUAL, 1000, 800), (slow, 7000, 5000)] {
            let mut give_way = GiveWay::new(costs);
            give_way.learn(Duration::from_nanos(untaken));
            assert_eq!(give_way.interval, 1);
            give_way.learn(Duration::from_nanos(taken));
            assert_eq!(give_way.interval, 0);
        }
    }

    #[test]
    fn offers_are_measured_when_ticks_come_too_often() {
        let mut hand_over = HandOver::default();
        hand_over.watch(1, true);
        let watched = |hand_over: &mut HandOver, every: u32| {
            let is_watched = |offer: u32| {
                hand_over.offers += 1;
                hand_over.watch(u64::from(2 + offer / every), true);
                u32::from(hand_over.watched > 0)
            };
            (0..100 * every).map(is_watched).sum::<u32>()
        };
        // The first tick may follow at once.
        assert!(watched(&mut hand_over, 1300) <= 2 * WATCHED);
        assert!(watched(&mut hand_over, OFFERS_A_TICK / 2) >= 98 * (OFFERS_A_TICK / 2));
        assert!(watched(&mut hand_over, 1300) <= 2 * WATCHED);
        hand_over.watch(0, false);
        assert_eq!(hand_over.watched, WATCHED);
    }

    #[test]
    fn hand_overs_that_bring_nothing_are_left_out_for_longer_and_longer() {
        let mut hand_over = HandOver::default();
        let offers = |hand_over: &mut HandOver, times: u32| {
            let looks = std::cell::Cell::new(0_u32);
            for _ in 0..times {
                assert!(!hand_over.until(|| {
                    looks.set(looks.get() + 1);
                    false
                }));
            }
            // Each call checks once, at no cost; a yield checks again.
            looks.get() > times
        };
        assert!(offers(&mut hand_over, 1));
        assert!(!offers(&mut hand_over, 1) && offers(&mut hand_over, 1));
        assert!(!offers(&mut hand_over, 3) && offers(&mut hand_over, 1));
        assert!(hand_over.until(|| true));
    }

    #[test]
    fn the_fixed_ones_are_fixed() {
        let spin_budget = SpinBudget::default();
        assert_eq!(spin_budget.budget(Pacing::Sleep), Duration::ZERO);
        assert_eq!(spin_budget.budget(Pacing::Poll), Duration::MAX);
    }
}
