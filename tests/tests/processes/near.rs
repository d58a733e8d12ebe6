//! A server parks near a caller that may not move it, because the caller is of another user or does
//! not see the server's process. Calls go on after either process was stopped, and when the server
//! may no longer run there.

use crate::affinity::confine;
use crate::alone;
use crate::peers::{self, Space, Users};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use upcall::directory::{PeerTallies, tallies};
use upcall_os::processor::CpuSet;
use upcall_tests::party::Party;
use upcall_tests::place::{Place, eventually};
use upcall_tests::usage::{allowed_cpus, is_stopped, program_of};

const CALLS: u64 = 1000;

/// Number of calls that a client makes while something changes.
const WORKS: u64 = 1000;

/// Returns the number of calls that came by hand-off, and of all calls, since the client has bound.
fn hand_offs(tallies: &PeerTallies) -> [u64; 2] {
    let readings = tallies.read();
    let of = |count: fn(&[u64; 6]) -> u64| readings.iter().map(|one| count(&one.came)).sum();
    [of(|came| came[1] + came[2]), of(|came| came.iter().sum())]
}

/// Returns the users whose tallies this program may read.
pub(crate) fn readable() -> impl Iterator<Item = Users> {
    peers::pairs().into_iter().filter(|users| users.server == peers::own_user())
}

/// Starts a server on all processors and a client on the second one.
fn pair(space: Space, users: Users, options: &str) -> Option<(Place, [Party; 2])> {
    let all = CpuSet::allowed().expect("where this program may run");
    let Some(second) = all.iter().nth(1) else {
        eprintln!("skipped: servers that park near callers: two processors are needed");
        return None;
    };
    let place = Place::shared(peers::program(), users.server);
    let options = format!("{options} {}", users.options);
    let server = peers::serve(&place, space, users.server, &options);
    // The client inherits the mask.
    CpuSet::only(second).confine().expect("one processor");
    let mut client = peers::client(&place, space, users.client);
    all.confine().expect("all processors");
    client.ask(users.bind).expect_ok("binding");
    client.ask("pace sleep").expect_ok("pacing");
    Some((place, [server, client]))
}

fn calls_become_hand_offs(space: Space, users: Users, calls: &str) {
    println!("{space:?}, {}, {calls}", users.what);
    let Some((place, [_server, mut client])) = pair(space, users, "sleep") else { return };
    let tallies = tallies(&place.sockets()[0]).expect("tallies").1;
    // Another program that takes the processor for a while keeps some calls from being hand-offs.
    let become_hand_offs = (0..100).any(|_| {
        let before = hand_offs(&tallies);
        client.ask(&format!("{calls} {CALLS}")).expect_ok("calls");
        let after = hand_offs(&tallies);
        let [given, all] = [0, 1].map(|at| after[at] - before[at]);
        println!("    {given} of {all} calls came by hand-off");
        given >= CALLS * 9 / 10
    });
    assert!(become_hand_offs, "{space:?}, {}: a server does not park near its caller", users.what);
}

#[test]
fn calls_of_another_user_are_hand_offs() {
    let _alone = alone();
    for users in readable() {
        for calls in ["nulls", "nulls-on-thread sleep"] {
            calls_become_hand_offs(Space::Same, users, calls);
        }
    }
}

#[test]
fn calls_from_another_pid_namespace_are_hand_offs() {
    let _alone = alone();
    for users in readable() {
        for space in peers::available(&[Space::Pid]) {
            calls_become_hand_offs(space, users, "nulls");
        }
    }
}

/// Returns `true` if a kernel thread of the process is confined to this CPU.
pub(crate) fn is_near(pid: u32, cpu: usize) -> bool {
    allowed_cpus(pid).contains(&BTreeSet::from([cpu]))
}

/// A server that has parked near its caller, and another client of it.
struct Near {
    client: Party,
    other: Party,
    /// Process numbers of the server's and the client's programs.
    server_pid: u32,
    client_pid: u32,
    /// The CPU that the client is pinned to.
    cpu: usize,
    /// Number of calls of `work` so far.
    works: u64,
    _server: Party,
    _place: Place,
}

impl Near {
    fn new(space: Space, users: Users) -> Option<Self> {
        println!("{space:?}, {}", users.what);
        let (place, [server, client]) = pair(space, users, "sleep")?;
        let cpu = CpuSet::allowed().expect("some").iter().nth(1).expect("a second CPU");
        let mut other = peers::client(&place, Space::Same, users.client);
        other.ask(users.bind).expect_ok("binding");
        let [server_pid, client_pid] = [&server, &client].map(|party| program_of(party.pid()));
        let mut near = Self {
            client,
            other,
            server_pid,
            client_pid,
            cpu,
            works: 0,
            _server: server,
            _place: place,
        };
        near.come_near();
        Some(near)
    }

    /// The CPU of the caller, which the server is near.
    fn here(&self) -> CpuSet {
        CpuSet::only(self.cpu)
    }

    /// All other CPUs.
    fn away(&self) -> CpuSet {
        CpuSet::allowed().expect("where this program may run").without(self.cpu)
    }

    /// Makes the client call until the server has parked near it.
    fn come_near(&mut self) {
        let Self { client, server_pid, cpu, .. } = self;
        eventually("the server parks near its caller", || {
            client.ask("nulls 20").expect_ok("calls");
            if is_near(*server_pid, *cpu) {
                Ok(())
            } else {
                Err(format!("{:?}", allowed_cpus(*server_pid)))
            }
        });
    }

