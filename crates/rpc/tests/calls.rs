//! Calls through real channels, server and client in one process, with stubs written by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use upcall_rpc::{
    BindError, Binding, Call, CallError, Decoder, Dispatch, Export, Extent, Get, HandOff, Handle,
    Interface, Layout, Limits, Malformed, Pacing, Procedure, Replied, Running, ServeError, Server,
};
use upcall_sched::Closed;

#[path = "calls/stacks.rs"]
mod stacks;

const fn procedure(
    name: &'static str,
    signature: &'static str,
    args: Extent,
    results: Extent,
) -> Procedure {
    procedure_for(5, name, signature, args, results)
}

const fn procedure_for(
    calls: u16,
    name: &'static str,
    signature: &'static str,
    args: Extent,
    results: Extent,
) -> Procedure {
    let limits = Limits { string: 1 << 16, list: 1 << 31, values: 1 << 31 };
    let (name, signature) =
        (std::borrow::Cow::Borrowed(name), std::borrow::Cow::Borrowed(signature));
    Procedure { name, signature, hash: 0, args, results, calls, limits }
}

const fn extent(fixed: u32, tail: u32) -> Extent {
    Extent { fixed, tail }
}

static PROCEDURES: [Procedure; 14] = [
    procedure("null", "func()", extent(0, 0), extent(0, 0)),
    procedure("add", "func(a: u32, b: u32) -> u32", extent(8, 0), extent(4, 0)),
    procedure("reverse", "func(data: list<u8>) -> list<u8>", extent(16, 200), extent(16, 200)),
    procedure("panic", "func(text: string)", extent(16, 100), extent(0, 0)),
    procedure("open", "func() -> thing", extent(0, 0), extent(8, 0)),
    procedure("use", "func(t: borrow<thing>) -> u64", extent(8, 0), extent(8, 0)),
    procedure("sum", "func(data: list<u8>) -> u64", extent(16, 200), extent(8, 0)),
    procedure("make", "func(n: u64) -> list<u8>", extent(8, 0), extent(16, 200)),
    procedure("linger", "func()", extent(0, 0), extent(0, 0)),
    procedure("gather", "func(n: u64, ms: u64) -> list<u8>", extent(16, 0), extent(16, 0)),
    procedure("wait", "func(data: list<u8>)", extent(16, 0), extent(0, 0)),
    procedure("let-out", "func(data: list<u8>)", extent(16, 0), extent(0, 0)),
    procedure_for(64, "make-many", "func(n: u64) -> list<u8>", extent(8, 0), extent(16, 64)),
    procedure("open-slowly", "func() -> thing", extent(0, 0), extent(8, 0)),
];

static TEST: Interface = Interface {
    id: std::borrow::Cow::Borrowed("test:calls/calls@1.0.0"),
    procedures: std::borrow::Cow::Borrowed(&PROCEDURES),
    parts: std::borrow::Cow::Borrowed(&[]),
    source: std::borrow::Cow::Borrowed(""),
    limits: std::borrow::Cow::Borrowed(""),
};

trait Thing: Send + Sync {
    fn number(&self) -> u64;
}

struct Counted(Arc<AtomicU64>);

