//! Honest messages of all kinds, which the tests bend.

use super::{hosts, tids};
use crate::balance::{MeasuredLoads, MeasuredTask};
use crate::counting::{Count, PeerCount};
use crate::holding::{HeldMessage, HoldMessage};
use crate::hosts::SpawnPlace;
use crate::moves::{MoveMessage, Pin, RankSet, Refusal, ShownPath};
use crate::packed::{EarlyTask, MessageHead, PackedHead, SentBlock};
use crate::remote::{ControlMessage, LateMessage, PagesRead, TaskSpec};
use crate::shown::{MoveCost, ShownTask, TaskActivity};
use crate::task::TaskMessage;
use crate::tid::Tid;
use crate::wire::Packet;
use std::path::Path;
use std::time::Duration;
use upcall_ulp::{Block, FileLack, PageRun};

fn count() -> Count {
    let peers = vec![PeerCount { rank: 0, sent: 1, heard: 1 }];
    Count { all_wait: true, lost: RankSet::default(), peers }
}

/// Control messages of each kind.
pub(super) fn controls() -> Vec<ControlMessage> {
    let all = [of_tasks(), of_machine(), of_contents(), of_moves(), of_checkpoints()];
    all.into_iter().flatten().collect()
}

fn plan() -> TaskSpec {
    TaskSpec {
        program: "/no/such/program".into(),
        args: vec![c"a".into()],
        environment: vec![c"NAME=value".into()],
        parent: tids()[0].number(),
        options: vec![(1, 2)],
        directory: Some("/tmp".into()),
        folder: Some("/no/such".into()),
        ..TaskSpec::default()
    }
}

fn shown() -> ShownTask {
    ShownTask {
        tid: tids()[0],
        parent: None,
        program: "x".into(),
        doing: TaskActivity::Sleeps(Duration::from_secs(1)),
        messages: 1,
        blocks: 1,
        block_bytes: 1,
        rank: 1,
        process: 2,
        pid: 2,
        slot: Some(1),
        time: Duration::from_secs(1),
        moves: 1,
        pause: Some(Duration::from_millis(1)),
        slots: 1,
        stays: false,
        pinned: Some(Pin::Wish),
        refused: None,
    }
}

/// About tasks that begin, run and end.
fn of_tasks() -> Vec<ControlMessage> {
    let tid = tids()[0].number();
    let question = Packet::default().int(tid).int(1).int(1).text("name").int(1).text("b:1");
    let ask = |op| ControlMessage::Ask { tid, op, question: question.as_bytes().to_vec() };
    let spawn = |place| ControlMessage::Spawn { tid, plan: plan(), count: 2, place };
    let all = vec![
        ControlMessage::Answer { tid, code: 0, packet: vec![1, 2] },
        spawn(SpawnPlace::Any),
        spawn(SpawnPlace::Nowhere),
        spawn(SpawnPlace::On(1)),
        ControlMessage::Start { request: 1, plan: plan(), slots: vec![0, 1] },
        ControlMessage::Started { request: 1, all: vec![Ok(tid), Err(-7)], name: "x".into() },
        ControlMessage::Together { tids: vec![tid] },
        ControlMessage::Left { tid, sent: vec![(1, 2)] },
        ControlMessage::Entered { tid },
        ControlMessage::Spared { tid, is_spared: true },
        ControlMessage::Ended { tid, status: 0, catcher: None, sent: vec![(1, 2)] },
        ControlMessage::Kill { tid },
        ControlMessage::Signal { tid, signal: 9 },
        ControlMessage::Lives { tids: vec![tid], rank: 0, epoch: 1 },
        ControlMessage::Gone { tid },
    ];
    // All questions of tasks, and some numbers that are none.
    all.into_iter().chain((0..64).map(ask)).collect()
}

/// About the machine, its processes and hosts.
fn of_machine() -> Vec<ControlMessage> {
    let (to, number, time) = (tids()[0], 1, Duration::from_secs(1));
    let task = MeasuredTask { tid: to, load: 700_000, is_pinned: false };
    let loads = MeasuredLoads { tasks: vec![task], bytes: vec![((to, tids()[1]), 7)] };
    let (source, data) = (to.number(), Packet::default().int(1));
    let late = LateMessage { after: 1, count: 1, source, to, tag: 1, context: 0, data };
    vec![
        ControlMessage::Halt,
        ControlMessage::Count { question: 1 },
        ControlMessage::Counted { question: 1, count: count(), tasks: vec![shown()] },
        ControlMessage::Look { number },
        ControlMessage::Seen { number, time, tasks: vec![shown()] },
        ControlMessage::Measure { round: 1, with_bytes: true },
        ControlMessage::Measured { round: 1, loads },
        ControlMessage::Wakes,
        ControlMessage::Time,
        ControlMessage::NeedsArena,
        ControlMessage::Arena { number: 3 },
        ControlMessage::NextName { name: 7 },
        ControlMessage::Here { process: 77, hosts: 2 },
        ControlMessage::Hosts { all: hosts().word() },
        ControlMessage::KnowsHosts { count: 2 },
        ControlMessage::Unreachable { rank: 1 },
        ControlMessage::Late(late),
    ]
}

