//! Handlers that block their kernel thread, and the calls of others beside them.

use std::borrow::Cow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use upcall_rpc::{
    Binding, Call, CallError, Dispatch, Export, Extent, Interface, Limits, Pacing, Procedure,
    Replied, Running, Server,
};

const fn procedure(name: &'static str, args: u32, results: u32) -> Procedure {
    Procedure {
        name: Cow::Borrowed(name),
        signature: Cow::Borrowed("func"),
        hash: 0,
        args: Extent { fixed: args, tail: 0 },
        results: Extent { fixed: results, tail: 0 },
        calls: 64,
        limits: Limits { string: 0, list: 0, values: 0 },
    }
}

static PROCEDURES: [Procedure; 4] = [
    procedure("wait", 4, 0),
    procedure("next", 4, 4),
    procedure("sleep", 8, 8),
    procedure("deep", 4, 4),
];

static TEST: Interface = Interface {
    id: Cow::Borrowed("test:blocking/blocking"),
    procedures: Cow::Borrowed(&PROCEDURES),
    parts: Cow::Borrowed(&[]),
    source: Cow::Borrowed(""),
    limits: Cow::Borrowed(""),
};

const WAIT: u16 = 0;
const NEXT: u16 = 1;
const SLEEP: u16 = 2;
const DEEP: u16 = 3;

/// Counts the handlers that are inside. A handler that waits blocks its kernel thread.
#[derive(Default)]
struct Room {
    inside: Mutex<u32>,
    changed: Condvar,
    /// Number of handlers that have waited, and end.
    left: Mutex<u32>,
}

impl Room {
    fn enter(&self) {
        *self.inside.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    /// Waits until `many` handlers have entered.
    fn await_inside(&self, many: u32) {
        let inside = self.inside.lock().unwrap();
        let (inside, waited) = self
            .changed
            .wait_timeout_while(inside, Duration::from_secs(60), |inside| *inside < many)
            .unwrap();
        assert!(!waited.timed_out(), "{inside} of {many} handlers are inside after a minute");
    }
}

struct Test(Arc<Room>);

impl Dispatch for Test {
    fn dispatch(&self, call: Call<'_>) -> Replied {
        match call.procedure() {
            // Enters, and leaves when the given number of handlers have entered.
            WAIT => call.respond(|args| {
                let many = args.get::<u32>(0)?;
                self.0.enter();
                self.0.await_inside(many);
                *self.0.left.lock().unwrap() += 1;
                Ok(())
            }),
            NEXT => call.respond(|args| Ok(args.get::<u32>(0)?.wrapping_add(1))),
            // Sleeps for the given number of µs, and returns another number.
            SLEEP => call.respond(|args| {
                std::thread::sleep(Duration::from_micros(args.get::<u32>(0)?.into()));
                Ok((args.get::<u32>(4)?, args.get::<u32>(0)?))
            }),
            // Uses more than 64 KiB of stack.
            DEEP => call.respond(|args| {
                let number = args.get::<u32>(0)?;
                let deep = std::hint::black_box([number; 64 << 10]);
                Ok(deep[deep.len() - 1].wrapping_add(1))
            }),
            _ => call.unknown(),
        }
    }
}

/// Gives the process's virtual processors to one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn server(name: &str, change: impl FnOnce(Server) -> Server) -> (String, Running, Arc<Room>) {
    let (name, room) = (format!("{name}-{}", std::process::id()), Arc::<Room>::default());
    let server = Server::new().export(&name, Export::new(&TEST, Test(room.clone())));
    let running = change(server).start().unwrap();
    (name, running, room)
}

/// A server that also listens on TCP, and its name for TCP clients.
fn far_server(
    name: &str,
    change: impl FnOnce(Server) -> Server,
) -> (String, String, Running, Arc<Room>) {
    let (name, server, room) = server(name, |server| change(server.listen("127.0.0.1:0")));
    let far = format!("tcp://{}/{name}", server.addresses()[0]);
    (name, far, server, room)
}

/// Makes `calls` calls whose handlers wait until `inside` of them are inside at once.
fn call_together(name: &str, calls: u32, inside: u32) {
    std::thread::scope(|scope| {
        for _ in 0..calls {
            scope.spawn(|| {
                let binding = Binding::bind(name, &TEST).unwrap();
                assert_eq!(binding.call::<_, ()>(WAIT, &(inside,)), Ok(()));
            });
        }
    });
}

/// One client can have half of the processors.
#[test]
fn eight_handlers_wait_for_each_other_in_a_server_that_asked_for_nothing() {
    let _alone = alone();
    let (name, _server, _) = server("eight", |server| server);
    call_together(&name, 8, 8);
}

