//! Processor donation (URPC). A call is optimistic. An idle caller donates its processor to a
//! server that sleeps, once for all its calls. A caller may force the donation, and the server
//! gives the processor back. Server and client are schedulers of one process, and one test runs at
//! a time, so that nothing else wakes the server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use upcall_os::processor;
use upcall_rpc::{
    Binding, Call, Dispatch, Export, Extent, HandOff, Interface, Limits, Pacing, Procedure,
    Replied, Running, Server,
};
use upcall_sched::Domain;

const fn procedure(name: &'static str, signature: &'static str, results: u32) -> Procedure {
    let (limits, extent) = (Limits { string: 0, list: 0, values: 0 }, Extent { fixed: 0, tail: 0 });
    let (name, signature) =
        (std::borrow::Cow::Borrowed(name), std::borrow::Cow::Borrowed(signature));
    Procedure {
        name,
        signature,
        hash: 0,
        args: extent,
        results: Extent { fixed: results, tail: 0 },
        calls: 5,
        limits,
    }
}

static PROCEDURES: [Procedure; 2] =
    [procedure("where", "func() -> u64", 8), procedure("linger", "func()", 0)];

static TEST: Interface = Interface {
    id: std::borrow::Cow::Borrowed("test:hand-off/hand-off@1.0.0"),
    procedures: std::borrow::Cow::Borrowed(&PROCEDURES),
    parts: std::borrow::Cow::Borrowed(&[]),
    source: std::borrow::Cow::Borrowed(""),
    limits: std::borrow::Cow::Borrowed(""),
};

const WHERE: u16 = 0;
const LINGER: u16 = 1;

/// How long `linger` takes, computing.
const LONG: Duration = Duration::from_millis(30);

struct Test(Arc<AtomicU64>);

impl Dispatch for Test {
    fn dispatch(&self, call: Call<'_>) -> Replied {
        self.0.fetch_add(1, Ordering::SeqCst);
        match call.procedure() {
            WHERE => call.respond(|_| Ok(processor::current() as u64)),
            LINGER => call.respond(|_| {
                let start = Instant::now();
                while start.elapsed() < LONG {}
                Ok(())
            }),
            _ => call.unknown(),
        }
    }
}

/// A server with one virtual processor, number 0 of the domain, and a binding to it.
struct World {
    calls: Arc<AtomicU64>,
    binding: Binding,
    _server: Running,
    _alone: MutexGuard<'static, ()>,
}

const SERVER: usize = 0;

