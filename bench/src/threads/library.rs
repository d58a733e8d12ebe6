//! The cases for a system that is used like `std::thread` and `std::sync`: one implementation for
//! all such systems, so that only the systems differ.

use std::fs;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::case::Case;
use super::child::{Entry, Finding, Task, Work, cpu_ns, procedure_calls};
use crate::child::Outcome;

/// A thread system. Threads return numbers here, and mutexes protect them.
///
/// Timed functions should be inlined: a program would call the system itself, not this trait.
pub trait Library: 'static {
    /// Name in records and on the command line.
    const NAME: &'static str;
    /// A thread that can be joined.
    type Handle: Send;
    /// A mutex.
    type Mutex: Send + Sync + 'static;
    /// A guard of a locked mutex.
    type Guard<'a>: DerefMut<Target = u64>;
    /// A condition variable.
    type Condvar: Send + Sync + 'static;

    /// Runs `body` as the first thread, on processor `cpu` alone.
    ///
    /// # Errors
    /// The system cannot start.
    fn enter(cpu: usize, body: impl FnOnce() -> Work + Send + 'static) -> Outcome<Work>;

    /// Checks that this number of threads can be alive at once.
    ///
    /// # Errors
    /// The reason why they cannot.
    fn holds(threads: u64) -> Result<(), String> {
        let _ = threads;
        Ok(())
    }

    /// Starts a thread.
    fn spawn(body: impl FnOnce() -> u64 + Send + 'static) -> Self::Handle;
    /// Joins a thread, and returns its result.
    fn join(handle: Self::Handle) -> u64;
    /// Yields to other threads.
    fn yield_now();
    /// Sleeps while other threads run.
    fn sleep(time: Duration);
    /// Creates a mutex.
    fn mutex(data: u64) -> Self::Mutex;
    /// Locks a mutex.
    fn lock(mutex: &Self::Mutex) -> Self::Guard<'_>;
    /// Creates a condition variable.
    fn condvar() -> Self::Condvar;
    /// Unlocks the mutex, waits, and locks the mutex again.
    fn wait<'a>(condvar: &Self::Condvar, guard: Self::Guard<'a>) -> Self::Guard<'a>;
    /// Wakes one waiting thread.
    fn notify_one(condvar: &Self::Condvar);
    /// Wakes all waiting threads.
    fn notify_all(condvar: &Self::Condvar);
}

/// Checks that this machine permits this number of threads. `limits` lists files under /proc/sys
/// with limits, and how much of each limit a thread uses.
///
/// # Errors
/// The limit that is too low.
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
    /// Returns the row of library `L`.
    pub const fn of<L: Library>() -> Entry {
        Entry { name: L::NAME, run: run::<L> }
    }
}

fn run<L: Library>(task: &Task) -> Outcome<Finding> {
    let task = *task;
    if let Err(why) = L::holds(task.threads) {
        return Ok(Finding::Unsupported(why));
    }
    let case = match task.case {
        Some(Case::ProcedureCall) => procedure_calls,
        Some(Case::Fork) => forks::<L>,
        Some(Case::ForkJoin) => forks_and_joins::<L>,
        Some(Case::Yield(_)) => yields::<L>,
        Some(Case::LockUnlock) => locks::<L>,
        Some(Case::PingPong) => round_trips::<L>,
        Some(Case::Alive(_)) => alive::<L>,
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

/// All threads yield equally often, and none begins before all have arrived.
fn yields<L: Library>(task: &Task) -> Work {
    let (each, samples) = (task.ops / task.threads, task.samples);
    let gate = Arc::new((L::mutex(0), L::condvar()));
    let others = waiting::<L>(task.threads - 1, task.threads, &gate, move || {
        let mut yields = 0;
        for _ in 0..each * samples as u64 {
            L::yield_now();
            yields += 1;
        }
        yields
    });
    comes_and_waits::<L>(task.threads, &gate);
    let mut work = Work::default();
    for _ in 0..samples {
        let begun = Instant::now();
        for _ in 0..each {
            L::yield_now();
            work.done += 1;
        }
        work.lap(begun);
    }
    work.done += others.into_iter().map(L::join).sum::<u64>();
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

/// The number under the mutex gives the turn: even is this thread's, odd is the other's.
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

/// Adds 1 to the number under the mutex, and waits until it reaches `open`.
fn comes_and_waits<L: Library>(open: u64, gate: &(L::Mutex, L::Condvar)) {
    let mut come = L::lock(&gate.0);
    *come += 1;
    if *come == open {
        L::notify_all(&gate.1);
    }
    while *come < open {
        come = L::wait(&gate.1, come);
    }
}

/// Starts `threads` threads that wait until `open` threads have arrived, and then run `rest`.
fn waiting<L: Library>(
    threads: u64,
    open: u64,
    gate: &Arc<(L::Mutex, L::Condvar)>,
    rest: impl FnOnce() -> u64 + Copy + Send + 'static,
) -> Vec<L::Handle> {
    let start = |_| {
        let gate = Arc::clone(gate);
        L::spawn(move || {
            comes_and_waits::<L>(open, &gate);
            rest()
        })
    };
    (0..threads).map(start).collect()
}

fn alive<L: Library>(task: &Task) -> Work {
    let mut work = Work::default();
    for sample in 0..task.samples {
        let begun = Instant::now();
        for _ in 0..task.rounds(sample) {
            let gate = Arc::new((L::mutex(0), L::condvar()));
            let threads = waiting::<L>(task.threads, task.threads, &gate, || 1);
            work.done += threads.into_iter().map(L::join).sum::<u64>();
        }
        work.lap(begun);
    }
    work
}

fn idle<L: Library>(task: &Task) -> Work {
    let gate = Arc::new((L::mutex(0), L::condvar()));
    let threads = waiting::<L>(task.threads, task.threads + 1, &gate, || 1);
    while *L::lock(&gate.0) < task.threads {
        L::sleep(Duration::from_millis(1));
    }
    let mut work = Work::default();
    for _ in 0..task.samples {
        let before = cpu_ns();
        L::sleep(Duration::from_secs(1));
        work.samples_ns.push(cpu_ns() - before);
    }
    comes_and_waits::<L>(task.threads + 1, &gate);
    work.done = threads.into_iter().map(L::join).sum::<u64>() * task.samples as u64;
    work
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::pthread::Pthread;

    #[test]
    fn every_case_does_its_work() {
        for case in Case::TABLE.into_iter().chain([Case::Yield(5), Case::Alive(5)]) {
            let (threads, ops) = (case.threads(), 10);
            let task = Task { case: Some(case), threads, ops, samples: 3, cpu: 0 };
            let Ok(Finding::Done(work)) = run::<Pthread>(&task) else { panic!("{case}: not done") };
            let done = if case.is_alive() { 25 } else { 30 };
            assert_eq!((work.done, work.samples_ns.len()), (done, 3), "{case}");
        }
    }

    #[test]
    fn more_than_there_can_be_are_refused() {
        let task = Task {
            case: Some(Case::Alive(1 << 40)),
            threads: 1 << 40,
            ops: 1 << 40,
            samples: 1,
            cpu: 0,
        };
        let Ok(Finding::Unsupported(why)) = run::<Pthread>(&task) else { panic!("not refused") };
        assert!(why.contains("/proc/sys/"), "{why}");
    }
}