#[test]
fn eight_handlers_of_calls_by_tcp_wait_for_each_other() {
    let _alone = alone();
    for processors in [1, 2] {
        let name = format!("eight-far-{processors}");
        let (_, far, _server, _) = far_server(&name, |server| server.processors(processors));
        call_together(&far, 8, 8);
    }
}

/// All clients by TCP count as one client, also with several connections.
#[test]
fn calls_by_tcp_leave_processors_for_other_clients() {
    let _alone = alone();
    let (name, far, _server, room) = far_server("leaves", |server| server);
    let (blocked, other) =
        (Binding::bind(&far, &TEST).unwrap(), Binding::bind(&name, &TEST).unwrap());
    let soon = other.with_deadline(Some(Duration::from_secs(60)));
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert_eq!(blocked.call::<_, ()>(WAIT, &(17u32,)), Ok(())));
        }
        room.await_inside(8);
        // More calls would arrive one after the other, a millisecond or two each.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(*room.inside.lock().unwrap(), 8);
        for number in 0..1_000 {
            if number % 100 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(soon.call::<_, u32>(NEXT, &(number,)), Ok(number + 1));
        }
        // User-level threads: their virtual processor checks once whether the server sleeps.
        let idle = Arc::new(upcall_sched::PollingIdle::new(1, Pacing::Adaptive).unwrap());
        let run = || {
            let binding = Binding::bind(&name, &TEST).unwrap();
            let binding = &binding.with_deadline(Some(Duration::from_secs(60)));
            upcall_thread::scope(|scope| {
                for caller in 0..3 {
                    scope.spawn(move || {
                        for number in (0..3_000).map(|turn| caller << 16 | turn) {
                            assert_eq!(binding.call::<_, u32>(NEXT, &(number,)), Ok(number + 1));
                        }
                    });
                }
            });
        };
        upcall_thread::Processors::new().count(1).idle(idle).run(run).unwrap();
        (0..17).for_each(|_| room.enter());
    });
}

#[test]
fn a_handler_has_the_same_stack_by_tcp() {
    let _alone = alone();
    let (name, far, _server, _) = far_server("deep", |server| server);
    for name in [name, far] {
        let binding = Binding::bind(&name, &TEST).unwrap();
        assert_eq!(binding.call::<_, u32>(DEEP, &(1u32,)), Ok(2));
    }
}

#[test]
fn calls_of_one_channel_wait_for_each_other() {
    let _alone = alone();
    let (name, _server, _) = server("one-channel", |server| server);
    let binding = &Binding::bind(&name, &TEST).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(binding.call::<_, ()>(WAIT, &(8u32,)), Ok(())));
        }
    });
}

#[test]
fn calls_of_user_level_threads_wait_for_each_other() {
    let _alone = alone();
    let (name, _server, _) = server("threads", |server| server);
    let idle = Arc::new(upcall_sched::PollingIdle::new(1, Pacing::Adaptive).unwrap());
    let scheduler = upcall_thread::Processors::new().count(1).idle(idle);
    scheduler
        .run(|| {
            let binding = &Binding::bind(&name, &TEST).unwrap();
            upcall_thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| assert_eq!(binding.call::<_, ()>(WAIT, &(8u32,)), Ok(())));
                }
            });
        })
        .unwrap();
}

#[test]
fn a_server_with_two_processors_has_spares_for_both() {
    let _alone = alone();
    let (name, _server, _) = server("two", |server| server.processors(2).spare_processors(10));
    call_together(&name, 6, 6);
}

/// While one handler blocks, the calls of others go on as before, both calls that follow each other
/// closely and calls that find the substitute asleep.
#[test]
fn calls_go_on_beside_a_handler_that_blocks() {
    let _alone = alone();
    for pacing in [Pacing::Adaptive, Pacing::Sleep, Pacing::Poll] {
        let (name, _server, room) = server(&format!("beside-{pacing:?}"), |s| s.pacing(pacing));
        let blocked = Binding::bind(&name, &TEST).unwrap();
        let other = Binding::bind(&name, &TEST).unwrap();
        let blocked = &blocked;
        std::thread::scope(|scope| {
            for turn in 1..=3 {
                let blocks = scope.spawn(move || blocked.call::<_, ()>(WAIT, &(2 * turn,)));
                room.await_inside(2 * turn - 1);
                for number in 0..3_000 {
                    if number % 300 == 0 {
                        std::thread::sleep(Duration::from_millis(3));
                    }
                    assert_eq!(other.call::<_, u32>(NEXT, &(number,)), Ok(number + 1));
                }
                assert!(!blocks.is_finished());
                room.enter();
                assert_eq!(blocks.join().unwrap(), Ok(()));
            }
        });
    }
}

