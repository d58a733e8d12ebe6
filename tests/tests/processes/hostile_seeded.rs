//! Hostile peers that walk over all of the protocol, by chance and from a seed, while honest ones call.

use crate::in_company;
use crate::scene::Scene;
use std::path::Path;
use std::time::{Duration, Instant};
use upcall_tests::dice::Dice;
use upcall_tests::place::{Place, eventually};
use upcall_tests::usage::{Usage, memory};

/// So long one hostile client may take for its steps.
const LONGEST: Duration = Duration::from_secs(300);

/// Runs a hostile client of so many steps to its end, which is a sudden one.
fn walk(place: &Place, socket: &Path, seed: u64, steps: u64) -> Vec<u64> {
    let mut hostile = place.start(&format!("hostile {} {seed} {steps}", socket.display()));
    let what = format!("a hostile client with seed {seed} and {steps} steps");
    let numbers = hostile.hear_within(LONGEST).numbers(&what);
    hostile.ended();
    numbers
}

/// Hostile clients in a row, until there were `steps` of them, `each` by one process; an honest client calls, and others bind, meanwhile.
fn clients(options: &str, steps: u64, each: u64) {
    let _company = in_company();
    let mut scene = Scene::new(&format!("wary {options}"));
    let mut dice = Dice::thrown("hostile clients");
    let place = scene.place.clone();
    // What the first walk makes the server keep for later, such as stacks, is no leak.
    walk(&place, &scene.socket, dice.any(), each);
    let before = scene.warm();
    let (start, mut sum) = (Instant::now(), [0; 3]);
    while sum[0] < steps {
        scene.while_honest(3000, |socket| {
            let numbers = walk(&place, socket, dice.any(), each);
            (0..3).for_each(|at| sum[at] += numbers[at]);
            let mut late = place.client();
            late.ask("bind trial").expect_ok("binding beside it");
            assert_eq!(late.ask("add 2 3").numbers("a call beside it"), [5]);
        });
    }
    let [done, lives, replies] = sum;
    let rate = done as f64 / start.elapsed().as_secs_f64();
    println!("    {done} steps, {rate:.0} a second, in {lives} lives; {replies} replies");
    eventually("every object is dropped once", || {
        let things = scene.honest.ask("things").numbers("things");
        if things[0] == things[1] { Ok(()) } else { Err(format!("{things:?}")) }
    });
    let now = Usage::of(scene.server.pid());
    println!("    mappings {} before, {} now; {} MiB", before.mappings, now.mappings, memory(scene.server.pid()).0 >> 10);
    scene.close(before);
}

#[test]
fn clients_walk() {
    clients("", 200_000, 10_000);
}

#[test]
fn clients_walk_at_two_processors() {
    clients("two", 200_000, 10_000);
}

#[test]
#[ignore = "long"]
fn long_clients_walk() {
    clients("", 4_000_000, 100_000);
    clients("two", 4_000_000, 100_000);
    clients("poll", 1_000_000, 100_000);
    clients("sleep", 1_000_000, 100_000);
}
