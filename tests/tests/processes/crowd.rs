//! More kernel threads that call than there are lanes for them.

use crate::quotas::{bound, expect};
use crate::{in_company, place};
use upcall_tests::place::eventually;
use upcall_tests::usage::Usage;

/// Number of lanes for the kernel threads of one process.
const LANES: u64 = 32;

/// All lanes are taken, and then all but one are freed. No call waits for the lane that stays
/// taken.
#[test]
fn who_finds_no_lane_takes_the_first_that_is_free() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("latch latch");
    let (mut client, mut other) = (bound(&place, "latch"), bound(&place, "latch"));
    client.ask(&format!("stay-by {LANES}")).expect_ok("calls");
    expect(&mut other, "inside", LANES);
    client.say("crowd 64");
    eventually("there is a thread for each call", || {
        match Usage::of(client.pid()).threads as u64 {
            now if now >= LANES + 64 => Ok(()),
            now => Err(format!("{now} threads")),
        }
    });
    other.ask(&format!("let-out {}", LANES - 1)).expect_ok("letting all but one out");
    client.hear().expect_ok("64 calls beside a call that stays");
    expect(&mut other, "inside", 1);
    other.ask("let-out 1").expect_ok("letting it out");
    expect(&mut client, "holds-ended", LANES);
}
