//! A group's buffer has a limit, and so has the machine's memory: a member that floods is stopped
//! there, and goes on by itself. No other member notices, and none waits for ever.

mod guard;

use guard::guarded;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use upcall_message::accounts::{self, MemberStatsReading, MemberStop};
use upcall_message::{Group, GroupBuilder, Handlers, Kind, SendError};
use upcall_os::headroom::Headroom;

const MIB: u64 = 1 << 20;
const BLOCK: [u64; 1024] = [7; 1024];

/// Maximum time of a wait, within the maximum time of a test.
const GUARD: Duration = Duration::from_secs(40);

fn together(size: usize, member: impl Fn(GroupBuilder) + Sync) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("overflow-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    guarded(size, |guard| {
        thread::scope(|scope| {
            for rank in 0..size {
                let (name, member) = (&name, &member);
                scope.spawn(move || {
                    guard.member(rank, || {
                        member(
                            GroupBuilder::new(name, size)
                                .rank(rank)
                                .timeout(Some(Duration::from_micros(50))),
                        )
                    })
                });
            }
        });
    });
}

/// A kind whose messages begin with a number, and are checked to come in order.
fn numbered(handlers: &mut Handlers, seen: &Rc<Cell<u64>>) -> Kind<[u64]> {
    let (block, seen) = (handlers.kind::<[u64]>("block"), seen.clone());
    handlers.on(block, move |_, _, words| {
        assert_eq!(words[0], seen.get());
        seen.set(seen.get() + 1);
    });
    block
}

fn block(number: u64) -> [u64; 1024] {
    let mut words = BLOCK;
    words[0] = number;
    words
}

fn take(group: &Group, seen: &Cell<u64>, all: u64) {
    while seen.get() < all {
        if group.poll() == 0 {
            assert!(group.wait(Some(GUARD)), "{} of {all}", seen.get());
        }
    }
}

