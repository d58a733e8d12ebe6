//! Operations by the cheapest method: each is run once, by any of the methods, and observers see
//! it.

mod adding;

use adding::Add;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use upcall_home::accounts::{self, Condition};
use upcall_home::{
    AccessError, DataError, Grant, Homed, InvokeError, Operation, Operations, Place,
};

const EACH: u64 = 20_000;

fn name(of: &str) -> String {
    format!("{of}-{}", std::process::id())
}

/// Only reads.
struct Get;

impl Operation for Get {
    type Of = u64;
    type Args<'a> = ();
    type Reply = u64;
    const NAME: &'static str = "get";
    const LOOKS: bool = true;

    fn run(number: Place<'_, u64>, (): ()) -> Result<u64, DataError> {
        number.get()
    }
}

fn operations() -> Operations<u64> {
    Operations::new().operation::<Add>().operation::<Get>()
}

fn read(object: &str) -> accounts::ObjectReading {
    accounts::of(std::process::id(), object).unwrap().expect("it is there").read()
}

#[test]
fn each_is_run_once_whatever_way_it_goes_and_who_looks_on_sees_them() {
    let name = name("auto");
    let home = Homed::<u64>::create(&name).with(|_| Ok(())).unwrap();
    assert_eq!(accounts::objects().get(&name).map(|named| named.home), Some(std::process::id()));
    let serving = home.serve_in_background(operations()).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let own = Homed::<u64>::find(&name).unwrap();
                let mut last = 0;
                for _ in 0..EACH {
                    let before = own.auto::<Add>(1).unwrap();
                    assert!(before > last);
                    last = before;
                    assert!(own.auto::<Get>(()).unwrap() >= before);
                }
                let seen = read(&name);
                assert!(
                    seen.holds.len() >= 4 && seen.bytes > 8 && seen.condition == Condition::Whole,
                    "{seen:?}"
                );
            });
        }
        for _ in 0..EACH {
            home.auto::<Add>(1).unwrap();
        }
    });
    assert_eq!(home.read(|number| number.get()).unwrap(), 4 * EACH);
    drop(serving);
    // The counts of handles that are gone are kept. The home learns of their end after a while.
    let mut all = read(&name).all();
    for _ in 0..1000 {
        all = read(&name).all();
        if read(&name).holds.len() == 1 {
            break;
        }
        thread::sleep(std::time::Duration::from_millis(1));
    }
    let chosen = all.chosen.iter().sum::<u64>();
    assert!((6 * EACH..=7 * EACH).contains(&chosen), "{all:?}");
    assert!(all.urgent >= all.chosen[2] / 2 && all.would[0] > EACH, "{all:?}");
    assert!(read(&name).changes >= 4 * EACH);
}

/// Claims to only read, but writes or panics.
struct Pretend;

impl Operation for Pretend {
    type Of = u64;
    type Args<'a> = bool;
    type Reply = ();
    const NAME: &'static str = "pretend";
    const LOOKS: bool = true;

    fn run(number: Place<'_, u64>, panics: bool) -> Result<(), DataError> {
        assert!(!panics, "as it was asked for");
        number.set(7)
    }
}

/// By each method by which such an operation can run, reads without the lock stay valid.
#[test]
fn an_operation_that_only_looks_changes_no_number_and_tears_nothing() {
    let home = Homed::<u64>::create(&name("looks")).with(|number| number.set(5)).unwrap();
    let _serving = home.serve_in_background(operations().operation::<Pretend>()).unwrap();
    let away = Homed::<u64>::find(home.name()).unwrap();
    let before = read(home.name()).changes;
    for own in [&home, &away] {
        for _ in 0..1000 {
            assert_eq!(
                (
                    own.perform::<Get>(()),
                    own.urgent::<Get>(()).unwrap(),
                    own.auto::<Get>(()).unwrap()
                ),
                (Ok(5), 5, 5)
            );
        }
        assert!(matches!(
            own.perform::<Pretend>(false),
            Err(AccessError::Data(DataError::ReadOnly))
        ));
        assert!(matches!(
            own.urgent::<Pretend>(false),
            Err(InvokeError::Data(DataError::ReadOnly))
        ));
        let panics = std::panic::AssertUnwindSafe(|| own.perform::<Pretend>(true));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(own.perform::<Get>(()), Ok(5));
    }
    assert!(matches!(away.urgent::<Pretend>(true), Err(InvokeError::Panicked)));
    assert_eq!((away.urgent::<Get>(()).unwrap(), read(home.name()).changes), (5, before));
    away.perform::<Add>(1).unwrap();
    assert_eq!(read(home.name()).changes, before + 1);
}

#[test]
fn a_home_that_serves_nothing_is_no_error() {
    let home = Homed::<u64>::create(&name("auto-alone")).with(|_| Ok(())).unwrap();
    let away = Homed::<u64>::find(home.name()).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        // The lock is dear, so that the other method is tried.
        let (busy, over) = (home.try_clone().unwrap(), &over);
        scope.spawn(move || {
            while !over.load(SeqCst) {
                busy.access(|number| number.update(|number| number)).unwrap();
            }
        });
        let done = (0..EACH).map(|_| away.auto::<Add>(1)).collect::<Vec<_>>();
        // Before any assertion, because the thread is joined even if one fails.
        over.store(true, SeqCst);
        for (at, done) in (0..EACH).zip(done) {
            assert_eq!(done.unwrap(), at + 1);
        }
    });
}

#[test]
fn what_is_granted_is_what_is_done() {
    for (grant, way) in [(Grant::Invoke, 2), (Grant::Read, 1)] {
        let home = Homed::<u64>::create(&name("auto-granted"))
            .policy(move |_| Ok(grant))
            .with(|_| Ok(()))
            .unwrap();
        let serving = home.serve_in_background(operations()).unwrap();
        let away = Homed::<u64>::find(home.name()).unwrap();
        for at in 0..1000 {
            assert_eq!(away.auto::<Get>(()).unwrap(), at, "{grant:?}");
            assert_eq!(away.auto::<Add>(1).unwrap(), at + 1, "{grant:?}, {way}");
        }
        drop(serving);
        // No other method is possible, so that is an error.
        let error = away.auto::<Add>(1).unwrap_err();
        assert!(matches!(error, InvokeError::NotServed(_) | InvokeError::Ended { .. }), "{error}");
        let reads = away.auto::<Get>(());
        assert_eq!(reads.is_ok(), grant == Grant::Read, "{reads:?}");
    }
}
