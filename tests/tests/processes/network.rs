//! Calls to another machine (LRPC, section 5.1), over this machine's loopback. What holds for
//! shared memory holds here, too.

use crate::server_ends::{between, end_of, in_time};
use crate::{alone, in_company, in_idle_company, place};
use std::time::{Duration, Instant};
use upcall::BindError;
use upcall::directory::{Exported, exported, list_far};
use upcall_tests::dice::Dice;
use upcall_tests::hosts::Hosts;
use upcall_tests::party::{Party, Said};
use upcall_tests::place::{Place, eventually};
use upcall_tests::usage::{Usage, connections};

/// A server that listens, and the name that a client on another machine gives it.
struct Scene {
    place: Place,
    server: Party,
    name: String,
    /// The hosts, if the server is on one and its clients on the other.
    hosts: Option<Hosts>,
}

impl Scene {
    fn new(options: &str) -> Self {
        let place = place();
        let (server, address) = place.serve_far(&format!("trial tcp {options}"));
        Self { place, server, name: format!("tcp://{address}/trial"), hosts: None }
    }

    /// A server on one host, for clients on another.
    fn apart(options: &str) -> Self {
        let (place, hosts) = (place(), Hosts::new(2));
        let serve = format!("serve trial tcp-hosts {options}");
        let mut server = place.start_by(&hosts.host(1).wrapper(), &serve);
        let address = server.hear().expect_ok("a server's start").swap_remove(0);
        Self { place, server, name: format!("tcp://{address}/trial"), hosts: Some(hosts) }
    }

    /// Starts a client that is not bound yet.
    fn start_client(&self) -> Party {
        match &self.hosts {
            Some(hosts) => self.place.start_by(&hosts.host(0).wrapper(), "client"),
            None => self.place.client(),
        }
    }

    /// Starts a client that is bound to the server over the network.
    fn client(&self) -> Party {
        let mut client = self.start_client();
        client.ask(&format!("bind {}", self.name)).expect_ok("binding");
        client
    }

    /// Waits until this number of objects were made, and all of them dropped, once each.
    fn expect_things(&self, made: u64) {
        let mut asks = self.client();
        eventually("every object is dropped once", || {
            let things = asks.ask("things").numbers("things");
            if things == [made, made] { Ok(()) } else { Err(format!("{things:?}, made {made}")) }
        });
    }
}

/// What a client asks, in order.
const SCRIPT: [&str; 36] = [
    "null",
    "add 4000000000 4000000000",
    "echo 0",
    "echo 31",
    "echo 3000",
    "echo 1000000",
    "sum 0",
    "sum 1",
    "sum 40",
    "sum 5000",
    "sum 3000000",
    "total 100",
    "total 100000",
    "make 0",
    "make 41",
    "make 70000",
    "make 9000000",
    "open 40",
    "numbers",
    "things",
    "open-brittle",
    "drop-things",
    "things",
    "limited 1000 100",
    "limited 1001 0",
    "limited 0 101",
    "fail because",
    "work 1",
    "work-by 200 20",
    "deadline 1000",
    "null",
    "echo 48",
    "work 3000",
    "deadline 0",
    "add 2 3",
    "honest 200",
];

/// The same script gives the same answers over shared memory, within the machine, and between
/// hosts.
#[test]
fn both_ways_give_the_same_answers() {
    let _company = in_company();
    for options in ["", "two", "sleep"] {
        let scenes = [
            (Scene::new(options), false),
            (Scene::new(options), true),
            (Scene::apart(options), true),
        ];
        let [near, within, between] = scenes.map(|(scene, far)| {
            let name = if far { &*scene.name } else { "trial" };
            let mut client = scene.start_client();
            client.ask(&format!("bind {name}")).expect_ok("binding");
            let said = SCRIPT.map(|line| match client.ask(line) {
                // The number of calls and their duration may differ.
                Said::Ok(_) if line.starts_with("honest") => Said::Ok(Vec::new()),
                said => said,
            });
            for user_level in ["", "user-level"] {
                client.ask(&format!("scenario {name} {user_level}")).expect_ok("a client's life");
            }
            client.ask("unbind").expect_ok("unbinding");
            // 40 objects and a brittle one, two for each life, and those that the honest client
            // opened.
            eventually("all objects are gone", || {
                let mut asks = scene.start_client();
                asks.ask(&format!("bind {name}")).expect_ok("binding");
                let things = asks.ask("things").numbers("things");
                if things[0] == things[1] && things[0] >= 45 {
                    Ok(())
                } else {
                    Err(format!("{things:?}"))
                }
            });
            said
        });
        for (number, line) in SCRIPT.iter().enumerate() {
            assert_eq!(near[number], within[number], "{options:?}: {line}");
            assert_eq!(near[number], between[number], "{options:?}, between hosts: {line}");
        }
    }
}

