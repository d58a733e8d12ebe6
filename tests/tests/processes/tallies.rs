//! What a server counts of its bindings, as other processes read it.

use crate::{alone, in_company, place};
use std::time::Duration;
use upcall::directory::{PeerTallies, Reading, tallies};
use upcall_os::processor::CpuSet;
use upcall_tests::party::Party;
use upcall_tests::place::{Place, eventually};

fn opened(place: &Place) -> PeerTallies {
    tallies(&place.sockets()[0]).expect("tallies").1
}

fn of(tallies: &PeerTallies, client: u32) -> Option<Reading> {
    tallies.read().into_iter().find(|reading| reading.client == client)
}

/// Every call is counted once, with the bytes that it carried, whichever processor served it.
#[test]
#[expect(clippy::too_many_lines, reason = "steps of one story, each of which needs those before")]
fn every_call_is_counted_once() {
    let _company = in_company();
    for options in ["", "two", "poll", "two poll"] {
        let place = place();
        let server = place.serve(&format!("trial {options}"));
        let tallies = opened(&place);
        let (mut client, mut other) = (place.client(), place.client());
        client.ask("bind trial").expect_ok("binding");
        other.ask("bind trial").expect_ok("binding");
        client.ask("nulls 1000").expect_ok("calls");
        client.ask("add 2 3").expect_ok("a call");
        client.ask("sum 100000").expect_ok("bytes in");
        client.ask("make 5000").expect_ok("bytes out, fetched");
        client.ask("open 2").expect_ok("objects");
        client.ask("drop-things").expect_ok("dropping them");
        client.ask("fail oops").expect_error("Panicked", &["oops"]);
        client.ask("limited 2000 1").expect_error("TooLong", &[]);
        other.ask("nulls 7").expect_ok("calls");
        // A call is counted while its reply is on its way, so the last call is waited for.
        let found = || of(&tallies, client.pid()).expect("the client's binding");
        eventually("the last call is counted", || match found().outcomes {
            [_, _, 1, _] => Ok(()),
            outcomes => Err(format!("{outcomes:?}")),
        });
        let reading = found();
        // The value that was too long was not sent. The runtime itself makes calls to drop objects
        // and to fetch results.
        let calls = reading.calls();
        let [done, refused, panicked, unknown] = reading.outcomes;
        println!(
            "    {options:9} {calls} calls, outcomes {:?}, bytes {:?}",
            reading.outcomes, reading.bytes
        );
        assert_eq!((refused, panicked, unknown), (0, 1, 0));
        assert_eq!(reading.procedures.iter().sum::<u64>(), done + panicked);
        assert_eq!(
            reading.came.iter().sum::<u64>(),
            calls,
            "each call came in one way: {:?}",
            reading.came
        );
        let procedures = &upcall_tests::interfaces::trial::INTERFACE.procedures;
        let named = |name: &str| {
            reading.procedures
                [procedures.iter().position(|procedure| procedure.name == name).unwrap()]
        };
        assert_eq!(
            (
                named("null"),
                named("sum"),
                named("make"),
                named("open"),
                named("fail"),
                named("limited")
            ),
            (1000, 1, 1, 2, 1, 0)
        );
        assert!(reading.bytes[0] >= 100_000 && reading.bytes[1] >= 5000, "{:?}", reading.bytes);
        assert_eq!(reading.sizes.iter().sum::<u64>(), calls);
        assert!(reading.times.iter().sum::<u64>() >= 1000 / 64 - 1, "{:?}", reading.times);
        assert_eq!(
            of(&tallies, other.pid()).expect("the other's binding").procedures.iter().sum::<u64>()
                % 1000,
            7
        );
        assert_eq!(
            (reading.name.as_str(), reading.interface.as_str()),
            ("trial", "upcall:tests/trial@1.0.0")
        );

        // The tallies go with their bindings, however these end, and can be read after the server
        // has ended.
        client.ask("unbind").expect_ok("unbinding");
        eventually("the binding is gone", || {
            if of(&tallies, client.pid()).is_none() { Ok(()) } else { Err("it is there".into()) }
        });
        server.stop();
        assert!(of(&tallies, other.pid()).is_some());
        server.signal(rustix::process::Signal::CONT);
        other.kill();
        eventually("the dead client's binding is gone", || {
            if tallies.read().is_empty() { Ok(()) } else { Err("it is there".into()) }
        });
    }
}

