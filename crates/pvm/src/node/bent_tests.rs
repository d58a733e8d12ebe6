//! Bent messages of a process of another host: each is ignored or answered. None ends this process,
//! keeps it from its work, or costs it memory that the sender has not sent.

mod samples;

pub(super) use self::samples::message_head;
use self::samples::{controls, last_kind, packed};
use super::{Node, NodeSaving};
use crate::balance::{BalancePlan, BalancerKind};
use crate::hosts::{MachineHosts, MemberOrder, SpawnPlace};
use crate::machine::Machine;
use crate::places::TaskPlaces;
use crate::programs::Programs;
use crate::remote::{ControlMessage, MachineLink, TaskSpec, packed_of, read_control};
use crate::sizes::TaskSizes;
use crate::tid::Tid;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;
use upcall_message::Rank;
use upcall_os::atomic::{AtomicBool, Ordering};

/// Number of bent messages of each test.
const CASES: u64 = 100_000;

/// Memory that bent messages may cost, in bytes. What is honest costs far less.
const MOST: u64 = 256 << 20;

/// A number with which fields are replaced, as the encoding has it.
const NUMBERS: [&[u8]; 8] = [
    &[0],
    &[1],
    &[0x7f],
    &[0xff, 0xff, 0x03],
    &[0xff, 0xff, 0xff, 0xff, 0x07],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0x80, 0x80, 0x80, 0x80, 0x08],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
];

/// A linear congruential generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0 >> 33
    }

    fn below(&mut self, most: usize) -> usize {
        self.next() as usize % most.max(1)
    }

    /// Changes some bytes of a message, and sometimes none.
    fn bend(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.below(4) {
            let at = self.below(bytes.len());
            match self.below(5) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.next() as u8,
                2 => bytes.truncate(at + 1),
                3 => {
                    // A number has as many bytes as have their highest bit set, and one more.
                    let long = bytes[at..].iter().take_while(|byte| **byte >= 0x80).count();
                    let end = (at + long + 1).min(bytes.len());
                    let number = NUMBERS[self.below(NUMBERS.len())];
                    bytes.splice(at..end, number.iter().copied());
                }
                _ => {
                    let number = NUMBERS[self.below(NUMBERS.len())];
                    bytes.splice(at..at, number.iter().copied());
                }
            }
        }
    }
}

/// The tasks that run in process 1.
pub(super) fn tids() -> [Tid; 4] {
    [1, 2, 3, 4].map(|number| Tid::new(1, number))
}

fn hosts() -> MachineHosts {
    MachineHosts::new([("a".into(), 1), ("b".into(), 1)]).unwrap()
}

fn link(group: &str, rank: Rank) -> MachineLink {
    let order = MemberOrder {
        group: group.into(),
        hosts: hosts(),
        meeting: None,
        ranks: rank..rank + 1,
        arenas: vec![0],
        sizes: TaskSizes::default(),
        folders: Vec::new(),
        directory: None,
        ends_with_input: false,
        invitation: None,
    };
    MachineLink::join(&order, None).unwrap()
}

/// Number of bytes of private memory.
fn data() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Runs a test of a node in a process of its own, which may have a limit of memory and handles
/// crashes of tasks. Returns `true` in that process.
pub(super) fn apart(name: &str) -> bool {
    const APART: &str = "UPCALL_TEST_BENT";
    if std::env::var_os(APART).is_some_and(|value| value == name) {
        return true;
    }
    let mut command = Command::new("timeout");
    command.arg("60").arg(std::env::current_exe().unwrap()).env(APART, name);
    command.args([&format!("node::{name}"), "--exact", "--nocapture"]);
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    let last = said.lines().rev().take(40).collect::<Vec<_>>();
    assert!(done.status.success(), "{:?}: {:#?}", done.status, last);
    false
}

/// The node of this process, which gets messages of the other one.
pub(super) struct Bent<'a> {
    pub(super) node: Node,
    /// Lets the other process end.
    is_over: &'a AtomicBool,
    other: Rank,
    /// What is to be shown if it ends.
    now: String,
}

impl Drop for Bent<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if std::thread::panicking() {
            eprintln!("at {}", self.now);
        }
    }
}

impl<'a> Bent<'a> {
    fn new(link: MachineLink, rank: Rank, is_over: &'a AtomicBool) -> Self {
        let worker = crate::worker(None).unwrap();
        let places = TaskPlaces::new(rank as u32, hosts().size()).unwrap();
        let machine = (rank == 0).then(Machine::default);
        let plan = BalancePlan { balancer: Some(BalancerKind::Greedy), least: 2, is_alone: false };
        let node = Node::new(worker, Programs::new(Vec::new()), machine, Some(link), places);
        let node = node.with_hosts(hosts()).with_balance(plan);
        Self { node, is_over, other: 1 - rank, now: String::new() }
    }

