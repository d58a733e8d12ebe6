//! Members in C of one group on several hosts, also those that join late. Members in Python join
//! them in `bindings/python/tests/far_members.rs`.
#![forbid(unsafe_code)]

use far::hosts::Host;
use far::{FarMember, Scene};
use gcc::{here, left_out};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use upcall_net::identity::{HostPermission, IfRevoked};

mod far;
mod gcc;

/// The statuses of `upcall.h`.
const MISUSE: &str = "1";
const NOT_PROVED: &str = "42";
const NOT_TAKEN_IN: &str = "81";
const NO_SUCH_RANK: &str = "83";
const ENDED: &str = "84";
const NO_QUEUE: &str = "88";
const NO_ROOM: &str = "95";
const NOT_LEADER: &str = "96";
const RANK_TAKEN: &str = "97";
const GROWING: &str = "98";
const PARTED: &str = "99";

/// The program, in a folder that is always the same, so that no other folders are left behind.
fn program() -> Command {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-far-members");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        gcc::install(&folder);
        gcc::compile(&["-g", "-O1"], &[here("tests/far/member.c")], &folder, "member");
        folder
    });
    gcc::command(&folder.join("member"), false)
}

/// Starts a group whose members are on these hosts, by rank.
fn group(scene: &Scene, on: &[usize]) -> Vec<FarMember> {
    let line = |rank| format!("group {} {rank}", on.len());
    let start = |(rank, host): (usize, &usize)| scene.start(*host, program(), &line(rank));
    let mut members: Vec<FarMember> = on.iter().enumerate().map(start).collect();
    for (rank, member) in members.iter_mut().enumerate() {
        assert_eq!(member.hear_ok(), rank.to_string());
    }
    members
}

#[test]
fn members_on_two_hosts_exchange_messages() {
    if left_out() {
        return;
    }
    let scene = Scene::new(2);
    let mut members = group(&scene, &[0, 1, 0]);
    for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 1), (0, 2)] {
        members[from].ask(&format!("send {to} 3000"));
        assert_eq!(members[to].ask(&format!("take {from} 3000")), "3000");
    }
    members.iter_mut().for_each(|member| member.say("barrier"));
    members.iter_mut().for_each(|member| drop(member.hear_ok()));
    members.iter_mut().for_each(|member| member.say("reduce 5"));
    members.iter_mut().for_each(|member| assert_eq!(member.hear_ok(), "15"));
    // Only members on this host have processes here.
    assert_eq!(members[0].ask("process 1"), "0");
    let process = members[2].pid().to_string();
    assert_eq!(members[0].ask("process 2"), process);
    members.into_iter().for_each(FarMember::leaves);
    scene.is_clean();
}

#[test]
fn a_killed_member_is_noticed_on_the_other_host_and_leaves_nothing() {
    if left_out() {
        return;
    }
    let scene = Scene::new(2);
    let mut members = group(&scene, &[0, 1, 1]);
    members[2].ask("send 0 10");
    members[0].ask("take 2 10");
    members[2].dies();
    members.truncate(2);
    members.iter_mut().for_each(|member| drop(member.ask("end-of 2")));
    members.iter_mut().for_each(|member| member.say("barrier"));
    members.iter_mut().for_each(|member| member.hear_error(ENDED, &["member 2"]));
    members[0].say("send 2 1");
    members[0].hear_error(ENDED, &["member 2"]);
    members.into_iter().for_each(FarMember::leaves);
    scene.is_clean();
}

/// Members 1 and 2 lose each other, and member 0 keeps both.
#[test]
fn a_member_learns_that_two_others_have_lost_each_other() {
    if left_out() {
        return;
    }
    let scene = Scene::new(3);
    let mut members = group(&scene, &[0, 1, 2]);
    members[2].ask("expel 1 1");
    members[0].ask("parted 1 2");
    for (member, line, status, part) in [
        (0, "barrier", PARTED, "members 1 and 2 have lost each other"),
        (0, "reduce 5", PARTED, "members 1 and 2 have lost each other"),
        (1, "end-of 2", "", ""),
        (2, "end-of 1", "", ""),
        (1, "barrier", ENDED, "member 2"),
        (2, "barrier", ENDED, "member 1"),
    ] {
        members[member].say(line);
        match status {
            "" => drop(members[member].hear_ok()),
            _ => members[member].hear_error(status, &[part]),
        }
    }
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
    let mut first = scene.start(0, program(), "group 2 0");
    let stranger = scene.hosts.stranger(1);
    let join = |host: &Host, class: &str, parts: &[&str]| {
        let line = format!("group 2 1 across={}", scene.address);
        let mut other = scene.start_plain((1, host), program(), &line);
        other.hear_error(class, parts);
        other.ends();
    };
    // A host that does not know the first one sends nothing.
    join(&stranger, NOT_PROVED, &["`upcall host --help`", "trust"]);
    // A host that knows the first one is not known there.
    let (name, may) = (scene.hosts.host(0).name(), HostPermission::Both);
    let identity = scene.hosts.host(0).store.own().unwrap().identity;
    stranger.store.trust(&name, &identity, may, IfRevoked::Refuse).unwrap();
    let own = stranger.store.own().unwrap().identity.fingerprint().to_string();
    join(&stranger, NOT_TAKEN_IN, &[&own, "upcall host trust"]);
    let mut second = scene.start(1, program(), "group 2 1");
    assert_eq!((first.hear_ok(), second.hear_ok()), ("0".into(), "1".into()));
    first.leaves();
    second.leaves();
    scene.is_clean();
}

