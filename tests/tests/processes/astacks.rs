//! A-stacks that have run out, and calls that do not need one (LRPC, sections 3.1, 3.2 and 5.2).

use crate::{in_company, place};
use std::time::Duration;
use upcall_tests::party::Party;
use upcall_tests::place::eventually;

/// Every A-stack of one size class is held by a call that stays in the server. Calls of another
/// class, and calls that need no A-stack, go through. Calls of the same class wait, whether of the
/// same procedure or of another one, and get an A-stack in their turn. Nothing is released before
/// the other calls have returned, so calls that depended on a release would never return.
#[test]
fn a_class_that_has_run_out_holds_up_no_other() {
    let _company = in_company();
    for options in ["latch", "two latch", "poll latch"] {
        let place = place();
        let _server = place.serve(&format!("held {options}"));
        let numbers = place.client().ask("full-class held").numbers("calls beside a full class");
        println!(
            "    {options}: all {} A-stacks taken; {} other calls, the longest pair {} µs",
            numbers[0], numbers[1], numbers[2]
        );
        assert!(numbers[2] < 1_000_000, "a call that needs none of them waited: {numbers:?}");
    }
}

/// Of twenty calls with a kilobyte each, five find an A-stack. The others wait, or use memory
/// beside the A-stacks, as the binding says.
#[test]
fn calls_without_an_a_stack_wait_or_grow_as_the_binding_says() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("latch latch");
    let mut asks = place.client();
    asks.ask("bind-latch latch").expect_ok("binding");
    for (how, at_once) in [("hold-bytes", 5), ("hold-bytes-and-grow", 20)] {
        let mut client = place.client();
        client.ask("bind-latch latch").expect_ok("binding");
        let before = asks.ask("came-in").numbers("calls before")[0];
        client.ask(&format!("{how} 20")).expect_ok("calls");
        let came_in =
            |asks: &mut Party| asks.ask("came-in").numbers("calls that came in")[0] - before;
        eventually("calls come in", || {
            if came_in(&mut asks) < at_once { Err(how.into()) } else { Ok(()) }
        });
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(came_in(&mut asks), at_once, "{how}");
        asks.ask("let-out 20").expect_ok("letting them out");
        eventually("all calls end", || {
            match client.ask("holds-ended").numbers("calls that ended")[0] {
                20 => Ok(()),
                ended => Err(format!("{ended}")),
            }
        });
    }
}
