//! Short operations do not block (Psyche, section 3.1): in builds with debug assertions, the caller
//! of an operation that blocks gets an error.

mod adding;

use adding::Add;
use std::hint::black_box;
use std::panic::Location;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use upcall_home::{
    AccessError, Asked, Blocked, DataError, Errand, Errands, Homed, InvokeError, Kept, Operation,
    Operations, Place, Promise,
};

fn name(of: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{of}-{}-{}", std::process::id(), NEXT.fetch_add(1, SeqCst))
}

fn create() -> Homed<u64> {
    Homed::<u64>::create(&name("blocking")).with(|_| Ok(())).unwrap()
}

fn find(home: &Homed<u64>) -> Homed<u64> {
    Homed::find(home.name()).unwrap()
}

/// Number of sleeps: more than the operation touches new pages.
const SLEEPS: u32 = 50;

/// Adds to the number, and sleeps, which it must not.
struct Sleep;

impl Operation for Sleep {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "sleep";

    fn run(number: Place<'_, u64>, more: u64) -> Result<u64, DataError> {
        (0..SLEEPS).for_each(|_| thread::sleep(Duration::from_micros(100)));
        number.update(|number| number + more)
    }
}

/// Increments the number, and computes for this many milliseconds.
struct Compute;

impl Operation for Compute {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "compute";

    fn run(number: Place<'_, u64>, ms: u64) -> Result<u64, DataError> {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(ms) {
            black_box((0..1000_u64).sum::<u64>());
        }
        number.update(|number| number + 1)
    }
}

/// Increments the number, and touches this many bytes of fresh memory.
struct Touch;

impl Operation for Touch {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "touch";

    fn run(number: Place<'_, u64>, bytes: u64) -> Result<u64, DataError> {
        let memory = black_box(vec![1_u8; bytes as usize]);
        number.update(|number| number + u64::from(memory[memory.len() - 1]))
    }
}

fn operations() -> Operations<u64> {
    Operations::new()
        .operation::<Add>()
        .operation::<Sleep>()
        .operation::<Compute>()
        .operation::<Touch>()
}

/// Asserts that the operation was run and reported, or, in builds without debug assertions, that it
/// succeeded.
#[track_caller]
fn assert_told(done: Result<u64, InvokeError>, of: &str, value: u64) {
    match done {
        Err(InvokeError::Blocked(blocked)) if cfg!(debug_assertions) => {
            let Blocked { name, here, registered } = &blocked;
            assert!(*name == of && here.file().ends_with("blocking.rs"), "{blocked}");
            assert!(
                registered.as_ref().is_some_and(|place| place.contains("blocking.rs:")),
                "{blocked}"
            );
            let text = blocked.to_string();
            assert!(
                text.matches("blocking.rs:").count() == 2 && text.contains("it was run"),
                "{text}"
            );
        }
        done => assert!(
            !cfg!(debug_assertions) && done.as_ref().is_ok_and(|found| *found == value),
            "{done:?}"
        ),
    }
}

#[test]
fn an_operation_that_sleeps_is_told_to_who_has_asked_with_both_places_and_was_run() {
    let home = create();
    let away = find(&home);
    let _served = home.serve_in_background(operations()).unwrap();
    for turn in 1..=3 {
        assert_told(away.urgent::<Sleep>(1), "sleep", turn);
        assert_eq!(home.read(|number| number.get()), Ok(turn));
    }
    // Other callers get no error.
    assert_eq!(away.urgent::<Add>(1).unwrap(), 4);
}

#[test]
fn so_is_one_that_sleeps_in_an_interrupt() {
    let home = create();
    let away = find(&home);
    let serving = home.serve(Operations::new().on_interrupt::<Sleep>()).unwrap();
    let done = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || {
            assert_told(away.urgent::<Sleep>(1), "sleep", 1);
            done.store(true, SeqCst);
        });
        let ends = Instant::now() + Duration::from_secs(60);
        let body = || {
            while !done.load(SeqCst) && Instant::now() < ends {
                black_box((0..1000_u64).sum::<u64>());
            }
        };
        // SAFETY: the operation sleeps, which a handler of a signal may, and adds to a number.
        serving.interruptible(unsafe { Promise::given() }, body).unwrap();
        assert!(done.load(SeqCst));
    });
    assert_eq!(home.read(|number| number.get()), Ok(1));
}

