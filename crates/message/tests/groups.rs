//! Members as threads of one process: each message is taken exactly once and in order, however long
//! its receiver does not poll.

mod guard;

use guard::guarded;
use std::cell::{Cell, RefCell};
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use upcall_message::{
    Event, Group, GroupBuilder, Handlers, JoinError, Kind, NothingThere, Pacing, RunError,
    SendError,
};

/// Maximum time of a wait, within the maximum time of a test.
const GUARD: Duration = Duration::from_secs(40);

fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("groups-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs `member` as each of the members of a group, on one host and as if on several.
fn together(size: usize, member: impl Fn(GroupBuilder) + Sync) {
    MemberHosts::ALL.iter().for_each(|hosts| hosts.run(size, &member));
}

/// Where the members of a group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberHosts {
    One,
    /// Each has its own, as it seems.
    Several,
}

impl MemberHosts {
    const ALL: [Self; 2] = [Self::One, Self::Several];

    fn run(self, size: usize, member: impl Fn(GroupBuilder) + Sync) {
        match self {
            Self::One => near(size, member),
            Self::Several => across(size, member),
        }
    }
}

/// Runs `member` as each of the members of a group on one host.
fn near(size: usize, member: impl Fn(GroupBuilder) + Sync) {
    let name = name();
    all(size, |rank| member(GroupBuilder::new(&name, size).rank(rank)));
}

/// Runs `member` as each of the members of a group, each on a host of its own as it seems.
fn across(size: usize, member: impl Fn(GroupBuilder) + Sync) {
    // Each member takes two of the process's places to wait for messages.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (name, address) = (name(), free_address());
    all(size, |rank| {
        let joining = GroupBuilder::new(&name, size).rank(rank);
        member(joining.across(&address).apart(rank as u64));
    });
}

fn all(size: usize, member: impl Fn(usize) + Sync) {
    guarded(size, |guard| {
        thread::scope(|scope| {
            for rank in 0..size {
                let member = &member;
                scope.spawn(move || guard.member(rank, || member(rank)));
            }
        });
    });
}

/// A loopback address at which nothing listens: no other process and no other call uses the same.
fn free_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    format!("127.{}.{}.{number}:7411", 1 + (process >> 8) % 250, process & 0xFF)
}

fn until(group: &Group, mut done: impl FnMut() -> bool) {
    while !done() {
        if group.poll() == 0 && !done() {
            assert!(group.wait(Some(GUARD)) || done(), "nothing comes to member {}", group.rank());
        }
    }
}

#[test]
fn a_token_goes_round() {
    for pacing in [Pacing::Adaptive, Pacing::Sleep] {
        together(4, |joining| {
            let done = Rc::new(Cell::new(0));
            let mut handlers = Handlers::new();
            let token = handlers.kind::<u64>("token");
            let seen = done.clone();
            handlers.on(token, move |group, from, hops| {
                assert_eq!((from + 1) % 4, group.rank());
                seen.set(hops);
                if hops < 2000 {
                    group.send((group.rank() + 1) % 4, token, &(hops + 1)).unwrap();
                }
            });
            let group = joining.pacing(pacing).join(handlers).unwrap();
            if group.rank() == 0 {
                group.send(1, token, &1).unwrap();
            }
            until(&group, || done.get() + 4 > 2000);
        });
    }
}

/// Each sends to each, itself included, in all ways of waiting for room, and in every order of
/// turns.
#[test]
fn all_to_all_is_taken_once_and_in_order() {
    const EACH: u64 = 30_000;
    for timeout in [Some(Duration::ZERO), Some(Duration::from_micros(50)), None] {
        let each = if timeout == Some(Duration::ZERO) { 2000 } else { EACH };
        together(4, |joining| {
            let expected = Rc::new(RefCell::new([0_u64; 4]));
            let mut handlers = Handlers::new();
            let (number, text) =
                (handlers.kind::<(u64, u32)>("number"), handlers.kind::<str>("text"));
            let check = {
                let expected = expected.clone();
                move |from: usize, value: u64| {
                    let next = &mut expected.borrow_mut()[from];
                    assert_eq!(value, *next, "from {from}");
                    *next += 1;
                }
            };
            let on_text = check.clone();
            handlers.on(number, move |group, from, (value, to)| {
                assert_eq!(to as usize, group.rank());
                check(from, value);
            });
            handlers.on(text, move |_, from, text| on_text(from, text.trim().parse().unwrap()));
            let group = joining.timeout(timeout).join(handlers).unwrap();
            for value in 0..each {
                for to in 0..4 {
                    if value % 7 == 3 {
                        group
                            .send(to, text, &format!("{value}{}", " ".repeat(value as usize % 50)))
                            .unwrap();
                    } else {
                        group.send(to, number, &(value, to as u32)).unwrap();
                    }
                }
                // Without a timeout, a sender that waits for room takes nothing.
                if timeout.is_none() || value % 1000 == group.rank() as u64 {
                    group.poll();
                }
            }
            until(&group, || *expected.borrow() == [each; 4]);
            // All messages arrive, although the others leave one by one.
        });
    }
}

