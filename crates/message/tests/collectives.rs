//! Collective operations on vectors, by members that are threads of one process and behave as if
//! they were on several hosts.

mod guard;

use guard::guarded;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use upcall_message::{Event, Group, GroupBuilder, Handlers, NothingThere, Pacing, Rank, RunError};

fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("collectives-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs `member` as each of the members of a group on these hosts.
fn together(marks: &[u16], member: impl Fn(GroupBuilder) + Sync) {
    ranked(marks, |_, joining| member(joining));
}

/// Like [`together`] with the member's rank.
fn ranked(marks: &[u16], member: impl Fn(Rank, GroupBuilder) + Sync) {
    // Each member takes up to two of the process's places to wait for messages.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (name, size) = (name(), marks.len());
    let address = free_address();
    guarded(size, |guard| {
        thread::scope(|scope| {
            for rank in 0..size {
                let (name, member) = (&name, &member);
                let joining = GroupBuilder::new(name, size).rank(rank);
                let joining = match marks.iter().all(|mark| *mark == marks[0]) {
                    true => joining,
                    false => joining.across(&address).apart(marks[rank].into()),
                };
                scope.spawn(move || guard.member(rank, || member(rank, joining)));
            }
        });
    });
}

/// A loopback address at which nothing listens: no other process and no other call uses the same.
fn free_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    format!("127.{}.{}.{}:7412", 1 + (process >> 8) % 250, process & 0xFF, number % 250)
}

/// Numbers that look random, from 0 to `below - 1`.
#[derive(Clone)]
struct Rolls(u64);

impl Rolls {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }

    fn items(&mut self, most: u64) -> Vec<u64> {
        let count = if self.roll(4) == 0 { 0 } else { self.roll(most) };
        (0..count).map(|_| self.roll(1 << 31)).collect()
    }
}

/// Marks of hosts: all on one, all apart, in blocks, by turns, and at random.
fn layouts(size: usize) -> Vec<Vec<u16>> {
    let mut rolls = Rolls(size as u64);
    let by = |mark: &dyn Fn(usize) -> usize| (0..size).map(|rank| mark(rank) as u16).collect();
    let mut layouts =
        vec![by(&|_| 0), by(&|rank| rank), by(&|rank| rank * 3 / size), by(&|rank| 100 - rank % 3)];
    layouts.push((0..size).map(|_| rolls.roll(4) as u16).collect());
    layouts.dedup();
    layouts
}

/// An associative combination in which the order counts: of maps from x to a x + b modulo a prime.
fn compose(first: u64, then: u64) -> u64 {
    const PRIME: u64 = 65_521;
    let parts = |map: u64| (map >> 32, map & 0xffff_ffff);
    let ((a, b), (c, d)) = (parts(first), parts(then));
    ((a * c % PRIME) << 32) | ((b * c + d) % PRIME)
}

fn maps(rolls: &mut Rolls, count: u64) -> Vec<u64> {
    (0..count).map(|_| ((1 + rolls.roll(65_520)) << 32) | rolls.roll(65_521)).collect()
}

/// Combines vectors in the order of their indices.
fn combined(all: &[Vec<u64>]) -> Vec<u64> {
    let more = |mut sum: Vec<u64>, next: &Vec<u64>| {
        sum.iter_mut().zip(next).for_each(|(sum, next)| *sum = compose(*sum, *next));
        sum
    };
    all[1..].iter().fold(all[0].clone(), more)
}

