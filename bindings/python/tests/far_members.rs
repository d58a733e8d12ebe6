//! Members in Python of one group on several hosts, by themselves and with members in C.
#![forbid(unsafe_code)]

use far::hosts::Host;
use far::{FarMember, Scene};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use support::{Programs, here, left_out};
use upcall_net::identity::{HostPermission, IfRevoked};

#[path = "../../c/tests/far/mod.rs"]
mod far;
mod support;

fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(Programs::new)
}

fn python() -> Command {
    programs().command("far_member.py")
}

/// The member in C, without the sanitizers that it has in its own tests.
fn c() -> Command {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let program = BUILT.get_or_init(|| {
        let source = here("../c/tests/far/member.c");
        support::compile(&programs().path().join("c"), &source)
    });
    Command::new(program)
}

/// The language of a member.
#[derive(Clone, Copy)]
enum Language {
    C,
    Python,
}

use Language::{C, Python};

impl Language {
    fn program(self) -> Command {
        match self {
            C => c(),
            Python => python(),
        }
    }
}

/// Starts a group whose members are in these languages and on these hosts, by rank.
fn group(scene: &Scene, of: &[(Language, usize)]) -> Vec<FarMember> {
    group_with(scene, of, "")
}

/// The same with options.
fn group_with(scene: &Scene, of: &[(Language, usize)], options: &str) -> Vec<FarMember> {
    let start = |(rank, (language, on)): (usize, &(Language, usize))| {
        scene.start(*on, language.program(), &format!("group {} {rank}{options}", of.len()))
    };
    let mut members: Vec<FarMember> = of.iter().enumerate().map(start).collect();
    for (rank, member) in members.iter_mut().enumerate() {
        assert_eq!(member.hear_ok(), rank.to_string());
    }
    members
}

#[test]
fn members_in_c_and_python_on_two_hosts_exchange_messages() {
    if left_out() {
        return;
    }
    let scene = Scene::new(2);
    let mut members = group(&scene, &[(Python, 0), (C, 1), (Python, 1)]);
    for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
        members[from].ask(&format!("send {to} 2000"));
        assert_eq!(members[to].ask(&format!("take {from} 2000")), "2000");
    }
    members.iter_mut().for_each(|member| member.say("barrier"));
    members.iter_mut().for_each(|member| drop(member.hear_ok()));
    members.iter_mut().for_each(|member| member.say("reduce 5"));
    members.iter_mut().for_each(|member| assert_eq!(member.hear_ok(), "15"));
    // Only members on this host have processes here.
    assert_eq!(members[0].ask("process 1"), "0");
    let process = members[1].pid().to_string();
    assert_eq!(members[2].ask("process 1"), process);
    members.into_iter().for_each(FarMember::leaves);
    scene.is_clean();
}

#[test]
fn a_killed_member_is_noticed_on_the_other_host_and_leaves_nothing() {
    if left_out() {
        return;
    }
    for victim in [C, Python] {
        let scene = Scene::new(2);
        let mut members = group(&scene, &[(Python, 0), (Python, 1), (victim, 1)]);
        members[2].ask("send 0 10");
        members[0].ask("take 2 10");
        members[2].dies();
        members.truncate(2);
        members.iter_mut().for_each(|member| drop(member.ask("end-of 2")));
        members.iter_mut().for_each(|member| member.say("barrier"));
        members.iter_mut().for_each(|member| member.hear_error("MemberEnded", &["member 2"]));
        members[0].say("send 2 1");
        members[0].hear_error("ReceiverEnded", &["member 2"]);
        members.into_iter().for_each(FarMember::leaves);
        scene.is_clean();
    }
}

/// Members 1 and 2 lose each other, and member 0 keeps both.
#[test]
fn a_member_learns_that_two_others_have_lost_each_other() {
    if left_out() {
        return;
    }
    let scene = Scene::new(3);
    let mut members = group(&scene, &[(Python, 0), (C, 1), (Python, 2)]);
    members[2].ask("expel 1 1");
    members[0].ask("parted 1 2");
    for line in ["barrier", "reduce 5"] {
        members[0].say(line);
        members[0].hear_error("Parted", &["members 1 and 2 have lost each other"]);
    }
    members[1].ask("end-of 2");
    members[2].ask("end-of 1");
    members[2].say("barrier");
    members[2].hear_error("MemberEnded", &["member 1"]);
    for (from, to) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
        members[from].ask(&format!("send {to} 3000"));
        assert_eq!(members[to].ask(&format!("take {from} 3000")), "3000");
    }
    members.into_iter().for_each(FarMember::leaves);
    scene.is_clean();
}

