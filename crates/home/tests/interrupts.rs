//! Operations that run in the middle of the home's computation: homes on ordinary kernel threads,
//! which do not poll.

mod adding;

use adding::Add;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};
use upcall_home::{
    Blob, DataError, Homed, InterruptError, InvokeError, Map, MapAt, Operation, Operations, Place,
    Promise, Serving, Text, Verdict,
};
use upcall_os::fault::{Act, POINTS_ARE_THERE, Point};

thread_local! {
    /// Whether the allocations of this thread are counted.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

static COUNTED: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, which counts allocations and frees of watched threads.
struct Counting;

fn counts() {
    if WATCHED.get() {
        COUNTED.fetch_add(1, SeqCst);
    }
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counts();
        // SAFETY: as the caller has promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        counts();
        // SAFETY: as the caller has promised.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn name(of: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{of}-{}-{}", std::process::id(), NEXT.fetch_add(1, SeqCst))
}

fn promise() -> Promise {
    // SAFETY: the operations of these tests that are registered for interrupts change numbers and
    // entries of maps, in objects, by arguments and replies without memory of their own.
    unsafe { Promise::given() }
}

/// Computes until an operation makes a condition true. The computation allocates and frees memory,
/// as most code does.
fn computes_until(mut done: impl FnMut() -> bool) {
    let ends = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < ends, "no operation arrives");
        black_box((0..200_u64).map(|at| at.to_string()).collect::<Vec<_>>());
    }
}

/// The same operation, which is not registered for interrupts.
struct AddAtPoint;

impl Operation for AddAtPoint {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "add-at-point";

    fn run(number: Place<'_, u64>, more: u64) -> Result<u64, DataError> {
        number.update(|number| number + more)
    }
}

fn create() -> Homed<u64> {
    Homed::<u64>::create(&name("interrupted"))
        .repair(|_, _| Verdict::Keep)
        .with(|_| Ok(()))
        .unwrap()
}

fn find(home: &Homed<u64>) -> Homed<u64> {
    Homed::find(home.name()).unwrap()
}

fn serve(home: &Homed<u64>) -> Serving<u64> {
    home.serve(Operations::new().on_interrupt::<Add>().operation::<AddAtPoint>()).unwrap()
}

fn number(home: &Homed<u64>) -> u64 {
    home.read(|number| number.get()).unwrap()
}

/// The home never polls. Callers that arrive later are served, too.
#[test]
fn a_home_that_computes_answers_meanwhile() {
    const EACH: u64 = 1000;
    let home = create();
    let serving = serve(&home);
    let done = &AtomicU64::new(0);
    thread::scope(|scope| {
        for late in 0..3 {
            let home = home.name();
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(late * 30));
                let away = Homed::<u64>::find(home).unwrap();
                let mut last = 0;
                for turn in 0..EACH {
                    let now = away.urgent::<Add>(1).unwrap();
                    assert!(now > last, "{now} after {last}");
                    last = now;
                    if turn % 100 == 0 {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
                done.fetch_add(1, SeqCst);
            });
        }
        serving.interruptible(promise(), || computes_until(|| done.load(SeqCst) == 3)).unwrap();
    });
    assert_eq!(number(&home), 3 * EACH);
    // Interrupts are off again.
    thread::scope(|scope| {
        let away = find(&home);
        let asked = scope.spawn(move || away.urgent::<Add>(1).unwrap());
        let begun = Instant::now();
        computes_until(|| begun.elapsed() > Duration::from_millis(50));
        assert_eq!(number(&home), 3 * EACH);
        serving.run_until(|| number(&home) > 3 * EACH);
        assert_eq!(asked.join().unwrap(), 3 * EACH + 1);
    });
}

/// A caller that has requested an operation, and whether the operation was run.
struct Asks<'scope> {
    done: Arc<AtomicBool>,
    asked: thread::ScopedJoinHandle<'scope, u64>,
}

impl<'scope> Asks<'scope> {
    fn begin<'env>(scope: &'scope thread::Scope<'scope, 'env>, home: &Homed<u64>) -> Self {
        let (away, done, begun) =
            (find(home), Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (own, begins) = (done.clone(), begun.clone());
        let asked = scope.spawn(move || {
            begins.store(true, SeqCst);
            let number = away.urgent::<Add>(1).unwrap();
            own.store(true, SeqCst);
            number
        });
        while !begun.load(SeqCst) {
            thread::yield_now();
        }
        Self { done, asked }
    }

    fn is_done(&self) -> bool {
        self.done.load(SeqCst)
    }
}