/// All members roll the same numbers, so each knows what the others have.
fn operation_of_each_kind(group: &Group, rolls: &mut Rolls, most: u64) {
    let (rank, size) = (group.rank(), group.size());
    for _ in 0..6 {
        let root = rolls.roll(size as u64) as Rank;
        let all: Vec<Vec<u64>> = (0..size).map(|_| rolls.items(most)).collect();
        let count = rolls.roll(most);
        let of_maps: Vec<_> = (0..size).map(|_| maps(rolls, count)).collect();
        let table: Vec<Vec<Vec<u64>>> =
            (0..size).map(|_| (0..size).map(|_| rolls.items(most)).collect()).collect();
        match rolls.roll(6) {
            0 => {
                let mut items = if rank == root { all[root].clone() } else { vec![1; rank] };
                group.broadcast(root, &mut items).unwrap();
                assert_eq!(items, all[root]);
            }
            1 => {
                let found = group.gather(root, &all[rank]).unwrap();
                assert_eq!(found, (rank == root).then_some(all));
            }
            2 => assert_eq!(group.all_gather(&all[rank]).unwrap(), all),
            3 => {
                let found = group.reduce_to(root, &of_maps[rank], compose).unwrap();
                assert_eq!(found, (rank == root).then(|| combined(&of_maps)));
            }
            4 => {
                let mut items = of_maps[rank].clone();
                group.all_reduce(&mut items, compose).unwrap();
                assert_eq!(items, combined(&of_maps));
            }
            _ => {
                let found = group.all_to_all(&table[rank]).unwrap();
                let sent: Vec<_> = table.iter().map(|of| of[rank].clone()).collect();
                assert_eq!(found, sent);
            }
        }
    }
}

#[test]
fn each_operation_does_what_its_model_does() {
    for size in 1..=9 {
        for (turn, marks) in layouts(size).iter().enumerate() {
            together(marks, |joining| {
                let group = joining.join(Handlers::new()).unwrap();
                let mut rolls = Rolls((size * 100 + turn) as u64);
                operation_of_each_kind(&group, &mut rolls, 40);
            });
        }
    }
}

/// Parts that do not fit into a queue, with each way to wait for room.
#[test]
fn long_vectors_arrive_as_short_ones_do() {
    for timeout in [Some(Duration::ZERO), Some(Duration::from_micros(50)), None] {
        together(&[0, 1, 0, 1, 1], |joining| {
            let group = joining.timeout(timeout).join(Handlers::new()).unwrap();
            operation_of_each_kind(&group, &mut Rolls(5), 30_000);
        });
    }
}

#[test]
fn all_types_of_items_are_carried() {
    together(&[0, 0, 1], |joining| {
        let group = joining.join(Handlers::new()).unwrap();
        let rank = group.rank();
        let signs = [-1, 0, i64::MIN, rank as i64];
        assert_eq!(group.all_gather(&signs).unwrap()[2], [-1, 0, i64::MIN, 2]);
        let short = [-5_i32, i32::MAX, rank as i32];
        assert_eq!(group.all_gather(&short).unwrap()[1], [-5, i32::MAX, 1]);
        assert_eq!(group.all_gather(&[u32::MAX, 7]).unwrap(), vec![vec![u32::MAX, 7]; 3]);
        assert_eq!(group.all_gather(&[rank as u16; 5]).unwrap()[2], [2; 5]);
        assert_eq!(group.all_gather(b"bytes").unwrap()[0], b"bytes");
        assert_eq!(group.all_gather(&[rank == 1]).unwrap(), [[false], [true], [false]]);
        let mut sums = [0.25_f32, rank as f32];
        group.all_reduce(&mut sums, |a, b| a + b).unwrap();
        assert_eq!(sums, [0.75, 3.0]);
        let least = group.reduce_to(2, &[-(rank as f64)], f64::min).unwrap();
        assert_eq!(least, (rank == 2).then(|| vec![-2.0]));
    });
}

#[test]
fn members_know_their_hosts() {
    together(&[7, 3, 7], |joining| {
        let group = joining.join(Handlers::new()).unwrap();
        let hosts = [0, 1, 2, 3].map(|rank| group.host(rank));
        assert_eq!(hosts, [Some(0), Some(1), Some(0), None]);
    });
    let alone = GroupBuilder::new(&name(), 1).join(Handlers::new()).unwrap();
    assert_eq!((alone.host(0), alone.host(1)), (Some(0), None));
}

