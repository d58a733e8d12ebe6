//! Hosts that are joined by a network which treats packets badly: messages and calls through
//! delays, losses, doubled and divided packets, and connections that are reset.

use crate::far_members::{LONGEST, PATIENT, Scene, await_connections};
use crate::hosts::serve;
use crate::many_hosts::{all, expect_taken};
use crate::{in_company, in_idle_company};
use std::time::Duration;
use upcall_tests::dice::Dice;
use upcall_tests::foul::{FoulNetwork, PacketCounts, PacketFaults};
use upcall_tests::packet::{Flow, Segment, check};
use upcall_tests::party::{Party, Said};
use upcall_tests::place::eventually;

/// Time for which the thread of a network may not run before calls may fail of that.
const STALL: Duration = Duration::from_secs(1);

/// Some hosts, and the network that joins them.
struct FoulScene {
    scene: Scene,
    network: FoulNetwork,
}

impl FoulScene {
    /// Returns `None`, and says so, if this machine forbids that.
    fn new(hosts: usize, what: &str) -> Option<Self> {
        let (made, network) = FoulNetwork::join(hosts, Dice::thrown(what))?;
        Some(Self { scene: Scene::on(made, hosts), network })
    }

    /// A group with a member on each host.
    fn group(&self, options: &str) -> Vec<Party> {
        let on: Vec<usize> = (0..self.scene.places.len()).collect();
        self.scene.group(&on, &format!("{PATIENT} cut=600000 {options}"))
    }

    /// Lets the network be good again, and the members leave.
    fn end(self, members: Vec<Party>) -> PacketCounts {
        let counts = self.network.counts();
        println!("{counts:?}");
        self.network.set(PacketFaults::default());
        self.scene.end(members);
        counts
    }
}

/// Checks that everything has happened to packets that can.
#[track_caller]
fn expect_foul(counts: &PacketCounts) {
    let PacketCounts { lost, doubled, overtaken, divided, resets, .. } = *counts;
    let all = [lost, doubled, overtaken, divided, resets];
    assert!(all.iter().all(|&count| count > 0), "{counts:?}");
}

/// Exchanges at least as many messages in rounds of `round` for each pair. In each round all
/// connections are reset, and some others by chance. Each message arrives once, in order.
fn messages_through_a_foul_network(hosts: usize, messages: u64, round: u64) {
    let what = format!("{messages} messages through a foul network");
    let Some(scene) = FoulScene::new(hosts, &what) else { return };
    scene.network.set(PacketFaults::FOUL);
    let mut members = scene.group("");
    scene.network.set(PacketFaults { resets: 2, ..PacketFaults::FOUL });
    let pairs = (hosts * (hosts - 1)) as u64;
    let mut taken = 0;
    while taken * pairs < messages {
        members.iter_mut().for_each(|member| member.say(&format!("exchange {round}")));
        scene.network.reset_all();
        let all: Vec<Vec<u64>> = members
            .iter_mut()
            .map(|member| member.hear_within(LONGEST).numbers("an exchange"))
            .collect();
        taken += round;
        expect_taken(&all, taken);
    }
    expect_foul(&scene.end(members));
}

#[test]
fn ten_thousand_messages_arrive_once_in_order_through_a_foul_network() {
    let _company = in_company();
    messages_through_a_foul_network(4, 10_000, 210);
}

#[test]
#[ignore = "minutes"]
fn ten_million_messages_arrive_once_in_order_through_a_foul_network() {
    let _company = in_company();
    messages_through_a_foul_network(8, 10_000_000, 4000);
}

/// A server on the first host, and a client on each other one.
struct FoulCalls {
    scene: FoulScene,
    _server: Party,
    name: String,
    clients: Vec<Party>,
}

impl FoulCalls {
    fn new(hosts: usize) -> Option<Self> {
        let scene = FoulScene::new(hosts, "calls through a foul network")?;
        let Scene { hosts, places, .. } = &scene.scene;
        let (server, name) = serve(&places[0], hosts.host(0), "");
        let start = |host: usize| places[host].start_by(&hosts.host(host).wrapper(), "client");
        let clients = (1..places.len()).map(start).collect();
        scene.network.set(PacketFaults::FOUL);
        let mut calls = Self { scene, _server: server, name, clients };
        (0..calls.clients.len()).for_each(|client| calls.bind(client));
        Some(calls)
    }

    /// A server waits 5 s for a client to prove itself, which may be too short here.
    fn bind(&mut self, client: usize) {
        eventually("a binding", || {
            match self.clients[client].ask(&format!("bind {}", self.name)) {
                Said::Ok(_) => Ok(()),
                error => Err(format!("{error:?}")),
            }
        });
    }

    /// Returns `true` if the network has delayed packets by more than it should have, so that links
    /// may be lost.
    fn has_stalled(&self) -> bool {
        self.scene.network.counts().stall > STALL
    }

    /// All clients make a call and check its result. The kernels mend what happens to packets, so
    /// no call fails.
    #[track_caller]
    fn all_call(&mut self, command: &str) {
        self.clients.iter_mut().for_each(|client| client.say(command));
        for client in 0..self.clients.len() {
            let mut said = self.clients[client].hear();
            while matches!(&said, Said::Error { kind, .. } if kind == "Failed.Lost")
                && self.has_stalled()
            {
                self.bind(client);
                said = self.clients[client].ask(command);
            }
            said.expect_ok(command);
        }
    }

