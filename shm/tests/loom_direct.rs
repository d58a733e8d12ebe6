//! Models of the direct queue, checked by loom over every interleaving: `RUSTFLAGS="--cfg loom" cargo test -p upcall-shm --release --test loom_direct`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use upcall_os::atomic::AtomicU64;
use upcall_shm::direct::{Incoming, Outgoing, Refused};

/// loom's `Arc` is not made of a slice; this is the same for a queue of four words.
#[derive(Clone)]
struct Words(Arc<[AtomicU64; 4]>);

impl std::ops::Deref for Words {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        &self.0[..]
    }
}

type Ends = (Outgoing<Words, Arc<AtomicU64>>, Incoming<Words, Arc<AtomicU64>>);

fn queue() -> Ends {
    let words = Words(Arc::new(std::array::from_fn(|_| AtomicU64::new(0))));
    let disposed = Arc::new(AtomicU64::new(0));
    (Outgoing::new(words.clone(), disposed.clone()), Incoming::new(words, disposed))
}

/// Sends messages of these lengths in words, each of the message's own number, and waits for room.
fn send(outgoing: &mut Outgoing<Words, Arc<AtomicU64>>, lengths: &[usize]) {
    for (number, len) in lengths.iter().enumerate() {
        let payload = [number as u64 + 1; 1];
        while let Err(refused) = outgoing.try_send(number as u16, &payload[..*len]) {
            assert_eq!(refused, Refused::Full);
            thread::yield_now();
        }
    }
}

/// Takes them, and tells the sender of each.
fn take(incoming: &mut Incoming<Words, Arc<AtomicU64>>, lengths: &[usize]) {
    for (number, len) in lengths.iter().enumerate() {
        loop {
            if let Some(arrived) = incoming.peek().unwrap() {
                assert_eq!((usize::from(arrived.handler()), arrived.len()), (number, len * 8));
                assert_eq!(arrived.word(0), (*len > 0).then_some(number as u64 + 1));
                arrived.dispose();
                incoming.tell();
                break;
            }
            thread::yield_now();
        }
    }
}

/// Round the memory, with and without a message that lies elsewhere: each is whole, in order, and not overwritten before it was read.
#[test]
fn what_is_taken_is_whole_and_in_order() {
    for lengths in [&[1, 1, 1][..], &[0, 1, 1], &[0, 0, 0, 1]] {
        loom::model(move || {
            let (mut outgoing, mut incoming) = queue();
            let sender = thread::spawn(move || send(&mut outgoing, lengths));
            take(&mut incoming, lengths);
            sender.join().unwrap();
        });
    }
}

/// A receiver that looks now and then sees what was launched, or nothing; never a part.
#[test]
fn a_glance_sees_all_or_nothing() {
    loom::model(|| {
        let (mut outgoing, mut incoming) = queue();
        let sender = thread::spawn(move || {
            drop(outgoing.describe(9, 8));
            outgoing.try_send(5, &[7]).unwrap();
        });
        if let Some(arrived) = incoming.peek().unwrap() {
            assert_eq!((arrived.handler(), arrived.word(0)), (5, Some(7)));
        }
        sender.join().unwrap();
        assert_eq!(incoming.peek().unwrap().unwrap().word(0), Some(7));
    });
}