/// Calls from another machine are remote, and listed by the client's address. Calls of this machine
/// beside them are not.
#[test]
fn calls_from_other_machines_are_counted_as_remote() {
    let _company = in_company();
    for options in ["tcp", "tcp two"] {
        let place = place();
        let (_server, address) = place.serve_far(&format!("trial {options}"));
        let tallies = opened(&place);
        let (mut near, mut far, mut other) = (place.client(), place.client(), place.client());
        near.ask("bind trial").expect_ok("binding");
        near.ask("nulls 30").expect_ok("calls");
        for (client, calls) in [(&mut far, 100), (&mut other, 7)] {
            client.ask(&format!("bind tcp://{address}/trial")).expect_ok("binding");
            client.ask(&format!("nulls {calls}")).expect_ok("calls");
        }
        far.ask("fail oops").expect_error("Panicked", &["oops"]);
        far.ask("sum 100000").expect_ok("bytes in");
        eventually("each call is counted once", || {
            let mut remote: Vec<_> =
                tallies.read().into_iter().filter(|reading| reading.address.is_some()).collect();
            remote.sort_by_key(|reading| std::cmp::Reverse(reading.calls()));
            let counted: Vec<_> = remote
                .iter()
                .map(|reading| (reading.client, reading.procedures.iter().max().copied()))
                .collect();
            if counted == [(0, Some(100)), (0, Some(7))] {
                Ok(())
            } else {
                Err(format!("{counted:?}"))
            }
        });
        let (remote, local): (Vec<_>, Vec<_>) =
            tallies.read().into_iter().partition(|reading| reading.address.is_some());
        let addresses: Vec<_> = remote.iter().filter_map(|reading| reading.address).collect();
        assert!(
            addresses[0] != addresses[1]
                && addresses
                    .iter()
                    .all(|address| address.ip().is_loopback() && address.port() != 0)
        );
        for reading in &remote {
            assert_eq!((reading.remote(), &reading.came[..5]), (reading.calls(), &[0; 5][..]));
            assert_eq!(
                (reading.name.as_str(), reading.interface.as_str()),
                ("trial", "upcall:tests/trial@1.0.0")
            );
        }
        let panicked: u64 = remote.iter().map(|reading| reading.outcomes[2]).sum();
        assert!(panicked == 1 && remote.iter().any(|reading| reading.bytes[0] >= 100_000));
        assert_eq!((local.len(), local[0].client, local[0].remote()), (1, near.pid(), 0));
        assert!(local[0].calls() >= 30);
        far.ask("unbind").expect_ok("unbinding");
        other.kill();
        eventually("they go with their bindings", || {
            let left = tallies.read().len();
            if left == 1 { Ok(()) } else { Err(format!("{left} are left")) }
        });
    }
}

/// Waits until at least `count` calls since `before` are counted. A call is counted while its reply
/// is on its way.
fn counted(tallies: &PeerTallies, client: &Party, before: &Reading, count: u64) -> Reading {
    let mut since = None;
    eventually("the last call is counted", || {
        let found = of(tallies, client.pid()).expect("the client's binding").since(before);
        let calls = found.calls();
        since = Some(found);
        if calls >= count { Ok(()) } else { Err(format!("{calls} of {count}")) }
    });
    since.expect("a reading")
}

/// Returns how the calls came that `asked` makes: spins, donations, hand-offs, wakes, waits, and
/// calls from other machines (`upcall::directory::Arrival`).
fn came(tallies: &PeerTallies, client: &mut Party, asked: &str) -> [u64; 6] {
    let before = of(tallies, client.pid()).expect("the client's binding");
    let words = client.ask(asked).expect_ok("calls");
    let count = match asked.split_once(' ') {
        Some(("nulls", count)) => count.parse().expect("a number"),
        // The long call, and those beside it.
        _ => 1 + words[0].parse::<u64>().expect("a number"),
    };
    let since = counted(tallies, client, &before, count);
    println!(
        "    {asked}: {} calls, spins, donations, hand-offs, wakes, waits, remote: {:?}",
        since.calls(),
        since.came
    );
    assert_eq!(since.came.iter().sum::<u64>(), since.calls());
    since.came
}

const CALLS: u64 = 2000;

