//! Clients and servers in other namespaces, and of other users. They bind, call, and learn of each
//! other's end as any others do, and none is mistaken for another.
//!
//! These tests need root for other users, and `unshare` for namespaces. They print what they left
//! out.

use crate::in_company;
use std::process::Command;
use std::sync::OnceLock;
use upcall_os::lock::KernelMutex;
use upcall_tests::party::{Party, Said};
use upcall_tests::place::{Place, eventually};

/// User ids that need no entry in the system's list of users.
pub(crate) const ONE: u32 = 61_001;
pub(crate) const OTHER: u32 = 61_002;

/// Where a party runs: in this program's namespaces, except for one kind, or for all kinds that
/// containers have of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Same,
    /// In a PID namespace of its own, which is a child of this program's.
    Pid,
    /// In a mount namespace of its own, where the names directory is at another path, and nothing
    /// is at the path that it has here.
    Mount,
    Network,
    Ipc,
    /// In a PID namespace with a `/proc` of its own, and in one of each other kind.
    Container,
}

impl Space {
    const OWN: [Self; 5] = [Self::Pid, Self::Mount, Self::Network, Self::Ipc, Self::Container];

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Same => &[],
            Self::Pid => &["--pid", "--fork", "--kill-child"],
            Self::Mount => &["--mount"],
            Self::Network => &["--net"],
            Self::Ipc => &["--ipc"],
            Self::Container => {
                &["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net", "--ipc"]
            }
        }
    }

    fn has_mounts(self) -> bool {
        matches!(self, Self::Mount | Self::Container)
    }

    /// Returns the command that makes the namespaces, with a user namespace where this machine
    /// requires one, or `None` if the machine refuses it.
    fn unshare(self) -> Option<Vec<String>> {
        static REFUSED: KernelMutex<Vec<Space>> = KernelMutex::new(Vec::new());
        let commands = [&["unshare"][..], &["unshare", "--user", "--map-root-user"]]
            .map(|first| [first, self.options()].concat());
        let mut commands = commands
            .into_iter()
            .map(|words| words.into_iter().map(String::from).collect::<Vec<_>>());
        let found = commands.find(|words| self.is_made_by(words));
        let mut refused = REFUSED.lock();
        if found.is_none() && !refused.contains(&self) {
            eprintln!(
                "skipped: parties in other namespaces: `unshare {}` is refused here",
                self.options().join(" ")
            );
            refused.push(self);
        }
        found
    }

    /// Returns `true` if this machine lets a command make the namespaces.
    fn is_made_by(self, words: &[String]) -> bool {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        if self.has_mounts() {
            command.args(["mount", "-t", "tmpfs", "none", "/tmp"]);
        } else {
            command.arg("true");
        }
        command.output().is_ok_and(|output| output.status.success())
    }
}

/// Returns those of these spaces that this machine allows; prints which it refuses.
pub(crate) fn available(spaces: &[Space]) -> Vec<Space> {
    spaces
        .iter()
        .copied()
        .filter(|space| *space == Space::Same || space.unshare().is_some())
        .collect()
}

/// Returns the command that runs a program of `place` as a user, in namespaces.
fn wrapper(place: &Place, space: Space, user: u32) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    if space != Space::Same {
        words.extend(space.unshare().expect("namespaces that can be had"));
    }
    words.extend(mounts(place, space));
    if user != own_user() {
        words.extend(as_user(user));
    }
    words
}

/// Returns the command that moves the names directory of `place` within a mount namespace and then
/// runs a program; empty for a space that has the mounts of this program.
fn mounts(place: &Place, space: Space) -> Vec<String> {
    if !space.has_mounts() {
        return Vec::new();
    }
    let inside = place.path().join("inside");
    std::fs::create_dir_all(&inside).expect("a place for the folder of names");
    let inside = inside.display();
    let mounts =
        format!("mount --bind \"$UPCALL_DIR\" {inside} && mount -t tmpfs none \"$UPCALL_DIR\"");
    let script =
        format!("{mounts} && UPCALL_DIR={inside} && export UPCALL_DIR && exec \"$0\" \"$@\"");
    vec!["sh".into(), "-c".into(), script]
}