/// The root is ahead by many operations; messages of the program stay in order, and no receiver
/// finds a part in place of one.
#[test]
fn a_member_that_runs_ahead_harms_nobody() {
    const ROUNDS: u64 = 300;
    for timeout in [Some(Duration::ZERO), Some(Duration::from_micros(200))] {
        let (is_ahead, both_sent) = (Barrier::new(3), Barrier::new(3));
        together(&[0, 0, 1], |joining| {
            let mut handlers = Handlers::new();
            let data = handlers.kind::<u64>("data");
            let group = joining.timeout(timeout).join(handlers).unwrap();
            // Every tenth one is not taken in before its operation.
            let items = |round: u64| vec![round; if round % 10 == 3 { 20_000 } else { 10 }];
            if group.rank() == 0 {
                group.send(1, data, &0).unwrap();
                for round in 1..=ROUNDS {
                    group.broadcast(0, &mut items(round)).unwrap();
                    group.send(1, data, &round).unwrap();
                }
                is_ahead.wait();
            } else {
                is_ahead.wait();
                let first = if group.rank() == 1 {
                    assert!(group.wait(None) && group.available());
                    assert_eq!(group.waiting(), [0]);
                    group.receive(|message| message.get(data))
                } else {
                    // Parts alone make no message.
                    assert!(!group.wait(Some(Duration::from_millis(5))) && !group.available());
                    assert_eq!((group.receive(|_| ()), group.poll()), (Err(NothingThere), 0));
                    Ok(Some(0))
                };
                assert_eq!(first, Ok(Some(0)));
                for round in 1..=ROUNDS {
                    let mut found: Vec<u64> = vec![];
                    group.broadcast(0, &mut found).unwrap();
                    assert_eq!(found, items(round));
                    if group.rank() == 1 {
                        while !group.available() {
                            group.wait(None);
                        }
                        let peeked = group.peek(|message| message.get(data));
                        assert_eq!(peeked, Ok(Some(round)));
                        let taken = group.receive_from(0, |message| message.get(data));
                        assert_eq!(taken, Ok(Some(round)));
                    }
                }
                assert_eq!(group.receive(|_| ()), Err(NothingThere));
            }
            both_sent.wait();
        });
    }
}

#[test]
fn a_message_without_a_handler_only_interrupts_an_operation() {
    let both_told = Barrier::new(2);
    together(&[0, 1], |joining| {
        let mut handlers = Handlers::new();
        let data = handlers.kind::<u64>("data");
        let group = joining.join(handlers).unwrap();
        let (rank, other) = (group.rank(), 1 - group.rank());
        group.send(other, data, &5).unwrap();
        let unhandled = RunError::Unhandled { rank: other, kind: "data".into() };
        assert_eq!(group.all_gather(&[rank as u64]), Err(unhandled));
        both_told.wait();
        // Another operation cannot begin.
        let mismatched = group.broadcast(0, &mut vec![0_u64]).unwrap_err();
        assert!(
            matches!(&mismatched, RunError::Mismatched { rank: of, .. } if *of == rank),
            "{mismatched:?}"
        );
        group.receive(|message| assert_eq!(message.get(data), Some(5))).unwrap();
        assert_eq!(group.all_gather(&[rank as u64]), Ok(vec![vec![0], vec![1]]));
        group.broadcast(0, &mut vec![0_u64]).unwrap();
    });
}