    /// Lets the other process start its tasks, as far as they do not run there.
    fn start_tasks(&mut self) {
        let Some(machine) = &self.node.machine else { return };
        let missing = tids().into_iter().filter(|tid| machine.rank(*tid).is_none());
        let missing = missing.map(|tid| Ok(tid.number())).collect::<Vec<_>>();
        if missing.is_empty() {
            return;
        }
        self.node.spawn_at(None, TaskSpec::default(), missing.len(), SpawnPlace::On(1));
        let request = self.node.machine.as_ref().unwrap().last_request();
        let started = ControlMessage::Started { request, all: missing, name: "x".into() };
        self.node.heard(1, started);
    }

    /// Handles a control message of these bytes. Returns its kind if it is one.
    fn control(&mut self, bytes: &[u8]) -> Option<usize> {
        let arrival = read_control(self.other, bytes)?;
        self.now = format!("{arrival:?}");
        let kind = bytes.get(8).map(|kind| usize::from(*kind));
        self.node.came(arrival);
        kind
    }

    /// Handles something of a task that moves.
    fn packed(&mut self, bytes: Vec<u8>) {
        if let Some(arrival) = packed_of(self.other, bytes) {
            self.now = format!("{arrival:?}");
            self.node.came(arrival);
        }
    }

    /// What a process does between two turns.
    fn turn(&mut self) {
        self.now = "a turn".into();
        let node = &mut self.node;
        node.hear_of_ends();
        node.end_late_moves();
        node.end_partitions();
        node.end_late_hosts();
        node.give_blocks_back();
        node.send_unsent();
        node.balance();
        node.work_at_moves();
        node.work_at_saving();
        node.halted = false;
        node.saving = NodeSaving::default();
        self.start_tasks();
    }

    /// The process still handles what honest processes send, and does the machine's work.
    fn still_works(&mut self) {
        self.turn();
        if self.node.machine.is_none() {
            self.node.heard(0, ControlMessage::Halt);
            return assert!(self.node.halted);
        }
        let rank = |node: &Node, tid| node.machine.as_ref().unwrap().rank(tid);
        for tid in tids() {
            assert_eq!(rank(&self.node, tid), Some(1), "{tid}");
            let (number, sent) = (tid.number(), Vec::new());
            let ended = ControlMessage::Ended { tid: number, status: 0, catcher: None, sent };
            self.node.heard(1, ended);
            assert_eq!(rank(&self.node, tid), None, "{tid}");
        }
    }
}

/// A message with its Lamport time, as the group carries it.
fn stamped(stamp: u64, message: &impl serde::Serialize) -> Vec<u8> {
    postcard::to_extend(message, stamp.to_ne_bytes().to_vec()).unwrap()
}

/// Runs a test of the process with this rank. The other one takes what it answers.
pub(super) fn with_node(rank: Rank, test: impl FnOnce(&mut Bent<'_>)) {
    let group = format!("bent-{}", std::process::id());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Takes what the process answers.
            let link = link(&group, 1 - rank);
            while !is_over.load(Ordering::Acquire) {
                while link.next().is_some() {}
                link.wait(Some(Duration::from_millis(1)), false);
            }
        });
        let mut bent = Bent::new(link(&group, rank), rank, &is_over);
        bent.start_tasks();
        test(&mut bent);
    });
}

/// Sends bent messages to the process with this rank.
fn bend_all_to(rank: Rank) {
    with_node(rank, |bent| {
        let limit = Rlimit { current: Some(data() + MOST), ..getrlimit(Resource::Data) };
        setrlimit(Resource::Data, limit).unwrap();
        let samples = controls().iter().map(|one| stamped(1, one)).collect::<Vec<_>>();
        let packed = packed();
        let (mut random, mut kinds) = (Random(rank as u64 + 1), BTreeSet::new());
        for case in 0..CASES {
            if random.below(5) == 0 {
                let (head, contents) = &packed[random.below(packed.len())];
                let mut bytes = [stamped(case, head), contents.clone()].concat();
                random.bend(&mut bytes);
                bent.packed(bytes);
            } else {
                let mut bytes = samples[random.below(samples.len())].clone();
                random.bend(&mut bytes);
                kinds.extend(bent.control(&bytes));
            }
            if case % 32 == 0 {
                bent.turn();
            }
        }
        bent.still_works();
        // Each kind was there. A bent number of a kind may have more bytes than it needs.
        assert!((0..=last_kind()).all(|kind| kinds.contains(&kind)), "{kinds:?}");
    });
}

#[test]
fn bent_messages_of_another_host_do_not_end_the_first_process() {
    if apart("bent_tests::bent_messages_of_another_host_do_not_end_the_first_process") {
        bend_all_to(0);
    }
}

#[test]
fn bent_messages_of_the_first_process_do_not_end_another_one() {
    if apart("bent_tests::bent_messages_of_the_first_process_do_not_end_another_one") {
        bend_all_to(1);
    }
}
