//! The floors that need only the processor. Those of `yield` and `fork-join`, bare switches between
//! stacks, are in `bench/peers`. A floor of the other cases would be a thread system itself.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Instant;

use super::case::Case;
use super::child::{Entry, Finding, Task, Work, procedure_calls};
use crate::child::Outcome;

/// The row of `limit`.
pub const LIMIT: Entry = Entry { name: "limit", run };

fn run(task: &Task) -> Outcome<Finding> {
    match task.case {
        Some(Case::ProcedureCall) => Ok(Finding::Done(procedure_calls(task))),
        Some(Case::LockUnlock) => Ok(Finding::Done(locked_adds(task))),
        _ => Ok(Finding::Unsupported("there is no floor in this program".to_owned())),
    }
}

/// Two locked additions: the uncontended cost of a mutex that hands itself over to a waiter.
fn locked_adds(task: &Task) -> Work {
    let word = black_box(AtomicU64::new(0));
    let mut work = Work::default();
    for _ in 0..task.samples {
        let begun = Instant::now();
        for _ in 0..task.ops {
            word.fetch_add(1, Acquire);
            word.fetch_add(1, Release);
        }
        work.lap(begun);
    }
    work.done = word.load(Relaxed) / 2;
    work
}
