//! Calls while processors change: affinity masks that are changed from outside, clients pinned on
//! all processors, a processor that is taken offline, and seccomp filters that refuse the system
//! calls by which the runtime moves threads and yields, or that kill the process that makes one.

use crate::{alone, in_company, place};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use upcall_os::processor::CpuSet;
use upcall_tests::party::Party;

/// Confines all kernel threads of a process to the processors in `to`.
pub(crate) fn confine(pid: u32, to: &CpuSet) {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    for thread in threads.flatten() {
        let thread = thread.file_name().to_string_lossy().parse().expect("a number");
        // The thread may have ended.
        let _ = to.confine_thread(thread);
    }
}

/// The masks of a server and of its clients change while the clients call. No call fails or hangs.
#[test]
fn calls_go_on_while_affinity_masks_change() {
    let _alone = alone();
    let place = place();
    let all = CpuSet::allowed().expect("where this process may run");
    let only: Vec<_> = all.iter().map(CpuSet::only).collect();
    for options in ["trial", "trial two", "trial sleep"] {
        let server = place.serve(options);
        let mut clients = [(); 2].map(|()| place.client());
        for client in &mut clients {
            client.ask("bind trial").expect_ok("binding");
        }
        // Every pair of masks of a server and a client, one of them all processors.
        for of_server in only.iter().chain([&all]) {
            for of_client in only.iter().chain([&all]) {
                clients.iter_mut().for_each(|client| client.say("honest 60"));
                for round in 0..4 {
                    confine(server.pid(), if round % 2 == 0 { of_server } else { &all });
                    for client in &clients {
                        confine(client.pid(), if round % 2 == 0 { of_client } else { &all });
                    }
                }
                for client in &mut clients {
                    client.hear().expect_ok("calls while masks change");
                }
            }
        }
    }
}

/// One server has one virtual processor, and each processor has pinned clients: more clients than
/// processors.
#[test]
fn pinned_clients_on_all_processors_call_one_server() {
    let _alone = alone();
    let place = place();
    let _server = place.serve("trial");
    let all = CpuSet::allowed().expect("where this process may run");
    let mut clients: Vec<_> = all
        .iter()
        .flat_map(|cpu| [cpu; 3])
        .map(|cpu| {
            let mut client = place.client();
            confine(client.pid(), &CpuSet::only(cpu));
            client.ask("bind trial").expect_ok("binding");
            client
        })
        .collect();
    clients.iter_mut().for_each(|client| client.say("honest 300"));
    clients.iter_mut().for_each(|client| drop(client.hear().expect_ok("calls")));
}

/// Neither side may move threads or yield. Calls go on, and the kernel chooses where a woken thread
/// runs.
#[test]
fn calls_go_on_where_moving_and_yielding_are_refused() {
    let _company = in_company();
    let place = place();
    for (of_server, of_client) in [("sched_yield", ""), ("", "sched_yield"), (ALL, ALL)] {
        let filter = |names: &str| match names {
            "" => String::new(),
            names => format!("without={names} "),
        };
        let mut server = place.start(&format!("{}serve trial", filter(of_server)));
        server.hear().expect_ok("a server's start");
        let mut client = place.start(&format!("{}client", filter(of_client)));
        client.ask("bind trial").expect_ok("binding");
        client.ask("honest 100").expect_ok("calls");
    }
}

/// A seccomp filter kills a process that moves a thread. A server that polls moves no thread, and
/// neither do its clients.
#[test]
fn a_filter_that_ends_who_moves_a_thread_spares_servers_that_poll_and_their_clients() {
    let _company = in_company();
    let place = place();
    for options in ["poll", "poll two"] {
        let mut server = place.start(&format!("without=sched_setaffinity+ serve trial {options}"));
        server.hear().expect_ok("a server's start");
        let mut clients = ["poll", "sleep"].map(|pacing| {
            let mut client = place.start("without=sched_setaffinity+ client");
            client.ask("bind trial").expect_ok("binding");
            client.ask(&format!("pace {pacing}")).expect_ok("pacing");
            client
        });
        clients.iter_mut().for_each(|client| client.say("works 500"));
        clients.iter_mut().for_each(|client| drop(client.hear().expect_ok("calls")));
        assert_eq!(clients[0].ask("marks").numbers("what has run"), [1000; 2]);
        for (client, pacing) in clients.iter_mut().zip(["poll", "sleep"]) {
            let sum = client.ask(&format!("add-on-thread {pacing} 2 3"));
            assert_eq!(sum.numbers("a user-level thread's call"), [5]);
        }
        assert!(server.lives(), "the server was ended");
    }
}

/// A processor that is offline until this value is dropped or this program ends.
struct Offline {
    /// A shell that brings the processor back online when its input ends.
    keeper: Child,
}

impl Offline {
    /// Takes a processor offline. Where the kernel refuses, prints the reason and returns `None`.
    fn new(cpu: usize) -> Option<Self> {
        let switch = format!("/sys/devices/system/cpu/cpu{cpu}/online");
        let script = format!("echo started; trap '' INT TERM HUP; read line; echo 1 > {switch}");
        let mut keeper = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut started = String::new();
        let output = keeper.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut started).expect("the shell's word");
        let offline = Self { keeper };
        match fs::write(&switch, "0") {
            Ok(()) => Some(offline),
            Err(error) => {
                eprintln!("skipped: a processor that is offline: {switch}: {error}");
                None
            }
        }
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// A processor goes offline while calls run, and comes back. Each call runs exactly once. The test
/// is marked long because all programs on the machine notice it.
#[test]
#[ignore = "long: takes a processor offline"]
fn long_calls_go_on_while_a_processor_is_offline() {
    let _alone = alone();
    let all = CpuSet::allowed().expect("where this process may run");
    let Some(cpu) = all.iter().filter(|&cpu| cpu > 0).last().filter(|_| all.count() > 1) else {
        eprintln!("skipped: a processor that is offline: two processors are needed");
        return;
    };
    for options in ["trial", "trial two", "trial sleep"] {
        let place = place();
        let server = place.serve(options);
        let mut clients = [(); 2].map(|()| place.client());
        for client in &mut clients {
            client.ask("bind trial").expect_ok("binding");
        }
        // Bring the server to the processor that goes offline.
        confine(clients[0].pid(), &CpuSet::only(cpu));
        let mut works = 0;
        for _ in 0..3 {
            let mut begin = |clients: &mut [Party; 2]| {
                clients.iter_mut().for_each(|client| client.say("works 2000"));
                works += 4000;
            };
            begin(&mut clients);
            let Some(offline) = Offline::new(cpu) else { return };
            clients.iter_mut().for_each(|client| drop(client.hear().expect_ok("calls")));
            begin(&mut clients);
            clients.iter_mut().for_each(|client| drop(client.hear().expect_ok("calls")));
            begin(&mut clients);
            drop(offline);
            clients.iter_mut().for_each(|client| drop(client.hear().expect_ok("calls")));
            // Confine it again: the kernel has reset the mask.
            confine(clients[0].pid(), &CpuSet::only(cpu));
        }
        let marks = clients[1].ask("marks").numbers("what has run");
        assert_eq!(marks, [works; 2], "calls were lost or doubled");
        drop(server);
    }
}

/// The system calls by which the runtime moves threads and yields.
const ALL: &str = "sched_yield,sched_setaffinity,sched_getaffinity";
