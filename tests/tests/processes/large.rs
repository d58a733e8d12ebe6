//! Values of every size, up to one gibibyte.

use crate::{alone, in_company, place};
use std::time::Duration;
use upcall_tests::party::Party;

#[test]
fn values_around_every_boundary() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    for len in [
        0,
        1,
        7,
        8,
        31,
        32,
        33,
        47,
        48,
        49,
        1007,
        1008,
        1024,
        1025,
        4096,
        65_535,
        65_536,
        65_537,
        1 << 20,
        (16 << 20) + 3,
    ] {
        client.ask(&format!("sum {len}")).expect_ok("bytes in");
        client.ask(&format!("make {len}")).expect_ok("bytes out");
        client.ask(&format!("echo {len}")).expect_ok("text both ways");
        client.ask(&format!("total {}", len / 8)).expect_ok("numbers in");
    }
}

/// Returns the number of bytes copied in one call, by the client and by the server, or `None` in
/// builds that do not count them.
fn copies(client: &mut Party, server: &mut Party, command: &str) -> Option<(u64, u64)> {
    let before = server.ask("copied").numbers("the server's count");
    let ours = client.ask(command).numbers(command);
    let after = server.ask("copied").numbers("the server's count");
    Some((*ours.first()?, after.first()? - before.first()?))
}

#[test]
fn bytes_that_nobody_interprets_are_copied_once() {
    let _company = in_company();
    let place = place();
    let mut server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    // In an A-stack, and in segments: the second time in a segment that exists already.
    for len in [1000u64, 1 << 20, 1 << 20, (16 << 20) + 3] {
        let Some(uninterpreted) =
            copies(&mut client, &mut server, &format!("copies-of-length {len}"))
        else {
            return eprintln!("skipped: this build does not count copies");
        };
        let taken = copies(&mut client, &mut server, &format!("copies-of-reverse {len}"))
            .expect("it counts");
        println!(
            "{len} bytes: by client and server {uninterpreted:?} of an argument not interpreted, \
            {taken:?} of one taken and given back"
        );
        assert_eq!(uninterpreted, (len, 0), "once into shared memory, and never again");
        // The contrast shows that the server's copies are counted: the server copies the bytes out
        // and as many back in, and the client copies those out.
        assert_eq!(taken, (2 * len, 2 * len), "each side once in and once out");
        // A text is a value that the server interprets. Its bytes are copied once before they are
        // checked, and not a second time for the check.
        let text =
            copies(&mut client, &mut server, &format!("copies-of-echo {len}")).expect("it counts");
        assert_eq!(text, (2 * len, 2 * len), "a text, each side once in and once out");
    }
}

/// The count of copies does not include reads of the bytes one word after the other.
#[test]
fn bytes_that_nobody_interprets_are_not_read_word_by_word_either() {
    /// Maximum number of bytes that a server may read of one call: control words, places and
    /// lengths.
    const CONTROL: u64 = 1024;
    let _company = in_company();
    let place = place();
    let mut server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    for len in [1000_u64, 64 << 10, 1 << 20, 1 << 20] {
        let before = server.ask("read-singly").numbers("the server's count");
        client.ask(&format!("copies-of-length {len}")).expect_ok("a call");
        let after = server.ask("read-singly").numbers("the server's count");
        let (Some(before), Some(after)) = (before.first(), after.first()) else {
            return println!("skipped: this build does not count what is read");
        };
        assert!(
            after - before < len.min(CONTROL),
            "{len} bytes: the server has read {}",
            after - before
        );
    }
    // The control experiment: the server reads 8192 numbers one by one, and the count has to show
    // that.
    let before = server.ask("read-singly").numbers("the server's count");
    client.ask("total 8192").expect_ok("a call");
    let after = server.ask("read-singly").numbers("the server's count");
    assert!(after[0] - before[0] >= 65536, "the count does not see what is read word by word");
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
