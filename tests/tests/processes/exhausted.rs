//! Descriptors or memory run out. The process that lacks them gets an error, and the others go on.

use crate::{in_company, place};
use upcall_tests::party::Said;
use upcall_tests::place::eventually;
use upcall_tests::usage::Usage;

#[test]
fn a_full_descriptor_table_in_the_client() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial spares=0");
    for spare in 0..16 {
        let mut client = place.client();
        client.ask(&format!("spare-descriptors {spare}")).expect_ok("the limit");
        match client.ask("bind trial") {
            Said::Ok(_) => {
                assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
                match client.ask("sum 1000000") {
                    Said::Ok(_) => {}
                    said => drop(said.expect_error("NoMemory", &["1000000 bytes"])),
                }
            }
            said => drop(said.expect_error("Resource", &["descriptor table"])),
        }
        client.ask("spare-descriptors 1000").expect_ok("the limit");
        client
            .ask("bind trial")
            .expect_ok(&format!("binding when there is room again, after {spare}"));
        client.ask("sum 1000000").expect_ok("a large argument when there is room again");
    }
}

#[test]
fn a_full_descriptor_table_in_the_server() {
    let _company = in_company();
    let place = place();
    let mut server = place.serve("trial spares=0");
    let mut honest = place.client();
    honest.ask("bind trial").expect_ok("binding");
    // An honest client keeps what it has open.
    honest.ask("honest 200").expect_ok("calls");
    let before = Usage::of(server.pid());
    // Returns the longest time that a call of the bystander took, in nanoseconds.
    let mut round = |spare: u32| {
        // Wait until the last client is gone from the server, too. Otherwise the server counts
        // descriptors that are about to be freed.
        eventually("the server has only the honest client left", || {
            let now = Usage::of(server.pid());
            if now.descriptors == before.descriptors {
                Ok(())
            } else {
                Err(format!("{now:?}, before {before:?}"))
            }
        });
        server.ask(&format!("spare-descriptors {spare}")).expect_ok("the limit");
        honest.say("honest 300");
        let mut client = place.client();
        let said = client.ask("bind trial");
        println!("{spare}: {}", said.to_line());
        match said {
            Said::Ok(_) => assert_eq!(client.ask("add 2 3").numbers("add"), [5]),
            Said::Error { kind, text } if kind.starts_with("NoAnswer") => {
                assert!(text.contains("overloaded"), "{text}")
            }
            said => drop(said.expect_error("Resource", &["in the server", "descriptor table"])),
        }
        let numbers = honest.hear().numbers("the bystander");
        server.ask("spare-descriptors 1000").expect_ok("the limit");
        client
            .ask("bind trial")
            .expect_ok(&format!("binding when there is room again, after {spare}"));
        assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
        numbers[1]
    };
    for spare in 0..12 {
        // A busy machine may hold a call up now and then. A full table that holds calls up does so
        // each time.
        let quick = (0..5).any(|_| round(spare) < 2_000_000_000);
        assert!(
            quick,
            "with {spare} descriptors to spare the bystander waits for longer than 2 s each time"
        );
    }
}

/// The server keeps the doorbell of a lane as long as the lane. A client that brings one doorbell
/// too many loses its channel and learns the reason; the others go on.
#[test]
fn no_descriptor_for_the_bell_of_a_lane() {
    let _company = in_company();
    let place = place();
    let mut server = place.serve("trial spares=0");
    let mut clients = [place.client(), place.client(), place.client()];
    for client in &mut clients {
        client.ask("bind trial").expect_ok("binding");
        client.ask("null").expect_ok("a call");
    }
    let [honest, first, second] = &mut clients;
    honest.ask("honest 200").expect_ok("calls");
    server.ask("spare-descriptors 0").expect_ok("the limit");
    // Small calls only: a segment would need a descriptor, too.
    honest.say("honest 1000 small");
    // The first storm takes the place in reserve.
    first.ask("storm 0 2").expect_ok("the last lane");
    second.ask("storm 0 2").expect_ok("calls that fail");
    let mut said = None;
    eventually("the end of the second storm", || {
        assert_eq!(first.heard(), None, "the first storm has ended, though there was a place");
        said = second.heard();
        if said.is_some() { Ok(()) } else { Err("it calls on".into()) }
    });
    let kinds = said.expect("it was said").expect_ok("the storm's end").split_off(2);
    println!("    {kinds:?}");
    assert!(
        kinds
            .iter()
            .all(|kind| kind.contains("Failed.Refused") && kind.contains("Too_many_open_files")),
        "{kinds:?}"
    );
    honest.hear().expect_ok("the bystander");
    server.ask("spare-descriptors 1000").expect_ok("the limit");
    second.ask("bind trial").expect_ok("binding when there is room again");
    second.ask("honest 100").expect_ok("calls");
}

#[test]
fn no_memory_in_the_client() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial spares=0");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    client
        .ask("sum-without-memory 200000000")
        .expect_error("NoMemory", &["no memory for 200000", "bytes of arguments"]);
    assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
}

#[test]
fn no_memory_in_the_server() {
    let _company = in_company();
    let place = place();
    let mut server = place.serve("trial spares=0");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    client.ask("sum 100000").expect_ok("a large argument");
    server.ask("without-memory").expect_ok("the limit");
    client.ask("sum 200000000").expect_error("NoMemory", &["no memory for 200000", "server"]);
    assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
    client.ask("sum 100000").expect_ok("a large argument");
    let mut other = place.client();
    match other.ask("bind trial") {
        Said::Ok(_) => {}
        said => drop(said.expect_error("Resource", &["in the server", "no memory"])),
    }
}