/// Waits until a member in this process is stopped that `is_meant` accepts.
fn await_stop(is_meant: impl Fn(&MemberStatsReading, &MemberStop) -> bool) {
    let begun = Instant::now();
    loop {
        let own = accounts::of(std::process::id()).unwrap();
        let is_stopped = |member: &MemberStatsReading| {
            member.stopped.as_ref().is_some_and(|stop| is_meant(member, stop))
        };
        if own.iter().any(|account| is_stopped(&account.read())) {
            return;
        }
        assert!(begun.elapsed() < GUARD, "no member is stopped: {own:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_flood_is_stopped_and_goes_on_and_others_do_not_notice() {
    const ALL: u64 = 4000; // 32 MiB
    let (sent, others) = (AtomicU64::new(0), AtomicU64::new(0));
    together(3, |joining| {
        let seen = Rc::new(Cell::new(0));
        let mut handlers = Handlers::new();
        let kind = numbered(&mut handlers, &seen);
        let group = joining.limit(24 * MIB).join(handlers).unwrap();
        match group.rank() {
            0 => {
                for number in 0..ALL {
                    group.send(1, kind, &block(number)).unwrap();
                    sent.store(number + 1, Ordering::Relaxed);
                    assert!(group.buffered(1) <= 8 * MIB, "{}", group.buffered(1));
                }
            }
            1 => {
                // It does not poll until the flood is stopped; the third one's messages go on.
                await_stop(|member, stop| member.share == 8 * MIB && stop.rank == 1);
                let before = sent.load(Ordering::Relaxed);
                assert!((900..1200).contains(&before), "stopped at {before}");
                let (reached, begun) = (others.load(Ordering::Relaxed), Instant::now());
                while others.load(Ordering::Relaxed) <= reached + 10 {
                    assert!(begun.elapsed() < GUARD, "others are stopped, too");
                    thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(sent.load(Ordering::Relaxed), before, "it goes on");
                take(&group, &seen, ALL);
            }
            _ => {
                for number in 0.. {
                    group.send(2, kind, &block(number)).unwrap();
                    take(&group, &seen, number + 1);
                    others.store(number, Ordering::Relaxed);
                    if sent.load(Ordering::Relaxed) == ALL {
                        break;
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
        group.barrier().unwrap();
        // The last segment is left when its receiver is led on.
        (0..3).for_each(|rank| assert!(group.buffered(rank) <= MIB, "{}", group.buffered(rank)));
    });
}

/// A sender that waits for room takes the messages that arrive: no member polls before it has sent
/// all.
#[test]
fn members_that_flood_each_other_go_on() {
    // Not quite 5 MiB; and several times what the queue takes. Handlers answer each block, or do
    // not.
    for (timeout, all, answers) in [
        (Some(Duration::from_micros(50)), 600, false),
        (Some(Duration::ZERO), 600, false),
        (None, 40, false),
        (Some(Duration::from_micros(50)), 600, true),
        (None, 40, true),
    ] {
        for size in [2, 3] {
            together(size, |joining| {
                let seen = Rc::new(Cell::new(0));
                let mut handlers = Handlers::new();
                let kind = handlers.kind::<[u64]>("block");
                let answer = handlers.kind::<[u64]>("answer");
                let (here, answered) = (seen.clone(), Rc::new(Cell::new(0)));
                handlers.on(kind, move |group, from, words| {
                    assert_eq!(words[0], here.get());
                    here.set(here.get() + 1);
                    if answers {
                        group.send(from, answer, &words).unwrap();
                    }
                });
                let there = answered.clone();
                handlers.on(answer, move |_, _, _| there.set(there.get() + 1));
                let group = joining.limit(4 * MIB).timeout(timeout).join(handlers).unwrap();
                let next = (group.rank() + 1) % size;
                for number in 0..all {
                    group.send(next, kind, &block(number)).unwrap();
                }
                let expected = if answers { all } else { 0 };
                while seen.get() < all || answered.get() < expected {
                    if group.poll() == 0 {
                        assert!(
                            group.wait(Some(GUARD)),
                            "{} of {all} blocks, {} of {expected} answers",
                            seen.get(),
                            answered.get()
                        );
                    }
                }
                group.barrier().unwrap();
            });
        }
    }
}

/// Handlers that answer, and wait for room within each other, at members that flood each other with
/// messages of one word.
#[test]
fn handlers_that_answer_floods_of_small_messages_go_on() {
    const ALL: u64 = 30_000;
    for size in [2, 3] {
        together(size, |joining| {
            let (seen, answered) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let mut handlers = Handlers::new();
            let (number, answer) = (handlers.kind::<u64>("number"), handlers.kind::<u64>("answer"));
            let here = seen.clone();
            handlers.on(number, move |group, from, word| {
                assert_eq!(word, here.get());
                here.set(here.get() + 1);
                group.send(from, answer, &word).unwrap();
            });
            let there = answered.clone();
            handlers.on(answer, move |_, _, _| there.set(there.get() + 1));
            let group = joining.timeout(None).join(handlers).unwrap();
            let next = (group.rank() + 1) % size;
            (0..ALL).for_each(|word| group.send(next, number, &word).unwrap());
            while seen.get() < ALL || answered.get() < ALL {
                if group.poll() == 0 {
                    assert!(
                        group.wait(Some(GUARD)),
                        "{} numbers and {} answers of {ALL}",
                        seen.get(),
                        answered.get()
                    );
                }
            }
            group.barrier().unwrap();
        });
    }
}

/// Messages that no handler takes, more than may be buffered, to each other: that is the program's
/// fault, and a deadline ends it.
#[test]
fn a_deadline_ends_what_would_be_a_deadlock() {
    for (timeout, limit) in [(Some(Duration::from_micros(50)), 2 * MIB), (None, 4 * MIB)] {
        let both_stuck = Barrier::new(2);
        together(2, |joining| {
            let mut handlers = Handlers::new();
            let kind = handlers.kind::<[u64]>("block");
            let group = joining.limit(limit).timeout(timeout).join(handlers).unwrap();
            let other = 1 - group.rank();
            let send =
                |number| group.send_within(other, kind, &block(number), Duration::from_millis(20));
            let mut sent = 0;
            let stuck = loop {
                match send(sent) {
                    Ok(()) => sent += 1,
                    Err(error) => break error,
                }
            };
            assert!(stuck.to_string().contains("receive what waits here"), "{stuck}");
            match stuck {
                SendError::Overflow { rank, buffered, share } => {
                    assert_eq!((rank, share, timeout.is_some()), (other, limit / 2, true));
                    assert!(buffered <= share, "{buffered}");
                }
                SendError::Full => assert!(timeout.is_none()),
                error => panic!("{error}"),
            }
            both_stuck.wait();
            // No message is lost, and sending goes on.
            let (mut taken, all) = (0, sent + 1);
            let mut was_sent = false;
            while taken < all || !was_sent {
                was_sent = was_sent || send(sent).is_ok();
                let number = group.receive(|message| message.word(0));
                match number {
                    Ok(number) => {
                        assert_eq!(number, Some(taken));
                        taken += 1;
                    }
                    Err(_) => assert!(
                        !was_sent || taken == all || group.wait(Some(GUARD)),
                        "{taken} of {all}"
                    ),
                }
            }
            both_stuck.wait();
        });
    }
}

/// In a section no handler runs without a poll, even while a message waits for room.
#[test]
fn a_send_that_waits_in_a_section_runs_no_handlers() {
    let in_section = Barrier::new(2);
    together(2, |joining| {
        let seen = Rc::new(Cell::new(0));
        let mut handlers = Handlers::new();
        let kind = numbered(&mut handlers, &seen);
        let group = joining.timeout(None).join(handlers).unwrap();
        let other = 1 - group.rank();
        let mut sent = 0;
        let mut fill = || {
            while group.send_within(other, kind, &block(sent), Duration::from_millis(20)).is_ok() {
                sent += 1;
            }
            sent
        };
        let section = group.atomic();
        let full = fill();
        in_section.wait();
        assert_eq!((fill(), seen.get()), (full, 0));
        in_section.wait();
        drop(section);
        let all = full + 8;
        (full..all).for_each(|number| group.send(other, kind, &block(number)).unwrap());
        take(&group, &seen, all);
        group.barrier().unwrap();
    });
}

/// Passing time is no error: the receiver takes nothing for longer than a second, and then all. The
/// sender waits once for room in the queue, and once for its share of what may be buffered.
#[test]
fn a_sender_waits_for_a_silent_receiver_as_long_as_it_takes() {
    for (timeout, limit) in [(None, 64 * MIB), (Some(Duration::from_micros(50)), 2 * MIB)] {
        let is_full = Barrier::new(2);
        together(2, |joining| {
            let seen = Rc::new(Cell::new(0));
            let mut handlers = Handlers::new();
            let kind = numbered(&mut handlers, &seen);
            let group = joining.limit(limit).timeout(timeout).join(handlers).unwrap();
            if group.rank() == 0 {
                let mut sent = 0;
                while group.send_within(1, kind, &block(sent), Duration::from_millis(20)).is_ok() {
                    sent += 1;
                }
                is_full.wait();
                (sent..sent + 10).for_each(|number| group.send(1, kind, &block(number)).unwrap());
            } else {
                is_full.wait();
                thread::sleep(Duration::from_millis(1500));
            }
            group.barrier().unwrap();
            assert_eq!(seen.get() > 10, group.rank() == 1);
        });
    }
}

/// Both queues are full, and the first member, in a section, takes nothing before it has sent more.
/// The handlers of the second one wait for room themselves. The messages that they have taken make
/// room for the first.
#[test]
fn what_a_handler_has_taken_is_room_for_its_sender_while_it_waits_itself() {
    let are_full = Barrier::new(2);
    together(2, |joining| {
        let (seen, answered) = (Rc::new(Cell::new(0_u64)), Rc::new(Cell::new(0_u64)));
        let mut handlers = Handlers::new();
        let (number, answer) = (handlers.kind::<u64>("number"), handlers.kind::<u64>("answer"));
        let here = seen.clone();
        handlers.on(number, move |group, from, _| {
            here.set(here.get() + 1);
            group.send_within(from, answer, &0, GUARD).expect("room for an answer");
        });
        let there = answered.clone();
        handlers.on(answer, move |_, _, _| there.set(there.get() + 1));
        let group = joining.timeout(None).join(handlers).unwrap();
        let (other, kind) = if group.rank() == 0 { (1, number) } else { (0, answer) };
        let section = group.atomic();
        let mut sent = 0_u64;
        while group.try_send(other, kind, &sent).is_ok() {
            sent += 1;
        }
        are_full.wait();
        if group.rank() == 0 {
            group.send_within(1, number, &0, GUARD).expect("room for a number");
        }
        drop(section);
        group.barrier().unwrap();
        let all = if group.rank() == 0 { &answered } else { &seen };
        while all.get() <= sent {
            assert!(group.poll() > 0 || group.wait(Some(GUARD)), "{} of {sent}", all.get());
        }
        group.barrier().unwrap();
    });
}

#[test]
fn who_always_diverts_goes_on_with_any_share_once_all_is_taken() {
    const ALL: u64 = 300; // More than two segments.
    together(2, |joining| {
        let seen = Rc::new(Cell::new(0));
        let mut handlers = Handlers::new();
        let kind = numbered(&mut handlers, &seen);
        let group = joining.limit(2 * MIB).timeout(Some(Duration::ZERO)).join(handlers).unwrap();
        if group.rank() == 0 {
            let begun = Instant::now();
            for number in 0..ALL {
                // Without a wait, so that this fails instead of waiting for ever.
                while let Err(error) = group.try_send(1, kind, &block(number)) {
                    assert!(matches!(error, SendError::Full), "{error}");
                    assert!(
                        begun.elapsed() < Duration::from_secs(60),
                        "stopped at {number} with {} bytes buffered",
                        group.buffered(1)
                    );
                    thread::sleep(Duration::from_micros(100));
                }
            }
        } else {
            take(&group, &seen, ALL);
        }
    });
}

#[test]
fn who_does_not_wait_is_refused_at_the_limit() {
    let stop = AtomicBool::new(false);
    together(2, |joining| {
        let seen = Rc::new(Cell::new(0));
        let mut handlers = Handlers::new();
        let kind = numbered(&mut handlers, &seen);
        let group = joining.limit(4 * MIB).join(handlers).unwrap();
        if group.rank() == 0 {
            let (mut number, mut refused) = (0, 0);
            while refused < 2000 {
                match group.try_send(1, kind, &block(number)) {
                    Ok(()) => (number, refused) = (number + 1, 0),
                    Err(SendError::Full) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
                if refused > 0 {
                    thread::sleep(Duration::from_micros(100));
                }
            }
            assert_eq!(group.buffered(1), 2 * MIB);
            stop.store(true, Ordering::Relaxed);
            // The last segment is left when another message is sent.
            while group.buffered(1) > MIB {
                thread::sleep(Duration::from_millis(1));
            }
            group.try_send(1, kind, &block(number)).unwrap();
            group.barrier().unwrap();
        } else {
            while !stop.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
            group.barrier().unwrap();
            assert!(seen.get() > 250, "{}", seen.get());
        }
    });
}

/// A message longer than a segment counts, even if it is the first that is buffered for its
/// receiver. A single one goes, however long.
#[test]
fn long_messages_count_from_the_first_one_on() {
    let sent = Barrier::new(3);
    together(3, |joining| {
        let mut handlers = Handlers::new();
        let long: Kind<[u8]> = handlers.kind("long");
        let group = joining.limit(9 * MIB).join(handlers).unwrap();
        let taken = |size: u64| {
            let ends = Instant::now() + Duration::from_secs(40);
            // Messages of the barrier wake, too.
            while group.receive(|message| assert_eq!(message.size(), size as usize)).is_err() {
                assert!(Instant::now() < ends, "nothing comes");
                group.wait(Some(Duration::from_secs(1)));
            }
        };
        match group.rank() {
            0 => {
                // Its share is 3 MiB.
                group.try_send(1, long, &vec![1; 5 << 20]).unwrap();
                let refused = group.try_send(2, long, &vec![2; 2 << 20]);
                assert!(matches!(refused, Err(SendError::Full)), "{refused:?}");
                group.try_send(2, long, &[2; 1000]).unwrap();
                sent.wait();
                // It goes on by itself, once the first one is taken.
                group.send(2, long, &vec![3; 2 << 20]).unwrap();
            }
            1 => {
                sent.wait();
                taken(5 << 20);
            }
            _ => {
                sent.wait();
                taken(1000);
                taken(2 << 20);
            }
        }
        group.barrier().unwrap();
    });
}

#[test]
fn with_little_memory_left_nobody_buffers_more_and_all_go_on_when_there_is_more() {
    const ALL: u64 = 1000; // 8 MiB
    static LEFT: AtomicU64 = AtomicU64::new(1000);
    let sent = AtomicU64::new(0);
    together(2, |joining| {
        let seen = Rc::new(Cell::new(0));
        let mut handlers = Handlers::new();
        let kind = numbered(&mut handlers, &seen);
        let headroom = || Some(Headroom { left: LEFT.load(Ordering::Relaxed), of: 1000 });
        let group = joining.headroom(headroom).join(handlers).unwrap();
        if group.rank() == 0 {
            for number in 0..ALL {
                if number == ALL / 2 {
                    LEFT.store(50, Ordering::Relaxed);
                }
                group.send(1, kind, &block(number)).unwrap();
                sent.store(number + 1, Ordering::Relaxed);
            }
        } else {
            // One segment more, or two, until it checks.
            await_stop(|_, stop| stop.memory_is_low && stop.rank == 1);
            let at = sent.load(Ordering::Relaxed);
            assert!((ALL / 2 - 1..ALL - 100).contains(&at), "{at}");
            LEFT.store(500, Ordering::Relaxed);
            let begun = Instant::now();
            while sent.load(Ordering::Relaxed) != ALL {
                assert!(begun.elapsed() < GUARD, "{} of {ALL}", sent.load(Ordering::Relaxed));
                thread::sleep(Duration::from_millis(1));
            }
            take(&group, &seen, ALL);
        }
        group.barrier().unwrap();
    });
}
