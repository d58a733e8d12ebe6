//! Programs whose tasks move between processes at random.
//!
//! `UPCALL_SEED` repeats the choices of a run, and each test prints its seed. `UPCALL_MESSAGES` is
//! the number of messages of the long test. `tests/examples.rs` has more such programs.
#![cfg(debug_assertions)]

mod command;

use command::running::{Programs, said};
use command::upcall;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::process::{Command, Output};

/// The number of messages of the long test.
const MANY: u64 = 100_000_000;

/// A machine whose tasks move.
struct Shuffled<'a> {
    /// Interval between two moves, in microseconds.
    interval: u32,
    /// What happens to one of the processes, as in `UPCALL_PVM_FAULT`.
    fault: Option<&'a str>,
    /// Maximum time, in seconds, against hanging.
    limit: u64,
}

impl Shuffled<'_> {
    fn run(&self, options: &[&str], program: &Path, args: &[&str]) -> Output {
        let seed = seed();
        println!("seed {seed}: {options:?} {args:?}, {:?}", self.fault);
        let mut command = Command::new("timeout");
        command.arg(self.limit.to_string()).arg(upcall()).args(["pvm", "run"]).args(options);
        command.arg(program).args(args);
        command.env("UPCALL_PVM_SHUFFLE", format!("{},{seed}", self.interval));
        if let Some(fault) = self.fault {
            command.env("UPCALL_PVM_FAULT", fault);
        }
        let done = command.output().unwrap();
        assert_ne!(done.status.code(), Some(124), "it hangs: {}", said(&done));
        done
    }
}

/// A seed that differs from run to run.
fn seed() -> u64 {
    let given = std::env::var("UPCALL_SEED").ok().map(|seed| seed.parse().expect("a number"));
    given.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32)
}

fn exchange(messages: u64, interval: u32, limit: u64) {
    let programs = Programs::new();
    let program = programs.compiled("images/shuffled.c");
    let args = [messages.to_string(), seed().to_string()];
    let options = ["-n", "9", "--procs", "3", "--place", "interleave"];
    let shuffled = Shuffled { interval, fault: None, limit };
    let done = shuffled.run(&options, &program, &args.each_ref().map(String::as_str));
    let said = said(&done);
    assert!(done.status.success() && said.matches("ok: ").count() == 9, "{said}");
}

#[test]
fn no_message_is_lost_doubled_or_out_of_order_while_tasks_move() {
    exchange(4_000, 2_000, 60);
}

#[test]
#[ignore = "exchanges 100,000,000 messages"]
fn none_of_many_messages_is_lost_doubled_or_out_of_order_while_tasks_move() {
    let given = std::env::var("UPCALL_MESSAGES").ok();
    let messages = given.map_or(MANY, |count| count.parse().expect("a number"));
    exchange(messages, 20_000, 60 + messages / 500);
}

/// Effects before which a process is killed.
const MOMENTS: [&str; 9] =
    ["Freeze", "Take", "SendPart", "Run", "Free", "Prepare", "Finish", "Ready", "MarkedAfter"];

#[test]
#[ignore = "runs many machines"]
fn only_messages_of_tasks_that_end_with_their_process_are_lost() {
    let programs = Programs::new();
    let program = programs.compiled("images/shuffled.c");
    let options = ["-n", "9", "--procs", "3", "--place", "interleave"];
    for (at, moment) in MOMENTS.into_iter().enumerate() {
        for count in [1, 5, 20, 60] {
            let fault = format!("{}:{moment}:kill:{count}", 1 + at % 2);
            let shuffled = Shuffled { interval: 1_000, fault: Some(&fault), limit: 120 };
            let seed = seed().to_string();
            let done = shuffled.run(&options, &program, &["30000", &seed, "kills"]);
            let said = said(&done);
            let went_on = said.matches("ok: ").count();
            let failed = said.contains("FAILED") || said.contains("panicked");
            // The moment may not come, or the process may have no task then.
            assert!(!failed && (1..=9).contains(&went_on), "{fault}: {said}");
        }
    }
}

#[test]
fn kills_signals_and_messages_for_tasks_that_move_come_in_their_order() {
    let programs = Programs::new();
    let place = programs.0.path().join("place");
    std::fs::write(&place, "0\n1\n2\n2\n").unwrap();
    let place = format!("--place={}", place.display());
    let program = programs.compiled("images/ordered.c");
    let shuffled = Shuffled { interval: 1_000, fault: None, limit: 60 };
    let done = shuffled.run(&["-n", "4", "--procs", "3", &place], &program, &[]);
    let said = said(&done);
    // The status of the task that was killed.
    assert_eq!(done.status.code(), Some(128 + 15), "{said}");
    assert!(said.contains("the order is right"), "{said}");
}

#[test]
fn tasks_that_move_keep_the_process_numbers_that_they_seed_by() {
    let programs = Programs::new();
    let program = programs.compiled("images/seeds.c");
    let shuffled = Shuffled { interval: 500, fault: None, limit: 60 };
    let done = shuffled.run(&["-n", "6", "--procs", "3"], &program, &[]);
    let said = said(&done);
    assert!(done.status.success() && !said.contains("FAILED"), "{said}");
    let streams =
        said.lines().filter_map(|line| line.split_once(": ").filter(|_| line.contains("seed ")));
    let streams = streams.map(|(_, numbers)| numbers).collect::<Vec<_>>();
    let different = streams.iter().collect::<BTreeSet<_>>().len();
    assert_eq!((streams.len(), different), (6 + 6 * 8, 6 + 6 * 8), "{said}");
}
