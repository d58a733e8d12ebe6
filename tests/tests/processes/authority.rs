//! What a binding allows its client: to call the procedures of its interface, and no others, until
//! the binding is revoked.

use crate::{in_company, place};
use upcall_shm::slot::{NO_ASTACK, SlotMessage};
use upcall_tests::place::eventually;
use upcall_tests::speech::{Hold, outcome, tag};

/// A client that may bind to one interface of a domain calls, by hand, what it was not given: other
/// procedure numbers through its own binding, and its own procedure numbers through bindings that
/// it does not have.
#[test]
fn a_binding_is_good_for_its_own_procedures_only() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial");
    let mut other = place.client();
    other.ask("bind trial").expect_ok("another client's binding");
    // The interface with one procedure; the domain exports two interfaces.
    let it =
        Hold::of(&place.sockets()[0], "trial.small", &upcall_tests::interfaces::small::INTERFACE)
            .expect("a channel");
    let caller = it.caller();
    let call = |binding, procedure| {
        let mut request = SlotMessage::new(0, tag(binding, procedure), NO_ASTACK);
        request.place(upcall_shm::slot::ValueLocation::Inline, 0, 8);
        caller
            .call(&request)
            .unwrap_or_else(|| panic!("no reply to procedure {procedure} of binding {binding}"))
            .tag()
    };
    assert_eq!(call(0, it.numbers[0]), outcome::DONE);
    // The numbers between these have a meaning only for the runtime itself, and are checked
    // elsewhere.
    for procedure in (1..64).chain([500, 1000, 1021]) {
        assert_eq!(call(0, procedure), outcome::NO_SUCH_PROCEDURE, "procedure {procedure}");
    }
    for binding in 1..64 {
        assert_eq!(call(binding, it.numbers[0]), outcome::REVOKED, "binding {binding}");
    }
    assert_eq!(call(0, it.numbers[0]), outcome::DONE);
}

#[test]
fn a_server_takes_back_one_binding_of_a_living_client() {
    let _company = in_company();
    let place = place();
    let mut server = place.serve("trial");
    let (mut client, mut other) = (place.client(), place.client());
    for party in [&mut client, &mut other] {
        party.ask("bind trial").expect_ok("binding");
        party.ask("bind trial.small as small").expect_ok("another binding");
        party.ask("open 3").expect_ok("objects");
    }
    client.say("work 300");
    eventually("work has begun", || {
        let marks = other.ask("marks").numbers("marks");
        if marks == [1, 0] { Ok(()) } else { Err(format!("{marks:?}")) }
    });
    assert_eq!(
        server.ask(&format!("revoke {} trial", client.pid())).numbers("bindings taken back"),
        [1]
    );
    assert_eq!(
        server.ask(&format!("revoke {} trial", client.pid())).numbers("bindings taken back again"),
        [0]
    );
    // A call that runs is not cut off.
    client.hear().expect_ok("the call that ran");
    for _ in 0..3 {
        client.ask("add 2 3").expect_error("Revoked", &["bind again"]);
    }
    eventually("its objects are dropped", || {
        let things = other.ask("things").numbers("things");
        if things == [6, 3] { Ok(()) } else { Err(format!("{things:?}")) }
    });
    // The client's other binding stands, the other client notices nothing, and the client may bind
    // again.
    client.ask("add-small 2 3").expect_ok("a call through the other binding");
    assert_eq!(other.ask("add 2 3").numbers("add"), [5]);
    client.ask("bind trial").expect_ok("binding again");
    assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
}
