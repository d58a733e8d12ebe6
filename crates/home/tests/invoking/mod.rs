//! What holds of invocations by guests on the home's host, and of those by a link.

use crate::adding::Add;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Barrier, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use upcall_home::{
    AccessError, Blob, DataError, FindError, Homed, InvokeError, LONGEST, Making, Map, MapAt,
    Operation, Operations, Place, Procedure, ServeError, Shared, Text, Verdict,
};

pub fn name(of: &str) -> String {
    format!("{of}-{}", std::process::id())
}

/// How a guest reaches the home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each of the two test binaries has its way")]
pub enum Way {
    /// By memory.
    Near,
    /// By a link over TCP.
    Link,
}

/// Where the objects of tests are found, by their names.
static FOUND_AT: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

impl Way {
    /// Makes an object that guests find in this way.
    pub fn make<T: Shared>(self, making: Making<T>, init: impl FnOnce(T::At<'_>)) -> Homed<T> {
        let making = match self {
            Self::Near => making,
            Self::Link => making.listen("127.0.0.1:0"),
        };
        let home = making
            .with(|at| {
                init(at);
                Ok(())
            })
            .unwrap();
        let at = home.addresses().first().map(|at| format!("tcp://{at}/{}", home.name()));
        let at = at.unwrap_or_else(|| home.name().into());
        FOUND_AT.lock().unwrap().insert(home.name().into(), at);
        home
    }

    pub fn create(self, of: &str) -> Homed<u64> {
        self.make(Homed::<u64>::create(&name(of)).repair(|_, _| Verdict::Keep), |_| ())
    }

    /// Runs an operation in place where that is possible, and else at the home.
    fn add_in_place(self, own: &Homed<u64>, number: u64) -> u64 {
        match self {
            Self::Near => own.perform::<Add>(number).unwrap(),
            Self::Link => own.urgent::<Add>(number).unwrap(),
        }
    }
}

/// Finds the object of this name, as a guest.
fn find_named<T: Shared>(name: &str) -> Result<Homed<T>, FindError> {
    let at = FOUND_AT.lock().unwrap().get(name).cloned();
    Homed::find(&at.unwrap_or_else(|| name.into()))
}

/// Panics.
pub struct Fail;

impl Operation for Fail {
    type Of = u64;
    type Args<'a> = ();
    type Reply = ();
    const NAME: &'static str = "fail";

    fn run(_: Place<'_, u64>, (): ()) -> Result<(), DataError> {
        panic!("as it was asked for")
    }
}

/// Takes this many milliseconds, between two operations.
struct Slow;

impl Procedure for Slow {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "slow";

    fn run(on: &Homed<u64>, ms: u64) -> Result<u64, String> {
        if ms > 10_000 {
            return Err(format!("{ms} ms are too long"));
        }
        let before = on.perform::<Add>(0).map_err(|error| error.to_string())?;
        upcall_thread::sleep(Duration::from_millis(ms));
        on.perform::<Add>(1).map_err(|error| error.to_string())?;
        Ok(before)
    }
}

pub fn operations() -> Operations<u64> {
    Operations::new().operation::<Add>().operation::<Fail>().procedure::<Slow>()
}

pub fn find(home: &Homed<u64>) -> Homed<u64> {
    find_named(home.name()).unwrap()
}

pub fn each_is_run_once_whatever_way_it_takes(way: Way) {
    const EACH: u64 = 3000;
    let home = way.create("once");
    let _served = home.serve_in_background(operations()).unwrap();
    thread::scope(|scope| {
        for number in 0..5 {
            let own = find(&home);
            scope.spawn(move || {
                let mut last = 0;
                for _ in 0..EACH {
                    let now = if number == 0 {
                        way.add_in_place(&own, 1)
                    } else {
                        own.urgent::<Add>(1).unwrap()
                    };
                    assert!(now > last, "{now} after {last}");
                    last = now;
                }
            });
        }
        let own = home.try_clone().unwrap();
        scope.spawn(move || (0..EACH).for_each(|_| _ = own.urgent::<Add>(1).unwrap()));
    });
    assert_eq!(home.read(|number| number.get()), Ok(6 * EACH));
}

pub fn procedures_may_block_and_say_what_they_want(way: Way) {
    let home = way.create("slow");
    let _served = home.serve_in_background(operations().procedure::<Meet>()).unwrap();
    let away = find(&home);
    assert_eq!(away.invoke::<Slow>(20).unwrap(), 0);
    assert_eq!(home.invoke::<Slow>(0).unwrap(), 1);
    assert!(matches!(
        away.invoke::<Slow>(20_000),
        Err(InvokeError::Said(words)) if words.contains("too long")
    ));
    // A caller whose patience ends learns that the procedure may still run; and it does, once.
    let away = away.patience(Some(Duration::from_millis(20)));
    assert!(matches!(away.invoke::<Meet>(2), Err(InvokeError::Busy { .. })));
    assert!(meet(home.name(), 2));
    assert_eq!(THERE.lock().unwrap()[home.name()], 2);
    let away = away.patience(Some(GUARD));
    assert_eq!(away.urgent::<Add>(0).unwrap(), 2);
}

/// Number of procedures and tests that have joined a meeting, by the name of the object.
pub static THERE: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());
static COMES: Condvar = Condvar::new();

