//! Tokio: tasks without stacks, on its single-threaded scheduler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::sync::{Mutex, Notify};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;
use upcall_bench::child::Outcome;
use upcall_bench::threads::case::Case;
use upcall_bench::threads::child::{Entry, Finding, Task, Work, cpu_ns, procedure_calls};

pub const TOKIO: Entry = Entry { name: "tokio", run };

fn run(task: &Task) -> Outcome<Finding> {
    let task = *task;
    let runtime = Builder::new_current_thread().enable_time().build()?;
    // The first task is like the others, not the runtime's own.
    let first = async move {
        match task.case {
            Some(Case::ProcedureCall) => Ok(procedure_calls(&task)),
            Some(Case::Fork) => forks(&task).await,
            Some(Case::ForkJoin) => forks_and_joins(&task).await,
            Some(Case::Yield(_)) => yields(&task).await,
            Some(Case::LockUnlock) => Ok(locks(&task).await),
            Some(Case::PingPong) => round_trips(&task).await,
            Some(Case::Alive(_)) => alive(&task).await,
            None => idle(&task).await,
        }
    };
    runtime.block_on(async { tokio::spawn(first).await? }).map(Finding::Done)
}

async fn forks(task: &Task) -> Outcome<Work> {
    let mut work = Work::default();
    let mut threads = Vec::with_capacity(task.ops as usize);
    for _ in 0..task.samples {
        let begun = Instant::now();
        for _ in 0..task.ops {
            threads.push(tokio::spawn(async { 1 }));
        }
        work.lap(begun);
        for thread in threads.drain(..) {
            work.done += thread.await?;
        }
    }
    Ok(work)
}

async fn forks_and_joins(task: &Task) -> Outcome<Work> {
    let mut work = Work::default();
    for _ in 0..task.samples {
        let begun = Instant::now();
        for _ in 0..task.ops {
            work.done += tokio::spawn(async { 1 }).await?;
        }
        work.lap(begun);
    }
    Ok(work)
}

/// All tasks yield equally often, and none begins before all have arrived.
async fn yields(task: &Task) -> Outcome<Work> {
    let (threads, samples) = (task.threads, task.samples);
    let each = task.ops / threads;
    let gate = Arc::new(Gate::default());
    let others = (1..threads).map(|_| {
        let gate = Arc::clone(&gate);
        tokio::spawn(async move {
            gate.comes_and_waits(threads).await;
            let mut yields = 0;
            for _ in 0..each * samples as u64 {
                yield_now().await;
                yields += 1;
            }
            yields
        })
    });
    let others: Vec<_> = others.collect();
    gate.comes_and_waits(threads).await;
    let mut work = Work::default();
    for _ in 0..samples {
        let begun = Instant::now();
        for _ in 0..each {
            yield_now().await;
            work.done += 1;
        }
        work.lap(begun);
    }
    work.done += sum(others).await?;
    Ok(work)
}

async fn locks(task: &Task) -> Work {
    let mutex = std::hint::black_box(Mutex::new(0));
    let mut work = Work::default();
    for _ in 0..task.samples {
        let begun = Instant::now();
        for _ in 0..task.ops {
            *mutex.lock().await += 1;
        }
        work.lap(begun);
    }
    work.done = mutex.into_inner();
    work
}

/// Uses `Notify`, which keeps a signal until a task waits for it, so no mutex is needed.
async fn round_trips(task: &Task) -> Outcome<Work> {
    let both = Arc::new((Notify::new(), Notify::new()));
    let theirs = Arc::clone(&both);
    let rounds = task.ops * task.samples as u64;
    let other = tokio::spawn(async move {
        let mut answers = 0;
        for _ in 0..rounds {
            theirs.0.notified().await;
            answers += 1;
            theirs.1.notify_one();
        }
        answers
    });
    let mut work = Work::default();
    for _ in 0..task.samples {
        let begun = Instant::now();
        for _ in 0..task.ops {
            both.0.notify_one();
            both.1.notified().await;
        }
        work.lap(begun);
    }
    work.done = other.await?;
    Ok(work)
}

/// A gate at which tasks wait until `open` of them have arrived.
#[derive(Default)]
struct Gate {
    come: AtomicU64,
    open: Notify,
}

impl Gate {
    fn comes(&self, open: u64) {
        if self.come.fetch_add(1, Relaxed) + 1 == open {
            self.open.notify_waiters();
        }
    }

    async fn comes_and_waits(&self, open: u64) {
        // A holder of this future is notified, even if it does not wait yet.
        let opened = self.open.notified();
        self.comes(open);
        opened.await;
    }

    fn waiting(self: &Arc<Self>, tasks: u64, open: u64) -> Vec<JoinHandle<u64>> {
        let start = |_| {
            let gate = Arc::clone(self);
            tokio::spawn(async move {
                gate.comes_and_waits(open).await;
                1
            })
        };
        (0..tasks).map(start).collect()
    }
}

async fn sum(tasks: Vec<JoinHandle<u64>>) -> Outcome<u64> {
    let mut sum = 0;
    for task in tasks {
        sum += task.await?;
    }
    Ok(sum)
}

async fn alive(task: &Task) -> Outcome<Work> {
    let mut work = Work::default();
    for sample in 0..task.samples {
        let begun = Instant::now();
        for _ in 0..task.rounds(sample) {
            let gate = Arc::new(Gate::default());
            work.done += sum(gate.waiting(task.threads, task.threads)).await?;
        }
        work.lap(begun);
    }
    Ok(work)
}

async fn idle(task: &Task) -> Outcome<Work> {
    let gate = Arc::new(Gate::default());
    let tasks = gate.waiting(task.threads, task.threads + 1);
    while gate.come.load(Relaxed) < task.threads {
        sleep(Duration::from_millis(1)).await;
    }
    let mut work = Work::default();
    for _ in 0..task.samples {
        let before = cpu_ns();
        sleep(Duration::from_secs(1)).await;
        work.samples_ns.push(cpu_ns() - before);
    }
    gate.comes(task.threads + 1);
    work.done = sum(tasks).await? * task.samples as u64;
    Ok(work)
}
