//! A post: where one receiver of messages waits for many senders, and how each of them wakes it.
//!
//! The receiver has a line on its domain's station page, which senders read with each message, and
//! a set of doorbells, one for each sender. The protocol, with its argument why no wake is lost, is
//! in [`sleep`]: the receiver's is the side that makes the fence.

use crate::costs::WaitCosts;
use crate::domain::{Domain, MOST_POSTS};
use crate::pacing::{GiveWay, Pacing, SpinBudget};
use crate::sleep::{self, Sleeps};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use upcall_os::doorbell::Doorbell;
use upcall_os::membarrier;
use upcall_os::poll::{PollSet, Report};
use upcall_shm::station::StationLine;

/// Our own doorbell's number in the set; those of senders do not matter.
const OWN: u64 = 0;
const SENDERS: u64 = 1;

/// So long who cannot make the fence for its senders sleeps at most.
pub(crate) const SHORT: Duration = Duration::from_millis(1);

/// A spinner looks at the clock after so many rounds.
const ROUNDS: u32 = 64;

/// See the module.
#[derive(Debug)]
pub struct Post {
    domain: &'static Domain,
    line: u16,
    set: PollSet,
    own: Doorbell,
    spin_budget: SpinBudget,
}

impl Post {
    /// Takes a post. In a process that has threads already the first call waits for the
    /// kernel, for 10 to 30 ms as a rule ([`membarrier::register`]).
    ///
    /// # Errors
    /// All of the domain's are taken, or no descriptor or memory is left.
    pub fn take() -> io::Result<Self> {
        // Later, with the first message, the clerk would wait here, and its peers for the clerk.
        membarrier::register();
        let (domain, set, own) = (Domain::current()?, PollSet::new()?, Doorbell::new()?);
        set.add(&own, OWN, Report::EachRing)?;
        let line = domain.take_post().ok_or_else(|| {
            io::Error::other(format!("at most {MOST_POSTS} receivers of messages in one process"))
        })?;
        Ok(Self { domain, line, set, own, spin_budget: SpinBudget::default() })
    }

    /// Its line on the station page.
    pub fn line(&self) -> u16 {
        self.line
    }

    /// Whether its senders may leave their fences to it, if they are registered.
    pub fn makes_fences() -> bool {
        membarrier::register()
    }

    /// From now on this doorbell wakes, too, at once if it has rung already.
    ///
    /// # Errors
    /// No memory left.
    pub fn add(&self, doorbell: &Doorbell) -> io::Result<()> {
        self.set.add(doorbell, SENDERS, Report::EachRing)
    }

    /// This one does no longer.
    pub fn remove(&self, doorbell: &Doorbell) {
        self.set.remove(doorbell);
    }

    /// Wakes the receiver, or keeps it from falling asleep. By any thread of the domain.
    pub fn rouse(&self) {
        self.own.notify();
    }

    /// Blocks the kernel thread until `there` is true, or until `limit` has passed, spinning first
    /// as `pacing` says. Returns whether it was true. By one thread at a time.
    pub fn wait(
        &self,
        pacing: Pacing,
        limit: Option<Duration>,
        there: impl FnMut() -> bool,
    ) -> bool {
        self.wait_and_rest(pacing, limit, there, (Duration::ZERO, || ()))
    }

    /// The same, and does what is to be done once it has slept for so long; for no time: before it
    /// sleeps.
    pub fn wait_and_rest(
        &self,
        pacing: Pacing,
        limit: Option<Duration>,
        mut there: impl FnMut() -> bool,
        (after, rest): (Duration, impl FnOnce()),
    ) -> bool {
        let budget = self.spin_budget.budget(pacing);
        let start = Instant::now();
        let ends = limit.and_then(|limit| start.checked_add(limit));
        let (mut give_way, mut spun) = (GiveWay::new(WaitCosts::measured()), false);
        loop {
            for _ in 0..ROUNDS {
                if there() {
                    if spun && budget > Duration::ZERO {
                        self.spin_budget.fruitful();
                    }
                    return true;
                }
                if budget == Duration::ZERO {
                    break;
                }
                std::hint::spin_loop();
                give_way.step();
                spun = true;
            }
            let now = Instant::now();
            if ends.is_some_and(|ends| now >= ends) {
                return there();
            }
            if now - start >= budget {
                break;
            }
        }
        if spun {
            self.spin_budget.fruitless();
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

    /// Has senders ring from now on though the receiver does not sleep: for one that computes,
    /// while somebody else watches [`rings`](Self::rings) and tells it. It looks again after this.
    /// As after a ring nobody rings again, this is to be said anew after each look. False if
    /// the kernel did not make the fence for the senders.
    pub fn announce_to_be_rung_for(&self) -> bool {
        let line = self.word();
        sleep::announce_to_all(&line.asleep, &line.sleeps)
    }

    /// Whether senders ring.
    pub fn is_announced(&self) -> bool {
        self.word().asleep.load(upcall_os::atomic::Ordering::Relaxed) != 0
    }

    /// A descriptor that is readable when a doorbell has rung, for a wait for the edge of that.
    pub fn rings(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// The set of all doorbells that wake it.
    pub(crate) fn set(&self) -> &PollSet {
        &self.set
    }

    /// Says that the receiver is about to sleep, with others at once: the fence for all comes after
    /// this.
    pub(crate) fn announce_with_others(&self) {
        let line = self.word();
        sleep::announce_without_fence(&line.asleep, &line.sleeps);
    }

    /// Says that it is awake.
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
                            // Every so often the receiver falls asleep before the next one comes.
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
