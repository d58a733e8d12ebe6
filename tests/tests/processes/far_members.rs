//! Members of one group on several hosts: network namespaces that are joined by a switch.

use crate::{in_company, in_idle_company, place};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use upcall_tests::hosts::{Host, Hosts};
use upcall_tests::party::Party;
use upcall_tests::place::{Place, eventually};
use upcall_tests::usage::{connections, memory};

/// Number of messages that a member sends to each other one: more than a queue holds.
pub const LIFE: u64 = 3000;

/// Options of members that wait for each other as long as tests do.
pub const PATIENT: &str = "within=600000 patience=600000";

/// Longest wait for members to join, and for work of several hosts that takes long.
pub const LONGEST: Duration = Duration::from_secs(600);

/// Some hosts, each with a folder of names of its own.
pub struct Scene {
    pub hosts: Hosts,
    pub places: Vec<Place>,
    address: String,
}

impl Scene {
    pub fn new(count: usize) -> Self {
        Self::on(Hosts::new(count), count)
    }

    /// The same on these hosts.
    pub fn on(hosts: Hosts, count: usize) -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(7450);
        // Hosts that are one need a port for each group, which no other process takes by chance.
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        let address = format!("{}:{port}", hosts.host(0).address);
        Self { hosts, places: (0..count).map(|_| place()).collect(), address }
    }

    fn start(&self, on: usize, host: &Host, member: &str) -> Party {
        let across = format!("member group {member} across={}", self.address);
        self.places[on].start_by(&host.wrapper(), &across)
    }

    /// Starts a group whose members are on these hosts, by rank.
    pub fn group(&self, on: &[usize], options: &str) -> Vec<Party> {
        self.group_with(on, |_| options)
    }

    /// The same with options of each member.
    pub fn group_with<'a>(&self, on: &[usize], options: impl Fn(usize) -> &'a str) -> Vec<Party> {
        let size = on.len();
        let mut members: Vec<Party> = (0..size)
            .map(|rank| {
                // The options follow the address.
                let host = self.hosts.host(on[rank]);
                let (address, options) = (&self.address, options(rank));
                let line = format!("member group {size} {rank} across={address} {options}");
                self.places[on[rank]].start_by(&host.wrapper(), &line)
            })
            .collect();
        for (rank, member) in members.iter_mut().enumerate() {
            assert_eq!(member.hear_within(LONGEST).numbers("joining"), [rank as u64]);
        }
        members
    }

    pub fn end(&self, members: Vec<Party>) {
        for mut member in members {
            member.say("leave");
            member.ended();
        }
        self.places.iter().for_each(Place::expect_empty);
    }
}

#[test]
fn all_tell_all_on_three_hosts() {
    let _company = in_company();
    let scene = Scene::new(3);
    for _ in 0..2 {
        let mut members = scene.group(&[0, 1, 0, 2, 1], "");
        members.iter_mut().for_each(|member| member.say(&format!("life {LIFE}")));
        for (rank, member) in members.iter_mut().enumerate() {
            let taken = member.hear().numbers("a life");
            let mut all = vec![LIFE; 5];
            all[rank] = 0;
            assert_eq!(taken, all);
        }
        members.iter_mut().for_each(|member| member.say("barrier"));
        members.iter_mut().for_each(|member| _ = member.hear().expect_ok("a barrier"));
        members.iter_mut().for_each(|member| member.say("reduce 3"));
        for member in &mut members {
            assert_eq!(member.hear().numbers("a reduction"), [15]);
        }
        // The same address can be used again at once.
        scene.end(members);
    }
}

