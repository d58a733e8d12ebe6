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

/// Starts a group whose members are in these languages and on these hosts, by rank.
fn group(scene: &Scene, of: &[(Language, usize)]) -> Vec<FarMember> {
    group_with(scene, of, "")
}

/// The same with options.
fn group_with(scene: &Scene, of: &[(Language, usize)], options: &str) -> Vec<FarMember> {
    let start = |(rank, (language, on)): (usize, &(Language, usize))| {
        let program = match language {
            C => c(),
            Python => python(),
        };
        scene.start(*on, program, &format!("group {} {rank}{options}", of.len()))
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
