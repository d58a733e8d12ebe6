//! Kinds by their signatures, which are those of Rust's types to other members; and waits that can
//! be interrupted.

mod guard;

use guard::guarded;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use upcall_message::{
    BadKind, Carried, Event, GroupBuilder, Handlers, JoinError, Message, RunError, SendError, Unfit,
};

fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("foreign-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Member 0 and member 1 of a group, each in a thread.
fn both(zero: impl FnOnce(GroupBuilder) + Send, one: impl FnOnce(GroupBuilder) + Send) {
    let name = name();
    let joining = |rank| GroupBuilder::new(&name, 2).rank(rank).within(Duration::from_secs(60));
    guarded(2, |guard| {
        thread::scope(|scope| {
            scope.spawn(|| guard.member(0, || zero(joining(0))));
            guard.member(1, || one(joining(1)));
        });
    });
}

fn carried(signature: &str) -> Carried {
    Carried::parse(signature).unwrap()
}

fn copied(message: &Message<'_, '_>, carries: &Carried) -> Option<Vec<u8>> {
    let mut bytes = vec![0; message.size()];
    message.copy_out(0, &mut bytes)?;
    carries.check(&bytes).ok().map(|()| bytes)
}

#[test]
fn they_and_rusts_types_are_the_same_kinds() {
    both(
        |joining| {
            let mut handlers = Handlers::new();
            let (pair, text) = (handlers.kind::<(u64, i32)>("pair"), handlers.kind::<str>("text"));
            let group = joining.join(handlers).unwrap();
            group.send(1, pair, &(7, -2)).unwrap();
            group.send(1, text, "ß").unwrap();
            assert!(group.wait(None));
            assert_eq!(
                group.receive(|message| message.get(text)).unwrap().as_deref(),
                Some("back")
            );
            group.barrier().unwrap();
        },
        |joining| {
            let mut handlers = Handlers::new();
            let pair = handlers.foreign("pair", carried("(u64,i32)")).unwrap();
            let text = handlers.foreign("text", carried("text")).unwrap();
            assert!(matches!(handlers.foreign("pair", Carried::Bytes), Err(BadKind::Taken { .. })));
            assert!(matches!(
                handlers.foreign("upcall:came", Carried::Bytes),
                Err(BadKind::Own { .. })
            ));
            let (seen, on_pair, on_text) =
                (Rc::new(RefCell::new(Vec::new())), pair.clone(), text.clone());
            let here = seen.clone();
            handlers.on_foreign(
                &pair,
                move |message| copied(message, on_pair.carries()),
                move |_, from, bytes| here.borrow_mut().push((from, bytes)),
            );
            let (here, back) = (seen.clone(), text.clone());
            handlers.on_foreign(
                &text,
                move |message| copied(message, on_text.carries()),
                move |group, from, bytes| {
                    here.borrow_mut().push((from, bytes));
                    group.send_foreign(from, &back, b"back").unwrap();
                },
            );
            let group = joining.join(handlers).unwrap();
            let bad = group.send_foreign(0, &text, b"\xff").unwrap_err();
            assert!(matches!(bad, SendError::Unfit(Unfit::Text { valid: 0 })), "{bad}");
            assert!(matches!(
                group.try_send_foreign(0, &pair, &[0; 8]),
                Err(SendError::Unfit(Unfit::Size { .. }))
            ));
            assert!(!group.end_atomic());
            group.begin_atomic();
            group.begin_atomic();
            assert!(group.end_atomic() && group.end_atomic() && !group.end_atomic());
            group.run_until(|| seen.borrow().len() == 2).unwrap();
            let words = [7_u64, (-2_i64).cast_unsigned()].map(u64::to_ne_bytes).concat();
            assert_eq!(*seen.borrow(), [(0, words), (0, "ß".as_bytes().to_vec())]);
            group.barrier().unwrap();
        },
    );
}

#[test]
fn another_signature_is_refused_by_name() {
    let said = RefCell::new(String::new());
    let name = name();
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut handlers = Handlers::new();
            handlers.kind::<(u64, i32)>("pair");
            GroupBuilder::new(&name, 2).within(Duration::from_secs(2)).join(handlers).map(drop)
        });
        let mut handlers = Handlers::new();
        handlers.foreign("pair", carried("(u64, i64)")).unwrap();
        let mine =
            GroupBuilder::new(&name, 2).within(Duration::from_secs(2)).join(handlers).map(drop);
        for one in [mine, other.join().unwrap()] {
            if let Err(JoinError::Refused { reason, .. }) = one {
                said.borrow_mut().push_str(&reason);
            }
        }
    });
    let said = said.into_inner();
    assert!(
        said.contains("\"pair\"") && said.contains("(u64, i32)") && said.contains("(u64, i64)"),
        "{said}"
    );
}

