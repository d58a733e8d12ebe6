//! More domains with work than processors: nobody starves, and when the work ends nobody spins (U14).

use crate::{alone, place};
use std::time::Duration;
use upcall_tests::usage::come_to_rest;

const SERVERS: usize = 4;
const CLIENTS: usize = 8;
const TIME: Duration = Duration::from_secs(3);

#[test]
fn eight_clients_of_four_servers_share_the_processors() {
    let _alone = alone();
    let place = place();
    let names: Vec<String> = (0..SERVERS).map(|n| format!("server{n}")).collect();
    let servers: Vec<_> = names.iter().map(|name| place.serve(name)).collect();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| place.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        // Every other one calls from its kernel thread, the others from user-level threads, of which some have many.
        let users = [0, 1, 0, 4, 0, 16, 0, 64][n % 8];
        client.say(&format!("everywhere {} {} {users}", names.join(","), TIME.as_millis()));
    }
    let results: Vec<_> =
        clients.iter_mut().map(|client| client.hear_within(TIME * 10).numbers("calls to all servers")).collect();
    for (n, result) in results.iter().enumerate() {
        println!(
            "    client {n}: {} calls, {} to the server with the fewest, the longest {} µs",
            result[0], result[1], result[2]
        );
    }
    for (n, result) in results.iter().enumerate() {
        let [calls, fewest, longest] = result[..] else { panic!("{result:?}") };
        // Two processors for twelve domains: a client whose turn comes once in a hundred milliseconds makes as many calls as this.
        assert!(calls >= 30, "client {n} starved: {calls} calls in {TIME:?}");
        assert!(fewest * 4 * SERVERS as u64 >= calls, "client {n}: a server starved: {fewest} of {calls} calls");
        assert!(longest < 1_500_000, "client {n}: a call took {longest} µs");
    }
    // Everybody is bound to everybody, and nobody calls.
    let pids: Vec<u32> = servers.iter().chain(&clients).map(|party| party.pid()).collect();
    come_to_rest("a process to which nothing happens", &pids, Duration::from_secs(1), Duration::from_millis(1));
}
