//! Calls that go from domain to domain: through many, back into domains that the way has passed,
//! and with a domain on the way that dies or takes too long.

use crate::{in_company, place};
use upcall_tests::party::Party;
use upcall_tests::place::{Place, eventually};

struct Way {
    place: Place,
    stations: Vec<Party>,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Way {
    fn new(options: &str) -> Self {
        let place = place();
        let stations =
            NAMES.iter().map(|name| place.serve(&format!("{name} {options} relay"))).collect();
        Self { place, stations }
    }

    /// Waits until a station has begun and ended this many calls.
    fn expect_marks(&self, asks: &mut Party, name: &str, expected: [u64; 2]) {
        eventually(&format!("{expected:?} calls of {name}"), || {
            let marks = asks.ask(&format!("marks-of {name}")).numbers("marks");
            if marks[..2] == expected { Ok(()) } else { Err(format!("{marks:?}")) }
        });
    }
}

/// A calls B calls C calls A again, twenty times over. Sixty calls wait for each other in three
/// processes with one virtual processor each, and then for the first one's kernel thread.
#[test]
fn calls_go_round_and_round_and_come_back() {
    let _company = in_company();
    for options in ["", "poll", "sleep"] {
        let mut way = Way::new(options);
        let round: Vec<u64> = way.stations.iter().map(|station| station.pid().into()).collect();
        let names = vec![NAMES.join(","); 20].join(",");
        let expected: Vec<u64> = std::iter::repeat_n(&round, 20).flatten().rev().copied().collect();
        let mut client = way.place.client();
        assert_eq!(
            client.ask(&format!("go {names} 1")).numbers("a client's way"),
            expected,
            "{options}"
        );
        // Now a station on the way is itself the caller, and its main thread waits. It is called
        // back.
        assert_eq!(
            way.stations[0].ask(&format!("go {names} 1")).numbers("a station's way"),
            expected,
            "{options}"
        );
        for name in NAMES {
            way.expect_marks(&mut client, name, [40, 40]);
        }
    }
}

/// A deadline travels: no domain on the way waits longer than the first caller, and a call that
/// runs at the end of the way is not cut off.
#[test]
fn deadlines_travel_with_calls() {
    let _company = in_company();
    let way = Way::new("");
    let (mut client, mut asks) = (way.place.client(), way.place.client());
    // The first call creates everything that is created on demand.
    client.ask("go a,b,c 0").expect_ok("a way");
    // All callers give up at the same moment. Whichever of them is first, the client gets the
    // error.
    client.ask("go a,b,c 8000 2000").expect_error("", &["borted"]);
    for name in ["a", "b"] {
        way.expect_marks(&mut asks, name, [2, 2]);
    }
    assert_eq!(
        asks.ask("marks-of c").numbers("marks")[..2],
        [2, 1],
        "the end of the way was cut off"
    );
    for name in NAMES {
        let left = asks.ask(&format!("marks-of {name}")).numbers("marks")[2];
        assert!((1..=2000).contains(&left), "{name} knows of {left} ms");
    }
    way.expect_marks(&mut asks, "c", [2, 2]);
    // The next call has no deadline.
    client.ask("go a,b,c 300").expect_ok("a way without a deadline");
    assert_eq!(asks.ask("marks-of c").numbers("marks")[2], 0);
}

/// A station on the way dies. All callers before it get an error at once; the stations that work
/// for it go on to the end.
#[test]
fn the_death_of_one_on_the_way_is_told_to_those_before_it() {
    let _company = in_company();
    for (victim, told) in
        [(0, "the server has ended"), (1, "b: Failed.PeerEnded"), (2, "c: Failed.PeerEnded")]
    {
        let way = Way::new("");
        let (mut client, mut asks) = (way.place.client(), way.place.client());
        client.say("go a,b,c 5000");
        way.expect_marks(&mut asks, "c", [1, 0]);
        way.stations[victim].kill();
        client.hear().expect_error("", &[told]);
        let others = |those: fn(&usize, &usize) -> bool| {
            (0..3).filter(move |number| those(number, &victim)).map(|number| NAMES[number])
        };
        for name in others(usize::gt) {
            assert_eq!(
                asks.ask(&format!("marks-of {name}")).numbers("marks")[..2],
                [1, 0],
                "{name} was cut off"
            );
        }
        for name in others(usize::ne) {
            way.expect_marks(&mut asks, name, [1, 1]);
        }
    }
}

/// The first caller dies, and every station on the way goes on to the end.
#[test]
fn the_death_of_the_first_caller_cuts_nobody_off() {
    let _company = in_company();
    let way = Way::new("");
    let (mut client, mut asks) = (way.place.client(), way.place.client());
    client.say("go a,b,c 3000");
    way.expect_marks(&mut asks, "c", [1, 0]);
    client.kill();
    client.ended();
    for name in NAMES {
        assert_eq!(asks.ask(&format!("marks-of {name}")).numbers("marks")[..2], [1, 0]);
    }
    for name in NAMES {
        way.expect_marks(&mut asks, name, [1, 1]);
    }
}

/// A station on the way is stopped. A deadline frees all others, and the rest of the work is done
/// when the station goes on.
#[test]
fn one_that_is_stopped_on_the_way_holds_nobody_beyond_the_deadline() {
    let _company = in_company();
    let way = Way::new("");
    let (mut client, mut asks) = (way.place.client(), way.place.client());
    client.ask("go a,b,c 0").expect_ok("a way");
    way.stations[1].stop();
    client.ask("go a,b,c 0 300").expect_error("", &["borted"]);
    way.expect_marks(&mut asks, "a", [2, 2]);
    way.stations[1].signal(rustix::process::Signal::CONT);
    way.expect_marks(&mut asks, "b", [2, 2]);
    client.ask("go a,b,c 0").expect_ok("a way when it goes on");
}

/// A way that passes a domain more often than it may have calls under way, so that its calls wait
/// for each other. A deadline ends that, and all is as before.
#[test]
fn a_way_longer_than_the_ceiling_ends_at_its_deadline() {
    let _company = in_company();
    let way = Way::new("calls=4");
    let mut client = way.place.client();
    let names = vec![NAMES.join(","); 10].join(",");
    client.ask(&format!("go {names} 0 300")).expect_error("", &["borted"]);
    eventually("a way goes through again", || match client.ask("go a,b,c 0 200") {
        upcall_tests::party::Said::Ok(_) => Ok(()),
        said => Err(format!("{said:?}")),
    });
}
