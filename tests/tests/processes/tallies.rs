//! What a server counts of its bindings, as others read it (L21).

use crate::{in_company, place};
use upcall::directory::{PeerTallies, Reading, tallies};
use upcall_tests::place::{Place, eventually};

fn opened(place: &Place) -> PeerTallies {
    tallies(&place.sockets()[0]).expect("tallies").1
}

fn of(tallies: &PeerTallies, client: u32) -> Option<Reading> {
    tallies.read().into_iter().find(|reading| reading.client == client)
}

/// Every call is counted once, with what it carried, by whichever processor it was served.
#[test]
fn every_call_is_counted_once() {
    let _company = in_company();
    for options in ["", "two", "poll", "two poll"] {
        let place = place();
        let server = place.serve(&format!("trial {options}"));
        let tallies = opened(&place);
        let (mut client, mut other) = (place.client(), place.client());
        client.ask("bind trial").expect_ok("binding");
        other.ask("bind trial").expect_ok("binding");
        client.ask("nulls 1000").expect_ok("calls");
        client.ask("add 2 3").expect_ok("a call");
        client.ask("sum 100000").expect_ok("bytes in");
        client.ask("make 5000").expect_ok("bytes out, fetched");
        client.ask("open 2").expect_ok("objects");
        client.ask("drop-things").expect_ok("dropping them");
        client.ask("fail oops").expect_error("Panicked", &["oops"]);
        client.ask("limited 2000 1").expect_error("TooLong", &[]);
        other.ask("nulls 7").expect_ok("calls");
        let reading = of(&tallies, client.pid()).expect("the client's binding");
        // What was too long was not sent; objects that are dropped and results that are fetched are the runtime's own calls. `bind` and `open` ask for the state of things as well.
        let calls = reading.calls();
        let [done, refused, panicked, unknown] = reading.outcomes;
        println!("    {options:9} {calls} calls, outcomes {:?}, bytes {:?}", reading.outcomes, reading.bytes);
        assert_eq!((refused, panicked, unknown), (0, 1, 0));
        assert_eq!(reading.procedures.iter().sum::<u64>(), done + panicked);
        let procedures = &upcall_tests::interfaces::trial::INTERFACE.procedures;
        let named = |name: &str| reading.procedures[procedures.iter().position(|procedure| procedure.name == name).unwrap()];
        assert_eq!(
            (named("null"), named("sum"), named("make"), named("open"), named("fail"), named("limited")),
            (1000, 1, 1, 2, 1, 0)
        );
        assert!(reading.bytes[0] >= 100_000 && reading.bytes[1] >= 5000, "{:?}", reading.bytes);
        assert_eq!(reading.sizes.iter().sum::<u64>(), calls);
        assert!(reading.times.iter().sum::<u64>() >= 1000 / 64 - 1, "{:?}", reading.times);
        assert_eq!(of(&tallies, other.pid()).expect("the other's binding").procedures.iter().sum::<u64>() % 1000, 7);
        assert_eq!((reading.name.as_str(), reading.interface.as_str()), ("trial", "upcall:tests/trial@1.0.0"));

        // They go with their bindings, however these end; and can be read when the server runs no more.
        client.ask("unbind").expect_ok("unbinding");
        eventually(
            "the binding is gone",
            || if of(&tallies, client.pid()).is_none() { Ok(()) } else { Err("it is there".into()) },
        );
        server.stop();
        assert!(of(&tallies, other.pid()).is_some());
        server.signal(rustix::process::Signal::CONT);
        other.kill();
        eventually("the dead client's binding is gone", || {
            if tallies.read().is_empty() { Ok(()) } else { Err("it is there".into()) }
        });
    }
}

#[test]
fn whom_a_server_does_not_let_in_reads_nothing() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial refuse");
    let error = tallies(&place.sockets()[0]).err().expect("an error").to_string();
    assert!(error.contains("is not on the list"), "{error}");
}
