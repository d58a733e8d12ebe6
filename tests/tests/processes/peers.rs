//! Clients and servers in other PID and user namespaces, and of other users: they bind, call, and learn of each other's
//! end as any others do, and are not taken for one another.
//!
//! These tests need root for other users, and `unshare` for namespaces. They say what they left out.

use crate::in_company;
use std::process::Command;
use std::sync::OnceLock;
use upcall_tests::party::{Party, Said};
use upcall_tests::place::{Place, eventually};

/// Users that need no entry in the system's list.
const ONE: u32 = 61_001;
const OTHER: u32 = 61_002;

/// Where a party runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    /// In the PID namespace of this program.
    Same,
    /// In a PID namespace of its own, which this program's contains.
    Own,
}

/// The command that runs a program as a user, in a PID namespace.
fn wrapper(space: Space, user: u32) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    if space == Space::Own {
        words.extend(unshare().unwrap_or(&[]).iter().map(|word| (*word).to_string()));
    }
    if user != own_user() {
        words.extend(as_user(user));
    }
    words
}

fn as_user(user: u32) -> Vec<String> {
    ["setpriv", &format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"].map(String::from).to_vec()
}

fn own_user() -> u32 {
    upcall_os::socket::own_user()
}

/// The command for a PID namespace, with a user namespace where this machine wants that for it.
fn unshare() -> Option<&'static [&'static str]> {
    static FOUND: OnceLock<Option<&'static [&'static str]>> = OnceLock::new();
    const PLAIN: &[&str] = &["unshare", "--pid", "--fork", "--kill-child"];
    const MAPPED: &[&str] = &["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"];
    let works = |words: &&[&str]| Command::new(words[0]).args(&words[1..]).arg("true").output().is_ok_and(|o| o.status.success());
    *FOUND.get_or_init(|| [PLAIN, MAPPED].into_iter().find(works))
}

/// Which namespaces can be had here; says so if there is only one.
fn spaces() -> Vec<Space> {
    if unshare().is_some() {
        return vec![Space::Same, Space::Own];
    }
    eprintln!("skipped: `unshare` makes no PID namespace here, so all parties share one");
    vec![Space::Same]
}

/// Whether this program may run others as another user; says so if not.
fn may_change_users(test: &str) -> bool {
    let may = own_user() == 0
        && Command::new("setpriv").args(&as_user(ONE)[1..]).arg("true").output().is_ok_and(|o| o.status.success());
    if !may {
        eprintln!("skipped: {test}: programs of other users cannot be started here (that takes root and `setpriv`)");
    }
    may
}

/// The program for parties: a copy that every user can reach.
fn program() -> &'static str {
    static COPY: OnceLock<(tempfile::TempDir, String)> = OnceLock::new();
    let (_, path) = COPY.get_or_init(|| {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::TempDir::new().expect("a folder");
        let path = folder.path().join("upcall-party");
        upcall_tests::place::copy_program(env!("CARGO_BIN_EXE_upcall-party").as_ref(), &path);
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("its mode");
        let path = path.to_string_lossy().into_owned();
        (folder, path)
    });
    path
}

/// A server's user and a client's, and what each has to say about the other to accept it.
#[derive(Clone, Copy, Debug)]
struct Users {
    what: &'static str,
    server: u32,
    client: u32,
    options: &'static str,
    bind: &'static str,
}

fn pairs() -> Vec<Users> {
    let own = own_user();
    let mut pairs = vec![Users { what: "one user", server: own, client: own, options: "", bind: "bind trial" }];
    if may_change_users("two users") {
        pairs.extend([
            Users {
                what: "two users",
                server: ONE,
                client: OTHER,
                options: "mode=666 admit=61001,61002",
                bind: "bind-expecting trial 61001",
            },
            Users { what: "root serves a user", server: 0, client: OTHER, options: "mode=666 admit=0,61002", bind: "bind trial" },
            Users {
                what: "a user serves root",
                server: ONE,
                client: 0,
                options: "admit=0,61001",
                bind: "bind-expecting trial 61001",
            },
        ]);
    }
    pairs
}

fn serve(place: &Place, space: Space, user: u32, options: &str) -> Party {
    let mut server = place.start_by(&wrapper(space, user), &format!("serve trial {options}"));
    server.hear().expect_ok("a server's start");
    server
}

fn client(place: &Place, space: Space, user: u32) -> Party {
    place.start_by(&wrapper(space, user), "client")
}

fn expect_clients(server: &mut Party, count: &str) {
    eventually("the server's count of clients", || match server.ask("clients trial") {
        Said::Ok(words) if words == [count] => Ok(()),
        said => Err(format!("{said:?}, not {count}")),
    });
}

