//! `kill -9` of a server (LRPC, section 5.3).

use crate::{alone, in_company, place};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::thread::JoinHandle;
use std::time::Duration;
use upcall_os::socket::ends_within;
use upcall_tests::dice::Dice;
use upcall_tests::now;
use upcall_tests::place::eventually;
use upcall_tests::usage::{Usage, open_descriptors};

/// Maximum time until every caller returns, in milliseconds, on an idle machine.
const BAR: f64 = 100.0;
/// Beyond that, maximum time as a multiple of what another process takes to learn of the end from
/// the kernel.
const TIMES: f64 = 2.0;

/// Waits for the end of a process in another thread, which returns the moment at which it learned
/// of the end.
pub(crate) fn end_of(pid: u32) -> JoinHandle<u64> {
    let pid = Pid::from_raw(pid as i32).expect("a process number");
    let process = pidfd_open(pid, PidfdFlags::empty()).expect("a living process");
    std::thread::spawn(move || {
        ends_within(&process, Duration::from_secs(60));
        now()
    })
}

/// Returns the milliseconds from one moment to another.
pub(crate) fn between(before: u64, after: u64) -> f64 {
    after.saturating_sub(before) as f64 / 1e6
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

#[test]
fn every_caller_returns() {
    killed_while_called(12);
}

#[test]
#[ignore = "long"]
fn long_every_caller_returns() {
    killed_while_called(300);
}

/// Checks that most rounds are in time; in some, other programs may have the processors for a
/// while. Each round has the milliseconds from the kill until the last caller returned, and until
/// [`end_of`] returned.
pub(crate) fn in_time(rounds: &[(f64, f64)]) {
    let callers = median(rounds.iter().map(|round| round.0).collect());
    let kernel = median(rounds.iter().map(|round| round.1).collect());
    println!("milliseconds after the kill: {callers:.2}; the end was known after {kernel:.2}");
    assert!(
        callers < BAR + TIMES * kernel,
        "milliseconds until the last caller returned, and until the end: {rounds:?}"
    );
}

fn killed_while_called(rounds: u32) {
    let _alone = alone();
    let place = place();
    let mut dice = Dice::thrown("when the server is killed");
    let mut client = place.client();
    let (mut times, mut before) = (Vec::new(), None);
    for round in 0..rounds {
        let options = ["", "sleep", "two", "poll"][round as usize % 4];
        let server = place.serve(&format!("trial {options}"));
        client.ask("bind trial").expect_ok("binding to the new server of the same name");
        // The first rounds create what stays: the clerk, the station, the places where virtual
        // processors sleep, and the memory of as many threads as there will be.
        let storm = if round < 4 { 3 - u64::from(round) } else { dice.below(4) };
        let (kernel, users) = [(6, 8), (1, 0), (0, 1), (12, 70)][storm as usize];
        client.ask(&format!("storm {kernel} {users}")).expect_ok("a storm");
        std::thread::sleep(Duration::from_micros(dice.below(30_000)));
        let end = end_of(server.pid());
        let at = server.kill();
        let words = client.hear().expect_ok("the storm's end");
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        assert_eq!(number(0), kernel + users, "all callers have returned");
        assert_eq!(words[2..], ["Failed.PeerEnded"], "with the error of a server that has ended");
        let ms = between(at, number(1));
        println!(
            "round {round}: {kernel} kernel threads, {users} user-level threads, {options:7} all \
            back after {ms:.2} ms"
        );
        times.push((ms, between(at, end.join().expect("a thread that waits"))));
        place.expect_empty();
        client.ask("unbind").expect_ok("giving up");
        if round < 4 {
            before = Some(Usage::of(client.pid()));
        } else if let Some(before) = before {
            eventually("the client has given everything back", || {
                let now = Usage::of(client.pid());
                if now.is_back_to(&before) {
                    return Ok(());
                }
                Err(format!("{now:?}, before {before:?}; open: {}", open_descriptors(client.pid())))
            });
        }
    }
    println!("{:?} now {:?}", before, Usage::of(client.pid()));
    in_time(&times);
    let remains: Vec<_> = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    assert!(remains.iter().all(|name| !name.to_string_lossy().contains("upcall")), "{remains:?}");
}

#[test]
fn binders_return() {
    let _company = in_company();
    let place = place();
    let mut dice = Dice::thrown("when the server is killed");
    let mut client = place.client();
    let mut worst = 0.0f64;
    for _ in 0..10 {
        let server = place.serve("trial");
        client.ask("bind-storm trial").expect_ok("the first bind");
        std::thread::sleep(Duration::from_micros(dice.below(20_000)));
        let at = server.kill();
        let words = client.hear().expect_ok("the end of binding");
        let kinds = ["ServerGone.name", "NoSuchName.name", "Failed.PeerEnded"];
        assert!(kinds.contains(&&*words[1]), "{words:?}");
        worst = worst.max(words[0].parse::<u64>().unwrap().saturating_sub(at) as f64 / 1e6);
        place.expect_empty();
    }
    println!("worst: {worst:.2} ms");
    assert!(worst < 60_000.0);
}

#[test]
fn a_server_comes_up_while_the_dead_ones_clients_sweep() {
    let _company = in_company();
    let place = place();
    let mut clients: Vec<_> = (0..8).map(|_| place.client()).collect();
    for round in 0..15 {
        let mut server = place.serve("trial");
        for client in &mut clients {
            client.ask("bind trial").expect_ok(&format!("binding in round {round}"));
        }
        server.kill();
        server.ended();
        // At this moment eight clerks remove what the old server left.
    }
    drop(clients);
    let _server = place.serve("trial");
    place.client().ask("bind trial").expect_ok("binding");
}

/// The kernel frees the server's memory before it closes its sockets.
#[test]
fn a_server_that_takes_long_to_end_is_waited_for() {
    let _company = in_company();
    let place = place();
    let mut client = place.client();
    for round in 0..3 {
        let server = place.serve("trial ballast");
        client.ask("bind trial").expect_ok("binding");
        server.kill();
        let _successor = place.serve("trial");
        client.ask("bind trial").expect_ok(&format!("binding to successor {round}"));
        assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
    }
}

#[test]
fn a_stale_name_is_told_and_taken() {
    let _company = in_company();
    let place = place();
    let mut client = place.client();
    let mut server = place.serve("trial");
    server.kill();
    server.ended();
    assert_eq!(
        place.entries().len(),
        3,
        "no process was left to remove the socket and the names: {:?}",
        place.entries()
    );
    client.ask("bind trial").expect_error("ServerGone", &["\"trial\"", "start it again"]);
    place.expect_empty();
    // A server of another test may have the name in another folder just now.
    client.ask("bind trial").expect_error("NoSuchName", &["no process exports \"trial\" in "]);
    let mut server = place.serve("trial");
    server.kill();
    server.ended();
    let _server = place.serve("trial");
    client.ask("bind trial").expect_ok("binding to the successor");
    assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
}
