//! Upcall's own cases in the suite `messages`, as `upcall_bench::messages::own::case` specifies
//! them: sections, polling, upcalls, and the handling of messages that are not taken.
//!
//! The sender and the receiver are two processes, each on its processor; further members are
//! threads of one of them. Where one must not poll while the other sends, they take turns by a
//! [`Gate`](upcall_bench::lab::Gate), independently of the group. The measured messages go through
//! the group alone.

mod buffered;
mod common;
mod divert;
mod once;
pub mod paper;
mod paper_programs;
mod sides;
mod stopped;
mod upcalls;

use upcall_bench::child::Outcome;
use upcall_bench::lab::Lab;
use upcall_bench::messages::own::case::Own;
use upcall_bench::messages::own::child::{Finding, Task};

/// Runs a child's task.
pub fn measure(lab: &mut Lab<Task>) -> Outcome<Vec<Finding>> {
    match lab.task.case {
        Own::Section => sides::section(lab),
        Own::Poll => sides::poll(lab),
        Own::Buffered => buffered::measure(lab),
        Own::Divert => divert::measure(lab),
        Own::Stopped => stopped::measure(lab),
        Own::Polled => upcalls::ping_pong(lab, false),
        Own::Idle => upcalls::ping_pong(lab, true),
        Own::Asleep | Own::Busy | Own::Computing | Own::Signal => upcalls::one_way(lab),
        Own::Once => once::check(lab),
        Own::Synth(group) => paper::figure(lab, group),
        Own::Simulated => paper::simulated(lab),
        Own::Tpuz => paper::table(lab),
        Own::TpuzSimulated => paper::simulated_table(lab),
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
        // Tpuz needs a job, and that needs the command.
        for case in Own::ALL.into_iter().filter(|case| *case != Own::Tpuz) {
            let count = match case {
                Own::Once => 20_000,
                // A small search.
                Own::TpuzSimulated => 0,
                _ => 4,
            };
            let task = Task {
                case,
                cpus: [0, usize::from(allowed > 1)],
                time: Duration::from_millis(2),
                count,
                group: std::process::id(),
            };
            let found = Lab::of_threads(task).and_then(|mut lab| measure(&mut lab));
            let found = found.unwrap_or_else(|error| panic!("{case}: {error}"));
            assert!(!found.is_empty(), "{case}");
            for Finding { case, found, .. } in found {
                match found {
                    Found::Times(times) => {
                        assert!(times.count > 0 && times.p50_ns >= 0.0, "{case}: {times:?}")
                    }
                    Found::Rate(rate) => assert!(rate.elapsed_ns > 0, "{case}: {rate:?}"),
                }
            }
        }
    }
}
