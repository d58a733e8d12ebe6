//! Processes that can do nothing but end.
//!
//! The test has a process of its own, since a process that starts another one shares its
//! descriptors with it for a moment.
#![cfg(not(miri))]

use std::process::Command;
use std::time::Instant;
use upcall_os::socket::is_ending;

#[test]
fn a_process_that_lives_is_not_ending_and_one_that_has_ended_is() {
    assert!(!is_ending(std::process::id()));
    let mut child = Command::new("true").spawn().unwrap();
    // The child stays in its ended state until it is waited for.
    let start = Instant::now();
    while !is_ending(child.id()) {
        assert!(start.elapsed().as_secs() < 60);
        std::thread::yield_now();
    }
    child.wait().unwrap();
    assert!(!is_ending(child.id()));
}