#[test]
fn so_is_one_that_sleeps_where_the_object_is() {
    let home = create();
    let away = find(&home);
    for (turn, on) in [&home, &away].into_iter().enumerate() {
        let value = turn as u64 + 1;
        let line = Location::caller().file();
        match on.perform::<Sleep>(1) {
            Err(AccessError::Blocked(blocked)) if cfg!(debug_assertions) => {
                assert!(
                    blocked.name == "sleep"
                        && blocked.here.file() == line
                        && blocked.registered.is_none(),
                    "{blocked}"
                );
            }
            done => assert!(!cfg!(debug_assertions) && done == Ok(value), "{done:?}"),
        }
        assert_eq!(home.read(|number| number.get()), Ok(value));
    }
    let at_home = home.urgent::<Sleep>(1);
    assert!(
        matches!(at_home, Err(InvokeError::Blocked(_))) == cfg!(debug_assertions),
        "{at_home:?}"
    );
}

/// Blocks its user-level thread; the virtual processor has nothing else to do, and sleeps.
struct Rest;

impl Operation for Rest {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "rest";

    fn run(number: Place<'_, u64>, more: u64) -> Result<u64, DataError> {
        (0..SLEEPS / 5).for_each(|_| upcall_thread::sleep(Duration::from_millis(5)));
        number.update(|number| number + more)
    }
}

#[test]
fn so_is_one_for_which_its_virtual_processor_sleeps() {
    let home = create();
    let away = find(&home);
    let idle = upcall_sched::PollingIdle::new(1, upcall_sched::Pacing::Adaptive).unwrap();
    let (ready, over) = (&Barrier::new(2), &AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(move || {
            ready.wait();
            for turn in 1..=3 {
                assert_told(away.urgent::<Rest>(1), "rest", turn);
            }
            over.store(true, SeqCst);
        });
        let ran =
            upcall_thread::Processors::new().count(1).idle(std::sync::Arc::new(idle)).run(|| {
                let serving = home.serve(Operations::new().operation::<Rest>()).unwrap();
                ready.wait();
                let ends = Instant::now() + Duration::from_secs(60);
                while !over.load(SeqCst) && Instant::now() < ends {
                    upcall_thread::sleep(Duration::from_millis(1));
                }
                drop(serving);
            });
        assert!(ran.is_ok() && over.load(SeqCst));
    });
}

#[test]
fn one_that_computes_for_long_is_not_told() {
    let home = create();
    let away = find(&home);
    let _served = home.serve_in_background(operations()).unwrap();
    assert_eq!(away.urgent::<Compute>(100).unwrap(), 1);
    assert_eq!(away.perform::<Compute>(100), Ok(2));
}

#[test]
fn one_that_touches_new_memory_is_not_told() {
    let home = create();
    let away = find(&home);
    let _served = home.serve_in_background(operations()).unwrap();
    assert_eq!(away.urgent::<Touch>(8 << 20).unwrap(), 1);
    assert_eq!(away.perform::<Touch>(8 << 20), Ok(2));
}

#[test]
fn one_that_waits_for_the_lock_is_not_told() {
    let home = create();
    let _served = home.serve_in_background(operations()).unwrap();
    let (has_it, asks) = (&Barrier::new(3), [find(&home), find(&home)]);
    thread::scope(|scope| {
        let [one, other] = asks;
        let invokes = scope.spawn(move || {
            let begun = Instant::now();
            has_it.wait();
            let count = one.urgent::<Add>(1).unwrap();
            (count, begun.elapsed())
        });
        let performs = scope.spawn(move || {
            let begun = Instant::now();
            has_it.wait();
            let count = other.perform::<Add>(1).unwrap();
            (count, begun.elapsed())
        });
        // Longer than any party spins.
        let held = home.access(|_| {
            has_it.wait();
            thread::sleep(Duration::from_millis(100));
            Ok(())
        });
        assert_eq!(held, Ok(()));
        for (count, took) in [invokes, performs].map(|one| one.join().unwrap()) {
            assert!(
                (1..=2).contains(&count) && took > Duration::from_millis(50),
                "{count} after {took:?}"
            );
        }
    });
    assert_eq!(home.read(|number| number.get()), Ok(2));
}

/// Sleeps in an errand on a kept value.
struct Doze;

impl Errand for Doze {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "doze";

    fn run(value: &mut u64, more: u64) -> Result<u64, String> {
        (0..SLEEPS).for_each(|_| thread::sleep(Duration::from_micros(100)));
        *value += more;
        Ok(*value)
    }
}

#[test]
fn an_errand_that_sleeps_is_told_and_was_done() {
    let name = name("kept");
    let kept = Kept::serve(&name, 0_u64, Errands::new().errand::<Doze>()).unwrap();
    let asked = Asked::<u64>::find(&name).unwrap();
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || {
            assert_told(asked.ask::<Doze>(7), "doze", 7);
            over.store(true, SeqCst);
        });
        let ends = Instant::now() + Duration::from_secs(60);
        while !over.load(SeqCst) && Instant::now() < ends {
            kept.poll();
            kept.wait(Some(Duration::from_millis(1)));
        }
    });
    assert_eq!((kept.with(|value| *value), kept.is_torn()), (7, false));
}
