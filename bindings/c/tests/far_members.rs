//! Members in C of one group on several hosts. Members in Python join them in
//! `bindings/python/tests/far_members.rs`.
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
const NOT_PROVED: &str = "42";
const NOT_TAKEN_IN: &str = "81";
const ENDED: &str = "84";

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