#[test]
fn what_is_bound_is_checked_as_on_one_machine() {
    let _company = in_company();
    let scene = Scene::new("");
    let mut client = scene.client();
    let name = &scene.name;
    client
        .ask(&format!("bind {name} as other"))
        .expect_error("WrongInterface", &["upcall:other/other@1.0.0", "bind another name"]);
    client
        .ask(&format!("bind {name} as changed"))
        .expect_error("Mismatch", &["add: this program has", "u64", "u32", "rebuild"]);
    client.ask(&format!("bind {name} as older")).expect_ok("added procedures break no client");
    client.ask(&format!("bind {name}.small as small")).expect_ok("another name of the same server");
    client
        .ask(&format!("bind {name}.none"))
        .expect_error("NotThere", &["trial.none", "exports no"]);
    client.ask(&format!("bind {name}/x")).expect_error("BadName", &["ASCII letters"]);
    client.ask("bind tcp://localhost/trial").expect_error("BadName", &["tcp://HOST:PORT/NAME"]);
    assert_eq!(client.ask("add 2 3").numbers("the first binding still stands"), [5]);
    // More bindings than a channel has, through one connection.
    client.ask(&format!("bind-until {name}.small 300")).expect_ok("bindings");
    client.ask("add-small").expect_ok("each is good");
}

/// A client that may bind may also list the exports, and learn an interface from its server.
#[test]
fn what_a_server_exports_is_told_to_who_may_bind_it() {
    let _company = in_idle_company();
    let mut scene = Scene::new("");
    let server = scene.name.trim_end_matches("/trial").to_string();
    let listed = list_far(&server).expect("a list");
    let names: Vec<_> = listed.iter().map(|export| export.name.as_str()).collect();
    assert_eq!(names, ["trial", "trial.small"]);
    // The same as on one machine, word for word.
    let (_, near) = upcall::directory::list(&scene.place.sockets()[0]).expect("a list");
    let told = |list: &[Exported]| format!("{list:?}");
    assert_eq!(told(&listed), told(&near));
    assert_eq!(told(&[exported(&scene.name).expect("an export")]), told(&listed[..1]));
    let _client = scene.client();
    assert_eq!(exported(&scene.name).expect("an export").clients, 1);
    assert!(matches!(
        exported(&format!("{server}/none")),
        Err(BindError::NotThere { name, .. }) if name == "none"
    ));
    assert!(matches!(list_far(&scene.name), Err(BindError::BadName { .. })));
    assert!(matches!(list_far("trial"), Err(BindError::BadName { .. })));
    scene.server.stop();
    assert!(matches!(list_far(&server), Err(BindError::NoAnswer { .. })));
    scene.server.signal(rustix::process::Signal::CONT);
    assert!(scene.server.ended().success());
    let error = list_far(&server).expect_err("no server is there");
    assert!(
        matches!(error, BindError::Unreachable { .. })
            && error.to_string().contains("is it started"),
        "{error}"
    );
}

#[test]
fn who_is_not_let_in_is_told_so() {
    let _company = in_company();
    // The policy is also asked for clients of this machine, whose user the kernel knows.
    let scene = Scene::new("refuse");
    let mut client = scene.place.client();
    client
        .ask(&format!("bind {}", scene.name))
        .expect_error("Denied", &["process 0 is not on the list"]);
    let error =
        list_far(scene.name.trim_end_matches("/trial")).expect_err("it may not know either");
    assert!(
        matches!(error, BindError::Denied { .. })
            && error.to_string().contains("is not on the list"),
        "{error}"
    );
    // Nothing listens beyond this machine without an identity.
    place()
        .start("serve other-trial tcp-everywhere")
        .hear()
        .expect_error("Unprotected", &["0.0.0.0:0", "prove", "upcall host init"]);
}

/// The kernel knows whose server it is within this machine, and another host has proved its name.
#[test]
fn a_client_says_which_servers_it_accepts() {
    let _company = in_company();
    let (own, other) = (rustix::process::geteuid().as_raw(), 61_003);
    let (within, between) = (Scene::new(""), Scene::apart(""));
    let mut client = within.start_client();
    client.ask(&format!("bind-expecting {} {own}", within.name)).expect_ok("its own user's");
    client
        .ask(&format!("bind-expecting {} {other}", within.name))
        .expect_error("WrongUser", &[&format!("the peer is user {own}"), "61003"]);
    let mut client = between.start_client();
    client
        .ask(&format!("bind-expecting {} {own}", between.name))
        .expect_error("WrongUser", &["the peer is on the host", "processes of this one"]);
    client.ask(&format!("bind {}", between.name)).expect_ok("that of a trusted host");
}