impl Thing for Counted {
    fn number(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Test(Arc<AtomicU64>);

impl Dispatch for Test {
    fn dispatch(&self, call: Call<'_>) -> Replied {
        match call.procedure() {
            0 => call.respond(|_| Ok(())),
            1 => call.respond(|args| Ok(args.get::<u32>(0)?.wrapping_add(args.get::<u32>(4)?))),
            2 => call.respond(|args| {
                let mut bytes = args.bytes(0)?.to_vec();
                bytes.reverse();
                Ok(bytes)
            }),
            3 => call.respond(|args| -> Result<(), _> {
                let text: String = args.get(0)?;
                panic!("{text}")
            }),
            4 => call.respond(|_| {
                self.0.fetch_add(1, Ordering::SeqCst);
                Ok(Arc::new(Counted(self.0.clone())) as Arc<dyn Thing>)
            }),
            5 => call.respond(|args| Ok(args.borrow::<dyn Thing>(0)?.number())),
            6 => call.respond(|args| {
                let data = args.bytes(0)?;
                Ok(data.fold_words(
                    0u64,
                    |sum, word| sum.wrapping_add(word),
                    |sum, byte| sum.wrapping_add(byte.into()),
                ))
            }),
            7 | 12 => call.respond(|args| Ok(vec![7u8; args.get::<u64>(0)? as usize])),
            8 => call.respond(|_| {
                self.0.fetch_add(1, Ordering::SeqCst);
                let _here = Counted(self.0.clone());
                upcall_thread::sleep(Duration::from_millis(300));
                Ok(())
            }),
            9 => call.respond(|args| {
                let (count, start) = (args.get::<u64>(0)?, Instant::now());
                let patience = Duration::from_millis(args.get(8)?);
                let mut come = self.0.fetch_add(1, Ordering::SeqCst) + 1;
                while come < count && start.elapsed() < patience {
                    upcall_thread::sleep(Duration::from_millis(1));
                    come = self.0.load(Ordering::SeqCst);
                }
                Ok(vec![u8::from(come >= count); 100])
            }),
            10 => call.respond(|_| {
                self.0.fetch_add(1, Ordering::SeqCst);
                while self.0.load(Ordering::SeqCst) < OUT {
                    upcall_thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            }),
            11 => call.respond(|_| {
                self.0.fetch_add(OUT, Ordering::SeqCst);
                Ok(())
            }),
            13 => call.respond(|_| {
                upcall_thread::sleep(Duration::from_millis(2));
                self.0.fetch_add(1, Ordering::SeqCst);
                Ok(Arc::new(Counted(self.0.clone())) as Arc<dyn Thing>)
            }),
            _ => call.unknown(),
        }
    }
}

/// Releases the calls that wait.
const OUT: u64 = 1_000_000;

fn serve(name: &str, pacing: Pacing) -> (Running, Arc<AtomicU64>) {
    let things = Arc::new(AtomicU64::new(0));
    let running = Server::new()
        .export(name, Export::new(&TEST, Test(things.clone())))
        .pacing(pacing)
        .start()
        .unwrap();
    (running, things)
}

/// The interface with other A-stacks for `gather`.
fn with_gather(calls: u16, tail: u32) -> &'static Interface {
    let mut interface = TEST.clone();
    let gather = interface
        .procedures
        .to_mut()
        .iter_mut()
        .find(|procedure| procedure.name == "gather")
        .unwrap();
    (gather.calls, gather.results.tail) = (calls, tail);
    Box::leak(Box::new(interface))
}

fn unique(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

#[test]
fn calls_of_every_size_come_back() {
    for (i, pacing) in [Pacing::Adaptive, Pacing::Sleep].into_iter().enumerate() {
        let name = unique(&format!("sizes{i}"));
        let (_server, _) = serve(&name, pacing);
        let binding = Binding::bind(&name, &TEST).unwrap();
        for round in 0..100u32 {
            binding.call::<_, ()>(0, &()).unwrap();
            assert_eq!(binding.call::<_, u32>(1, &(round, 5u32)), Ok(round + 5));
        }
        for len in [0usize, 1, 31, 32, 33, 100, 184, 200, 216, 217, 5000, 1 << 20, (16 << 20) + 3] {
            let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut expected = data.clone();
            expected.reverse();
            assert_eq!(binding.call::<_, Vec<u8>>(2, &(data.as_slice(),)), Ok(expected), "{len}");
            assert_eq!(binding.call::<_, Vec<u8>>(7, &(len as u64,)), Ok(vec![7; len]), "{len}");
        }
    }
}

#[test]
fn a_panic_is_the_calls_alone() {
    let name = unique("panics");
    let (_server, _) = serve(&name, Pacing::Adaptive);
    let binding = Binding::bind(&name, &TEST).unwrap();
    for _ in 0..3 {
        assert_eq!(binding.call::<_, ()>(3, &("oh no",)), Err(CallError::Panicked("oh no".into())));
        assert_eq!(binding.call::<_, u32>(1, &(1u32, 2u32)), Ok(3));
    }
}

#[test]
fn a_long_panic_message_arrives_whole() {
    let name = unique("long-panics");
    let (_server, _) = serve(&name, Pacing::Adaptive);
    let binding = Binding::bind(&name, &TEST).unwrap();
    for len in [31, 32, 33, 100, 4096] {
        let text = "\u{e9}".repeat(len / 2) + &"x".repeat(len % 2);
        let whole = Err(CallError::Panicked(text.clone()));
        assert_eq!(binding.call::<_, ()>(3, &(text.as_str(),)), whole, "{len}");
    }
    // A longer text is cut at a character boundary.
    let text = "x".to_owned() + &"\u{e9}".repeat(5000);
    let cut = Err(CallError::Panicked(text[..4095].into()));
    assert_eq!(binding.call::<_, ()>(3, &(text.as_str(),)), cut);
    assert_eq!(binding.call::<_, u32>(1, &(1u32, 2u32)), Ok(3));
}

/// A client whose limits are wider than the server's, and a client that asks for more than the
/// server may return: the whole reason arrives, with the limit and whether the procedure ran.
#[test]
fn a_refusal_says_all_that_there_is_to_say() {
    let limits = Limits { string: 1 << 20, list: 1 << 20, ..Limits::default() };
    let wide: Vec<_> =
        TEST.procedures.iter().map(|one| Procedure { limits, ..one.clone() }).collect();
    let wide = Interface {
        id: TEST.id.clone(),
        procedures: wide.into(),
        parts: vec![].into(),
        source: "".into(),
        limits: "".into(),
    };
    let wide: &'static Interface = Box::leak(Box::new(wide));
    let name = unique("refusals");
    let test = Test(Arc::default());
    let server = Server::new()
        .export(&name, Export::new(&TEST, test))
        .listen("127.0.0.1:0")
        .start()
        .unwrap();
    let far = format!("tcp://{}/{name}", server.addresses()[0]);
    let text = "x".repeat((1 << 16) + 1);
    for name in [&name, &far] {
        let binding = Binding::bind(name, wide).unwrap();
        let error = binding.call::<_, ()>(3, &(text.as_str(),)).unwrap_err();
        let CallError::Refused(why) = &error else { panic!("{name}: {error:#?}") };
        for part in ["65537", "limit of 65536", "the procedure did not run", "the same limits"] {
            assert!(why.contains(part), "{name}: {part}: {why}");
        }
        assert_eq!(binding.call::<_, u32>(1, &(1u32, 2u32)), Ok(3), "{name}");
    }
}

#[test]
fn what_is_too_long_is_not_sent() {
    let name = unique("long");
    let (_server, _) = serve(&name, Pacing::Adaptive);
    let binding = Binding::bind(&name, &TEST).unwrap();
    let text = "x".repeat((1 << 16) + 1);
    let error = binding.call::<_, ()>(3, &(text.as_str(),)).unwrap_err();
    assert_eq!(error, CallError::TooLong { what: "string", len: (1 << 16) + 1, limit: 1 << 16 });
}

#[test]
fn what_is_too_long_is_not_taken() {
    let make = procedure("make", "func(n: u64) -> list<u8>", extent(8, 0), extent(16, 200));
    let make = Procedure { limits: Limits { string: 50, list: 50, ..Limits::default() }, ..make };
    let strict = Interface {
        id: TEST.id.clone(),
        procedures: vec![make].into(),
        parts: vec![].into(),
        source: "".into(),
        limits: "".into(),
    };
    let name = unique("strict");
    // The server's own limit is wider, or it does not care.
    let (_server, _) = serve(&name, Pacing::Adaptive);
    let binding = Binding::bind(&name, Box::leak(Box::new(strict))).unwrap();
    assert_eq!(binding.call::<_, Vec<u8>>(0, &(50u64,)), Ok(vec![7; 50]));
    // The result is in the A-stack, or the server holds it until it is fetched.
    for len in [51u64, 5000, 1 << 20] {
        let error = binding.call::<_, Vec<u8>>(0, &(len,)).unwrap_err();
        assert!(
            matches!(&error, CallError::BadReply(why) if why.contains("limit of 50")),
            "{len}: {error:?}"
        );
    }
    assert_eq!(binding.call::<_, Vec<u8>>(0, &(50u64,)), Ok(vec![7; 50]));
}

#[test]
fn resources_live_as_long_as_their_handles() {
    let name = unique("resources");
    let (_server, things) = serve(&name, Pacing::Adaptive);
    let binding = Binding::bind(&name, &TEST).unwrap();
    let first: Handle = binding.call(4, &()).unwrap();
    let second: Handle = binding.call(4, &()).unwrap();
    assert_eq!(binding.call::<_, u64>(5, &(first,)), Ok(2));
    binding.release(first);
    assert_eq!(things.load(Ordering::SeqCst), 1);
    assert_eq!(binding.call::<_, u64>(5, &(first,)), Err(CallError::NoSuchHandle));
    assert_eq!(binding.call::<_, u64>(5, &(Handle(second.0 + 1),)), Err(CallError::NoSuchHandle));
    let other = Binding::bind(&name, &TEST).unwrap();
    assert_eq!(
        other.call::<_, u64>(5, &(second,)),
        Err(CallError::NoSuchHandle),
        "another binding's handle"
    );
    drop(binding);
    let start = std::time::Instant::now();
    while things.load(Ordering::SeqCst) != 0 {
        assert!(start.elapsed().as_secs() < 60, "dropped with its binding");
        std::thread::yield_now();
    }
}

#[test]
fn a_stopped_server_fails_its_calls_and_frees_its_name() {
    let name = unique("stops");
    let (server, _) = serve(&name, Pacing::Adaptive);
    let binding = Binding::bind(&name, &TEST).unwrap();
    binding.call::<_, ()>(0, &()).unwrap();
    server.stop();
    let start = std::time::Instant::now();
    let error = loop {
        match binding.call::<_, ()>(0, &()) {
            Err(error) => break error,
            Ok(()) => assert!(start.elapsed().as_secs() < 60),
        }
    };
    assert!(matches!(error, CallError::Failed(Closed::PeerEnded)), "{error:?}");
    assert!(matches!(Binding::bind(&name, &TEST), Err(BindError::NoSuchName { .. })));
    let (_again, _) = serve(&name, Pacing::Adaptive);
    Binding::bind(&name, &TEST).unwrap().call::<_, ()>(0, &()).unwrap();
}

#[test]
fn a_server_stops_when_its_calls_have_ended() {
    let name = unique("lingers");
    let (server, things) = serve(&name, Pacing::Adaptive);
    let binding = Binding::bind(&name, &TEST).unwrap();
    binding.call::<_, Handle>(4, &()).unwrap();
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| binding.call::<_, ()>(8, &()));
        while things.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        server.stop();
        assert_eq!(
            things.load(Ordering::SeqCst),
            0,
            "what was begun has ended, and the client's object was dropped"
        );
        assert_eq!(caller.join().unwrap(), Err(CallError::Failed(Closed::PeerEnded)));
    });
}

