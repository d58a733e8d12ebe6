//! Calls with a deadline. A server that takes too long costs the caller that call, in bounded time,
//! and nothing else.

use crate::{alone, in_company, place};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use upcall_tests::party::Party;
use upcall_tests::place::eventually;

/// Waits until the client has no thread left that waits for a late reply.
fn nobody_waits_in(client: &Party) {
    eventually("no thread is left", || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", client.pid()))
            .into_iter()
            .flatten()
            .flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        let late = names.filter(|name| name.starts_with("upcall-late")).count();
        if late == 0 { Ok(()) } else { Err(format!("{late} wait for late replies")) }
    });
}

/// Stops a server, and has a client call it with a deadline from `kernel` kernel threads and
/// `users` user-level threads. The calls are given up at their deadlines, or by cancel tokens if
/// `how` is `words`.
///
/// Returns the number of calls that were done, that were aborted after they were sent, and that
/// were aborted before they were sent, then the longest call in milliseconds; and the number of
/// objects before the stop.
fn abort_calls_to_a_stopped_server(
    server: &Party,
    client: &mut Party,
    kernel: u64,
    users: u64,
    how: &str,
) -> ([u64; 4], u64) {
    client.ask("bind trial").expect_ok("binding");
    // The first calls create everything that is created on demand.
    client.say(&format!("deadlines {kernel} {users} 10000"));
    assert_eq!(client.hear().numbers("calls in time")[..3], [kernel + users, 0, 0]);
    let before = client.hear().numbers("the same without a deadline")[0];
    server.stop();
    client.say(&format!("deadlines {kernel} {users} 200 {how}"));
    let numbers = client.hear().numbers("calls to a stopped server");
    let [done, sent, unsent, longest] = numbers[..] else { panic!("{numbers:?}") };
    assert_eq!((done, sent + unsent), (0, kernel + users));
    ([done, sent, unsent, longest], before)
}

/// Calls are given up by deadlines, or by cancel tokens.
const HOW: [&str; 2] = ["", "words"];

fn a_stopped_server(kernel: u64, users: u64) {
    let _alone = alone();
    HOW.into_iter().for_each(|how| give_up_a_stopped_server(kernel, users, how));
}

fn give_up_a_stopped_server(kernel: u64, users: u64, how: &str) {
    let place = place();
    let server = place.serve("trial");
    let mut client = place.client();
    let (numbers, before) =
        abort_calls_to_a_stopped_server(&server, &mut client, kernel, users, how);
    let [_, sent, unsent, longest] = numbers;
    println!(
        "{sent} calls were aborted after and {unsent} before they were sent, the longest after \
        {longest} ms"
    );
    assert!(sent > 0 && longest >= 200, "{numbers:?}");
    server.signal(Signal::CONT);
    let made = client.hear().numbers("the same calls afterwards")[0];
    println!("{} objects were made, all of them are dropped", made - before);
    assert!(made > before, "no object came late");
    // All lanes and all A-stacks are free again, and no thread waits any more.
    client.say(&format!("deadlines {kernel} {users} 10000"));
    assert_eq!(client.hear().numbers("calls in time")[..3], [kernel + users, 0, 0]);
    client.hear().expect_ok("the same without a deadline");
    nobody_waits_in(&client);
}

#[test]
fn kernel_threads_leave_a_stopped_server() {
    a_stopped_server(60, 0);
}

#[test]
fn user_level_threads_leave_a_stopped_server() {
    a_stopped_server(0, 150);
}

#[test]
fn both_kinds_leave_a_stopped_server() {
    a_stopped_server(30, 80);
}

/// Abandoned calls may hold all A-stacks when the server dies. A caller that waits for one returns
/// nevertheless.
fn a_killed_server(kernel: u64, users: u64) {
    let _alone = alone();
    for how in HOW {
        let place = place();
        let server = place.serve("trial");
        let mut client = place.client();
        abort_calls_to_a_stopped_server(&server, &mut client, kernel, users, how);
        std::thread::sleep(Duration::from_millis(300));
        server.kill();
        client.hear().expect_error("", &["the server has ended"]);
    }
}

#[test]
fn kernel_threads_without_a_deadline_return_from_a_killed_server() {
    a_killed_server(60, 0);
}

#[test]
fn user_level_threads_without_a_deadline_return_from_a_killed_server() {
    a_killed_server(0, 150);
}

#[test]
fn deadlines_that_fall_together_with_replies() {
    let _alone = alone();
    let place = place();
    let _server = place.serve("trial");
    let cases =
        [(6, 0), (0, 20), (4, 10)].into_iter().flat_map(|threads| HOW.map(|how| (threads, how)));
    for ((kernel, users), how) in cases {
        let mut client = place.client();
        client.ask("bind trial").expect_ok("binding");
        let numbers =
            client.ask(&format!("close-deadlines {kernel} {users} 1000 {how}")).numbers("calls");
        let [done, sent, unsent] = numbers[..] else { panic!("{numbers:?}") };
        println!(
            "{kernel} kernel and {users} user-level threads, {how:?}: {done} calls were done, \
            {sent} aborted after and {unsent} before they were sent"
        );
        assert!(done > 100 && sent > 100, "{numbers:?}");
    }
}

#[test]
fn objects_that_a_stopped_server_cannot_be_told_of_are_dropped_later() {
    let _company = in_company();
    let place = place();
    let server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    client.ask("deadline 20").expect_ok("a deadline");
    client.ask("open-until 45").expect_ok("objects");
    server.stop();
    let start = Instant::now();
    client.ask("drop-things").expect_ok("dropping them");
    let spent = start.elapsed();
    println!("after {spent:?}");
    assert!(spent < Duration::from_secs(50), "45 times 20 ms: {spent:?}");
    server.signal(Signal::CONT);
    client.ask("deadline 60000").expect_ok("another deadline");
    eventually("all are dropped", || match client.ask("things").numbers("objects")[..] {
        [opened, dropped] if opened >= 45 && opened == dropped => Ok(()),
        ref things => Err(format!("{things:?}")),
    });
}

#[test]
fn a_procedure_that_takes_too_long_runs_to_its_end() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    let text = client
        .ask("work-by 3000 50")
        .expect_error("Aborted", &["deadline", "may still run", "call again"]);
    println!("{text}");
    // Other calls are served in the meantime, those of this client too.
    assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
    assert_eq!(client.ask("marks").numbers("marks"), [1, 0]);
    eventually("it ends", || {
        let marks = client.ask("marks").numbers("marks");
        if marks == [1, 1] { Ok(()) } else { Err(format!("{marks:?}")) }
    });
}

#[test]
fn callers_that_have_left_learn_nothing_of_the_end() {
    let _company = in_company();
    let place = place();
    let server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    client.ask("work-by 20000 50").expect_error("Aborted", &[]);
    server.kill();
    client.ask("null").expect_error("Failed.PeerEnded", &[]);
    // The thread that waited in the caller's place is gone, too.
    nobody_waits_in(&client);
}