impl World {
    fn new(pacing: Pacing) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name =
            format!("hand-off-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let calls = Arc::new(AtomicU64::new(0));
        let export = Export::new(&TEST, Test(calls.clone()));
        let server =
            Server::new().export(&name, export).pacing(pacing).processors(1).start().unwrap();
        let binding = Binding::bind(&name, &TEST).unwrap();
        Self { calls, binding, _server: server, _alone: alone }
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Runs `body` on one virtual processor, with its lane open, and the server asleep.
    fn on_a_processor<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let run = || {
            let idle = Arc::new(upcall_sched::PollingIdle::new(1, Pacing::Adaptive).unwrap());
            let body = || {
                self.binding.call::<_, u64>(WHERE, &()).unwrap();
                self.until_asleep();
                body()
            };
            upcall_thread::Processors::new().count(1).pin([0]).idle(idle).run(body).unwrap()
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    fn until_asleep(&self) {
        let start = Instant::now();
        while !is_asleep() {
            assert!(start.elapsed() < Duration::from_secs(60), "an idle server does not sleep");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Waits for the work that follows a wake-up, such as giving stacks back.
        std::thread::sleep(Duration::from_millis(30));
    }

    /// Pins the server's thread, which sleeps and by its station last ran there, to processor 1.
    /// Its calls then run elsewhere only if a caller moves it to another processor. Returns `false`
    /// if there is no processor 1.
    fn put_server_elsewhere(&self) -> bool {
        if processors() < 2 {
            eprintln!("skipped: processors 0 and 1 are needed");
            return false;
        }
        let tid = line().tid.load(upcall_os::atomic::Ordering::SeqCst);
        let pin = || processor::CpuSet::only(1).confine_thread(tid).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                processor::CpuSet::only(0).confine().unwrap();
                // A caller that polls does not move the server.
                let binding = self.binding.clone();
                binding.set_pacing(Pacing::Poll);
                pin();
                while binding.call::<_, u64>(WHERE, &()).unwrap() != 1 {
                    pin();
                }
                binding.set_pacing(Pacing::Adaptive);
            });
        });
        self.until_asleep();
        // The server may have widened its set when it was done.
        pin();
        true
    }

    /// Checks that `call`, made on processor 0, brings the server there from processor 1. `call`
    /// returns the processor that it ran on.
    ///
    /// Now and then the server is awake for other work when the call arrives, such as the end of
    /// an earlier caller. Then the call runs where the server is. So `least` of 40 calls have to
    /// bring it.
    fn brings_the_server(&self, least: usize, call: impl Fn() -> u64 + Sync) {
        let round = |_| self.on_a_processor(|| self.put_server_elsewhere().then(&call));
        let places: Vec<u64> = (0..40).map_while(round).collect();
        if processors() > 1 {
            let given = places.iter().filter(|&&place| place == 0).count();
            assert!(given >= least, "of 40 calls {given} ran on the caller's processor");
        }
    }

    fn spawn(&self, procedure: u16, hand_off: HandOff) -> upcall_thread::JoinHandle<()> {
        let binding = self.binding.with_hand_off(hand_off);
        upcall_thread::spawn(move || match procedure {
            WHERE => drop(binding.call::<_, u64>(WHERE, &()).unwrap()),
            _ => binding.call::<_, ()>(procedure, &()).unwrap(),
        })
    }

    /// Returns `true` if a call made now begins before another ready thread of the same processor
    /// ends. That thread computes until the call begins, or for `patience`.
    fn begins_beside_a_busy_thread(&self, hand_off: HandOff, patience: Duration) -> bool {
        self.on_a_processor(|| {
            let before = self.calls();
            let calling = self.spawn(WHERE, hand_off);
            let calls = self.calls.clone();
            let busy = upcall_thread::spawn(move || {
                let until = Instant::now() + patience;
                while calls.load(Ordering::SeqCst) == before && Instant::now() < until {}
                calls.load(Ordering::SeqCst) != before
            });
            let begun = busy.join().unwrap();
            calling.join().unwrap();
            begun
        })
    }
}

fn line() -> &'static upcall_shm::station::StationLine {
    Domain::current().unwrap().station().line(SERVER)
}

fn is_asleep() -> bool {
    line().asleep.load(upcall_os::atomic::Ordering::SeqCst) != 0
}

fn sleeps() -> u64 {
    line().sleeps.load(upcall_os::atomic::Ordering::SeqCst)
}

/// Number of processors that this process may use. The process may be started pinned, and an
/// earlier test may have left the server pinned.
fn processors() -> usize {
    allowed_by("/proc/self/status")
}

/// Number of processors that the server's kernel thread may use now.
fn servers_processors() -> usize {
    let tid = line().tid.load(upcall_os::atomic::Ordering::SeqCst);
    allowed_by(&format!("/proc/self/task/{tid}/status"))
}

fn allowed_by(status: &str) -> usize {
    let status = std::fs::read_to_string(status).unwrap();
    let allowed =
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:")).unwrap().trim();
    allowed
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .map(|digit| digit.count_ones() as usize)
        .sum()
}

#[test]
fn a_call_is_optimistic() {
    let world = World::new(Pacing::Sleep);
    let begun = world.begins_beside_a_busy_thread(HandOff::WhenIdle, Duration::from_millis(100));
    assert!(!begun, "the server was woken though its caller's processor had other work");
}

#[test]
fn a_caller_may_force_the_hand_off() {
    let world = World::new(Pacing::Sleep);
    assert!(
        world.begins_beside_a_busy_thread(HandOff::AtOnce, Duration::from_secs(20)),
        "the server was not woken"
    );
    // The processor is donated with the call, also to a server that has another processor.
    let binding = world.binding.with_hand_off(HandOff::AtOnce);
    world.brings_the_server(36, || binding.call::<_, u64>(WHERE, &()).unwrap());
}