/// Guards against hanging.
pub const GUARD: Duration = Duration::from_secs(60);

/// Joins the meeting of an object, and waits until `all` have joined.
pub fn meet(object: &str, all: u64) -> bool {
    let mut there = THERE.lock().unwrap();
    *there.entry(object.into()).or_default() += 1;
    COMES.notify_all();
    let waited = COMES.wait_timeout_while(there, GUARD, |there| there[object] < all).unwrap();
    !waited.1.timed_out()
}

/// Waits on its kernel thread until `all` have joined. Returns the name of that thread.
pub struct Meet;

impl Procedure for Meet {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = String;
    const NAME: &'static str = "meet";

    fn run(on: &Homed<u64>, all: u64) -> Result<String, String> {
        let met = meet(on.name(), all);
        if met {
            Ok(thread::current().name().unwrap_or_default().into())
        } else {
            Err("the others did not join".into())
        }
    }
}

pub fn urgent_work_waits_for_no_ordinary_work_of_the_same_home(way: Way) {
    const EACH: u64 = 500;
    let home = way.create("held-up").patience(Some(GUARD));
    let _served = home.serve_in_background(operations().procedure::<Meet>()).unwrap();
    let (ordinary, urgent) = (find(&home).patience(Some(GUARD)), find(&home).patience(Some(GUARD)));
    thread::scope(|scope| {
        let waits = scope.spawn(move || ordinary.invoke::<Meet>(2).unwrap());
        let begun = Instant::now();
        while THERE.lock().unwrap().get(home.name()) != Some(&1) {
            assert!(begun.elapsed() < GUARD);
            thread::yield_now();
        }
        // The procedure has begun, and stays until all of these are done.
        (1..=EACH).for_each(|turn| assert_eq!(urgent.urgent::<Add>(1).unwrap(), turn));
        assert!(meet(home.name(), 2));
        assert_eq!(waits.join().unwrap(), "upcall-ordinary");
    });
}

/// The program's own thread serves here.
pub fn procedures_of_one_home_can_wait_for_each_other(way: Way) {
    const ALL: u64 = 6;
    let home = way.create("meeting");
    let done = AtomicU64::new(0);
    let serving = home.serve(operations().procedure::<Meet>()).unwrap();
    thread::scope(|scope| {
        for _ in 0..ALL {
            let (own, done) = (find(&home).patience(Some(GUARD)), &done);
            scope.spawn(move || {
                let met = own.invoke::<Meet>(ALL);
                done.fetch_add(1, SeqCst);
                drop(own);
                met.unwrap()
            });
        }
        serving.run_until(|| done.load(SeqCst) == ALL);
    });
}

/// Invokes itself at the other of two homes, back and forth.
struct ToAndFro;

impl Procedure for ToAndFro {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "to and fro";

    fn run(on: &Homed<u64>, left: u64) -> Result<u64, String> {
        if left == 0 {
            return Ok(0);
        }
        let other = name(if on.name().starts_with("to") { "fro" } else { "to" });
        let other =
            find_named::<u64>(&other).map_err(|error| error.to_string())?.patience(Some(GUARD));
        Ok(other.invoke::<ToAndFro>(left - 1).map_err(|error| error.to_string())? + 1)
    }
}

