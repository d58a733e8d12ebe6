//! The member in Rust of the tests of languages: the same as `member.c`, and `members.py` for
//! Python.
#![allow(dead_code)] // Not every test uses all of it.

use std::cell::{Cell, RefCell};
use std::io::Read;
use std::process::Child;
use std::rc::Rc;
use std::time::{Duration, Instant};
use upcall::message::{
    Event, Group, GroupBuilder, Handlers, JoinError, Kind, Payload, Reader, Writer,
};

/// The kinds of messages that each member sends to each in a round; they are numbered in this
/// order.
const KINDS: u64 = 7;
const ROUNDS: u64 = 40;

type Small = (i32, bool, f32, f64);

struct Kinds {
    null: Kind<()>,
    number: Kind<u64>,
    small: Kind<Small>,
    array: Kind<[u16; 5]>,
    words: Kind<[u64]>,
    text: Kind<str>,
    bytes: Kind<[u8]>,
    plain: Kind<str>,
    go: Kind<()>,
}

/// The number of the next message from each member, by rank.
type Next = Rc<RefCell<Vec<u64>>>;

fn small(round: u64) -> Small {
    (-(round as i32), round % 2 == 1, round as f32 * 0.5, -(round as f64) * 0.25)
}

fn array(round: u64, from: usize, to: usize) -> [u16; 5] {
    [round as u16, from as u16, to as u16, 0, u16::MAX]
}