#[test]
fn the_messages_of_one_member_are_taken_while_those_of_another_wait() {
    let (all_sent, all_taken) = (Barrier::new(3), Barrier::new(3));
    together(3, |joining| {
        let mut handlers = Handlers::new();
        let data = handlers.kind::<u64>("data");
        let group = joining.join(handlers).unwrap();
        if group.rank() > 0 {
            (0..3).for_each(|number| group.send(0, data, &number).unwrap());
            all_sent.wait();
            all_taken.wait();
            return;
        }
        all_sent.wait();
        // The queues may still be on their way.
        let mut waiting = group.waiting();
        while waiting.len() < 2 {
            assert!(group.wait(Some(GUARD)));
            waiting = group.waiting();
        }
        waiting.sort_unstable();
        assert_eq!(waiting, [1, 2]);
        let of = |rank| group.receive_from(rank, |one| (one.from(), one.get(data)));
        for number in 0..3 {
            assert_eq!(of(2), Ok((2, Some(number))));
        }
        assert_eq!(
            (of(2), of(0), of(9)),
            (Err(NothingThere), Err(NothingThere), Err(NothingThere))
        );
        assert_eq!(group.waiting(), [1]);
        assert_eq!(group.taken(), 3);
        assert_eq!(group.receive(|one| (one.from(), one.get(data))), Ok((1, Some(0))));
        all_taken.wait();
        // The end of a member is noticed here, too, after its last message.
        while group.event() != Some(Event::Ended { rank: 1 }) {
            let _ = of(1);
        }
    });
}

#[test]
fn a_receiver_that_looks_away_loses_nothing_and_gives_the_memory_back() {
    let all_sent = Barrier::new(2);
    together(2, |joining| {
        let mut handlers = Handlers::new();
        let (data, done) = (handlers.kind::<[u64; 16]>("data"), handlers.kind::<()>("done"));
        let group = joining.join(handlers).unwrap();
        const COUNT: u64 = 200_000;
        if group.rank() == 0 {
            for number in 0..COUNT {
                group.send(1, data, &[number; 16]).unwrap();
            }
            assert!(group.buffered(1) > 20 << 20, "{}", group.buffered(1));
            all_sent.wait();
            group.send(1, done, &()).unwrap();
            assert!(group.wait(Some(GUARD)));
            group.receive(|message| message.get(done).unwrap()).unwrap();
            // It has taken all, so the next message finds home.
            group.send(1, done, &()).unwrap();
            assert_eq!(group.buffered(1), 0);
        } else {
            all_sent.wait();
            let mut next = 0;
            let mut last = false;
            while !last {
                assert!(group.wait(Some(GUARD)), "after {next}");
                assert_eq!(group.event(), None, "after {next}");
                while group.available() && !last {
                    let peeked = group.peek(|message| message.get(data)).unwrap();
                    let taken = group
                        .receive(|message| (message.from(), message.get(data), message.get(done)))
                        .unwrap();
                    assert_eq!((taken.0, taken.1), (0, peeked));
                    last = taken.2.is_some();
                    if let Some(data) = taken.1 {
                        assert_eq!(data, [next; 16]);
                        next += 1;
                    }
                }
            }
            assert_eq!(next, COUNT);
            assert_eq!(group.receive(|_| ()), Err(NothingThere));
            group.send(0, done, &()).unwrap();
            assert!(group.wait(Some(GUARD)));
        }
    });
}

