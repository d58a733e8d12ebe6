//! Moves in a machine of a few processes, whose messages arrive one after the other.

mod machine;

use self::machine::{NOW, T, TestMachine, TestWire, U};
use super::*;
use std::path::Path;
use std::time::Duration;
use upcall_ulp::{FileLack, FilePin, FileStays};

#[test]
fn a_task_moves_with_all_messages_in_order() {
    for after in 0..40 {
        let mut machine = TestMachine::new(4);
        machine.send(3, T, 99);
        machine.ask(7, T, 2);
        for step in 0..after {
            if step == after / 2 {
                (0..4).for_each(|from| machine.send(from, T, 10 + from as u32));
            }
            machine.step();
        }
        (0..4).for_each(|from| machine.send(from, T, 20 + from as u32));
        machine.run();
        (0..4).for_each(|from| machine.send(from, T, 30 + from as u32));
        machine.run();
        assert_eq!(machine.reports, [(7, Ok(2))]);
        let inbox = machine.inbox(2, T);
        let of = |from: char| inbox.iter().filter(|one| one.ends_with(from)).collect::<Vec<_>>();
        for from in 0..4 {
            let first = (after > 0).then(|| format!("1{from}"));
            let sent = first.into_iter().chain([format!("2{from}"), format!("3{from}")]);
            let found = of(char::from(b'0' + from)).into_iter().map(ToString::to_string);
            let found = found.collect::<Vec<_>>();
            assert_eq!(found, sent.collect::<Vec<_>>(), "{after}: {inbox:?}");
        }
        machine.assert_quiet(T, TaskPlace::In(2));
        assert_eq!(machine.all[0].moves.rank(T), Some(2));
    }
}

#[test]
fn a_message_waits_for_what_has_caused_it() {
    let mut machine = TestMachine::new(4);
    // The others see the announcement, and process 2 does not.
    machine.ask(7, T, 3);
    machine.step();
    machine.step();
    machine.all[2].is_stopped = true;
    machine.run();
    machine.send(3, T, 1);
    // Process 2 learns of that message otherwise, and sends another one.
    machine.all[2].clock = machine.all[3].clock + 1;
    machine.send(2, T, 2);
    machine.run();
    assert!(machine.inbox(1, T).is_empty());
    machine.all[2].is_stopped = false;
    machine.run();
    assert_eq!(machine.inbox(3, T), ["1", "2"]);
    // Without the commit it is the same.
    machine.ask(8, T, 1);
    machine.step();
    machine.step();
    machine.all[2].is_stopped = true;
    machine.run();
    machine.send(1, T, 3);
    machine.all[2].clock = machine.all[1].clock + 1;
    machine.send(2, T, 4);
    machine.all[1].is_stopped = true;
    machine.run();
    machine.at(0, |moves, effects| moves.cancel(T, effects));
    machine.run();
    assert_eq!(machine.inbox(3, T), ["1", "2"]);
    machine.all[1].is_stopped = false;
    machine.run();
    assert_eq!(machine.inbox(3, T), ["1", "2", "3", "4"]);
    machine.all[2].is_stopped = false;
    machine.run();
    assert_eq!(machine.reports, [(7, Ok(3)), (8, Err(NotMoved::Cancelled))]);
    machine.assert_quiet(T, TaskPlace::In(3));
}

#[test]
fn a_move_waits_for_the_last_messages_of_a_process_that_has_ended() {
    let mut machine = TestMachine::new(4);
    // Only the first process knows of the end.
    machine.at(0, |moves, effects| moves.lost(2, effects));
    machine.ask(1, T, 3);
    machine.run();
    machine.send(2, T, 7);
    machine.run();
    assert_eq!(machine.reports, []);
    for rank in [1, 3] {
        machine.at(rank, |moves, effects| moves.lost(2, effects));
    }
    machine.run();
    assert_eq!((&machine.reports[..], machine.inbox(3, T)), (&[(1, Ok(3))][..], vec!["7"]));
}