fn words(round: u64) -> Vec<u64> {
    (0..round).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

fn text(round: u64, from: usize) -> String {
    format!("{round} ß from {from}")
}

fn bytes(round: u64, from: usize) -> Vec<u8> {
    let size = [100_000, 3_000_000].get(round as usize).copied().unwrap_or(round as usize);
    (0..size).map(|at| (at + from) as u8).collect()
}

fn handlers(next: &Next) -> (Handlers, Kinds, Rc<Cell<bool>>) {
    let mut handlers = Handlers::new();
    let kinds = Kinds {
        null: handlers.kind("null"),
        number: handlers.kind("number"),
        small: handlers.kind("small"),
        array: handlers.kind("array"),
        words: handlers.kind("words"),
        text: handlers.kind("text"),
        bytes: handlers.kind("bytes"),
        plain: handlers.kind("plain"),
        go: handlers.kind("go"),
    };
    // Returns the round of a message from a member, which must be of this kind now.
    let round = |kind: u64| {
        let next = next.clone();
        move |from: usize| {
            let number = &mut next.borrow_mut()[from];
            assert_eq!(*number % KINDS, kind, "from {from}, number {number}");
            *number += 1;
            *number / KINDS - u64::from(kind == KINDS - 1)
        }
    };
    let of = round(0);
    handlers.on(kinds.null, move |_, from, ()| assert!(of(from) < ROUNDS));
    let of = round(1);
    handlers.on(kinds.number, move |_, from, number| assert_eq!(number, of(from)));
    let of = round(2);
    handlers.on(kinds.small, move |_, from, value| assert_eq!(value, small(of(from))));
    let of = round(3);
    handlers.on(kinds.array, move |group, from, value| {
        assert_eq!(value, array(of(from), from, group.rank()))
    });
    let of = round(4);
    handlers.on(kinds.words, move |_, from, value| assert_eq!(value, words(of(from))));
    let of = round(5);
    handlers.on(kinds.text, move |_, from, value| assert_eq!(value, text(of(from), from)));
    let of = round(6);
    handlers.on(kinds.bytes, move |_, from, value| assert!(value == bytes(of(from), from)));
    let asked = Rc::new(Cell::new(false));
    let here = asked.clone();
    handlers.on(kinds.go, move |_, _, ()| here.set(true));
    (handlers, kinds, asked)
}

fn join(name: &str, size: usize, rank: usize) -> (Group, Kinds, Next, Rc<Cell<bool>>) {
    let next: Next = Rc::new(RefCell::new(vec![0; size]));
    let (handlers, kinds, asked) = handlers(&next);
    let joining = GroupBuilder::new(name, size).rank(rank).within(Duration::from_secs(40));
    (joining.join(handlers).unwrap(), kinds, next, asked)
}

/// Each member sends to each, and takes all. Then it sends to the next one only, which receives the
/// message.
pub fn all(name: &str, size: usize, rank: usize) {
    let (group, kinds, next, asked) = join(name, size, rank);
    for round in 0..ROUNDS {
        for to in 0..size {
            group.send(to, kinds.null, &()).unwrap();
            group.send(to, kinds.number, &round).unwrap();
            group.send(to, kinds.small, &small(round)).unwrap();
            group.send(to, kinds.array, &array(round, rank, to)).unwrap();
            group.send(to, kinds.words, &words(round)[..]).unwrap();
            group.send(to, kinds.text, &text(round, rank)[..]).unwrap();
            group.send(to, kinds.bytes, &bytes(round, rank)[..]).unwrap();
        }
        group.poll();
    }
    group.run_until(|| next.borrow().iter().all(|number| *number == ROUNDS * KINDS)).unwrap();
    assert_eq!(group.reduce(rank as u64 + 1, |a, b| a + b), Ok((size * (size + 1) / 2) as u64));
    assert_eq!(group.reduce(-(rank as f64), f64::min), Ok(-(size as f64 - 1.0)));
    group.barrier().unwrap();

    // A member that still waits in the barrier could not get past a message without a handler, so
    // the receiver asks for that message.
    let before = (rank + size - 1) % size;
    group.send(before, kinds.go, &()).unwrap();
    while !asked.get() {
        group.poll();
        group.wait(Some(Duration::from_millis(1)));
    }
    group.send((rank + 1) % size, kinds.plain, &text(9, rank)[..]).unwrap();
    let peeked = loop {
        match group.peek(|message| (message.from(), message.get(kinds.plain))) {
            Ok(peeked) => break peeked,
            Err(_) => drop(group.wait(None)),
        }
        assert_eq!(group.event(), None);
    };
    let taken = group.receive(|message| (message.from(), message.get(kinds.plain))).unwrap();
    assert_eq!((&taken, &taken.1), (&peeked, &Some(text(9, before))));
    assert_eq!(taken.0, before);
    group.barrier().unwrap();
}

/// Waits until all others have joined, and then until the last two have ended.
pub fn survive(name: &str, size: usize, rank: usize, ready: impl FnOnce()) {
    let (group, ..) = join(name, size, rank);
    group.barrier().unwrap();
    ready();
    let mut ended = Vec::new();
    // Other survivors may leave before this one knows of both.
    while ![size - 2, size - 1].iter().all(|rank| ended.contains(rank)) {
        group.poll();
        match group.event() {
            Some(Event::Ended { rank }) => ended.push(rank),
            Some(other) => panic!("{other:?}"),
            None => drop(group.wait(Some(Duration::from_secs(20)))),
        }
    }
}

/// Joins with another list of kinds than a process. The member that comes first takes in the other,
/// and refuses it by name: it may be either of them.
pub fn differ(name: &str, other: &mut Child) {
    let said = refusal(name, other);
    assert!(
        ["\"number\"", "u64", "i64", "all members register the same kinds"]
            .iter()
            .all(|part| said.contains(part)),
        "{said}"
    );
}

/// The refused member's error.
fn refusal(name: &str, other: &mut Child) -> String {
    let start = Instant::now();
    loop {
        let mut handlers = Handlers::new();
        handlers.kind::<()>("null");
        handlers.kind::<u64>("number");
        match GroupBuilder::new(name, 2).rank(0).within(Duration::from_millis(300)).join(handlers) {
            Err(JoinError::Refused { reason, .. }) => return reason,
            other => assert!(matches!(other, Err(JoinError::Incomplete { .. })), "{other:?}"),
        }
        if let Some(status) = other.try_wait().unwrap() {
            let mut said = String::new();
            other.stdout.take().unwrap().read_to_string(&mut said).unwrap();
            assert!(status.success(), "{status}: {said}");
            return said;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no member is refused");
    }
}

/// A payload with the signature of one number that has two.
struct Liar;

impl Payload for Liar {
    type Owned = ();

    fn signature() -> String {
        u64::signature()
    }

    fn size(&self) -> usize {
        16
    }

    fn write(&self, writer: &mut Writer<'_, '_>) {
        writer.words(&[1, 2]);
    }

    fn read(_: &mut Reader<'_, '_>) -> Option<()> {
        None
    }
}

/// Sends the only other member a payload that does not fit its kind, and waits until that member
/// has left.
pub fn lie(name: &str) {
    let mut handlers = Handlers::new();
    let number = handlers.kind::<Liar>("number");
    let group =
        GroupBuilder::new(name, 2).rank(0).within(Duration::from_secs(40)).join(handlers).unwrap();
    group.send(1, number, &Liar).unwrap();
    while group.event().is_none() {
        group.wait(Some(Duration::from_secs(20)));
        group.poll();
    }
}

/// Sends the only other member 64 MiB and a number, and leaves when that member reads them.
pub fn send_large(name: &str, looks: impl FnOnce()) {
    let mut handlers = Handlers::new();
    let (bytes, number) = (handlers.kind::<[u8]>("bytes"), handlers.kind::<u64>("number"));
    handlers.kind::<str>("text");
    let group =
        GroupBuilder::new(name, 2).rank(0).within(Duration::from_secs(40)).join(handlers).unwrap();
    group.barrier().unwrap();
    let mut large = vec![0; 64 << 20];
    (large[0], large[(64 << 20) - 1]) = (3, 5);
    group.send(1, bytes, &large[..]).unwrap();
    group.send(1, number, &7).unwrap();
    looks();
}

/// Makes the only other member answer `count` numbers while it computes, and finally sends it a
/// payload that does not fit its kind.
pub fn interrupt(name: &str, count: u64) {
    let mut handlers = Handlers::new();
    let (number, lie) = (handlers.kind::<u64>("number"), handlers.kind::<Liar>("lie"));
    handlers.kind::<str>("text");
    handlers.kind::<[u64; 9]>("long");
    let group =
        GroupBuilder::new(name, 2).rank(0).within(Duration::from_secs(40)).join(handlers).unwrap();
    group.barrier().unwrap();
    let mut answered = 0;
    let mut hear = |until: u64| {
        while answered < until {
            match group.receive(|message| message.get(number)) {
                Ok(answer) => {
                    assert_eq!(answer, Some(answered));
                    answered += 1;
                }
                Err(_) => assert!(
                    group.wait(Some(Duration::from_secs(20))),
                    "{answered} of {until} were answered"
                ),
            }
        }
    };
    // One by one, and many at once.
    for round in 0..count / 2 {
        group.send(1, number, &round).unwrap();
        hear(round + 1);
    }
    (count / 2..count).for_each(|round| group.send(1, number, &round).unwrap());
    hear(count);
    group.send(1, lie, &Liar).unwrap();
    while group.event().is_none() {
        group.wait(Some(Duration::from_secs(20)));
        group.poll();
    }
}