/// The root has left before the other member calls the operation.
#[test]
fn what_a_member_had_sent_before_it_left_counts() {
    let left = Barrier::new(2);
    together(&[0, 1], |joining| {
        let mut handlers = Handlers::new();
        let data = handlers.kind::<u64>("data");
        let group = joining.join(handlers).unwrap();
        let sent = vec![9_u64; 50_000];
        if group.rank() == 1 {
            group.broadcast(1, &mut sent.clone()).unwrap();
            group.send(0, data, &5).unwrap();
            group.broadcast(1, &mut sent.clone()).unwrap();
            drop(group);
            left.wait();
            return;
        }
        left.wait();
        let mut found: Vec<u64> = Vec::new();
        group.broadcast(1, &mut found).unwrap();
        assert_eq!(found, sent);
        let unhandled = RunError::Unhandled { rank: 1, kind: "data".into() };
        assert_eq!(group.broadcast(1, &mut found), Err(unhandled));
        assert_eq!(group.receive(|message| message.get(data)), Ok(Some(5)));
        found.clear();
        group.broadcast(1, &mut found).unwrap();
        assert_eq!(found, sent);
        let lost = group.broadcast(1, &mut found).unwrap_err();
        assert_eq!(lost, RunError::Lost(Event::Ended { rank: 1 }));
    });
}

/// Members on virtual processors: a thread receives messages between operations.
#[test]
fn operations_and_upcalls_do_not_disturb_each_other() {
    let marks = [0, 0, 1];
    together(&marks, |joining| {
        let idle = Arc::new(upcall_sched::PollingIdle::new(1, Pacing::Sleep).unwrap());
        let body = || {
            let mut handlers = Handlers::new();
            let data = handlers.kind::<u64>("data");
            let handled = handlers.kind::<u64>("handled");
            let sum = Rc::new(Cell::new(0));
            let seen = sum.clone();
            handlers.on(handled, move |_, _, value| seen.set(seen.get() + value));
            let group = joining.join(handlers).unwrap();
            let (rank, size) = (group.rank(), group.size());
            let next = (rank + 1) % size;
            for round in 0..50 {
                group.send(next, handled, &round).unwrap();
                group.send(next, data, &round).unwrap();
                let from = (rank + size - 1) % size;
                let taken = loop {
                    let taken = group.receive_from_or_leave(from, |message| message.get(data));
                    if let Ok(Some(taken)) = taken {
                        break taken;
                    }
                    group.wait(None);
                };
                assert_eq!(taken, round);
                let all = group.all_to_all(&vec![vec![round; rank]; size]).unwrap();
                assert_eq!(all, [vec![], vec![round], vec![round; 2]]);
            }
            group.barrier().unwrap();
            assert_eq!(sum.get(), 49 * 50 / 2);
        };
        upcall_thread::Processors::new().count(1).idle(idle).run(body).unwrap();
    });
}

/// Performs one operation of each member's script.
fn one_operation(group: &Group, kind: usize, root: Rank) -> Result<(), RunError> {
    let (size, items) = (group.size(), vec![group.rank() as u64; 3000]);
    match kind {
        0 => group.broadcast(root, &mut items.clone()),
        1 => group.gather(root, &items).map(drop),
        2 => group.all_gather(&items).map(drop),
        3 => group.reduce_to(root, &items, compose).map(drop),
        4 => group.all_reduce(&mut items.clone(), compose),
        5 => group.all_to_all(&vec![items; size]).map(drop),
        6 => group.barrier(),
        _ => group.reduce(1, compose).map(drop),
    }
}

