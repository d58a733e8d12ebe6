//! Messages that are read in shared memory: nothing is copied, and no other code takes a held
//! message until it is let go.

mod guard;

use guard::guarded;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};
use upcall_message::{
    Carried, Event, ForeignKind, Group, GroupBuilder, Handlers, Held, Kind, Message, NothingThere,
};
use upcall_shm::span::copied;

/// Copies are counted for the whole process, so tests run one after the other.
static ONE_BY_ONE: Mutex<()> = Mutex::new(());

const LARGE: usize = 64 << 20;

fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("in-place-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A group of one, which sends itself bytes and numbers.
fn alone() -> (Group, Kind<[u8]>, Kind<u64>) {
    let mut handlers = Handlers::new();
    let (bytes, number) = (handlers.kind("bytes"), handlers.kind("number"));
    (GroupBuilder::new(&name(), 1).join(handlers).unwrap(), bytes, number)
}

fn any(_: &Message<'_, '_>) -> bool {
    true
}

fn number(held: &Held) -> Option<u64> {
    held.lying().payload().u64(0)
}

/// A copy of the next message.
fn next(group: &Group, kind: Kind<u64>) -> Option<u64> {
    group.receive(|message| message.get(kind)).ok()?
}

#[test]
fn a_large_message_is_read_without_a_copy() {
    let _alone = ONE_BY_ONE.lock();
    let (group, bytes, _) = alone();
    let mut large = vec![0_u8; LARGE];
    (large[0], large[LARGE - 1]) = (3, 5);
    let ends = |message: &Message<'_, '_>| {
        let payload = message.payload();
        assert_eq!((payload.len(), payload.u8(LARGE)), (LARGE, None));
        assert_eq!(message.word(0), Some(3));
        (payload.u8(0), payload.u8(LARGE - 1))
    };
    for held in [false, true] {
        let before = copied();
        group.send(0, bytes, &large[..]).unwrap();
        let sent = copied();
        let found = if held {
            assert_eq!(group.peek_held(any).unwrap().lying().payload().len(), LARGE);
            let held = group.receive_held(any).unwrap();
            let payload = held.lying().payload();
            assert!(!payload.as_ptr().is_null());
            (payload.u8(0), payload.u8(LARGE - 1))
        } else {
            assert_eq!(group.peek(ends).unwrap(), (Some(3), Some(5)));
            group.receive(ends).unwrap()
        };
        assert_eq!(found, (Some(3), Some(5)));
        let taken = copied();
        match (before, sent, taken) {
            (Some(before), Some(sent), Some(taken)) => {
                assert_eq!((sent - before, taken - sent), (LARGE as u64, 0))
            }
            _ => println!("not counted in this build"),
        }
        assert!(!group.available());
    }
}

#[test]
fn it_is_written_to_a_descriptor_from_where_it_lies() {
    let _alone = ONE_BY_ONE.lock();
    let (group, bytes, _) = alone();
    group.send(0, bytes, b"from where it lies").unwrap();
    let (from, to) = std::io::pipe().unwrap();
    let written = group.receive(|message| message.payload().write_to(to.as_fd()).unwrap()).unwrap();
    drop(to);
    assert_eq!(
        (written, std::io::read_to_string(from).unwrap().as_str()),
        (18, "from where it lies")
    );
}

#[test]
fn what_is_held_is_in_nobodys_way_and_order_is_kept() {
    let _alone = ONE_BY_ONE.lock();
    let (group, _, kind) = alone();
    (1..=3).for_each(|value| group.send(0, kind, &value).unwrap());
    // The message stays.
    let peeked = group.peek_held(any).unwrap();
    assert_eq!((number(&peeked), peeked.lying().kind(), peeked.lying().from()), (Some(1), 1, 0));
    assert!(!group.available() && !group.wait(Some(Duration::from_millis(1))));
    assert_eq!(group.receive(|_| ()), Err(NothingThere));
    assert_eq!(group.peek_held(any).err(), Some(NothingThere));
    assert_eq!(group.poll(), 0);
    drop(peeked);
    assert!(group.available());
    assert_eq!(group.peek(|message| message.get(kind)), Ok(Some(1)));
    // The message is taken.
    let first = group.receive_held(any).unwrap();
    assert_eq!((number(&first), group.taken(), group.available()), (Some(1), 0, false));
    drop(first);
    assert_eq!(
        (group.taken(), next(&group, kind), next(&group, kind), next(&group, kind)),
        (1, Some(2), Some(3), None)
    );
    // While the same message is being read, none is there.
    group.send(0, kind, &4).unwrap();
    group.receive(|_| assert_eq!(group.receive_held(any).err(), Some(NothingThere))).unwrap();
    assert_eq!(group.taken(), 4);
}

/// A thread that is notified of arrivals is also notified of those behind a held message.
#[test]
fn what_lies_behind_is_announced_when_it_is_let_go() {
    let _alone = ONE_BY_ONE.lock();
    let mut handlers = Handlers::new();
    let (first, second) = (handlers.kind::<u64>("first"), handlers.kind::<u64>("second"));
    handlers.on(second, |_, _, value| assert_eq!(value, 2));
    let group = GroupBuilder::new(&name(), 1).join(handlers).unwrap();
    let told = Arc::new(AtomicU32::new(0));
    let here = told.clone();
    let announced =
        group.announce(Arc::new(move || _ = here.fetch_add(1, Ordering::Relaxed))).unwrap();
    group.send(0, first, &1).unwrap();
    let held = group.receive_held(any).unwrap();
    group.send(0, second, &2).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(group.heed(), 0);
    let before = told.load(Ordering::Relaxed);
    drop(held);
    // On a slow machine the second message may come only now, and announces itself.
    let begun = Instant::now();
    while told.load(Ordering::Relaxed) == before {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is not announced");
        std::thread::yield_now();
    }
    assert_eq!(group.heed(), 1);
    drop(announced);
}

#[test]
fn what_is_held_can_be_read_when_the_group_is_left() {
    let _alone = ONE_BY_ONE.lock();
    let (group, bytes, _) = alone();
    group.send(0, bytes, &vec![7; 1 << 20]).unwrap();
    let held = group.receive_held(any).unwrap();
    let lying = held.lying().clone();
    drop(group);
    drop(held);
    assert_eq!(
        std::thread::spawn(move || lying.payload().u8((1 << 20) - 1)).join().unwrap(),
        Some(7)
    );
}

/// Two members, in two threads.
fn both(zero: impl FnOnce(GroupBuilder) + Send, one: impl FnOnce(GroupBuilder) + Send) {
    let name = name();
    let joining = |rank| GroupBuilder::new(&name, 2).rank(rank).within(Duration::from_secs(60));
    guarded(2, |guard| {
        std::thread::scope(|scope| {
            scope.spawn(|| guard.member(0, || zero(joining(0))));
            guard.member(1, || one(joining(1)));
        });
    });
}

fn foreign(handlers: &mut Handlers) -> [ForeignKind; 2] {
    ["u64", "words"]
        .map(|carries| handlers.foreign(carries, Carried::parse(carries).unwrap()).unwrap())
}

#[test]
fn a_sender_that_ends_is_told_of_when_its_last_message_is_let_go() {
    let _alone = ONE_BY_ONE.lock();
    let left = Barrier::new(2);
    both(
        |joining| {
            let mut handlers = Handlers::new();
            let [kind, _] = foreign(&mut handlers);
            let group = joining.join(handlers).unwrap();
            group.send_foreign(1, &kind, &7_u64.to_ne_bytes()).unwrap();
            drop(group);
            left.wait();
        },
        |joining| {
            let mut handlers = Handlers::new();
            foreign(&mut handlers);
            let group = joining.join(handlers).unwrap();
            assert!(group.wait(Some(Duration::from_secs(40))));
            let held = group.receive_held(any).unwrap();
            left.wait();
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!((group.receive(|_| ()), group.event()), (Err(NothingThere), None));
            assert_eq!(number(&held), Some(7));
            drop(held);
            while group.event() != Some(Event::Ended { rank: 0 }) {
                assert_eq!(group.receive(|_| ()), Err(NothingThere));
                group.wait(Some(Duration::from_secs(40)));
            }
        },
    );
}

#[test]
fn what_its_kind_cannot_have_is_a_violation() {
    let _alone = ONE_BY_ONE.lock();
    for takes in [true, false] {
        both(
            |joining| {
                let mut handlers = Handlers::new();
                let [_, words] = foreign(&mut handlers);
                let group = joining.join(handlers).unwrap();
                group.send_foreign(1, &words, &[0; 16]).unwrap();
                group.send_foreign(1, &words, &[]).unwrap();
                group.wait(None);
            },
            |joining| {
                let mut handlers = Handlers::new();
                let [number, words] = foreign(&mut handlers);
                assert!(
                    number.may_have(8)
                        && !number.may_have(16)
                        && words.may_have(0)
                        && words.may_have(16)
                        && !words.may_have(9)
                );
                let group = joining.join(handlers).unwrap();
                assert!(group.wait(Some(Duration::from_secs(40))));
                // As if the second one were invalid.
                let fits = |message: &Message<'_, '_>| message.size() > 0;
                drop(group.receive_held(fits).unwrap());
                let mut found = None;
                while found.is_none() {
                    let held = if takes { group.receive_held(fits) } else { group.peek_held(fits) };
                    assert_eq!(held.err(), Some(NothingThere));
                    found = group.event();
                }
                assert!(matches!(found, Some(Event::Violation { rank: 0, .. })), "{found:?}");
            },
        );
    }
}
