//! No descriptors, no memory: who lacks them is told so, the others go on.

use crate::{in_company, place};
use std::time::Duration;
use upcall_tests::party::Said;

#[test]
fn a_full_descriptor_table_in_the_client() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial");
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
        client.ask("bind trial").expect_ok(&format!("binding when there is room again, after {spare}"));
        client.ask("sum 1000000").expect_ok("a large argument when there is room again");
    }
}

#[test]
#[ignore = "open: a client that the server has no descriptor for is told that the server has ended"]
fn open_a_full_descriptor_table_in_the_server() {
    let _company = in_company();
    let place = place();
    let mut server = place.serve("trial");
    let mut honest = place.client();
    honest.ask("bind trial").expect_ok("binding");
    // What an honest client has open stays open.
    honest.ask("honest 200").expect_ok("calls");
    for spare in 0..12 {
        server.ask(&format!("spare-descriptors {spare}")).expect_ok("the limit");
        honest.say("honest 300");
        let mut client = place.client();
        let said = client.ask("bind trial");
        println!("{spare}: {}", said.to_line());
        match said {
            Said::Ok(_) => assert_eq!(client.ask("add 2 3").numbers("add"), [5]),
            Said::Error { kind, text } if kind.starts_with("NoAnswer") => assert!(text.contains("overloaded"), "{text}"),
            said => drop(said.expect_error("Resource", &["in the server", "descriptor table"])),
        }
        let numbers = honest.hear_within(Duration::from_secs(20)).numbers("the bystander");
        assert!(numbers[1] < 2_000_000_000, "{numbers:?}");
        server.ask("spare-descriptors 1000").expect_ok("the limit");
        client.ask("bind trial").expect_ok(&format!("binding when there is room again, after {spare}"));
        assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
    }
}

#[test]
fn no_memory_in_the_client() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    client.ask("sum-without-memory 200000000").expect_error("NoMemory", &["no memory for 200000", "bytes of arguments"]);
    assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
}

#[test]
fn no_memory_in_the_server() {
    let _company = in_company();
    let place = place();
    let mut server = place.serve("trial");
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
