//! A server parks near a caller that may not move it, because the caller is of another user or does
//! not see the server's process (T4).

use crate::alone;
use crate::peers::{self, Space, Users};
use upcall::directory::{PeerTallies, tallies};
use upcall_os::processor::Processors;
use upcall_tests::party::Party;
use upcall_tests::place::Place;

const CALLS: u64 = 1000;

/// The numbers of calls that came by hand-off, and of all, since the client has bound.
fn hand_offs(tallies: &PeerTallies) -> [u64; 2] {
    let readings = tallies.read();
    let of = |count: fn(&[u64; 6]) -> u64| readings.iter().map(|one| count(&one.came)).sum();
    [of(|came| came[1] + came[2]), of(|came| came.iter().sum())]
}

/// The users whose tallies this program may read.
fn readable() -> impl Iterator<Item = Users> {
    peers::pairs().into_iter().filter(|users| users.server == peers::own_user())
}

/// Starts a server on all processors and a client on the second one.
fn pair(space: Space, users: Users, options: &str) -> Option<(Place, [Party; 2])> {
    let all = Processors::allowed().expect("where this program may run");
    let Some(second) = all.iter().nth(1) else {
        eprintln!("skipped: servers that park near callers: two processors are needed");
        return None;
    };
    let place = Place::shared(peers::program(), users.server);
    let options = format!("{options} {}", users.options);
    let server = peers::serve(&place, space, users.server, &options);
    // The client inherits it.
    Processors::only(second).confine().expect("one processor");
    let mut client = peers::client(&place, space, users.client);
    all.confine().expect("all processors");
    client.ask(users.bind).expect_ok("binding");
    client.ask("pace sleep").expect_ok("pacing");
    Some((place, [server, client]))
}

fn calls_become_hand_offs(space: Space, users: Users, calls: &str) {
    println!("{space:?}, {}, {calls}", users.what);
    let Some((place, [_server, mut client])) = pair(space, users, "sleep") else { return };
    let tallies = tallies(&place.sockets()[0]).expect("tallies").1;
    // Another program that takes the processor for a while keeps some calls from being hand-offs.
    let become_hand_offs = (0..100).any(|_| {
        let before = hand_offs(&tallies);
        client.ask(&format!("{calls} {CALLS}")).expect_ok("calls");
        let after = hand_offs(&tallies);
        let [given, all] = [0, 1].map(|at| after[at] - before[at]);
        println!("    {given} of {all} calls came by hand-off");
        given >= CALLS * 9 / 10
    });
    assert!(become_hand_offs, "{space:?}, {}: a server does not park near its caller", users.what);
}

#[test]
fn calls_of_another_user_are_hand_offs() {
    let _alone = alone();
    for users in readable() {
        for calls in ["nulls", "nulls-on-thread sleep"] {
            calls_become_hand_offs(Space::Same, users, calls);
        }
    }
}

#[test]
fn calls_from_another_pid_namespace_are_hand_offs() {
    let _alone = alone();
    for users in readable() {
        for space in peers::available(&[Space::Pid]) {
            calls_become_hand_offs(space, users, "nulls");
        }
    }
}