/// A member leaves at any step of its script. No other member waits for ever, and none gets
/// another error.
#[test]
fn a_member_that_leaves_at_any_step_ends_the_operation_of_every_other_one() {
    let marks = [0, 1, 0, 1, 2];
    for kind in 0..8 {
        for leaves in [0, 1, 3, 4] {
            for after in [0, 1, 2, 4, 7] {
                ranked(&marks, |rank, joining| {
                    let mut handlers = Handlers::new();
                    // The number of further checks; no check counts before the group has formed.
                    let left = Rc::new(Cell::new(u32::MAX));
                    let checks = left.clone();
                    handlers.interruption(move || {
                        checks.set(checks.get().saturating_sub(1));
                        checks.get() == 0
                    });
                    // Without a timeout, no member is ahead without bound.
                    let joining = joining.timeout(None);
                    if rank == leaves {
                        let group = joining.join(handlers).unwrap();
                        left.set(after + 1);
                        for _ in 0..after {
                            if let Err(error) = one_operation(&group, kind, 1) {
                                return assert_eq!(error, RunError::Interrupted);
                            }
                        }
                        return;
                    }
                    let group = joining.join(Handlers::new()).unwrap();
                    for turn in 0..3 {
                        let lost = loop {
                            match one_operation(&group, kind, 1) {
                                Ok(()) => assert_eq!(turn, 0, "no operation holds any more"),
                                Err(error) => break error,
                            }
                        };
                        // A member that has given up and left may be missed, too.
                        let is_right = match lost {
                            RunError::Lost(Event::Ended { rank }) => rank != group.rank(),
                            RunError::GivenUp { missed, .. } => missed != group.rank(),
                            _ => false,
                        };
                        assert!(is_right, "{lost:?}");
                    }
                });
            }
        }
    }
}

/// Some member gets a part of another operation; then no member waits for ever.
#[test]
fn members_that_call_different_operations_all_learn_of_it() {
    for marks in [[0, 0, 0], [0, 1, 1], [0, 1, 2]] {
        for (kinds, root) in [([1, 0, 0], 1), ([2, 4, 2], 0), ([5, 5, 2], 0), ([0, 1, 0], 0)] {
            let over = Barrier::new(3);
            let noticed = AtomicU32::new(0);
            together(&marks, |joining| {
                let group = joining.join(Handlers::new()).unwrap();
                let error = loop {
                    if let Err(error) = one_operation(&group, kinds[group.rank()], root) {
                        break error;
                    }
                };
                match error {
                    RunError::Mismatched { here, there, .. } => {
                        assert_ne!(here, there);
                        noticed.fetch_add(1, Ordering::Relaxed);
                    }
                    RunError::GivenUp { .. } => {}
                    other => panic!("{other:?}"),
                }
                over.wait();
            });
            assert!(noticed.into_inner() > 0);
        }
    }
}

#[test]
fn vectors_of_different_lengths_are_not_combined() {
    let over = Barrier::new(3);
    together(&[0, 1, 1], |joining| {
        let group = joining.join(Handlers::new()).unwrap();
        let error = group.all_reduce(&mut vec![1_u64; 1 + group.rank() / 2], |a, b| a + b);
        match error.unwrap_err() {
            RunError::Mismatched { rank: 2, here, there } => {
                assert_eq!(here, "all_reduce of u64, 1 items");
                // The part may arrive before this member has called.
                let known = ["all_reduce of u64, 2 items", "all_reduce of u64, more than 1 items"];
                assert!(known.contains(&&*there), "{there}");
                assert_eq!(group.rank(), 1);
            }
            RunError::GivenUp { missed: 2, .. } => assert_ne!(group.rank(), 1),
            other => panic!("{other:?}"),
        }
        over.wait();
    });
}

/// Barriers and reductions of one word across hosts, with ranks in blocks and by turns.
#[test]
fn barriers_and_reductions_hold_across_hosts() {
    for size in [2, 3, 5, 8, 9] {
        for marks in layouts(size) {
            let came = AtomicU32::new(0);
            together(&marks, |joining| {
                let group = joining.join(Handlers::new()).unwrap();
                for turn in 1..=40 {
                    came.fetch_add(1, Ordering::SeqCst);
                    group.barrier().unwrap();
                    assert!(came.load(Ordering::SeqCst) >= turn * size as u32);
                    let map = |rank: usize| ((1 + rank as u64) << 32) | u64::from(turn);
                    let all: Vec<_> = (0..size).map(|rank| vec![map(rank)]).collect();
                    let result = group.reduce(map(group.rank()), compose).unwrap();
                    assert_eq!(result, combined(&all)[0]);
                    group.barrier().unwrap();
                }
            });
        }
    }
}
