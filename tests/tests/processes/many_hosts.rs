//! Eight hosts: members of one group and clients of one server on all of them, of which one is
//! killed or cut off.

use crate::far_members::{LIFE, LONGEST, PATIENT, Scene, await_connections, await_cut};
use crate::hosts::serve;
use crate::{in_company, in_idle_company};
use std::time::Duration;
use upcall_tests::party::Party;

/// Number of hosts.
const HOSTS: usize = 8;

/// Gives each member a command of its own, and returns the numbers that they reply.
#[track_caller]
pub fn all(members: &mut [Party], command: impl Fn(usize) -> String) -> Vec<Vec<u64>> {
    members.iter_mut().enumerate().for_each(|(rank, member)| member.say(&command(rank)));
    members.iter_mut().map(|member| member.hear_within(LONGEST).numbers("a command")).collect()
}

/// Checks that each member has taken as many messages from each other one.
#[track_caller]
pub fn expect_taken(taken: &[Vec<u64>], count: u64) {
    for (rank, taken) in taken.iter().enumerate() {
        let expected: Vec<u64> =
            (0..taken.len()).map(|from| if from == rank { 0 } else { count }).collect();
        assert_eq!(*taken, expected, "taken by member {rank}");
    }
}

#[test]
fn members_on_eight_hosts_exchange_messages_each_with_each() {
    let _company = in_company();
    let scene = Scene::new(HOSTS);
    let on: Vec<usize> = (0..HOSTS).collect();
    let mut members = scene.group(&on, PATIENT);
    expect_taken(&all(&mut members, |_| format!("life {LIFE}")), LIFE);
    // A ring.
    all(&mut members, |rank| format!("send {} 1000", (rank + 1) % HOSTS));
    let taken =
        all(&mut members, |rank| format!("take {} {}", (rank + HOSTS - 1) % HOSTS, LIFE + 1000));
    assert!(taken.iter().all(|taken| *taken == [LIFE + 1000]), "{taken:?}");
    all(&mut members, |_| "barrier".into());
    let sums = all(&mut members, |rank| format!("reduce {rank}"));
    assert!(sums.iter().all(|sum| *sum == [28]), "{sums:?}");
    for operation in ["all_reduce", "all_to_all", "all_gather", "broadcast"] {
        all(&mut members, |_| format!("collective {operation}"));
    }
    scene.end(members);
}

/// A server on the first host, and a client on each other one.
struct Calls {
    scene: Scene,
    server: Party,
    name: String,
    clients: Vec<Party>,
}

impl Calls {
    fn new() -> Self {
        let scene = Scene::new(HOSTS);
        let (server, name) = serve(&scene.places[0], scene.hosts.host(0), "");
        let start = |host| {
            let wrapper = scene.hosts.host(host).wrapper();
            let mut client = scene.places[host].start_by(&wrapper, "client");
            client.ask(&format!("bind {name}")).expect_ok("binding");
            client
        };
        let clients = (1..HOSTS).map(start).collect();
        Self { scene, server, name, clients }
    }

    /// All clients call at the same time.
    #[track_caller]
    fn all_call(&mut self) {
        for command in ["add 2 3", "nulls 300", "sum 1000000", "echo 5000"] {
            all(&mut self.clients, |_| command.into());
        }
    }
}

#[test]
fn clients_on_seven_hosts_call_one_server_and_go_on_when_one_is_gone() {
    let _company = in_idle_company();
    let mut calls = Calls::new();
    calls.all_call();
    let counts = format!("counts {}", calls.name.trim_end_matches("/trial"));
    let counted = calls.clients[0].ask(&counts).numbers("counts");
    // Three calls beside the null calls of each.
    assert_eq!(counted, [2, 0, 7 * 303]);
    await_connections(&calls.server, 7);
    calls.clients.remove(6).kill();
    calls.all_call();
    await_connections(&calls.server, 6);
    if calls.scene.hosts.are_apart() {
        // A host without a cable is noticed by the server and by its client.
        calls.scene.hosts.cut(1);
        let mut lost = calls.clients.remove(0);
        lost.ask("null").expect_error("Failed", &["no sign of life for 5 s"]);
        calls.all_call();
        await_connections(&calls.server, 5);
        calls.all_call();
    } else {
        println!("skipped: cuts, which need network namespaces");
    }
    assert!(calls.server.lives(), "the server has ended");
}

/// How a host ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostEnd {
    /// All of its processes are killed.
    Killed,
    /// Its cable is cut for ever.
    CutOff,
}

