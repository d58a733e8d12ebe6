//! The cases for a system that is used like `std::thread` and `std::sync`: one program for all of them, so that what differs is the
//! system.

use std::fs;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::case::Case;
use super::child::{Entry, Finding, Task, Work, cpu_ns, procedure_calls};
use crate::child::Outcome;

/// A system of threads. Threads, and the data under a mutex, are numbers here.
///
/// What is timed should be inlined: a program would call the system itself, not this.
pub trait Library: 'static {
    /// The name in records and on the command line.
    const NAME: &'static str;
    /// A thread that can be joined.
    type Handle: Send;
    /// A mutex.
    type Mutex: Send + Sync + 'static;
    /// A locked one.
    type Guard<'a>: DerefMut<Target = u64>;
    /// A condition variable.
    type Condvar: Send + Sync + 'static;

    /// Runs `body` as the first thread, on processor `cpu` alone.
    ///
    /// # Errors
    /// When the system cannot begin.
    fn enter(cpu: usize, body: impl FnOnce() -> Work + Send + 'static) -> Outcome<Work>;

    /// Whether so many threads can be alive at once.
    ///
    /// # Errors
    /// Why not.
    fn holds(threads: u64) -> Result<(), String> {
        let _ = threads;
        Ok(())
    }

    /// Starts a thread.
    fn spawn(body: impl FnOnce() -> u64 + Send + 'static) -> Self::Handle;
    /// Waits for its result.
    fn join(handle: Self::Handle) -> u64;
    /// Lets others run.
    fn yield_now();
    /// Lets others run for some time.
    fn sleep(time: Duration);
    /// A mutex.
    fn mutex(data: u64) -> Self::Mutex;
    /// Locks it.
    fn lock(mutex: &Self::Mutex) -> Self::Guard<'_>;
    /// A condition variable.
    fn condvar() -> Self::Condvar;
    /// Unlocks, waits, locks.
    fn wait<'a>(condvar: &Self::Condvar, guard: Self::Guard<'a>) -> Self::Guard<'a>;
    /// Wakes one.
    fn notify_one(condvar: &Self::Condvar);
    /// Wakes all.
    fn notify_all(condvar: &Self::Condvar);
}

/// Whether this machine permits so many threads, given what limits them, files under /proc/sys, and how much of it each takes.
///
/// # Errors
/// Why not.
pub fn permitted(threads: u64, limits: &[(&str, u64)]) -> Result<(), String> {
    for (name, each) in limits {
        let path = format!("/proc/sys/{name}");
        let limit = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let needed = threads.saturating_mul(*each);
        if let Some(limit) = limit.filter(|limit| needed > *limit) {
            return Err(format!("{threads} threads take {needed} of {path}, which is {limit}"));
        }
    }
    Ok(())
}

impl Entry {
    /// The row of library `L`.
    pub const fn of<L: Library>() -> Entry {
        Entry { name: L::NAME, run: run::<L> }
    }
}

fn run<L: Library>(task: &Task) -> Outcome<Finding> {
    let task = *task;
    if let Err(why) = L::holds(if task.case.is_none_or(Case::is_alive) { task.ops } else { 0 }) {
        return Ok(Finding::Unsupported(why));
    }
    let case = match task.case {
        Some(Case::ProcedureCall) => procedure_calls,
        Some(Case::Fork) => forks::<L>,
        Some(Case::ForkJoin) => forks_and_joins::<L>,
        Some(Case::Yield) => yields::<L>,
        Some(Case::LockUnlock) => locks::<L>,
        Some(Case::PingPong) => round_trips::<L>,
        Some(Case::Alive100k | Case::Alive1m) => alive::<L>,
        None => idle::<L>,
    };
    L::enter(task.cpu, move || case(&task)).map(Finding::Done)
}

fn forks<L: Library>(task: &Task) -> Work {
    let mut work = Work::default();
    let mut threads = Vec::with_capacity(task.ops as usize);
    for _ in 0..task.samples {
        let begun = Instant::now();
        for _ in 0..task.ops {
            threads.push(L::spawn(|| 1));
        }
        work.lap(begun);
        work.done += threads.drain(..).map(L::join).sum::<u64>();
    }
    work
}

fn forks_and_joins<L: Library>(task: &Task) -> Work {
    let mut work = Work::default();
    for _ in 0..task.samples {
        let begun = Instant::now();
        for _ in 0..task.ops {
            work.done += L::join(L::spawn(|| 1));
        }
        work.lap(begun);
    }
    work
}

