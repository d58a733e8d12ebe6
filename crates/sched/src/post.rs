//! A post: where one receiver of messages waits for many senders, and how each of them wakes it.
//!
//! The receiver has a line on its domain's station page, which senders read with each message, and
//! a set of doorbells, one for each sender. The protocol, with its argument why no wake is lost, is
//! in [`sleep`]: the receiver is the side that makes the fence.

use crate::costs::WaitCosts;
use crate::domain::{Domain, MOST_POSTS};
use crate::pacing::{CpuShare, GiveWay, Pacing, SpinBudget};
use crate::sleep::{self, Sleeps};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use upcall_os::doorbell::Doorbell;
use upcall_os::membarrier;
use upcall_os::poll::{PollSet, Report};
use upcall_shm::station::StationLine;

/// Number of the receiver's own doorbell in the set; those of the senders share one number.
const OWN: u64 = 0;
const SENDERS: u64 = 1;

/// Maximum time of one sleep of a receiver that cannot make the fence for its senders.
pub(crate) const SHORT: Duration = Duration::from_millis(1);

/// Number of rounds between two readings of the clock while spinning.
const ROUNDS: u32 = 64;

/// How polling ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostPoll {
    /// What was waited for is there.
    Found,
    /// The receiver waits no longer.
    OutOfTime,
    /// It was polled for as long as that may be worth while.
    Nothing,
}

/// Polls until `there`, for at most `budget`, and no longer than until `ends`.
///
/// The clock, `now`, is read each 64 rounds, and when `step` has given the CPU away. Otherwise each
/// of these rounds could last for a time slice of other programs, and a message would not wake the
/// receiver.
fn spin(
    budget: Duration,
    ends: Option<Instant>,
    mut now: impl FnMut() -> Instant,
    mut there: impl FnMut() -> bool,
    mut step: impl FnMut() -> CpuShare,
) -> PostPoll {
    let start = now();
    loop {
        let mut share = CpuShare::Kept;
        for _ in 0..ROUNDS {
            if there() {
                return PostPoll::Found;
            }
            if share == CpuShare::Given {
                break;
            }
            share = step();
        }
        let now = now();
        if ends.is_some_and(|ends| now >= ends) {
            return PostPoll::OutOfTime;
        }
        if now - start >= budget {
            return PostPoll::Nothing;
        }
    }
}

/// The place where one receiver of messages waits; see the module.
#[derive(Debug)]
pub struct Post {
    domain: &'static Domain,
    line: u16,
    set: PollSet,
    own: Doorbell,
    spin_budget: SpinBudget,
}

impl Post {
    /// Takes a post.
    ///
    /// # Blocking
    /// In a process that already has threads, the first call waits for the kernel, for 10 to 30 ms
    /// as a rule ([`membarrier::register`]).
    ///
    /// # Errors
    /// All of the domain's posts are taken, or no descriptor or memory is left.
    pub fn take() -> io::Result<Self> {
        // If this were left to the first message, the clerk would wait here, and its peers for the
        // clerk.
        membarrier::register();
        let (domain, set, own) = (Domain::current()?, PollSet::new()?, Doorbell::new()?);
        set.add(&own, OWN, Report::EachRing)?;
        let line = domain.take_post().ok_or_else(|| {
            io::Error::other(format!("at most {MOST_POSTS} receivers of messages in one process"))
        })?;
        Ok(Self { domain, line, set, own, spin_budget: SpinBudget::default() })
    }

    /// The number of its line on the station page.
    pub fn line(&self) -> u16 {
        self.line
    }

    /// Returns `true` if registered senders may leave their fences to the receiver.
    pub fn makes_fences() -> bool {
        membarrier::register()
    }

    /// Adds a doorbell that wakes the receiver; at once if it was notified before.
    ///
    /// # Errors
    /// No memory left.
    pub fn add(&self, doorbell: &Doorbell) -> io::Result<()> {
        self.set.add(doorbell, SENDERS, Report::EachRing)
    }

    /// Removes a doorbell: it no longer wakes the receiver.
    pub fn remove(&self, doorbell: &Doorbell) {
        self.set.remove(doorbell);
    }

    /// Wakes the receiver, or keeps it from falling asleep. Any thread of the domain may call this.
    pub fn rouse(&self) {
        self.own.notify();
    }

    /// Blocks the kernel thread until `there` is true, or until `limit` has passed.
    ///
    /// Spins first, as `pacing` requires. Returns `true` if `there` was. Called by one thread at a
    /// time.
    pub fn wait(
        &self,
        pacing: Pacing,
        limit: Option<Duration>,
        there: impl FnMut() -> bool,
    ) -> bool {
        self.wait_and_rest(pacing, limit, there, (Duration::ZERO, || ()))
    }

