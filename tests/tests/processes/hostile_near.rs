//! Clients that lie about the CPU near which a server should park, or name the CPU on which their
//! own busy threads run (URPC).
//!
//! The hostile client is this program, which speaks the protocol by hand. It never moves the server
//! itself, as a client of another user or PID namespace cannot.

use crate::affinity::confine;
use crate::alone;
use crate::near::{is_near, readable};
use crate::peers::{self, Space, Users};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use upcall_os::processor::CpuSet;
use upcall_shm::channel::{Channel, LaneControl};
use upcall_shm::region::RegionView;
use upcall_shm::slot::{NO_ASTACK, SlotMessage};
use upcall_tests::party::Party;
use upcall_tests::place::{AtLast, Place, eventually};
use upcall_tests::speech::{Caller, Hold, outcome, tag};
use upcall_tests::usage::{allowed_cpus, come_to_rest, program_of};

/// Number of rounds of each lie, in each of which the other client makes [`CALLS`] calls.
const ROUNDS: usize = 20;
const CALLS: u64 = 20;

/// A CPU that no machine has.
const NO_CPU: u32 = 1022;

/// A false value that a client writes into the `near` word of its lane.
struct Lie {
    what: &'static str,
    /// Returns the word, given the number of the call, a CPU of the server, and a CPU that is not
    /// the server's. The word is the CPU's number plus one.
    word: fn(call: u32, own: u32, other: u32) -> u32,
}

const LIES: [Lie; 6] = [
    Lie { what: "a CPU with busy threads", word: |_, own, _| own + 1 },
    Lie { what: "a CPU that is not the server's", word: |_, _, other| other + 1 },
    Lie { what: "a CPU that does not exist", word: |_, _, _| NO_CPU + 1 },
    Lie { what: "a number that no set of CPUs has", word: |_, _, _| 1 << 20 },
    Lie { what: "the highest number", word: |_, _, _| u32::MAX },
    Lie {
        what: "another CPU at each call",
        word: |call, own, other| match call % 6 {
            0 => own + 1,
            1 => other + 1,
            2 => u32::MAX,
            3 => NO_CPU + 1,
            4 => 0,
            _ => call,
        },
    },
];

/// A hostile client's lane, and the number of calls it has made there.
struct Liar<'a> {
    caller: Caller<'a>,
    control: RegionView<LaneControl>,
    null: u16,
    calls: u32,
}

impl<'a> Liar<'a> {
    fn new(hold: &'a Hold) -> Self {
        let lane = Channel::join(hold.channel.clone()).expect("a channel").lane(0);
        let control = lane.expect("a lane").control;
        Self { caller: hold.caller(), control, null: hold.number("null"), calls: 0 }
    }

    /// Makes a call with the value of `lie` in the `near` word. The requests alternate between
    /// three kinds: plain, with the caller's CPU, and with that CPU and the wish that the server
    /// stay there.
    ///
    /// # Panics
    /// If the call has no reply, or a wrong one.
    fn call(&mut self, lie: impl FnOnce(u32) -> u32) {
        self.control.near.store(lie(self.calls), Ordering::Relaxed);
        let mut request = SlotMessage::new(0, tag(0, self.null), NO_ASTACK);
        let kind = self.calls % 3;
        if kind > 0 {
            request.donate();
        }
        if kind > 1 {
            request.ask_to_stay();
        }
        let reply = self.caller.call(&request).expect("a reply to the hostile client");
        assert_eq!(reply.tag(), outcome::DONE, "call {}", self.calls);
        self.calls += 1;
    }
}

