//! Hosts whose links are cut: each message arrives once, in order. `UPCALL_SEED` gives the seed.

use std::time::{Instant, UNIX_EPOCH};
use upcall_simulator::links::{LinksPlan, LinksSummary, run};

fn seed() -> u64 {
    let given = std::env::var("UPCALL_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64))
}

/// Runs a plan, and says what it cost.
fn told(plan: LinksPlan) -> LinksSummary {
    let (seed, start) = (seed(), Instant::now());
    println!("from seed {seed} on");
    let summary = run(seed, plan).unwrap_or_else(|why| panic!("{why}"));
    let (took, links) = (start.elapsed().as_secs_f64(), u64::from(plan.hosts * plan.links));
    println!(
        "{:>7} hosts, {links:>7} links: {took:>6.1} s, {:>6} MiB, {:>9} messages, {:>7} cuts, \
         {:.1} s of virtual time",
        plan.hosts,
        memory() >> 20,
        summary.messages,
        summary.cuts,
        summary.took as f64 / 1e9
    );
    assert_eq!(summary.messages, links * 2 * u64::from(plan.messages));
    assert!(plan.cuts == 0 || summary.cuts > 0 && summary.lost > 0, "{summary:?}");
    summary
}

/// Resident memory of this process, in bytes.
fn memory() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

#[test]
fn each_message_arrives_once_whatever_is_cut() {
    for hosts in [2, 10, 30] {
        told(LinksPlan { hosts, links: 2, messages: 100, cuts: 10 });
    }
}

#[test]
fn a_seed_repeats_a_run() {
    let plan = LinksPlan { hosts: 5, links: 2, messages: 50, cuts: 5 };
    for seed in 0..4 {
        assert_eq!(run(seed, plan), run(seed, plan));
    }
}

/// Time and memory by the number of hosts.
#[test]
#[ignore = "minutes, and 8 GiB of memory"]
fn a_hundred_thousand_hosts() {
    for hosts in [10, 100, 1_000, 10_000, 100_000] {
        told(LinksPlan { hosts, links: 2, messages: 10, cuts: 2 });
    }
}

#[test]
#[ignore = "minutes"]
fn ten_million_messages_through_cuts() {
    told(LinksPlan { hosts: 50, links: 2, messages: 50_000, cuts: 500 });
}
