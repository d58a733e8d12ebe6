//! The shape of Figure 7 in UDM.

use std::time::Duration;
use upcall_simulator::synth::{BUFFERED, Entry, HANDLER, Synth, run};

/// Intervals at which consumers cannot keep up while messages are buffered, and some at which they
/// can, in units.
const TOO_SHORT: [u64; 3] = [250, 500, 750];
const LONG_ENOUGH: [u64; 3] = [1250, 1500, 2000];

fn shares(intervals: [u64; 3]) -> [[f64; 3]; 3] {
    let share = |group, interval| {
        let row = run(Synth::new(group, interval)).unwrap();
        println!(
            "synth-{group}, a message each {interval}: {} of {} buffered, {:.2} %",
            row.buffered,
            row.sent,
            100.0 * row.share()
        );
        row.share()
    };
    [10, 100, 1000].map(|group| intervals.map(|interval| share(group, interval)))
}

#[test]
fn few_messages_are_buffered_once_the_interval_exceeds_what_one_takes() {
    assert!(TOO_SHORT.iter().all(|interval| *interval < HANDLER + BUFFERED));
    assert!(LONG_ENOUGH.iter().all(|interval| *interval > HANDLER + BUFFERED));
    for share in shares(LONG_ENOUGH).as_flattened() {
        assert!((0.0001..0.02).contains(share), "{share}");
    }
    // The more messages are sent before a sender waits for all of them, the longer it takes until
    // the buffer is empty.
    let [ten, hundred, thousand] = shares(TOO_SHORT);
    for at in 0..3 {
        assert!(
            ten[at] < 0.03
                && 3.0 * ten[at] < hundred[at]
                && hundred[at] < 0.3
                && thousand[at] > 0.5,
            "{at}"
        );
    }
}

#[test]
fn a_queue_of_the_common_size_takes_what_comes_before_the_receiver_runs() {
    let entry = Entry::Patience(Duration::from_micros(200));
    for (group, interval) in [(10, 250), (1000, 250), (1000, 1500)] {
        let row = run(Synth { entry, home: 4096, ..Synth::new(group, interval) }).unwrap();
        assert!(row.sent > 1000 && row.buffered == 0, "{row:?}");
    }
}
