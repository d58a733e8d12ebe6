//! While a group forms: leaders that lie, stop or die, and applicants that vanish or ask for too
//! much.

use super::{
    Listed, Request, VERSION, Welcome, answer, answer_of, connect, hello, leader, next_at, own_pid,
    own_socket, pack, place, process, with_few_descriptors,
};
use crate::in_company;
use std::os::fd::AsFd;
use std::time::Duration;
use upcall_os::doorbell::Doorbell;
use upcall_os::socket::{Connection, Listener};
use upcall_shm::mailbag::Mailbag;
use upcall_tests::place::{Place, enter, eventually, listen};
use upcall_tests::usage::Usage;

/// Takes the name of the group by hand.
fn lead(place: &Place) -> Listener {
    std::fs::create_dir_all(place.names()).unwrap();
    let socket = own_socket("lead");
    let door = listen(&place.names().join(&socket));
    enter(&place.names(), "group.g", &socket);
    door
}

#[test]
fn a_leader_tells_of_a_group_that_cannot_be() {
    let _company = in_company();
    let place = place();
    let door = lead(&place);
    type Change = fn(&mut u32, &mut Vec<Listed>);
    let cases: [(&str, Change); 13] = [
        ("one member less", |_, members| drop(members.remove(0))),
        ("one more", |_, members| members.push(members[0].clone())),
        ("none", |_, members| members.clear()),
        ("many", |_, members| members.resize(2000, members[1].clone())),
        ("no such rank", |rank, _| *rank = u32::MAX),
        ("another one's rank", |rank, _| *rank = 0),
        ("not the rank that it asked for", |rank, members| (*rank, _) = (0, members.swap(0, 1))),
        ("another process", |_, members| members[1].process = process(own_pid())),
        ("another socket", |_, members| members[1].socket += "1"),
        ("a path", |_, members| members[0].socket = format!("../names/{}", own_socket("lead"))),
        ("a path behind", |_, members| members[0].socket += "/../../x"),
        ("no socket", |_, members| members[0].socket.clear()),
        ("that of a third process", |_, members| members[0].socket = "member.1.1".into()),
    ];
    for (what, change) in cases {
        let mut honest = place.start("g 2 1 within=5000");
        let (connection, asked) = next_at(&door);
        let Request::Hello { socket, .. } = answer_of(&asked) else { panic!("no hello") };
        let own = Listed { process: process(own_pid()), socket: own_socket("lead"), place: None };
        let (mut rank, mut members) =
            (1, vec![own, Listed { process: process(honest.pid()), socket, place: None }]);
        change(&mut rank, &mut members);
        connection.send(&pack(&Welcome::Formed { group: [7; 16], rank, members }), &[]).unwrap();
        println!("    {what}:");
        honest.hear().expect_error("Refused", &["cannot be true"]);
        honest.ended();
    }
    let mut honest = place.start("g 2 1 within=5000");
    next_at(&door).0.send(&[9; 50], &[]).unwrap();
    honest.hear().expect_error("Refused", &["cannot be read"]);
}

#[test]
fn a_leader_that_stops_or_dies() {
    let _company = in_company();
    let place = place();
    let door = lead(&place);
    let mut honest = place.start("g 2 1 within=300");
    let silent = next_at(&door);
    honest.hear().expect_error("Incomplete", &["not all of 2"]);
    drop(silent);
    let mut others = [0, 1].map(|rank| place.start(&format!("g 2 {rank}")));
    let taken = [next_at(&door), next_at(&door)];
    // The group's name leads nowhere from here on.
    drop(door);
    drop(taken);
    for (rank, other) in others.iter_mut().enumerate() {
        assert_eq!(other.hear().numbers("joining without it"), [rank as u64]);
    }
    others[0].say("exchange 1 100");
    others[1].ask("exchange 0 100").expect_ok("numbers");
}

#[test]
#[expect(clippy::too_many_lines, reason = "steps of one story, each of which needs those before")]
fn applicants_that_vanish_and_ask_for_too_much() {
    let _company = in_company();
    let place = place();
    let mut first = place.start("g 3 0");
    with_few_descriptors(&first);
    let door = leader(&place);
    let own = own_socket("x");
    let ask = |request: &Request| {
        let connection = connect(&door);
        connection.send(&pack(request), &[]).unwrap();
        connection
    };
    let why = |connection: &Connection| match answer_of(&answer(connection).expect("an answer")) {
        Welcome::Refused(why) => why,
        formed => panic!("{formed:?}"),
    };
    for _ in 0..100 {
        drop(ask(&hello(3, Some(1), &own)));
    }
    let mut other_kinds = hello(3, None, &own);
    if let Request::Hello { kinds, .. } = &mut other_kinds {
        kinds.swap(0, 1);
    }
    let mut other_version = hello(3, None, &own);
    if let Request::Hello { version, .. } = &mut other_version {
        *version = 0;
    }
    for (request, expected) in [
        (hello(2, None, &own), "3 members"),
        (hello(u32::MAX, None, &own), "3 members"),
        (hello(3, Some(3), &own), "no rank 3"),
        (hello(3, Some(u32::MAX), &own), "no rank"),
        (hello(3, Some(0), &own), "rank 0 is taken by process"),
        (hello(3, None, "member.1.x"), "no socket"),
        (hello(3, None, "../member"), "no socket"),
        (hello(3, None, &format!("{own}/../x")), "no socket"),
        (other_kinds, "kind 0"),
        (other_version, "version 0"),
    ] {
        let found = why(&ask(&request));
        assert!(found.contains(expected), "{found}, not {expected}");
    }
    let one = ask(&hello(3, Some(1), &own));
    eventually("one of two gets the rank", || {
        let found = why(&ask(&hello(3, Some(1), &own)));
        if found.contains("rank 1 is taken") { Ok(()) } else { Err(found) }
    });
    // A second `Hello` on the connection of an applicant ends the connection.
    one.send(&pack(&hello(3, Some(2), &own)), &[]).unwrap();
    assert!(why(&one).contains("before"));
    // As many queues as possible, for a group that has not formed yet.
    let (bag, doorbell) = (Mailbag::create().unwrap(), Doorbell::new().unwrap());
    let open = pack(&Request::Open { version: VERSION, group: [1; 16], from: 1, to: 0 });
    let mut kept = Vec::new();
    for round in 0..400 {
        let connection = connect(&door);
        let mut fds = vec![bag.as_fd(), doorbell.as_fd()];
        if round % 2 == 0 {
            fds.resize(8, doorbell.as_fd());
        }
        for _ in 0..5 {
            let _ = connection.send(&open, &fds);
        }
        kept.push(connection);
    }
    std::thread::sleep(Duration::from_millis(100));
    let usage = Usage::of(first.pid());
    assert!(usage.descriptors < 600, "{usage:?}");
    let mut others = [1, 2].map(|rank| place.start(&format!("g 3 {rank}")));
    assert_eq!(first.hear().numbers("forming"), [0]);
    for (at, other) in others.iter_mut().enumerate() {
        assert_eq!(other.hear().numbers("forming"), [at as u64 + 1]);
        first.say(&format!("exchange {} 500", at + 1));
        other.ask("exchange 0 500").expect_ok("numbers");
        first.hear().expect_ok("numbers");
    }
    eventually("the early queues are gone", || {
        let usage = Usage::of(first.pid());
        if usage.descriptors < 300 { Ok(()) } else { Err(format!("{usage:?}")) }
    });
}
