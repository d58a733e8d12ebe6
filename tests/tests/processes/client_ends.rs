//! Clients that are killed with `kill -9`: the server goes on, and nothing of theirs is left (LRPC,
//! section 5.3).

use crate::{in_company, place};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::os::fd::OwnedFd;
use std::time::Duration;
use upcall_tests::dice::Dice;
use upcall_tests::party::Party;
use upcall_tests::place::eventually;
use upcall_tests::usage::{Usage, open_descriptors};

#[test]
fn the_server_goes_on_and_frees_everything() {
    clients_killed(25, 3000);
}

#[test]
#[ignore = "long"]
fn long_the_server_goes_on_and_frees_everything() {
    clients_killed(1000, 100_000);
}

fn clients_killed(count: u32, honest: u32) {
    let _company = in_company();
    let place = place();
    let mut dice = Dice::thrown("when clients are killed");
    let server = place.serve("trial spares=0");
    let mut observer = place.client();
    observer.ask("bind trial").expect_ok("binding");
    let mut bystander = place.client();
    bystander.ask("bind trial").expect_ok("binding");
    bystander.ask("honest 300").expect_ok("calls that leave their segments for the next ones");
    bystander.say(&format!("honest {honest}"));
    let mut before = None;
    for victim in 0..count {
        let mut client = place.client();
        client.ask("bind trial").expect_ok("binding");
        client.ask(&format!("open {}", dice.below(50))).expect_ok("opening");
        client
            .ask(["storm 2 4", "storm 0 8", "storm 4 0"][victim as usize % 3])
            .expect_ok("a storm");
        std::thread::sleep(Duration::from_micros(dice.below(5000)));
        client.kill();
        client.ended();
        if victim == 5 {
            std::thread::sleep(Duration::from_millis(200));
            before = Some(Usage::of(server.pid()));
        }
    }
    let words = bystander.hear_within(Duration::from_secs(200)).numbers("the bystander");
    println!("bystander: {} calls, the longest {:.2} ms", words[0], words[1] as f64 / 1e6);
    eventually("every object of a dead client is dropped once", || {
        let things = observer.ask("things").numbers("things");
        if things[0] == things[1] { Ok(()) } else { Err(format!("{things:?}")) }
    });
    println!("things made and dropped: {:?}", observer.ask("things").numbers("things"));
    let before = before.unwrap();
    eventually("the server has given everything back", || {
        let mut now = Usage::of(server.pid());
        // The bystander may have more segments than before: one for each large call that it has
        // under way.
        now.shared = now.shared.saturating_sub(6);
        if now.is_back_to(&before) {
            return Ok(());
        }
        Err(format!(
            "{now:?}, after six clients {before:?}; open: {}",
            open_descriptors(server.pid())
        ))
    });
    println!("after six clients {before:?}, after {count} {:?}", Usage::of(server.pid()));
}

/// For each kind of call, what a server has allocated does not grow with the number of clients that
/// were killed after making such calls.
#[test]
fn a_dead_client_leaves_no_block_of_memory() {
    let _company = in_company();
    const CLIENTS: u64 = 24;
    let ways: [(&str, &[&str]); 6] = [
        ("that has bound", &[]),
        ("with calls of each size", &["null", "sum 1000", "sum 200000", "make 200000"]),
        ("with objects", &["open 20", "open-brittle"]),
        ("whose calls fail", &["fail panic", "fail denied"]),
        ("with calls under way on kernel threads", &["storm 0 8"]),
        ("with calls under way on user-level threads", &["storm 2 4"]),
    ];
    for (who, words) in ways {
        let place = place();
        let mut server = place.serve("trial spares=0 wary");
        let dies = || {
            let mut client = place.client();
            client.ask("bind trial").expect_ok("binding");
            for line in words {
                client.ask(line);
            }
            client.kill();
            client.ended();
        };
        // The server keeps some memory of the first clients for later ones.
        (0..8).for_each(|_| dies());
        let mut held = |most: u64| {
            let mut last = Vec::new();
            eventually(&format!("the server has freed what a client {who} had"), || {
                last = server.ask("held").numbers("held");
                let [blocks, bytes] = last[..] else { panic!("{last:?}") };
                if blocks <= most {
                    Ok(())
                } else {
                    Err(format!("it holds {blocks} blocks of {bytes} bytes, more than {most}"))
                }
            });
            last
        };
        let mut before = held(u64::MAX);
        eventually("the server has freed what the first ones had", || {
            std::thread::sleep(Duration::from_millis(100));
            let earlier = std::mem::replace(&mut before, held(u64::MAX));
            if before == earlier { Ok(()) } else { Err(format!("{earlier:?} and then {before:?}")) }
        });
        (0..CLIENTS).for_each(|_| dies());
        let after = held(before[0] + CLIENTS / 2);
        println!(
            "    a client {who}: {} blocks and {} bytes before, {} and {} after",
            before[0], before[1], after[0], after[1]
        );
    }
}