/// Computes for so long that a signal would have arrived.
fn a_while() {
    let begun = Instant::now();
    computes_until(|| begun.elapsed() > Duration::from_millis(50));
}

#[test]
fn what_is_masked_is_not_interrupted_until_the_end_of_that() {
    let home = create();
    let serving = serve(&home);
    thread::scope(|scope| {
        let body = || {
            let first = Asks::begin(scope, &home);
            computes_until(|| first.is_done());
            let masked = serving.mask();
            let nested = serving.mask();
            let second = Asks::begin(scope, &home);
            a_while();
            drop(nested);
            a_while();
            assert_eq!((number(&home), second.is_done()), (1, false));
            drop(masked);
            computes_until(|| second.is_done());
            // Interrupts are on again.
            let third = Asks::begin(scope, &home);
            computes_until(|| third.is_done());
            assert_eq!([first, second, third].map(|asks| asks.asked.join().unwrap()), [1, 2, 3]);
        };
        serving.interruptible(promise(), body).unwrap();
    });
}

/// By any of the thread's handles.
#[test]
fn what_comes_while_the_home_has_the_lock_is_run_when_it_is_free() {
    let home = create();
    let serving = serve(&home);
    let holds = [home.try_clone().unwrap(), find(&home)];
    thread::scope(|scope| {
        let body = || {
            for (turn, hold) in [&home, &holds[0], &holds[1]].into_iter().enumerate() {
                let asks = hold.access(|number| {
                    let asks = Asks::begin(scope, &home);
                    a_while();
                    assert_eq!((number.get()?, asks.is_done()), (turn as u64, false));
                    Ok(asks)
                });
                let asks = asks.unwrap();
                computes_until(|| asks.is_done());
            }
        };
        serving.interruptible(promise(), body).unwrap();
    });
    assert_eq!(number(&home), 3);
}

/// The home goes on, and is interrupted again: the holder of the lock releases it only when the
/// home has computed for a while after the request.
#[test]
fn another_one_that_has_the_lock_for_long_does_not_hold_the_home_up() {
    let home = create();
    let serving = serve(&home);
    let (held, turns) = (&Barrier::new(2), &AtomicU64::new(0));
    thread::scope(|scope| {
        let other = find(&home);
        scope.spawn(move || {
            other.access(|number| {
                held.wait();
                let ends = Instant::now() + Duration::from_secs(60);
                while turns.load(SeqCst) < 2000 {
                    assert!(Instant::now() < ends, "the home is held up");
                    thread::yield_now();
                }
                number.update(|number| number + 10)
            })
        });
        let body = || {
            held.wait();
            let asks = Asks::begin(scope, &home);
            computes_until(|| {
                turns.fetch_add(1, SeqCst);
                asks.is_done()
            });
            assert_eq!(asks.asked.join().unwrap(), 11);
        };
        serving.interruptible(promise(), body).unwrap();
    });
    assert!(turns.load(SeqCst) >= 2000);
}

