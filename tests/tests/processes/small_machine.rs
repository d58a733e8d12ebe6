//! A server with the default quotas, on a machine with little memory.

use crate::in_company;
use crate::peers::{ONE, OTHER, as_user, may_change_users, program};
use upcall_tests::group::Group;
use upcall_tests::party::Party;
use upcall_tests::place::{Place, eventually};

const MIB: u64 = 1 << 20;

/// Memory of the server's control group, in bytes.
const MACHINE: u64 = 512 * MIB;

/// Number of processes of the second user that come later.
const MORE: usize = 4;

/// The kinds of resources that a client takes, in this order. Calls that stay in the server come
/// after these, because they keep the client from being served.
const KINDS: [&str; 6] = ["results", "values", "objects", "stacks", "segments", "connections"];

/// The server's side of a scene.
struct Small<'a> {
    place: &'a Place,
    group: &'a Group,
    server: Party,
    bystander: Party,
}

impl Small<'_> {
    /// Starts a client that is about to take all it can get.
    fn greedy(&self, user: u32) -> Party {
        let socket = self.place.sockets().pop().expect("a socket");
        let mut client =
            self.place.start_by(&as_user(user), &format!("greedy {} hoard", socket.display()));
        client.hear().expect_ok("a client that takes all");
        client
    }

    /// Lets the client take all it can get of one kind. Returns how much that is.
    fn take(&mut self, client: &mut Party, user: u32, kind: &str) -> u64 {
        let said = client.ask(kind);
        let (charged, peak) = (self.group.charged() / MIB, self.group.peak() / MIB);
        println!(
            "    user {user}: {kind}: {}; the server is charged {charged} MiB, {peak} at most",
            said.to_line()
        );
        assert!(
            self.server.lives(),
            "{kind} of user {user} end the server, which was charged {peak} MiB"
        );
        self.bystander.ask("add-small").expect_ok("a call of a bystander");
        said.numbers(kind)[0]
    }
}

/// One client takes all that the quotas let it have, of all kinds together. Then a client of
/// another user does, and then more processes of that user.
#[test]
fn a_server_with_default_quotas_lives_in_half_a_gigabyte() {
    if !may_change_users("a server in 512 MiB") {
        return;
    }
    let group = Group::new(MACHINE, "a server in 512 MiB");
    if !group.exists() {
        return;
    }
    let _company = in_company();
    let place = Place::shared(program(), 0);
    let mut server = place.start_by(&group.command(), "serve hoard sleep mode=666 admit=any hoard");
    server.hear().expect_ok("a server's start");
    let mut bystander = place.client();
    bystander.ask("bind hoard.small as small").expect_ok("binding");
    let mut small = Small { place: &place, group: &group, server, bystander };
    // These clients have their channels before the others leave no room for them.
    let more: Vec<_> = (0..MORE).map(|_| small.greedy(OTHER)).collect();
    let mut clients = Vec::new();
    for user in [ONE, OTHER] {
        let mut client = small.greedy(user);
        for kind in KINDS {
            let taken = small.take(&mut client, user, kind);
            assert!(taken > 0, "no {kind} for user {user}");
        }
        clients.push((user, client));
    }
    for mut client in more {
        small.take(&mut client, OTHER, "objects");
        clients.push((OTHER, client));
    }
    for ((user, client), calls) in clients.iter_mut().zip([4000, 6000]) {
        small.take(client, *user, "calls");
        eventually("the calls have come in", || {
            match small.server.ask("inside").numbers("calls")[0] {
                inside if inside >= calls => Ok(()),
                inside => Err(format!("{inside} of {calls}")),
            }
        });
    }
    println!(
        "    the server is charged {} MiB, {} at most",
        group.charged() / MIB,
        group.peak() / MIB
    );
    let mut late = place.start_by(&as_user(OTHER + 1), "client");
    late.ask("bind-more hoard.small").expect_ok("a third user is let in");
    drop(clients);
    small.bystander.ask("add-small").expect_ok("a call after their end");
    assert!(small.server.lives());
}
