//! A server that is stopped (SIGSTOP) is slow, not dead.

use crate::{in_company, place};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use upcall_tests::place::eventually;

#[test]
fn calls_go_on_after_a_stop() {
    let _company = in_company();
    let place = place();
    let server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    // On a slow machine, the calls may be over before the last stop.
    eventually("a call waits for the stopped server", || {
        client.say("honest 2500");
        for pause in [1, 30, 700] {
            std::thread::sleep(Duration::from_millis(200));
            server.stop();
            std::thread::sleep(Duration::from_millis(pause));
            server.signal(Signal::CONT);
        }
        let numbers = client.hear().numbers("the calls");
        println!("{} calls, the longest {:.1} ms", numbers[0], numbers[1] as f64 / 1e6);
        if numbers[1] > 500_000_000 { Ok(()) } else { Err(format!("{numbers:?}")) }
    });
}

#[test]
fn binding_to_a_stopped_server_ends() {
    let _company = in_company();
    let place = place();
    let server = place.serve("trial");
    let mut client = place.client();
    server.stop();
    let start = Instant::now();
    client
        .ask("bind trial")
        .expect_error("NoAnswer", &["did not answer within 5s", "stopped or overloaded"]);
    let spent = start.elapsed();
    println!("after {spent:?}");
    assert!((4.0..60.0).contains(&spent.as_secs_f64()), "{spent:?}");
    server.signal(Signal::CONT);
    client.ask("bind trial").expect_ok("binding after the stop");
    assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
}

#[test]
fn a_stopped_server_that_is_killed_fails_its_callers() {
    let _company = in_company();
    let place = place();
    let server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    client.ask("storm 6 8").expect_ok("a storm");
    server.stop();
    std::thread::sleep(Duration::from_millis(300));
    server.kill();
    let words = client.hear().expect_ok("the storm's end");
    assert_eq!(words[2..], ["Failed.PeerEnded"]);
}

#[test]
fn a_stopped_client_disturbs_nobody() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    client.ask("storm 6 8").expect_ok("a storm");
    let mut honest = place.client();
    honest.ask("bind trial").expect_ok("binding");
    client.stop();
    let numbers = honest.ask("honest 1000").numbers("the calls");
    println!("{} calls, the longest {:.1} ms", numbers[0], numbers[1] as f64 / 1e6);
    assert!(numbers[1] < 10_000_000_000, "{numbers:?}");
    place.client().ask("bind trial").expect_ok("binding");
}
