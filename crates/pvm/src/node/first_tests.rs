//! The first process of a machine over two hosts, whose tasks run on the other one.

use super::Node;
use super::balancing::HostLeave;
use super::bent_tests::{apart, tids, with_node};
use crate::balance::PlannedMove;
use crate::hosts::SpawnPlace;
use crate::moves::{MoveMessage, NotMoved, Pin, Refusal};
use crate::ops::OP_NOTIFY;
use crate::packed::PackedHead;
use crate::remote::{ControlMessage, TaskSpec};
use crate::transit::MoveAsker;
use crate::wire::Packet;
use upcall_ulp::arena::ArenaNumber;

/// A hostile process keeps its tasks' spawns coming while the machine is saved or restored.
#[test]
fn spawns_of_another_host_that_wait_are_one_for_each_task() {
    if !apart("first_tests::spawns_of_another_host_that_wait_are_one_for_each_task") {
        return;
    }
    with_node(0, |first| {
        first.node.saving.restores = true;
        for tid in tids().into_iter().cycle().take(1000) {
            let plan = TaskSpec { program: "/no/such/program".into(), ..TaskSpec::default() };
            let (tid, place) = (tid.number(), SpawnPlace::Any);
            first.node.heard(1, ControlMessage::Spawn { tid, plan, count: 1, place });
        }
        assert_eq!(first.node.saving.spawns.len(), tids().len());
    });
}

/// While the machine is saved, no task moves. A plan for very many tasks needs no more stack.
#[test]
fn a_plan_that_a_checkpoint_interrupts_ends_however_long_it_is() {
    if !apart("first_tests::a_plan_that_a_checkpoint_interrupts_ends_however_long_it_is") {
        return;
    }
    with_node(0, |first| {
        let node = &mut first.node;
        node.saving.restores = true;
        let plan = vec![PlannedMove { tid: tids()[0], to: 0 }; 100_000];
        node.balancing.as_mut().unwrap().begin_moves(plan, None);
        node.ask_for_moves();
        let balancing = node.balancing.as_ref().unwrap();
        assert!(balancing.queue.is_empty() && balancing.open.is_empty() && balancing.moved == 0);
    });
}

#[test]
fn a_process_of_another_host_does_not_take_all_arenas() {
    if !apart("first_tests::a_process_of_another_host_does_not_take_all_arenas") {
        return;
    }
    with_node(0, |first| {
        (0..1000).for_each(|_| first.node.heard(1, ControlMessage::NeedsArena));
        let left = (0..).map_while(|_| ArenaNumber::take()).collect::<Vec<_>>().len();
        assert!(left > ArenaNumber::COUNT as usize / 2, "{left}");
    });
}

#[test]
fn nothing_is_kept_for_balancing_of_tasks_that_end_with_their_process() {
    if !apart("first_tests::nothing_is_kept_for_balancing_of_tasks_that_end_with_their_process") {
        return;
    }
    with_node(0, |first| {
        let node = &mut first.node;
        let balancing = node.balancing.as_mut().unwrap();
        for tid in tids() {
            balancing.moves.entry(tid).or_default();
            balancing.loads.entry(tid).or_default();
        }
        node.lost(1);
        let balancing = node.balancing.as_ref().unwrap();
        assert!(balancing.moves.is_empty() && balancing.loads.is_empty());
    });
}

/// The notice of a host that joins by itself makes a task run that waits for nothing else.
#[test]
fn a_machine_whose_tasks_wait_for_hosts_is_not_stuck() {
    if !apart("first_tests::a_machine_whose_tasks_wait_for_hosts_is_not_stuck") {
        return;
    }
    with_node(0, |first| {
        let node = &mut first.node;
        node.timers.clear();
        assert!(node.all_wait());
        const HOST_ADD: i32 = 3;
        for (wanted, is_stuck) in [(-1, false), (0, true)] {
            let question = Packet::default().ints([HOST_ADD, 7, 0, wanted]).as_bytes().to_vec();
            let tid = tids()[0].number();
            node.heard(1, ControlMessage::Ask { tid, op: OP_NOTIFY, question });
            assert_eq!(node.all_wait(), is_stuck, "{wanted}");
        }
    });
}