#[test]
fn a_task_goes_on_when_other_hosts_have_what_it_has_sent() {
    let mut machine = TestMachine::new(1);
    for rank in 1..4 {
        machine.add_host(rank);
    }
    machine.begin(T, 1);
    machine.ask(1, T, 3);
    while !matches!(machine.wires.front(), Some((1, 2, _, TestWire::Move(_)))) {
        assert!(machine.step());
    }
    // Process 2 marks, and then does not take what the old process has sent.
    let before = |machine: &TestMachine| {
        let is_flush = |wire: &(Rank, Rank, u64, TestWire)| {
            matches!(wire, (1, 2, _, TestWire::Move(MoveMessage::Flush { .. })))
        };
        machine.wires.iter().any(is_flush)
    };
    while !before(&machine) {
        assert!(machine.step());
    }
    machine.all[2].is_stopped = true;
    machine.run();
    assert_eq!((machine.all[0].moves.rank(T), machine.reports.len()), (Some(1), 0));
    machine.all[2].is_stopped = false;
    machine.run();
    assert_eq!(machine.reports, [(1, Ok(3))]);
    machine.assert_quiet(T, TaskPlace::In(3));
    // Without that process the task goes on as well.
    machine.ask(2, T, 1);
    while machine.all[3].stopped.is_empty() {
        assert!(machine.step());
    }
    machine.all[2].is_stopped = true;
    machine.run();
    assert_eq!(machine.all[0].moves.rank(T), Some(3));
    machine.lose(2);
    assert_eq!(machine.reports[1..], [(2, Ok(1))]);
}

#[test]
fn a_host_that_joins_aborts_the_moves_that_it_takes_no_part_in() {
    let mut machine = TestMachine::new(3);
    machine.ask(1, T, 2);
    machine.step();
    machine.step();
    assert!(machine.all[0].moves.is_moving(T) && machine.reports.is_empty());
    machine.add_host(3);
    machine.run();
    assert_eq!(machine.reports, [(1, Err(NotMoved::HostJoined))]);
    // A move that is only asked for has the new process, too.
    machine.ask(2, T, 3);
    machine.add_host(4);
    machine.run();
    machine.send(4, T, 5);
    machine.run();
    assert_eq!((&machine.reports[1], machine.inbox(3, T)), (&(2, Ok(3)), vec!["5"]));
    machine.assert_quiet(T, TaskPlace::In(3));
}

#[test]
fn a_process_that_joins_waits_for_none_that_has_ended_before() {
    let mut machine = TestMachine::new(3);
    machine.lose(2);
    machine.add_host(3);
    machine.ask(1, T, 3);
    machine.run();
    machine.ask(2, T, 0);
    machine.run();
    assert_eq!(machine.reports, [(1, Ok(3)), (2, Ok(0))]);
    machine.assert_quiet(T, TaskPlace::In(0));
}

#[test]
fn messages_wait_for_those_that_a_task_has_carried_from_a_process_that_has_ended() {
    let mut machine = TestMachine::new(4);
    machine.begin(U, 1);
    // The messages of U for T are kept in process 1, which both leave.
    machine.ask(1, T, 2);
    machine.all[1].is_busy = true;
    machine.run();
    machine.send_by(U, 1, T, 5);
    machine.ask(2, U, 3);
    machine.run();
    machine.all[3].is_stopped = true;
    machine.freeze(1, T);
    machine.freeze(1, U);
    machine.run();
    // T has moved, and U is whole in process 3, which the first one does not know yet.
    assert_eq!(machine.all[0].moves.rank(T), Some(2));
    machine.all[3].is_stopped = false;
    while machine.all[0].moves.rank(U) == Some(1) {
        assert!(machine.step());
    }
    machine.all[3].is_stopped = true;
    machine.all[1].is_dead = true;
    machine.all[1].runs.clear();
    machine.all[1].stopped.clear();
    machine.run();
    for rank in [0, 2] {
        machine.at(rank, |moves, effects| moves.lost(1, effects));
    }
    machine.run();
    machine.send(0, T, 6);
    machine.run();
    assert!(machine.inbox(2, T).is_empty());
    machine.all[3].is_stopped = false;
    machine.run();
    machine.at(3, |moves, effects| moves.lost(1, effects));
    machine.run();
    assert_eq!(machine.inbox(2, T), ["5", "6"]);
    assert_eq!(machine.reports, [(1, Ok(2)), (2, Ok(3))]);
}