/// Binds, calls from a kernel thread and from a user-level thread, and ends either side.
fn scene(server_space: Space, client_space: Space, users: Users, pacing: &str) {
    println!("server {server_space:?}, client {client_space:?}, {}, {pacing}", users.what);
    let place = Place::shared(program(), users.server);
    let mut server = serve(&place, server_space, users.server, &format!("{pacing} {}", users.options));
    let mut clients = [(); 2].map(|()| client(&place, client_space, users.client));
    for client in &mut clients {
        client.ask(users.bind).expect_ok("binding");
        client.ask(&format!("pace {pacing}")).expect_ok("pacing");
        assert_eq!(client.ask("add 2 3").numbers("a call from a kernel thread"), [5]);
        assert_eq!(client.ask(&format!("add-on-thread {pacing} 2 3")).numbers("a call from a user-level thread"), [5]);
    }
    expect_clients(&mut server, "2");
    let [mut survivor, victim] = clients;
    victim.kill();
    drop(victim);
    expect_clients(&mut server, "1");
    assert_eq!(survivor.ask("add 2 3").numbers("a call after another client's end"), [5]);
    server.kill();
    drop(server);
    survivor.ask("add 2 3").expect_error("Failed.PeerEnded", &["the server has ended"]);
    survivor.ask(&format!("add-on-thread {pacing} 2 3")).expect_error("Failed.PeerEnded", &["the server has ended"]);
    // What a dead server of another user left in the folder is not this client's to remove.
    match survivor.ask(users.bind) {
        Said::Error { kind, .. } if kind == "ServerGone.name" || kind == "NoSuchName.name" => {}
        said => panic!("binding after the server's end: {said:?}"),
    }
}

fn table(pacing: &str) {
    let _company = in_company();
    for users in pairs() {
        for server in spaces() {
            for client in spaces() {
                scene(server, client, users, pacing);
            }
        }
    }
}

#[test]
fn calls_cross_namespaces_and_users_polled() {
    table("poll");
}

#[test]
fn calls_cross_namespaces_and_users_parked() {
    table("sleep");
}

/// A server in a PID namespace of its own does not see its clients' numbers. Each still has a share of its own.
#[test]
fn clients_without_a_visible_number_do_not_share_a_quota() {
    let _company = in_company();
    let place = Place::shared(program(), own_user());
    let space = *spaces().last().expect("one at least");
    let _server = serve(&place, space, own_user(), "objects=2");
    let mut clients = [(); 2].map(|()| client(&place, Space::Same, own_user()));
    for client in &mut clients {
        client.ask("bind trial").expect_ok("binding");
        client.ask("open 2").expect_ok("objects within the share of one client");
        client.ask("open 1").expect_error("Refused", &["too many resources"]);
    }
}

/// Processes of one user cannot keep those of another from binding, however many they are.
#[test]
fn a_user_with_many_processes_leaves_room_for_another() {
    if !may_change_users("a user with many processes") {
        return;
    }
    let _company = in_company();
    let place = Place::shared(program(), 0);
    let _server = serve(&place, Space::Same, 0, "mode=666 admit=any descriptors=48");
    let mut greedy = [(); 10].map(|()| client(&place, Space::Same, ONE));
    let said: Vec<_> = greedy.iter_mut().map(|client| client.ask("bind trial")).collect();
    let bound = said.iter().filter(|said| matches!(said, Said::Ok(_))).count();
    // Half of 48 descriptors, three for each.
    assert_eq!(bound, 8, "{said:?}");
    let refused = said.into_iter().find(|said| matches!(said, Said::Error { .. }));
    refused.expect("one is refused").expect_error("Ceiling", &["the processes of user 61001", "descriptors"]);
    client(&place, Space::Same, OTHER).ask("bind trial").expect_ok("another user's binding");
    client(&place, Space::Same, 0).ask("bind trial").expect_ok("a binding of the server's own user");
}

/// Calls that wait for ever, of many processes of one user, leave stacks for another user's.
#[test]
fn calls_of_a_user_with_many_processes_leave_stacks_for_another() {
    if !may_change_users("stacks of two users") {
        return;
    }
    let _company = in_company();
    let place = Place::shared(program(), 0);
    let mut server = place.start_by(&[], "serve latch sleep calls=16 mode=666 admit=any latch");
    server.hear().expect_ok("a server's start");
    let bound = |user| {
        let mut client = client(&place, Space::Same, user);
        client.ask("bind-latch latch").expect_ok("binding");
        client
    };
    let mut other = bound(OTHER);
    let mut greedy = [(); 3].map(|()| bound(ONE));
    let came_in = |other: &mut Party| other.ask("came-in").numbers("a call of another user")[0];
    for client in &mut greedy {
        client.ask("hold 60").expect_ok("calls");
    }
    eventually("half of the stacks are taken", || match came_in(&mut other) {
        8 => Ok(()),
        found => Err(found.to_string()),
    });
    // Each question of the other user ran on a stack, and let the server look at all lanes again.
    (0..100).for_each(|_| assert_eq!(came_in(&mut other), 8));
}