#[test]
fn nobody_listens_who_did_not_say_so() {
    let _company = in_company();
    let place = place();
    let server = place.serve("trial spares=0");
    let listens = |pid: u32| {
        let sockets = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let own: Vec<String> = sockets
            .filter_map(|fd| {
                Some(std::fs::read_link(fd.path()).ok()?.to_string_lossy().into_owned())
            })
            .collect();
        ["tcp", "tcp6"].iter().any(|table| {
            let table =
                std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
            table.lines().any(|line| {
                let inode = line.split_whitespace().nth(9).unwrap_or_default();
                own.contains(&format!("socket:[{inode}]"))
            })
        })
    };
    assert!(!listens(server.pid()));
    let scene = Scene::new("");
    assert!(listens(scene.server.pid()), "the check itself works");
}

#[test]
fn objects_of_a_client_that_ends_are_dropped_once() {
    let _company = in_company();
    let scene = Scene::new("");
    let mut dice = Dice::thrown("when clients are killed");
    let mut made = 0;
    for round in 0..12 {
        let mut client = scene.client();
        client.ask("open 20").expect_ok("opening");
        made += 20;
        match round % 3 {
            0 => drop(client.kill()),
            1 => client.ask("unbind").expect_ok("unbinding").clear(),
            // In the middle of calls that open more objects.
            _ => {
                client.ask("storm 4 4").expect_ok("a storm");
                std::thread::sleep(Duration::from_micros(dice.below(20_000)));
                client.kill();
            }
        }
        client.ended();
    }
    let mut asks = scene.client();
    eventually("every object is dropped once", || {
        let things = asks.ask("things").numbers("things");
        if things[0] == things[1] && things[0] >= made {
            Ok(())
        } else {
            Err(format!("{things:?}, made {made}"))
        }
    });
    eventually("no connection is left but ours", || match connections(scene.server.pid()) {
        1 => Ok(()),
        more => Err(format!("{more} connections, {:?}", Usage::of(scene.server.pid()))),
    });
}

#[test]
fn every_caller_returns_when_its_server_is_killed() {
    let _alone = alone();
    let mut dice = Dice::thrown("when the server is killed");
    let mut times = Vec::new();
    for round in 0..6 {
        let scene = Scene::new(["", "sleep", "two"][round % 3]);
        let mut client = scene.client();
        let (kernel, users) = [(6, 8), (0, 70), (40, 0)][round % 3];
        client.ask(&format!("storm {kernel} {users}")).expect_ok("a storm");
        std::thread::sleep(Duration::from_micros(dice.below(30_000)));
        let end = end_of(scene.server.pid());
        let at = scene.server.kill();
        let words = client.hear().expect_ok("the storm's end");
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        assert_eq!((number(0), &words[2..]), (kernel + users, &["Failed.Lost".to_string()][..]));
        times.push((between(at, number(1)), between(at, end.join().expect("a thread that waits"))));
        let address = scene.name.trim_start_matches("tcp://").trim_end_matches("/trial");
        client
            .ask("null")
            .expect_error("Failed.Lost", &[address, "its process may be gone", "bind again"]);
        client
            .ask(&format!("bind {}", scene.name))
            .expect_error("Unreachable", &[address, "is it started"]);
    }
    in_time(&times);
}

#[test]
fn a_server_that_stops_ends_what_it_has_begun() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let mut client = scene.client();
    client.ask("open 3").expect_ok("opening");
    let mut other = scene.client();
    let start = Instant::now();
    client.say("work 300");
    eventually("the call has begun", || match other.ask("marks").numbers("marks")[0] {
        0 => Err("no".into()),
        _ => Ok(()),
    });
    assert!(scene.server.ended().success());
    assert!(start.elapsed() >= Duration::from_millis(300), "it waits for the call");
    client.hear().expect_error("Failed.Lost", &["without a reason"]);
    client.ask("drop-things").expect_ok("handles of a server that is gone");
}

