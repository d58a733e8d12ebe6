//! The shape of Table 6 in UDM. Each run checks by itself that nothing is lost: the result of the
//! search is compared with that of a single member.

use std::time::Duration;
use upcall_simulator::synth::Entry;
use upcall_simulator::tpuz::{Other, PATIENCE, Ran, Workload, run};
use upcall_simulator::turns::Schedule;

const CO: Schedule = Schedule::Co { patience: PATIENCE };

fn ran(workload: Workload) -> Ran {
    let ran = run(workload).unwrap();
    println!("{workload:?}: {ran:?}");
    ran
}

#[test]
fn two_small_searches_have_the_shape() {
    let [batch, gang, co] = [Schedule::Batch, Schedule::Gang, CO]
        .map(|schedule| ran(Workload::new(5, Other::Tpuz, schedule)));
    assert!((0.98..1.02).contains(&(gang.time as f64 / batch.time as f64)));
    for job in 0..2 {
        assert!(gang.sent[job].buffered < 10 && co.sent[job].buffered > 300);
    }
}

/// With a board of the paper's size, which takes ten million steps each.
#[test]
#[cfg_attr(debug_assertions, ignore = "takes long without optimisation: cargo test --release")]
fn gangs_buffer_little_and_who_is_scheduled_loosely_much() {
    let [batch, gang, co] = [Schedule::Batch, Schedule::Gang, CO]
        .map(|schedule| ran(Workload::new(6, Other::Null, schedule)));
    // UDM: 513.5 thousand messages, and 239.6 million cycles.
    assert_eq!((batch.sent[0].messages, batch.sent[0].buffered), (506_429, 0));
    assert!((230_000_000..250_000_000).contains(&batch.time), "{}", batch.time);
    let to_batch = |ran: Ran| ran.time as f64 / batch.time as f64;
    assert!((1.0..1.02).contains(&to_batch(gang)) && (1.0..1.03).contains(&to_batch(co)));
    assert!(gang.sent[0].buffered < 2000 && co.sent[0].buffered > 10 * gang.sent[0].buffered);
}

#[test]
fn each_workload_loses_nothing_and_a_seed_repeats_it() {
    for other in [Other::Nobody, Other::Null, Other::Tpuz, Other::Synth(100), Other::Synth(10)] {
        for schedule in [Schedule::Batch, Schedule::Gang, CO] {
            let workload = Workload::new(5, other, schedule);
            assert_eq!(ran(workload), run(workload).unwrap());
        }
    }
    let synth = |seed| ran(Workload { seed, ..Workload::new(5, Other::Synth(10), CO) });
    assert_ne!(synth(1), synth(2));
}

#[test]
fn a_queue_of_the_common_size_takes_what_comes_while_its_receiver_does_not_run() {
    let entry = Entry::Patience(Duration::from_micros(200));
    let beside = ran(Workload { entry, home: 4096, ..Workload::new(5, Other::Tpuz, CO) });
    assert_eq!(beside.sent.map(|sent| (sent.messages, sent.buffered)), [(1643, 0); 2]);
}