/// Starts a member that joins late, together with those of `ranks`, FIRST:COUNT.
fn late(scene: &Scene, on: usize, (rank, ranks): (usize, &str), invitation: &str) -> FarMember {
    let mut member = scene.start(on, program(), &format!("group 3 {rank} late={ranks}"));
    member.say(invitation);
    member
}

#[test]
fn late_members_join_from_another_host_and_reach_all() {
    if left_out() {
        return;
    }
    let scene = Scene::new(2);
    let mut first = scene.start(0, program(), "group 1 0 room=2");
    assert_eq!(first.hear_ok(), "0");
    assert_eq!(first.ask("has-joined 1"), "0");
    first.say("send 1 1");
    first.hear_error(NO_QUEUE, &["not joined"]);
    first.say("barrier");
    first.hear_error(GROWING, &["may join this group later"]);
    let invitation = first.ask("expect 1 2");
    let mut members = vec![first];
    members.extend([1, 2].map(|rank| late(&scene, 1, (rank, "1:2"), &invitation)));
    for rank in [1, 2] {
        assert_eq!(members[rank].hear_ok(), rank.to_string());
        assert_eq!(members[0].ask(&format!("joined {rank}")), "1");
    }
    for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
        members[from].ask(&format!("send {to} 2000"));
        assert_eq!(members[to].ask(&format!("take {from} 2000")), "2000");
    }
    members[0].say("expect 2 1");
    members[0].hear_error(RANK_TAKEN, &["rank 2"]);
    members.pop().unwrap().dies();
    members.iter_mut().for_each(|member| assert_eq!(member.ask("end-of 2"), "2000"));
    // A member that lives is expelled.
    members[0].ask("expel 1 1");
    assert_eq!(members[0].ask("end-of 1"), "2000");
    members.into_iter().for_each(FarMember::leaves);
    scene.is_clean();
}

#[test]
fn no_member_joins_late_that_is_not_invited() {
    if left_out() {
        return;
    }
    let scene = Scene::new(2);
    let start = |rank| scene.start(rank, program(), &format!("group 2 {rank} room=1"));
    let mut members: Vec<FarMember> = (0..2).map(start).collect();
    for (rank, member) in members.iter_mut().enumerate() {
        assert_eq!(member.hear_ok(), rank.to_string());
    }
    let refused = |invitation: &str, class, parts: &[&str]| {
        let mut other = late(&scene, 1, (2, "2:1"), invitation);
        other.hear_error(class, parts);
        other.ends();
    };
    refused("no invitation", MISUSE, &["64 hexadecimal digits"]);
    let wrong = "07".repeat(32);
    refused(&wrong, NOT_TAKEN_IN, &["no member is expected to join with rank 2"]);
    members[1].say("expect 2 1");
    members[1].hear_error(NOT_LEADER, &["expect others in the member that does"]);
    members[0].say("expect 1 2");
    members[0].hear_error(RANK_TAKEN, &["rank 1", "expect ranks that nobody has"]);
    members[0].say("has-joined 3");
    members[0].hear_error(NO_SUCH_RANK, &["rank 3"]);
    let invitation = members[0].ask("expect 2 1");
    refused(&wrong, NOT_TAKEN_IN, &["does not show the invitation to join with rank 2"]);
    members[0].ask("expect-no-more 2 1");
    refused(&invitation, NOT_TAKEN_IN, &["no member is expected to join with rank 2"]);
    let invitation = members[0].ask("expect 2 1");
    let mut last = late(&scene, 1, (2, "2:1"), &invitation);
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
    let mut plain = scene.start_plain(here, program(), "plain 1 0");
    assert_eq!(plain.hear_ok(), "0");
    plain.say("expect 1 1");
    plain.hear_error(NO_ROOM, &["form it across hosts, with room for more"]);
    plain.leaves();
    let mut without = scene.start_plain(here, program(), "plain 1 0 room=1");
    without.hear_error(MISUSE, &["give an address, HOST:PORT"]);
    without.ends();
    let mut other = late(&scene, 0, (0, "1:2"), &"07".repeat(32));
    other.hear_error(MISUSE, &["asks for rank 0", "1..3"]);
    other.ends();
    scene.is_clean();
}

#[test]
fn a_process_asks_for_an_invitation_which_is_valid_on_its_host() {
    if left_out() {
        return;
    }
    let scene = Scene::new(2);
    let mut first = scene.start(0, program(), "group 2 0 room=1");
    let mut second = scene.start(1, program(), "group 2 1 room=1");
    assert_eq!((first.hear_ok(), second.hear_ok()), ("0".into(), "1".into()));
    let mut stranger = scene.start(1, program(), "ask early");
    first.ask("refuse");
    stranger.hear_error(NOT_TAKEN_IN, &["not today"]);
    stranger.ends();
    let mut stranger = scene.start(1, program(), "ask please");
    let host = match scene.hosts.are_apart() {
        true => scene.hosts.host(1).store.own().unwrap().identity.fingerprint().hex(),
        false => "here".into(),
    };
    assert_eq!(first.ask("invite 2 1"), format!("please {host}"));
    let invitation = stranger.hear_ok();
    stranger.ends();
    if scene.hosts.are_apart() {
        let mut other = late(&scene, 0, (2, "2:1"), &invitation);
        other.hear_error(NOT_TAKEN_IN, &["is on another host"]);
        other.ends();
    }
    let mut last = late(&scene, 1, (2, "2:1"), &invitation);
    assert_eq!(last.hear_ok(), "2");
    [first, second, last].into_iter().for_each(FarMember::leaves);
    scene.is_clean();
}