#[test]
fn calls_to_a_stopped_server_end_at_their_deadline_and_by_words() {
    let _company = in_idle_company();
    let scene = Scene::new("");
    let mut client = scene.client();
    scene.server.stop();
    client.ask("deadline 50").expect_ok("a deadline");
    client.ask("null").expect_error("Aborted.sent", &["deadline"]);
    client.ask("echo 5000").expect_error("Aborted.sent", &["deadline"]);
    // A program that binds gives up by itself.
    scene
        .place
        .client()
        .ask(&format!("bind {}", scene.name))
        .expect_error("NoAnswer", &["stopped or overloaded"]);
    scene.server.signal(rustix::process::Signal::CONT);
    client.ask("deadline 0").expect_ok("no deadline");
    assert_eq!(client.ask("add 2 3").numbers("a call"), [5]);
    for words in ["", "words"] {
        client.ask(&format!("deadlines 4 12 3 {words}")).expect_ok("callers that give up");
        client.hear_within(Duration::from_secs(30)).expect_ok("and the same without");
    }
    client.ask("unbind").expect_ok("unbinding");
    let mut asks = scene.client();
    eventually("what came too late is let go of", || {
        let things = asks.ask("things").numbers("things");
        if things[0] == things[1] { Ok(()) } else { Err(format!("{things:?}")) }
    });
}

#[test]
fn a_binding_is_taken_back() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let mut client = scene.client();
    client.ask(&format!("bind {}.small as small", scene.name)).expect_ok("binding");
    client.ask("open 5").expect_ok("opening");
    assert_eq!(scene.server.ask("revoke 0 trial").numbers("revoking"), [1]);
    client.ask("null").expect_error("Revoked", &["bind again"]);
    client.ask("numbers").expect_error("Revoked", &[]);
    client.ask("add-small").expect_ok("the other binding");
    scene.expect_things(5);
    client.ask(&format!("bind {}", scene.name)).expect_ok("again");
    client.ask("null").expect_ok("a call");
}

#[test]
fn a_thousand_threads_call_at_once() {
    let _company = in_company();
    for options in ["", "two"] {
        let scene = Scene::new(options);
        let mut client = scene.client();
        // More calls than may be under way on a connection: they wait in turn.
        let calls = client.ask(&format!("everywhere {} 500 1000", scene.name)).numbers("calls");
        assert!(calls[0] >= 1000, "{calls:?}");
        println!("{} calls of 1000 user-level threads, the longest {} us", calls[0], calls[2]);
        client
            .ask(&format!("everywhere trial,{} 300 50", scene.name))
            .expect_ok("both ways in one program");
        assert_eq!(client.ask("add 2 3").numbers("afterwards"), [5]);
    }
}

#[test]
fn values_may_be_large_but_not_without_end() {
    let _company = in_company();
    // Quotas as on a large machine.
    let scene = Scene::new("all-results=2000000000 results=1000000000");
    let mut client = scene.client();
    for line in ["sum 100000000", "make 100000000", "echo 30000000"] {
        client.ask(line).expect_ok(line);
    }
    client.ask("sum 300000000").expect_error("NoMemory", &["a message over the network"]);
    client.ask("make 300000000").expect_error("Refused", &["longer than messages"]);
    assert_eq!(client.ask("add 2 3").numbers("afterwards"), [5]);
}

#[test]
fn calls_go_on_from_machine_to_machine() {
    let _company = in_company();
    let place = place();
    let stations: Vec<(Party, String)> = ["a", "b", "c"]
        .iter()
        .map(|name| {
            let (station, address) = place.serve_far(&format!("{name} tcp relay"));
            (station, format!("tcp://{address}/{name}"))
        })
        .collect();
    let mut client = place.client();
    let round: Vec<u64> = stations.iter().map(|(station, _)| station.pid().into()).collect();
    let far: Vec<&str> = stations.iter().map(|(_, name)| &**name).collect();
    // All stations far, and every second one near.
    for names in [far.clone(), vec![far[0], "b", far[2]], vec!["a", far[1], "c"]] {
        let names = vec![names.join(","); 10].join(",");
        let expected: Vec<u64> = std::iter::repeat_n(&round, 10).flatten().rev().copied().collect();
        assert_eq!(client.ask(&format!("go {names} 1")).numbers("a way"), expected);
    }
    // The deadline travels along.
    let start = Instant::now();
    client.ask(&format!("go {} 30000 2000", far.join(","))).expect_error("", &["borted"]);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    let marks = client.ask(&format!("marks-of {}", far[2])).numbers("marks");
    assert!(
        (1..=2000).contains(&marks[2]),
        "the last one knows how long the first one waits: {marks:?}"
    );
    // A station on the way dies.
    client.say(&format!("go {} 3000", far.join(",")));
    std::thread::sleep(Duration::from_millis(300));
    stations[2].0.kill();
    client.hear().expect_error("", &["Failed.Lost"]);
}