pub fn procedures_of_homes_can_invoke_each_other_in_a_circle(way: Way) {
    let homes = [way.create("to"), way.create("fro")];
    let _served = homes
        .each_ref()
        .map(|home| home.serve_in_background(Operations::new().procedure::<ToAndFro>()).unwrap());
    assert_eq!(find(&homes[0]).patience(Some(GUARD)).invoke::<ToAndFro>(8).unwrap(), 8);
}

/// The reply of a procedure that is under way still arrives.
pub fn a_service_that_ends_waits_for_its_procedures(way: Way) {
    let home = way.create("ends-late");
    let served = home.serve_in_background(operations().procedure::<Meet>()).unwrap();
    let own = find(&home).patience(Some(GUARD));
    thread::scope(|scope| {
        let waits = scope.spawn(move || own.invoke::<Meet>(2));
        let begun = Instant::now();
        while THERE.lock().unwrap().get(home.name()) != Some(&1) {
            assert!(begun.elapsed() < GUARD);
            thread::yield_now();
        }
        let ends = scope.spawn(move || drop(served));
        assert!(meet(home.name(), 2));
        ends.join().unwrap();
        assert_eq!(waits.join().unwrap().unwrap(), "upcall-ordinary");
    });
}

/// An echo of any length up to the maximum.
struct Echo;

impl Operation for Echo {
    type Of = Map<Text, Blob>;
    type Args<'a> = (&'a str, &'a [u8]);
    type Reply = Vec<u8>;
    const NAME: &'static str = "echo";

    fn run(map: MapAt<'_, Text, Blob>, (key, bytes): (&str, &[u8])) -> Result<Vec<u8>, DataError> {
        map.insert(key, bytes)?;
        map.get(key)?.map_or(Ok(Vec::new()), |at| at.get())
    }
}

pub fn arguments_and_replies_of_all_lengths_come_whole(way: Way) {
    let home = way.make(Homed::<Map<Text, Blob>>::create(&name("echo")).room(16 << 20), |_| ());
    let _served = home.serve_in_background(Operations::new().operation::<Echo>()).unwrap();
    let away = find_named::<Map<Text, Blob>>(home.name()).unwrap();
    for length in [0, 1, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 4000, 100_000, LONGEST - 20] {
        let bytes = (0..length).map(|at| at as u8).collect::<Vec<_>>();
        assert!(away.urgent::<Echo>(("a", &bytes)).unwrap() == bytes, "{length}");
    }
    let long = vec![0; LONGEST];
    assert!(matches!(
        away.urgent::<Echo>(("a", &long)),
        Err(InvokeError::TooLong { bytes }) if bytes > LONGEST
    ));
    assert_eq!(away.urgent::<Echo>(("b", b"x")).unwrap(), b"x");
}

pub fn what_is_masked_waits_and_is_run_then(way: Way) {
    let home = way.create("masked");
    let (away, done) = (find(&home), &AtomicU64::new(0));
    let serving = home.serve(operations()).unwrap();
    let begun = &Barrier::new(2);
    thread::scope(|scope| {
        // A panic in here drops it, so that the call returns with an error.
        let serving = serving;
        scope.spawn(move || {
            away.urgent::<Add>(1).unwrap();
            begun.wait();
            (0..100).for_each(|_| {
                away.urgent::<Add>(1).unwrap();
                done.fetch_add(1, SeqCst);
            });
        });
        serving.run_until(|| home.read(|number| number.get()) == Ok(1));
        begun.wait();
        let waits = Instant::now();
        loop {
            let masked = serving.mask();
            let nested = serving.mask();
            thread::sleep(Duration::from_millis(50));
            assert_eq!((serving.poll(), done.load(SeqCst)), (0, 0));
            drop(nested);
            assert_eq!((serving.poll(), done.load(SeqCst)), (0, 0));
            drop(masked);
            // Requests are run at the end of the mask. On a slow machine the first one may come
            // after that.
            match home.read(|number| number.get()) {
                Ok(2) => break,
                found => assert!(found == Ok(1) && waits.elapsed() < GUARD, "{found:?}"),
            }
        }
        serving
            .run_until(|| done.load(SeqCst) == 100 || home.read(|number| number.get()) == Ok(101));
    });
    assert_eq!(home.read(|number| number.get()), Ok(101));
}

