//! The suite `homed`, as `upcall_bench::homed::case` specifies it.
//!
//! The home and the users of its object are processes, each on its processor. Where the home has to
//! touch the object between two operations, they take turns by a [`Gate`](upcall_bench::lab::Gate),
//! independently of the object.

mod chains;
mod objects;
mod slowdown;
mod throughput;
mod ways;

use upcall_bench::child::Outcome;
use upcall_bench::homed::case::{Case, Op};
use upcall_bench::homed::child::{Finding, Task};
use upcall_bench::lab::Lab;

/// Runs a child's task.
pub fn measure(lab: &mut Lab<Task>) -> Outcome<Vec<Finding>> {
    match lab.task.case {
        Case::Op(op) => match op {
            Op::EnqueueDequeue => ways::short(lab, op, &objects::EnqueueDequeue),
            Op::FindLast(length) => ways::short(lab, op, &objects::FindLast(length)),
            Op::CreateSegment => ways::short(lab, op, &objects::CreateSegment),
            Op::MapSegment => ways::long::<objects::MapSegment>(lab, op),
            Op::CreateProcess => ways::long::<objects::CreateProcess>(lab, op),
        },
        Case::Throughput(hot) => throughput::measure(lab, hot),
        Case::Slowdown => slowdown::measure(lab),
        Case::BreakEven => chains::measure(lab),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use upcall_bench::messages::Found;

    /// Measures every case on any number of processors: on one, both sides yield now and then.
    #[test]
    fn every_case_is_measured() {
        let _alone = crate::ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let allowed = std::thread::available_parallelism().map_or(1, usize::from);
        for case in Case::all() {
            let task = Task {
                case,
                cpus: [0, usize::from(allowed > 1)],
                time: Duration::from_millis(1),
                group: std::process::id(),
            };
            let found = Lab::of_threads(task).and_then(|mut lab| measure(&mut lab));
            let found = found.unwrap_or_else(|error| panic!("{case}: {error}"));
            assert!(!found.is_empty(), "{case}");
            for Finding { case, system, found, .. } in found {
                match found {
                    Found::Times(times) => assert!(
                        times.count > 0 && times.p50_ns.is_finite(),
                        "{case}, {system}: {times:?}"
                    ),
                    Found::Rate(rate) => {
                        assert!(rate.calls > 0 && rate.elapsed_ns > 0, "{case}, {system}: {rate:?}")
                    }
                }
            }
        }
    }
}
