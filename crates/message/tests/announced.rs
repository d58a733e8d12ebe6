//! Threads that compute in a language with safe points of its own: they are notified of messages,
//! and take them at a safe point.

mod guard;

use guard::guarded;
use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use upcall_message::{Group, GroupBuilder, Handlers, InterruptError};

/// Runs `member` as each of the members of a group of two.
fn both(member: impl Fn(GroupBuilder) + Sync) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("announced-{}-{}", std::process::id(), NEXT.fetch_add(1, SeqCst));
    guarded(2, |guard| {
        thread::scope(|scope| {
            for rank in 0..2 {
                let (name, member) = (&name, &member);
                scope.spawn(move || {
                    guard.member(rank, || member(GroupBuilder::new(name, 2).rank(rank)))
                });
            }
        });
    });
}

/// Notifications of a thread, and their number.
#[derive(Clone, Default)]
struct Told(Arc<(AtomicBool, AtomicU64)>);

impl Told {
    fn notify(&self) -> Arc<dyn Fn() + Send + Sync> {
        let told = self.clone();
        Arc::new(move || {
            told.0.1.fetch_add(1, SeqCst);
            told.0.0.store(true, SeqCst);
        })
    }

    fn count(&self) -> u64 {
        self.0.1.load(SeqCst)
    }

    /// Computes until `done`, and checks now and then for a notification.
    fn computes_until(&self, group: &Group, done: impl Fn() -> bool) {
        let mut heeded = Instant::now();
        while !done() {
            assert!(heeded.elapsed() < Duration::from_secs(40), "nothing comes");
            black_box((0..50_u64).map(|at| at.to_string()).collect::<Vec<_>>());
            if self.0.0.swap(false, SeqCst) {
                group.heed();
                heeded = Instant::now();
            }
        }
    }
}

/// Some groups after each other: each message waits for its receiver's time slice, so beside busy
/// programs one group would take longer than a hang may.
#[test]
fn who_computes_heeds_what_comes_and_answers() {
    const ROUNDS: u64 = 500;
    for _ in 0..6 {
        both(|joining| {
            let mut handlers = Handlers::new();
            let (ball, seen) = (handlers.kind::<u64>("ball"), Rc::new(Cell::new(0)));
            let own = seen.clone();
            handlers.on(ball, move |group, from, hop| {
                // A signal handler could not do this.
                black_box(vec![hop; 10]);
                own.set(hop);
                if hop < ROUNDS {
                    group.send(from, ball, &(hop + 1)).unwrap();
                }
            });
            let (group, told) = (joining.join(handlers).unwrap(), Told::default());
            group.barrier().unwrap();
            if group.rank() == 0 {
                group.send(1, ball, &1).unwrap();
            }
            let announced = group.announce(told.notify()).unwrap();
            assert!(matches!(group.announce(told.notify()), Err(InterruptError::Resource { .. })));
            told.computes_until(&group, || seen.get() + 1 >= ROUNDS);
            drop(announced);
            group.barrier().unwrap();
        });
    }
}

/// In a handler: within an operation that was counted for the first announcement.
#[test]
fn who_is_announced_anew_in_a_handler_is_told_of_what_comes_later() {
    both(|joining| {
        let mut handlers = Handlers::new();
        let (number, seen) = (handlers.kind::<u64>("number"), Rc::new(Cell::new(0)));
        let (announced, told) = (Rc::new(RefCell::new(None)), Told::default());
        let (own, kept, notify) = (seen.clone(), Rc::downgrade(&announced), told.notify());
        handlers.on(number, move |group, from, value| {
            own.set(value);
            if group.rank() == 1 {
                let kept: Rc<RefCell<_>> = kept.upgrade().unwrap();
                drop(kept.take());
                *kept.borrow_mut() = Some(group.announce(notify.clone()).unwrap());
                group.send(from, number, &value).unwrap();
            }
        });
        let group = joining.join(handlers).unwrap();
        if group.rank() == 1 {
            // Before any message comes, which would announce it, too.
            *announced.borrow_mut() = Some(group.announce(told.notify()).unwrap());
        }
        group.barrier().unwrap();
        if group.rank() == 0 {
            for value in 1..=100 {
                group.send(1, number, &value).unwrap();
                group.run_until(|| seen.get() == value).unwrap();
            }
        } else {
            told.computes_until(&group, || seen.get() == 100);
            drop(announced.take());
        }
        group.barrier().unwrap();
    });
}