/// Ranks of the two members on the host that ends. Each other host has one member.
const VICTIMS: [usize; 2] = [3, 8];

/// Checks what each of these members, by rank, has taken: messages from itself and its company go
/// on, and those from members that have ended do not.
#[track_caller]
fn expect_goes_on(members: &mut [Party], ranks: &[usize]) {
    all(members, |_| format!("tell {LIFE}"));
    let taken = all(members, |_| format!("listen {}", 2 * LIFE));
    for (&rank, taken) in ranks.iter().zip(&taken) {
        let expected = |from| match from {
            _ if from == rank => 0,
            _ if ranks.contains(&from) => 2 * LIFE,
            _ => LIFE,
        };
        assert_eq!(*taken, (0..9).map(expected).collect::<Vec<_>>(), "taken by member {rank}");
    }
}

/// Members get one report of each end: a second one would be an error of any later command.
fn a_host_ends(how: HostEnd) {
    let scene = Scene::new(HOSTS);
    if how == HostEnd::CutOff && !scene.hosts.are_apart() {
        return println!("skipped: cuts, which need network namespaces");
    }
    let options = if how == HostEnd::CutOff { "lost=1000 cut=2000" } else { "" };
    let options = format!("{PATIENT} {options}");
    let mut members = scene.group(&[0, 1, 2, 3, 4, 5, 6, 7, 3], &options);
    expect_taken(&all(&mut members, |_| format!("exchange {LIFE}")), LIFE);
    match how {
        HostEnd::Killed => VICTIMS.iter().for_each(|&rank| _ = members[rank].kill()),
        HostEnd::CutOff => scene.hosts.cut(VICTIMS[0]),
    }
    let last = members.remove(VICTIMS[1]);
    let mut victims = vec![members.remove(VICTIMS[0]), last];
    let survivors: Vec<usize> = (0..9).filter(|rank| !VICTIMS.contains(rank)).collect();
    for victim in VICTIMS {
        let ended = all(&mut members, |_| format!("end-of {victim}"));
        assert!(ended.iter().all(|taken| *taken == [LIFE]), "{ended:?}");
    }
    expect_goes_on(&mut members, &survivors);
    if how == HostEnd::CutOff {
        // So do the members that were cut off with each other.
        for rank in &survivors {
            all(&mut victims, |_| format!("end-of {rank}"));
        }
        expect_goes_on(&mut victims, &VICTIMS);
        // The host comes back, and its members stay gone.
        scene.hosts.mend(VICTIMS[0]);
        members[0].ask("send 3 1").expect_error("Ended", &[]);
        victims[0].ask("send 0 1").expect_error("Ended", &[]);
        members.append(&mut victims);
    }
    for member in &mut members {
        member.say("leave");
    }
    members.iter_mut().for_each(|member| _ = member.ended());
}

#[test]
fn the_end_of_a_killed_host_is_told_once_to_each_other_and_they_go_on() {
    let _company = in_company();
    a_host_ends(HostEnd::Killed);
}

#[test]
fn the_end_of_a_host_that_is_cut_off_is_told_once_to_each_other_and_they_go_on() {
    let _company = in_idle_company();
    a_host_ends(HostEnd::CutOff);
}

#[test]
fn a_cut_of_a_second_loses_nothing_between_eight_hosts() {
    let _company = in_idle_company();
    let scene = Scene::new(HOSTS);
    if !scene.hosts.are_apart() {
        return println!("skipped: cuts, which need network namespaces");
    }
    let on: Vec<usize> = (0..HOSTS).collect();
    for lost in ["", "lost=1000"] {
        // The test may be held up for longer than the second, and a cut that heals ends no member.
        let mut members = scene.group(&on, &format!("{PATIENT} cut=600000 {lost}"));
        let say = |members: &mut [Party], line: &str| {
            members.iter_mut().for_each(|member| member.say(line));
        };
        say(&mut members, &format!("exchange {LIFE}"));
        scene.hosts.cut(5);
        std::thread::sleep(Duration::from_secs(1));
        if !lost.is_empty() {
            // A busy machine may take longer than the second.
            await_cut(&members[5]);
        }
        scene.hosts.mend(5);
        let taken: Vec<_> = members
            .iter_mut()
            .map(|member| member.hear_within(LONGEST).numbers("an exchange"))
            .collect();
        expect_taken(&taken, LIFE);
        expect_taken(&all(&mut members, |_| format!("exchange {LIFE}")), 2 * LIFE);
        scene.end(members);
    }
}