/// Each waits for the other, and serves the other while it waits.
pub fn homes_can_invoke_each_other(way: Way) {
    const EACH: u64 = 2000;
    let ready = Barrier::new(2);
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..2 {
            let (ready, done) = (&ready, &done);
            scope.spawn(move || {
                let own = way.create(&format!("mutual-{number}"));
                let serving = own.serve(operations()).unwrap();
                ready.wait();
                let other = find_named::<u64>(&name(&format!("mutual-{}", 1 - number))).unwrap();
                for turn in 1..=EACH {
                    assert_eq!(other.urgent::<Add>(1).unwrap(), turn);
                }
                done.fetch_add(1, SeqCst);
                let begun = Instant::now();
                while done.load(SeqCst) < 2 {
                    serving.poll();
                    serving.wait(Some(Duration::from_millis(1)));
                    assert!(begun.elapsed() < GUARD);
                }
                assert_eq!(own.read(|number| number.get()), Ok(EACH));
            });
        }
    });
}

pub fn a_virtual_processor_serves_by_itself(way: Way) {
    let home = way.create("virtual");
    let away = [find(&home), find(&home)];
    let over = AtomicBool::new(false);
    let processors = upcall_thread::Processors::new();
    let idle = upcall_sched::PollingIdle::new(1, upcall_sched::Pacing::Adaptive).unwrap();
    let ready = Barrier::new(3);
    thread::scope(|scope| {
        let ready = &ready;
        for own in away {
            scope.spawn(move || {
                ready.wait();
                for turn in 0..1000 {
                    own.urgent::<Add>(1).unwrap();
                    if turn % 100 == 0 {
                        own.invoke::<Slow>(2).unwrap();
                    }
                }
            });
        }
        let over = &over;
        let ran = processors.count(1).idle(std::sync::Arc::new(idle)).run(|| {
            let serving = home.serve(operations()).unwrap();
            ready.wait();
            let begun = Instant::now();
            // The processor computes, with a safe point now and then, and sleeps.
            while home.read(|number| number.get()) != Ok(2020) {
                assert!(
                    begun.elapsed() < Duration::from_secs(60),
                    "{:?}",
                    home.read(|number| number.get())
                );
                std::hint::black_box((0..1000_u64).sum::<u64>());
                upcall_thread::safe_point();
                upcall_thread::sleep(Duration::from_micros(200));
            }
            drop(serving);
            over.store(true, SeqCst);
        });
        assert!(ran.is_ok());
    });
    assert!(over.load(SeqCst));
}

