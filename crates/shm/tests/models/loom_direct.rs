//! Models of the direct queue, checked by loom: `make models`.
use loom::sync::Arc;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;
use std::io;
use upcall_os::atomic::AtomicU64;
use upcall_shm::direct::{
    Incoming, Outgoing, QueueMemory, ReceiverProgress, SegmentLocation, SendRefusal,
};

/// loom's `Arc` cannot hold a slice; this stands in for a piece of four words.
#[derive(Clone, Debug)]
struct Words(Arc<[AtomicU64; 4]>);

impl Words {
    /// Words that hold old contents, `before`.
    fn new(before: u64) -> Self {
        Self(Arc::new(std::array::from_fn(|_| AtomicU64::new(before))))
    }
}

impl std::ops::Deref for Words {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        &self.0[..]
    }
}

/// A queue with memory for two segments at a time. One of them is a spare if `SPARES` is 1.
#[derive(Clone, Debug)]
struct Ours<const SPARES: usize> {
    home: Words,
    told: Arc<ReceiverProgress>,
    segments: [Words; 2],
    spare: Words,
}

impl<const SPARES: usize> QueueMemory for Ours<SPARES> {
    type Words = Words;
    type Told = Arc<ReceiverProgress>;
    const SEGMENTS: u64 = 2;
    const SPARES: usize = SPARES;

    fn home(&self) -> Words {
        self.home.clone()
    }
    fn told(&self) -> Arc<ReceiverProgress> {
        self.told.clone()
    }
    fn segment_words(&self) -> u64 {
        self.home.len() as u64
    }
    fn segment(&mut self, place: SegmentLocation) -> io::Result<Words> {
        Ok(match place {
            SegmentLocation::Row { number, .. } => self.segments[number as usize % 2].clone(),
            SegmentLocation::Spare(_) => self.spare.clone(),
        })
    }
    fn leave(&mut self, _: SegmentLocation) {}
    fn shrink(&mut self, _: u8) {
        // The machine zeroes pages that were given back, too.
        self.spare.iter().for_each(|word| word.store(0, Relaxed));
    }
}

type Sending<const SPARES: usize> = Outgoing<Ours<SPARES>>;
type Receiving<const SPARES: usize> = Incoming<Ours<SPARES>>;

fn queue<const SPARES: usize>() -> (Sending<SPARES>, Receiving<SPARES>) {
    // An old message's header, with a count of long ago.
    let stale = 1 << 63 | 99 << 48;
    let segments = std::array::from_fn(|_| Words::new(stale));
    let ours = Ours {
        home: Words::new(0),
        told: Arc::new(ReceiverProgress::default()),
        segments,
        spare: Words::new(stale),
    };
    (Outgoing::new(ours.clone()), Incoming::new(ours))
}

/// Sends messages of these lengths in words, each with the message's own number as payload. Without
/// room it diverts, or waits.
fn send<const SPARES: usize>(outgoing: &mut Sending<SPARES>, lengths: &[usize], divert: bool) {
    for (number, len) in lengths.iter().enumerate() {
        let payload = [number as u64 + 1; 1];
        while let Err(refused) = outgoing.try_send(number as u16, &payload[..*len]) {
            assert_eq!(refused, SendRefusal::Full);
            if !divert || outgoing.divert().is_err() {
                thread::yield_now();
            }
        }
    }
}

/// Takes the messages, and reports each to the sender.
fn take<const SPARES: usize>(incoming: &mut Receiving<SPARES>, lengths: &[usize]) {
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

fn check<const SPARES: usize>(lengths: &'static [usize], divert: bool) {
    loom::model(move || {
        let (mut outgoing, mut incoming) = queue::<SPARES>();
        let sender = thread::spawn(move || send(&mut outgoing, lengths, divert));
        take(&mut incoming, lengths);
        sender.join().unwrap();
    });
}

/// Around the memory, with and without a wrapped message: each message is whole, in order, and not
/// overwritten before it was read.
#[test]
fn what_is_taken_is_whole_and_in_order() {
    for lengths in [&[1, 1, 1][..], &[0, 1, 1], &[0, 0, 0, 1]] {
        check::<0>(lengths, false);
    }
}

/// The same through segments, and home again if the receiver is quick.
#[test]
fn what_is_diverted_is_whole_and_in_order() {
    for lengths in [&[1, 1][..], &[0, 0, 0, 1], &[1, 1, 1]] {
        check::<0>(lengths, true);
        check::<1>(lengths, true);
    }
}

/// There and back, whenever the receiver probes: the receiver does not leave home before it has
/// seen where the queue went on, and no segment is reused before it was left.
#[test]
fn a_sender_that_diverts_each_message_keeps_the_order() {
    diverting_each::<0>(2, false, 3);
}

/// The same with a spare. It is reused only after it was left, and may lose its pages whenever the
/// sender finds it free.
#[test]
fn a_spare_is_used_anew_when_it_was_left() {
    diverting_each::<1>(3, false, 1);
    diverting_each::<1>(3, true, 1);
}

#[test]
#[ignore = "long"]
fn long_a_spare_is_used_anew_when_it_was_left() {
    diverting_each::<1>(3, false, 2);
}

fn diverting_each<const SPARES: usize>(messages: usize, shrinks: bool, preemptions: usize) {
    let mut model = loom::model::Builder::new();
    // A lower bound of the environment is kept.
    model.preemption_bound =
        Some(model.preemption_bound.map_or(preemptions, |most| preemptions.min(most)));
    model.check(move || {
        let (mut outgoing, mut incoming) = queue::<SPARES>();
        let sender = thread::spawn(move || {
            for number in 0..messages {
                while outgoing.divert().is_err() {
                    // The sender learns that the receiver has left a segment only when it reads the
                    // receiver's words.
                    drop(outgoing.describe(0, 0));
                    thread::yield_now();
                }
                outgoing.try_send(number as u16, &[]).unwrap();
                if shrinks {
                    outgoing.shrink();
                }
            }
        });
        take(&mut incoming, &[0; 3][..messages]);
        sender.join().unwrap();
    });
}

/// A receiver that probes once sees what was launched, or nothing; never a part.
#[test]
fn a_glance_sees_all_or_nothing() {
    loom::model(|| {
        let (mut outgoing, mut incoming) = queue::<0>();
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
