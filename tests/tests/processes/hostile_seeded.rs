//! Hostile peers that walk at random, from a seed, over all of the protocol, while honest peers
//! call.

use crate::scene::Scene;
use crate::{in_company, place};
use std::path::Path;
use std::time::{Duration, Instant};
use upcall_tests::dice::Dice;
use upcall_tests::place::{Place, eventually};
use upcall_tests::usage::{Usage, memory, open_descriptors};

/// Maximum time for all steps of one hostile client.
const LONGEST: Duration = Duration::from_secs(300);

/// A call that takes this long counts as hanging.
const HANGS: Duration = Duration::from_secs(60);

/// Maximum private memory, in MiB, that a server may keep after hostile clients have ended: stacks
/// of workers, and what its allocator has not returned.
const MOST_MIB: u64 = 64;

/// Returns a process's private memory, in MiB.
fn own_mib(pid: u32) -> u64 {
    let (all, shared) = memory(pid);
    (all - shared) >> 10
}

/// Runs a hostile client for `steps` steps to its end, which is sudden.
fn walk(place: &Place, socket: &Path, seed: u64, steps: u64) -> Vec<u64> {
    let mut hostile = place.start(&format!("hostile {} {seed} {steps}", socket.display()));
    let what = format!("a hostile client with seed {seed} and {steps} steps");
    let numbers = hostile.hear_within(LONGEST).numbers(&what);
    hostile.ended();
    numbers
}

/// Runs hostile clients one after another for `steps` steps in all, `each` of them by one process.
/// An honest client calls all the time, and others bind.
fn clients(options: &str, steps: u64, each: u64) {
    let _company = in_company();
    let mut scene = Scene::new(&format!("wary {options}"));
    let mut dice = Dice::thrown("hostile clients");
    let place = scene.place.clone();
    // What the first walk makes the server keep for later, such as stacks, is no leak.
    walk(&place, &scene.socket, dice.any(), each);
    let before = scene.warm();
    let mib_before = own_mib(scene.server.pid());
    let (start, mut sum) = (Instant::now(), [0; 4]);
    while sum[0] < steps {
        scene.while_honest(3000, |socket| {
            let numbers = walk(&place, socket, dice.any(), each);
            (0..4).for_each(|at| sum[at] += numbers[at]);
            let mut late = place.client();
            late.ask("bind trial").expect_ok("binding beside it");
            assert_eq!(late.ask("add 2 3").numbers("a call beside it"), [5]);
        });
    }
    let [done, lives, replies, holes] = sum;
    let rate = done as f64 / start.elapsed().as_secs_f64();
    println!(
        "    {done} steps, {rate:.0} a second, in {lives} lives; {replies} replies; {holes} holes"
    );
    if holes == 0 {
        eprintln!("skipped: holes in shared memory: the kernel made none");
    }
    eventually("every object is dropped once", || {
        let things = scene.honest.ask("things").numbers("things");
        if things[0] == things[1] { Ok(()) } else { Err(format!("{things:?}")) }
    });
    let now = Usage::of(scene.server.pid());
    let mib_now = own_mib(scene.server.pid());
    println!(
        "    mappings {} before, {} now; {mib_before} MiB of its own before, {mib_now} now",
        before.mappings, now.mappings
    );
    assert!(
        mib_now <= mib_before + MOST_MIB,
        "the server has {mib_now} MiB of its own, and had {mib_before}"
    );
    scene.close(before);
}

#[test]
fn clients_walk() {
    clients("", 20_000, 5_000);
}

#[test]
fn clients_walk_at_two_processors() {
    // With low quotas: a result that is refused after the call has run, such as one object too
    // many, has to be undone.
    clients("two objects=10 calls=12", 20_000, 5_000);
}

#[test]
#[ignore = "long"]
fn long_clients_walk() {
    clients("", 4_000_000, 100_000);
    clients("two", 4_000_000, 100_000);
    clients("poll", 1_000_000, 100_000);
    clients("sleep", 1_000_000, 100_000);
    clients("objects=10 calls=12", 1_000_000, 100_000);
    clients("two objects=10 calls=12", 1_000_000, 10_000);
}

/// Clients of a hostile server end with errors, in bounded time. Their other bindings, and other
/// clients, are not affected.
fn server(steps: u64) {
    let _company = in_company();
    let place = place();
    let _honest = place.serve("trial");
    let mut dice = Dice::thrown("a hostile server");
    let mut hostile = place.start(&format!("hostile-server other {}", dice.any()));
    hostile.hear().expect_ok("a hostile server");
    let (mut bystander, mut clients) = (place.client(), [place.client(), place.client()]);
    bystander.ask("bind trial").expect_ok("binding");
    for client in &mut clients {
        client.ask("bind trial").expect_ok("binding to the honest server");
        client.ask("honest 100").expect_ok("calls");
        client.ask("endure other 300").expect_ok("a first round");
    }
    std::thread::sleep(Duration::from_millis(300));
    let before = clients.each_ref().map(|client| Usage::of(client.pid()));
    let (start, mut done) = (Instant::now(), 0);
    while done < steps {
        clients.iter_mut().for_each(|client| client.say("endure other 2500"));
        let numbers = bystander.ask("honest 2500").numbers("a bystander");
        assert!(Duration::from_nanos(numbers[1]) < HANGS, "a bystander's call hung: {numbers:?}");
        for client in &mut clients {
            let numbers = client.hear().numbers("what was endured");
            let [binds, calls, errors, longest] = numbers[..] else { panic!("{numbers:?}") };
            println!(
                "    {binds} binds, {calls} calls, {errors} errors, the longest call {:.1} ms",
                longest as f64 / 1e6
            );
            assert!(binds > 0 && Duration::from_nanos(longest) < HANGS, "{numbers:?}");
            assert_eq!(client.ask("add 2 3").numbers("a call to the honest server"), [5]);
        }
        let numbers = hostile.ask("steps").numbers("steps");
        done = numbers[0];
        println!("    {numbers:?}");
    }
    println!("    {done} steps, {:.0} a second", done as f64 / start.elapsed().as_secs_f64());
    for (client, before) in clients.iter().zip(before) {
        eventually("a client has everything back", || {
            let now = Usage::of(client.pid());
            let open = open_descriptors(client.pid());
            if now.is_back_to(&before) {
                Ok(())
            } else {
                Err(format!("{now:?}, before {before:?}; open: {open}"))
            }
        });
    }
}

#[test]
fn a_server_walks() {
    server(12_000);
}

#[test]
#[ignore = "long"]
fn long_a_server_walks() {
    server(1_000_000);
}
