//! Handlers that run in the middle of a thread's computation: members on ordinary kernel threads,
//! which do not poll.

mod guard;

use guard::guarded;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use upcall_message::{
    Event, Group, GroupBuilder, Handlers, InterruptError, Kind, Pacing, Promise, SendError,
};

/// Maximum time of a wait, within the maximum time of a test.
const GUARD: Duration = Duration::from_secs(40);

fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("interrupts-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed))
}

/// Runs `member` as each of the members of a group.
fn together(size: usize, member: impl Fn(GroupBuilder) + Sync) {
    let name = name();
    guarded(size, |guard| {
        thread::scope(|scope| {
            for rank in 0..size {
                let (name, member) = (&name, &member);
                scope.spawn(move || {
                    guard.member(rank, || member(GroupBuilder::new(name, size).rank(rank)))
                });
            }
        });
    });
}

fn promise() -> Promise {
    // SAFETY: the handlers of these tests read numbers, touch atomics, and send by
    // `Interrupt::try_send`.
    unsafe { Promise::given() }
}

/// Computes until `done`, which a handler makes true. The computation allocates and frees, as
/// ordinary code does.
fn computes_until(done: impl Fn() -> bool) {
    let ends = Instant::now() + GUARD;
    while !done() {
        assert!(Instant::now() < ends, "no handler comes");
        black_box((0..200_u64).map(|at| at.to_string()).collect::<Vec<_>>());
    }
}

/// A handler's counts: the number of messages, and whether they came in order.
#[derive(Clone, Default)]
struct Counted(Arc<(AtomicU64, AtomicU64)>);

impl Counted {
    fn handler(&self, handlers: &mut Handlers, kind: Kind<u64>) {
        let own = self.clone();
        handlers.on_interrupt(kind, move |_, message| own.comes(message.word(0)));
    }

    fn comes(&self, number: Option<u64>) {
        let before = self.0.0.fetch_add(1, SeqCst);
        self.0.1.fetch_add(u64::from(number != Some(before)), SeqCst);
    }

    fn count(&self) -> u64 {
        assert_eq!(self.0.1.load(SeqCst), 0, "out of order");
        self.0.0.load(SeqCst)
    }
}

fn send_all(group: &Group, to: usize, kind: Kind<u64>, count: u64, mut between: impl FnMut(u64)) {
    for number in 0..count {
        group.send(to, kind, &number).unwrap();
        between(number);
    }
}

/// Some groups after each other: each message waits for its receiver's time slice, so beside busy
/// programs one group would take longer than a hang may.
#[test]
fn a_thread_that_computes_is_interrupted_and_answers() {
    const HOPS: u64 = 500;
    for _ in 0..4 {
        together(2, |joining| {
            let mut handlers = Handlers::new();
            let (ball, hops) = (handlers.kind::<u64>("ball"), Arc::new(AtomicU64::new(0)));
            let seen = hops.clone();
            handlers.on_interrupt(ball, move |interrupt, message| {
                let hop = message.get(ball).unwrap_or(u64::MAX);
                seen.store(hop, SeqCst);
                if hop < HOPS && interrupt.try_send(message.from(), ball, &(hop + 1)).is_err() {
                    seen.store(u64::MAX, SeqCst);
                }
            });
            let group = joining.join(handlers).unwrap();
            // The path to each other is opened before.
            group.barrier().unwrap();
            group
                .interruptible(promise(), || {
                    if group.rank() == 0 {
                        group.send(1, ball, &0).unwrap();
                    }
                    computes_until(|| hops.load(SeqCst) + 1 >= HOPS);
                    assert_ne!(hops.load(SeqCst), u64::MAX);
                })
                .unwrap();
            group.barrier().unwrap();
        });
    }
}