#[test]
fn a_task_cannot_move_to_itself_nowhere_or_twice() {
    let mut machine = TestMachine::new(3);
    machine.ask(1, T, 1);
    machine.ask(2, T, 3);
    machine.ask(3, U, 2);
    machine.ask(4, T, 2);
    machine.ask(5, T, 0);
    machine.run();
    machine.lose(2);
    machine.ask(6, T, 0);
    machine.run();
    let errors = [NotMoved::Here, NotMoved::NoProcess, NotMoved::NoTask, NotMoved::UnderWay];
    let mut expected = [1, 2, 3, 5].into_iter().zip(errors.map(Err)).collect::<Vec<_>>();
    // The task has ended with process 2.
    expected.extend([(4, Ok(2)), (6, Err(NotMoved::NoTask))]);
    assert_eq!(machine.reports, expected);
    machine.begin(U, 1);
    machine.ask(7, U, 2);
    assert_eq!(machine.reports.last(), Some(&(7, Err(NotMoved::NoProcess))));
    machine.assert_quiet(T, TaskPlace::Ended);
}

#[test]
fn a_pinned_task_stays() {
    let mut machine = TestMachine::new(3);
    machine.all[1].pin = Some(Pin::Children);
    machine.ask(1, T, 2);
    machine.run();
    machine.all[1].pin = None;
    machine.ask(2, T, 2);
    machine.step();
    // It is pinned when it is to stop.
    machine.all[1].pin = Some(Pin::Call);
    machine.step();
    machine.step();
    machine.send(0, T, 5);
    machine.run();
    let pinned = |why| Err(NotMoved::Pinned(why));
    assert_eq!(machine.reports, [(1, pinned(Pin::Children)), (2, pinned(Pin::Call))]);
    assert_eq!(machine.inbox(1, T), ["5"]);
    machine.assert_quiet(T, TaskPlace::In(1));
}

/// A machine whose first request was refused, and whose process 1 does not know that yet. Another
/// request waits for the end of that move.
fn refused_and_asked_again() -> TestMachine {
    let mut machine = TestMachine::new(3);
    machine.all[1].pin = Some(Pin::Children);
    machine.ask(1, T, 2);
    while machine.reports.is_empty() {
        assert!(machine.step());
    }
    machine.all[1].pin = None;
    assert_eq!(machine.all[0].moves.open(), 1);
    machine.ask(2, T, 2);
    assert_eq!(machine.reports, [(1, Err(NotMoved::Pinned(Pin::Children)))]);
    machine
}

#[test]
fn a_request_after_a_refusal_waits_until_that_move_is_over() {
    let mut machine = refused_and_asked_again();
    machine.ask(3, T, 0);
    assert_eq!(machine.reports[1..], [(3, Err(NotMoved::UnderWay))]);
    machine.run();
    assert_eq!(machine.reports[2..], [(2, Ok(2))]);
    machine.assert_quiet(T, TaskPlace::In(2));
}

#[test]
fn a_request_that_waits_for_the_end_of_a_move_gets_one_report_whatever_ends_it() {
    let late = NOW + Duration::from_secs(5);
    type Ends = fn(&mut TestMachine);
    let ends: [(NotMoved, Ends); 5] = [
        (NotMoved::Cancelled, |machine| machine.at(0, |moves, out| moves.cancel(T, out))),
        (NotMoved::Killed, |machine| machine.at(0, |moves, out| moves.kill(T, "end", out))),
        (NotMoved::Ended, |machine| machine.at(0, |moves, out| moves.ended(T, out))),
        (NotMoved::TimedOut, |machine| {
            let next = machine.all[0].moves.next_end().unwrap();
            machine.at(0, |moves, out| moves.tick(next - Duration::from_nanos(1), out));
            assert_eq!(machine.reports.len(), 1);
            machine.at(0, |moves, out| moves.tick(next, out));
        }),
        (NotMoved::Lost, |machine| _ = machine.lose(2)),
    ];
    assert_eq!(refused_and_asked_again().all[0].moves.next_end(), Some(late));
    for (why, end) in ends {
        let mut machine = refused_and_asked_again();
        end(&mut machine);
        machine.run();
        assert_eq!(machine.reports[1..], [(2, Err(why.clone()))], "{why}");
        assert_eq!(machine.all[0].moves.next_end(), None);
    }
}

