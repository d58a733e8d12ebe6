//! A process ends, stops or panics at each labelled point of the call path (`upcall_os::fault`), on
//! either side. Its peers get an error in bounded time, all other processes go on, and nothing is
//! left behind.

use crate::{in_company, place};
use rustix::process::Signal;
use std::time::Duration;
use upcall_os::fault::{Act, POINTS_ARE_THERE, Point};
use upcall_tests::party::{Party, Said};
use upcall_tests::place::{Place, eventually};
use upcall_tests::usage::{Usage, open_descriptors};

/// What the error that a peer of the dead process gets may start with or contain.
const TOLD: [&str; 6] = [
    // The server's process has ended, or it has hung up on this client.
    "Failed",
    "has ended",
    // A clerk that panics hangs up on the client that binds, and the server goes on.
    "closed the connection before it answered",
    // The server had not yet entered its name.
    "no process exports",
    // A fault in the procedure itself, or in what runs it.
    "Panicked",
    // A large value found no memory because the server had hung up.
    "NoMemory",
];

fn is_server_s(point: Point) -> bool {
    point.name().starts_with("server")
}

fn faulty(place: &Place, arguments: &str, point: Point, act: Act) -> Party {
    place.start_with(arguments, "UPCALL_FAULT", &format!("{point}:{}", act.name()))
}

/// Returns a process's state, as the kernel's letter for it.
pub(crate) fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
}

/// Returns `Ok` if the process has done the act.
fn has_happened(party: &mut Party, act: Act) -> Result<(), String> {
    let pid = party.pid();
    let happened = match act {
        Act::Stop => state(pid) == Some('T'),
        Act::Exec => std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|comm| comm.trim() == "sleep"),
        Act::Kill | Act::Exit => !party.lives(),
        // The process ends, or only the thread that panicked.
        Act::Panic => return Ok(()),
    };
    if happened { Ok(()) } else { Err(format!("state {:?}", state(pid))) }
}

/// Runs `each` for each point with each act. Clients that call from their main thread alternate
/// with clients that call from a user-level thread, so that every point sees both.
fn walk(points: impl Fn(Point) -> bool, each: impl Fn(Point, Act, &str)) {
    if !POINTS_ARE_THERE {
        return println!("    skipped: points are in builds with debug assertions only");
    }
    let calls = |point: &&Point| {
        let others = ["member", "late-member", "object", "invocation"];
        !others.iter().any(|other| point.name().starts_with(other))
    };
    for &point in Point::ALL.iter().filter(calls).filter(|&&point| points(point)) {
        for (turn, &act) in Act::ALL.iter().enumerate() {
            // Between a reply and its wake are stores, a fence and a system call, none of which can
            // panic.
            if (point, act) == (Point::ServerReplied, Act::Panic) {
                continue;
            }
            let life = ["scenario trial", "scenario trial user-level"][(turn + point as usize) % 2];
            println!("    {point}:{} in {life}", act.name());
            each(point, act, life);
        }
    }
}

/// A client ends at any point. Its server goes on, serves others in the meantime, and gets
/// everything back.
#[test]
fn a_client_that_ends_at_any_point_harms_nobody() {
    let _company = in_company();
    let place = place();
    let server = place.serve("trial spares=0");
    let mut bystander = place.client();
    bystander.ask("bind trial").expect_ok("binding");
    bystander.ask("honest 100").expect_ok("calls that leave their segments for the next ones");
    for life in ["scenario trial", "scenario trial user-level"] {
        place.client().ask(life).expect_ok("a life without a fault");
    }
    std::thread::sleep(Duration::from_millis(100));
    let before = Usage::of(server.pid());
    walk(
        |point| !is_server_s(point),
        |point, act, life| {
            let mut victim = faulty(&place, "client", point, act);
            victim.say(life);
            eventually("it happens", || has_happened(&mut victim, act));
            let mut other = place.client();
            other.ask("bind trial").expect_ok("binding beside it");
            assert_eq!(other.ask("add 2 3").numbers("a call beside it"), [5]);
            match act {
                Act::Stop => {
                    victim.signal(Signal::CONT);
                    victim.hear().expect_ok("a life that was stopped in between");
                }
                Act::Panic => drop(victim.try_hear()),
                _ => {}
            }
            victim.kill();
        },
    );
    let words = bystander.ask("honest 100").numbers("the bystander");
    assert!(words[0] > 0);
    eventually("every object is dropped once", || {
        let things = bystander.ask("things").numbers("things");
        if things[0] == things[1] { Ok(()) } else { Err(format!("{things:?}")) }
    });
    eventually("the server has everything back", || {
        let now = Usage::of(server.pid());
        // The bystander may have one more segment for each large call that it has under way.
        let now = Usage { shared: now.shared.saturating_sub(6), ..now };
        if now.is_back_to(&before) {
            Ok(())
        } else {
            Err(format!("{now:?}, before {before:?}; {}", open_descriptors(server.pid())))
        }
    });
}

/// A server ends at any point. Its client gets a fitting error in bounded time, and a new server
/// takes over the name.
#[test]
fn a_server_that_ends_at_any_point_leaves_nobody_waiting() {
    let _company = in_company();
    walk(is_server_s, |point, act, life| {
        let place = place();
        let (mut client, mut other) = (place.client(), place.client());
        let starts = matches!(point, Point::ServerEntersName | Point::ServerEntered);
        let mut victim = if starts {
            faulty(&place, "serve trial", point, act)
        } else {
            let mut victim = place.serve("trial spares=0");
            other.ask("bind trial").expect_ok("binding");
            other.ask("null").expect_ok("a call");
            other.ask("deadline 50").expect_ok("a deadline");
            victim.ask(&format!("fault {point}:{}", act.name())).expect_ok("being told to");
            victim
        };
        if point == Point::ServerDrops {
            client.ask("bind trial").expect_ok("binding");
            client.ask("open 1").expect_ok("an object");
            client.kill();
        } else {
            client.say(life);
        }
        if act == Act::Stop {
            eventually("it happens", || has_happened(&mut victim, act));
            if !starts {
                // A caller with a deadline does not wait for the stopped server.
                other.ask("null").expect_error("Aborted", &["deadline"]);
            }
            victim.signal(Signal::CONT);
        }
        match client.try_hear() {
            // The server was only stopped, or the panic of its clerk or of one thread did not
            // affect this client.
            Some(Said::Ok(_)) => assert!(act == Act::Stop || act == Act::Panic, "no error"),
            Some(Said::Error { kind, text }) => {
                println!("        {kind}: {text}");
                assert!(
                    TOLD.iter().any(|told| kind.starts_with(told) || text.contains(told)),
                    "{kind}: {text}"
                );
                assert!(act != Act::Stop || starts, "{kind}: {text}, though it was only stopped");
            }
            None => assert_eq!(point, Point::ServerDrops, "the client has ended"),
        }
        if act != Act::Stop {
            eventually("it happens", || has_happened(&mut victim, act));
        }
        victim.kill();
        victim.ended();
        // A new server takes over the name, and nothing of the old server is in its way.
        let mut next = place.client();
        drop(next.ask("bind trial"));
        let _server = place.serve("trial spares=0");
        next.ask(life).expect_ok("a life with the new server");
        assert_eq!(place.sockets().len(), 1, "{:?}", place.entries());
    });
}
