//! More kernel threads that call than there are lanes for them.

use crate::{in_company, place};

#[test]
fn who_finds_no_lane_takes_the_first_that_is_free() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    let worst = client.ask("crowd").numbers("a crowd")[0];
    println!("    the slowest of 64 calls beside one of 2000 ms and 31 of 200 ms: {worst} ms");
    assert!(worst < 1500, "a call waited for the lane of a long one: {worst} ms");
}