    /// Like [`wait`](Self::wait), and calls `rest` once the thread has slept for `after`.
    ///
    /// If `after` is zero, it calls `rest` before the thread sleeps.
    pub fn wait_and_rest(
        &self,
        pacing: Pacing,
        limit: Option<Duration>,
        mut there: impl FnMut() -> bool,
        (after, rest): (Duration, impl FnOnce()),
    ) -> bool {
        if there() {
            return true;
        }
        let ends = limit.and_then(|limit| Instant::now().checked_add(limit));
        let budget = self.spin_budget.budget(pacing);
        match self.poll(budget, ends, &mut there) {
            PostPoll::Found => {
                if budget > Duration::ZERO {
                    self.spin_budget.fruitful();
                }
                return true;
            }
            PostPoll::OutOfTime => return there(),
            PostPoll::Nothing if budget > Duration::ZERO => self.spin_budget.fruitless(),
            PostPoll::Nothing => {}
        }
        if after > Duration::ZERO {
            let first = Instant::now() + after;
            let is_all = ends.is_some_and(|ends| ends <= first);
            let came =
                sleep::sleep_until(self, if is_all { ends } else { Some(first) }, &mut there);
            if came || is_all {
                return came;
            }
        }
        rest();
        sleep::sleep_until(self, ends, there)
    }

    /// Polls until `there`, for at most `budget`, and no longer than until `ends`.
    ///
    /// Yields now and then to other threads that want the processor. For receivers that can do
    /// themselves what another thread would have to be woken for; a [`wait`](Self::wait) with
    /// [`Pacing::Sleep`] follows.
    pub fn poll(
        &self,
        budget: Duration,
        ends: Option<Instant>,
        there: impl FnMut() -> bool,
    ) -> PostPoll {
        if budget == Duration::ZERO {
            let is_over = ends.is_some_and(|ends| Instant::now() >= ends);
            return if is_over { PostPoll::OutOfTime } else { PostPoll::Nothing };
        }
        let mut give_way = GiveWay::new(WaitCosts::measured());
        let step = || {
            std::hint::spin_loop();
            give_way.step()
        };
        spin(budget, ends, Instant::now, there, step)
    }

    /// Makes senders notify from now on although the receiver does not sleep.
    ///
    /// This is for a receiver that computes while another thread watches [`rings`](Self::rings) and
    /// interrupts it. The receiver must probe after this call. Senders notify once per
    /// announcement, so the receiver announces again after each probe. Returns `false` if the
    /// kernel did not make the fence for the senders.
    pub fn announce_to_be_rung_for(&self) -> bool {
        let line = self.word();
        sleep::announce_to_all(&line.asleep, &line.sleeps)
    }

    /// Returns `true` if senders notify.
    pub fn is_announced(&self) -> bool {
        self.word().asleep.load(upcall_os::atomic::Ordering::Relaxed) != 0
    }

    /// A descriptor that becomes readable when a doorbell is notified, for edge-triggered waits.
    pub fn rings(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// The set of all doorbells that wake the receiver.
    pub(crate) fn set(&self) -> &PollSet {
        &self.set
    }

    /// Announces that the receiver is about to sleep. The caller announces other sleepers too, and
    /// makes one fence for all after this.
    pub(crate) fn announce_with_others(&self) {
        let line = self.word();
        sleep::announce_without_fence(&line.asleep, &line.sleeps);
    }

    /// Marks the receiver as awake.
    pub fn retract(&self) {
        sleep::retract(&self.word().asleep);
    }

    fn word(&self) -> &StationLine {
        self.domain.station().line(usize::from(self.line))
    }
}

impl Sleeps for Post {
    fn announce(&self) -> Option<Duration> {
        if self.announce_to_be_rung_for() { None } else { Some(SHORT) }
    }

    fn retract(&self) {
        self.retract();
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, limit: Option<Duration>) {
        self.set.wait_any(limit, OWN);
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.domain.give_post(self.line);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::pacing;
    use crate::ringer::Ringer;
    use std::os::fd::AsFd;
    use upcall_os::atomic::Ordering::{Acquire, Release};
    use upcall_os::atomic::{AtomicBool, AtomicU64};
    use upcall_os::lock::{KernelMutex, MutexGuard};
    use upcall_os::safe_doorbell::SafeDoorbell;
    use upcall_shm::station::PeerStation;

    /// One test takes all posts.
    static ALONE: KernelMutex<()> = KernelMutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        ALONE.lock()
    }

    fn ringer(post: &Post, makes_fences: bool) -> Ringer {
        let fd = post.domain.station().as_fd().try_clone_to_owned().unwrap();
        Ringer::new(PeerStation::join(fd).unwrap(), post.line(), makes_fences)
    }