#[test]
fn a_process_can_refuse_a_task() {
    let path = ShownPath::new(Path::new("/tmp/a"));
    let file = Refusal::File { path, lack: FileLack::Time };
    for why in [Refusal::Memory, Refusal::Program, Refusal::Descriptors, file] {
        let mut machine = TestMachine::new(3);
        machine.all[2].refusal = Some(why.clone());
        machine.ask(1, T, 2);
        machine.send(0, T, 5);
        machine.run();
        assert_eq!(machine.reports, [(1, Err(NotMoved::Refused(why)))]);
        assert_eq!(machine.inbox(1, T), ["5"]);
        machine.assert_quiet(T, TaskPlace::In(1));
    }
}

#[test]
fn a_damaged_part_is_refused() {
    let mut machine = TestMachine::new(3);
    machine.ask(1, T, 2);
    while !matches!(machine.wires.front(), Some((.., TestWire::Part(..)))) {
        machine.step();
    }
    let (part, epoch) = (vec![1; 100], machine.all[0].moves.open() as u64);
    machine.at(2, |moves, out| moves.part(1, (T, epoch, 0), sum(&part) ^ 1, part, out));
    machine.run();
    assert_eq!(machine.reports, [(1, Err(NotMoved::Refused(Refusal::Damaged)))]);
    machine.assert_quiet(T, TaskPlace::In(1));
    let mut other = vec![7; 100];
    let before = sum(&other);
    other[50] ^= 1;
    assert_ne!(sum(&other), before);
}

#[test]
fn a_process_that_does_not_answer_ends_the_move() {
    for stopped in 1..4 {
        for before in 0..12 {
            let mut machine = TestMachine::new(4);
            machine.ask(1, T, 2);
            (0..before).for_each(|_| _ = machine.step());
            machine.send(0, T, 5);
            machine.all[stopped].is_stopped = true;
            machine.run();
            let end = machine.all[0].moves.next_end();
            let settled = machine.all[0].moves.rank(T).unwrap();
            assert_eq!(end.is_none(), settled == 2 || machine.all[0].moves.open() == 0);
            machine.at(0, |moves, out| moves.tick(NOW + Duration::from_secs(4), out));
            assert_eq!(machine.all[0].moves.next_end(), end);
            machine.at(0, |moves, out| moves.tick(NOW + Duration::from_secs(5), out));
            machine.run();
            if end.is_some() {
                assert_eq!(machine.reports, [(1, Err(NotMoved::TimedOut))]);
                // Move and Begun come first, and then one Leaving for each process.
                let has_marked = before >= 2 + stopped;
                if stopped != 1 && !has_marked {
                    assert_eq!(machine.inbox(1, T), ["5"], "{stopped} delays, {before}");
                }
            }
            machine.all[stopped].is_stopped = false;
            machine.run();
            let rank = machine.all[0].moves.rank(T).unwrap();
            assert_eq!(machine.inbox(rank, T), ["5"]);
            machine.assert_quiet(T, TaskPlace::In(rank));
        }
    }
}

#[test]
fn only_the_new_process_gets_more_time_to_copy_a_task() {
    let mut machine = TestMachine::new(4);
    machine.ask(7, T, 2);
    let before = machine.all[0].moves.next_end();
    let copies = |machine: &mut TestMachine, from, epoch| {
        let message = MoveMessage::Copies { tid: T, epoch };
        machine.at(0, |moves, effects| moves.heard(from, message, effects));
        machine.all[0].moves.next_end()
    };
    assert!(before > Some(NOW));
    for (from, epoch) in [(1, 1), (3, 1), (2, 9)] {
        assert_eq!(copies(&mut machine, from, epoch), before, "{from}");
    }
    // The time begins again with the next tick.
    assert_eq!(copies(&mut machine, 2, 1), Some(Duration::ZERO));
}

#[test]
fn a_process_that_reports_copying_without_end_puts_the_abort_off_for_a_limited_time() {
    let mut machine = TestMachine::new(4);
    machine.ask(7, T, 2);
    let limits = MoveLimits::default();
    let last = machine.all[0].moves.next_end().unwrap() + limits.copying;
    let mut now = NOW;
    while machine.reports.is_empty() {
        let before = now;
        assert!(now < last, "the move is open after its last time");
        let message = MoveMessage::Copies { tid: T, epoch: 1 };
        machine.at(0, |moves, effects| moves.heard(2, message, effects));
        now = (now + limits.within / 2).min(last);
        machine.at(0, |moves, effects| moves.tick(now, effects));
        assert_eq!(machine.reports.is_empty(), now < last, "{before:?}");
    }
    assert_eq!(machine.reports, [(7, Err(NotMoved::TimedOut))]);
    machine.run();
    machine.assert_quiet(T, TaskPlace::In(1));
}

