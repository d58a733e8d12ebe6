//! A million steps of tasks that move, with consecutive seeds from the clock, or from `UPCALL_SEED`
//! on. `UPCALL_STEPS` makes it longer. `UPCALL_TRACE` prints all of a run that fails.

use std::time::UNIX_EPOCH;
use upcall_simulator::moving::{self, LABELS, Label, MovingSummary};

/// Number of steps of one run before it drains.
const RUN: u64 = 5_000;

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn tasks_move_whatever_befalls_processes() {
    let first = given("UPCALL_SEED")
        .unwrap_or_else(|| UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64));
    let steps = given("UPCALL_STEPS").unwrap_or(1_000_000);
    println!("from seed {first} on");
    let (mut seed, mut all) = (first, MovingSummary::default());
    while all.steps < steps {
        match moving::run(seed, RUN) {
            Ok(summary) => all = all.and(summary),
            Err(why) => panic!(
                "{why}again: UPCALL_SEED={seed} UPCALL_STEPS=1 cargo test -p upcall-simulator \
                --test moving"
            ),
        }
        seed = seed.wrapping_add(1);
    }
    println!("{} runs: {all:#?}", seed.wrapping_sub(first));
    if steps >= 1_000_000 {
        let counts = [all.moved, all.not_moved, all.kept, all.stops];
        assert!(counts.iter().all(|count| *count > 100), "{all:?}");
        assert!(all.timed_out > 20 && all.full > 20 && all.carried > 100, "{all:?}");
        assert!(all.cuts > 10 && all.ended > 20, "{all:?}");
        // Trouble strikes before each kind of effect. Some are too rare for a million steps.
        let rare =
            [Label::Fill, Label::Ready, Label::Resend, Label::Resent, Label::Flush, Label::Flushed];
        for label in LABELS.into_iter().filter(|label| !rare.contains(label)) {
            assert!(all.strikes[label as usize] > 0, "{label:?}: {all:?}");
        }
    }
}

#[test]
fn a_seed_repeats_a_run() {
    for seed in 0..4 {
        assert_eq!(moving::run(seed, 3000), moving::run(seed, 3000));
    }
}