/// Each of the two makes half of the yields.
fn yields<L: Library>(task: &Task) -> Work {
    let (half, samples) = (task.ops / 2, task.samples);
    let other = L::spawn(move || {
        let mut yields = 0;
        for _ in 0..half * samples as u64 {
            L::yield_now();
            yields += 1;
        }
        yields
    });
    let mut work = Work::default();
    for _ in 0..samples {
        let begun = Instant::now();
        for _ in 0..half {
            L::yield_now();
            work.done += 1;
        }
        work.lap(begun);
    }
    work.done += L::join(other);
    work
}

fn locks<L: Library>(task: &Task) -> Work {
    let mutex = std::hint::black_box(L::mutex(0));
    let mut work = Work::default();
    for _ in 0..task.samples {
        let begun = Instant::now();
        for _ in 0..task.ops {
            *L::lock(&mutex) += 1;
        }
        work.lap(begun);
    }
    work.done = *L::lock(&mutex);
    work
}

/// The number under the mutex says whose turn it is: even ours, odd the other's.
fn round_trips<L: Library>(task: &Task) -> Work {
    let both = Arc::new((L::mutex(0), L::condvar()));
    let theirs = Arc::clone(&both);
    let rounds = task.ops * task.samples as u64;
    let other = L::spawn(move || {
        let mut turn = L::lock(&theirs.0);
        for _ in 0..rounds {
            while turn.is_multiple_of(2) {
                turn = L::wait(&theirs.1, turn);
            }
            *turn += 1;
            L::notify_one(&theirs.1);
        }
        *turn / 2
    });
    let mut work = Work::default();
    let mut turn = L::lock(&both.0);
    for _ in 0..task.samples {
        let begun = Instant::now();
        for _ in 0..task.ops {
            *turn += 1;
            L::notify_one(&both.1);
            while !turn.is_multiple_of(2) {
                turn = L::wait(&both.1, turn);
            }
        }
        work.lap(begun);
    }
    drop(turn);
    work.done = L::join(other);
    work
}

/// Starts `threads` threads that wait until the number under the mutex has come to `open`, to which each adds 1.
fn waiting<L: Library>(threads: u64, open: u64, gate: &Arc<(L::Mutex, L::Condvar)>) -> Vec<L::Handle> {
    let start = |_| {
        let gate = Arc::clone(gate);
        L::spawn(move || {
            let mut come = L::lock(&gate.0);
            *come += 1;
            if *come == open {
                L::notify_all(&gate.1);
            }
            while *come < open {
                come = L::wait(&gate.1, come);
            }
            1
        })
    };
    (0..threads).map(start).collect()
}

fn alive<L: Library>(task: &Task) -> Work {
    let mut work = Work::default();
    for _ in 0..task.samples {
        let gate = Arc::new((L::mutex(0), L::condvar()));
        let begun = Instant::now();
        let threads = waiting::<L>(task.ops, task.ops, &gate);
        work.done += threads.into_iter().map(L::join).sum::<u64>();
        work.lap(begun);
    }
    work
}

fn idle<L: Library>(task: &Task) -> Work {
    let gate = Arc::new((L::mutex(0), L::condvar()));
    let open = task.ops + 1;
    let threads = waiting::<L>(task.ops, open, &gate);
    while *L::lock(&gate.0) < task.ops {
        L::sleep(Duration::from_millis(1));
    }
    let mut work = Work::default();
    for _ in 0..task.samples {
        let before = cpu_ns();
        L::sleep(Duration::from_secs(1));
        work.samples_ns.push(cpu_ns() - before);
    }
    *L::lock(&gate.0) += 1;
    L::notify_all(&gate.1);
    work.done = threads.into_iter().map(L::join).sum::<u64>() * task.samples as u64;
    work
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::pthread::Pthread;

    #[test]
    fn every_case_does_its_work() {
        for case in Case::ALL {
            let task = Task { case: Some(case), ops: 10, samples: 3, cpu: 0 };
            let Ok(Finding::Done(work)) = run::<Pthread>(&task) else { panic!("{case}: not done") };
            assert_eq!((work.done, work.samples_ns.len()), (30, 3), "{case}");
        }
    }

    #[test]
    fn more_than_there_can_be_are_refused() {
        let task = Task { case: Some(Case::Alive1m), ops: 1 << 40, samples: 1, cpu: 0 };
        let Ok(Finding::Unsupported(why)) = run::<Pthread>(&task) else { panic!("not refused") };
        assert!(why.contains("/proc/sys/"), "{why}");
    }
}
