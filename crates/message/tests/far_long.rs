//! Long messages to other hosts, as it seems: they go past the queue to the bridge, and their
//! receivers read them where they have arrived.

mod guard;

use guard::guarded;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;
use upcall_message::{Group, GroupBuilder, Handlers, Kind};

/// Maximum time of a wait, within the maximum time of a test.
const GUARD: Duration = Duration::from_secs(40);

/// Runs `member` as each of two members, each on a host of its own as it seems.
fn across(member: impl Fn(GroupBuilder) + Sync) {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("long-{}-{number}", std::process::id());
    let address = format!("127.{}.{number}.11:7413", 1 + std::process::id() % 250);
    guarded(2, |guard| {
        thread::scope(|scope| {
            for rank in 0..2 {
                let joining = GroupBuilder::new(&name, 2).rank(rank);
                let joining = joining.across(&address).apart(rank as u64).upcalls(false);
                let member = &member;
                thread::Builder::new()
                    .spawn_scoped(scope, move || guard.member(rank, || member(joining)))
                    .unwrap();
            }
        });
    });
}

/// A message of its own: its number, and bytes that follow from it.
fn message(number: u64) -> Vec<u8> {
    let dice = number.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    // Short ones, those of some segments' parts, and some that are longer than a segment.
    let len = match dice >> 61 {
        0 => 0,
        1..4 => (dice >> 40) % 3000,
        4..7 => (dice >> 40) % (100 << 10),
        _ => (dice >> 40) % (1500 << 10),
    };
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((0..len).map(|at| (at.wrapping_mul(dice | 1) >> 7) as u8));
    bytes
}

/// Lets a group check that the messages of the other member come in order and as they were sent.
fn checked(handlers: &mut Handlers) -> (Kind<[u8]>, Rc<Cell<u64>>) {
    let (data, count) = (handlers.kind::<[u8]>("data"), Rc::new(Cell::new(0)));
    let taken = count.clone();
    handlers.on(data, move |_, _, bytes: Vec<u8>| {
        let number = taken.replace(taken.get() + 1);
        assert!(bytes == message(number), "message {number} has {} other bytes", bytes.len());
    });
    (data, count)
}

fn take_all(group: &Group, taken: &Cell<u64>, count: u64) {
    group.run_until(|| taken.get() >= count).unwrap();
    assert_eq!(taken.get(), count);
}

/// Both flood each other, so each runs handlers while it waits for room.
#[test]
fn messages_of_all_lengths_arrive_in_order_and_before_a_barrier() {
    const ROUNDS: u64 = 20;
    const EACH: u64 = 50;
    across(|joining| {
        let mut handlers = Handlers::new();
        let (data, taken) = checked(&mut handlers);
        let group = joining.join(handlers).unwrap();
        for round in 0..ROUNDS {
            for number in round * EACH..(round + 1) * EACH {
                group.send(1 - group.rank(), data, &message(number)[..]).unwrap();
            }
            // A barrier ends when what was sent before it is taken. More may follow already.
            group.barrier().unwrap();
            assert!(taken.get() >= (round + 1) * EACH, "{} in round {round}", taken.get());
        }
        assert_eq!(taken.get(), ROUNDS * EACH);
    });
}

/// The receiver's process holds what has arrived, and the sender's process holds the rest.
#[test]
fn a_receiver_that_takes_nothing_for_a_while_loses_nothing() {
    const COUNT: u64 = 400;
    let all_sent = Barrier::new(2);
    across(|joining| {
        let mut handlers = Handlers::new();
        let (data, taken) = checked(&mut handlers);
        let group = joining.join(handlers).unwrap();
        if group.rank() == 0 {
            for number in 0..COUNT {
                group.send(1, data, &message(number)[..]).unwrap();
            }
            all_sent.wait();
        } else {
            all_sent.wait();
            take_all(&group, &taken, COUNT);
        }
        group.barrier().unwrap();
    });
}

/// A message that is peeked at stays where it is, and so does one of a kind without a handler.
#[test]
fn a_long_message_stays_until_it_is_taken() {
    across(|joining| {
        let mut handlers = Handlers::new();
        let data = handlers.kind::<[u8]>("data");
        let group = joining.join(handlers).unwrap();
        let bytes = vec![7; 100_001];
        if group.rank() == 0 {
            (0..3).for_each(|_| group.send(1, data, &bytes[..]).unwrap());
            group.barrier().unwrap();
            return;
        }
        for _ in 0..3 {
            while !group.available() {
                assert!(group.wait(Some(GUARD)) || group.available(), "nothing comes");
            }
            for _ in 0..3 {
                assert_eq!(
                    group.peek(|message| (message.size(), message.word(12_499))).unwrap(),
                    (100_001, Some(0x0707_0707_0707_0707))
                );
                let left = group.receive_or_leave(|_| None::<()>).unwrap();
                assert_eq!(left, None);
            }
            let taken = group.receive(|message| (message.get(data), message.word(12_501))).unwrap();
            assert!(taken == (Some(bytes.clone()), None));
        }
        group.barrier().unwrap();
    });
}