    #[test]
    fn no_message_is_slept_through() {
        let _alone = alone();
        for (makes_fences, pacing) in
            [(true, Pacing::Sleep), (false, Pacing::Sleep), (true, Pacing::Adaptive)]
        {
            let (post, safe_doorbell, doorbells) = (
                Post::take().unwrap(),
                SafeDoorbell::current().unwrap(),
                [(); 3].map(|()| Doorbell::new().unwrap()),
            );
            doorbells.iter().for_each(|doorbell| post.add(doorbell).unwrap());
            let (sent, taken) = ([const { AtomicU64::new(0) }; 3], AtomicU64::new(0));
            std::thread::scope(|scope| {
                for (own, doorbell) in doorbells.iter().enumerate() {
                    let (ringer, sent, taken) = (ringer(&post, makes_fences), &sent, &taken);
                    scope.spawn(move || {
                        for number in 1..=2000_u64 {
                            sent[own].store(number, Release);
                            ringer.launched(safe_doorbell, doorbell);
                            // Now and then the receiver falls asleep before the next message comes.
                            while number % 8 == 0 && taken.load(Acquire) < number {
                                std::thread::yield_now();
                            }
                        }
                    });
                }
                let mut seen = [0; 3];
                while seen != [2000; 3] {
                    let now = || [0, 1, 2].map(|own| sent[own].load(Acquire));
                    assert!(
                        post.wait(pacing, Some(Duration::from_secs(20)), || now() != seen),
                        "{seen:?} of {:?}",
                        now()
                    );
                    seen = now();
                    taken.store(seen.into_iter().min().unwrap(), Release);
                }
            });
        }
    }

    #[test]
    fn a_wait_ends_in_time_and_by_its_own_bell() {
        let _alone = alone();
        let post = Post::take().unwrap();
        let start = Instant::now();
        assert!(!post.wait(Pacing::Adaptive, Some(Duration::from_millis(20)), || false));
        assert!(start.elapsed() >= Duration::from_millis(20));
        let roused = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                roused.store(true, Release);
                post.rouse();
            });
            assert!(post.wait(Pacing::Sleep, None, || roused.load(Acquire)));
        });
    }

    #[test]
    fn what_a_long_sleep_is_for_is_done_in_none_that_is_short() {
        let _alone = alone();
        let post = Post::take().unwrap();
        let (after, short, long) =
            (Duration::from_millis(30), Duration::from_millis(5), Duration::from_millis(60));
        for (limit, rests) in [(short, false), (long, true)] {
            let (mut rested, start) = (None, Instant::now());
            assert!(!post.wait_and_rest(
                Pacing::Sleep,
                Some(limit),
                || false,
                (after, || rested = Some(start.elapsed()))
            ));
            assert_eq!(rested.map(|at| at >= after), rests.then_some(true));
            assert!(start.elapsed() >= limit);
        }
        let mut woken = false;
        post.rouse();
        assert!(post.wait_and_rest(
            Pacing::Sleep,
            None,
            || std::mem::replace(&mut woken, true),
            (after, || panic!("it slept for less"))
        ));
    }

    /// Number of steps of a spin of 50 µs, if a step takes so long.
    fn steps(takes: Duration, share: CpuShare) -> (u32, PostPoll) {
        let (start, steps) = (Instant::now(), std::cell::Cell::new(0));
        let step = || {
            steps.set(steps.get() + 1);
            share
        };
        let end = spin(pacing::LONGEST, None, || start + takes * steps.get(), || false, step);
        (steps.get(), end)
    }

    #[test]
    fn a_spin_ends_in_time_also_where_other_programs_take_the_cpu() {
        let (slice, step) = (Duration::from_millis(4), Duration::from_nanos(50));
        assert_eq!(steps(slice, CpuShare::Given), (1, PostPoll::Nothing));
        // A peer that shares the CPU takes a microsecond.
        assert_eq!(steps(step * 20, CpuShare::Given), (50, PostPoll::Nothing));
        assert_eq!(steps(step, CpuShare::Kept), (16 * ROUNDS, PostPoll::Nothing));
        let now = Instant::now();
        let ended = |there| {
            let none = || CpuShare::Kept;
            spin(pacing::LONGEST, Some(now), || now, || there, none)
        };
        assert_eq!([ended(true), ended(false)], [PostPoll::Found, PostPoll::OutOfTime]);
    }

    #[test]
    fn posts_are_given_back() {
        let _alone = alone();
        let all: Vec<Post> = std::iter::from_fn(|| Post::take().ok()).collect();
        assert!(
            !all.is_empty() && Post::take().unwrap_err().to_string().contains("in one process")
        );
        drop(all);
        drop(Post::take().unwrap());
    }
}
