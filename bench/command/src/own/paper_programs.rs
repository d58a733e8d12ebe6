//! The programs of Table 6: those of the examples, and a program that sends nothing.

// Each is also a program of its own.
#[allow(dead_code)]
#[path = "../../../../crates/upcall/examples/synth.rs"]
pub mod synth;
#[allow(dead_code)]
#[path = "../../../../crates/upcall/examples/tpuz.rs"]
pub mod tpuz;

use std::hint::black_box;
use upcall::message::GroupBuilder;
use upcall_bench::child::Outcome;

/// Work that takes about as long as a search of Tpuz by two members: number of steps of the program
/// that sends nothing, and of requests of each member of synth-N.
const STEPS: u64 = 20_000_000;
const REQUESTS: u64 = 20_000;

/// Factor by which all work is reduced in a quick run.
const QUICK: u64 = 50;

/// Runs a program of Table 6, for `searches` searches or as long as they take; 0 stands for a small
/// one. The member of rank 0 prints the number of messages sent by all members, and of those
/// buffered.
pub fn workload(program: &str, searches: u64) -> Outcome<()> {
    let (side, searches, quick) = if searches == 0 { (5, 1, QUICK) } else { (6, searches, 1) };
    let (messages, buffered) = match program {
        "tpuz" => {
            let searched = tpuz::search(
                GroupBuilder::from_environment()?,
                &tpuz::Board::new(side)?,
                searches as usize,
            )?;
            (searched.messages, searched.buffered)
        }
        "null" => {
            let steps = STEPS * searches / quick;
            black_box((0..steps).fold(1_u64, |state, _| {
                black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1))
            }));
            (0, 0)
        }
        // The paper's times, with a ns for a cycle.
        synth => {
            let n: u64 = synth.strip_prefix("synth-").ok_or("no such program")?.parse()?;
            let groups = REQUESTS * searches / quick / n;
            let plan =
                synth::Plan { n, groups, interval: 1000, handler: 500, ..synth::Plan::default() };
            let ran = synth::run(GroupBuilder::from_environment()?, &plan)?;
            (ran.requests, ran.buffered)
        }
    };
    if std::env::var("UPCALL_RANK").is_ok_and(|rank| rank == "0") {
        println!("{messages} {buffered}");
    }
    Ok(())
}