#[test]
fn calls_to_a_polling_server_on_a_processor_of_its_own_are_spins() {
    let _alone = alone();
    let all = CpuSet::allowed().expect("where we may run");
    let [first, second] = all.iter().take(2).collect::<Vec<_>>()[..] else {
        return println!("    skipped: two processors are needed");
    };
    let place = place();
    CpuSet::only(second).confine().expect("one processor");
    let _server = place.serve("trial poll");
    CpuSet::only(first).confine().expect("one processor");
    let mut client = place.client();
    all.confine().expect("all processors");
    client.ask("bind trial").expect_ok("binding");
    client.ask("nulls 500").expect_ok("calls");
    let came = came(&opened(&place), &mut client, &format!("nulls {CALLS}"));
    assert!(came[0] >= CALLS * 99 / 100 && came[1..4] == [0; 3] && came[5] == 0, "{came:?}");
}

#[test]
fn calls_on_one_processor_are_donations_or_hand_offs() {
    let _alone = alone();
    let all = CpuSet::allowed().expect("where we may run");
    // The parties inherit the mask.
    CpuSet::only(all.iter().next().expect("a processor")).confine().expect("one processor");
    for options in ["", "sleep"] {
        let place = place();
        let _server = place.serve(&format!("trial {options}"));
        let mut client = place.client();
        client.ask("bind trial").expect_ok("binding");
        client.ask("nulls 500").expect_ok("calls");
        let tallies = opened(&place);
        // A caller that has asked a server to stay gives that up for 65536 calls when other
        // programs have wanted the processor (`SpinBudget`).
        let turn = |_| came(&tallies, &mut client, &format!("nulls {CALLS}"));
        let given = (0..100).map(turn).find(|&[_, donations, hand_offs, ..]| {
            assert!(donations + hand_offs >= CALLS * 9 / 10, "server {options:?}");
            // A server that sleeps may have been kept from sleeping in some turns.
            if options.is_empty() { donations > 0 } else { hand_offs >= CALLS * 8 / 10 }
        });
        assert!(given.is_some(), "server {options:?}");
    }
    all.confine().expect("all processors");
}

#[test]
fn calls_that_are_there_when_another_is_done_are_waits() {
    let _alone = alone();
    let place = place();
    let _server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    // A thread computes in the server during another one's call. Other threads follow, one at a
    // time. On a busy machine one of their calls can come before the server has replied to the
    // first call.
    let mut waits = || {
        let [.., waits, _] = came(&opened(&place), &mut client, "beside-a-long-call 200");
        assert!(waits > 0, "the call beside the long one did not wait");
        waits
    };
    assert!((0..20).any(|_| waits() == 1), "calls wait for a server that has nothing to do");
}

#[test]
fn calls_for_which_there_was_no_stack_are_waits() {
    let _alone = alone();
    let place = place();
    let _server = place.serve("trial calls=1");
    let (mut client, mut other) = (place.client(), place.client());
    client.ask("bind trial").expect_ok("binding");
    other.ask("bind trial").expect_ok("binding");
    // On a slow machine the work may begin after the call, or be over by then.
    eventually("a call waits for the stack", || {
        other.say("work 300");
        std::thread::sleep(Duration::from_millis(50));
        let came = came(&opened(&place), &mut client, "nulls 1");
        other.hear().expect_ok("work");
        if came == [0, 0, 0, 0, 1, 0] { Ok(()) } else { Err(format!("{came:?}")) }
    });
}

#[test]
fn calls_that_wake_a_server_and_give_it_nothing_are_wakes() {
    let _alone = alone();
    if !CpuSet::allowed().is_ok_and(|allowed| allowed.contains(0) && allowed.contains(1)) {
        return println!("    skipped: processors 0 and 1 are needed");
    }
    let place = place();
    let _server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    // A kernel thread on one processor donates nothing, and four threads on the other one donate
    // their processor. The first of their calls brings the server.
    let tallies = opened(&place);
    // On a slow machine they may come in another order.
    eventually("calls wake the server, bring it, and wait for it", || {
        client.ask("turns 1 4 5 0 0").expect_ok("lanes for all");
        let before = of(&tallies, client.pid()).expect("the client's binding");
        client.hear().expect_ok("calls");
        let [_, donations, hand_offs, wakes, waits, _] =
            counted(&tallies, &client, &before, 5).came;
        let found = format!("{:?}", (donations, hand_offs, wakes, waits));
        println!("    donations, hand-offs, wakes, waits: {found}");
        let is_right = wakes >= 1 && donations + hand_offs >= 1 && waits >= 3;
        if is_right { Ok(()) } else { Err(found) }
    });
}

#[test]
fn whom_a_server_does_not_let_in_reads_nothing() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial refuse");
    let error = tallies(&place.sockets()[0]).err().expect("an error").to_string();
    assert!(error.contains("is not on the list"), "{error}");
}