/// If the caller has nothing else to do, the call runs on its processor.
#[test]
fn an_idle_caller_gives_its_processor() {
    let world = World::new(Pacing::Adaptive);
    world.brings_the_server(30, || {
        let binding = world.binding.clone();
        upcall_thread::spawn(move || binding.call::<_, u64>(WHERE, &()).unwrap()).join().unwrap()
    });
}

#[test]
fn one_hand_off_serves_all_outstanding_calls() {
    let world = World::new(Pacing::Sleep);
    let round = || {
        world.on_a_processor(|| {
            world.put_server_elsewhere();
            let (slept, calls) = (sleeps(), world.calls());
            let call = |_| {
                let binding = world.binding.clone();
                upcall_thread::spawn(move || binding.call::<_, u64>(WHERE, &()).unwrap())
            };
            let threads: Vec<_> = (0..32).map(call).collect();
            let places: Vec<u64> =
                threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            world.until_asleep();
            (sleeps() - slept, world.calls() - calls, places)
        })
    };
    // One sleep is the one after the calls; another wake may come from the server's work besides
    // calls.
    let is_given = |(slept, _, places): &(u64, u64, Vec<u64>)| {
        *slept <= 3 && places.iter().all(|place| *place == 0)
    };
    // Now and then the server is awake for other work when the calls arrive, and they run where it
    // is.
    let mut rounds = Vec::new();
    while rounds.iter().filter(|&round| is_given(round)).count() < 3 {
        assert!(
            rounds.len() < 20,
            "less than 3 of 20 rounds took one hand-off to the caller's processor: {rounds:?}"
        );
        rounds.push(round());
        assert_eq!(rounds.last().map(|(_, calls, _)| *calls), Some(32));
    }
}

/// When all calls have their replies, the server sleeps again, although it would spin on a
/// processor of its own, and returns to where it belongs.
#[test]
fn the_server_gives_the_processor_back() {
    let world = World::new(Pacing::Adaptive);
    let all = processors();
    let took = world.on_a_processor(|| {
        // The first call brings the server here; the second shows that it is here.
        world.spawn(WHERE, HandOff::WhenIdle).join().unwrap();
        assert!(
            all == 1 || servers_processors() == 1,
            "the server was not confined to its caller's processor"
        );
        world.until_asleep();
        let start = Instant::now();
        world.spawn(WHERE, HandOff::WhenIdle).join().unwrap();
        let took = start.elapsed();
        while !is_asleep() {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "the server keeps a processor that it was given"
            );
            upcall_thread::yield_now();
        }
        took
    });
    assert!(took < Duration::from_secs(60));
    if all > 1 {
        // These calls are by a caller that donates nothing. When the server has slept after some of
        // them, it is no longer confined.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                processor::CpuSet::only(all - 1).confine().unwrap();
                world.binding.set_pacing(Pacing::Poll);
                for _ in 0..10 {
                    world.binding.call::<_, u64>(WHERE, &()).unwrap();
                    world.until_asleep();
                    if servers_processors() == all {
                        break;
                    }
                }
            });
        });
        assert_eq!(servers_processors(), all, "the server stays where a donor confined it");
    }
}

/// A processor pinned to one CPU spins for replies from another CPU, as long as spinning is cheaper
/// than sleeping.
#[test]
fn a_pinned_processor_spins_for_a_server_on_another_one() {
    let world = World::new(Pacing::Adaptive);
    if processors() < 2 {
        return println!("    skipped: processors 0 and 1 are needed");
    }
    let (calls, slept) = world.on_a_processor(|| {
        let me = upcall_sched::Processor::current().unwrap().number;
        let sleeps = || {
            Domain::current()
                .unwrap()
                .station()
                .line(me)
                .sleeps
                .load(upcall_os::atomic::Ordering::SeqCst)
        };
        processor::CpuSet::only(1)
            .confine_thread(line().tid.load(upcall_os::atomic::Ordering::SeqCst))
            .unwrap();
        let call = || assert!(world.binding.call::<_, u64>(WHERE, &()).is_ok());
        // Calls until both sides know where the other is.
        (0..100).for_each(|_| call());
        let before = sleeps();
        (0..5000).for_each(|_| call());
        (5000, sleeps() - before)
    });
    // Other programs may have taken the server's processor in between. Without spinning, it would
    // sleep in every call.
    assert!(slept < calls / 4 * 3, "it slept {slept} times in {calls} calls to a server that runs");
}