/// The callers go on until the home has computed for a while.
#[test]
fn a_home_that_is_asked_again_and_again_computes_all_the_same() {
    let home = create();
    let serving = serve(&home);
    let (over, all, ended) = (&AtomicBool::new(false), &AtomicU64::new(0), &AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..3 {
            let away = find(&home);
            scope.spawn(move || {
                while !over.load(SeqCst) {
                    away.urgent::<Add>(1).unwrap();
                    all.fetch_add(1, SeqCst);
                }
                ended.fetch_add(1, SeqCst);
            });
        }
        let mut turns = 0;
        let body = || {
            computes_until(|| all.load(SeqCst) > 1000);
            computes_until(|| {
                turns += 1;
                turns > 300
            });
            over.store(true, SeqCst);
            computes_until(|| ended.load(SeqCst) == 3);
        };
        serving.interruptible(promise(), body).unwrap();
    });
    assert_eq!(number(&home), all.load(SeqCst));
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Callers of operations that are fit for interrupts and that are not, beside parties that take the
/// lock themselves, at a home that does anything at all in the meantime.
#[test]
fn none_is_lost_or_doubled_whatever_the_home_does() {
    const EACH: u64 = 4000;
    let (home, second) = (create(), create());
    let (serving, also) = (serve(&home), serve(&second));
    let (done, own) = (&AtomicU64::new(0), Cell::new(0));
    thread::scope(|scope| {
        for asks in 0..4 {
            let away = if asks == 3 { find(&second) } else { find(&home) };
            scope.spawn(move || {
                let (mut random, mut last) = (Random(asks), 0);
                for turn in 0..EACH {
                    let now = match random.below(20) {
                        0 => away.urgent::<AddAtPoint>(1).unwrap(),
                        1..4 => away.perform::<Add>(1).unwrap(),
                        _ => away.urgent::<Add>(1).unwrap(),
                    };
                    assert!(now > last, "{now} after {last}");
                    last = now;
                    if turn % 200 == 0 {
                        thread::sleep(Duration::from_micros(random.below(400)));
                    }
                }
                done.fetch_add(1, SeqCst);
            });
        }
        let mut random = Random(7);
        let mut body = || {
            let ends = Instant::now() + Duration::from_secs(120);
            while done.load(SeqCst) < 4 {
                assert!(
                    Instant::now() < ends,
                    "{:?} threads are done, the numbers are {} and {}",
                    done,
                    number(&home),
                    number(&second)
                );
                black_box((0..random.below(400)).map(|at| at.to_string()).collect::<Vec<_>>());
                match random.below(8) {
                    0 => drop(serving.mask()),
                    1 => {
                        let masked = [serving.mask(), serving.mask()];
                        let also = also.mask();
                        black_box(
                            (0..random.below(400)).map(|at| at.to_string()).collect::<Vec<_>>(),
                        );
                        drop(masked);
                        drop(also);
                    }
                    2 | 3 => {
                        home.perform::<Add>(1).unwrap();
                        own.set(own.get() + 1);
                    }
                    4 => drop(serving.poll() + also.poll()),
                    5 => drop(serving.wait(Some(Duration::from_micros(random.below(100))))),
                    _ => {}
                }
            }
        };
        serving.interruptible(promise(), &mut body).unwrap();
    });
    assert_eq!((number(&home), number(&second)), (3 * EACH + own.get(), EACH));
}

/// Each home computes, invokes the other, and is interrupted by it.
#[test]
fn homes_that_compute_invoke_each_other() {
    const EACH: u64 = 500;
    let (ready, done) = (&Barrier::new(2), &AtomicU64::new(0));
    let names = &[name("mutual"), name("mutual")];
    thread::scope(|scope| {
        for own in 0..2 {
            scope.spawn(move || {
                let home = Homed::<u64>::create(&names[own]).with(|_| Ok(())).unwrap();
                let serving = serve(&home);
                ready.wait();
                let other = Homed::<u64>::find(&names[1 - own]).unwrap();
                let body = || {
                    for turn in 1..=EACH {
                        black_box((0..turn % 100).map(|at| at.to_string()).collect::<Vec<_>>());
                        assert_eq!(other.urgent::<Add>(1).unwrap(), turn);
                    }
                    done.fetch_add(1, SeqCst);
                    computes_until(|| done.load(SeqCst) == 2);
                };
                serving.interruptible(promise(), body).unwrap();
                assert_eq!(number(&home), EACH);
            });
        }
    });
}

/// Counts the requests for a key; new keys make the table grow.
struct Hit;

impl Operation for Hit {
    type Of = Map<Text, u64>;
    type Args<'a> = (&'a str, &'a [u8]);
    type Reply = u64;
    const NAME: &'static str = "hit";

    fn run(hits: MapAt<'_, Text, u64>, (key, _): (&str, &[u8])) -> Result<u64, DataError> {
        if key.is_empty() {
            return Err(DataError::Full { asked: 1 });
        }
        hits.entry(key)?.update(|count| count + 1)
    }
}