/// The tasks of a spawn that is under way leave a host that is removed, too.
#[test]
fn a_host_on_which_tasks_are_being_started_does_not_end_before_they_have_left() {
    let name = "a_host_on_which_tasks_are_being_started_does_not_end_before_they_have_left";
    if !apart(&format!("first_tests::{name}")) {
        return;
    }
    with_node(0, |first| {
        let node = &mut first.node;
        for tid in tids() {
            let (tid, sent) = (tid.number(), Vec::new());
            node.heard(1, ControlMessage::Ended { tid, status: 0, catcher: None, sent });
        }
        assert_eq!(node.begin_to_leave(1), HostLeave::AtOnce);
        node.spawn_at(None, TaskSpec::default(), 1, SpawnPlace::On(1));
        assert!(matches!(node.begin_to_leave(1), HostLeave::By(_)));
        let is_leaving = |node: &Node| !node.balancing.as_ref().unwrap().leaving.is_empty();
        node.step_leaving_hosts();
        assert!(is_leaving(node));
        // The task was not started.
        let request = node.machine.as_ref().unwrap().last_request();
        let all = vec![Err(-7)];
        node.heard(1, ControlMessage::Started { request, all, name: String::new() });
        node.step_leaving_hosts();
        assert!(!is_leaving(node));
    });
}

/// A call of a task takes a while, and there is time until the host ends.
#[test]
fn a_host_does_not_end_while_a_task_there_ends_a_call_and_would_leave() {
    let name = "a_host_does_not_end_while_a_task_there_ends_a_call_and_would_leave";
    if !apart(&format!("first_tests::{name}")) {
        return;
    }
    with_node(0, |first| {
        let node = &mut first.node;
        assert!(matches!(node.begin_to_leave(1), HostLeave::By(_)));
        let mut leaves_after = |pin: Pin| {
            let balancing = node.balancing.as_mut().unwrap();
            let all = tids().map(|tid| (tid, NotMoved::Pinned(pin)));
            balancing.refusals.extend(all);
            let is_over = |node: &Node| node.balancing.as_ref().unwrap().leaving.is_empty();
            (0..100).find(|_| {
                node.step_leaving_hosts();
                is_over(node)
            })
        };
        assert_eq!(leaves_after(Pin::Call), None);
        assert_eq!(leaves_after(Pin::Wish), Some(9));
    });
}

/// A hostile process sends messages without end that move with a task. The task goes on there.
#[test]
fn a_task_that_brings_too_many_messages_is_refused_and_they_are_not_kept() {
    let name = "a_task_that_brings_too_many_messages_is_refused_and_they_are_not_kept";
    if !apart(&format!("first_tests::{name}")) {
        return;
    }
    with_node(0, |first| {
        let node = &mut first.node;
        let [tid, receiver, ..] = tids();
        node.move_task(MoveAsker::Nobody, tid, 0);
        let epoch = 1;
        node.heard(1, ControlMessage::Move(MoveMessage::Begun { tid, epoch }));
        let (contents, head) = (vec![0; 1 << 20], || super::bent_tests::message_head(tid));
        let (mut random, mut most) = (1_u64, 0);
        for stamp in 0..400 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let receiver = (random >> 63 == 1).then_some(receiver);
            let (head, source) = (head(), Some(tid));
            let head = PackedHead::Message { tid, epoch, receiver, stamp, from: 1, source, head };
            node.packed(1, head, contents.clone());
            most = most.max(node.moving.brought.bytes_of(1));
        }
        assert!((127 << 20..=128 << 20).contains(&most), "{most}");
        assert_eq!(node.moving.brought.bytes_of(1), 0);
        let head = PackedHead::Task { tid, epoch, parts: 1, messages: 400 };
        node.packed(1, head, Vec::new());
        let refused = &node.balancing.as_ref().unwrap().refused[&tid];
        assert!(
            matches!(refused.why, NotMoved::Refused(Refusal::Messages { .. })),
            "{:?}",
            refused.why
        );
        assert_eq!(node.machine.as_ref().unwrap().rank(tid), Some(1));
    });
}