#[test]
fn a_stranger_is_refused_and_the_text_names_what_to_do() {
    if left_out() {
        return;
    }
    let scene = Scene::new(2);
    if !scene.hosts.are_apart() {
        return println!("skipped: strangers, which need network namespaces");
    }
    let mut first = scene.start(0, python(), "group 2 0");
    let stranger = scene.hosts.stranger(1);
    let join = |host: &Host, class: &str, parts: &[&str]| {
        let line = format!("group 2 1 across={}", scene.address);
        let mut other = scene.start_plain((1, host), python(), &line);
        other.hear_error(class, parts);
        other.ends();
    };
    // A host that does not know the first one sends nothing.
    join(&stranger, "HostNotProved", &["`upcall host --help`", "trust"]);
    // A host that knows the first one is not known there.
    let (name, may) = (scene.hosts.host(0).name(), HostPermission::Both);
    let identity = scene.hosts.host(0).store.own().unwrap().identity;
    stranger.store.trust(&name, &identity, may, IfRevoked::Refuse).unwrap();
    let own = stranger.store.own().unwrap().identity.fingerprint().to_string();
    join(&stranger, "NotTakenIn", &[&own, "upcall host trust"]);
    let mut second = scene.start(1, c(), "group 2 1");
    assert_eq!((first.hear_ok(), second.hear_ok()), ("0".into(), "1".into()));
    first.leaves();
    second.leaves();
    scene.is_clean();
}

/// Leaving waits until the other host has all messages, without the interpreter's lock.
#[test]
fn other_threads_run_while_a_member_leaves() {
    if left_out() {
        return;
    }
    let scene = Scene::new(2);
    // The member that leaves waits for longer than this test does.
    let mut members = group_with(&scene, &[(Python, 0), (C, 1)], " cut=600000");
    members[1].signal("STOP");
    members[0].ask("send 1 10");
    members[0].say("leave-beside");
    for _ in 0..50 {
        assert_eq!(members[0].ask("are you there"), "beside");
    }
    members[1].signal("CONT");
    members[0].say("stop");
    members[0].hear_ok();
    assert_eq!(members[1].ask("take 0 10"), "10");
    assert_eq!(members[1].ask("end-of 0"), "10");
    members.into_iter().for_each(FarMember::leaves);
    scene.is_clean();
}

/// Starts a member that joins late, together with those of `ranks`, FIRST:COUNT.
fn late(
    scene: &Scene,
    (language, on): (Language, usize),
    (rank, ranks): (usize, &str),
    invitation: &str,
) -> FarMember {
    let line = format!("group 3 {rank} late={ranks}");
    let mut member = scene.start(on, language.program(), &line);
    member.say(invitation);
    member
}

/// The member that takes in others is in Python, and then in C.
#[test]
fn late_members_in_c_and_python_join_from_another_host_and_reach_all() {
    if left_out() {
        return;
    }
    for (leader, victim) in [(Python, C), (C, Python)] {
        let scene = Scene::new(2);
        let mut first = scene.start(0, leader.program(), "group 1 0 room=2");
        assert_eq!(first.hear_ok(), "0");
        assert_eq!(first.ask("has-joined 1"), "0");
        let invitation = first.ask("expect 1 2");
        let mut members = vec![first];
        let of = [(Python, 1), (victim, 2)];
        members.extend(of.map(|(of, rank)| late(&scene, (of, 1), (rank, "1:2"), &invitation)));
        for rank in [1, 2] {
            assert_eq!(members[rank].hear_ok(), rank.to_string());
            assert_eq!(members[0].ask(&format!("joined {rank}")), "1");
        }
        for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
            members[from].ask(&format!("send {to} 1000"));
            assert_eq!(members[to].ask(&format!("take {from} 1000")), "1000");
        }
        members.pop().unwrap().dies();
        members.iter_mut().for_each(|member| assert_eq!(member.ask("end-of 2"), "1000"));
        members[0].ask("expel 1 1");
        assert_eq!(members[0].ask("end-of 1"), "1000");
        members.into_iter().for_each(FarMember::leaves);
        scene.is_clean();
    }
}