/// A reader that rejects a message stands for an invalid one: its sender is forgotten, whether the
/// message is polled for, received or peeked at.
#[test]
fn what_is_not_what_its_kind_carries_is_a_violation() {
    for how in ["poll", "receive", "peek"] {
        both(
            |joining| {
                let mut handlers = Handlers::new();
                let number = handlers.kind::<u64>("number");
                let group = joining.join(handlers).unwrap();
                group.send(1, number, &1).unwrap();
                group.send(1, number, &2).unwrap();
                while group.event().is_none() {
                    group.poll();
                    group.wait(Some(Duration::from_secs(1)));
                }
            },
            |joining| {
                let mut handlers = Handlers::new();
                let number = handlers.foreign("number", carried("u64")).unwrap();
                if how == "poll" {
                    handlers.on_foreign(&number, |_| None::<()>, |_, _, ()| panic!("it is none"));
                }
                let group = joining.join(handlers).unwrap();
                while !group.available() {
                    group.wait(None);
                }
                match how {
                    "poll" => drop(group.poll()),
                    "receive" => assert!(group.receive_foreign(|_| None::<()>).is_err()),
                    _ => assert!(group.peek_foreign(|_| None::<()>).is_err()),
                }
                assert!(matches!(group.event(), Some(Event::Violation { rank: 0, .. })));
                assert!(!group.available());
            },
        );
    }
}

#[test]
fn more_kinds_than_members_can_tell_each_other_are_refused() {
    let with = |joining: GroupBuilder, count: usize| {
        let mut handlers = Handlers::new();
        for number in 0..count {
            handlers.foreign(&format!("{number:0100}"), carried("u64")).unwrap();
        }
        joining.join(handlers)
    };
    // The maximum number of kinds.
    both(
        |joining| with(joining, 1465).unwrap().barrier().unwrap(),
        |joining| with(joining, 1465).unwrap().barrier().unwrap(),
    );
    let error = with(GroupBuilder::new(&name(), 2), 1466).unwrap_err();
    assert!(matches!(error, JoinError::TooManyKinds { kinds: 1466, .. }), "{error:?}");
    assert!(error.to_string().contains("shorter names"));
}

#[test]
fn waits_can_be_interrupted() {
    let over = Barrier::new(2);
    both(
        |joining| {
            let mut handlers = Handlers::new();
            handlers.kind::<[u64; 1000]>("data");
            let _group = joining.join(handlers).unwrap();
            // It takes no messages.
            over.wait();
        },
        |joining| {
            let (stop, asked) = (Rc::new(AtomicBool::new(false)), Rc::new(Cell::new(0)));
            let mut handlers = Handlers::new();
            let data = handlers.foreign("data", carried("[u64; 1000]")).unwrap();
            let (here, count) = (stop.clone(), asked.clone());
            handlers.interruption(move || {
                count.set(count.get() + 1);
                here.load(Ordering::Relaxed)
            });
            // Without a timeout, a sender that finds no room waits for it.
            let group = joining.timeout(None).join(handlers).unwrap();
            assert!(!group.wait(Some(Duration::from_millis(5))) && asked.get() > 0);
            // A wait goes on when `ask` returns `false`.
            let (start, long) = (Instant::now(), Duration::from_millis(600));
            assert_eq!(group.wait_foreign(Some(long)), Ok(false));
            assert!(start.elapsed() >= long);
            stop.store(true, Ordering::Relaxed);
            let start = Instant::now();
            assert!(group.wait(None));
            assert_eq!(group.wait_foreign(None), Err(RunError::Interrupted));
            assert_eq!(group.run_until(|| false), Err(RunError::Interrupted));
            assert_eq!(group.barrier(), Err(RunError::Interrupted));
            let full = std::iter::repeat_with(|| group.send_foreign(0, &data, &[0; 8000]))
                .find_map(Result::err);
            assert!(matches!(full, Some(SendError::Interrupted)), "{full:?}");
            assert!(start.elapsed() < Duration::from_secs(60));
            over.wait();
        },
    );
}

/// The reports of a member in the barrier are no messages: `available` is false, and `receive` and
/// `peek` find nothing.
#[test]
fn a_barriers_reports_are_no_messages() {
    both(
        |joining| {
            let group = joining.join(Handlers::new()).unwrap();
            group.barrier().unwrap();
            group.barrier().unwrap();
        },
        |joining| {
            let group = joining.join(Handlers::new()).unwrap();
            group.barrier().unwrap();
            assert!(!group.wait(Some(Duration::from_millis(20))) && !group.available());
            assert!(
                group.peek(|_| ()).is_err() && group.receive(|_| ()).is_err() && group.poll() == 0
            );
            group.barrier().unwrap();
        },
    );
}
