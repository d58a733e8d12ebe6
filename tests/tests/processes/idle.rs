//! An idle server with a hundred bound clients uses no processor, and little memory.

use crate::{alone, place};
use std::time::Duration;
use upcall_tests::place::eventually;
use upcall_tests::usage::{Usage, memory, processor_time, sleeps, switches};

#[test]
fn a_server_with_a_hundred_idle_clients() {
    hundred_clients(2);
}

#[test]
#[ignore = "long"]
fn long_a_server_with_a_hundred_idle_clients() {
    hundred_clients(10);
}

#[expect(clippy::too_many_lines, reason = "steps of one story, each of which needs those before")]
fn hundred_clients(seconds: u64) {
    let _alone = alone();
    let place = place();
    let server = place.serve("trial spares=0");
    let mut clients: Vec<_> = (0..100).map(|_| place.client()).collect();
    let bind = |client: &mut upcall_tests::party::Party| {
        client.ask("bind trial.small as small").expect_ok("binding");
    };
    clients[..10].iter_mut().for_each(bind);
    let before = (memory(server.pid()), Usage::of(server.pid()));
    clients[10..].iter_mut().for_each(bind);
    let after = (memory(server.pid()), Usage::of(server.pid()));
    let per_client =
        |all: fn(&(u64, u64)) -> u64| (all(&after.0).saturating_sub(all(&before.0))) as f64 / 90.0;
    println!(
        "the server's memory for one more client of a small interface: {:.1} KiB, {:.1} of it \
        shared; {:.1} descriptors, {:.1} mappings",
        per_client(|m| m.0),
        per_client(|m| m.1),
        (after.1.descriptors - before.1.descriptors) as f64 / 90.0,
        (after.1.mappings - before.1.mappings) as f64 / 90.0,
    );
    assert!(per_client(|m| m.0) < 64.0);
    let used = |pids: &[u32]| {
        pids.iter().map(|&pid| (switches(pid), processor_time(pid))).collect::<Vec<_>>()
    };
    let pids: Vec<u32> = std::iter::once(server.pid())
        .chain(clients.iter().map(upcall_tests::party::Party::pid))
        .collect();
    // A busy machine may still be closing the binding; a process that does not come to rest fails
    // each time.
    eventually("no process is woken", || {
        let before = used(&pids);
        std::thread::sleep(Duration::from_secs(seconds));
        let more: Vec<_> = used(&pids)
            .iter()
            .zip(&before)
            .map(|(after, before)| (after.0 - before.0, after.1 - before.1))
            .collect();
        let theirs = more[1..].iter().map(|(_, time)| time).sum::<u64>();
        println!(
            "in {seconds} s the server woke {} times and used {:.3} ms, each client {:.3} ms",
            more[0].0,
            more[0].1 as f64 / 1e6,
            theirs as f64 / 1e8
        );
        // The duration of a wake-up depends on the machine, so wake-ups are counted. A process that
        // never sleeps has none.
        let restless = pids
            .iter()
            .zip(&more)
            .find(|(_, (woken, time))| *woken > 2 * seconds || *time >= seconds * 100_000_000);
        restless.map_or(Ok(()), |(pid, (woken, time))| {
            Err(format!("process {pid} woke {woken} times and used {time} ns in {seconds} s"))
        })
    });
    for client in &mut clients {
        client.ask("bind trial").expect_ok("a second binding through the same channel");
        assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
    }
    // The client's side: what a binding to another server adds, channel and all, in a process that
    // has bound before.
    let other = place.serve("second");
    let bind = |client: &mut upcall_tests::party::Party| {
        client.ask("bind-more second.small").expect_ok("binding to a second server");
    };
    clients[..10].iter_mut().for_each(bind);
    let servers = memory(other.pid()).0;
    let all = |clients: &[upcall_tests::party::Party]| {
        clients
            .iter()
            .map(|client| memory(client.pid()))
            .fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1))
    };
    let before = all(&clients[10..]);
    clients[10..].iter_mut().for_each(bind);
    let after = all(&clients[10..]);
    let per_client = |more: u64| more as f64 / 90.0;
    let (client, shared) = (
        per_client(after.0.saturating_sub(before.0)),
        per_client(after.1.saturating_sub(before.1)),
    );
    let server = per_client(memory(other.pid()).0.saturating_sub(servers));
    println!(
        "a client's memory for one more binding that opens a channel: {client:.1} KiB, \
        {shared:.1} of it shared with the server, whose own is {server:.1} KiB"
    );
    assert!(client - shared + server < 64.0, "both sides together, what they share counted once");
}

#[test]
fn binding_is_quick() {
    let _alone = alone();
    let place = place();
    let (server, mut client) = (place.serve("trial spares=0"), place.client());
    client.ask("bind trial.small as small").expect_ok("binding");
    let both = [server.pid(), client.pid()];
    let slept = || both.map(sleeps).into_iter().sum::<u64>();
    let before = slept();
    let numbers = client.ask("bind-time trial.small 200").numbers("binding");
    let each = (slept() - before) as f64 / 200.0;
    println!(
        "bind: median {:.0} µs, longest {:.0} µs, {each:.1} sleeps of both sides",
        numbers[0] as f64 / 1e3,
        numbers[1] as f64 / 1e3
    );
    // How long a bind takes is for the benchmark. Here only the waits for the other side are
    // counted.
    assert!(each < 12.0, "{each} sleeps for a bind");
}