#[test]
fn no_member_joins_late_that_is_not_invited() {
    if left_out() {
        return;
    }
    let scene = Scene::new(2);
    let start = |rank| scene.start(rank, python(), &format!("group 2 {rank} room=1"));
    let mut members: Vec<FarMember> = (0..2).map(start).collect();
    for (rank, member) in members.iter_mut().enumerate() {
        assert_eq!(member.hear_ok(), rank.to_string());
    }
    let refused = |invitation: &str, class, parts: &[&str]| {
        let mut other = late(&scene, (Python, 1), (2, "2:1"), invitation);
        other.hear_error(class, parts);
        other.ends();
    };
    refused("no invitation", "ValueError", &["64 hexadecimal digits"]);
    let wrong = "07".repeat(32);
    refused(&wrong, "NotTakenIn", &["no member is expected to join with rank 2"]);
    for (member, line, class, parts) in [
        (0, "send 2 1", "NoQueue", "not joined"),
        (0, "barrier", "Growing", "may join this group later"),
        (1, "expect 2 1", "NotLeader", "expect others in the member that does"),
        (0, "expect 1 2", "RankTaken", "rank 1 is another member's"),
        (0, "expect 3 1", "RankTaken", "rank 3 is another member's"),
        (0, "expect 2 0", "ValueError", "range(2, 2) are not consecutive ranks"),
        (0, "has-joined 3", "NoSuchRank", "rank 3"),
    ] {
        members[member].say(line);
        members[member].hear_error(class, &[parts]);
    }
    let invitation = members[0].ask("expect 2 1");
    refused(&wrong, "NotTakenIn", &["does not show the invitation to join with rank 2"]);
    members[0].ask("expect-no-more 2 1");
    refused(&invitation, "NotTakenIn", &["no member is expected to join with rank 2"]);
    let invitation = members[0].ask("expect 2 1");
    let mut last = late(&scene, (Python, 1), (2, "2:1"), &invitation);
    assert_eq!(last.hear_ok(), "2");
    members.iter_mut().for_each(|member| assert_eq!(member.ask("joined 2"), "1"));
    last.leaves();
    members.iter_mut().for_each(|member| drop(member.ask("end-of 2")));
    members.into_iter().for_each(FarMember::leaves);
    scene.is_clean();
}

#[test]
fn members_join_late_only_where_there_is_room_and_an_address() {
    if left_out() {
        return;
    }
    let scene = Scene::new(2);
    let here = (0, scene.hosts.host(0));
    let mut plain = scene.start_plain(here, python(), "plain 1 0");
    assert_eq!(plain.hear_ok(), "0");
    plain.say("expect 1 1");
    plain.hear_error("NoRoom", &["form it across hosts, with room for more"]);
    plain.leaves();
    for (options, parts) in
        [("room=1", "give an address, HOST:PORT"), ("room=-1", "room: -1 is no")]
    {
        let line = format!("plain 1 0 {options}");
        let mut without = scene.start_plain(here, python(), &line);
        let class = if options == "room=1" { "BadGroup" } else { "ValueError" };
        without.hear_error(class, &[parts]);
        without.ends();
    }
    let mut other = late(&scene, (Python, 0), (0, "1:2"), &"07".repeat(32));
    other.hear_error("BadGroup", &["asks for rank 0", "1..3"]);
    other.ends();
    scene.is_clean();
}

/// Processes in C and Python ask members in Python and C.
#[test]
fn a_process_asks_for_an_invitation_which_is_valid_on_its_host() {
    if left_out() {
        return;
    }
    for (leader, asks, refused) in [(Python, C, "81"), (C, Python, "NotTakenIn")] {
        let scene = Scene::new(2);
        let mut first = scene.start(0, leader.program(), "group 2 0 room=1");
        let mut second = scene.start(1, python(), "group 2 1 room=1");
        assert_eq!((first.hear_ok(), second.hear_ok()), ("0".into(), "1".into()));
        let mut stranger = scene.start(1, asks.program(), "ask early");
        first.ask("refuse");
        stranger.hear_error(refused, &["not today"]);
        stranger.ends();
        let mut stranger = scene.start(1, asks.program(), "ask please");
        let host = match scene.hosts.are_apart() {
            true => scene.hosts.host(1).store.own().unwrap().identity.fingerprint().hex(),
            false => "here".into(),
        };
        assert_eq!(first.ask("invite 2 1"), format!("please {host}"));
        let invitation = stranger.hear_ok();
        stranger.ends();
        if scene.hosts.are_apart() {
            let mut other = late(&scene, (Python, 0), (2, "2:1"), &invitation);
            other.hear_error("NotTakenIn", &["is on another host"]);
            other.ends();
        }
        let mut last = late(&scene, (asks, 1), (2, "2:1"), &invitation);
        assert_eq!(last.hear_ok(), "2");
        [first, second, last].into_iter().for_each(FarMember::leaves);
        scene.is_clean();
    }
}

/// Ctrl-C ends the wait for an answer that does not arrive.
#[test]
fn an_interrupt_ends_a_petition() {
    if left_out() {
        return;
    }
    let scene = Scene::new(2);
    let mut first = scene.start(0, c(), "group 1 0 room=1");
    assert_eq!(first.hear_ok(), "0");
    let mut stranger = scene.start(1, python(), "ask please");
    // The request has arrived, and is not answered.
    first.ask("hold");
    stranger.signal("INT");
    stranger.hear_error("KeyboardInterrupt", &[]);
    stranger.ends();
    first.leaves();
    scene.is_clean();
}
