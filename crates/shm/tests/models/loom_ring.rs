//! Models of the rings, checked by loom: `make models`.
use loom::sync::Arc;
use loom::thread;
use upcall_shm::astack::Numbers;
use upcall_shm::ring::{RingReceiver, RingSender, SharedReceiver, SharedSender};
use upcall_shm::single::{SingleCaller, SingleServer};
use upcall_shm::slot::{Slot, SlotMessage, ValueLocation};

/// loom's `Arc` cannot hold a slice; this stands in for a ring of two.
#[derive(Clone)]
struct Ring(Arc<[Slot; 2]>);

impl std::ops::Deref for Ring {
    type Target = [Slot];
    fn deref(&self) -> &[Slot] {
        &self.0[..]
    }
}

fn ring() -> Ring {
    Ring(Arc::new([Slot::default(), Slot::default()]))
}

fn message(call: u16, value: u64) -> SlotMessage {
    let mut image = SlotMessage::new(call, 0, 0);
    image.place(ValueLocation::Inline, 0, 8);
    image.values[0] = value;
    image
}

fn wait_for(receiver: &RingReceiver<Ring>) -> SlotMessage {
    loop {
        if let Some(image) = receiver.take() {
            return image;
        }
        thread::yield_now();
    }
}

#[test]
fn what_is_taken_is_whole_and_in_order() {
    loom::model(|| {
        let ring = ring();
        let sender = RingSender::new(ring.clone());
        let server = thread::spawn(move || {
            sender.send(&message(1, 11));
            sender.send(&message(2, 22));
        });
        let receiver = RingReceiver::new(ring);
        for (call, value) in [(1, 11), (2, 22)] {
            let image = wait_for(&receiver);
            assert_eq!((image.call(), image.values[0]), (call, value));
        }
        server.join().unwrap();
    });
}

/// A lane of depth 1 in a ring of 2: requests and replies go round, each slot is written again, and
/// nothing is overwritten unread.
#[test]
fn calls_reuse_slots_safely() {
    loom::model(|| {
        let (requests, replies) = (ring(), ring());
        let server = {
            let (requests, replies) =
                (RingReceiver::new(requests.clone()), SharedSender::new(replies.clone()));
            thread::spawn(move || {
                for _ in 0..3 {
                    let request = wait_for(&requests);
                    replies.send(&message(request.call(), request.values[0] + 1));
                }
            })
        };
        let (requests, replies) = (RingSender::new(requests), RingReceiver::new(replies));
        for call in 0..3 {
            requests.send(&message(call, u64::from(call) * 10));
            let reply = wait_for(&replies);
            assert_eq!((reply.call(), reply.values[0]), (call, u64::from(call) * 10 + 1));
        }
        server.join().unwrap();
    });
}

#[test]
fn two_repliers_do_not_mix_their_messages() {
    loom::model(|| {
        let ring = ring();
        let sender = Arc::new(SharedSender::new(ring.clone()));
        let other = sender.clone();
        let replier = thread::spawn(move || other.send(&message(1, 11)));
        sender.send(&message(2, 22));
        let receiver = RingReceiver::new(ring);
        let mut seen =
            [wait_for(&receiver), wait_for(&receiver)].map(|image| (image.call(), image.values[0]));
        seen.sort_unstable();
        assert_eq!(seen, [(1, 11), (2, 22)]);
        replier.join().unwrap();
    });
}

#[test]
fn a_number_is_held_by_one() {
    loom::model(|| {
        let numbers = Arc::new(Numbers::new(2));
        let other = numbers.clone();
        let taker = thread::spawn(move || {
            let number = other.take().unwrap();
            other.give(number);
            other.take().unwrap()
        });
        let mine = numbers.take().unwrap();
        let theirs = taker.join().unwrap();
        assert_ne!(mine, theirs);
        assert_eq!(numbers.take(), None);
    });
}

#[test]
fn each_message_is_taken_by_one_processor() {
    loom::model(|| {
        let ring = ring();
        let sender = RingSender::new(ring.clone());
        sender.send(&message(1, 11));
        sender.send(&message(2, 22));
        let receiver = Arc::new(SharedReceiver::new(ring));
        let other = receiver.clone();
        let take = |receiver: &SharedReceiver<Ring>| {
            let mut image = SlotMessage::new(0, 0, 0);
            receiver.take(&mut image).then(|| (image.call(), image.values[0]))
        };
        let processor = thread::spawn(move || take(&other));
        let mut seen: Vec<_> =
            [take(&receiver), processor.join().unwrap()].into_iter().flatten().collect();
        seen.extend(take(&receiver));
        seen.extend(take(&receiver));
        seen.sort_unstable();
        assert_eq!(seen, [(1, 11), (2, 22)]);
    });
}

#[test]
fn a_single_slot_carries_whole_requests_and_replies() {
    loom::model(|| {
        let slot = Arc::new(Slot::default());
        let server = SingleServer::new(slot.clone());
        let serving = thread::spawn(move || {
            for _ in 0..2 {
                let mut request = SlotMessage::new(0, 0, 0);
                while !server.take(&mut request) {
                    thread::yield_now();
                }
                server.reply(&message(request.call(), request.values[0] + 1));
            }
        });
        let caller = SingleCaller::new(slot);
        for call in 0..2 {
            caller.send(&message(call, u64::from(call) * 10));
            let mut reply = SlotMessage::new(0, 0, 0);
            while !caller.take(&mut reply) {
                thread::yield_now();
            }
            assert_eq!((reply.call(), reply.values[0]), (call, u64::from(call) * 10 + 1));
        }
        serving.join().unwrap();
    });
}