/// The handler allocates and frees nothing, with any outcome.
#[test]
fn an_interrupt_allocates_nothing() {
    let home = Homed::<Map<Text, u64>>::create(&name("hits")).with(|_| Ok(())).unwrap();
    let serving = home.serve(Operations::new().on_interrupt::<Hit>()).unwrap();
    let done = &AtomicBool::new(false);
    let away = Homed::<Map<Text, u64>>::find(home.name()).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            for turn in 1..=500 {
                // Arguments in the line of the request, and behind it.
                let count =
                    away.urgent::<Hit>((&format!("/{}", turn / 2), &[0; 1000][..turn])).unwrap();
                assert_eq!(count, 1 + u64::from(turn % 2 == 1 && turn > 1));
                let not = away.urgent::<Hit>(("", &[])).unwrap_err();
                assert!(matches!(not, InvokeError::Data(DataError::Full { asked: 1 })), "{not}");
            }
            done.store(true, SeqCst);
        });
        let body = || {
            WATCHED.set(true);
            let mut sum = 0_u64;
            while !done.load(SeqCst) {
                sum = black_box(sum.wrapping_mul(3) + 1);
            }
            WATCHED.set(false);
        };
        serving.interruptible(promise(), body).unwrap();
    });
    assert_eq!(COUNTED.load(SeqCst), 0);
}

/// Returns a text of `length` bytes.
struct Long;

impl Operation for Long {
    type Of = Map<Text, Blob>;
    type Args<'a> = (u64, &'a [u8]);
    type Reply = Reply;
    const NAME: &'static str = "long";

    fn run(_: MapAt<'_, Text, Blob>, (length, _): (u64, &[u8])) -> Result<Reply, DataError> {
        if length > 10_000 {
            return Err(DataError::Corrupt { what: "a short text", at: length });
        }
        Ok(Reply(length))
    }
}

/// A reply of this many zeros, without memory of its own.
struct Reply(u64);

impl serde::Serialize for Reply {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq((0..self.0).map(|_| 0_u8))
    }
}

impl<'a> serde::Deserialize<'a> for Reply {
    fn deserialize<D: serde::Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        Vec::<u8>::deserialize(from).map(|bytes| Self(bytes.len() as u64))
    }
}

#[test]
fn what_an_interrupt_cannot_do_waits_or_is_told() {
    let home = Homed::<Map<Text, Blob>>::create(&name("long")).with(|_| Ok(())).unwrap();
    let serving = home.serve(Operations::new().on_interrupt::<Long>()).unwrap();
    let (done, polls) = (&AtomicU64::new(0), &AtomicBool::new(false));
    let away = Homed::<Map<Text, Blob>>::find(home.name()).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            assert_eq!(away.urgent::<Long>((4000, &[0; 4000])).unwrap().0, 4000);
            assert_eq!(away.urgent::<Long>((10_000, &[])).unwrap().0, 10_000);
            let corrupt = away.urgent::<Long>((10_001, &[])).map(|reply| reply.0);
            assert!(
                matches!(
                    &corrupt,
                    Err(InvokeError::Corrupt { what, at: 10_001 }) if what == "a short text"
                ),
                "{corrupt:?}"
            );
            done.store(1, SeqCst);
            // Too long for an interrupt.
            assert_eq!(away.urgent::<Long>((1, &[0; 4096])).unwrap().0, 1);
            assert!(polls.load(SeqCst));
            done.store(2, SeqCst);
        });
        let body = || {
            computes_until(|| done.load(SeqCst) == 1);
            a_while();
            polls.store(true, SeqCst);
            computes_until(|| serving.poll() > 0);
            computes_until(|| done.load(SeqCst) == 2);
        };
        serving.interruptible(promise(), body).unwrap();
    });
}

/// No caller waits for a home that computes if the object is poisoned.
#[test]
fn that_an_object_is_poisoned_is_told_from_an_interrupt() {
    let home = Homed::<u64>::create(&name("poisoned")).with(|_| Ok(())).unwrap();
    let serving = serve(&home);
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let (away, other) = (find(&home), find(&home));
        scope.spawn(move || {
            away.urgent::<Add>(1).unwrap();
            let torn = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                other.access(|_| -> Result<(), DataError> { panic!("as it was asked for") })
            }));
            assert!(torn.is_err());
            let not = away.urgent::<Add>(1).unwrap_err();
            assert!(
                matches!(&not, InvokeError::NotRun(why) if why.contains("created again")),
                "{not}"
            );
            over.store(true, SeqCst);
        });
        serving.interruptible(promise(), || computes_until(|| over.load(SeqCst))).unwrap();
    });
}

