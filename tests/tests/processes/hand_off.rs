//! Hand-off on one processor, counted: a call takes two switches of the processor, from the caller
//! to the server and back, and no more; and two crossings into the kernel, one on each side (L6).

use crate::{alone, place};
use std::time::{Duration, Instant};
use upcall_os::processor::CpuSet;
use upcall_tests::party::Party;
use upcall_tests::usage::switches;

const CALLS: u64 = 2000;

/// So long a machine may be busy with something else.
const LONG: Duration = Duration::from_secs(40);

#[test]
fn a_call_on_one_processor_takes_two_switches() {
    let _alone = alone();
    let before = CpuSet::allowed().expect("where we may run");
    // The parties inherit it.
    CpuSet::only(before.iter().next().expect("a processor")).confine().expect("one processor");
    for options in ["", "sleep", "poll"] {
        let place = place();
        let server = place.serve(&format!("trial {options}"));
        let mut client = place.client();
        client.ask("bind trial").expect_ok("binding");
        client.ask("nulls 500").expect_ok("calls");
        let parties = [server.pid(), client.pid()];
        let both = || parties.map(switches).iter().sum::<u64>();
        // Others that want the processor add switches of their own; of ten turns one without them
        // is enough.
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

/// A caller who is all that a server on one processor has is answered without the way round by the
/// idle loop; so what else there is to do has to be found nevertheless.
#[test]
fn a_caller_who_never_stops_leaves_room_for_others() {
    let _alone = alone();
    let all = CpuSet::allowed().expect("where we may run");
    // The parties inherit it.
    CpuSet::only(all.iter().next().expect("a processor")).confine().expect("one processor");
    let place = place();
    let _server = place.serve("trial");
    let (mut client, mut other) = (place.client(), place.client());
    client.ask("bind trial").expect_ok("binding");
    client.ask("nulls 1000").expect_ok("calls");
    // The server's own threads, which wait for a time.
    let [took, calls] = client.ask("nulls-beside-work 20").numbers("work beside calls")[..] else {
        panic!("two numbers")
    };
    println!("    20 ms of waiting took {took} ms beside {calls} calls");
    assert!(took >= 20, "20 ms took {took}");
    // Another client. What else runs on this machine may stop it for as long as the first one's
    // calls last, but not each time.
    let had_its_turn = (0..20).any(|_| {
        client.say("nulls 200000");
        other.ask("bind trial").expect_ok("binding beside calls");
        other.ask("nulls 100").expect_ok("calls beside calls");
        let done = Instant::now();
        client.hear().expect_ok("calls");
        let left = done.elapsed();
        println!("    the first client's calls went on for {left:?} after the second's");
        left > Duration::from_millis(10)
    });
    assert!(had_its_turn, "the second client had its turn when the first had done");
    all.confine().expect("all processors");
}

/// A server with one processor of its own, which a caller has brought to another one after a sleep,
/// goes back there when calls follow each other closely.
#[test]
fn a_server_goes_back_to_its_own_processor() {
    let _alone = alone();
    let all = CpuSet::allowed().expect("where we may run");
    let [first, second] = [0, 1].map(|at| all.iter().nth(at));
    let (Some(first), Some(second)) = (first, second) else {
        return println!("    skipped: one processor");
    };
    let place = place();
    // Each party inherits where it may run.
    CpuSet::only(first).confine().expect("one processor");
    let server = place.serve("trial");
    CpuSet::only(second).confine().expect("one processor");
    let mut client = place.client();
    all.confine().expect("all processors");
    client.ask("bind trial").expect_ok("binding");
    let parties = [server.pid(), client.pid()];
    let both = || parties.map(switches).iter().sum::<u64>();
    // Where another program takes one of the processors for a while they share the other one
    // meanwhile. A server that does not go back makes 10 000 switches each time.
    let (begun, mut all) = (Instant::now(), Vec::new());
    let goes_back = std::iter::repeat_with(|| begun.elapsed() < LONG)
        .take_while(|in_time| *in_time)
        .any(|_| {
            let mut found = [(); 20].map(|()| {
                std::thread::sleep(Duration::from_millis(5));
                let before = both();
                client.ask("nulls 5000").expect_ok("calls");
                both() - before
            });
            found.sort_unstable();
            println!("    {found:?} switches for 5000 calls after a sleep");
            all.push(found);
            found[15] < 2500
        });
    assert!(goes_back, "client and server share a processor: {all:?} switches for 5000 calls each");
}

/// How many crossings the parties have made, each of them. `None`: they do not count.
fn crossings(parties: [&mut Party; 2]) -> Option<[u64; 2]> {
    let [Some(server), Some(client)] =
        parties.map(|party| party.ask("crossings").numbers("crossings").first().copied())
    else {
        return None;
    };
    Some([server, client])
}

/// With a server that stays each side gives way once. A side that sleeps waits for its doorbell,
/// and is rung for: as many, if the kernel switches to it at the ring; but dearer ones.
#[test]
fn a_call_on_one_processor_takes_two_crossings() {
    let _alone = alone();
    let all = CpuSet::allowed().expect("where we may run");
    // The parties inherit it.
    CpuSet::only(all.iter().next().expect("a processor")).confine().expect("one processor");
    for (options, at_least, at_most) in
        [("", [0.99, 0.99], [1.05, 1.05]), ("sleep", [0.99, 0.99], [1.5, 2.5])]
    {
        let place = place();
        let mut server = place.serve(&format!("trial {options}"));
        let mut client = place.client();
        client.ask("bind trial").expect_ok("binding");
        client.ask("nulls 500").expect_ok("calls");
        let mut least = [f64::MAX; 2];
        // Who asks a server to stay does not for 65536 calls when others have wanted the processor
        // (pacer.rs): of some turns one without them is enough.
        for _ in 0..300 {
            let Some(before) = crossings([&mut server, &mut client]) else {
                all.confine().expect("all processors");
                return println!("    skipped: only builds with debug assertions count");
            };
            client.ask(&format!("nulls {}", CALLS / 4)).expect_ok("calls");
            let after = crossings([&mut server, &mut client]).expect("they count");
            let each = [0, 1].map(|side| (after[side] - before[side]) as f64 / (CALLS / 4) as f64);
            if each.iter().sum::<f64>() < least.iter().sum() {
                least = each;
            }
            if (0..2).all(|side| least[side] <= at_most[side]) {
                break;
            }
        }
        println!("    {options:5}: {least:.3?} crossings a call, of the server and of the client");
        assert!(
            (0..2).all(|side| (at_least[side]..=at_most[side]).contains(&least[side])),
            "server {options:?}: {least:?}"
        );
    }
    all.confine().expect("all processors");
}
