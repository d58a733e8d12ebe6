//! A server that writes over all memory that it shares with its clients. They get errors or wrong
//! values, but neither crash nor hang.

use crate::{in_company, place};
use std::time::{Duration, Instant};
use upcall_os::processor::CpuSet;
use upcall_tests::party::PATIENCE;
use upcall_tests::usage::Usage;

fn endure(manner: &str, ms: u64) {
    let _company = in_company();
    let place = place();
    let mut clients = [place.client(), place.client()];
    // The number of each client's binds, and of its calls. A slow machine takes several turns for
    // enough of them.
    let (mut made, start) = ([(0, 0); 2], Instant::now());
    while !made.iter().all(|&(binds, calls)| binds > 3 && calls > 10) {
        assert!(start.elapsed() < PATIENCE, "{manner}: binds and calls: {made:?}");
        let mut impostor = place.start(&format!("impostor trial {manner}"));
        impostor.hear().expect_ok("an impostor");
        for client in &mut clients {
            client.say(&format!("endure trial {ms}"));
        }
        // Calls whose replies were lost wait for their server as long as it lives.
        std::thread::sleep(Duration::from_millis(ms + 500));
        impostor.kill();
        for (client, made) in clients.iter_mut().zip(&mut made) {
            let numbers = client.hear().numbers("what was endured");
            println!(
                "{manner}: {} binds, {} calls, {} errors, the longest call {:.1} ms",
                numbers[0],
                numbers[1],
                numbers[2],
                numbers[3] as f64 / 1e6
            );
            *made = (made.0 + numbers[0], made.1 + numbers[1]);
        }
        impostor.ended();
    }
    let _honest = place.serve("trial");
    for client in &mut clients {
        client.ask("bind trial").expect_ok("binding to an honest server afterwards");
        client.ask("honest 200").expect_ok("calls");
    }
}

#[test]
fn a_server_scribbles() {
    endure("scribble", 2000);
}

#[test]
fn a_server_lies() {
    endure("lies", 2000);
}

/// A server whose doorbell blocks every writer holds up its own callers only, and only as long as
/// it lives.
#[test]
fn a_server_whose_bell_blocks() {
    let _company = in_company();
    let place = place();
    let _honest = place.serve("trial");
    let mut impostor = place.start("impostor other blocks");
    impostor.hear().expect_ok("an impostor");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    let numbers = client.ask("beside other").numbers("calls beside those that wait");
    println!("{} calls beside, the longest {:.1} ms", numbers[0], numbers[1] as f64 / 1e6);
    assert!(numbers[0] > 100 && numbers[1] < 10_000_000_000, "{numbers:?}");
    assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
}

/// The server has no memory for the result that it claims to have, and its client allocates none
/// for it.
#[test]
fn a_server_that_claims_a_huge_result_has_its_client_take_no_memory() {
    let _company = in_company();
    let place = place();
    let mut impostor = place.start("impostor other boasts");
    impostor.hear().expect_ok("an impostor");
    let _honest = place.serve("trial");
    let mut client = place.client();
    client.ask("bind other").expect_ok("binding");
    client.ask("pace poll").expect_ok("pacing");
    let before = Usage::of(client.pid());
    for _ in 0..3 {
        client.ask("make 10").expect_error("NoMemory", &["a quarter of the", "has run"]);
    }
    let now = Usage::of(client.pid());
    assert!(now.shared <= before.shared, "{now:?}, before {before:?}");
    client.ask("bind trial").expect_ok("binding to an honest server");
    client.ask("honest 100").expect_ok("calls");
}

/// As above, with a panic message in place of a result.
#[test]
fn a_server_that_claims_a_huge_panic_message_has_its_client_take_no_memory() {
    claims_a_huge_text("boasts-of-panics");
}

/// As above, with the reason of a refusal.
#[test]
fn a_server_that_claims_a_huge_reason_of_a_refusal_has_its_client_take_no_memory() {
    claims_a_huge_text("boasts-of-refusals");
}