#[test]
fn memory_of_long_messages_is_kept_for_a_while() {
    let over = Barrier::new(2);
    // Between hosts such a message goes past the queue.
    near(2, |joining| {
        let mut handlers = Handlers::new();
        let data = handlers.kind::<[u8]>("data");
        let group = joining.join(handlers).unwrap();
        let take = || {
            while group.receive(|message| message.size()) != Ok(100_000) {
                assert!(group.wait(Some(GUARD)));
            }
        };
        for _ in 0..3 {
            if group.rank() == 0 {
                let (start, settled) = (Instant::now(), Duration::from_millis(10));
                group.send(1, data, &[1; 100_000][..]).unwrap();
                let left = group.settle();
                // On a busy machine that time may have passed.
                let is_over = start.elapsed() >= settled;
                assert!(left.map_or(is_over, |left| left <= settled), "{left:?}");
                take();
                // Short waits add up.
                (0..20).for_each(|_| assert!(!group.wait(Some(Duration::from_millis(1)))));
                assert_eq!(group.settle(), None);
            } else {
                take();
                group.send(0, data, &[2; 100_000][..]).unwrap();
            }
        }
        over.wait();
    });
}

#[test]
fn try_send_says_full_and_then_diverts() {
    let all_sent = Barrier::new(2);
    near(2, |joining| {
        let mut handlers = Handlers::new();
        let data = handlers.kind::<[u8]>("data");
        let group = joining.timeout(Some(Duration::from_millis(20))).join(handlers).unwrap();
        if group.rank() == 0 {
            let (mut full, mut sent) = (0, 0_u32);
            while group.buffered(1) == 0 {
                match group.try_send(1, data, &[1; 1000]) {
                    Ok(()) => sent += 1,
                    Err(SendError::Full) => full += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(full > 0 && sent > 30);
            let long = vec![0; 1 << 30];
            assert!(matches!(
                group.send(1, data, &long),
                Err(SendError::TooLong { most }) if most == (1 << 30) - 16
            ));
            assert!(matches!(
                group.send(2, data, &[]),
                Err(SendError::NoSuchRank { rank: 2, size: 2 })
            ));
            group.send(1, data, &sent.to_le_bytes()).unwrap();
            all_sent.wait();
        } else {
            all_sent.wait();
            let mut count = 0;
            loop {
                assert!(group.wait(Some(GUARD)));
                let bytes = group.receive(|message| message.get(data).unwrap()).unwrap();
                if bytes.len() == 4 {
                    break assert_eq!(u32::from_le_bytes(bytes.try_into().unwrap()), count);
                }
                assert_eq!(bytes, [1; 1000]);
                count += 1;
            }
        }
    });
}

#[test]
fn handlers_may_send_poll_and_wait() {
    together(2, |joining| {
        let mut handlers = Handlers::new();
        let (ask, answer) = (handlers.kind::<u32>("ask"), handlers.kind::<u32>("answer"));
        let (answered, asked) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (seen, inner) = (answered.clone(), asked.clone());
        handlers.on(answer, move |_, _, value| seen.set(value));
        handlers.on(ask, {
            let answered = answered.clone();
            move |group, from, depth| {
                inner.set(inner.get() + 1);
                if depth > 0 {
                    answered.set(0);
                    group.send(from, ask, &(depth - 1)).unwrap();
                    // The answer comes through the queue that this message came through.
                    until(group, || answered.get() == depth);
                }
                group.send(from, answer, &(depth + 1)).unwrap();
            }
        });
        let group = joining.join(handlers).unwrap();
        if group.rank() == 0 {
            group.send(1, ask, &5).unwrap();
            until(&group, || answered.get() == 6);
        } else {
            until(&group, || asked.get() == 3);
        }
    });
}

#[test]
fn who_leaves_is_missed_after_all_that_it_has_sent() {
    together(3, |joining| {
        let mut handlers = Handlers::new();
        let data = handlers.kind::<u64>("data");
        let count = Rc::new(Cell::new(0));
        let seen = count.clone();
        handlers.on(data, move |_, from, value| {
            assert_eq!((from, value), (2, seen.get()));
            seen.set(value + 1);
        });
        let group = joining.join(handlers).unwrap();
        if group.rank() == 2 {
            for value in 0..20_000 {
                group.send(0, data, &value).unwrap();
                group.send(1, data, &value).unwrap();
            }
            return;
        }
        let mut event = None;
        while event.is_none() {
            group.poll();
            // The other receiver may be through first.
            let other = Event::Ended { rank: 1 - group.rank() };
            event = group.event().filter(|event| *event != other);
            assert!(
                event.is_some() || group.wait(Some(GUARD)),
                "{} taken, {}",
                count.get(),
                group.available()
            );
        }
        assert_eq!((event, count.get()), (Some(Event::Ended { rank: 2 }), 20_000));
        assert!(matches!(group.send(2, data, &1), Err(SendError::Ended { rank: 2 })));
    });
}

/// Member 1 sends `count` messages, and leaves. Member 0 calls `then` when it knows that member 1
/// has left, and before it takes any message.
fn after_its_end(joining: GroupBuilder, count: usize, on_data: fn(), then: impl FnOnce(&Group)) {
    let mut handlers = Handlers::new();
    let (hello, data) = (handlers.kind::<()>("hello"), handlers.kind::<()>("data"));
    handlers.on(data, move |_, _, _| on_data());
    let group = joining.join(handlers).unwrap();
    if group.rank() == 1 {
        while group.receive(|message| message.get(hello)).is_err() {
            assert!(group.wait(Some(GUARD)), "nothing comes");
        }
        (0..count).for_each(|_| group.send(0, data, &()).unwrap());
        return;
    }
    loop {
        match group.try_send(1, hello, &()) {
            Ok(()) | Err(SendError::Full) => thread::sleep(Duration::from_millis(1)),
            Err(SendError::Ended { rank: 1 }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    then(&group);
}

/// Maximum number of messages of one member that a poll takes.
const BATCH: usize = 64;

#[test]
fn the_end_of_a_member_comes_with_its_last_message_even_at_the_end_of_a_poll() {
    for count in [1, BATCH - 1, BATCH, BATCH + 1, 2 * BATCH] {
        together(2, |joining| {
            after_its_end(
                joining,
                count,
                || {},
                |group| {
                    let mut left = count;
                    while left > 0 {
                        assert_eq!((group.event(), group.poll()), (None, left.min(BATCH)));
                        left = left.saturating_sub(BATCH);
                    }
                    assert_eq!(group.event(), Some(Event::Ended { rank: 1 }), "of {count}");
                },
            );
        });
    }
}

#[test]
fn a_wait_finds_the_end_of_a_member_whose_last_message_made_a_handler_panic() {
    together(2, |joining| {
        // Without a report of the panic.
        let on_data = || std::panic::resume_unwind(Box::new("the handler panics"));
        after_its_end(joining, 1, on_data, |group| {
            let polled = std::panic::catch_unwind(AssertUnwindSafe(|| group.poll()));
            assert!(polled.is_err() && group.taken() == 1);
            assert!(group.wait(Some(GUARD)), "no event comes");
            assert_eq!(group.event(), Some(Event::Ended { rank: 1 }));
        });
    });
}

#[test]
fn nobody_passes_a_barrier_before_all_have_come() {
    let cases = [1, 2, 3, 5].into_iter().flat_map(|size| MemberHosts::ALL.map(|on| (size, on)));
    for (size, hosts) in cases {
        let (came, data_there) = (AtomicU32::new(0), AtomicU32::new(0));
        hosts.run(size, |joining| {
            let mut handlers = Handlers::new();
            let data = handlers.kind::<u64>("data");
            let last = Rc::new(Cell::new(0));
            let seen = last.clone();
            handlers.on(data, move |_, _, turn| seen.set(turn));
            let group = joining.join(handlers).unwrap();
            for turn in 1..=200 {
                came.fetch_add(1, Ordering::SeqCst);
                let next = (group.rank() + 1) % size;
                group.send(next, data, &u64::from(turn)).unwrap();
                group.barrier().unwrap();
                assert!(came.load(Ordering::SeqCst) >= turn * size as u32);
                // The preceding member has reported its arrival, behind its messages.
                assert!(size == 1 || last.get() >= u64::from(turn));
                data_there.fetch_add(1, Ordering::SeqCst);
            }
            group.barrier().unwrap();
        });
        assert_eq!(data_there.into_inner(), 200 * size as u32);
    }
}

#[test]
fn a_barrier_ends_when_a_member_does() {
    together(3, |joining| {
        let group = joining.join(Handlers::new()).unwrap();
        group.barrier().unwrap();
        if group.rank() == 1 {
            return;
        }
        for _ in 0..3 {
            let lost = group.barrier().unwrap_err();
            // The other one also ends when it has given up, or reports the end of member 1 before
            // this one sees it.
            let is_right = match lost {
                RunError::Lost(Event::Ended { rank }) => rank != group.rank(),
                RunError::GivenUp { missed, .. } => missed == 1,
                _ => false,
            };
            assert!(is_right, "{lost:?}");
        }
    });
}

#[test]
fn a_message_without_a_handler_is_told_and_not_waited_for() {
    let both_told = Barrier::new(2);
    together(2, |joining| {
        let mut handlers = Handlers::new();
        let data = handlers.kind::<u64>("data");
        let group = joining.join(handlers).unwrap();
        group.send(1 - group.rank(), data, &5).unwrap();
        let unhandled = RunError::Unhandled { rank: 1 - group.rank(), kind: "data".into() };
        assert_eq!(group.barrier(), Err(unhandled.clone()));
        assert_eq!(group.run_until(|| false), Err(unhandled.clone()));
        assert_eq!(group.reduce(1_u64, |a, b| a + b), Err(unhandled));
        // No message is lost, and both steps go on.
        assert_eq!(group.receive(|message| message.get(data)), Ok(Some(5)));
        assert_eq!(group.reduce(1_u64, |a, b| a + b), Ok(2));
        group.barrier().unwrap();
        // No member leaves before both have got the error.
        both_told.wait();
    });
}

/// A member that passes a barrier first may send messages that others take without a handler, while
/// they are still in the barrier.
#[test]
fn what_comes_after_a_barrier_does_not_end_it() {
    const ROUNDS: u64 = 200;
    for size in [2, 3, 5] {
        together(size, |joining| {
            let mut handlers = Handlers::new();
            let data = handlers.kind::<u64>("data");
            let group = joining.join(handlers).unwrap();
            for round in 0..ROUNDS {
                group.barrier().unwrap();
                for to in (0..size).filter(|to| *to != group.rank()) {
                    group.send(to, data, &round).unwrap();
                }
                for _ in 1..size {
                    let word = loop {
                        match group.receive(|message| message.get(data)) {
                            Ok(word) => break word,
                            Err(NothingThere) => assert!(
                                group.wait(Some(GUARD)),
                                "a message of round {round} is missing"
                            ),
                        }
                    };
                    assert_eq!(word, Some(round));
                }
            }
        });
    }
}

#[test]
fn what_does_not_fit_together_is_refused_by_name() {
    let join = |name: &str, joining: fn(GroupBuilder) -> GroupBuilder, kinds: fn(&mut Handlers)| {
        let mut handlers = Handlers::new();
        kinds(&mut handlers);
        let joining = joining(GroupBuilder::new(name, 2).within(GUARD));
        joining.join(handlers).map(|group| (group.rank(), group.size()))
    };
    let one = |handlers: &mut Handlers| _ = handlers.kind::<u64>("a");
    let name = name();
    thread::scope(|scope| {
        let leader = scope.spawn(|| join(&name, |joining| joining.rank(1), one));
        let (begun, folder) = (Instant::now(), upcall_directory::names::folder().unwrap());
        while folder.join(format!("group.{name}")).symlink_metadata().is_err() {
            assert!(begun.elapsed() < GUARD, "no member leads");
            thread::sleep(Duration::from_millis(1));
        }
        let refused = |joining, kinds, expected: &str| match join(&name, joining, kinds) {
            Err(error @ JoinError::Refused { .. }) => {
                assert!(error.to_string().contains(expected), "{error}")
            }
            other => panic!("{other:?}"),
        };
        refused(
            |joining| joining,
            |_| {},
            "kind 0 of its messages is \"a\" that carries u64 there, and none here",
        );
        refused(
            |joining| joining,
            |handlers| _ = handlers.kind::<u32>("a"),
            "\"a\" that carries u32 here",
        );
        refused(|joining| joining.rank(1), one, "rank 1 is taken by process");
        let other_size = GroupBuilder::new(&name, 3).within(GUARD).join(Handlers::new());
        assert!(
            other_size
                .unwrap_err()
                .to_string()
                .contains("it is to have 2 members, and this process expects 3")
        );
        assert_eq!(join(&name, |joining| joining, one).unwrap(), (0, 2));
        assert_eq!(leader.join().unwrap().unwrap(), (1, 2));
    });
    let alone = GroupBuilder::new(&name, 2)
        .within(Duration::from_millis(50))
        .join(Handlers::new())
        .unwrap_err();
    assert!(alone.to_string().contains("1 of 2 are there"), "{alone}");
    for (bad, rank) in [(0, 0), (5000, 0), (2, 2)] {
        let error = GroupBuilder::new(&name, bad).rank(rank).join(Handlers::new()).unwrap_err();
        assert!(matches!(error, JoinError::BadSize { .. }), "{error}");
    }
    assert!(matches!(
        GroupBuilder::new("a/b", 1).join(Handlers::new()),
        Err(JoinError::BadName { .. })
    ));
    // A group of one sends to itself.
    let mut handlers = Handlers::new();
    let kind: Kind<f64> = handlers.kind("self");
    let group = GroupBuilder::new(&name, 1).join(handlers).unwrap();
    group.send(0, kind, &0.5).unwrap();
    assert!(group.wait(Some(GUARD)));
    assert_eq!(group.receive(|message| message.get(kind)), Ok(Some(0.5)));
}

#[test]
fn nothing_is_left_in_the_folder() {
    let name = name();
    let group = GroupBuilder::new(&name, 1).join(Handlers::new()).unwrap();
    let here = || {
        let entries =
            std::fs::read_dir(upcall_directory::names::folder().unwrap()).unwrap().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| {
                name.starts_with(&format!("member.{}.", std::process::id()))
                    || name.contains("group.groups-")
            })
            .count()
    };
    let with = here();
    drop(group);
    assert!(here() < with);
}

/// Messages of all sizes between each other, taken by handlers that copy, by handlers that read in
/// shared memory, and by `receive`.
#[test]
fn messages_of_any_size_come_whole_and_in_order() {
    // Each length in each way, several times.
    const EACH: u32 = 72;
    let size = |number: u32| match number % 6 {
        0 => 0,
        1 => 16_376,
        2 => 16_377 + number as usize,
        3 => (1 << 20) - 16 + (number as usize % 32),
        4 => 3_000_000 + number as usize,
        _ => number as usize,
    };
    let byte = |number: u32, at: usize| (number as usize ^ at ^ at >> 8 ^ at >> 16) as u8;
    for timeout in [Some(Duration::ZERO), Some(Duration::from_micros(50)), None] {
        together(2, |joining| {
            let next = Rc::new(Cell::new(0_u32));
            let mut handlers = Handlers::new();
            let (copied, in_place, by_hand) = (
                handlers.kind::<[u8]>("copied"),
                handlers.kind::<[u8]>("in place"),
                handlers.kind::<[u8]>("by hand"),
            );
            let (of_copies, of_places) = (next.clone(), next.clone());
            let check = move |number: u32, bytes: &[u8]| {
                assert_eq!(bytes.len(), size(number));
                assert!(
                    bytes.iter().enumerate().all(|(at, value)| *value == byte(number, at)),
                    "message {number}"
                );
            };
            handlers.on(copied, move |_, _, bytes| {
                check(of_copies.get(), &bytes);
                of_copies.set(of_copies.get() + 1);
            });
            handlers.on_message(in_place, move |_, message| {
                let (number, mut part) = (of_places.get(), [0; 7]);
                assert_eq!(message.size(), size(number));
                for at in (0..message.size().saturating_sub(7)).step_by(997) {
                    message.copy_out(at, &mut part).unwrap();
                    assert!(
                        part.iter().enumerate().all(|(i, value)| *value == byte(number, at + i)),
                        "message {number}"
                    );
                }
                assert!(message.copy_out(message.size(), &mut part).is_none());
                of_places.set(number + 1);
            });
            let group = joining.timeout(timeout).join(handlers).unwrap();
            if group.rank() == 0 {
                for number in 0..EACH {
                    let bytes: Vec<u8> = (0..size(number)).map(|at| byte(number, at)).collect();
                    group
                        .send(1, [copied, in_place, by_hand][number as usize % 3], &bytes)
                        .unwrap();
                }
            } else {
                while next.get() < EACH {
                    if group.poll() == 0 && !group.available() {
                        assert!(group.wait(Some(GUARD)));
                    }
                    let _ = group.receive(|message| {
                        let bytes = message
                            .get([copied, in_place, by_hand][next.get() as usize % 3])
                            .unwrap();
                        check(next.get(), &bytes);
                        next.set(next.get() + 1);
                    });
                }
            }
            group.barrier().unwrap();
        });
    }
}

#[test]
fn what_is_reduced_is_the_same_for_all_and_in_the_order_of_ranks() {
    for size in [1, 2, 3, 5, 8] {
        together(size, |joining| {
            let group = joining.join(Handlers::new()).unwrap();
            let rank = group.rank() as u64;
            for round in 0..200 {
                assert_eq!(
                    group.reduce(rank + round, |a, b| a + b).unwrap(),
                    (0..size as u64).map(|rank| rank + round).sum()
                );
                // Associative, and not commutative: digits one behind the other, each with its own
                // place value.
                let digits = group.reduce((rank + 1) | 10 << 32, |a, b| {
                    let scale = b >> 32;
                    ((a & 0xffff_ffff) * scale + (b & 0xffff_ffff)) | ((a >> 32) * scale) << 32
                });
                assert_eq!(
                    digits.unwrap() & 0xffff_ffff,
                    (1..=size as u64).fold(0, |number, digit| number * 10 + digit)
                );
                assert_eq!(group.reduce(-(rank as i64), i64::min).unwrap(), 1 - size as i64);
                assert_eq!(group.reduce(0.5, f64::max).unwrap(), 0.5);
                if round % 16 == 0 {
                    group.barrier().unwrap();
                }
            }
        });
    }
}

/// Members give up and start again at any moment, while others go on.
#[test]
fn barriers_and_reductions_that_are_interrupted_go_on() {
    const ROUNDS: u64 = 300;
    let interrupted = AtomicU32::new(0);
    for size in [2, 3, 5] {
        let came = AtomicU32::new(0);
        together(size, |joining| {
            let (joined, asked) = (Rc::new(Cell::new(false)), Cell::new(0_u32));
            let mut handlers = Handlers::new();
            let is_joined = joined.clone();
            handlers.interruption(move || {
                asked.set(asked.get() + 1);
                // It is called in the wait, and once more after that.
                is_joined.get() && asked.get() % 4 >= 2
            });
            let group = joining.join(handlers).unwrap();
            joined.set(true);
            let rank = group.rank() as u64;
            for round in 1..=ROUNDS {
                came.fetch_add(1, Ordering::SeqCst);
                while let Err(error) = group.barrier() {
                    assert_eq!(error, RunError::Interrupted);
                    interrupted.fetch_add(1, Ordering::Relaxed);
                }
                assert!(came.load(Ordering::SeqCst) >= round as u32 * size as u32);
                let sum = loop {
                    match group.reduce(rank + round, |a, b| a + b) {
                        Ok(sum) => break sum,
                        Err(error) => {
                            assert_eq!(error, RunError::Interrupted);
                            interrupted.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                };
                assert_eq!(sum, (0..size as u64).map(|rank| rank + round).sum::<u64>());
            }
        });
    }
    assert!(interrupted.into_inner() > 0);
}

#[test]
fn a_reduction_ends_with_its_members() {
    together(4, |joining| {
        let group = joining.join(Handlers::new()).unwrap();
        group.barrier().unwrap();
        if group.rank() != 3 {
            let error = group.reduce(1_u64, |a, b| a + b).unwrap_err();
            // Another member may report the end of member 3 before this one sees it.
            let is_right = matches!(
                error,
                RunError::Lost(Event::Ended { .. }) | RunError::GivenUp { missed: 3, .. }
            );
            assert!(is_right, "{error}");
        }
    });
}

/// A member's queue and messages come before the event that it has left, even if this was its first
/// message.
#[test]
fn who_leaves_at_once_has_sent_all_the_same() {
    for round in 0..60 {
        together(2, |joining| {
            let mut handlers = Handlers::new();
            let last = handlers.kind::<u64>("last");
            let group = joining.join(handlers).unwrap();
            if group.rank() == 0 {
                // The path to the other is closed by the other's leaving; the path from it is
                // opened just before that.
                group.send(1, last, &round).unwrap();
            }
            while !group.available() {
                assert_eq!(group.event(), None, "round {round}");
                group.wait(None);
                let _ = group.peek(|_| ());
            }
            assert_eq!(group.receive(|message| message.get(last)), Ok(Some(round)));
            if group.rank() == 1 {
                group.send(0, last, &round).unwrap();
            }
        });
    }
}

/// The message is received after the barrier. Member 0 does not itself wait for member 1, which has
/// sent it.
#[test]
fn a_barrier_sleeps_beside_a_message_that_is_received_later() {
    together(4, |joining| {
        let mut handlers = Handlers::new();
        let data = handlers.kind::<u32>("data");
        let group = joining.join(handlers).unwrap();
        let used = || {
            let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
        };
        match group.rank() {
            0 => {
                assert!(group.wait(Some(GUARD)), "nothing comes");
                let before = used();
                group.barrier().unwrap();
                let spent = used() - before;
                assert!(
                    spent < Duration::from_millis(500),
                    "the barrier took {spent:?} of processor time"
                );
                assert_eq!(group.receive(|message| message.get(data)).unwrap(), Some(7));
            }
            1 => {
                group.send(0, data, &7).unwrap();
                thread::sleep(Duration::from_secs(1));
                group.barrier().unwrap();
            }
            _ => group.barrier().unwrap(),
        }
    });
}

/// The clerk takes the queue in. In most groups that takes longer than the first probe for its
/// answer.
#[test]
fn what_a_member_sends_to_itself_is_there_at_once() {
    for round in 0..100 {
        let mut handlers = Handlers::new();
        let data = handlers.kind::<u32>("data");
        let group = GroupBuilder::new(&name(), 1).join(handlers).unwrap();
        group.send(0, data, &round).unwrap();
        assert_eq!(group.receive(|message| message.get(data)).unwrap(), Some(round));
    }
}

/// The report of a barrier comes before messages that were sent after it, and after those before.
#[test]
fn messages_of_kinds_without_a_handler_may_follow_a_barrier_between_hosts() {
    across(2, |joining| {
        let mut handlers = Handlers::new();
        let noise = handlers.kind::<u64>("noise");
        handlers.on(noise, |_, _, _| {});
        let after = handlers.kind::<u64>("after");
        let group = joining.upcalls(false).join(handlers).unwrap();
        for round in 0..300_u64 {
            if group.rank() == 0 {
                (0..300).for_each(|number| group.send(1, noise, &number).unwrap());
                group.barrier().unwrap();
                group.send(1, after, &round).unwrap();
                continue;
            }
            group.barrier().unwrap();
            loop {
                match group.receive(|message| message.get(after)) {
                    Ok(found) => break assert_eq!(found, Some(round)),
                    Err(NothingThere) => _ = group.poll() == 0 && group.wait(Some(GUARD)),
                }
            }
        }
    });
}

#[test]
fn members_with_more_under_way_than_there_is_room_for_leave_all_the_same() {
    let all_sent = Barrier::new(2);
    across(2, |joining| {
        let mut handlers = Handlers::new();
        let data = handlers.kind::<[u8]>("data");
        // With a longer patience the test would take longer than its guard.
        let joining = joining.reconnect_within(4 * GUARD);
        let group = joining.upcalls(false).join(handlers).unwrap();
        for _ in 0..8000 {
            group.send(1 - group.rank(), data, &[7; 1024]).unwrap();
        }
        all_sent.wait();
    });
}

#[test]
fn a_patience_without_end_is_cut_short() {
    across(2, |joining| {
        let joining = joining.reconnect_within(Duration::MAX).lost_after(Duration::MAX);
        joining.join(Handlers::new()).unwrap();
    });
}

/// The receiver's limit bounds what it takes at once.
#[test]
fn a_message_that_its_receiver_does_not_take_is_not_sent() {
    across(2, |joining| {
        let mut handlers = Handlers::new();
        let data = handlers.kind::<[u8]>("data");
        // Each knows its rank only later, and the limits have to differ.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let limit = [1 << 30, 8 << 20][NEXT.fetch_add(1, Ordering::Relaxed) as usize % 2];
        let group = joining.limit(limit).join(handlers).unwrap();
        let other = 1 - group.rank();
        match group.send(other, data, &vec![7; 10 << 20]) {
            Err(SendError::TooLong { most }) => assert_eq!((most, limit), (4 << 20, 1 << 30)),
            sent => assert_eq!((sent.map_err(|error| error.to_string()), limit), (Ok(()), 8 << 20)),
        }
        if limit == 1 << 30 {
            until(&group, || group.available());
            assert_eq!(group.receive(|message| message.size()), Ok(10 << 20));
        }
    });
}

#[test]
fn groups_leave_no_threads_and_no_descriptors_behind() {
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let some = || {
        across(2, |joining| {
            let mut handlers = Handlers::new();
            let data = handlers.kind::<u64>("data");
            handlers.on(data, |_, _, _| {});
            let group = joining.join(handlers).unwrap();
            group.send(1 - group.rank(), data, &1).unwrap();
            group.barrier().unwrap();
        });
    };
    (0..30).for_each(|_| some());
    // Other tests of this process have some of them, too, and those of ended groups may last for a
    // moment. Thirty groups would have left 120 threads.
    let start = std::time::Instant::now();
    while count("task") > 60 || count("fd") > 400 {
        assert!(start.elapsed() < GUARD, "{} threads, {} files", count("task"), count("fd"));
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_address_that_is_none_is_reported() {
    for (address, within) in [("nowhere", 60_000), ("nowhere.invalid:7411", 1)] {
        let joining = GroupBuilder::new(&name(), 2).within(Duration::from_millis(within));
        let error = joining.across(address).join(Handlers::new()).map(drop).unwrap_err();
        assert!(error.to_string().contains(address), "{error}");
    }
}
