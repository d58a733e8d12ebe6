//! Feeds good samples, mutated at random, to every reader of a peer's bytes. `make fuzz` does the
//! same with libFuzzer, which finds more in more time.
#![forbid(unsafe_code)]

use rustix::time::{ClockId, clock_gettime};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use upcall_tests::bad_input::{TARGETS, Target, bend, first_verdict};
use upcall_tests::dice::Dice;

/// Longest processor time for one input. An input has a few hundred bytes; a reader that computes
/// for longer is regarded as endless.
const LONGEST: Duration = Duration::from_secs(2);

/// Returns the processor time that this thread has used.
fn computed() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Feeds inputs until this thread has used `time`, so that a busy machine feeds as many.
fn feed(target: Target, time: Duration) {
    let mut dice = Dice::thrown(target.name);
    let samples = (target.samples)();
    samples.iter().for_each(|sample| (target.read)(sample));
    let (end, mut inputs) = (computed() + time, 0);
    loop {
        let start = computed();
        if start >= end {
            break;
        }
        let input = bend(&samples, &mut dice);
        let fed = catch_unwind(AssertUnwindSafe(|| (target.read)(&input)));
        assert!(fed.is_ok(), "{} panicked with {}", target.name, input.escape_ascii());
        let took = computed() - start;
        assert!(took < LONGEST, "{} took {took:?} with {}", target.name, input.escape_ascii());
        inputs += 1;
    }
    println!("    {}: {inputs} inputs", target.name);
}

#[test]
fn no_reader_falls_for_bad_input() {
    TARGETS.iter().for_each(|&target| feed(target, Duration::from_millis(700)));
}

#[test]
fn the_first_sample_of_hosts_is_accepted() {
    assert_eq!(first_verdict().map(|name| name.to_string()), Ok("known".to_string()));
}

#[test]
fn each_reader_is_a_target_of_cargo_fuzz() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/fuzz_targets");
    let files = std::fs::read_dir(folder)
        .expect("the targets")
        .map(|entry| entry.expect("an entry").file_name());
    let mut found: Vec<String> =
        files.map(|name| name.to_string_lossy().replace(".rs", "")).collect();
    let mut names = TARGETS.map(|target| target.name.to_string());
    found.sort();
    names.sort();
    assert_eq!(found, names);
}

#[test]
#[ignore = "long"]
fn long_no_reader_falls_for_bad_input() {
    TARGETS.iter().for_each(|&target| feed(target, Duration::from_secs(60)));
}
