//! More domains with work than processors: none starves, and none spins when the work ends (URPC).

use crate::{alone, place};
use std::time::{Duration, Instant};
use upcall_tests::usage::come_to_rest;

const SERVERS: usize = 4;
const CLIENTS: usize = 8;
/// Duration of one turn of all clients.
const TIME: Duration = Duration::from_secs(3);

/// Number of calls to each server that show that a client does not starve.
const ENOUGH: u64 = 8;

/// Maximum time for the whole test, and for each call.
const LONGEST: Duration = Duration::from_secs(60);

#[test]
fn eight_clients_of_four_servers_share_the_processors() {
    let _alone = alone();
    let place = place();
    let names: Vec<String> = (0..SERVERS).map(|n| format!("server{n}")).collect();
    let servers: Vec<_> = names.iter().map(|name| place.serve(name)).collect();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| place.client()).collect();
    // The number of each client's calls, and of its calls to the server that it has called least.
    let mut made = [(0, 0); CLIENTS];
    let begun = Instant::now();
    while !made
        .iter()
        .all(|&(calls, fewest)| fewest >= ENOUGH && fewest * 4 * SERVERS as u64 >= calls)
    {
        assert!(
            begun.elapsed() < LONGEST,
            "a client or a server starved: calls, and those to the server with the fewest: {made:?}"
        );
        for (n, client) in clients.iter_mut().enumerate() {
            // Every second client calls from its kernel thread; the others call from user-level
            // threads, some from many.
            let users = [0, 1, 0, 4, 0, 16, 0, 64][n % 8];
            client.say(&format!("everywhere {} {} {users}", names.join(","), TIME.as_millis()));
        }
        for (n, (client, made)) in clients.iter_mut().zip(&mut made).enumerate() {
            let result = client.hear_within(LONGEST).numbers("calls to all servers");
            let [calls, fewest, longest] = result[..] else { panic!("{result:?}") };
            println!(
                "    client {n}: {calls} calls, {fewest} to the server with the fewest, the \
                longest {longest} µs"
            );
            assert!(
                Duration::from_micros(longest) < LONGEST,
                "client {n}: a call took {longest} µs"
            );
            *made = (made.0 + calls, made.1 + fewest);
        }
    }
    // Every client is bound to every server, and none calls.
    let pids: Vec<u32> = servers.iter().chain(&clients).map(|party| party.pid()).collect();
    come_to_rest(
        "a process to which nothing happens",
        &pids,
        Duration::from_secs(1),
        Duration::from_millis(1),
    );
}