#[test]
fn a_process_may_end_at_each_step() {
    for lost in 1..4 {
        for before in 0..30 {
            let mut machine = TestMachine::new(4);
            machine.send(0, T, 4);
            machine.ask(1, T, 2);
            (0..before).for_each(|_| _ = machine.step());
            machine.send(0, T, 5);
            let ended = machine.lose(lost);
            let rank = machine.all[0].moves.rank(T);
            assert_eq!(ended, if rank.is_none() { vec![T] } else { vec![] });
            assert_eq!(machine.reports.len(), 1, "{lost} ends after {before}");
            machine.assert_quiet(T, rank.map_or(TaskPlace::Ended, TaskPlace::In));
            if let Some(rank) = rank {
                assert_eq!(machine.inbox(rank, T), ["4", "5"]);
            }
            match lost {
                3 => assert_eq!(rank, Some(2)),
                _ => assert_ne!(rank, Some(lost)),
            }
        }
    }
}

#[test]
fn a_task_may_end_at_each_step() {
    for before in 0..30 {
        let mut machine = TestMachine::new(4);
        machine.ask(1, T, 2);
        (0..before).for_each(|_| _ = machine.step());
        machine.send(3, T, 5);
        // A task ends where it runs.
        let Some(rank) = (0..4).find(|rank| machine.all[*rank].runs.contains_key(&T)) else {
            continue;
        };
        machine.all[rank].runs.remove(&T);
        machine.all[rank].places.insert(T, TaskPlace::Ended);
        machine.all[rank].moves.ended_here(T);
        machine.all[rank].is_busy = true;
        // The report of the end comes after what was sent before.
        while machine.wires.iter().any(|(from, to, ..)| (*from, *to) == (rank, 0)) {
            machine.step();
        }
        machine.at(0, |moves, effects| moves.ended(T, effects));
        machine.run();
        let result = machine.reports.iter().map(|(_, result)| result.clone()).collect::<Vec<_>>();
        let allowed = [Err(NotMoved::Ended), Err(NotMoved::Pinned(Pin::Ended)), Ok(2)];
        assert!(result.len() == 1 && allowed.contains(&result[0]), "{before}: {result:?}");
        assert!(machine.all.iter().all(|one| one.moves.is_quiet()));
        assert_eq!(machine.all[0].moves.rank(T), None);
    }
}

#[test]
fn errands_wait_for_the_decision() {
    let mut machine = TestMachine::new(3);
    machine.ask(1, T, 2);
    machine.at(0, |moves, effects| moves.errand(T, "answer", effects));
    machine.run();
    assert_eq!(machine.inbox(2, T), ["answer"]);
    machine.at(0, |moves, effects| moves.errand(T, "signal", effects));
    machine.ask(2, T, 0);
    machine.step();
    machine.step();
    machine.step();
    machine.at(0, |moves, effects| moves.kill(T, "end", effects));
    machine.run();
    assert_eq!(machine.inbox(2, T), ["answer", "signal", "end"]);
    assert_eq!(machine.reports, [(1, Ok(2)), (2, Err(NotMoved::Killed))]);
    machine.ask(3, T, 0);
    machine.step();
    machine.step();
    let last = first::MOST_ERRANDS;
    for _ in 0..=last {
        machine.at(0, |moves, effects| moves.errand(T, "signal", effects));
    }
    machine.run();
    assert_eq!(machine.inbox(2, T).len(), 3 + last + 1);
    assert_eq!(machine.reports[2], (3, Err(NotMoved::Full)));
    machine.assert_quiet(T, TaskPlace::In(2));
}