/// A service whose drop takes time and then panics.
struct Grave(Test, Arc<AtomicU64>);

impl Dispatch for Grave {
    fn dispatch(&self, call: Call<'_>) -> Replied {
        self.0.dispatch(call)
    }
}

impl Drop for Grave {
    fn drop(&mut self) {
        upcall_thread::yield_now();
        upcall_thread::sleep(Duration::from_millis(50));
        self.1.fetch_add(1, Ordering::SeqCst);
        panic!("a grave end");
    }
}

#[test]
fn a_service_is_dropped_when_its_server_has_stopped() {
    for connected in [true, false] {
        let (name, ends) = (unique(&format!("grave{connected}")), Arc::new(AtomicU64::new(0)));
        let service = Grave(Test(Arc::default()), ends.clone());
        let server = Server::new().export(&name, Export::new(&TEST, service)).start().unwrap();
        let binding = connected.then(|| Binding::bind(&name, &TEST).unwrap());
        if let Some(binding) = &binding {
            binding.call::<_, ()>(0, &()).unwrap();
        }
        server.stop();
        assert_eq!(ends.load(Ordering::SeqCst), 1, "connected: {connected}");
        // The clerk and the listener of another server still work.
        let (_other, _) = serve(&name, Pacing::Adaptive);
        Binding::bind(&name, &TEST).unwrap().call::<_, ()>(0, &()).unwrap();
    }
}

