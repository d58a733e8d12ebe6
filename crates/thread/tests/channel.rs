//! Channels: values arrive once and in order, and each side learns of the other's end.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use upcall_thread as thread;
use upcall_thread::mpsc::{
    RecvTimeoutError, SendError, TryRecvError, TrySendError, channel, sync_channel,
};
use upcall_thread::{Processors, spawn, yield_now};

const SHORT: Duration = Duration::from_millis(5);

fn on<T>(processors: usize, body: impl FnOnce() -> T) -> T {
    Processors::new().count(processors).run(body).unwrap()
}

#[test]
fn everything_arrives_once_and_in_order() {
    const EACH: usize = if cfg!(miri) { 10 } else { 500 };
    for processors in [1, 2] {
        for bound in [None, Some(0), Some(1), Some(16)] {
            on(processors, || {
                let (plain, receiver) = channel();
                let (bounded, bounded_receiver) = sync_channel(bound.unwrap_or(1));
                let receiver = if bound.is_none() { receiver } else { bounded_receiver };
                for sender in 0..4_usize {
                    let (plain, bounded) = (plain.clone(), bounded.clone());
                    spawn(move || {
                        for n in 0..EACH {
                            match bound {
                                None => plain.send((sender, n)).unwrap(),
                                Some(_) => bounded.send((sender, n)).unwrap(),
                            }
                        }
                    });
                }
                drop((plain, bounded));
                let mut next = [0; 4];
                for (sender, n) in &receiver {
                    assert_eq!(n, next[sender], "the values of one sender are in order");
                    next[sender] += 1;
                }
                assert_eq!(next, [EACH; 4]);
            });
        }
    }
}

#[test]
fn the_end_of_a_side_is_told() {
    on(1, || {
        let (sender, receiver) = channel();
        sender.send(1).unwrap();
        drop(sender);
        assert_eq!((receiver.recv(), receiver.recv().is_err()), (Ok(1), true));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
        assert_eq!(receiver.recv_timeout(SHORT), Err(RecvTimeoutError::Disconnected));

        let (sender, receiver) = sync_channel(1);
        sender.send(1).unwrap();
        let blocked = spawn(move || sender.send(2));
        yield_now();
        drop(receiver);
        assert_eq!(blocked.join().unwrap(), Err(SendError(2)), "the value comes back");

        let (sender, receiver) = sync_channel(0);
        let blocked = spawn(move || sender.send(3));
        yield_now();
        drop(receiver);
        assert_eq!(blocked.join().unwrap(), Err(SendError(3)));

        let (sender, receiver) = channel::<u8>();
        let blocked = spawn(move || receiver.recv());
        yield_now();
        drop(sender);
        assert!(blocked.join().unwrap().is_err());
    });
}

#[test]
fn a_bound_is_kept_and_waits_time_out() {
    on(1, || {
        let (sender, receiver) = sync_channel(2);
        sender.try_send(1).unwrap();
        sender.send_timeout(2, SHORT).unwrap();
        assert_eq!(sender.try_send(3), Err(TrySendError::Full(3)));
        assert_eq!(sender.send_timeout(3, SHORT), Err(TrySendError::Full(3)));
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(receiver.recv_timeout(SHORT), Err(RecvTimeoutError::Timeout));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    });
}

#[test]
#[cfg_attr(
    any(miri, upcall_kernel_threads),
    ignore = "depends on the order in which threads of one processor run"
)]
fn without_room_sender_and_receiver_meet() {
    on(1, || {
        let (sender, receiver) = sync_channel(0);
        assert_eq!(sender.try_send(1), Err(TrySendError::Full(1)), "there is no receiver waiting");
        assert_eq!(sender.send_timeout(1, SHORT), Err(TrySendError::Full(1)));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty), "it took its value back");
        let met = Arc::new(AtomicUsize::new(0));
        let theirs = Arc::clone(&met);
        let sending = spawn(move || {
            sender.send(2).unwrap();
            theirs.store(1, Ordering::SeqCst);
            sender
        });
        (0..10).for_each(|_| yield_now());
        assert_eq!(met.load(Ordering::SeqCst), 0, "a sender waits until its value is taken");
        assert_eq!(receiver.recv(), Ok(2));
        let sender = sending.join().unwrap();
        let receiving = spawn(move || receiver.recv());
        (0..10).for_each(|_| yield_now());
        sender.try_send(3).unwrap();
        assert_eq!(receiving.join().unwrap(), Ok(3));
    });
}

#[test]
fn kernel_threads_take_part() {
    let (sender, receiver) = sync_channel(4);
    let outside = std::thread::spawn(move || receiver.into_iter().sum::<u64>());
    on(2, || {
        thread::scope(|s| {
            for n in 0..10_u64 {
                let sender = sender.clone();
                s.spawn(move || (0..100).for_each(|i| sender.send(n * 100 + i).unwrap()));
            }
        });
        drop(sender);
    });
    assert_eq!(outside.join().unwrap(), (0..1000).sum());
}