#[test]
fn sections_and_handlers_are_not_disturbed_and_nothing_is_forgotten_after_them() {
    const ALL: u64 = 100_000;
    both(|joining| {
        let mut handlers = Handlers::new();
        let (number, seen) = (handlers.kind::<u64>("number"), Rc::new(Cell::new(0)));
        let (own, inside) = (seen.clone(), Cell::new(false));
        handlers.on(number, move |group, _, value| {
            assert!(!inside.replace(true) && value == own.get());
            own.set(value + 1);
            if value % 1000 == 0 {
                // A safe point within a handler.
                assert_eq!(group.heed(), 0);
            }
            inside.set(false);
        });
        let (group, told) = (joining.join(handlers).unwrap(), Told::default());
        group.barrier().unwrap();
        if group.rank() == 0 {
            let announced = group.announce(told.notify()).unwrap();
            while seen.get() < ALL {
                let section = group.atomic();
                let before = seen.get();
                thread::sleep(Duration::from_micros(300));
                assert_eq!((group.heed(), seen.get()), (0, before));
                drop(section);
                // It is notified again if a message is there, even in segments.
                told.computes_until(&group, || seen.get() > before);
                thread::sleep(Duration::from_micros(100));
            }
            drop(announced);
        } else {
            (0..ALL).for_each(|value| group.send(0, number, &value).unwrap());
        }
        group.barrier().unwrap();
    });
}

/// Otherwise it would be notified for ever of a message that it cannot take.
#[test]
fn what_has_no_handler_is_told_of_no_more_than_once_a_look() {
    both(|joining| {
        let mut handlers = Handlers::new();
        let (plain, go) = (handlers.kind::<u64>("plain"), handlers.kind::<()>("go"));
        let gone = Rc::new(Cell::new(false));
        let own = gone.clone();
        handlers.on(go, move |_, _, ()| own.set(true));
        let (group, told) = (joining.join(handlers).unwrap(), Told::default());
        group.barrier().unwrap();
        if group.rank() == 0 {
            let announced = group.announce(told.notify()).unwrap();
            let ends = Instant::now() + Duration::from_millis(200);
            told.computes_until(&group, || Instant::now() > ends);
            assert!(told.count() < 50, "{}", told.count());
            drop(announced);
            assert_eq!(group.receive(|message| message.get(plain)), Ok(Some(7)));
            group.run_until(|| gone.get()).unwrap();
        } else {
            group.send(0, plain, &7).unwrap();
            group.send(0, go, &()).unwrap();
        }
        group.barrier().unwrap();
    });
}

/// The awaited condition becomes true at a safe point within the check that has found it false.
#[test]
fn a_wait_ends_by_what_was_heeded_within_the_look() {
    both(|joining| {
        let mut handlers = Handlers::new();
        let (ball, seen) = (handlers.kind::<u64>("ball"), Rc::new(Cell::new(0)));
        let own = seen.clone();
        handlers.on(ball, move |_, _, round| own.set(round));
        let (group, told) = (joining.join(handlers).unwrap(), Told::default());
        let other = 1 - group.rank();
        if group.rank() == 0 {
            let _announced = group.announce(told.notify()).unwrap();
            let looks = Cell::new(0);
            let look = || {
                looks.set(looks.get() + 1);
                let found = seen.get() == 1;
                // The first look is followed by a poll, the second one by the wait.
                if looks.get() == 2 {
                    group.send(other, ball, &1).unwrap();
                    told.computes_until(&group, || seen.get() == 1);
                }
                found
            };
            group.run_until(look).unwrap();
        } else {
            group.run_until(|| seen.get() == 1).unwrap();
            group.send(other, ball, &1).unwrap();
        }
        group.barrier().unwrap();
    });
}