/// Keeps a CPU busy with three threads while `work` runs.
fn beside_busy_threads<T>(cpu: usize, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _last = AtLast(&over);
        for _ in 0..3 {
            scope.spawn(|| {
                CpuSet::only(cpu).confine().expect("one of this program's CPUs");
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        work()
    })
}

/// Panics if a kernel thread of the server may run on a CPU outside of `own`.
fn expect_within(server: &Party, own: &BTreeSet<usize>, what: &str) {
    for cpus in allowed_cpus(server.pid()) {
        assert!(cpus.is_subset(own), "{what}: the server, which has {own:?}, may run on {cpus:?}");
    }
}

/// Starts a server on the CPUs `own`, and a client of another user or in another namespace that is
/// bound to it.
fn scene(own: &CpuSet, users: Users, space: Space, pacing: &str) -> (Place, Party, Party) {
    let place = Place::shared(peers::program(), users.server);
    let all = CpuSet::allowed().expect("where this program may run");
    // The server inherits the mask.
    own.confine().expect("some of this program's CPUs");
    let server =
        peers::serve(&place, Space::Same, users.server, &format!("{pacing} {}", users.options));
    all.confine().expect("all processors");
    let mut client = peers::client(&place, space, users.client);
    client.ask(users.bind).expect_ok("binding");
    client.ask("pace sleep").expect_ok("pacing");
    (place, server, client)
}

/// Tells each lie to a server on the CPUs `own`, the last of which is busy.
fn lies(own: &CpuSet, users: Users, space: Space, pacing: &str) {
    let all = CpuSet::allowed().expect("where this program may run");
    let cpus: BTreeSet<usize> = own.iter().collect();
    let busy = own.iter().last().expect("a CPU");
    let other = all.iter().find(|&cpu| !own.contains(cpu)).map_or(NO_CPU, |cpu| cpu as u32);
    for Lie { what, word } in &LIES {
        println!("{what}; server on {own:?}, {pacing:?}; {space:?}, {}", users.what);
        let (place, server, mut honest) = scene(own, users, space, pacing);
        let hold = Hold::new(&place.sockets()[0], "trial").expect("a channel");
        let mut liar = Liar::new(&hold);
        beside_busy_threads(busy, || {
            for _ in 0..ROUNDS {
                honest.say(&format!("nulls {CALLS}"));
                (0..5).for_each(|_| liar.call(|call| word(call, busy as u32, other)));
                expect_within(&server, &cpus, what);
                honest.hear().expect_ok("calls of the other client");
                expect_within(&server, &cpus, what);
            }
        });
        assert_eq!(honest.ask("add 2 3").numbers("add"), [5]);
        come_to_rest(
            "a server after lies",
            &[server.pid()],
            Duration::from_millis(200),
            Duration::from_millis(20),
        );
    }
}

/// Returns the users and namespaces of clients that may not move the server or, if there are none,
/// all.
fn strangers() -> Vec<(Users, Space)> {
    let users: Vec<Users> = readable().collect();
    let spaces = peers::available(&[Space::Same, Space::Pid]);
    let all = users.iter().flat_map(|&users| spaces.iter().map(move |&space| (users, space)));
    let of = |(users, space): &(Users, Space)| users.server != users.client || *space == Space::Pid;
    let strangers: Vec<_> = all.filter(of).collect();
    if strangers.is_empty() {
        eprintln!("skipped: lies beside a client that may not move the server: there is none here");
    }
    strangers
}

/// A client asks the server to park on a CPU with the client's busy threads, or on a CPU that the
/// server does not have. All calls are answered, those of other clients, too. The server stays on
/// its own CPUs, and sleeps afterwards.
#[test]
fn a_client_that_lies_about_its_cpu_moves_nobody_off_its_own_cpus() {
    let _alone = alone();
    let all = CpuSet::allowed().expect("where this program may run");
    let strangers = strangers();
    let Some(&(users, space)) = strangers.last() else { return };
    for &(users, space) in &strangers {
        lies(&all, users, space, "sleep");
    }
    lies(&all, users, space, "");
    // A set without the last CPU, if there are others.
    let rest = all.without(all.iter().last().expect("a CPU"));
    if rest.count() > 0 {
        lies(&rest, users, space, "sleep");
    }
}

/// The attack is possible: a client makes the server park on a CPU that it keeps busy. Calls of
/// another client are answered there, and the server goes home.
#[test]
fn a_server_that_a_hostile_client_has_on_a_busy_cpu_answers_others_and_goes_home() {
    let _alone = alone();
    let all = CpuSet::allowed().expect("where this program may run");
    let Some(busy) = all.iter().nth(1) else {
        eprintln!("skipped: a server on a hostile client's CPU: two processors are needed");
        return;
    };
    let elsewhere = CpuSet::only(all.iter().next().expect("a CPU"));
    for (users, space) in strangers() {
        println!("{space:?}, {}", users.what);
        let (place, server, mut honest) = scene(&all, users, space, "sleep");
        confine(program_of(honest.pid()), &elsewhere);
        let hold = Hold::new(&place.sockets()[0], "trial").expect("a channel");
        let mut liar = Liar::new(&hold);
        beside_busy_threads(busy, || {
            eventually("the server parks where the hostile client wishes", || {
                liar.call(|_| busy as u32 + 1);
                if is_near(server.pid(), busy) { Ok(()) } else { Err("it does not".into()) }
            });
            honest.ask(&format!("nulls {CALLS}")).expect_ok("calls of the other client");
        });
        // The server may park near the other client, which runs elsewhere.
        eventually("the server is not near the hostile client", || {
            honest.ask("nulls 1").expect_ok("a call of the other client");
            if is_near(server.pid(), busy) { Err("it is".into()) } else { Ok(()) }
        });
        assert_eq!(honest.ask("add 2 3").numbers("add"), [5]);
    }
}
