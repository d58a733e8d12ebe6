//! The floors that need nothing but the processor. Those of `yield` and `fork-join`, bare switches
//! between stacks, are in `bench/peers`; the other cases have no floor that would not be a system
//! of threads.

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

/// Two locked additions: what a mutex costs that passes itself on to whoever waits, when nobody
/// waits.
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