/// The same where one of the two clients uses TCP, or both do.
#[test]
fn calls_by_tcp_go_on_beside_a_handler_that_blocks() {
    let _alone = alone();
    let (name, far, _server, room) = far_server("beside-far", |server| server);
    let ways = [(&far, &far), (&far, &name), (&name, &far)];
    for (turn, (blocked, other)) in (1..).zip(ways) {
        let blocked = Binding::bind(blocked, &TEST).unwrap();
        let other = Binding::bind(other, &TEST).unwrap();
        std::thread::scope(|scope| {
            let blocks = scope.spawn(|| blocked.call::<_, ()>(WAIT, &(2 * turn,)));
            room.await_inside(2 * turn - 1);
            for number in 0..1_000 {
                if number % 100 == 0 {
                    std::thread::sleep(Duration::from_millis(3));
                }
                assert_eq!(other.call::<_, u32>(NEXT, &(number,)), Ok(number + 1));
            }
            assert!(!blocks.is_finished());
            room.enter();
            assert_eq!(blocks.join().unwrap(), Ok(()));
        });
    }
}

/// Handlers that block for about as long as the server takes to notice, so that processors are
/// taken over and return at every possible moment.
#[test]
fn no_call_is_lost_or_doubled_while_processors_are_taken_over_and_come_back() {
    let _alone = alone();
    for processors in [1, 2] {
        let (name, far, _server, _) =
            far_server(&format!("back-and-forth-{processors}"), |s| s.processors(processors));
        let call = |binding: &Binding, caller: u32, turn: u32| {
            let time = [0, 0, 700, 0, 0, 1600, 0, 0, 0, 2500][turn as usize % 10];
            let number = caller << 16 | turn;
            let told = binding.call::<_, (u32, u32)>(SLEEP, &(time, number));
            assert_eq!(told, Ok((number, time)), "call {turn} of {caller}");
        };
        std::thread::scope(|scope| {
            for (caller, name) in (0..).zip([&name, &name, &name, &far, &far]) {
                let call = &call;
                scope.spawn(move || {
                    let binding = Binding::bind(name, &TEST).unwrap();
                    (0..400).for_each(|turn| call(&binding, caller, turn));
                });
            }
            scope.spawn(|| {
                let idle = Arc::new(upcall_sched::PollingIdle::new(1, Pacing::Adaptive).unwrap());
                let run = || {
                    let binding = &Binding::bind(&name, &TEST).unwrap();
                    upcall_thread::scope(|scope| {
                        for caller in 5..9 {
                            let call = &call;
                            scope.spawn(move || {
                                (0..200).for_each(|turn| call(binding, caller, turn));
                            });
                        }
                    });
                };
                upcall_thread::Processors::new().count(1).idle(idle).run(run).unwrap();
            });
        });
    }
}

#[test]
fn a_server_without_spares_has_calls_wait() {
    let _alone = alone();
    let (name, _server, room) = server("none", |server| server.spare_processors(0));
    let (blocked, other) =
        (Binding::bind(&name, &TEST).unwrap(), Binding::bind(&name, &TEST).unwrap());
    std::thread::scope(|scope| {
        let blocks = scope.spawn(|| blocked.call::<_, ()>(WAIT, &(2u32,)));
        room.await_inside(1);
        let hasty = other.with_deadline(Some(Duration::from_millis(50)));
        assert_eq!(hasty.call::<_, u32>(NEXT, &(1u32,)), Err(CallError::Aborted { sent: true }));
        room.enter();
        assert_eq!(blocks.join().unwrap(), Ok(()));
    });
    assert_eq!(other.call::<_, u32>(NEXT, &(2u32,)), Ok(3));
}

#[test]
fn a_server_that_stops_waits_for_a_handler_on_a_spare() {
    let _alone = alone();
    for way in ["here", "far"] {
        let (name, far, server, room) = far_server(&format!("stops-{way}"), |server| server);
        let second = if way == "far" { &far } else { &name };
        let (first, second) =
            (Binding::bind(&name, &TEST).unwrap(), Binding::bind(second, &TEST).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| first.call::<_, ()>(WAIT, &(3u32,)));
            room.await_inside(1);
            scope.spawn(|| second.call::<_, ()>(WAIT, &(3u32,)));
            room.await_inside(2);
            let stops = scope.spawn(|| server.stop());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!stops.is_finished() && *room.left.lock().unwrap() == 0);
            room.enter();
            stops.join().unwrap();
            assert_eq!(*room.left.lock().unwrap(), 2, "handlers have ended before the server");
        });
    }
}