pub(crate) fn as_user(user: u32) -> Vec<String> {
    ["setpriv", &format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]
        .map(String::from)
        .to_vec()
}

pub(crate) fn own_user() -> u32 {
    upcall_os::socket::own_user()
}

/// Returns `true` if this program may run others as another user; prints a line if not.
pub(crate) fn may_change_users(test: &str) -> bool {
    let may = own_user() == 0
        && Command::new("setpriv")
            .args(&as_user(ONE)[1..])
            .arg("true")
            .output()
            .is_ok_and(|o| o.status.success());
    if !may {
        eprintln!(
            "skipped: {test}: programs of other users cannot be started here (that takes root and \
            `setpriv`)"
        );
    }
    may
}

/// Returns the program for parties: a copy that every user can reach.
pub(crate) fn program() -> &'static str {
    static COPY: OnceLock<(tempfile::TempDir, String)> = OnceLock::new();
    let (_, path) = COPY.get_or_init(|| {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::TempDir::new().expect("a folder");
        let path = folder.path().join("upcall-party");
        upcall_tests::place::copy_program(env!("CARGO_BIN_EXE_upcall-party").as_ref(), &path);
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))
            .expect("its mode");
        let path = path.to_string_lossy().into_owned();
        (folder, path)
    });
    path
}

/// A server's user and a client's, and the options with which each accepts the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Users {
    pub(crate) what: &'static str,
    pub(crate) server: u32,
    pub(crate) client: u32,
    pub(crate) options: &'static str,
    pub(crate) bind: &'static str,
}