#[test]
fn an_errand_comes_between_the_messages_before_and_after_it() {
    let mut machine = TestMachine::new(4);
    machine.all[0].is_stopped = true;
    machine.all[3].clock = 100;
    machine.ask(1, T, 2);
    machine.step();
    // The task's process has begun, and process 0 does not know that yet.
    machine.send(3, T, 1);
    while machine.step() {}
    assert!(machine.inbox(1, T).is_empty());
    machine.all[0].clock = machine.all[3].clock;
    machine.at(0, |moves, effects| moves.errand(T, "signal", effects));
    machine.all[3].clock = machine.all[0].clock;
    while machine.step() {}
    assert_eq!(machine.inbox(1, T), ["1", "signal"]);
    machine.send(3, T, 2);
    machine.all[0].is_stopped = false;
    machine.run();
    assert_eq!(machine.inbox(2, T), ["1", "signal", "2"]);
    machine.assert_quiet(T, TaskPlace::In(2));
}

#[test]
fn messages_that_wait_make_errands_wait() {
    let mut machine = TestMachine::new(4);
    machine.ask(1, T, 2);
    while !machine.all[2].runs.contains_key(&T) {
        assert!(!machine.all[2].moves.waits(T));
        assert!(machine.step());
    }
    assert!(machine.all[2].moves.waits(T));
    machine.run();
    assert!(!machine.all[2].moves.waits(T));
}

#[test]
fn what_is_kept_is_bounded() {
    for sender in [1, 3] {
        let mut machine = TestMachine::new(4);
        machine.begin(U, 1);
        machine.all[1].is_busy = true;
        machine.ask(1, T, 2);
        machine.ask(2, U, 2);
        machine.run();
        (0..10).for_each(|number| machine.send(sender, T, number));
        machine.run();
        assert!(machine.reports.is_empty());
        machine.send(sender, T, 10);
        machine.send(sender, T, 11);
        machine.run();
        assert_eq!(machine.reports, [(1, Err(NotMoved::Full))]);
        assert_eq!(machine.inbox(1, T).len(), 12);
        // The other move goes on.
        machine.send(sender, U, 12);
        machine.all[1].is_busy = false;
        machine.freeze(1, U);
        machine.run();
        assert_eq!((&machine.reports[1], machine.inbox(2, U)), (&(2, Ok(2)), vec!["12"]));
        machine.assert_quiet(T, TaskPlace::In(1));
        machine.assert_quiet(U, TaskPlace::In(2));
    }
}

fn no_messages() -> TakenMessages<u32> {
    TakenMessages { late: vec![], carried: vec![] }
}

#[test]
fn late_messages_of_another_move_are_ignored() {
    let mut machine = TestMachine::new(3);
    machine.ask(1, T, 2);
    machine.step();
    machine.step();
    machine.at(0, |moves, effects| moves.cancel(T, effects));
    machine.run();
    machine.all[1].is_busy = true;
    machine.ask(2, T, 2);
    machine.run();
    let tid = T;
    for epoch in [1, 3] {
        let ready = MoveMessage::Ready { tid, epoch, carries: false };
        machine.at(0, |moves, effects| moves.heard(2, ready, effects));
        machine.at(0, |moves, out| moves.heard(1, MoveMessage::Full { tid, epoch }, out));
        let settled = MoveMessage::Settled { tid, epoch, rank: 2 };
        machine.at(1, |moves, effects| moves.heard(0, settled, effects));
        machine.at(2, |moves, effects| moves.take(1, (tid, epoch, 0), no_messages(), effects));
    }
    // Only the first process decides.
    let settled = MoveMessage::Settled { tid, epoch: 2, rank: 2 };
    machine.at(1, |moves, effects| moves.heard(2, settled, effects));
    // Only the new process is ready.
    machine.at(0, |moves, effects| {
        moves.heard(1, MoveMessage::Ready { tid, epoch: 2, carries: false }, effects)
    });
    assert_eq!(machine.reports, [(1, Err(NotMoved::Cancelled))]);
    machine.all[1].is_busy = false;
    machine.freeze(1, T);
    machine.run();
    assert_eq!(machine.reports[1], (2, Ok(2)));
    machine.assert_quiet(T, TaskPlace::In(2));
}

#[test]
fn only_the_process_that_a_task_leaves_sends_it() {
    let mut machine = TestMachine::new(3);
    machine.all[1].is_busy = true;
    machine.ask(1, T, 2);
    machine.run();
    for from in [0, 2] {
        machine.at(2, |moves, effects| moves.take(from, (T, 1, 0), no_messages(), effects));
        machine.run();
    }
    assert_eq!(machine.reports, []);
    machine.all[1].is_busy = false;
    machine.freeze(1, T);
    machine.run();
    assert_eq!(machine.reports, [(1, Ok(2))]);
    machine.assert_quiet(T, TaskPlace::In(2));
}