#[test]
fn many_results_are_kept_until_they_are_fetched() {
    const CALLS: u64 = 400;
    let name = unique("kept");
    let (_server, _) = serve(&name, Pacing::Adaptive);
    on_processors(12, || {
        let binding = Binding::bind(&name, &TEST).unwrap();
        // None of the calls has brought room for its result.
        let call = || {
            let binding = binding.clone();
            // The calls wait for each other for a while. Otherwise each result would be fetched
            // before the next is stored.
            upcall_thread::spawn(move || {
                assert_eq!(binding.call::<_, Vec<u8>>(9, &(CALLS, 700u64)).unwrap().len(), 100)
            })
        };
        let threads: Vec<_> = (0..CALLS).map(|_| call()).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_client_may_bind_as_often_as_it_likes() {
    let name = unique("often");
    let (_server, _) = serve(&name, Pacing::Adaptive);
    let kept: Vec<_> = (0..100).map(|_| Binding::bind(&name, &TEST).unwrap()).collect();
    for round in 0..300u32 {
        let binding = Binding::bind(&name, &TEST).unwrap();
        assert_eq!(binding.call::<_, u32>(1, &(round, 1u32)), Ok(round + 1));
        assert_eq!(kept[round as usize % 100].call::<_, u32>(1, &(round, 2u32)), Ok(round + 2));
    }
}

/// The server tells a client at bind how many simultaneous calls have A-stacks, and how large these
/// are (LRPC, section 3.1). The numbers that the client was compiled with do not count.
#[test]
fn the_servers_list_decides() {
    // Three calls arrive together, or the third waits until the first stops waiting for it, after
    // `patience` milliseconds.
    let come_together = |server: (u16, u32), client: (u16, u32), patience: u64| {
        let name = unique(&format!("list-{}-{}", server.0, client.0));
        let things = Arc::new(AtomicU64::new(0));
        let export = Export::new(with_gather(server.0, server.1), Test(things.clone()));
        let _server = Server::new().export(&name, export).start().unwrap();
        let binding = Binding::bind(&name, with_gather(client.0, client.1)).unwrap();
        std::thread::scope(|scope| {
            let call = || binding.call::<_, Vec<u8>>(9, &(3u64, patience)).unwrap() == [1; 100];
            let calls = [(); 3].map(|()| scope.spawn(call));
            calls.into_iter().all(|call| call.join().unwrap())
        })
    };
    assert!(
        !come_together((2, 2000), (5, 0), 500),
        "two A-stacks are at the server's, and the client knows of none"
    );
    assert!(
        come_together((64, 2000), (1, 2000), 60_000),
        "64 A-stacks are at the server's, and the client knows of one"
    );
    assert!(come_together((1, 0), (1, 2000), 60_000), "none are at the server's");
}

#[test]
fn many_kernel_threads_call_at_once() {
    let name = unique("crowd");
    let (_server, _) = serve(&name, Pacing::Adaptive);
    let binding = Binding::bind(&name, &TEST).unwrap();
    std::thread::scope(|scope| {
        for n in 0..50u8 {
            let binding = &binding;
            scope.spawn(move || {
                for _ in 0..50 {
                    assert_eq!(
                        binding.call::<_, Vec<u8>>(2, &([n; 150].as_slice(),)),
                        Ok(vec![n; 150])
                    );
                }
            });
        }
    });
}

/// Makes three times as many calls as there are lanes: no thread may hold a lane while it waits for
/// another.
#[test]
fn a_crowd_of_kernel_threads_comes_through() {
    let name = unique("throng");
    let (_server, _) = serve(&name, Pacing::Adaptive);
    let binding = Binding::bind(&name, &TEST).unwrap();
    std::thread::scope(|scope| {
        for n in 0..100u32 {
            let binding = &binding;
            scope.spawn(move || {
                (0..100u32).for_each(|i| assert_eq!(binding.call::<_, u32>(1, &(n, i)), Ok(n + i)))
            });
        }
    });
}

#[test]
fn user_level_threads_call_at_once() {
    let name = unique("threads");
    let (_server, _) = serve(&name, Pacing::Adaptive);
    let idle = Arc::new(upcall_sched::PollingIdle::new(1, Pacing::Adaptive).unwrap());
    upcall_thread::Processors::new()
        .idle(idle)
        .run(|| {
            let binding = Binding::bind(&name, &TEST).unwrap();
            let threads: Vec<_> = (0..200u32)
                .map(|n| {
                    let binding = binding.clone();
                    upcall_thread::spawn(move || {
                        for i in 0..20u32 {
                            assert_eq!(binding.call::<_, u32>(1, &(n, i)), Ok(n + i));
                            assert_eq!(
                                binding.call::<_, Vec<u8>>(2, &([n as u8; 150].as_slice(),)),
                                Ok(vec![n as u8; 150])
                            );
                        }
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
        })
        .unwrap();
}

/// Runs `body` on `count` virtual processors that poll channels.
fn on_processors<T>(count: usize, body: impl FnOnce() -> T) -> T {
    let idle = Arc::new(upcall_sched::PollingIdle::new(count, Pacing::Adaptive).unwrap());
    upcall_thread::Processors::new().count(count).idle(idle).run(body).unwrap()
}

/// `count` user-level threads on one virtual processor, each with one call.
fn crowd(count: u32, call: impl Fn(&Binding, u32) + Send + Sync + 'static) {
    let name = unique(&format!("crowd{count}"));
    let (_server, _) = serve(&name, Pacing::Adaptive);
    on_processors(1, || {
        let (binding, call) = (Binding::bind(&name, &TEST).unwrap(), Arc::new(call));
        let start = |n| {
            let (binding, call) = (binding.clone(), call.clone());
            upcall_thread::spawn(move || call(&binding, n))
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn thousands_of_threads_bring_large_arguments() {
    crowd(3000, |binding, n| {
        let data = vec![n as u8; 100_000];
        assert_eq!(binding.call::<_, Vec<u8>>(2, &(data.as_slice(),)), Ok(data));
    });
}

/// Each lane has places of its own: calls on one lane do not block the call from another lane that
/// they wait for.
#[test]
fn large_calls_of_one_lane_leave_room_for_those_of_another() {
    let name = unique("lanes");
    let (_server, things) = serve(&name, Pacing::Adaptive);
    let binding = Binding::bind(&name, &TEST).unwrap();
    let of_threads = binding.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            on_processors(1, || {
                let start = |_| {
                    let binding = of_threads.clone();
                    upcall_thread::spawn(move || {
                        assert_eq!(binding.call::<_, ()>(10, &([7; 100].as_slice(),)), Ok(()))
                    })
                };
                let threads: Vec<_> = (0..300).map(start).collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            });
        });
        while things.load(Ordering::SeqCst) < 64 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        let in_time = binding.with_deadline(Some(Duration::from_secs(60)));
        let let_out = in_time.call::<_, ()>(11, &([7; 100].as_slice(),));
        // Releases the calls if that call was not let in, so that the test fails instead of
        // hanging.
        things.fetch_add(OUT, Ordering::SeqCst);
        assert_eq!(let_out, Ok(()));
    });
}

/// Threads pass a token round by a mutex and a condition variable, and each makes a call before it
/// passes the token on. So wakes by replies alternate with wakes by other threads.
#[test]
fn calls_and_local_waits_share_one_scheduler() {
    const THREADS: u32 = 20;
    const ROUNDS: u32 = 50;
    let name = unique("shared");
    let (_server, _) = serve(&name, Pacing::Adaptive);
    let binding = Binding::bind(&name, &TEST).unwrap();
    for processors in [1, 2] {
        let binding = &binding;
        let turns = std::thread::scope(|scope| {
            let run = move || {
                let (turn, passed) =
                    (upcall_thread::Mutex::new(0_u32), upcall_thread::Condvar::new());
                upcall_thread::scope(|s| {
                    for me in 0..THREADS {
                        let (turn, passed) = (&turn, &passed);
                        s.spawn(move || {
                            for _ in 0..ROUNDS {
                                let mut now =
                                    passed.wait_while(turn.lock(), |now| *now % THREADS != me);
                                *now = binding.call::<_, u32>(1, &(*now, 1_u32)).unwrap();
                                passed.notify_all();
                            }
                        });
                    }
                });
                turn.into_inner()
            };
            scope.spawn(move || on_processors(processors, run)).join().unwrap()
        });
        assert_eq!(turns, THREADS * ROUNDS);
    }
}

/// With arguments of each size, to a local and a remote server, on both kinds of threads: a call
/// whose deadline has passed times out, and nothing is sent.
#[test]
fn a_call_whose_deadline_has_passed_is_not_begun() {
    let name = unique("passed");
    let things = Arc::new(AtomicU64::new(0));
    let server =
        Server::new().export(&name, Export::new(&TEST, Test(things.clone()))).listen("127.0.0.1:0");
    let server = server.start().unwrap();
    let far = format!("tcp://{}/{name}", server.addresses()[0]);
    let check = |name: &str| {
        let binding = Binding::bind(name, &TEST).unwrap().with_deadline(Some(Duration::ZERO));
        let not_begun = CallError::Aborted { sent: false };
        assert_eq!(binding.call::<_, ()>(0, &()), Err(not_begun.clone()), "{name}");
        assert_eq!(binding.call::<_, u32>(1, &(1u32, 2u32)), Err(not_begun.clone()), "{name}");
        for len in [0, 40, 3000, 1_000_000] {
            let bytes = vec![7u8; len];
            assert_eq!(
                binding.call::<_, u64>(6, &(&*bytes,)),
                Err(not_begun.clone()),
                "{name} {len}"
            );
        }
        assert_eq!(binding.call::<_, ()>(11, &()), Err(not_begun.clone()), "{name}");
        let passed = Instant::now();
        let bound = binding.with_deadline(None);
        let called = upcall_thread::with_deadline(passed, || bound.call::<_, ()>(11, &()));
        assert!(
            matches!(called, Ok(Err(CallError::Aborted { sent: false })) | Err(_)),
            "{called:?}"
        );
        assert_eq!(bound.call::<_, ()>(0, &()), Ok(()), "{name}: without one it goes on");
        let said = not_begun.to_string();
        assert!(said.contains("will not run. If the deadline passed, call again"), "{said}");
    };
    for name in [&name, &far] {
        check(name);
        std::thread::scope(|scope| {
            scope.spawn(|| on_processors(1, || check(name))).join().unwrap()
        });
    }
    assert_eq!(things.load(Ordering::SeqCst), 0, "a call that was not begun ran");
}

#[test]
fn a_threads_own_deadline_ends_its_calls() {
    let name = unique("limited");
    let (_server, things) = serve(&name, Pacing::Adaptive);
    let binding = Binding::bind(&name, &TEST).unwrap();
    let check = || {
        // The call returns an error; only the call that waits behind it is left. A busy machine may
        // be too late to send it.
        let mut time = Duration::from_millis(20);
        loop {
            let soon = Instant::now() + time;
            let called = upcall_thread::with_deadline(soon, || {
                binding.call::<_, ()>(10, &([7; 100].as_slice(),))
            });
            assert!(Instant::now() >= soon);
            match called {
                Ok(Err(CallError::Aborted { sent: true })) => break,
                Ok(Err(CallError::Aborted { sent: false })) | Err(_)
                    if time < Duration::from_secs(60) =>
                {
                    time *= 2
                }
                called => panic!("{called:?}"),
            }
        }
        assert_eq!(binding.call::<_, ()>(0, &()), Ok(()), "without one it waits again");
    };
    check();
    std::thread::scope(|scope| scope.spawn(|| on_processors(1, check)).join().unwrap());
    things.fetch_add(OUT, Ordering::SeqCst);
}

#[test]
fn a_forced_hand_off_of_a_kernel_thread_brings_the_reply() {
    for pacing in [Pacing::Adaptive, Pacing::Poll, Pacing::Sleep] {
        let name = unique(&format!("forced-{pacing:?}"));
        let (_server, _) = serve(&name, Pacing::Adaptive);
        let binding = Binding::bind(&name, &TEST).unwrap().with_hand_off(HandOff::AtOnce);
        binding.set_pacing(pacing);
        for n in 0..200_u32 {
            if n % 50 == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(binding.call::<_, u32>(1, &(n, 1_u32)), Ok(n + 1));
        }
    }
}

/// A scheduler ends while its threads call; the next scheduler has all call numbers and places
/// again.
#[test]
fn calls_that_a_scheduler_left_do_not_hold_up_the_next() {
    let name = unique("lives");
    let (_server, things) = serve(&name, Pacing::Adaptive);
    let binding = Binding::bind(&name, &TEST).unwrap();
    let of_threads = binding.clone();
    let run = |body: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| scope.spawn(|| on_processors(1, body)).join().unwrap());
    };
    let start = |procedure| {
        let binding = of_threads.clone();
        upcall_thread::spawn(move || {
            assert_eq!(binding.call::<_, ()>(procedure, &([7; 100].as_slice(),)), Ok(()))
        })
    };
    run(&|| {
        (0..100).for_each(|_| drop(start(10)));
        while things.load(Ordering::SeqCst) < 64 {
            upcall_thread::yield_now();
        }
    });
    things.fetch_add(OUT, Ordering::SeqCst);
    run(&|| {
        let threads: Vec<_> = (0..100).map(|_| start(11)).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// An object that the client holds, like those of generated stubs.
struct Opened(Binding, Handle);

impl Layout for Opened {
    const SIZE: usize = Handle::SIZE;
    const ALIGN: usize = Handle::ALIGN;
    const FIXED: bool = true;
}

impl Get for Opened {
    fn get(decoder: &Decoder<'_>, at: usize) -> Result<Self, Malformed> {
        let handle = Handle::get(decoder, at)?;
        Ok(Self(decoder.binding().expect("a client reads it"), handle))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.release(self.1);
    }
}

/// A scheduler whose threads are always ready ends at about the time when the replies of abandoned
/// calls arrive. The objects in the replies are dropped, no matter which thread reads them.
#[test]
fn late_replies_outlive_the_scheduler_of_their_callers() {
    let name = unique("outlived");
    let (_server, things) = serve(&name, Pacing::Adaptive);
    let binding = Binding::bind(&name, &TEST).unwrap();
    for round in 0..100 {
        let in_time = binding.with_deadline(Some(Duration::from_millis(1)));
        on_processors(1, move || {
            upcall_thread::scope(|s| {
                for _ in 0..20 {
                    s.spawn(|| {
                        let opened = in_time.call::<_, Opened>(13, &());
                        // On a busy machine the reply may arrive before the caller notices that its
                        // time is up.
                        assert!(
                            matches!(opened, Ok(_) | Err(CallError::Aborted { .. })),
                            "{:?}",
                            opened.err()
                        );
                        let ends = Instant::now() + Duration::from_micros(800 + 5 * round);
                        while Instant::now() < ends {
                            upcall_thread::yield_now();
                        }
                    });
                }
            });
        });
    }
    let start = Instant::now();
    while things.load(Ordering::SeqCst) != 0 {
        assert!(
            start.elapsed().as_secs() < 60,
            "{} objects are left",
            things.load(Ordering::SeqCst)
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn thousands_of_threads_fetch_large_results() {
    // There are more calls at once than a server stores results, with 64 A-stacks. Each result is
    // longer than the previous one, and so than the room brought for it.
    crowd(6000, |binding, n| {
        assert_eq!(
            binding.call::<_, Vec<u8>>(12, &(5000 + u64::from(n),)),
            Ok(vec![7; 5000 + n as usize])
        )
    });
}

/// Runs in a process of its own, since other tests need virtual processors too.
#[test]
fn a_server_for_which_no_virtual_processor_is_left_is_refused() {
    const CHILD: &str = "UPCALL_TEST_HAS_ALL_PROCESSORS";
    if std::env::var_os(CHILD).is_none() {
        let test = "a_server_for_which_no_virtual_processor_is_left_is_refused";
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let child =
            command.args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().unwrap();
        return assert!(child.status.success(), "{child:?}");
    }
    let start =
        |name: &str| Server::new().export(name, Export::new(&TEST, Test(Arc::default()))).start();
    let mut servers: Vec<_> =
        (0..32).map(|nth| start(&unique(&format!("one-of-{nth}"))).unwrap()).collect();
    let name = unique("one-more");
    let error = start(&name).unwrap_err();
    assert!(matches!(error, ServeError::Resource { .. }), "{error:?}");
    assert!(error.to_string().contains("at most 32 virtual processors"), "{error}");
    let bound = Binding::bind(&name, &TEST);
    assert!(matches!(bound, Err(BindError::NoSuchName { .. })), "its name is not there: {bound:?}");
    servers.pop().unwrap().stop();
    // One of the two processors would not look for calls.
    let both = Server::new().export(&name, Export::new(&TEST, Test(Arc::default()))).processors(2);
    assert!(matches!(both.start().unwrap_err(), ServeError::Resource { .. }));
    let _server = start(&name).unwrap();
    assert_eq!(Binding::bind(&name, &TEST).unwrap().call::<_, u32>(1, &(2u32, 3u32)), Ok(5));
}
