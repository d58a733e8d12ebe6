//! Hand-off on one processor, counted: a call takes two switches of the processor, from the caller to the server and back, and no more (L6).

use crate::{alone, place};
use upcall_os::processor::Processors;
use upcall_tests::usage::switches;

const CALLS: u64 = 2000;

#[test]
fn a_call_on_one_processor_takes_two_switches() {
    let _alone = alone();
    let before = Processors::allowed().expect("where we may run");
    // The parties inherit it.
    Processors::only(before.iter().next().expect("a processor")).confine().expect("one processor");
    for options in ["", "sleep", "poll"] {
        let place = place();
        let server = place.serve(&format!("trial {options}"));
        let mut client = place.client();
        client.ask("bind trial").expect_ok("binding");
        client.ask("nulls 500").expect_ok("calls");
        let parties = [server.pid(), client.pid()];
        let both = || parties.map(switches).iter().sum::<u64>();
        // Others that want the processor add switches of their own; of ten turns one without them is enough.
        let mut least = f64::MAX;
        for _ in 0..10 {
            let before = both();
            client.ask(&format!("nulls {CALLS}")).expect_ok("calls");
            least = least.min((both() - before) as f64 / CALLS as f64);
        }
        println!("    {options:5}: {least:.3} switches a call");
        assert!((1.9..2.1).contains(&least), "{least} switches a call, server {options:?}");
    }
    before.confine().expect("all processors");
}