/// Runs `act` with the calling thread, and the threads that it starts, on one processor only.
fn confined_to<T>(processor: usize, act: impl FnOnce() -> T) -> T {
    let before = processor::CpuSet::allowed().unwrap();
    processor::CpuSet::only(processor).confine().unwrap();
    let result = act();
    before.confine().unwrap();
    result
}

/// A server pinned to one processor returns to it when calls follow each other closely, like a
/// server that may run anywhere.
#[test]
fn a_pinned_server_does_not_stay_at_its_callers() {
    if processors() < 2 {
        return println!("    skipped: processors 0 and 1 are needed");
    }
    // The server's processors inherit this.
    let world = confined_to(1, || World::new(Pacing::Adaptive));
    let places: Vec<u64> = world.on_a_processor(|| {
        (0..5000).map(|_| world.binding.call::<_, u64>(WHERE, &()).unwrap()).collect()
    });
    let at_home = places[1000..].iter().filter(|&&place| place == 1).count();
    assert!(
        at_home > 400,
        "of 4000 calls that followed each other {at_home} ran on the server's own processor"
    );
}

/// Returns `true` if a thread that yields on processor 0 waits for another program's time slice.
fn others_want_processor_0() -> bool {
    let took = |_| {
        let start = Instant::now();
        processor::give_way();
        start.elapsed()
    };
    confined_to(0, || (0..100).map(took).max().unwrap() > Duration::from_micros(500))
}

/// A server and a caller that share one processor yield to each other when calls follow closely;
/// when no more arrive, the server sleeps.
#[test]
fn on_the_callers_processor_a_server_gives_way_before_it_sleeps() {
    let world = confined_to(0, || World::new(Pacing::Adaptive));
    let call = || assert_eq!(world.binding.call::<_, u64>(WHERE, &()).unwrap(), 0);
    let least = || {
        // One of many rounds without other programs on the processor is enough.
        let slept = |_| {
            let before = sleeps();
            (0..100).for_each(|_| call());
            sleeps() - before
        };
        (0..200).map(slept).min().unwrap()
    };
    // Other programs come and go. Waits for a round without them, or for a check that finds one.
    for _ in 0..10 {
        let by_thread = world.on_a_processor(least);
        world.until_asleep();
        let by_kernel_thread = confined_to(0, least);
        world.until_asleep();
        println!("    the server slept {by_thread} and {by_kernel_thread} times in 100 calls");
        if by_thread < 50 && by_kernel_thread < 50 {
            return;
        }
        if others_want_processor_0() {
            return println!(
                "    skipped: others want the processor all the time, and then it sleeps"
            );
        }
    }
    panic!("it sleeps between calls that follow each other closely");
}

/// If a server keeps the processor too long, the caller's other threads go on.
#[test]
fn a_server_that_keeps_the_processor_costs_its_caller_only_that_calls_time() {
    let world = World::new(Pacing::Sleep);
    let ticks = world.on_a_processor(|| {
        // The server computes on this processor, since it was brought here.
        world.spawn(WHERE, HandOff::WhenIdle).join().unwrap();
        let long: Vec<_> = (0..10).map(|_| world.spawn(LINGER, HandOff::AtOnce)).collect();
        let mut ticks = 0;
        while !long.iter().all(upcall_thread::JoinHandle::is_finished) {
            upcall_thread::sleep(Duration::from_millis(1));
            ticks += 1;
        }
        long.into_iter().for_each(|thread| thread.join().unwrap());
        ticks
    });
    // About 300 ms in all, of which the kernel gives this process its share.
    assert!(ticks >= 10, "the other threads ran {ticks} times in ten long calls");
}
