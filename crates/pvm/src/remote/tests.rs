//! Two processes of a machine, as two threads.

use super::*;
use crate::hosts::MachineHosts;
use crate::sizes::TaskSizes;
use std::ops::Range;

/// The tag of the last message.
const END: i32 = 99;

fn joined(name: &str, rank: Rank) -> MachineLink {
    let order = MemberOrder {
        group: name.into(),
        hosts: MachineHosts::home(2),
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

/// A message of these bytes.
fn message(bytes: &[u8]) -> TaskMessage {
    tagged(3, bytes)
}

fn tagged(tag: i32, bytes: &[u8]) -> TaskMessage {
    TaskMessage {
        source: 1,
        destination: 2,
        tag,
        context: 4,
        encoding: 0,
        wait: 0,
        block: Block::of(bytes),
        length: bytes.len(),
    }
}

/// The contents of the messages that the second process takes.
fn taken(name: &str, sends: impl FnOnce(&MachineLink) + Send) -> Vec<Vec<u8>> {
    let name = format!("{name}-{}", std::process::id());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let link = joined(&name, 0);
            sends(&link);
            assert!(link.send(1, tagged(END, b""), None).is_ok());
            // The other one says that it has taken all.
            while link.next().is_none() {
                link.wait(None, false);
            }
        });
        let link = joined(&name, 1);
        let mut all = Vec::new();
        loop {
            let Some(stamped) = link.next() else {
                link.wait(None, false);
                continue;
            };
            let RemoteArrival::Message(message) = stamped.item else { continue };
            if message.tag == END {
                break;
            }
            let block = message.block.as_ref();
            all.push(block.and_then(|block| block.read(message.length)).unwrap_or_default());
        }
        assert!(link.send(0, message(b"end"), None).is_ok());
        all
    })
}

fn part(link: &MachineLink, length: usize, range: Range<usize>) {
    let block = Block::of(&b"0123456789".repeat(2)).unwrap();
    let part = MessagePart { block, length, range };
    link.group.send_within(1, link.part, &part, PATIENCE).unwrap();
}

#[test]
fn a_message_that_was_given_up_spoils_no_other_one() {
    let all = taken("given-up", |link| {
        part(link, 20, 0..10);
        link.give_up();
        assert!(link.send(1, message(b"whole"), None).is_ok());
        part(link, 15, 0..10);
        link.give_up();
        // As many bytes as are missing.
        assert!(link.send(1, message(b"first"), None).is_ok());
    });
    assert_eq!(all, [&b"whole"[..], b"first"]);
}

#[test]
fn parts_are_one_message_and_bad_ones_are_none() {
    let all = taken("parts", |link| {
        let last = |bytes: &[u8]| {
            let (message, stamp) = (message(bytes), link.stamp());
            let parcel = Parcel { message, stamp, gone: 0, data: None, is_void: Cell::new(false) };
            link.group.send_within(1, link.last, &parcel, PATIENCE).unwrap();
        };
        part(link, 13, 0..10);
        last(b"abc");
        // A message that was given up, and another one in parts.
        part(link, 20, 0..10);
        part(link, 12, 0..5);
        part(link, 12, 5..10);
        last(b"de");
        // Too long, too short, not in order, without a beginning, and none at all.
        part(link, 12, 0..10);
        last(b"abc");
        part(link, 12, 0..10);
        last(b"a");
        part(link, 12, 5..10);
        last(b"ab");
        part(link, usize::MAX, 0..10);
        last(b"ab");
        last(b"ab");
        assert!(link.send(1, message(b"whole"), None).is_ok());
    });
    assert_eq!(all, [&b"0123456789abc"[..], b"0123456789de", b"whole"]);
}

#[test]
fn a_message_gets_room_as_it_arrives() {
    let bytes = (0..1000).map(|one| one as u8).collect::<Vec<_>>();
    let all = taken("grows", |link| {
        for at in (0..990).step_by(10) {
            let block = Block::of(&bytes).unwrap();
            let part = MessagePart { block, length: 1000, range: at..at + 10 };
            link.group.send_within(1, link.part, &part, PATIENCE).unwrap();
        }
        let (message, stamp) = (message(&bytes), link.stamp());
        let parcel = Parcel { message, stamp, gone: 990, data: None, is_void: Cell::new(false) };
        link.group.send_within(1, link.last, &parcel, PATIENCE).unwrap();
    });
    assert_eq!(all, [bytes]);
}

#[test]
fn a_length_that_is_only_announced_takes_no_room() {
    let name = format!("announced-{}", std::process::id());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let link = joined(&name, 0);
            part(&link, Block::MOST, 0..10);
            assert!(link.send(1, message(b"whole"), None).is_ok());
            while link.next().is_none() {
                link.wait(None, false);
            }
        });
        let link = joined(&name, 1);
        let read = |arrived: &Arrived<'_, '_>| link.read_or_leave(arrived, nowhere);
        while link.group.receive_or_leave(read).is_err() {
            link.wait(None, false);
        }
        let rooms = link.parts.rooms();
        assert!(link.send(0, message(b"end"), None).is_ok());
        assert!(matches!(rooms[..], [10..256, 0]), "{rooms:?}");
    });
}

/// A process of another host may claim to be at the end of all times.
#[test]
fn a_time_that_cannot_be_stops_no_clock() {
    let all = taken("time", |link| {
        link.stamp.set(u64::MAX);
        assert!(link.send(1, message(b"late"), None).is_ok());
        assert!(link.tell(1, &ControlMessage::Time).is_ok());
    });
    // The receiver has answered since.
    assert_eq!(all, [b"late"]);
}

#[test]
fn only_the_first_process_gives_orders() {
    let (tid, number, plan) = (7, 1, TaskSpec::default());
    let message = HoldMessage::Save;
    let data = Packet::default();
    let late =
        LateMessage { after: 1, count: 2, source: 0, to: Tid::new(0, 1), tag: 0, context: 0, data };
    let orders = [
        ControlMessage::Answer { tid, code: 0, packet: Vec::new() },
        ControlMessage::Start { request: 1, plan, slots: Vec::new() },
        ControlMessage::Together { tids: Vec::new() },
        ControlMessage::Kill { tid },
        ControlMessage::Signal { tid, signal: 9 },
        ControlMessage::Lives { tids: Vec::new(), rank: 1, epoch: 1 },
        ControlMessage::Gone { tid },
        ControlMessage::Halt,
        ControlMessage::Count { question: 1 },
        ControlMessage::Look { number },
        ControlMessage::Measure { round: 1, with_bytes: false },
        ControlMessage::Arena { number: 1 },
        ControlMessage::Hold { number, message },
        ControlMessage::NextName { name: 1 },
        ControlMessage::Late(late),
        ControlMessage::Hosts { all: String::new() },
    ];
    assert!(orders.iter().all(ControlMessage::is_of_first));
    let reports = [
        ControlMessage::Time,
        ControlMessage::Wakes,
        ControlMessage::NeedsArena,
        ControlMessage::Here { process: 1, hosts: 2 },
        ControlMessage::KnowsHosts { count: 2 },
        ControlMessage::Left { tid, sent: Vec::new() },
    ];
    assert!(!reports.iter().any(ControlMessage::is_of_first));
}