/// An interrupt takes the last message of a member that is known to have ended, and cannot report
/// the end. The members are as if on two hosts: there the end becomes known once, and within one
/// host with each of two connections.
#[test]
fn a_wait_finds_the_end_of_a_member_whose_last_message_an_interrupt_took() {
    const COUNT: u64 = 5;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    let address = format!("127.{}.{}.1:7411", 1 + (process >> 8) % 250, process & 0xFF);
    together(2, |joining| {
        let (mut handlers, counted) = (Handlers::new(), Counted::default());
        let (hello, number) = (handlers.kind::<()>("hello"), handlers.kind::<u64>("number"));
        counted.handler(&mut handlers, number);
        let host = NEXT.fetch_add(1, SeqCst);
        let joining = joining.across(&address).apart(host.into());
        let group = joining.join(handlers).unwrap();
        if group.rank() == 1 {
            while group.receive(|message| message.get(hello)).is_err() {
                assert!(group.wait(Some(GUARD)), "nothing comes");
            }
            return send_all(&group, 0, number, COUNT, |_| ());
        }
        group
            .interruptible(promise(), || {
                let section = group.atomic();
                loop {
                    match group.try_send(1, hello, &()) {
                        Ok(()) | Err(SendError::Full) => thread::sleep(Duration::from_millis(1)),
                        Err(SendError::Ended { rank: 1 }) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                assert_eq!(counted.count(), 0);
                drop(section);
                computes_until(|| counted.count() == COUNT);
                assert!(group.wait(Some(GUARD)), "no event comes");
                assert_eq!(group.event(), Some(Event::Ended { rank: 1 }));
            })
            .unwrap();
    });
}

/// A sender with bursts and pauses, to a member that computes; in the other direction, messages of
/// all kinds by operations that are interrupted.
#[test]
fn operations_and_interrupts_do_not_disturb_each_other() {
    const COUNT: u64 = 30_000;
    together(3, |joining| {
        let mut handlers = Handlers::new();
        let (number, text) = (handlers.kind::<u64>("number"), handlers.kind::<str>("text"));
        let counted = [Counted::default(), Counted::default(), Counted::default()];
        let own = counted.clone();
        handlers.on_interrupt(number, move |_, message| own[message.from()].comes(message.word(0)));
        let texts = Arc::new(AtomicU64::new(0));
        let seen = texts.clone();
        handlers
            .on(text, move |_, _, text| assert_eq!(text, seen.fetch_add(1, SeqCst).to_string()));
        let group = joining.join(handlers).unwrap();
        if group.rank() == 0 {
            group
                .interruptible(promise(), || {
                    let mut sent = 0;
                    computes_until(|| counted[1].count() + counted[2].count() > 1000);
                    while counted[1].count() < COUNT || counted[2].count() < COUNT {
                        assert_eq!(group.event(), None);
                        if sent < COUNT / 10 {
                            // Both directions at once, and sections that are short and long.
                            group.send(1, text, &sent.to_string()).unwrap();
                            group.send(2, text, &sent.to_string()).unwrap();
                            sent += 1;
                        }
                        let section = group.atomic();
                        let before = counted[1].count() + counted[2].count();
                        black_box((0..sent % 100).map(|at| at.to_string()).collect::<Vec<_>>());
                        assert_eq!(counted[1].count() + counted[2].count(), before);
                        drop(section);
                        if sent % 16 == 0 {
                            group.poll();
                            group.wait(Some(Duration::from_micros(sent % 200)));
                        }
                        let _ = (group.available(), group.buffered(1));
                    }
                    for sent in sent..COUNT / 10 {
                        group.send(1, text, &sent.to_string()).unwrap();
                        group.send(2, text, &sent.to_string()).unwrap();
                    }
                })
                .unwrap();
        } else {
            send_all(&group, 0, number, COUNT, |number| match number % 1000 {
                0 => thread::sleep(Duration::from_micros(300)),
                1..10 => thread::yield_now(),
                10 => drop(group.poll()),
                _ => {}
            });
            while texts.load(SeqCst) < COUNT / 10 {
                assert!(
                    group.poll() > 0 || group.wait(Some(Duration::from_secs(40))),
                    "nothing comes"
                );
            }
        }
        assert_eq!(
            counted[1].count() + counted[2].count(),
            if group.rank() == 0 { 2 * COUNT } else { 0 }
        );
        group.barrier().unwrap();
    });
}

/// During a long section or handler, arriving messages are diverted. Interrupts still take all of
/// them, as far as two segments go.
#[test]
fn what_was_diverted_comes_when_a_section_ends() {
    const COUNT: u64 = 60_000;
    together(2, |joining| {
        let mut handlers = Handlers::new();
        let (number, counted) = (handlers.kind::<u64>("number"), Counted::default());
        counted.handler(&mut handlers, number);
        let group = joining.join(handlers).unwrap();
        group.barrier().unwrap();
        if group.rank() == 0 {
            group
                .interruptible(promise(), || {
                    let section = group.atomic();
                    let before = counted.count();
                    // 938 KiB arrive.
                    thread::sleep(Duration::from_millis(30));
                    assert_eq!(counted.count(), before);
                    drop(section);
                    computes_until(|| counted.count() == COUNT);
                })
                .unwrap();
        } else {
            send_all(&group, 0, number, COUNT, |_| ());
        }
        group.barrier().unwrap();
    });
}

/// A wait in a section ends awake: no sender would notify the thread any more.
#[test]
fn a_wait_in_a_section_leaves_the_thread_interruptible() {
    const ROUNDS: u64 = 50;
    together(2, |joining| {
        let mut handlers = Handlers::new();
        let (number, ready) = (handlers.kind::<u64>("number"), handlers.kind::<()>("ready"));
        let (counted, told) = (Counted::default(), Arc::new(AtomicU64::new(0)));
        counted.handler(&mut handlers, number);
        let seen = told.clone();
        handlers.on(ready, move |_, _, ()| _ = seen.fetch_add(1, SeqCst));
        let group = joining.pacing(Pacing::Sleep).join(handlers).unwrap();
        group.barrier().unwrap();
        if group.rank() == 0 {
            let body = || {
                for round in 0..ROUNDS {
                    let section = group.atomic();
                    group.wait(Some(Duration::from_micros(100)));
                    // The other one sends only after this, and after it nothing is done here by
                    // which the group could notice.
                    group.send(1, ready, &()).unwrap();
                    drop(section);
                    computes_until(|| counted.count() == round + 1);
                }
            };
            group.interruptible(promise(), body).unwrap();
        } else {
            for round in 0..ROUNDS {
                group.run_until(|| told.load(SeqCst) > round).unwrap();
                thread::sleep(Duration::from_micros(200));
                group.send(0, number, &round).unwrap();
            }
        }
        group.barrier().unwrap();
    });
}

/// A member that has not sent before interrupts a thread that computes. A message that no handler
/// for interrupts takes stays there, with those behind it, and other senders go on.
#[test]
fn others_interrupt_while_one_has_to_be_polled_for() {
    together(3, |joining| {
        let mut handlers = Handlers::new();
        let (number, other) = (handlers.kind::<u64>("number"), handlers.kind::<()>("other"));
        let counted = [Counted::default(), Counted::default(), Counted::default()];
        let own = counted.clone();
        handlers.on_interrupt(number, move |_, message| own[message.from()].comes(message.word(0)));
        let ready = Arc::new(AtomicU64::new(0));
        let seen = ready.clone();
        handlers.on(other, move |_, _, ()| _ = seen.fetch_add(1, SeqCst));
        let group = joining.join(handlers).unwrap();
        match group.rank() {
            0 => {
                group
                    .interruptible(promise(), || {
                        for rank in [1, 2] {
                            group.send(rank, other, &()).unwrap();
                        }
                        computes_until(|| counted[1].count() == 100 && counted[2].count() == 5);
                        assert_eq!(ready.load(SeqCst), 0);
                        // A poll takes it.
                        computes_until(|| group.poll() > 0 || ready.load(SeqCst) == 1);
                        computes_until(|| counted[2].count() == 10);
                    })
                    .unwrap();
            }
            rank => {
                while ready.load(SeqCst) == 0 {
                    group.wait(None);
                    group.poll();
                }
                let count = if rank == 1 { 100 } else { 10 };
                send_all(&group, 0, number, count, |number| {
                    if rank == 2 && number == 4 {
                        group.send(0, other, &()).unwrap();
                    }
                });
            }
        }
        group.barrier().unwrap();
        assert_eq!(
            counted.map(|counted| counted.count()).iter().sum::<u64>(),
            if group.rank() == 0 { 110 } else { 0 }
        );
    });
}

#[test]
fn outside_of_it_they_are_polled_for() {
    let mut handlers = Handlers::new();
    let (number, counted) = (handlers.kind::<u64>("number"), Counted::default());
    counted.handler(&mut handlers, number);
    let refused = Arc::new(AtomicU64::new(0));
    let (again, seen) = (handlers.kind::<()>("again"), refused.clone());
    handlers.on_interrupt(again, move |interrupt, _| {
        let full = matches!(interrupt.try_send(7, number, &0), Err(SendError::Full));
        seen.fetch_add(u64::from(full && interrupt.size() == 1 && interrupt.rank() == 0), SeqCst);
    });
    let group = GroupBuilder::new(&name(), 1).join(handlers).unwrap();
    send_all(&group, 0, number, 3, |_| ());
    group.send(0, again, &()).unwrap();
    thread::sleep(Duration::from_millis(2));
    assert_eq!(counted.count(), 0);
    group.poll();
    assert_eq!((counted.count(), refused.load(SeqCst)), (3, 1));
    // A panic in the computation ends it as a return does. A message that came before it began is
    // handled at once.
    group.send(0, number, &3).unwrap();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        group.interruptible(promise(), || {
            assert_eq!(counted.count(), 4);
            // Nesting is allowed, and has no effect.
            group.interruptible(promise(), || group.send(0, number, &4)).unwrap().unwrap();
            computes_until(|| counted.count() == 5);
            panic!("meant");
        })
    }));
    assert!(ended.is_err());
    group.send(0, number, &5).unwrap();
    thread::sleep(Duration::from_millis(2));
    assert_eq!(counted.count(), 5);
    assert_eq!(group.poll(), 1);
}

#[test]
fn on_a_virtual_processor_there_are_safe_points() {
    let idle = Arc::new(upcall_sched::PollingIdle::new(1, Pacing::Adaptive).unwrap());
    let body = || {
        let group = GroupBuilder::new(&name(), 1).join(Handlers::new()).unwrap();
        let error = group.interruptible(promise(), || unreachable!("it does not run")).unwrap_err();
        assert!(
            matches!(error, InterruptError::SafePoints)
                && error.to_string().contains("safe_point()")
        );
    };
    upcall_thread::Processors::new().count(1).idle(idle).run(body).unwrap();
}
