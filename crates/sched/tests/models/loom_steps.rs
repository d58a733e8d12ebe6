//! A model of barriers that are made of words, checked by loom: `make models`.
//!
//! The words, the rounds, the check for a report, and the sleep and the wake are the real code. The
//! group's part is written down again here: a member that finds that another one never comes
//! reports that to all that may wait for it. A member may die at each of its points. Then the
//! kernel reports its death, after all that the member has written, and notifies all others.
//!
//! loom reports a lost wake as a deadlock. A member that passes checks that all others had come,
//! without any ordering of its own, so a report that carries too little is found.
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::cell::Cell;
use upcall_os::atomic::AtomicU32;
use upcall_sched::sleep;
use upcall_shm::steps::{ReportPoll, Steps, find, rounds};

/// A step that is done wrongly.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// A member checks whether another one sleeps before it reports.
    WakesFirst,
    /// The check for the report comes before the check for deaths.
    DeathLast,
    /// A member that gives up does not report that.
    Silent,
    /// A member passes without the reports of its second round.
    OneRound,
}

/// The reason why a barrier has failed.
#[derive(Debug, PartialEq)]
enum Ends {
    /// This member has died there.
    Died,
    /// This other member never comes.
    Lost(usize),
}

/// A doorbell: a notification before the wait is kept, and a wait takes all of them.
#[derive(Default)]
struct Doorbell {
    rung: Mutex<bool>,
    told: Condvar,
}

impl Doorbell {
    fn notify(&self) {
        *self.rung.lock().unwrap() = true;
        self.told.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.told.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// The state of a member that all others see.
#[derive(Default)]
struct Seen {
    asleep: AtomicU32,
    sleeps: AtomicU64,
    doorbell: Doorbell,
    /// The number of the last barrier at which it has arrived.
    came: AtomicU64,
    /// Set by the kernel once the member has died.
    ended: AtomicBool,
}

struct Group {
    seen: Vec<Seen>,
    /// By the reporting member and the reading one.
    steps: Vec<Vec<Steps>>,
    fault: Fault,
}

/// A member, as its own thread has it.
struct Member {
    group: Arc<Group>,
    rank: usize,
    /// Number of points until it dies.
    points: Cell<usize>,
    /// By rank: the number of the latest sleep for which this member has notified.
    rung: Vec<std::sync::atomic::AtomicU64>,
    missing: Cell<Option<usize>>,
}

/// The value that a member had sent to another one before a barrier.
fn sent(from: usize, number: u64) -> u64 {
    100 * number + from as u64
}

impl Member {
    fn own(&self) -> &Seen {
        &self.group.seen[self.rank]
    }

    fn size(&self) -> usize {
        self.group.seen.len()
    }

    /// A point at which it may die.
    fn point(&self) -> Result<(), Ends> {
        self.points.set(self.points.get().checked_sub(1).ok_or(Ends::Died)?);
        Ok(())
    }

    fn barrier(&self, number: u64) -> Result<(), Ends> {
        self.point()?;
        self.own().came.store(number, Ordering::Relaxed);
        let size = self.size();
        for step in rounds(size) {
            let (next, from) = ((self.rank + step) % size, (self.rank + size - step) % size);
            self.report(next, |steps| steps.report_barrier(number, sent(self.rank, number)))?;
            if self.group.fault == Fault::OneRound && step > 1 {
                continue;
            }
            self.await_report(from, number)?;
        }
        for seen in &self.group.seen {
            assert!(seen.came.load(Ordering::Relaxed) >= number, "passed early");
        }
        self.point()
    }

    fn report(&self, to: usize, report: impl Fn(&Steps)) -> Result<(), Ends> {
        if self.group.fault == Fault::WakesFirst {
            self.wake(to);
            report(&self.group.steps[self.rank][to]);
            return Ok(());
        }
        report(&self.group.steps[self.rank][to]);
        self.point()?;
        self.wake(to);
        self.point()
    }

    fn wake(&self, to: usize) {
        let other = &self.group.seen[to];
        sleep::no_fence();
        if sleep::seems_asleep(&other.asleep)
            && self.first_ring(to, other.sleeps.load(Ordering::Relaxed))
        {
            other.doorbell.notify();
        }
    }

    /// [`sleep::first_ring`] on a word that only this thread uses: loom need not follow it.
    fn first_ring(&self, to: usize, sleep: u64) -> bool {
        self.rung[to].swap(sleep, std::sync::atomic::Ordering::Relaxed) != sleep
    }

    fn never_comes(&self, from: usize) -> Option<usize> {
        if self.missing.get().is_none() {
            let reports =
                self.group.steps.iter().enumerate().filter(|(other, _)| *other != self.rank);
            self.missing.set(reports.map(|(_, steps)| &steps[self.rank]).find_map(Steps::missing));
        }
        self.missing
            .get()
            .or_else(|| self.group.seen[from].ended.load(Ordering::Acquire).then_some(from))
    }

    fn look(&self, from: usize, number: u64) -> ReportPoll<u64, usize> {
        let report = || self.group.steps[from][self.rank].barrier(number);
        if self.group.fault == Fault::DeathLast {
            let found = report();
            return found.map_or_else(
                || self.never_comes(from).map_or(ReportPoll::Nothing, ReportPoll::Never),
                ReportPoll::Came,
            );
        }
        find(|| self.never_comes(from), report)
    }

    fn await_report(&self, from: usize, number: u64) -> Result<(), Ends> {
        loop {
            match self.look(from, number) {
                ReportPoll::Came(found) => {
                    assert_eq!(found, sent(from, number));
                    return Ok(());
                }
                ReportPoll::Never(missed) => {
                    let counts = missed == from
                        && self.group.steps[from][self.rank].barrier(number).is_some();
                    assert!(!counts, "a report from before the death does not count");
                    return Err(self.is_missed(missed));
                }
                ReportPoll::Nothing => {}
            }
            let own = self.own();
            assert!(sleep::announce_to_all(&own.asleep, &own.sleeps));
            if self.look(from, number) == ReportPoll::Nothing {
                own.doorbell.wait();
            }
            sleep::retract(&own.asleep);
        }
    }

    fn is_missed(&self, missed: usize) -> Ends {
        self.missing.set(Some(missed));
        if self.group.fault == Fault::Silent {
            return Ends::Lost(missed);
        }
        let size = self.size();
        for other in rounds(size).map(|step| (self.rank + step) % size) {
            if let Err(died) = self.report(other, |steps| steps.report_missing(missed)) {
                return died;
            }
        }
        Ends::Lost(missed)
    }

    /// Runs this number of barriers. If the member dies, the kernel reports it.
    fn run(self, barriers: u64) -> Result<(), Ends> {
        let ran = (1..=barriers).try_for_each(|number| self.barrier(number));
        if ran == Err(Ends::Died) {
            self.own().ended.store(true, Ordering::Release);
            let others =
                self.group.seen.iter().enumerate().filter(|(other, _)| *other != self.rank);
            others.for_each(|(_, other)| other.doorbell.notify());
        }
        ran
    }
}

/// Checks all runs in which the last member dies at point `points`; never, if there are fewer.
fn check(fault: Fault, size: usize, barriers: u64, points: usize, preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let seen = (0..size).map(|_| Seen::default()).collect();
        let steps = (0..size).map(|_| (0..size).map(|_| Steps::default()).collect()).collect();
        let group = Arc::new(Group { seen, steps, fault });
        let member = |rank: usize| Member {
            group: group.clone(),
            rank,
            points: Cell::new(if rank == size - 1 { points } else { usize::MAX }),
            rung: (0..size).map(|_| std::sync::atomic::AtomicU64::new(0)).collect(),
            missing: Cell::new(None),
        };
        let others: Vec<_> = (1..size)
            .map(|rank| {
                let member = member(rank);
                thread::spawn(move || member.run(barriers))
            })
            .collect();
        let mut ends = vec![member(0).run(barriers)];
        ends.extend(others.into_iter().map(|other| other.join().unwrap()));
        match ends.pop() {
            Some(Err(Ends::Died)) => {
                assert!(
                    ends.iter().all(|end| *end == Ok(()) || *end == Err(Ends::Lost(size - 1))),
                    "{ends:?}"
                );
            }
            last => assert!(
                last == Some(Ok(())) && ends.iter().all(Result::is_ok),
                "{ends:?}, {last:?}"
            ),
        }
    });
}

