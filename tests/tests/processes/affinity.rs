//! Calls on processors that change: affinity masks that are changed from outside, pinned clients on
//! all processors, and a filter that refuses the calls by which the runtime moves and yields.

use crate::{alone, in_company, place};
use std::fs;
use upcall_os::processor::Processors;
use upcall_tests::party::Party;

/// Confines all kernel threads of a process to one processor, or to all.
fn confine(party: &Party, to: &Processors) {
    let threads = fs::read_dir(format!("/proc/{}/task", party.pid())).expect("a process");
    for thread in threads.flatten() {
        let thread = thread.file_name().to_string_lossy().parse().expect("a number");
        // The thread may have ended.
        let _ = to.confine_thread(thread);
    }
}

/// The masks of a server and of its clients change while they call: no call fails or hangs.
#[test]
fn calls_go_on_while_affinity_masks_change() {
    let _alone = alone();
    let place = place();
    let all = Processors::allowed().expect("where this process may run");
    let only: Vec<_> = all.iter().map(Processors::only).collect();
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
                    confine(&server, if round % 2 == 0 { of_server } else { &all });
                    for client in &clients {
                        confine(client, if round % 2 == 0 { of_client } else { &all });
                    }
                }
                for client in &mut clients {
                    client.hear().expect_ok("calls while masks change");
                }
            }
        }
    }
}

/// A server with one virtual processor, and more pinned clients than processors, on each of them.
#[test]
fn pinned_clients_on_all_processors_call_one_server() {
    let _alone = alone();
    let place = place();
    let _server = place.serve("trial");
    let all = Processors::allowed().expect("where this process may run");
    let mut clients: Vec<_> = all
        .iter()
        .flat_map(|cpu| [cpu; 3])
        .map(|cpu| {
            let mut client = place.client();
            confine(&client, &Processors::only(cpu));
            client.ask("bind trial").expect_ok("binding");
            client
        })
        .collect();
    clients.iter_mut().for_each(|client| client.say("honest 300"));
    clients.iter_mut().for_each(|client| drop(client.hear().expect_ok("calls")));
}

/// Neither side may move threads or yield: calls go on, by wakes of the kernel's choice.
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

/// The calls of the kernel by which the runtime moves threads, and yields.
const ALL: &str = "sched_yield,sched_setaffinity,sched_getaffinity";
