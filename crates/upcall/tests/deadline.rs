//! What a handler knows of the time for which its caller waits.
#![deny(warnings)]
#![forbid(unsafe_code)]

upcall::interface!(
    "package test:deadline;
     interface probe {
         left: func() -> option<u64>;
         left-below: func() -> option<u64>;
     }"
);

use probe::Probe;
use std::time::{Duration, Instant};

/// Deadline of the calls here, in seconds. No call takes that long.
const DEADLINE: Duration = Duration::from_secs(60);

/// Whole seconds until the deadline, rounded up.
fn left() -> Option<u64> {
    upcall::deadline().map(|ends| ends.duration_since(Instant::now()).as_secs() + 1)
}

struct Server;

impl probe::Serve for Server {
    fn left(&self) -> Option<u64> {
        left()
    }

    fn left_below(&self) -> Option<u64> {
        Probe::local(Server).left().expect("a local call")
    }
}

#[test]
fn a_handler_sees_for_how_long_its_caller_waits() {
    let name = format!("deadline-{}", std::process::id());
    let _server = upcall::Server::new().export(&name, probe::export(Server)).start().unwrap();
    let probe = Probe::bind(&name).unwrap();
    let limited = probe.with_deadline(Some(DEADLINE));
    for seen in [limited.left(), limited.left_below()] {
        let seen = seen.unwrap().expect("the caller has a deadline");
        assert!((1..=60).contains(&seen), "{seen} s of 60 are left");
    }
    assert_eq!(probe.left().unwrap(), None);
    assert_eq!(probe.left_below().unwrap(), None);
    assert_eq!(left(), None);
}

#[test]
fn the_earlier_of_two_deadlines_counts() {
    let local = Probe::local(Server);
    upcall::thread::run(move || {
        let at = Instant::now() + DEADLINE;
        let seen = upcall::thread::with_deadline(at, || local.left().unwrap());
        assert!(seen.unwrap().is_some_and(|seen| seen <= 60));
        assert_eq!(local.left().unwrap(), None);
        // What runs aside has no caller.
        let aside = upcall::thread::with_deadline(at, || upcall::thread::blocking(left));
        assert_eq!(aside.unwrap(), None);
    });
}