/// About what goes with a task that moves.
fn of_contents() -> Vec<ControlMessage> {
    let (tid, epoch) = (tids()[0], 1);
    let name = Block::of(b"contents").unwrap().name();
    let blocks = vec![SentBlock { name, owner: 1, is_shared: true }];
    let cost = MoveCost { pause: Duration::from_millis(1), total: Duration::ZERO, bytes: 4096 };
    vec![
        ControlMessage::Arrived { tid, cost },
        ControlMessage::HasBlocks { tid, epoch, blocks: blocks.clone() },
        ControlMessage::LendsBlocks { tid, epoch, all: true },
        ControlMessage::HasPages { tid, epoch, result: PagesRead::All },
        ControlMessage::DropPages { tid, epoch },
        ControlMessage::SendContents { tid, epoch },
        ControlMessage::HadBlocks { blocks },
    ]
}

fn other_file() -> Refusal {
    Refusal::File { path: ShownPath::new(Path::new("/a")), lack: FileLack::OtherFile }
}

fn of_moves() -> Vec<ControlMessage> {
    let (tid, epoch, ranks) = (tids()[0], 1, RankSet::from(0..2));
    let all = [
        MoveMessage::Move { tid, epoch, to: 1 },
        MoveMessage::Copies { tid, epoch },
        MoveMessage::Begun { tid, epoch },
        MoveMessage::Stays { tid, epoch, why: Pin::Call },
        MoveMessage::Leaving { tid, epoch, from: 1, all: ranks, far: ranks },
        MoveMessage::MarkedBefore { tid, epoch },
        MoveMessage::Flush { tid, epoch },
        MoveMessage::Flushed { tid, epoch },
        MoveMessage::Ready { tid, epoch, carries: true },
        MoveMessage::Refused { tid, epoch, why: other_file() },
        MoveMessage::Full { tid, epoch },
        MoveMessage::Settled { tid, epoch, rank: 1 },
        MoveMessage::MarkedAfter { tid, epoch },
        MoveMessage::Resent { tid, epoch },
        MoveMessage::Cleared { rank: 5 },
        MoveMessage::Ended { ranks: RankSet::from(5..6) },
        MoveMessage::Over { tid, epoch },
        MoveMessage::Gone { tid },
    ];
    all.map(ControlMessage::Move).into()
}

fn of_checkpoints() -> Vec<ControlMessage> {
    let (tid, number) = (tids()[0], 1);
    let hold = |message| ControlMessage::Hold { number, message };
    let held = |message| ControlMessage::Held { number, message };
    vec![
        hold(HoldMessage::Hold),
        hold(HoldMessage::Count { round: 1 }),
        hold(HoldMessage::Save),
        hold(HoldMessage::GoOn),
        held(HeldMessage::Held(Ok(()))),
        held(HeldMessage::Counted { round: 1, count: count() }),
        held(HeldMessage::Saved(Ok(1))),
        held(HeldMessage::Saved(Err("no".into()))),
        ControlMessage::Restored { tid, refused: Some(Refusal::Files) },
    ]
}

/// The number of the last kind of control messages. Each kind has a sample.
pub(super) fn last_kind() -> usize {
    let data = Packet::default();
    let to = tids()[0];
    let last = LateMessage { after: 0, count: 0, source: 0, to, tag: 0, context: 0, data };
    usize::from(postcard::to_stdvec(&ControlMessage::Late(last)).unwrap()[0])
}

/// What comes before the contents of a message that a task sends to itself.
pub(in crate::node) fn message_head(tid: Tid) -> MessageHead {
    let (source, destination) = (tid.number(), tid.number());
    let (tag, context, encoding, wait, block, length) = (1, 0, 0, 0, None, 0);
    MessageHead::of(&TaskMessage {
        source,
        destination,
        tag,
        context,
        encoding,
        wait,
        block,
        length,
    })
}

/// Something of a task that moves, of each kind, and what follows.
pub(super) fn packed() -> Vec<(PackedHead, Vec<u8>)> {
    let (tid, epoch) = (tids()[0], 1);
    let run = PageRun { start: 1 << 40, end: (1 << 40) + 4096 };
    let early = EarlyTask { expected: vec![run], pages: vec![run], ..EarlyTask::default() };
    let early = postcard::to_stdvec(&early).unwrap();
    let head = message_head(tid);
    let (receiver, from, source) = (Some(tids()[1]), 1, Some(tid));
    vec![
        (PackedHead::Task { tid, epoch, parts: 1, messages: 0 }, vec![1; 400]),
        (
            PackedHead::Message { tid, epoch, receiver, stamp: 1, from, source, head },
            b"contents".to_vec(),
        ),
        (PackedHead::Part { tid, epoch, at: 0, sum: 0 }, vec![4; 40]),
        (PackedHead::Early { tid, epoch }, early),
        (PackedHead::Contents { tid, epoch }, vec![1; 40]),
        (PackedHead::Saved { tid, parts: 1 }, vec![1; 400]),
        (PackedHead::SavedPart { tid, at: 0, sum: 0 }, vec![2; 40]),
    ]
}