/// Messages wait where they were sent, also beyond the window, while the receiver takes none.
#[test]
fn who_takes_nothing_costs_its_host_little() {
    let _company = in_company();
    let scene = Scene::new(2);
    let mut members = scene.group(&[0, 1], "");
    members[0].ask("send 1 10").expect_ok("sending");
    members[1].ask("take 0 10").expect_ok("taking");
    let before = memory(members[1].pid()).0;
    members[0].ask("send 1 400000").expect_ok("sending to who does not take");
    let [buffered] = members[0].ask("buffered 1").numbers("the buffer")[..] else {
        panic!("one number")
    };
    let grown = memory(members[1].pid()).0 - before;
    assert!(buffered > 8 << 20 && grown < 8 << 10, "{buffered} bytes there, {grown} KiB here");
    assert_eq!(members[1].ask("take 0 400010").numbers("taking"), [400_010]);
    scene.end(members);
}

#[test]
fn a_stopped_member_on_another_host_loses_nothing() {
    let _company = in_company();
    let scene = Scene::new(2);
    let mut members = scene.group(&[0, 1], "");
    members[1].stop();
    members[0].ask("send 1 50000").expect_ok("sending to a stopped member");
    members[1].signal(Signal::CONT);
    assert_eq!(members[1].ask("take 0 50000").numbers("taking"), [50_000]);
    scene.end(members);
}

#[test]
fn the_end_of_a_member_is_noticed_on_all_hosts() {
    let _company = in_company();
    let scene = Scene::new(2);
    for victim in 0..3 {
        let mut members = scene.group(&[0, 1, 0], "");
        members.iter_mut().for_each(|member| member.say(&format!("life {LIFE}")));
        members.iter_mut().for_each(|member| _ = member.hear().expect_ok("a life"));
        members[victim].kill();
        members[victim].ended();
        members.remove(victim);
        for member in &mut members {
            let taken = member.ask(&format!("end-of {victim}")).numbers("the end of a member");
            assert_eq!(taken, [LIFE]);
        }
        // A barrier cannot hold any more.
        members.iter_mut().for_each(|member| member.say("barrier"));
        for member in &mut members {
            member.hear().expect_error("Lost", &[&format!("member {victim}")]);
            // No two of them have lost each other.
            assert_eq!(member.ask("told").numbers("what it was told"), [victim as u64]);
        }
        for mut member in members {
            member.say("leave");
            member.ended();
        }
    }
}

/// A forked child of a member, which is ended with this.
struct Child(Pid);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

#[test]
fn the_end_of_a_member_is_noticed_before_its_forked_child_ends() {
    let _company = in_company();
    let scene = Scene::new(2);
    for victim in 0..2 {
        let mut members = scene.group(&[0, 1], "");
        let [pid] = members[victim].ask("fork").numbers("a child")[..] else { panic!("one child") };
        let child = Child(Pid::from_raw(pid as i32).expect("a process number"));
        members[victim].kill();
        members[victim].ended();
        let mut other = members.remove(1 - victim);
        assert_eq!(other.ask(&format!("end-of {victim}")).numbers("the end of a member"), [0]);
        assert!(test_kill_process(child.0).is_ok(), "the child has ended before");
        other.say("leave");
        other.ended();
    }
}

/// Waits until a process has lost its connections.
pub fn await_cut(member: &Party) {
    await_connections(member, 0);
}

/// Waits until a process has this number of connections.
pub fn await_connections(party: &Party, expected: usize) {
    eventually(&format!("{expected} connections"), || match connections(party.pid()) {
        found if found == expected => Ok(()),
        found => Err(format!("{found} connections")),
    });
}