#[test]
fn a_virtual_processor_is_not_interrupted_and_one_in_another_changes_nothing() {
    let home = create();
    thread::scope(|scope| {
        let serving = serve(&home);
        let body = || {
            serving.interruptible(promise(), || ()).unwrap();
            let asks = Asks::begin(scope, &home);
            computes_until(|| asks.is_done());
            // An object that is served from now on interrupts the computation, too, until its
            // service ends.
            let second = create();
            let also = serve(&second);
            let asks = Asks::begin(scope, &second);
            computes_until(|| asks.is_done());
            drop(also);
            let asks = Asks::begin(scope, &home);
            computes_until(|| asks.is_done());
        };
        serving.interruptible(promise(), body).unwrap();
    });
    let idle = upcall_sched::PollingIdle::new(1, upcall_sched::Pacing::Adaptive).unwrap();
    let ran = upcall_thread::Processors::new().count(1).idle(Arc::new(idle)).run(|| {
        let refused = serve(&home).interruptible(promise(), || ()).unwrap_err();
        assert!(
            matches!(refused, InterruptError::SafePoints)
                && refused.to_string().contains("safe_point()")
        );
    });
    assert!(ran.is_ok());
}

/// A process with this environment variable is the home of an object of that name, and computes.
const HOME_OF: &str = "UPCALL_TEST_HOME_OF";

fn is_a_home(name: &str) {
    let home = Homed::<u64>::create(name).with(|_| Ok(())).unwrap();
    let serving = serve(&home);
    let mut sum = 0_u64;
    let compute = || {
        let ends = Instant::now() + Duration::from_secs(60);
        while Instant::now() < ends {
            sum = black_box((0..1000).fold(sum, |sum, at| sum.wrapping_mul(3) + at));
        }
    };
    serving.interruptible(promise(), compute).unwrap();
}

/// Such a home, in a process of its own.
struct Apart(Child);

impl Apart {
    fn start(test: &str, name: &str, fault: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test]).env(HOME_OF, name).env("UPCALL_FAULT", fault);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn stops(&self) {
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        within_a_minute(|| {
            state().rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')).then_some(())
        });
    }

    fn goes_on(&self) {
        let process = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(process, rustix::process::Signal::CONT).unwrap();
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn within_a_minute<R>(mut asks: impl FnMut() -> Option<R>) -> R {
    let ends = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = asks() {
            return found;
        }
        assert!(Instant::now() < ends, "the condition never holds");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The home ends or stops at any point of an operation: the caller gets an error, or its reply when
/// the home goes on. The name is free for another home.
#[test]
fn a_home_that_ends_in_an_interrupt_is_not_waited_for() {
    if let Ok(name) = std::env::var(HOME_OF) {
        return is_a_home(&name);
    }
    if !POINTS_ARE_THERE {
        return println!("    skipped: points are in builds with debug assertions only");
    }
    for point in
        [Point::ObjectLocked, Point::InvocationTaken, Point::ObjectDone, Point::InvocationRan]
    {
        for &act in Act::ALL {
            let (name, fault) = (name("ends"), format!("{point}:{}", act.name()));
            println!("    {fault}");
            let home =
                Apart::start("a_home_that_ends_in_an_interrupt_is_not_waited_for", &name, &fault);
            let away = within_a_minute(|| Homed::<u64>::find(&name).ok());
            let add = move || {
                let asks = || {
                    Some(away.urgent::<Add>(1))
                        .filter(|found| !matches!(found, Err(InvokeError::NotServed(_))))
                };
                let first = within_a_minute(asks);
                first.and_then(|first| Ok([first, away.urgent::<Add>(1)?]))
            };
            let asked = thread::spawn(add);
            if act == Act::Stop {
                home.stops();
                home.goes_on();
                assert_eq!(asked.join().unwrap().unwrap(), [1, 2]);
            } else {
                let told = asked.join().unwrap();
                assert!(matches!(told, Err(InvokeError::Ended { asked: true })), "{told:?}");
            }
            drop(home);
            drop(Homed::<u64>::create(&name).with(|_| Ok(())).unwrap());
        }
    }
}