pub(crate) fn pairs() -> Vec<Users> {
    let own = own_user();
    let mut pairs =
        vec![Users { what: "one user", server: own, client: own, options: "", bind: "bind trial" }];
    if may_change_users("two users") {
        pairs.extend([
            Users {
                what: "two users",
                server: ONE,
                client: OTHER,
                options: "mode=666 admit=61001,61002",
                bind: "bind-expecting trial 61001",
            },
            Users {
                what: "root serves a user",
                server: 0,
                client: OTHER,
                options: "mode=666 admit=0,61002",
                bind: "bind trial",
            },
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

pub(crate) fn serve(place: &Place, space: Space, user: u32, options: &str) -> Party {
    serve_by(place, &wrapper(place, space, user), options)
}

/// Starts a server through the command `words`.
fn serve_by(place: &Place, words: &[String], options: &str) -> Party {
    let mut server = place.start_by(words, &format!("serve trial {options}"));
    server.hear().expect_ok("a server's start");
    server
}

pub(crate) fn client(place: &Place, space: Space, user: u32) -> Party {
    place.start_by(&wrapper(place, space, user), "client")
}

fn expect_clients(server: &mut Party, count: &str) {
    eventually("the server's count of clients", || match server.ask("clients trial") {
        Said::Ok(words) if words == [count] => Ok(()),
        said => Err(format!("{said:?}, not {count}")),
    });
}

/// Starts a server and two clients in these spaces, and takes them through their [`lives`].
fn scene(server_space: Space, client_space: Space, users: Users, pacing: &str) {
    println!("server {server_space:?}, client {client_space:?}, {}, {pacing}", users.what);
    let place = Place::shared(program(), users.server);
    let server = serve(&place, server_space, users.server, &format!("{pacing} {}", users.options));
    let clients = [(); 2].map(|()| client(&place, client_space, users.client));
    lives(server, clients, users.bind, pacing);
}

/// The clients bind, and call from a kernel thread and from a user-level thread. Then one client is
/// killed, and the server, each while calls of both kinds are under way.
fn lives(mut server: Party, mut clients: [Party; 2], bind: &str, pacing: &str) {
    for client in &mut clients {
        client.ask(bind).expect_ok("binding");
        client.ask(&format!("pace {pacing}")).expect_ok("pacing");
        assert_eq!(client.ask("add 2 3").numbers("a call from a kernel thread"), [5]);
        assert_eq!(
            client
                .ask(&format!("add-on-thread {pacing} 2 3"))
                .numbers("a call from a user-level thread"),
            [5]
        );
    }
    expect_clients(&mut server, "2");
    let [mut survivor, mut victim] = clients;
    victim.say("storm 1 1");
    victim.hear().expect_ok("calls that are under way");
    victim.kill();
    drop(victim);
    expect_clients(&mut server, "1");
    assert_eq!(survivor.ask("add 2 3").numbers("a call after another client's end"), [5]);
    survivor.say("storm 1 1");
    survivor.hear().expect_ok("calls that are under way");
    server.kill();
    drop(server);
    let ends = survivor.hear().expect_ok("the ends of calls that were under way");
    assert_eq!((&*ends[0], &ends[2..]), ("2", &["Failed.PeerEnded".to_string()][..]), "{ends:?}");
    survivor.ask("add 2 3").expect_error("Failed.PeerEnded", &["the server has ended"]);
    survivor
        .ask(&format!("add-on-thread {pacing} 2 3"))
        .expect_error("Failed.PeerEnded", &["the server has ended"]);
    // Files of a dead server of another user are not this client's to remove.
    match survivor.ask(bind) {
        Said::Error { kind, .. } if kind == "ServerGone.name" || kind == "NoSuchName.name" => {}
        said => panic!("binding after the server's end: {said:?}"),
    }
}

/// Gives the server a namespace of its own, or the client, or each of the two.
fn table(pacing: &str) {
    let _company = in_company();
    let spaces = available(&Space::OWN);
    for users in pairs() {
        scene(Space::Same, Space::Same, users, pacing);
        for &space in &spaces {
            scene(space, Space::Same, users, pacing);
            scene(Space::Same, space, users, pacing);
            scene(space, space, users, pacing);
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

/// A server in a PID namespace of its own does not see its clients' numbers. Each client still has
/// a quota of its own, as where the server sees the numbers, and for all pairs of users.
#[test]
fn clients_without_a_visible_number_do_not_share_a_quota() {
    let _company = in_company();
    let Some(&own) = available(&[Space::Pid]).first() else { return };
    for users in pairs() {
        for (server_space, client_space) in [(own, Space::Same), (Space::Same, own), (own, own)] {
            println!("server {server_space:?}, clients {client_space:?}, {}", users.what);
            let place = Place::shared(program(), users.server);
            let _server =
                serve(&place, server_space, users.server, &format!("objects=2 {}", users.options));
            let mut clients = [(); 2].map(|()| client(&place, client_space, users.client));
            for client in &mut clients {
                client.ask(users.bind).expect_ok("binding");
                client.ask("open 2").expect_ok("objects within the share of one client");
                client.ask("open 1").expect_error("Refused", &["holds too many objects"]);
            }
        }
    }
}

/// However many processes of one user there are, those of another user can still bind.
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
    refused
        .expect("one is refused")
        .expect_error("QuotaReached", &["the processes of user 61001", "descriptors"]);
    client(&place, Space::Same, OTHER).ask("bind trial").expect_ok("another user's binding");
    client(&place, Space::Same, 0)
        .ask("bind trial")
        .expect_ok("a binding of the server's own user");
}

/// Calls that wait for ever, of many processes of one user, leave stacks for another user's calls.
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
    // Each call of the other user ran on a stack, and made the server probe all lanes again.
    (0..100).for_each(|_| assert_eq!(came_in(&mut other), 8));
}

/// Each side accepts only the users that its policy names, and the mode of the socket is checked
/// first.
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
    denied(
        client(&place, Space::Same, OTHER),
        "bind-expecting trial any",
        &["user 61002 may not connect", "mode and group, 0600 and", "ask user `61001`"],
    );
    drop(server);
    let server = serve(&place, Space::Same, ONE, "mode=666");
    denied(
        client(&place, Space::Same, OTHER),
        "bind-expecting trial any",
        &["the peer is user 61002", "user 61001"],
    );
    let mut other = client(&place, Space::Same, OTHER);
    other
        .ask("bind trial")
        .expect_error("WrongUser", &["the peer is user 61001", "user 61002 or root", "expect"]);
    other.ask("bind-expecting trial 61003").expect_error("WrongUser", &["accepted is user 61003"]);
    drop(server);
    // The umask of the server has no effect, and its group has.
    let mut words = ["sh", "-c", "umask 0777; exec \"$0\" \"$@\""].map(String::from).to_vec();
    words.extend(as_user(ONE));
    let mut server = place.start_by(&words, "serve trial mode=660 admit-group=61001");
    server.hear().expect_ok("a server's start");
    denied(
        client(&place, Space::Same, OTHER),
        "bind-expecting trial any",
        &["user 61002 may not connect", "0660 and `61001`", "join group `61001`"],
    );
    let mut member = as_user(OTHER);
    *member.last_mut().expect("a word") = format!("--groups={ONE}");
    place
        .start_by(&member, "client")
        .ask("bind-expecting trial 61001")
        .expect_ok("a member of the group");
    let mut server = place.start_by(&wrapper(&place, Space::Same, ONE), "serve group group=0");
    server.hear().expect_error("Resource", &["is not a member of group `root`"]);
    let mut server =
        place.start_by(&wrapper(&place, Space::Same, ONE), "serve group group=no-such-group");
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

/// A home says which users may connect, and a guest whose home it accepts. Both then work on the
/// object, and learn of each other's end.
#[test]
fn an_object_is_shared_between_users() {
    if !may_change_users("objects of two users") {
        return;
    }
    let _company = in_company();
    let place = Place::shared(program(), ONE);
    let share = |user: u32, what: &str| {
        place.start_by(&wrapper(&place, Space::Same, user), &format!("share thing {what}"))
    };
    let refused = |user: u32, what: &str, kind: &str, parts: &[&str]| {
        share(user, what).hear().expect_error(kind, parts)
    };
    let mut home = share(ONE, "make admit=61002");
    home.hear().expect_ok("an object");
    refused(
        OTHER,
        "find 61001",
        "Unreachable",
        &["user 61002 may not connect", "mode and group, 0600 and"],
    );
    home.say("leave");
    home.ended();
    let mut home = share(ONE, "make mode=666 admit=61002");
    home.hear().expect_ok("an object");
    refused(
        OTHER,
        "find",
        "WrongUser",
        &["the peer is user 61001", "user 61002 or root", "expect"],
    );
    refused(OTHER, "find 61003", "WrongUser", &["accepted is user 61003"]);
    refused(0, "find 61001", "Refused", &["the peer is user 0, accepted is user 61002"]);
    let mut guest = share(OTHER, "find 61001");
    guest.hear().expect_ok("finding it");
    guest.ask("count 100").expect_ok("operations of the guest");
    home.ask("count 100").expect_ok("operations of the home");
    assert_eq!(guest.ask("look").numbers("what it is"), [200, 200, 0]);
    // The guest ends in the middle of an operation, and the home repairs the object.
    guest.say("die");
    guest.ended();
    eventually("the home has repaired it", || match home.ask("look").numbers("what it is")[..] {
        [201, 201, 1] => Ok(()),
        ref found => Err(format!("{found:?}")),
    });
    let mut guest = share(OTHER, "find 61001");
    guest.hear().expect_ok("finding it again");
    home.kill();
    drop(home);
    eventually("the end of the home", || match guest.ask("count 1") {
        Said::Error { kind, .. } if kind == "Ended" => Ok(()),
        said => Err(format!("{said:?}")),
    });
    let mut home = share(ONE, "make mode=666 admit=61002 group=0");
    home.hear().expect_error("Name.Resource", &["is not a member of group `root`"]);
}

/// A process that is root, or another user, inside a user namespace of its own counts as the user
/// that it is outside.
#[test]
fn a_user_namespace_does_not_change_who_a_peer_is() {
    if !may_change_users("user namespaces") {
        return;
    }
    let [Some(one), Some(other)] = [ONE, OTHER].map(alone_inside) else { return };
    let _company = in_company();
    let place = Place::shared(program(), 0);
    let _server = serve(&place, Space::Same, 0, "mode=666");
    let mut liar = place.start_by(&other, "client");
    liar.ask("bind trial").expect_error("WrongUser", &["has no number in this user namespace"]);
    liar.ask("bind-expecting trial any").expect_error("Denied", &["the peer is user 61002"]);
    // A server that has numbers for itself only sees all others under one number, which is no
    // user's.
    let place = Place::shared(program(), ONE);
    let _server = serve_by(&place, &one, "mode=666 admit=65534,61002");
    let mut client = client(&place, Space::Same, OTHER);
    client
        .ask("bind-expecting trial 61001")
        .expect_error("Denied", &["has no number in this user namespace"]);
}

/// The user namespace of a party.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    /// This program's namespace, in which every user has its own number.
    All,
    /// A namespace of the party's own. Its user is root there, and no other user has a number.
    Own,
    /// A container's namespace, which has other numbers for both users.
    Other,
}

impl Numbers {
    /// Returns the number that `user` has for a party that runs as `own`, or `None` if it has none.
    fn of(self, user: u32, own: u32) -> Option<u32> {
        match self {
            Self::All => Some(user),
            Self::Own => (user == own).then_some(0),
            Self::Other => Some(user - Container::FIRST),
        }
    }
}

/// A user namespace as a container manager makes one: root maps some users to the numbers from 0
/// on.
struct Container(Party);

impl Container {
    /// The user that is root inside.
    const FIRST: u32 = ONE - 1;

    /// Makes such a namespace, or returns `None` if this machine refuses it or has no `nsenter`.
    fn new() -> Option<Self> {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "sh", "-c", "echo ok; exec cat"]);
        let mut holder = Party::start(unshare, "a user namespace");
        holder.try_hear()?;
        let map = format!("0 {} 3", Self::FIRST);
        let write = |kind: &str| std::fs::write(format!("/proc/{}/{kind}", holder.pid()), &map);
        write("uid_map").and_then(|()| write("gid_map")).ok()?;
        let made = Self(holder);
        let words = made.words(ONE);
        let works = Command::new(&words[0])
            .args(&words[1..])
            .arg("true")
            .output()
            .is_ok_and(|output| output.status.success());
        works.then_some(made)
    }

    /// Returns the command that runs a program inside, as the user with this number outside.
    fn words(&self, user: u32) -> Vec<String> {
        let enter = ["nsenter".into(), format!("--user=/proc/{}/ns/user", self.0.pid())];
        enter.into_iter().chain(as_user(user - Self::FIRST)).collect()
    }
}

/// Returns the command that makes a user namespace in which `user` is root and no other user has a
/// number; prints a line if it is refused.
fn alone_inside(user: u32) -> Option<Vec<String>> {
    alone_inside_as(0, user)
}

/// Like [`alone_inside`], with `number` inside in place of root's.
fn alone_inside_as(number: u32, user: u32) -> Option<Vec<String>> {
    let unshare =
        ["unshare", "--user", &format!("--map-user={number}"), &format!("--map-group={number}")]
            .map(String::from);
    let words: Vec<String> = as_user(user).into_iter().chain(unshare).collect();
    let works = Command::new(&words[0])
        .args(&words[1..])
        .arg("true")
        .output()
        .is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("skipped: user namespaces: `unshare --user` is refused here");
    }
    works.then_some(words)
}

/// Starts a server in `server` and two clients in `client`, of one user or of two. Each side
/// accepts the other by the number that it sees, or accepts any user where it sees none.
fn scene_of_numbers(
    server: (Numbers, &[String]),
    client: (Numbers, &[String]),
    other: u32,
    pacing: &str,
) {
    println!(
        "server {:?}, client {:?}, {} users, {pacing}",
        server.0,
        client.0,
        if other == ONE { "one" } else { "two" }
    );
    let (options, bind) = match other {
        ONE => (String::new(), "bind trial".into()),
        _ => {
            let admit = match [ONE, other].map(|user| server.0.of(user, ONE)) {
                [Some(own), Some(client)] => format!("{own},{client}"),
                _ => "any".into(),
            };
            let accepted =
                client.0.of(ONE, other).map_or("any".into(), |number| number.to_string());
            (format!("mode=666 admit={admit}"), format!("bind-expecting trial {accepted}"))
        }
    };
    let place = Place::shared(program(), ONE);
    let server = serve_by(&place, server.1, &format!("{pacing} {options}"));
    lives(server, [(); 2].map(|()| place.start_by(client.1, "client")), &bind, pacing);
}

/// The server is in another user namespace than this program, or the client, or both in different
/// ones. One user runs with the default policies; two users run with policies that name what each
/// side sees.
fn table_of_numbers(pacing: &str) {
    if !may_change_users("user namespaces") || alone_inside(ONE).is_none() {
        return;
    }
    let _company = in_company();
    let containers = [Container::new(), Container::new()];
    if containers.iter().any(Option::is_none) {
        eprintln!(
            "skipped: user namespaces with numbers for two users: `nsenter --user` or a map of \
            users is refused here"
        );
    }
    // For the server's side and for the client's: each has a namespace of its own.
    let words = |numbers: Numbers, user: u32, side: usize| match numbers {
        Numbers::All => Some(as_user(user)),
        Numbers::Own => alone_inside(user),
        Numbers::Other => Some(containers[side].as_ref()?.words(user)),
    };
    for server in [Numbers::All, Numbers::Own, Numbers::Other] {
        for client in [Numbers::All, Numbers::Own, Numbers::Other] {
            for other in [ONE, OTHER] {
                let (Some(serves), Some(calls)) = (words(server, ONE, 0), words(client, other, 1))
                else {
                    continue;
                };
                if (server, client) != (Numbers::All, Numbers::All) {
                    scene_of_numbers((server, &serves), (client, &calls), other, pacing);
                }
            }
        }
    }
}

#[test]
fn calls_cross_user_namespaces_polled() {
    table_of_numbers("poll");
}

#[test]
fn calls_cross_user_namespaces_parked() {
    table_of_numbers("sleep");
}

/// Returns the command that makes a user namespace in which `user` is root, and the namespaces of
/// `space` within it. If it is refused, prints why.
fn alone_inside_with(space: Space, user: u32) -> Option<Vec<String>> {
    let mut words = alone_inside(user)?;
    words.extend(space.options().iter().map(|option| (*option).to_string()));
    let works = space.is_made_by(&words);
    if !works {
        eprintln!(
            "skipped: {space:?} within a user namespace: `unshare --user {}` is refused here",
            space.options().join(" ")
        );
    }
    works.then_some(words)
}

/// A server and clients of one user. The server, the clients, or all have user namespaces of their
/// own. Each contains a namespace of every other kind, and the user is root there. Where a machine
/// refuses that, each contains a PID namespace only.
fn row_of_nested_namespaces(pacing: &str) {
    if !may_change_users("namespaces within user namespaces") || alone_inside(ONE).is_none() {
        return;
    }
    let nested = |space| Some((space, alone_inside_with(space, ONE)?));
    let Some((space, nested)) = [Space::Container, Space::Pid].into_iter().find_map(nested) else {
        return;
    };
    let _company = in_company();
    for (server_inside, clients_inside) in [(true, false), (false, true), (true, true)] {
        println!(
            "{space:?} within a user namespace: server {server_inside}, clients {clients_inside}, \
            {pacing}"
        );
        let place = Place::shared(program(), ONE);
        let words = |inside: bool| {
            if inside { [nested.clone(), mounts(&place, space)].concat() } else { as_user(ONE) }
        };
        let server = serve_by(&place, &words(server_inside), pacing);
        let clients = [(); 2].map(|()| place.start_by(&words(clients_inside), "client"));
        lives(server, clients, "bind trial", pacing);
    }
}

#[test]
fn calls_cross_namespaces_within_user_namespaces_polled() {
    row_of_nested_namespaces("poll");
}

#[test]
fn calls_cross_namespaces_within_user_namespaces_parked() {
    row_of_nested_namespaces("sleep");
}

/// The number that the kernel shows for users without one, unless the machine is set up otherwise.
const OVERFLOW: u32 = 65_534;

/// A program can have the overflow number in its user namespace, where that number also stands for
/// all users outside. None of them is taken for the program's own user: no policy does so, and no
/// bound exempts them.
#[test]
fn a_number_that_stands_for_many_users_is_not_a_programs_own() {
    if !may_change_users("a user namespace with the number of `nobody`") {
        return;
    }
    let Some(nobody) = alone_inside_as(OVERFLOW, ONE) else { return };
    let _company = in_company();
    let place = Place::shared(program(), ONE);
    let server = serve_by(&place, &nobody, "mode=666");
    let mut other = client(&place, Space::Same, OTHER);
    other
        .ask("bind-expecting trial 61001")
        .expect_error("Denied", &["has no number in this user namespace"]);
    drop(server);
    let mut home = place.start_by(&nobody, "share thing make mode=666 own-user");
    home.hear().expect_ok("an object");
    let mut guest = place.start_by(&as_user(OTHER), "share thing find 61001");
    guest.hear().expect_error("Refused", &["has no number in this user namespace"]);
    let _server = serve_by(&place, &nobody, "mode=666 admit=any descriptors=48");
    let mut greedy = [(); 10].map(|()| client(&place, Space::Same, OTHER));
    let said: Vec<_> =
        greedy.iter_mut().map(|client| client.ask("bind-expecting trial 61001")).collect();
    // Half of 48 descriptors, three for each.
    assert_eq!(said.iter().filter(|said| matches!(said, Said::Ok(_))).count(), 8, "{said:?}");
}

/// Starts a group with one member in each of these spaces; the first member admits the others.
fn group_of(place: &Place, spaces: &[Space]) -> Vec<Party> {
    let size = spaces.len();
    let start = |rank: usize| {
        place.start_by(
            &wrapper(place, spaces[rank], own_user()),
            &format!("member apart {size} {rank} within=60000"),
        )
    };
    let mut members = vec![start(0)];
    eventually("a member leads", || {
        let found = upcall_tests::place::entered(&place.names(), "group.apart");
        found.map(drop).ok_or_else(|| "no member does".into())
    });
    members.extend((1..size).map(start));
    for (rank, member) in members.iter_mut().enumerate() {
        assert_eq!(member.hear().numbers("joining"), [rank as u64], "{spaces:?}");
    }
    members
}

/// Members in several PID namespaces form a group, send each other messages, and learn of each
/// other's end, even of members with which they have exchanged nothing.
#[test]
fn members_of_a_group_are_in_any_namespaces() {
    let _company = in_company();
    for space in available(&[Space::Pid, Space::Container]) {
        for spaces in [
            [Space::Same, space, space],
            [space, Space::Same, Space::Same],
            [space, space, Space::Same],
            [space; 3],
        ] {
            println!("{spaces:?}");
            let place = Place::shared(program(), own_user());
            let mut members = group_of(&place, &spaces);
            for member in &mut members {
                member.say("life 300");
            }
            for (rank, member) in members.iter_mut().enumerate() {
                let expected: Vec<u64> =
                    (0..3).map(|from| if from == rank { 0 } else { 300 }).collect();
                assert_eq!(member.hear().numbers("messages of all"), expected, "{spaces:?}");
            }
            for ends in [1, 0] {
                let mut members = match ends {
                    1 => std::mem::take(&mut members),
                    // No message was sent in this group.
                    _ => group_of(&place, &spaces),
                };
                let victim = members.remove(ends);
                victim.kill();
                drop(victim);
                for member in &mut members {
                    member.ask(&format!("end-of {ends}")).expect_ok("the end of another member");
                }
                for mut member in members {
                    member.say("leave");
                    member.ended();
                }
            }
        }
    }
}
