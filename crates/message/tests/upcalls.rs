//! Handlers that run by themselves: members on virtual processors, whose threads do other work.

mod guard;

use guard::guarded;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use upcall_message::{Group, GroupBuilder, Handlers, JoinError, Pacing};

fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("upcalls-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs `member` as each of the members of a group, each on a virtual processor of its own.
fn together(size: usize, pacing: Pacing, member: impl Fn(GroupBuilder) + Sync) {
    let name = name();
    guarded(size, |guard| {
        thread::scope(|scope| {
            for rank in 0..size {
                let (name, member) = (&name, &member);
                scope.spawn(move || {
                    guard.member(rank, || {
                        on_a_processor(pacing, || member(GroupBuilder::new(name, size).rank(rank)))
                    })
                });
            }
        });
    });
}

fn on_a_processor<T>(pacing: Pacing, body: impl FnOnce() -> T) -> T {
    let idle = Arc::new(upcall_sched::PollingIdle::new(1, pacing).unwrap());
    upcall_thread::Processors::new().count(1).idle(idle).run(body).unwrap()
}

/// Blocks the calling thread until `done`, which a handler makes true.
fn sleeps_until(done: impl Fn() -> bool) {
    let ends = Instant::now() + Duration::from_secs(40);
    while !done() {
        assert!(Instant::now() < ends, "no handler comes");
        upcall_thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_handler_runs_while_its_threads_wait_for_something_else() {
    for pacing in [Pacing::Adaptive, Pacing::Sleep, Pacing::Poll] {
        together(2, pacing, |joining| {
            let mut handlers = Handlers::new();
            let (ball, last) = (handlers.kind::<u32>("ball"), Rc::new(Cell::new(0)));
            let seen = last.clone();
            handlers.on(ball, move |group, from, hops| {
                seen.set(hops);
                if hops < 2000 {
                    group.send(from, ball, &(hops + 1)).unwrap();
                }
            });
            let group = joining.join(handlers).unwrap();
            if group.rank() == 0 {
                group.send(1, ball, &1).unwrap();
            }
            // No thread polls.
            sleeps_until(|| last.get() >= 1999);
            group.barrier().unwrap();
        });
    }
}

#[test]
fn a_handler_runs_though_threads_are_always_ready() {
    together(2, Pacing::Adaptive, |joining| {
        let mut handlers = Handlers::new();
        let (count, sum) = (handlers.kind::<u64>("count"), Rc::new(Cell::new(0)));
        let seen = sum.clone();
        handlers.on(count, move |_, _, value| seen.set(seen.get() + value));
        let group = joining.join(handlers).unwrap();
        let stop = Arc::new(AtomicU32::new(0));
        let busy: Vec<_> = (0..3)
            .map(|_| {
                let stop = stop.clone();
                upcall_thread::spawn(move || {
                    while stop.load(Ordering::Relaxed) == 0 {
                        upcall_thread::yield_now();
                    }
                })
            })
            .collect();
        for value in 1..=1000 {
            group.send(1 - group.rank(), count, &value).unwrap();
        }
        let ends = Instant::now() + Duration::from_secs(40);
        while sum.get() < 500_500 {
            assert!(Instant::now() < ends, "{} of 500500", sum.get());
            upcall_thread::yield_now();
        }
        stop.store(1, Ordering::Relaxed);
        busy.into_iter().for_each(|thread| thread.join().unwrap());
        group.barrier().unwrap();
    });
}

#[test]
fn in_a_section_no_handler_runs_and_at_its_end_all_do() {
    together(2, Pacing::Adaptive, |joining| {
        let mut handlers = Handlers::new();
        let (number, got) = (handlers.kind::<u32>("number"), Rc::new(RefCell::new(Vec::new())));
        let seen = got.clone();
        handlers.on(number, move |_, _, value| seen.borrow_mut().push(value));
        let group = joining.join(handlers).unwrap();
        if group.rank() == 0 {
            let section = group.atomic();
            group.barrier().unwrap();
            let inner = group.atomic();
            let before = got.borrow().len();
            // The other one sends now: the message arrives and stays there, although this thread
            // reaches safe points.
            let ends = Instant::now() + Duration::from_secs(40);
            while !group.available() {
                assert!(Instant::now() < ends);
                upcall_thread::sleep(Duration::from_micros(100));
            }
            (0..1000).for_each(|_| upcall_thread::yield_now());
            upcall_thread::sleep(Duration::from_millis(5));
            upcall_thread::safe_point();
            drop(inner);
            assert_eq!((group.available(), got.borrow().len()), (true, before));
            assert!(group.wait(Some(Duration::from_secs(1))), "a message is there");
            drop(section);
            assert!(
                got.borrow().len() > before,
                "handlers run before the one who ends a section goes on"
            );
            sleeps_until(|| got.borrow().len() == 100);
            assert!(got.borrow().iter().copied().eq(0..100));
        } else {
            group.barrier().unwrap();
            (0..100).for_each(|value| group.send(0, number, &value).unwrap());
        }
        group.barrier().unwrap();
    });
}

#[test]
fn a_section_that_keeps_messages_waiting_goes_on_and_is_told() {
    const ALL: u64 = 20_000;
    let all_sent = AtomicBool::new(false);
    together(2, Pacing::Adaptive, |joining| {
        let mut handlers = Handlers::new();
        let (number, got) = (handlers.kind::<u64>("number"), Rc::new(Cell::new(0_u64)));
        let seen = got.clone();
        handlers.on(number, move |_, _, value| {
            assert_eq!(value, seen.get());
            seen.set(value + 1);
        });
        let group = joining.timeout(Some(Duration::from_micros(50))).join(handlers).unwrap();
        if group.rank() == 0 {
            let section = group.atomic();
            group.barrier().unwrap();
            // The other one sends all, although only the messages that came with the barrier are
            // taken.
            sleeps_until(|| all_sent.load(Ordering::Relaxed));
            assert!(got.get() < ALL / 10 && group.diversions() == 0, "{}", got.get());
            drop(section);
            sleeps_until(|| got.get() == ALL);
            assert_eq!(group.diversions(), 1);
        } else {
            group.barrier().unwrap();
            (0..ALL).for_each(|value| group.send(0, number, &value).unwrap());
            assert!(group.diverted() > 0 && group.diversions() == 0);
            all_sent.store(true, Ordering::Relaxed);
        }
        group.barrier().unwrap();
    });
}

#[test]
fn polls_in_a_section_and_upcalls_take_each_message_once_and_in_order() {
    const EACH: u64 = 20_000;
    together(3, Pacing::Adaptive, |joining| {
        let mut handlers = Handlers::new();
        let (number, next) = (handlers.kind::<u64>("number"), Rc::new(RefCell::new([0_u64; 3])));
        let seen = next.clone();
        handlers.on(number, move |_, from, value| {
            let next = &mut seen.borrow_mut()[from];
            assert_eq!(value, *next, "from {from}");
            *next += 1;
        });
        let group = joining.timeout(Some(Duration::from_micros(50))).join(handlers).unwrap();
        let mut random = group.rank() as u64 + 1;
        for value in 0..EACH {
            (0..3).for_each(|to| group.send(to, number, &value).unwrap());
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            match random >> 59 {
                0 => drop(group.poll()),
                1 => {
                    let _section = group.atomic();
                    group.poll();
                    upcall_thread::yield_now();
                }
                2 => upcall_thread::yield_now(),
                3 => drop(group.wait(Some(Duration::from_micros(10)))),
                4 => upcall_thread::safe_point(),
                5 => {
                    let _ = group.receive(|message| {
                        let next = &mut next.borrow_mut()[message.from()];
                        assert_eq!(message.get(number), Some(*next), "from {}", message.from());
                        *next += 1;
                    });
                }
                _ => {}
            }
        }
        sleeps_until(|| *next.borrow() == [EACH; 3]);
        group.barrier().unwrap();
    });
}

#[test]
fn a_handler_that_must_block_is_a_thread() {
    together(2, Pacing::Adaptive, |joining| {
        let mut handlers = Handlers::new();
        let (wait, go) = (handlers.kind::<()>("wait"), handlers.kind::<()>("go"));
        let (gone, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let (may, all) = (gone.clone(), done.clone());
        handlers.on(wait, move |_, _, ()| {
            // Another message, behind this one, lets it go on.
            sleeps_until(|| may.get());
            all.set(all.get() + 1);
        });
        handlers.on(go, move |_, _, ()| gone.set(true));
        let group = joining.join(handlers).unwrap();
        let other = 1 - group.rank();
        (0..5).for_each(|_| group.send(other, wait, &()).unwrap());
        group.send(other, go, &()).unwrap();
        sleeps_until(|| done.get() == 5);
        group.barrier().unwrap();
    });
}

#[test]
fn a_handler_that_panics_ends_itself_only() {
    together(2, Pacing::Adaptive, |joining| {
        let mut handlers = Handlers::new();
        let (number, sum) = (handlers.kind::<u32>("number"), Rc::new(Cell::new(0)));
        let seen = sum.clone();
        handlers.on(number, move |_, _, value| {
            seen.set(seen.get() + value);
            assert!(value != 3, "three, as it is to");
        });
        let group = joining.join(handlers).unwrap();
        (1..=10).for_each(|value| group.send(1 - group.rank(), number, &value).unwrap());
        while sum.get() < 55 {
            assert!(group.wait(Some(Duration::from_secs(40))), "{}", sum.get());
        }
        group.barrier().unwrap();
    });
}

/// Two members that send more than fits to each other, and take nothing in between: without
/// diversion, only upcalls let both go on.
#[test]
fn who_waits_for_room_runs_handlers() {
    together(2, Pacing::Adaptive, |joining| {
        let mut handlers = Handlers::new();
        let (block, count) = (handlers.kind::<[u64; 16]>("block"), Rc::new(Cell::new(0)));
        let seen = count.clone();
        handlers.on(block, move |_, _, _| seen.set(seen.get() + 1));
        let group = joining.timeout(None).join(handlers).unwrap();
        (0..5000).for_each(|value| group.send(1 - group.rank(), block, &[value; 16]).unwrap());
        sleeps_until(|| count.get() == 5000);
        group.barrier().unwrap();
    });
}

#[test]
fn without_upcalls_nothing_runs_that_is_not_polled_for() {
    together(2, Pacing::Adaptive, |joining| {
        let mut handlers = Handlers::new();
        let (number, got) = (handlers.kind::<u32>("number"), Rc::new(Cell::new(0)));
        let seen = got.clone();
        handlers.on(number, move |_, _, value| seen.set(value));
        let group = joining.upcalls(false).join(handlers).unwrap();
        group.send(1 - group.rank(), number, &7).unwrap();
        assert!(group.wait(Some(Duration::from_secs(40))));
        upcall_thread::sleep(Duration::from_millis(2));
        assert_eq!(got.get(), 0);
        // Perhaps also a message of the other one's barrier.
        assert!(group.poll() >= 1);
        assert_eq!(got.get(), 7);
        group.barrier().unwrap();
    });
}

#[test]
fn a_thread_that_waits_is_woken_by_messages_without_handlers_and_by_events() {
    together(2, Pacing::Sleep, |joining| {
        let mut handlers = Handlers::new();
        let text = handlers.kind::<str>("text");
        let group = joining.join(handlers).unwrap();
        if group.rank() == 0 {
            let spun = Rc::new(Cell::new(0));
            assert!(group.wait(None));
            assert_eq!(
                group.receive(|message| message.get(text)).unwrap().as_deref(),
                Some("well")
            );
            while group.event().is_none() {
                assert!(group.wait(Some(Duration::from_secs(40))));
                spun.set(spun.get() + 1);
            }
            assert!(spun.get() < 10, "{} times round", spun.get());
        } else {
            thread::sleep(Duration::from_millis(20));
            group.send(0, text, "well").unwrap();
            thread::sleep(Duration::from_millis(20));
        }
    });
}

#[test]
fn an_idle_member_takes_no_processor_time() {
    let name = name();
    let spent = thread::spawn(move || {
        on_a_processor(Pacing::Adaptive, || {
            let mut handlers = Handlers::new();
            let number = handlers.kind::<u32>("number");
            let group = GroupBuilder::new(&name, 1).join(handlers).unwrap();
            // It has no handler, and no thread takes it: there is nothing to do.
            group.send(0, number, &1).unwrap();
            let used = || {
                let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                used.tv_sec * 1_000_000_000 + used.tv_nsec
            };
            // The first rounds may contain remaining work of joining. A member that does not rest
            // fails all.
            let mut rounds = (0..20).map(|_| {
                let before = used();
                upcall_thread::sleep(Duration::from_millis(500));
                used() - before
            });
            rounds.find(|spent| *spent < 10_000_000)
        })
    });
    assert!(spent.join().unwrap().is_some(), "no half a second of 20 took less than 10 ms");
}

/// A member that ends with its scheduler, and a member that outlives it.
#[test]
fn a_group_outlives_its_virtual_processor() {
    let name = name();
    let (ours, others) = (name.clone(), name);
    let other = thread::spawn(move || {
        let mut handlers = Handlers::new();
        let number = handlers.kind::<u32>("number");
        let group = GroupBuilder::new(&others, 2).rank(1).join(handlers).unwrap();
        group.send(0, number, &1).unwrap();
        group.run_until(|| false).unwrap_err();
    });
    let mut handlers = Handlers::new();
    let (number, got) = (handlers.kind::<u32>("number"), Rc::new(Cell::new(0)));
    let seen = got.clone();
    handlers.on(number, move |_, _, value| seen.set(value));
    let group: Group = on_a_processor(Pacing::Adaptive, || {
        GroupBuilder::new(&ours, 2).rank(0).join(handlers).unwrap()
    });
    while got.get() == 0 {
        assert!(group.wait(Some(Duration::from_secs(40))));
        group.poll();
    }
    drop(group);
    other.join().unwrap();
}

/// The wait checks again when the second handler has run, and the first one has not.
#[test]
fn a_wait_ends_when_a_handler_that_blocked_has_run() {
    together(2, Pacing::Adaptive, |joining| {
        let mut handlers = Handlers::new();
        let (slow, quick) = (handlers.kind::<()>("slow"), handlers.kind::<()>("quick"));
        let (done, passed) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (ends, seen) = (done.clone(), passed.clone());
        handlers.on(slow, move |_, _, ()| {
            sleeps_until(|| seen.get());
            upcall_thread::sleep(Duration::from_millis(5));
            ends.set(true);
        });
        let passes = passed.clone();
        handlers.on(quick, move |_, _, ()| passes.set(true));
        let group = joining.join(handlers).unwrap();
        if group.rank() == 0 {
            group.run_until(|| done.get()).unwrap();
            group.send(1, quick, &()).unwrap();
        } else {
            group.send(0, slow, &()).unwrap();
            group.send(0, quick, &()).unwrap();
            group.run_until(|| passed.get()).unwrap();
        }
    });
}

/// One worker takes both messages; its second handler waits for what the thread does after the
/// first one.
#[test]
fn a_wait_ends_when_one_of_several_handlers_has_run() {
    together(2, Pacing::Adaptive, |joining| {
        let mut handlers = Handlers::new();
        let (quick, slow) = (handlers.kind::<u32>("quick"), handlers.kind::<()>("slow"));
        let (passed, gone) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (passes, seen, goes) = (passed.clone(), passed.clone(), gone.clone());
        handlers.on(quick, move |_, _, round| passes.set(round));
        handlers.on(slow, move |_, _, ()| sleeps_until(|| goes.get() == seen.get()));
        let group = joining.join(handlers).unwrap();
        for round in 1..=20 {
            if group.rank() == 0 {
                // A poll of its own could run the second handler on this thread.
                while passed.get() != round {
                    group.wait(None);
                }
                gone.set(round);
                group.send(1, quick, &round).unwrap();
            } else {
                group.send(0, quick, &round).unwrap();
                group.send(0, slow, &()).unwrap();
                group.run_until(|| passed.get() == round).unwrap();
            }
        }
        group.barrier().unwrap();
    });
}

#[test]
fn a_wait_ends_when_another_thread_has_received_the_message() {
    together(2, Pacing::Adaptive, |joining| {
        let mut handlers = Handlers::new();
        let (begin, data) = (handlers.kind::<()>("begin"), handlers.kind::<()>("data"));
        let (done, begun) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (ended, missed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let take = {
            let (done, ended, missed) = (done.clone(), ended.clone(), missed.clone());
            move |group: &Group| {
                while !done.get() {
                    group.wait(None);
                    while group.receive(|_| ()).is_ok() {
                        done.set(true);
                    }
                }
                ended.set(ended.get() + 1);
                // The end of a handler would wake the other thread.
                let ends = Instant::now() + Duration::from_secs(40);
                while ended.get() < 2 && Instant::now() < ends {
                    upcall_thread::sleep(Duration::from_millis(1));
                }
                missed.set(missed.get() + u32::from(ended.get() < 2));
            }
        };
        let (takes, begins) = (take.clone(), begun.clone());
        handlers.on(begin, move |group, from, ()| {
            if group.rank() == 0 {
                group.send(from, begin, &()).unwrap();
                takes(group);
            } else {
                begins.set(true);
            }
        });
        let group = joining.join(handlers).unwrap();
        if group.rank() == 0 {
            take(&group);
            assert_eq!(missed.get(), 0, "a thread waits for what the other one has received");
        } else {
            group.send(0, begin, &()).unwrap();
            group.run_until(|| begun.get()).unwrap();
            // Both threads wait by then.
            thread::sleep(Duration::from_millis(20));
            group.send(0, data, &()).unwrap();
        }
        group.barrier().unwrap();
    });
}

/// The message belongs to another thread. The barrier waits for members that wait for the answer to
/// it.
#[test]
fn a_barrier_leaves_messages_without_handlers_to_other_threads() {
    together(4, Pacing::Adaptive, |joining| {
        let mut handlers = Handlers::new();
        let (begin, request, reply) = (
            handlers.kind::<()>("begin"),
            handlers.kind::<()>("request"),
            handlers.kind::<()>("reply"),
        );
        let (begun, replied) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (begins, replies) = (begun.clone(), replied.clone());
        handlers.on(begin, move |group, _, ()| {
            begins.set(true);
            group.wait(None);
            // The thread in the barrier gets a turn.
            upcall_thread::sleep(Duration::from_millis(5));
            let from = group.receive(|message| message.from()).unwrap();
            group.send(from, reply, &()).unwrap();
        });
        handlers.on(reply, move |_, _, ()| replies.set(true));
        let group = joining.join(handlers).unwrap();
        match group.rank() {
            0 => {
                group.send(0, begin, &()).unwrap();
                sleeps_until(|| begun.get());
            }
            1 => {
                group.send(0, request, &()).unwrap();
                group.run_until(|| replied.get()).unwrap();
            }
            _ => {}
        }
        group.barrier().unwrap();
    });
}

/// In a process of its own: other tests need virtual processors, too.
#[test]
fn a_virtual_processor_that_cannot_poll_is_not_taken_for_a_member() {
    const CHILD: &str = "UPCALL_TEST_HAS_ALL_PROCESSORS";
    if std::env::var_os(CHILD).is_none() {
        let test = "a_virtual_processor_that_cannot_poll_is_not_taken_for_a_member";
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let child =
            command.args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().unwrap();
        return assert!(child.status.success(), "{child:?}");
    }
    let join = || {
        let joined = GroupBuilder::new(&name(), 1).join(Handlers::new());
        joined
            .map(drop)
            .map_err(|error| (matches!(error, JoinError::Resource { .. }), error.to_string()))
    };
    // The processor that runs `join` begins last, and 32 have begun by then.
    let joined = on_a_processor(Pacing::Sleep, || {
        let others = || {
            let idle = Arc::new(upcall_sched::PollingIdle::new(32, Pacing::Sleep).unwrap());
            upcall_thread::Processors::new().count(32).idle(idle).run(join).unwrap()
        };
        thread::scope(|scope| scope.spawn(others).join().unwrap())
    });
    let (is_resource, text) = joined.unwrap_err();
    assert!(is_resource && text.contains("at most 32 virtual processors"), "{text}");
    assert_eq!(on_a_processor(Pacing::Sleep, join), Ok(()));
}