fn claims_a_huge_text(manner: &str) {
    let _company = in_company();
    let place = place();
    let mut impostor = place.start(&format!("impostor other {manner}"));
    impostor.hear().expect_ok("an impostor");
    let mut client = place.client();
    client.ask("bind other").expect_ok("binding");
    client.ask("pace poll").expect_ok("pacing");
    let before = Usage::of(client.pid());
    for _ in 0..3 {
        client.ask("make 10").expect_error("BadReply", &["a text that is too long"]);
    }
    let now = Usage::of(client.pid());
    assert!(now.shared <= before.shared, "{now:?}, before {before:?}");
}

/// Number of kernel threads, and of user-level threads, that call a hostile server with a deadline.
const CALLERS: usize = 3;

/// Calls, with a deadline, a server that keeps all connections open. All calls end while the server
/// lives. Returns how many were answered, with a value or an error, how many were aborted after
/// they were sent, and how many before.
fn call_with_a_deadline(manner: &str) -> [u64; 3] {
    let _company = in_company();
    let place = place();
    let mut impostor = place.start(&format!("impostor other {manner}-for-ever"));
    impostor.hear().expect_ok("an impostor");
    let mut client = place.client();
    client.ask("bind other").expect_ok("binding");
    // Each caller calls a second time without a deadline, so that nothing but the deadline ends the
    // first call.
    client.say(&format!("deadlines {CALLERS} {CALLERS} 200"));
    let numbers = client.hear().numbers("calls to an impostor");
    let [done, sent, unsent, longest] = numbers[..] else { panic!("{numbers:?}") };
    println!(
        "{manner}: {sent} calls were aborted after and {unsent} before they were sent, the \
        longest after {longest} ms"
    );
    assert_eq!(done + sent + unsent, 2 * CALLERS as u64, "{numbers:?}");
    impostor.kill();
    client.hear().expect_error("", &[]);
    let _honest = place.serve("trial");
    client.ask("bind trial").expect_ok("binding to an honest server afterwards");
    client.ask("honest 50").expect_ok("calls");
    [done, sent, unsent]
}

#[test]
fn a_call_with_a_deadline_leaves_a_server_whose_bell_blocks() {
    let [done, ..] = call_with_a_deadline("blocks");
    assert_eq!(done, 0, "it answers nothing");
}

#[test]
fn a_call_with_a_deadline_leaves_a_server_that_scribbles_or_lies() {
    call_with_a_deadline("scribble");
    call_with_a_deadline("lies");
}

/// Returns the processors on which the main thread of a process may run, as the kernel writes them.
fn processors_of(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.expect("a list of processors").trim().to_string()
}

/// A caller moves a server's sleeping thread to its own processor. If the server names the thread
/// of another process, the caller moves nothing.
#[test]
fn a_server_that_names_a_strangers_thread_has_nobody_moved() {
    if CpuSet::allowed().is_ok_and(|allowed| allowed.count() < 2) {
        println!("    skipped: two processors are needed");
        return;
    }
    let _company = in_company();
    let place = place();
    let bystander = place.client();
    let free = processors_of(bystander.pid());
    for (name, thread) in [("one", "own".to_string()), ("other", bystander.pid().to_string())] {
        let mut impostor = place.start(&format!("impostor {name} snatches-{thread}-for-ever"));
        impostor.hear().expect_ok("an impostor");
        let mut client = place.client();
        client.ask(&format!("bind {name}")).expect_ok("binding");
        client.say(&format!("deadlines {CALLERS} {CALLERS} 200"));
        client.hear().numbers("calls to an impostor");
        let moved = processors_of(impostor.pid()) != free;
        assert_eq!(moved, thread == "own", "the impostor's own thread, when it names {thread}");
        assert_eq!(
            processors_of(bystander.pid()),
            free,
            "the bystander's thread, when the impostor names {thread}"
        );
        impostor.kill();
        client.hear().expect_error("", &["the server has ended"]);
    }
}

#[test]
#[ignore = "long"]
fn long_servers_scribble_and_lie() {
    endure("scribble", 30_000);
    endure("lies", 30_000);
}