    /// Makes both clients begin [`WORKS`] calls of `work` each. Returns once the first calls have
    /// run.
    fn begin(&mut self) {
        let before = self.works;
        self.client.say(&format!("works {WORKS}"));
        eventually("calls of the caller run", || match self.marks()[0] {
            found if found > before => Ok(()),
            found => Err(format!("{found} in all")),
        });
        self.other.say(&format!("works {WORKS}"));
        self.works += 2 * WORKS;
    }

    /// Waits for the calls of both clients to end.
    fn end(&mut self) {
        self.client.hear().expect_ok("the caller's calls");
        self.other.hear().expect_ok("the other client's calls");
    }

    /// Makes the other client make this number of calls of `work`.
    fn others_work(&mut self, works: u64) {
        self.other.ask(&format!("works {works}")).expect_ok("the other client's calls");
        self.works += works;
    }

    fn marks(&mut self) -> Vec<u64> {
        self.other.ask("marks").numbers("what has run")
    }

    /// Checks that each call of `work` has run once.
    fn expect_each_ran_once(&mut self) {
        assert_eq!(self.marks(), [self.works; 2], "calls were lost or doubled");
    }
}

/// Sends a signal to a process. After SIGSTOP, waits until the process has stopped.
fn signal(pid: u32, signal: Signal) {
    let number = Pid::from_raw(pid as i32).expect("a process number");
    kill_process(number, signal).expect("a process of this program");
    if signal == Signal::STOP {
        eventually("it has stopped", || if is_stopped(pid) { Ok(()) } else { Err(String::new()) });
    }
}

/// Runs `test` with a server near a caller that may not move it, for every such kind that this
/// machine allows.
fn each_near(what: &str, mut test: impl FnMut(Near)) {
    let mut found = 0;
    for users in readable() {
        for space in peers::available(&[Space::Same, Space::Pid]) {
            // Within one user and namespace the caller moves the server itself.
            if (space == Space::Pid || users.server != users.client)
                && let Some(near) = Near::new(space, users)
            {
                test(near);
                found += 1;
            }
        }
    }
    if found == 0 {
        eprintln!("skipped: {what}: no server here has a caller that may not move it");
    }
}

/// The caller near which a server has parked is stopped, also in the middle of calls. The calls of
/// another client are answered before the caller goes on, and all of its own calls afterwards.
#[test]
fn a_stopped_caller_that_the_server_is_near_holds_up_nobody() {
    let _alone = alone();
    each_near("a caller that is stopped", |mut near| {
        for _ in 0..3 {
            signal(near.client_pid, Signal::STOP);
            near.others_work(100);
            signal(near.client_pid, Signal::CONT);
            near.begin();
            signal(near.client_pid, Signal::STOP);
            near.other.hear().expect_ok("the other client's calls");
            near.others_work(100);
            signal(near.client_pid, Signal::CONT);
            near.client.hear().expect_ok("calls of the client that was stopped");
            near.expect_each_ran_once();
        }
    });
}

/// A server near its caller is stopped, also in the middle of calls. Each call has run once at the
/// end.
#[test]
fn a_server_that_was_stopped_near_its_caller_runs_each_call_once() {
    let _alone = alone();
    each_near("a server that is stopped", |mut near| {
        for _ in 0..3 {
            near.begin();
            for _ in 0..3 {
                signal(near.server_pid, Signal::STOP);
                signal(near.server_pid, Signal::CONT);
            }
            near.end();
            signal(near.server_pid, Signal::STOP);
            near.client.say("works 1");
            near.other.say("works 1");
            near.works += 2;
            signal(near.server_pid, Signal::CONT);
            near.end();
            near.expect_each_ran_once();
        }
    });
}

/// The caller near which a server has parked forks. The child inherits everything but uses nothing
/// of it. Each call of the parent has run once.
#[test]
fn a_caller_that_forks_while_the_server_is_near_it_calls_on() {
    let _alone = alone();
    each_near("a caller that forks", |mut near| {
        near.client.ask("fork").expect_ok("a fork");
        eventually("there is a child", || {
            let found = program_of(near.client_pid);
            if found == near.client_pid { Err("none".into()) } else { Ok(()) }
        });
        near.client.ask("nulls 20").expect_ok("calls of the parent alone");
        near.begin();
        near.end();
        near.client.ask("end-fork").expect_ok("the child's end");
        near.begin();
        near.end();
        near.expect_each_ran_once();
    });
}

/// A mask that depends on where the server is.
type Mask = fn(&Near) -> CpuSet;

/// A third process changes the affinity masks of a server, and of the caller that it is near, in
/// the middle of calls. Some masks leave out the CPU where the server is. Each call has run once at
/// the end.
#[test]
fn masks_change_while_a_server_is_near_its_caller() {
    let _alone = alone();
    let all = CpuSet::allowed().expect("where this program may run");
    // The masks of the server and of the client.
    let pairs: [[Mask; 2]; 4] = [
        [Near::away, Near::here],
        [Near::here, Near::away],
        [Near::away, Near::away],
        [|_| CpuSet::allowed().expect("some"), Near::here],
    ];
    for pair in pairs {
        each_near("masks that change", |mut near| {
            let [of_server, of_client] = pair.map(|mask| mask(&near));
            // The server is parked now.
            confine(near.server_pid, &of_server);
            confine(near.client_pid, &of_client);
            near.client.ask("nulls 20").expect_ok("the caller's calls");
            for masks in [[&all, &all], [&of_server, &of_client]] {
                near.begin();
                for _ in 0..5 {
                    for masks in [masks, [&of_server, &of_client]] {
                        confine(near.server_pid, masks[0]);
                        confine(near.client_pid, masks[1]);
                    }
                }
                near.end();
                near.expect_each_ran_once();
            }
        });
    }
}