#[test]
fn what_is_sent_across_a_cut_arrives_once_and_in_order() {
    let _company = in_company();
    let scene = Scene::new(2);
    if !scene.hosts.are_apart() {
        return println!("skipped: cuts, which need network namespaces");
    }
    let mut members = scene.group(&[0, 1], "lost=1000 cut=600000");
    let mut all = 0;
    for round in 0..2 {
        // Something is under way in both directions when the cable is cut.
        members[0].say("send 1 60000");
        members[1].say("send 0 60000");
        scene.hosts.cut(round % 2);
        members.iter_mut().for_each(|member| _ = member.hear().expect_ok("sending"));
        members.iter().for_each(await_cut);
        members[0].ask("send 1 100").expect_ok("sending while the cable is cut");
        scene.hosts.mend(round % 2);
        all += 60_000;
        assert_eq!(members[0].ask(&format!("take 1 {all}")).numbers("taking"), [all]);
        let sent = all + 100 * (round as u64 + 1);
        assert_eq!(members[1].ask(&format!("take 0 {sent}")).numbers("taking"), [sent]);
    }
    scene.end(members);
}

#[test]
fn a_host_that_stays_away_has_ended() {
    let _company = in_idle_company();
    let scene = Scene::new(3);
    if !scene.hosts.are_apart() {
        return println!("skipped: cuts, which need network namespaces");
    }
    let mut members = scene.group(&[0, 1, 2], "lost=1000 cut=1000");
    members[0].ask("send 1 10").expect_ok("sending");
    scene.hosts.cut(1);
    for rank in [0, 2] {
        members[rank].say("end-of 1");
    }
    members[1].say("end-of 0");
    for member in &mut members {
        member.hear().expect_ok("the end of a host that is cut off");
    }
    members[1].ask("end-of 2").expect_ok("the end of the other host");
    // The two that are left go on.
    members[0].ask("send 2 1000").expect_ok("sending");
    assert_eq!(members[2].ask("take 0 1000").numbers("taking"), [1000]);
    // It comes back, and stays gone.
    scene.hosts.mend(1);
    members[0].ask("send 1 1").expect_error("Ended", &[]);
    members[1].ask("send 0 1").expect_error("Ended", &[]);
    scene.end(members);
}

#[test]
fn strangers_are_no_members() {
    let _company = in_company();
    let scene = Scene::new(2);
    let mut first = scene.start(0, scene.hosts.host(0), "2 0");
    if scene.hosts.are_apart() {
        // A host that does not know the first one sends nothing.
        let stranger = scene.hosts.stranger(1);
        let mut other = scene.start(1, &stranger, "2 1");
        other.hear().expect_error("NotProved", &["upcall host"]);
        // A host that knows the first one is not known there.
        let own = scene.hosts.host(0).store.own().expect("an identity");
        let trusted = stranger.store.trust(
            &scene.hosts.host(0).name(),
            &own.identity,
            upcall_net::identity::HostPermission::Both,
            upcall_net::identity::IfRevoked::Refuse,
        );
        trusted.expect("the identity of another host");
        let own = stranger.store.own().expect("an identity").identity.fingerprint().to_string();
        let mut other = scene.start(1, &stranger, "2 1");
        other.hear().expect_error("Refused", &[&own]);
    }
    // Another group at the same address.
    let line = format!("member another 2 1 across={}", scene.address);
    let mut other = scene.places[1].start_by(&scene.hosts.host(1).wrapper(), &line);
    other.hear().expect_error("Refused", &["\"group\"", "\"another\""]);
    // A rank that is taken.
    let mut other = scene.start(1, scene.hosts.host(1), "2 0");
    other.hear().expect_error("Refused", &["rank 0 is taken"]);
    let mut second = scene.start(1, scene.hosts.host(1), "2 1");
    assert_eq!(first.hear().numbers("joining"), [0]);
    assert_eq!(second.hear().numbers("joining"), [1]);
    scene.end(vec![first, second]);
}

#[test]
fn without_an_identity_no_member_meets_others_beyond_this_machine() {
    let _company = in_company();
    let place = place();
    let wrapper = ["env".into(), "UPCALL_HOSTS=/nonexistent".into()];
    let line = "member group 2 0 within=1000 across=192.0.2.1:7411";
    let mut member = place.start_by(&wrapper, line);
    member.hear_within(Duration::from_secs(60)).expect_error("NotProved", &["upcall host"]);
}