#[test]
fn a_state_that_arrives_after_the_decision_is_dropped() {
    let mut machine = TestMachine::new(3);
    machine.ask(1, T, 2);
    while !matches!(machine.wires.front(), Some((.., TestWire::Take(..)))) {
        machine.step();
    }
    let take = machine.wires.drain(..).collect::<Vec<_>>();
    machine.at(0, |moves, effects| moves.cancel(T, effects));
    // The decision overtakes the state.
    machine.run();
    machine.wires.extend(take);
    machine.run();
    machine.assert_quiet(T, TaskPlace::In(1));
}

#[test]
fn messages_of_a_sender_that_moves_outlive_its_old_process() {
    // The sender goes from 3 to 0, while the receiver leaves 1 for 2. Then process 3 ends.
    for (first, lost) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut machine = TestMachine::new(4);
        machine.begin(U, 3);
        machine.all[1].is_busy = true;
        machine.ask(1, T, 2);
        machine.run();
        machine.send_by(U, 3, T, 1);
        machine.send(3, T, 2);
        machine.ask(2, U, 0);
        if first {
            machine.run();
            assert_eq!(machine.reports, [(2, Ok(0))]);
        } else {
            // The receiver's move is settled while the sender is stopped.
            while !machine.all[3].stopped.contains_key(&U) {
                machine.step();
            }
        }
        machine.all[1].is_busy = false;
        machine.freeze(1, T);
        if lost && first {
            machine.lose(3);
        }
        machine.run();
        machine.send_by(U, 0, T, 3);
        machine.run();
        let all = if lost && first { vec!["1", "3"] } else { vec!["1", "2", "3"] };
        assert_eq!(machine.inbox(2, T), all);
        machine.assert_quiet(T, TaskPlace::In(2));
        machine.assert_quiet(U, TaskPlace::In(0));
    }
}

#[test]
fn a_sender_that_stays_takes_its_messages_back() {
    for is_settled in [true, false] {
        let mut machine = TestMachine::new(4);
        machine.begin(U, 3);
        machine.all[1].is_busy = true;
        machine.ask(1, T, 2);
        machine.run();
        machine.send_by(U, 3, T, 1);
        machine.all[0].is_stopped = true;
        machine.all[0].is_stopped = false;
        machine.ask(2, U, 0);
        while !machine.all[3].stopped.contains_key(&U) {
            machine.step();
        }
        machine.all[1].is_busy = false;
        if is_settled {
            let ready = machine.wires.drain(..).collect::<Vec<_>>();
            machine.freeze(1, T);
            machine.run();
            // The mark of process 3 is missing, and so the task is given nothing.
            machine.send(2, T, 2);
            assert!(machine.inbox(2, T).is_empty());
            machine.wires.extend(ready);
        }
        machine.at(0, |moves, effects| moves.cancel(U, effects));
        machine.run();
        machine.send_by(U, 3, T, 3);
        if !is_settled {
            machine.freeze(1, T);
        }
        machine.run();
        let all = if is_settled { vec!["1", "2", "3"] } else { vec!["1", "3"] };
        assert_eq!(machine.inbox(2, T), all);
        machine.assert_quiet(T, TaskPlace::In(2));
        machine.assert_quiet(U, TaskPlace::In(3));
    }
}

#[test]
fn a_thousand_tasks_move_at_once() {
    let limits = MoveLimits { kept: 1 << 20, ..MoveLimits::default() };
    let mut machine = TestMachine::with(4, limits);
    let tids = (10..1010).map(|number| Tid::new(1, number)).collect::<Vec<_>>();
    for (at, tid) in tids.iter().enumerate() {
        machine.begin(*tid, 1 + at % 3);
        machine.send(0, *tid, at as u32);
    }
    for (at, tid) in tids.iter().enumerate() {
        machine.ask(at as u64, *tid, 1 + (at + 1) % 3);
    }
    assert_eq!(machine.all[0].moves.open(), 1000);
    (0..5000).for_each(|_| _ = machine.step());
    tids.iter().for_each(|tid| machine.send(3, *tid, 5));
    machine.run();
    assert_eq!(machine.reports.len(), 1000);
    for (at, tid) in tids.iter().enumerate() {
        assert_eq!(machine.inbox(1 + (at + 1) % 3, *tid), [at.to_string().as_str(), "5"]);
        machine.assert_quiet(*tid, TaskPlace::In(1 + (at + 1) % 3));
    }
    let more = (2000..2000 + first::MOST_MOVES as u32 + 1).map(|number| Tid::new(1, number));
    for tid in more {
        machine.begin(tid, 1);
        machine.ask(9, tid, 2);
    }
    assert_eq!(machine.reports.last(), Some(&(9, Err(NotMoved::TooMany))));
}