pub fn what_cannot_be_run_is_told(way: Way) {
    let home = way.create("told");
    let away = find(&home);
    assert!(matches!(away.serve(operations()), Err(ServeError::Elsewhere)));
    let not = away.urgent::<Add>(1).unwrap_err();
    assert!(
        matches!(not, InvokeError::NotServed(_)) && not.to_string().contains("has to serve it"),
        "{not}"
    );
    let twice = home.serve(operations().operation::<Add>()).unwrap_err();
    assert!(matches!(&twice, ServeError::Twice(name) if name == "add"), "{twice}");
    let served = home.serve_in_background(Operations::new().operation::<Fail>()).unwrap();
    assert!(matches!(home.serve(operations()), Err(ServeError::Served)));
    let unknown = away.urgent::<Add>(1).unwrap_err();
    assert!(
        matches!(unknown, InvokeError::Unknown { .. }) && unknown.to_string().contains("only fail"),
        "{unknown}"
    );
    assert!(matches!(away.urgent::<Fail>(()), Err(InvokeError::Panicked)));
    // The object was repaired, and can be used.
    assert_eq!(way.add_in_place(if way == Way::Near { &away } else { &home }, 7), 7);
    drop(served);
    let begun = Instant::now();
    while !matches!(away.urgent::<Fail>(()), Err(InvokeError::NotServed(_))) {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    // When the object is served again, a lane is opened again.
    let _served = home.serve_in_background(operations()).unwrap();
    assert_eq!(away.urgent::<Add>(1).unwrap(), 8);
    if cfg!(debug_assertions) {
        // Both places are named.
        let within = if way == Way::Near { &away } else { &home };
        let broken = within.access(|_| Ok(find(&home).urgent::<Add>(1).unwrap_err())).unwrap();
        let text = broken.to_string();
        assert!(
            matches!(broken, InvokeError::Rule(_)) && text.matches("invoking").count() == 2,
            "{text}"
        );
        let broken = home.access(|_| Ok(away.access(|number| number.get()).unwrap_err())).unwrap();
        assert!(
            matches!(broken, AccessError::Rule(_))
                && broken.to_string().matches("invoking").count() == 2,
            "{broken}"
        );
    }
}

thread_local! {
    /// Another object, for an operation that must not invoke it.
    static OTHER: std::cell::RefCell<Option<Homed<u64>>> = const { std::cell::RefCell::new(None) };
}

/// Breaks the rule by an invocation. Returns the text of the error.
struct Invoke;

impl Operation for Invoke {
    type Of = u64;
    type Args<'a> = ();
    type Reply = String;
    const NAME: &'static str = "invoke";

    fn run(_: Place<'_, u64>, (): ()) -> Result<String, DataError> {
        let told = |other: &Homed<u64>| match other.urgent::<Add>(1) {
            Err(InvokeError::Rule(broken)) => broken.to_string(),
            other => format!("{other:?}"),
        };
        OTHER.with_borrow(|other| other.as_ref().map(told)).ok_or(DataError::ReadOnly)
    }
}

pub fn an_operation_that_the_home_runs_for_others_invokes_nothing_either(way: Way) {
    if !cfg!(debug_assertions) {
        return;
    }
    let (home, other) = (way.create("for-others"), way.create("of-others"));
    OTHER.set(Some(find(&other)));
    let _others = other.serve_in_background(operations()).unwrap();
    let serving = home.serve(Operations::new().operation::<Invoke>()).unwrap();
    let away = find(&home);
    let text = thread::scope(|scope| {
        let asks = scope.spawn(move || away.urgent::<Invoke>(()).unwrap());
        while !asks.is_finished() {
            serving.poll();
            serving.wait(Some(Duration::from_millis(1)));
        }
        asks.join().unwrap()
    });
    assert!(
        text.contains("within an operation on an object at home")
            && text.matches("invoking").count() == 2,
        "{text}"
    );
    assert_eq!(other.read(|number| number.get()), Ok(0));
    OTHER.set(None);
}

pub fn who_waits_for_a_home_that_ends_is_told(way: Way) {
    let home = way.create("ends");
    let away = find(&home);
    let serving = home.serve(operations()).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(move || away.urgent::<Add>(1));
        // The request was sent, and the home does not poll.
        let begun = Instant::now();
        while !serving.wait(Some(Duration::from_millis(10)))
            || begun.elapsed() < Duration::from_millis(50)
        {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        drop(serving);
        let ended = waits.join().unwrap();
        assert!(matches!(ended, Err(InvokeError::Ended { asked: true })), "{ended:?}");
    });
    assert_eq!(home.read(|number| number.get()), Ok(0));
}

/// The thread sleeps where the callers of both objects ring.
pub fn a_thread_serves_several_objects(way: Way) {
    let homes = [way.create("several-1"), way.create("several-2")];
    let served = homes.each_ref().map(|home| home.serve(operations()).unwrap());
    let done = &AtomicU64::new(0);
    thread::scope(|scope| {
        for home in &homes {
            let own = find(home);
            scope.spawn(move || {
                for turn in 1..=300 {
                    assert_eq!(own.urgent::<Add>(1).unwrap(), turn);
                    if turn % 50 == 0 {
                        // Long enough for the home to fall asleep.
                        thread::sleep(Duration::from_millis(2));
                    }
                }
                done.fetch_add(1, SeqCst);
                // Makes the home look for events.
                drop(own);
            });
        }
        served[1].run_until(|| done.load(SeqCst) == 2);
    });
    drop(served);
    // Neither object is marked as served any more.
    drop(homes.each_ref().map(|home| home.serve(operations()).unwrap()));
}

pub fn a_thread_invokes_by_any_number_of_holds(way: Way) {
    let home = way.create("holds");
    let _serving = home.serve_in_background(operations()).unwrap();
    let holds: Vec<_> = (0..60).map(|_| find(&home)).collect();
    for hold in holds.iter().chain(holds.iter().rev()) {
        hold.urgent::<Add>(1).unwrap();
    }
    assert_eq!(home.read(|number| number.get()).unwrap(), 120);
}
