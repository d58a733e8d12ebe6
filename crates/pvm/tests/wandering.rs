//! Tasks that move between hosts. Those hosts are one: processes with different folders of names do
//! not see each other, and reach each other over links.
//!
//! `UPCALL_SEED` repeats the choices of a run, and each test prints its seed.
#![cfg(debug_assertions)]

mod command;

use command::pretended::PretendedHosts;
use command::running::{Programs, said, within};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::process::Output;

/// A seed that differs from run to run.
fn seed() -> u64 {
    let given = std::env::var("UPCALL_SEED").ok().map(|seed| seed.parse().expect("a number"));
    given.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32)
}

/// Runs a program on three hosts, whose tasks move at these intervals, in microseconds.
fn shuffled(options: &[&str], interval: u32, program: &Path, args: &[&str]) -> Output {
    let (hosts, seed) = (PretendedHosts::new(), seed());
    println!("seed {seed}: {options:?} {args:?}");
    let mut command = hosts.starts(&["b:2", "c"], options, program, args);
    command.env("UPCALL_PVM_SHUFFLE", format!("{interval},{seed}"));
    let done = command.output().unwrap();
    assert_ne!(done.status.code(), Some(124), "it hangs: {}", said(&done));
    assert_eq!(hosts.far_processes(), [0; 0]);
    done
}

#[test]
fn no_message_is_lost_doubled_or_out_of_order_while_tasks_move_between_hosts() {
    let programs = Programs::new();
    let program = programs.compiled("images/shuffled.c");
    for interval in [2_000, 300] {
        let args = ["2000", &seed().to_string(), "hosts"];
        let done = shuffled(&["-n", "9", "--place", "interleave"], interval, &program, &args);
        let said = said(&done);
        assert!(done.status.success() && said.matches("ok: ").count() == 9, "{said}");
    }
}

#[test]
fn tasks_move_while_hosts_come_and_go() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/gathers.c");
    let done = hosts.run(&[], &["--procs", "2"], &program, &[]);
    let said = said(&done);
    assert!(said.contains("ok: gathers") && !said.contains("FAILED"), "{said}");
    within(|| hosts.far_processes().is_empty().then_some(()));
}

/// A hostile process changes what it sends of tasks, and its sums are those of what it has changed.
/// The tasks wait where they arrive: what a bent task does when it runs is its own.
#[test]
fn tasks_that_another_host_bends_are_refused_or_harm_only_themselves() {
    let programs = Programs::new();
    let program = programs.compiled("images/bent.c");
    for seed in 1..=3 {
        let hosts = PretendedHosts::new();
        let mut command = hosts.starts(&["b", "c"], &[], &program, &["100"]);
        let done = command.env("UPCALL_PVM_BENT", format!("1:{seed}")).output().unwrap();
        let said = said(&done);
        assert!(done.status.success() && said.contains("ok: bent"), "seed {seed}: {said}");
        assert!(!said.contains("panicked"), "seed {seed}: {said}");
        within(|| hosts.far_processes().is_empty().then_some(()));
    }
}

/// The program computes until each of two processes has two fifths of the work.
#[test]
fn tasks_are_balanced_over_hosts() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/balance.c");
    let place = programs.0.path().join("place");
    std::fs::write(&place, "0\n").unwrap();
    let options = ["-n", "6", "--balance", "greedy", "--place", place.to_str().unwrap()];
    let done = hosts.run(&["b"], &options, &program, &["uneven"]);
    let said = said(&done);
    let count = said.matches(": done\n").count();
    assert!(done.status.success() && count == 6 && !said.contains("not balanced"), "{said}");
}
