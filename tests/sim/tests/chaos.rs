//! Two million steps of domains that do anything, with consecutive seeds from the clock, or from
//! `UPCALL_SEED` on. `UPCALL_STEPS` makes it longer.

use std::time::UNIX_EPOCH;
use upcall_simulator::chaos;
use upcall_simulator::ledger::Summary;

/// Number of steps of one run before it drains.
const RUN: u64 = 20_000;

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn whatever_befalls_domains_messages_arrive() {
    let first = given("UPCALL_SEED")
        .unwrap_or_else(|| UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64));
    let steps = given("UPCALL_STEPS").unwrap_or(2_000_000);
    println!("from seed {first} on");
    let (mut seed, mut all) = (first, Summary::default());
    while all.steps < steps {
        match chaos::run(seed, RUN) {
            Ok(summary) => all = all.and(summary),
            Err(failure) => panic!(
                "{failure}after {} steps in all; again: UPCALL_SEED={seed} UPCALL_STEPS=1 cargo \
                test -p upcall-simulator --test chaos",
                all.steps + failure.step
            ),
        }
        seed = seed.wrapping_add(1);
    }
    println!("{} runs: {all:#?}", seed.wrapping_sub(first));
    if steps >= 1_000_000 {
        assert!(
            all.diverts > 2000
                && all.home > 500
                && all.rings > 500
                && all.deaths > 10
                && all.stops > 1000,
            "{all:?}"
        );
    }
}
