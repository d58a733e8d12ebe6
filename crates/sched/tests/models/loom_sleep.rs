//! Models of the sleep and wake protocol: `make models`.
use crate::kernel::{Doorbell, Futex};
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use upcall_sched::sleep;

struct Scene {
    message: AtomicU32,
    asleep: AtomicU32,
    futex: Futex,
}

fn scene() -> Arc<Scene> {
    Arc::new(Scene { message: AtomicU32::new(0), asleep: AtomicU32::new(0), futex: Futex::new() })
}

fn receive(scene: &Scene) {
    loop {
        sleep::announce(&scene.asleep);
        if scene.message.load(Ordering::Acquire) != 0 {
            sleep::retract(&scene.asleep);
            return;
        }
        scene.futex.wait(&scene.asleep, 1);
        if scene.message.load(Ordering::Acquire) != 0 {
            return;
        }
    }
}

fn wake(scene: &Scene) {
    sleep::retract(&scene.asleep);
    scene.futex.wake();
}

/// loom reports a deadlock if a wake can be lost.
#[test]
fn a_message_wakes_a_kernel_thread() {
    loom::model(|| {
        let scene = scene();
        let sender = scene.clone();
        let sending = thread::spawn(move || {
            sender.message.store(1, Ordering::Release);
            if sleep::must_wake(&sender.asleep) {
                wake(&sender);
            }
        });
        receive(&scene);
        sending.join().unwrap();
    });
}

/// The check without the fence, made up for later by one with it.
#[test]
fn a_look_put_off_is_made_up_for() {
    loom::model(|| {
        let scene = scene();
        let sender = scene.clone();
        let sending = thread::spawn(move || {
            sender.message.store(1, Ordering::Release);
            if sleep::seems_asleep(&sender.asleep) {
                wake(&sender);
            }
            if sleep::must_wake(&sender.asleep) {
                wake(&sender);
            }
        });
        receive(&scene);
        sending.join().unwrap();
    });
}

/// One notification per sleep, from two wakers on one lane with a message each: the sleeper gets
/// both.
fn one_ring_for_a_sleep(wakers: usize, messages: u32) {
    loom::model(move || {
        let asleep = Arc::new((AtomicU32::new(0), AtomicU64::new(0)));
        let (published, rung) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(u64::MAX)));
        let doorbell = Arc::new(Doorbell::new());
        let waking: Vec<_> = (0..wakers)
            .map(|_| {
                let (asleep, published, rung, doorbell) =
                    (asleep.clone(), published.clone(), rung.clone(), doorbell.clone());
                thread::spawn(move || {
                    for _ in 0..messages {
                        published.fetch_add(1, Ordering::Release);
                        if sleep::must_wake(&asleep.0)
                            && sleep::first_ring(&rung, asleep.1.load(Ordering::Relaxed))
                        {
                            doorbell.notify();
                        }
                    }
                })
            })
            .collect();
        let all = wakers as u32 * messages;
        while published.load(Ordering::Acquire) != all {
            sleep::announce_another(&asleep.0, &asleep.1);
            if published.load(Ordering::Acquire) == all {
                break;
            }
            doorbell.wait();
            sleep::retract(&asleep.0);
        }
        waking.into_iter().for_each(|waking| waking.join().unwrap());
    });
}

#[test]
fn one_ring_for_a_sleep_of_one_waker() {
    one_ring_for_a_sleep(1, 2);
}

#[test]
fn one_ring_for_a_sleep_of_two_wakers() {
    one_ring_for_a_sleep(2, 1);
}

/// A closing channel: the flag, a fence, and the wake, against a caller that checks the flag after
/// announcing itself.
#[test]
fn closing_wakes_every_caller() {
    loom::model(|| {
        let scene = scene();
        let closer = scene.clone();
        let closing = thread::spawn(move || {
            closer.message.store(1, Ordering::SeqCst);
            loom::sync::atomic::fence(Ordering::SeqCst);
            wake(&closer);
        });
        receive(&scene);
        closing.join().unwrap();
    });
}

/// A sleeper that makes the fence for its wakers misses nothing either. It sleeps on a doorbell,
/// which keeps a notification, and is notified once for each of its sleeps.
#[test]
fn one_fence_for_both() {
    loom::model(|| {
        let (scene, number, doorbell) =
            (scene(), Arc::new(AtomicU64::new(0)), Arc::new((Mutex::new(false), Condvar::new())));
        let (sender, numbers, ringing) = (scene.clone(), number.clone(), doorbell.clone());
        let sending = thread::spawn(move || {
            let rung = AtomicU64::new(0);
            for message in 1..=2 {
                sender.message.store(message, Ordering::Release);
                sleep::no_fence();
                if sleep::seems_asleep(&sender.asleep)
                    && sleep::first_ring(&rung, numbers.load(Ordering::Relaxed))
                {
                    *ringing.0.lock().unwrap() = true;
                    ringing.1.notify_all();
                }
            }
        });
        while scene.message.load(Ordering::Acquire) != 2 {
            assert!(sleep::announce_to_all(&scene.asleep, &number));
            if scene.message.load(Ordering::Acquire) != 2 {
                let mut rung = doorbell.0.lock().unwrap();
                while !*rung {
                    rung = doorbell.1.wait(rung).unwrap();
                }
                *rung = false;
            }
            sleep::retract(&scene.asleep);
        }
        sending.join().unwrap();
    });
}

/// The same for a sleeper at two posts at once, each with its own senders, on a wake set that holds
/// the doorbells of both.
#[test]
fn one_fence_for_several_posts() {
    loom::model(|| {
        let (own, posts, doorbell) =
            (scene(), [scene(), scene()], Arc::new((Mutex::new(false), Condvar::new())));
        let numbers = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
        let sending = [0, 1].map(|at| {
            let (post, number, ringing) =
                (posts[at].clone(), numbers[at].clone(), doorbell.clone());
            thread::spawn(move || {
                post.message.store(1, Ordering::Release);
                sleep::no_fence();
                if sleep::seems_asleep(&post.asleep)
                    && sleep::first_ring(&AtomicU64::new(0), number.load(Ordering::Relaxed))
                {
                    *ringing.0.lock().unwrap() = true;
                    ringing.1.notify_all();
                }
            })
        });
        let (own_number, there) = (AtomicU64::new(0), || {
            posts.iter().filter(|post| post.message.load(Ordering::Acquire) == 1).count()
        });
        let mut seen = 0;
        while seen < 2 {
            (0..2).for_each(|at| sleep::announce_without_fence(&posts[at].asleep, &numbers[at]));
            assert!(sleep::announce_to_all(&own.asleep, &own_number));
            if there() == seen {
                let mut rung = doorbell.0.lock().unwrap();
                while !*rung {
                    rung = doorbell.1.wait(rung).unwrap();
                }
                *rung = false;
            }
            seen = there();
            posts.iter().for_each(|post| sleep::retract(&post.asleep));
        }
        sending.into_iter().for_each(|sender| sender.join().unwrap());
    });
}
