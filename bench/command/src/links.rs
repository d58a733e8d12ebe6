//! The simulator of links as the suite `links` runs it.

use upcall_bench::child::Outcome;
use upcall_bench::links::case::{CUTS, Case, LINKS, MESSAGES};
use upcall_simulator::links::{LinksPlan, run};

/// The seed of all runs, so that they do the same.
const SEED: u64 = 1;

/// Runs a case once. Returns the number of messages that have arrived.
///
/// # Errors
/// A message was lost, doubled or out of order.
pub fn simulate(case: Case) -> Outcome<u64> {
    let plan = LinksPlan { hosts: case.hosts(), links: LINKS, messages: MESSAGES, cuts: CUTS };
    Ok(run(SEED, plan)?.messages)
}