#[test]
fn parts_are_sent_a_few_at_a_time() {
    let mut moves = Moves::<u32, ()>::new(1, 2, MoveLimits::default());
    let mut effects = Vec::new();
    for (tid, epoch) in [(T, 1), (U, 2)] {
        moves.heard(0, MoveMessage::Move { tid, epoch, to: 0 }, &mut effects);
        moves.begin(tid, 3, &mut effects);
        let (all, far) = (RankSet::from(0..2), RankSet::default());
        moves.heard(0, MoveMessage::Leaving { tid, epoch, from: 1, all, far }, &mut effects);
        moves.heard(0, MoveMessage::MarkedBefore { tid, epoch }, &mut effects);
        moves.frozen(tid, 3, &mut effects);
    }
    let mut turn = |budget| {
        effects.clear();
        moves.turn(budget, &mut effects);
        let part = |effect: &MoveEffect<u32, ()>| match effect {
            MoveEffect::SendPart { tid, at, .. } => (*tid, *at),
            other => panic!("{other:?}"),
        };
        effects.iter().map(part).collect::<Vec<_>>()
    };
    assert_eq!(turn(3), [(T, 0), (U, 0), (T, 1)]);
    assert_eq!(turn(2), [(U, 1), (T, 2)]);
    assert_eq!(turn(9), [(U, 2)]);
    assert_eq!(turn(9), []);
}

#[test]
fn messages_about_moves_survive_the_way() {
    let (tid, epoch) = (T, u64::MAX);
    let all = [
        MoveMessage::Leaving { tid, epoch, from: 255, all: (0..256).into(), far: (3..9).into() },
        MoveMessage::Refused { tid, epoch, why: Refusal::Descriptors },
        MoveMessage::Refused {
            tid,
            epoch,
            why: Refusal::File {
                path: ShownPath::new(Path::new("/tmp/a")),
                lack: FileLack::Error(-1),
            },
        },
        MoveMessage::Stays {
            tid,
            epoch,
            why: Pin::File(FilePin { number: 3, why: FileStays::Pipe }),
        },
        MoveMessage::Gone { tid },
    ];
    for message in all {
        let bytes = postcard::to_stdvec(&message).unwrap();
        assert_eq!(postcard::from_bytes::<MoveMessage>(&bytes).unwrap(), message);
    }
}

/// People read paths that other hosts send, on terminals.
#[test]
fn a_path_of_another_host_is_short_and_has_no_control_characters() {
    let shown = |path: &str| ShownPath::new(Path::new(path)).to_string();
    assert_eq!(shown("/tmp/\u{1b}[31m\n\u{9b}a"), "/tmp/?[31m??a");
    let name = |length| "\u{e9}".repeat(length);
    let most = ShownPath::MOST;
    assert_eq!(shown(&name(most / 2)), name(most / 2));
    for length in most / 2 + 1..most / 2 + 9 {
        for path in [name(length), format!("/{}", name(length))] {
            let shown = shown(&path);
            assert!(shown.len() <= most && shown.len() > most - 4, "{shown}");
            assert!(path.ends_with(shown.strip_prefix("...").unwrap()), "{shown}");
        }
    }
    for text in ["a".repeat(most + 1), "/a\n".into(), "\u{1b}".into()] {
        let bytes = postcard::to_stdvec(&text).unwrap();
        assert!(postcard::from_bytes::<ShownPath>(&bytes).is_err(), "{text}");
    }
    let bytes = postcard::to_stdvec(&"a".repeat(most)).unwrap();
    assert!(postcard::from_bytes::<ShownPath>(&bytes).is_ok());
}
