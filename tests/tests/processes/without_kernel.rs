//! Calls without the kernel (URPC, section 2).

use crate::machine::Alone;
use crate::{alone, in_company, place};
use upcall_os::processor::CpuSet;
use upcall_tests::party::Party;
use upcall_tests::place::{Place, eventually};

/// Any system call except its last report kills the caller's thread (`seccomp`), even the write
/// that rings a doorbell.
#[test]
fn calls_to_a_polling_server_make_no_system_call() {
    calls_make_no_system_call(0);
}

/// The same for user-level threads: they block and switch, and their virtual processor polls for
/// their replies.
#[test]
fn calls_of_user_level_threads_make_no_system_call() {
    calls_make_no_system_call(40);
}

/// A server that polls takes, runs and answers requests without the kernel. Any system call ends
/// the server.
#[test]
fn a_polling_server_makes_no_system_call_for_a_request() {
    let Some(mut pair) = Pair::on_two_processors() else { return };
    pair.client
        .ask("server-without-kernel 100000")
        .expect_ok("calls to a server without the kernel");
}

fn calls_make_no_system_call(users: usize) {
    let Some(mut pair) = Pair::on_two_processors() else { return };
    assert_eq!(
        pair.client
            .ask(&format!("without-kernel 100000 {users}"))
            .expect_ok("calls without the kernel"),
        ["without"]
    );
}

/// A polling server, a client that is bound to it, and nothing else on the machine.
struct Pair {
    client: Party,
    _server: Party,
    _place: Place,
    _alone: Alone,
}

impl Pair {
    /// Starts the server on processor 1. Returns `None` where this machine has no such processors.
    fn on_two_processors() -> Option<Self> {
        let alone = alone();
        if !CpuSet::allowed().is_ok_and(|allowed| allowed.contains(0) && allowed.contains(1)) {
            eprintln!("skipped: processors 0 and 1 are needed");
            return None;
        }
        let place = place();
        let server = place.serve("trial poll mortal");
        let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("a process");
        for tid in threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            CpuSet::only(1).confine_thread(tid).expect("its threads are ours to move");
        }
        // The server reports where it is after some rounds of polling.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut client = place.client();
        client.ask("bind trial").expect_ok("binding");
        Some(Self { client, _server: server, _place: place, _alone: alone })
    }
}

/// Where doorbells cannot be rung by asynchronous requests, they are rung by writes.
#[test]
fn calls_without_asynchronous_requests() {
    let _company = in_company();
    let place = place();
    for options in ["trial sleep", "trial two"] {
        let mut server = place.start(&format!("without=io_setup,io_submit serve {options}"));
        server.hear().expect_ok("a server's start");
        let mut client = place.start("without=io_setup,io_submit client");
        client.ask("bind trial").expect_ok("binding");
        let mut calls = 0;
        eventually("enough calls are made", || {
            let numbers = client.ask("honest 500").numbers("the calls");
            println!(
                "    {options}: {} calls, the longest {:.1} ms",
                numbers[0],
                numbers[1] as f64 / 1e6
            );
            calls += numbers[0];
            if calls > 100 { Ok(()) } else { Err(format!("{calls} calls")) }
        });
    }
}

/// System calls that the runtime makes for speed, or to save memory. It goes on without them.
const SPARED: [&str; 8] = [
    "madvise",
    "mremap",
    "prctl",
    "sched_setaffinity",
    "sched_getaffinity",
    "sched_setattr",
    "sched_yield",
    "madvise,mremap,prctl,sched_setaffinity,sched_getaffinity,sched_setattr,sched_yield",
];

/// The error with which calls are refused: `EPERM` for a server with one processor, `ENOSYS` for
/// one with two.
const WAYS: [(&str, &str); 2] = [("", "trial sleep"), ("!", "trial two")];

/// A sandbox refuses calls from the beginning. The server serves, or reports at its start what it
/// lacks.
#[test]
fn a_server_does_without_calls_that_a_sandbox_refuses() {
    let _company = in_company();
    let place = place();
    for names in SPARED.into_iter().chain(["membarrier"]) {
        for (errno, options) in WAYS {
            let mut server = place.start(&format!("without={names}{errno} serve {options}"));
            server.hear().expect_ok(&format!("a server's start without {names}{errno}"));
            serves(&place, &format!("{names}{errno}, {options}"));
        }
    }
}

/// A server that has started confines itself, and no call fails because of that.
#[test]
fn a_server_that_confines_itself_goes_on() {
    let _company = in_company();
    let place = place();
    for names in SPARED {
        for (errno, options) in WAYS {
            let mut server = place.serve(options);
            server.ask(&format!("without {names}{errno}")).expect_ok("the filter");
            serves(&place, &format!("{names}{errno}, {options}, later"));
        }
    }
}

/// Where no stack can have a guard, not even a kernel thread's, the server does not start, and
/// reports why.
#[test]
fn a_server_without_guards_for_its_stacks_does_not_start() {
    let _company = in_company();
    let place = place();
    let mut server = place.start("without=madvise,mprotect serve trial");
    server.hear().expect_error("Resource", &["Operation not permitted"]);
}

/// Makes a new client's first calls, and as many more as there is time for.
fn serves(place: &crate::Place, what: &str) {
    let mut client = place.client();
    client.ask("bind trial").expect_ok(what);
    assert_eq!(client.ask("add 2 3").numbers(what), [5], "{what}");
    client.ask("honest 10").expect_ok(what);
}
