//! Values of every size, up to one gibibyte.

use crate::{alone, in_company, place};
use std::time::Duration;

#[test]
fn values_around_every_boundary() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    for len in [0, 1, 7, 8, 31, 32, 33, 47, 48, 49, 1007, 1008, 1024, 1025, 4096, 65_535, 65_536, 65_537, 1 << 20, (16 << 20) + 3]
    {
        client.ask(&format!("sum {len}")).expect_ok("bytes in");
        client.ask(&format!("make {len}")).expect_ok("bytes out");
        client.ask(&format!("echo {len}")).expect_ok("text both ways");
        client.ask(&format!("total {}", len / 8)).expect_ok("numbers in");
    }
}

#[test]
#[ignore = "long: 1 GiB in one call takes 3 GiB of memory"]
fn long_one_gibibyte_in_one_call() {
    let _alone = alone();
    let place = place();
    let _server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    for line in ["sum 1073741824", "make 1073741824"] {
        client.say(line);
        client.hear_within(Duration::from_secs(300)).expect_ok(line);
    }
}
