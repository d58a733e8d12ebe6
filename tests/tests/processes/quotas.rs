//! Quotas of clients in a server. A client that takes all it can get leaves room for others, and
//! everything is freed when it ends.

use crate::{in_company, place};
use std::time::Duration;
use upcall::directory::tallies;
use upcall_tests::party::{Party, Said};
use upcall_tests::place::{Place, eventually};
use upcall_tests::usage::{Usage, come_to_rest};

pub(crate) fn expect(party: &mut Party, question: &str, expected: u64) {
    eventually(question, || match party.ask(question).numbers(question)[0] {
        found if found == expected => Ok(()),
        found => Err(format!("{found}, not {expected}")),
    });
}

pub(crate) fn bound(place: &Place, name: &str) -> Party {
    let mut client = place.client();
    client.ask(&format!("bind-latch {name}")).expect_ok("binding");
    client
}

/// Of 16 stacks, a client whose calls wait for ever gets 8 and a second one gets 4: each gets half
/// of what is free. A third client is served as if it were alone.
fn waiting_calls_leave_stacks_for_others(options: &str, calls: u64) {
    let _company = in_company();
    let place = place();
    let _server = place.serve(&format!("latch {options} calls={calls} latch"));
    let (mut first, mut second, mut third) =
        (bound(&place, "latch"), bound(&place, "latch"), bound(&place, "latch"));
    first.ask("hold 60").expect_ok("calls");
    expect(&mut third, "came-in", calls / 2);
    second.ask("hold 60").expect_ok("calls");
    expect(&mut third, "came-in", calls / 2 + calls / 4);
    for _ in 0..100 {
        third.ask("came-in").expect_ok("a call");
    }
    // The calls that wait in the lanes come in one by one as others are let out; none is lost.
    third.ask("let-out 30").expect_ok("letting some out");
    eventually("others come in", || match third.ask("came-in").numbers("came-in")[0] {
        // From here on, one of the two clients may have more calls in the server than the other.
        came_in if came_in >= 30 + calls / 2 => Ok(()),
        came_in => Err(format!("{came_in}")),
    });
    third.ask("let-out 90").expect_ok("letting the others out");
    expect(&mut third, "came-in", 120);
    expect(&mut first, "holds-ended", 60);
    expect(&mut second, "holds-ended", 60);
}

#[test]
fn calls_that_wait_leave_stacks_for_others() {
    waiting_calls_leave_stacks_for_others("sleep", 16);
}

#[test]
fn calls_that_wait_leave_stacks_for_others_while_the_server_polls() {
    waiting_calls_leave_stacks_for_others("poll", 16);
}

/// A server that has no stack left sleeps, although requests wait.
#[test]
fn a_server_without_stacks_uses_no_processor_time() {
    let _alone = crate::alone();
    let place = place();
    let server = place.serve("latch calls=4 latch");
    let (mut first, mut second) = (bound(&place, "latch"), bound(&place, "latch"));
    first.ask("hold 60").expect_ok("calls");
    second.ask("hold 60").expect_ok("calls");
    come_to_rest(
        "a server in which no call ends",
        &[server.pid()],
        Duration::from_secs(1),
        Duration::from_millis(5),
    );
}

/// Requests that wait in the lanes of a dead client are dropped. Its calls that run go on to their
/// end, and hold their stacks until then.
#[test]
fn a_killed_client_leaves_its_share() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("latch calls=16 latch");
    let (mut first, mut second, mut third) =
        (bound(&place, "latch"), bound(&place, "latch"), bound(&place, "latch"));
    first.ask("hold 60").expect_ok("calls");
    expect(&mut third, "came-in", 8);
    let tallies = tallies(&place.sockets()[0]).expect("tallies").1;
    let is_counted = |pid| tallies.read().iter().any(|reading| reading.client == pid);
    let pid = first.pid();
    assert!(is_counted(pid), "the first client has a binding");
    first.kill();
    first.ended();
    second.ask("hold 60").expect_ok("calls");
    expect(&mut third, "came-in", 12);
    // The server learns of the client's end later than this process.
    eventually("the server has learnt of the client's end", || {
        if is_counted(pid) { Err("it has a binding".into()) } else { Ok(()) }
    });
    std::thread::sleep(Duration::from_millis(100));
    third.ask("let-out 68").expect_ok("letting all out");
    expect(&mut second, "holds-ended", 60);
    expect(&mut third, "came-in", 68);
}

/// Binds up to `times` times, and returns how often that succeeded. Checks the reason of the
/// refusal.
fn bind_until_refused(client: &mut Party, times: u64) -> u64 {
    let said = client.ask(&format!("bind-until trial.small {times}")).expect_ok("binding");
    println!("    {said:?}");
    let text = said.get(1).map(|text| text.replace('_', " ")).unwrap_or_default();
    assert!(text.contains("more than would be left of") && text.contains("for others"), "{text}");
    said[0].parse().expect("a number")
}

/// A client that binds a thousand times gets its share and then an error, and other clients can
/// still bind.
#[test]
fn who_binds_a_thousand_times_does_not_exhaust_the_server() {
    let _company = in_company();
    for what in ["descriptors=40", "mappings=40"] {
        let place = place();
        let server = place.serve(&format!("trial spares=0 {what}"));
        let open = || Usage::of(server.pid()).descriptors;
        let before = open();
        let mut times = Vec::new();
        for _ in 0..2 {
            let mut greedy = place.client();
            times.push(bind_until_refused(&mut greedy, 2000));
            // The bindings that it has stay valid.
            greedy.ask("bind-more trial.small").expect_error("QuotaReached", &["in it"]);
            let mut modest = place.client();
            modest.ask("bind trial").expect_ok("binding beside a greedy client");
            assert_eq!(modest.ask("add 2 3").numbers("add"), [5]);
            greedy.ask("unbind").expect_ok("unbinding");
            // The server learns of the end of the connections one by one.
            eventually("binding again", || match greedy.ask("bind trial") {
                Said::Ok(_) => Ok(()),
                said => Err(said.to_line()),
            });
            drop((greedy, modest));
            eventually("the server has no client left", || match open() {
                now if now <= before => Ok(()),
                now => Err(format!("{now} descriptors, before {before}")),
            });
        }
        assert_eq!(times[0], times[1], "the first one did not give everything back");
    }
}

/// Objects are counted over all bindings of a client, and only while they live.
#[test]
fn a_client_holds_no_more_objects_than_it_may() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial objects=10");
    let (mut first, mut second) = (place.client(), place.client());
    first.ask("bind trial").expect_ok("binding");
    second.ask("bind trial").expect_ok("binding");
    for _ in 0..3 {
        first.ask("open 10").expect_ok("objects");
        first.ask("open 1").expect_error("Refused", &["holds too many objects"]);
        second.ask("open 1").expect_ok("another client's object");
        first.ask("drop-things").expect_ok("dropping them");
        second.ask("drop-things").expect_ok("dropping it");
    }
}

/// The server does not keep a result when the other clients would be left too little room. The
/// client gets a typed error which says that the call has run.
#[test]
fn a_result_that_is_not_kept_says_so() {
    let _company = in_company();
    let place = place();
    let (_server, address) = place.serve_far("trial tcp all-results=1000000");
    for name in ["trial".into(), format!("tcp://{address}/trial")] {
        let mut client = place.client();
        client.ask(&format!("bind {name}")).expect_ok("binding");
        for _ in 0..3 {
            client.ask("make 400000").expect_ok("half of what there is");
            client
                .ask("make 600000")
                .expect_error("ResultQuota", &["has run", " 600", "1000000", "all clients"]);
        }
    }
}
