//! A-stacks that have run out, and those who do not need them (LRPC, sections 3.1, 3.2 and 5.2; requirements L3 and L5).

use crate::{in_company, place};

/// While every A-stack of one size class is in the hands of a call that stays in the server, calls of another class and calls that need none go through; calls of the same
/// class, of the same procedure or of another, wait, and get one in their turn. Nothing is released before the other calls have returned, so if these depended on it
/// they would never return.
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