/// Each side accepts only whom its policy names, and the kernel's mode of the socket comes first.
#[test]
fn each_side_says_which_users_it_accepts() {
    if !may_change_users("policies of both sides") {
        return;
    }
    let _company = in_company();
    let place = Place::shared(program(), ONE);
    let denied = |mut client: Party, bind: &str, parts: &[&str]| {
        client.ask(bind).expect_error("Denied", parts);
    };
    let server = serve(&place, Space::Same, ONE, "admit=any");
    denied(client(&place, Space::Same, OTHER), "bind-expecting trial any", &["user 61002 may not connect", "mode and group"]);
    drop(server);
    let server = serve(&place, Space::Same, ONE, "mode=666");
    denied(client(&place, Space::Same, OTHER), "bind-expecting trial any", &["the peer is user 61002", "user 61001"]);
    let mut other = client(&place, Space::Same, OTHER);
    other.ask("bind trial").expect_error("WrongUser", &["the peer is user 61001", "user 61002 or root", "expect"]);
    other.ask("bind-expecting trial 61003").expect_error("WrongUser", &["accepted is users 61003"]);
    drop(server);
    // The umask of the server does not count, and its group does.
    let mut words = ["sh", "-c", "umask 0777; exec \"$0\" \"$@\""].map(String::from).to_vec();
    words.extend(as_user(ONE));
    let mut server = place.start_by(&words, "serve trial mode=660 admit-group=61001");
    server.hear().expect_ok("a server's start");
    denied(client(&place, Space::Same, OTHER), "bind-expecting trial any", &["user 61002 may not connect"]);
    let mut member = as_user(OTHER);
    *member.last_mut().expect("a word") = format!("--groups={ONE}");
    place.start_by(&member, "client").ask("bind-expecting trial 61001").expect_ok("a member of the group");
    let mut server = place.start_by(&wrapper(Space::Same, ONE), "serve group group=0");
    server.hear().expect_error("Resource", &["a socket in"]);
    let mut server = place.start_by(&wrapper(Space::Same, ONE), "serve group group=no-such-group");
    server.hear().expect_error("Resource", &["the group of its socket", "no-such-group"]);
}

/// A binding that was made under a wide policy does not widen a later one to the same server.
#[test]
fn a_second_binding_is_checked_by_its_own_policy() {
    if !may_change_users("two bindings with two policies") {
        return;
    }
    let _company = in_company();
    let place = Place::shared(program(), ONE);
    let _server = serve(&place, Space::Same, ONE, "mode=666 admit=any");
    let mut client = client(&place, Space::Same, OTHER);
    client.ask("bind-expecting trial any").expect_ok("binding");
    client.ask("bind trial").expect_error("WrongUser", &["the peer is user 61001"]);
    assert_eq!(client.ask("add 2 3").numbers("a call through the first binding"), [5]);
}

/// A process that calls itself root, or another user, in a user namespace of its own is who it is outside.
#[test]
fn a_user_namespace_does_not_change_who_a_peer_is() {
    if !may_change_users("user namespaces") {
        return;
    }
    let maps = |user: u32| -> Vec<String> {
        as_user(user).into_iter().chain(["unshare", "--user", "--map-root-user"].map(String::from)).collect()
    };
    let words = maps(OTHER);
    if !Command::new(&words[0]).args(&words[1..]).arg("true").output().is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: user namespaces: `unshare --user` is refused here");
    }
    let _company = in_company();
    let place = Place::shared(program(), 0);
    let _server = serve(&place, Space::Same, 0, "mode=666");
    let mut liar = place.start_by(&maps(OTHER), "client");
    liar.ask("bind trial").expect_error("WrongUser", &["has no number in this user namespace"]);
    liar.ask("bind-expecting trial any").expect_error("Denied", &["the peer is user 61002"]);
    // A server that has numbers for itself only sees all others under one number, which is no user's.
    let place = Place::shared(program(), ONE);
    let mut server = place.start_by(&maps(ONE), "serve trial mode=666 admit=65534,61002");
    server.hear().expect_ok("a server's start");
    let mut client = client(&place, Space::Same, OTHER);
    client.ask("bind-expecting trial 61001").expect_error("Denied", &["has no number in this user namespace"]);
}