/// Number of points of a member in one barrier.
fn points(size: usize) -> usize {
    2 + 2 * rounds(size).count()
}

#[test]
fn two_members_pass_barriers_together() {
    check(Fault::None, 2, 2, usize::MAX, 3);
}

#[test]
fn three_members_pass_a_barrier_together() {
    check(Fault::None, 3, 1, usize::MAX, 2);
}

#[test]
fn a_member_that_dies_at_any_point_holds_up_no_other() {
    (0..2 * points(2)).for_each(|at| check(Fault::None, 2, 2, at, 2));
    (0..points(3)).for_each(|at| check(Fault::None, 3, 1, at, 1));
    // Of four members one waits neither for the dead one nor for a member that has all reports.
    (0..2).for_each(|at| check(Fault::None, 4, 1, at, 0));
}

/// The parameters that find each fault: members, the point at which the last one dies, preemptions.
const FAULTS: [(Fault, usize, usize, usize); 4] = [
    (Fault::WakesFirst, 2, usize::MAX, 2),
    (Fault::DeathLast, 2, 1, 2),
    (Fault::OneRound, 3, usize::MAX, 2),
    (Fault::Silent, 4, 0, 0),
];

/// The number of the fault with which this process was started.
const CHOSEN: &str = "UPCALL_LOOM_FAULT";

/// A deadlock ends the process in which loom finds it, so each fault has a process of its own.
#[test]
fn what_is_done_wrongly_is_found() {
    if let Some(fault) =
        std::env::var(CHOSEN).ok().and_then(|number| FAULTS.get(number.parse::<usize>().ok()?))
    {
        let (fault, size, at, preemptions) = *fault;
        return check(fault, size, 1, at, preemptions);
    }
    for (number, (fault, ..)) in FAULTS.into_iter().enumerate() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let child = child
            .args(["--exact", "loom_steps::what_is_done_wrongly_is_found", "--nocapture"])
            .env(CHOSEN, number.to_string());
        let said = child.output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr);
        let known =
            ["deadlock", "passed early", "does not count"].iter().any(|known| text.contains(known));
        assert!(!said.status.success() && known, "{fault:?} is not found: {text}");
    }
}