    /// All clients make as many calls, each of which runs once if it returns, and at most once if
    /// it fails. Returns the number of those that failed.
    #[track_caller]
    fn all_try(&mut self, count: u64) -> u64 {
        let before = self.runs();
        let tries = format!("tries {} {count}", self.name);
        let tried = all(&mut self.clients, |_| tries.clone());
        let returned: u64 = tried.iter().map(|tried| tried[0]).sum();
        let failed: u64 = tried.iter().map(|tried| tried[1]).sum();
        println!("{returned} calls returned, {failed} failed; {:?}", self.scene.network.counts());
        assert_eq!(returned + failed, self.clients.len() as u64 * count);
        let ran = self.runs() - before;
        assert!((returned..=returned + failed).contains(&ran), "{ran} calls ran: {tried:?}");
        failed
    }

    /// The number of calls of these that have run.
    fn runs(&mut self) -> u64 {
        loop {
            match self.clients[0].ask("marks") {
                Said::Error { kind, .. } if kind == "Failed.Lost" => self.bind(0),
                said => return said.numbers("the calls that have run")[0],
            }
        }
    }
}

#[test]
fn calls_through_a_foul_network_run_once_and_return_what_they_should() {
    let _company = in_company();
    let Some(mut calls) = FoulCalls::new(4) else { return };
    for command in ["add 2 3", "echo 50000", "sum 1000000", "make 300000"] {
        calls.all_call(command);
    }
    let failed = calls.all_try(100);
    assert!(failed == 0 || calls.has_stalled(), "{failed} calls failed without a reset");
    calls.scene.network.set(PacketFaults { resets: 20, ..PacketFaults::FOUL });
    calls.all_try(100);
    calls.scene.network.reset_all();
    calls.all_try(1);
    expect_foul(&calls.scene.network.counts());
}

#[test]
fn a_direction_that_fails_alone_is_noticed_and_heals() {
    let _company = in_idle_company();
    let Some(scene) = FoulScene::new(3, "a direction that fails alone") else { return };
    let mut members = scene.group("lost=1000");
    for (round, [from, to]) in [[0, 1], [1, 0]].into_iter().enumerate() {
        members.iter_mut().for_each(|member| member.say("exchange 3000"));
        scene.network.block(from, to);
        // Host 2 reaches both. So the two that do not reach each other have one connection left.
        for member in &members[..2] {
            await_connections(member, 1);
        }
        scene.network.unblock(from, to);
        let taken: Vec<Vec<u64>> = members
            .iter_mut()
            .map(|member| member.hear_within(LONGEST).numbers("an exchange"))
            .collect();
        expect_taken(&taken, 3000 * (round as u64 + 1));
    }
    scene.end(members);
}

#[test]
fn packets_are_divided_and_reset_as_a_kernel_accepts_them() {
    let header = |len: u16| [&[0x45, 0][..], &len.to_be_bytes(), &[0, 7, 0x40, 0, 64, 6]].concat();
    let addresses = [10, 77, 0, 1, 10, 77, 0, 2];
    let ports = [0x12, 0x34, 0x1d, 0x1a];
    let numbers = [0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 9];
    // With the flags PSH and ACK, and four bytes of options.
    let rest = [0x60, 0x18, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1];
    let data = [1, 2, 3, 4, 5];
    let packet = [&header(49)[..], &[0, 0], &addresses, &ports, &numbers, &rest, &data].concat();
    let segment = Segment::of(&packet).expect("a segment");
    assert!(segment.len() == 5 && segment.is_of_an_open_one() && !segment.opens());
    let [first, second] = segment.divide(3);
    let flow = |packet: &[u8]| -> Option<Flow> { Some(Segment::of(packet)?.flow()) };
    for packet in [&first, &second] {
        check(packet).unwrap();
        assert_eq!(flow(packet), Some(segment.flow()));
    }
    assert_eq!((&first[44..], first[33]), (&[1, 2, 3][..], 0x10));
    // The numbers of bytes go on beyond the last one.
    assert_eq!(
        (&second[44..], second[33], &second[24..28]),
        (&[4, 5][..], 0x18, &[0, 0, 0, 1][..])
    );
    let [here, there] = segment.resets();
    for reset in [&here, &there] {
        check(reset).unwrap();
        assert!(reset[33] == 4 && flow(reset) == Some(segment.flow()));
    }
    assert_eq!((&here[16..20], &here[24..28]), (&addresses[..4], &numbers[4..]));
    assert_eq!((&there[16..20], &there[24..28]), (&addresses[4..], &numbers[..4]));
    // What is no whole segment is none.
    for len in 0..44 {
        assert!(Segment::of(&packet[..len]).is_none(), "{len} bytes");
    }
    let changed = |at: usize, to: u8| {
        let mut packet = packet.clone();
        packet[at] = to;
        Segment::of(&packet).is_none()
    };
    assert!(changed(0, 0x65) && changed(0, 0x41) && changed(6, 0x20) && changed(9, 17));
    assert!(changed(32, 0x40) && changed(32, 0xf0));
    let mut bent = first;
    bent[45] ^= 1;
    assert!(check(&bent).is_err());
}
