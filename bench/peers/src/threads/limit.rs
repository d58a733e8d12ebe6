//! Bare switches between stacks, with corosensei: the floors of `yield` and of `fork-join`. There
//! is no scheduler, no queue and no synchronisation.

use std::time::Instant;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use upcall_bench::child::Outcome;
use upcall_bench::threads::case::Case;
use upcall_bench::threads::child::{Entry, Finding, Task, Work};

pub const LIMIT: Entry = Entry { name: "limit", run };

fn run(task: &Task) -> Outcome<Finding> {
    match task.case {
        Some(Case::Yield(2)) => Ok(Finding::Done(switches(task)?)),
        Some(Case::ForkJoin) => Ok(Finding::Done(starts_and_ends(task)?)),
        _ => Ok(Finding::Unsupported("there is no floor in this program".to_owned())),
    }
}

/// Switches between two stacks. A switch there is one yield, and the switch back is another.
fn switches(task: &Task) -> Outcome<Work> {
    let half = task.ops / 2;
    let switches = half * task.samples as u64;
    let mut other = Coroutine::new(move |yielder: &Yielder<(), ()>, ()| {
        let mut switches_back = 0;
        for _ in 0..switches {
            switches_back += 1;
            yielder.suspend(());
        }
        switches_back
    });
    let mut work = Work::default();
    for _ in 0..task.samples {
        let begun = Instant::now();
        for _ in 0..half {
            other.resume(());
            work.done += 1;
        }
        work.lap(begun);
    }
    match other.resume(()) {
        CoroutineResult::Return(switches_back) => work.done += switches_back,
        CoroutineResult::Yield(()) => return Err("the other one has not ended".into()),
    }
    Ok(work)
}

/// Runs a coroutine to its end at once, on an existing stack: nothing is queued and no thread
/// waits.
fn starts_and_ends(task: &Task) -> Outcome<Work> {
    let mut stack = DefaultStack::default();
    let mut work = Work::default();
    for _ in 0..task.samples {
        let begun = Instant::now();
        for _ in 0..task.ops {
            let mut thread = Coroutine::with_stack(stack, |_: &Yielder<(), ()>, ()| 1);
            match thread.resume(()) {
                CoroutineResult::Return(result) => work.done += result,
                CoroutineResult::Yield(()) => return Err("it has not ended".into()),
            }
            stack = thread.into_stack();
        }
        work.lap(begun);
    }
    Ok(work)
}
