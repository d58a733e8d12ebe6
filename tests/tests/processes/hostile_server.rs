//! A server that scribbles over all it shares with its clients: they get errors or wrong values, but they neither crash nor hang.

use crate::{in_company, place};
use std::time::Duration;
use upcall_tests::usage::Usage;

fn endure(manner: &str, ms: u64) {
    let _company = in_company();
    let place = place();
    let mut impostor = place.start(&format!("impostor trial {manner}"));
    impostor.hear().expect_ok("an impostor");
    let mut clients = [place.client(), place.client()];
    for client in &mut clients {
        client.say(&format!("endure trial {ms}"));
    }
    // Calls whose answers were lost wait for their server as long as it lives.
    std::thread::sleep(Duration::from_millis(ms + 500));
    impostor.kill();
    for client in &mut clients {
        let numbers = client.hear().numbers("what was endured");
        println!(
            "{manner}: {} binds, {} calls, {} errors, the longest call {:.1} ms",
            numbers[0],
            numbers[1],
            numbers[2],
            numbers[3] as f64 / 1e6
        );
        assert!(numbers[0] > 3 && numbers[1] > 10, "{numbers:?}");
    }
    let _honest = place.serve("trial");
    for client in &mut clients {
        client.ask("bind trial").expect_ok("binding to an honest server afterwards");
        client.ask("honest 200").expect_ok("calls");
    }
}

#[test]
fn a_server_scribbles() {
    endure("scribble", 2000);
}

#[test]
fn a_server_lies() {
    endure("lies", 2000);
}

/// A server whose bell blocks whoever writes to it holds up nobody but its own callers, and those no longer than it stays.
#[test]
fn a_server_whose_bell_blocks() {
    let _company = in_company();
    let place = place();
    let _honest = place.serve("trial");
    let mut impostor = place.start("impostor other blocks");
    impostor.hear().expect_ok("an impostor");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    let numbers = client.ask("beside other").numbers("calls beside those that wait");
    println!("{} calls beside, the longest {:.1} ms", numbers[0], numbers[1] as f64 / 1e6);
    assert!(numbers[0] > 100 && numbers[1] < 10_000_000_000, "{numbers:?}");
    assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
}

/// The server has no memory for the result that it claims to have, and its client takes none for it.
#[test]
fn a_server_that_claims_a_huge_result_has_its_client_take_no_memory() {
    let _company = in_company();
    let place = place();
    let mut impostor = place.start("impostor other boasts");
    impostor.hear().expect_ok("an impostor");
    let _honest = place.serve("trial");
    let mut client = place.client();
    client.ask("bind other").expect_ok("binding");
    client.ask("pace poll").expect_ok("pacing");
    let before = Usage::of(client.pid());
    for _ in 0..3 {
        client.ask("make 10").expect_error("NoMemory", &["a quarter of the", "has run"]);
    }
    let now = Usage::of(client.pid());
    assert!(now.shared <= before.shared, "{now:?}, before {before:?}");
    client.ask("bind trial").expect_ok("binding to an honest server");
    client.ask("honest 100").expect_ok("calls");
}

#[test]
#[ignore = "long"]
fn long_servers_scribble_and_lie() {
    endure("scribble", 30_000);
    endure("lies", 30_000);
}
