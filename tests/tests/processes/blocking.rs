//! Handlers that block their kernel thread, and the calls of other clients.

use crate::quotas::{bound, expect};
use crate::{alone, in_company, place};
use std::time::Duration;
use upcall_tests::interfaces::latch;
use upcall_tests::party::Party;
use upcall_tests::place::eventually;
use upcall_tests::speech::{Hold, Request};
use upcall_tests::usage::{OF_A_SPARE, Usage, come_to_rest};

/// Makes calls that must be served beside handlers that block.
fn goes_on(client: &mut Party) {
    for _ in 0..100 {
        client.ask("came-in").expect_ok("a call");
    }
}

/// A server has up to 16 processors while handlers block. The first client blocks half of them and
/// the second client half of the rest; the third client is served.
#[test]
fn a_client_whose_handlers_block_leaves_processors_for_others() {
    for (by, options) in [("hold", ""), ("stay-by", ""), ("hold", "sleep"), ("stay-by", "poll")] {
        let _company = in_company();
        let place = place();
        let _server = place.serve(&format!("latch {options} blocks latch"));
        let (mut first, mut second, mut third) =
            (bound(&place, "latch"), bound(&place, "latch"), bound(&place, "latch"));
        first.ask(&format!("{by} 30")).expect_ok("calls");
        expect(&mut third, "came-in", 8);
        second.ask(&format!("{by} 30")).expect_ok("calls");
        expect(&mut third, "came-in", 12);
        goes_on(&mut third);
        third.ask("let-out 60").expect_ok("letting all out");
        expect(&mut first, "holds-ended", 30);
        expect(&mut second, "holds-ended", 30);
        goes_on(&mut third);
    }
}

/// Tests that compare a server's descriptors rely on this number.
#[test]
fn each_spare_processor_has_the_same_descriptors() {
    let _alone = alone();
    let place = place();
    let server = place.serve("latch blocks latch");
    let mut client = bound(&place, "latch");
    goes_on(&mut client);
    let before = Usage::of(server.pid());
    assert_eq!(before.spares, 0, "a server whose handlers have not blocked");
    client.ask("hold 3").expect_ok("calls");
    eventually("spare processors with their descriptors", || {
        let now = Usage::of(server.pid());
        // A descriptor may be open while the server works on a request, now or before. With two
        // spare processors a wrong number of descriptors for each would still differ by two.
        let all = before.descriptors + now.spares * OF_A_SPARE;
        let has_all = now.spares > 1 && (all - 1..=all + 1).contains(&now.descriptors);
        has_all.then_some(()).ok_or_else(|| format!("{now:?} after {before:?}"))
    });
    client.ask("let-out 3").expect_ok("letting all out");
    expect(&mut client, "holds-ended", 3);
}

/// No thread runs while handlers block and no call waits, nor after all handlers have returned.
#[test]
fn a_server_whose_handlers_block_uses_no_processor_time() {
    let _alone = alone();
    let place = place();
    let server = place.serve("latch blocks latch");
    let (mut first, mut second) = (bound(&place, "latch"), bound(&place, "latch"));
    first.ask("stay-by 3").expect_ok("calls");
    second.ask("hold 3").expect_ok("calls");
    expect(&mut second, "came-in", 6);
    let all = [server.pid(), first.pid(), second.pid()];
    let rests = |when: &str| {
        let (time, at_most) = (Duration::from_secs(1), Duration::from_millis(5));
        come_to_rest(when, &all, time, at_most);
    };
    rests("a server whose handlers block, and its clients");
    second.ask("let-out 6").expect_ok("letting all out");
    expect(&mut first, "holds-ended", 3);
    expect(&mut second, "holds-ended", 3);
    rests("a server whose handlers have blocked, and its clients");
}

/// The handlers of a killed client block their processors until they return; other clients are
/// served.
#[test]
fn the_handlers_of_a_killed_client_block_nobody_else() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("latch blocks latch");
    let (mut first, mut other) = (bound(&place, "latch"), bound(&place, "latch"));
    first.ask("stay-by 20").expect_ok("calls");
    expect(&mut other, "came-in", 8);
    first.kill();
    goes_on(&mut other);
    other.ask("let-out 8").expect_ok("letting those out that are in");
    expect(&mut other, "inside", 0);
    goes_on(&mut other);
    // Processors that were blocked block again.
    other.ask("stay-by 8").expect_ok("calls");
    let mut third = bound(&place, "latch");
    expect(&mut third, "came-in", 16);
    third.ask("let-out 8").expect_ok("letting all out");
    expect(&mut other, "holds-ended", 8);
}

/// Without spares, calls wait for a handler that blocks, and are served after it returns.
#[test]
fn where_there_can_be_no_spares_calls_wait() {
    for (refused, options) in [("", "spares=0"), ("without=membarrier ", "")] {
        let _company = in_company();
        let place = place();
        let mut server = place.start(&format!("{refused}serve latch {options} blocks latch"));
        server.hear().expect_ok("a server's start");
        let (mut first, mut second) = (bound(&place, "latch"), bound(&place, "latch"));
        first.ask("stay-by 1").expect_ok("a call");
        second.ask("stay-by 1").expect_ok("a call");
        server.ask("let-out 2").expect_ok("letting both out, from within the server");
        expect(&mut first, "holds-ended", 1);
        expect(&mut second, "holds-ended", 1);
        goes_on(&mut second);
    }
}

/// Clients report stalls while no call waits. The server starts no spare, and serves as before.
#[test]
fn false_reports_of_stalls_start_no_spare() {
    let _company = in_company();
    let place = place();
    let server = place.serve("latch latch");
    let mut client = bound(&place, "latch");
    goes_on(&mut client);
    let before = Usage::of(server.pid());
    let hold = Hold::of(&place.sockets()[0], "latch", &latch::INTERFACE).expect("a binding");
    for _ in 0..10_000 {
        eventually("a report is sent", || {
            hold.speaker.tell(Request::Stalled, &[]).then_some(()).ok_or_else(String::new)
        });
    }
    // The answer proves that all earlier reports have been read.
    hold.speaker.ask(Request::List, &[]);
    assert_eq!(Usage::of(server.pid()).threads, before.threads);
    goes_on(&mut client);
}
