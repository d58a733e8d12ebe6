//! The shape of the paper's Figure 7.

use std::time::Duration;
use upcall_simulator::synth::{BUFFERED, Entry, HANDLER, Synth, run};

const INTERVALS: [u64; 6] = [250, 500, 750, 1000, 1250, 1500];

#[test]
fn few_messages_are_buffered_once_the_interval_exceeds_what_one_takes() {
    let share = |group, interval| run(Synth::new(group, interval)).unwrap().share();
    for group in [10, 100, 1000] {
        let shares: Vec<f64> = INTERVALS.iter().map(|interval| share(group, *interval)).collect();
        println!("synth-{group}: {shares:.4?}");
    }
    println!("{} {:?}", HANDLER + BUFFERED, Entry::Patience(Duration::ZERO));
}
