//! Hand-off on one processor, counted. A call takes exactly two switches of the processor, from the
//! caller to the server and back, and two crossings into the kernel, one on each side (LRPC).

use crate::{alone, place};
use std::time::{Duration, Instant};
use upcall_os::processor::CpuSet;
use upcall_tests::party::Party;
use upcall_tests::usage::switches;

const CALLS: u64 = 2000;

/// Maximum time that the machine may be busy with something else.
const LONG: Duration = Duration::from_secs(40);

#[test]
fn a_call_on_one_processor_takes_two_switches() {
    let _alone = alone();
    let before = CpuSet::allowed().expect("where we may run");
    // The parties inherit the mask.
    CpuSet::only(before.iter().next().expect("a processor")).confine().expect("one processor");
    for options in ["", "sleep", "poll"] {
        let place = place();
        let server = place.serve(&format!("trial {options}"));
        let mut client = place.client();
        client.ask("bind trial").expect_ok("binding");
        client.ask("nulls 500").expect_ok("calls");
        let parties = [server.pid(), client.pid()];
        let both = || parties.map(switches).iter().sum::<u64>();
        // Other programs that want the processor add switches of their own. Of ten turns, one
        // without them is enough.
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

/// A server on one processor answers its only caller without the detour through its idle loop. It
/// must still find other work that is ready.
#[test]
fn a_caller_who_never_stops_leaves_room_for_others() {
    let _alone = alone();
    let all = CpuSet::allowed().expect("where we may run");
    // The parties inherit the mask.
    CpuSet::only(all.iter().next().expect("a processor")).confine().expect("one processor");
    let place = place();
    let _server = place.serve("trial");
    let (mut client, mut other) = (place.client(), place.client());
    client.ask("bind trial").expect_ok("binding");
    client.ask("nulls 1000").expect_ok("calls");
    // First kind of work: the server's own threads, which sleep for a time.
    let [took, calls] = client.ask("nulls-beside-work 20").numbers("work beside calls")[..] else {
        panic!("two numbers")
    };
    println!("    20 ms of waiting took {took} ms beside {calls} calls");
    assert!(took >= 20, "20 ms took {took}");
    // Second kind of work: another client. Other programs on this machine may stop it for as long
    // as the first client's calls last, but not each time.
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

/// A server has one processor of its own, and after a sleep a caller has brought it to another one.
/// The server goes back when calls follow each other closely.
#[test]
fn a_server_goes_back_to_its_own_processor() {
    let _alone = alone();
    let all = CpuSet::allowed().expect("where we may run");
    let [first, second] = [0, 1].map(|at| all.iter().nth(at));
    let (Some(first), Some(second)) = (first, second) else {
        return println!("    skipped: one processor");
    };
    let place = place();
    // Each party inherits the mask.
    CpuSet::only(first).confine().expect("one processor");
    let server = place.serve("trial");
    CpuSet::only(second).confine().expect("one processor");
    let mut client = place.client();
    all.confine().expect("all processors");
    client.ask("bind trial").expect_ok("binding");
    let parties = [server.pid(), client.pid()];
    let both = || parties.map(switches).iter().sum::<u64>();
    // While another program takes one of the processors, client and server share the other one. A
    // server that does not go back makes 10 000 switches each time.
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

/// Returns the number of crossings that each party has made, or `None` if they do not count them.
fn crossings(parties: [&mut Party; 2]) -> Option<[u64; 2]> {
    let [Some(server), Some(client)] =
        parties.map(|party| party.ask("crossings").numbers("crossings").first().copied())
    else {
        return None;
    };
    Some([server, client])
}

/// If the server stays on its processor, each side gives way once. A side that sleeps waits for its
/// doorbell and has to be notified: that takes as many crossings if the kernel switches to it at
/// the notification, but dearer ones.
#[test]
fn a_call_on_one_processor_takes_two_crossings() {
    let _alone = alone();
    let all = CpuSet::allowed().expect("where we may run");
    // The parties inherit the mask.
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
        // A caller that has asked a server to stay gives that up for 65536 calls when other
        // programs have wanted the processor (`SpinBudget`). Of some turns, one without them is
        // enough.
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