/// Duplicates of all sockets of a process, or `None` where the kernel refuses that.
fn sockets_of(pid: u32) -> Option<Vec<OwnedFd>> {
    let pidfd =
        pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).expect("a pidfd of the client");
    let entries =
        std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the client's descriptors").flatten();
    let sockets = entries.filter(|entry| {
        std::fs::read_link(entry.path())
            .is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    });
    let numbers = sockets.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.map(|number| pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()).ok()).collect()
}

/// A client's child, or another process that it trusts, may keep the client's connection open. That
/// does not keep the client alive.
#[test]
fn a_dead_client_ends_though_another_process_has_its_socket() {
    let _company = in_company();
    let place = place();
    let server = place.serve("trial spares=0");
    let mut observer = place.client();
    observer.ask("bind trial").expect_ok("binding");
    // What the server uses at rest. The server keeps what it once needed, such as a descriptor that
    // wakes a sleeping client, so one client may add something. A leak grows with each client.
    let rest = || {
        let mut last = Usage::of(server.pid());
        eventually("the server rests", || {
            std::thread::sleep(Duration::from_millis(200));
            let before = std::mem::replace(&mut last, Usage::of(server.pid()));
            if last == before { Ok(()) } else { Err(format!("{last:?}, before {before:?}")) }
        });
        last
    };
    let mut before = rest();
    for round in 1..=5 {
        let mut client = place.client();
        client.ask("bind trial").expect_ok("binding");
        client.ask("open 3").expect_ok("opening");
        let Some(sockets) = sockets_of(client.pid()) else {
            println!("    skipped: pidfd_getfd is refused");
            return;
        };
        assert!(!sockets.is_empty(), "the client has no connection");
        client.kill();
        client.ended();
        eventually("the client's objects are dropped", || {
            let things = observer.ask("things").numbers("things");
            if things == [3 * round, 3 * round] {
                Ok(())
            } else {
                Err(format!("made and dropped: {things:?}"))
            }
        });
        let now = rest();
        if now.is_back_to(&before) {
            return;
        }
        before = now;
    }
    panic!("the server's use grows with each client: {before:?}");
}

#[test]
fn work_for_a_dead_client_runs_to_its_end() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("latch spares=0 latch");
    let mut observer = place.client();
    observer.ask("bind-latch latch").expect_ok("binding");
    let are_inside = |observer: &mut Party, count| {
        eventually("calls are in the server", || match observer.ask("inside").numbers("inside") {
            inside if inside == [count] => Ok(()),
            inside => Err(format!("{inside:?}")),
        });
    };
    for _ in 0..10 {
        let mut client = place.client();
        client.ask("bind-latch latch").expect_ok("binding");
        client.ask("hold 1").expect_ok("a call");
        are_inside(&mut observer, 1);
        client.kill();
        client.ended();
        are_inside(&mut observer, 1);
        observer.ask("let-out 1").expect_ok("letting it out");
        are_inside(&mut observer, 0);
    }
}

#[test]
fn an_object_that_panics_when_dropped_keeps_nothing_else() {
    let _company = in_company();
    let place = place();
    let server = place.serve("trial spares=0");
    let mut observer = place.client();
    observer.ask("bind trial").expect_ok("binding");
    let mut before = None;
    for round in 0..4 {
        let mut client = place.client();
        client.ask("bind trial").expect_ok("binding");
        client.ask("open 3").expect_ok("opening");
        client.ask("open-brittle").expect_ok("opening");
        client.ask("open 3").expect_ok("opening");
        client.kill();
        client.ended();
        let made = 7 * (round + 1);
        eventually("all objects are dropped", || {
            let things = observer.ask("things").numbers("things");
            if things == [made, made] { Ok(()) } else { Err(format!("{things:?}")) }
        });
        if round == 0 {
            std::thread::sleep(Duration::from_millis(100));
            before = Some(Usage::of(server.pid()));
        }
    }
    let before = before.unwrap();
    eventually("the server has given everything back", || {
        let now = Usage::of(server.pid());
        if now.is_back_to(&before) {
            Ok(())
        } else {
            Err(format!("{now:?}, before {before:?}; {}", open_descriptors(server.pid())))
        }
    });
}

#[test]
fn an_object_that_takes_long_to_drop_holds_nobody_up() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial spares=0");
    let mut observer = place.client();
    observer.ask("bind trial").expect_ok("binding");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    // The drop takes longer than this test, so a server that waited for it would be caught.
    client.ask("open-slow 600000").expect_ok("opening");
    client.kill();
    client.ended();
    // A bind needs the clerk, which revokes the dead client's binding first.
    for _ in 0..3 {
        let mut another = place.client();
        another.ask("bind trial").expect_ok("binding");
        another.ask("null").expect_ok("a call");
    }
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    client.ask("open 3").expect_ok("opening");
    client.kill();
    client.ended();
    eventually("the objects of another client are dropped", || {
        let things = observer.ask("things").numbers("things");
        if things == [4, 3] { Ok(()) } else { Err(format!("made and dropped: {things:?}")) }
    });
}
