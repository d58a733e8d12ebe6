//! Objects used by several processes, which end, stop or are killed at each labelled point. No
//! other process is harmed, no operation is lost or doubled, no process waits for a dead one, and
//! nothing is left behind (Psyche).

use crate::faults::state;
use crate::{in_company, place};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use upcall_os::fault::{Act, POINTS_ARE_THERE, Point};
use upcall_os::socket::{Connection, Received};
use upcall_tests::party::{PATIENCE, Party, Said};
use upcall_tests::place::{Place, eventually};
use upcall_tests::usage::{Usage, come_to_rest};

/// Number of operations of each honest party.
const EACH: u64 = 2000;

fn made(place: &Place, options: &str) -> Party {
    let mut home = place.start(&format!("share object make {options}"));
    home.hear().expect_ok("making it");
    home
}

fn found(place: &Place) -> Party {
    let mut other = place.start("share object find");
    other.hear().expect_ok("finding it");
    other
}

fn words(party: &mut Party) -> [u64; 3] {
    party.ask("read").numbers("the words").try_into().expect("three of them")
}

fn end(place: &Place, parties: impl IntoIterator<Item = Party>) {
    for mut party in parties {
        party.say("leave");
        party.ended();
    }
    place.expect_empty();
}

fn stops(party: &Party) {
    eventually("it stops", || {
        if state(party.pid()) == Some('T') { Ok(()) } else { Err("it runs".into()) }
    });
}

/// Returns `Ok` if operations fail by now.
fn fails(party: &mut Party) -> Result<(), String> {
    match party.ask("read") {
        Said::Error { .. } => Ok(()),
        Said::Ok(words) => Err(format!("{words:?}")),
    }
}

#[test]
fn all_count_and_nothing_is_left() {
    let _company = in_company();
    let place = place();
    let mut home = made(&place, "");
    let mut others: Vec<Party> = (0..5).map(|_| found(&place)).collect();
    for party in others.iter_mut().chain([&mut home]) {
        party.say(&format!("count {EACH}"));
    }
    for party in others.iter_mut().chain([&mut home]) {
        party.hear().expect_ok("counting");
    }
    assert_eq!(words(&mut others[0]), [6 * EACH, 6 * EACH, 0]);
    end(&place, others.into_iter().chain([home]));
}

/// A guest that connects and sends nothing takes descriptors of the home before the policy is
/// asked. This process is such a guest.
#[test]
fn a_process_that_connects_again_and_again_leaves_room_for_others() {
    let _company = in_company();
    let place = place();
    // Of 256 descriptors guests may have 192, and one process leaves half of these free.
    let mut home = place.start_by(&["prlimit".into(), "--nofile=256".into()], "share object make");
    home.hear().expect_ok("making it");
    let socket = place
        .entries()
        .into_iter()
        .find(|name| name.starts_with("home."))
        .expect("the home's socket");
    let socket = place.names().join(socket);
    let before = Usage::of(home.pid());
    // A connection takes three descriptors.
    let connect =
        |_| Connection::connect_until(&socket, Instant::now() + PATIENCE).expect("a connection");
    let connections: Vec<Connection> = (0..60).map(connect).collect();
    let refused =
        |connection: &Connection| match connection.receive_within(Duration::ZERO, PATIENCE) {
            Ok(Received::Message(message)) => String::from_utf8_lossy(&message.bytes).into_owned(),
            other => panic!("the last of 60 connections was not refused: {other:?}"),
        };
    let why = refused(connections.last().expect("60 of them"));
    assert!(why.contains("would hold") && why.contains("descriptors"), "{why}");
    // The last connection is closed a moment after the refusal was sent.
    eventually("guests hold no more than their share", || {
        let held = Usage::of(home.pid()).descriptors - before.descriptors;
        if held <= 96 { Ok(()) } else { Err(format!("{held} descriptors")) }
    });
    // Another process is admitted in the meantime, and the home gets all descriptors back.
    let mut other = found(&place);
    other.ask("count 1").expect_ok("counting beside it");
    other.say("leave");
    other.ended();
    drop(connections);
    eventually("the home has everything back", || {
        let now = Usage::of(home.pid());
        if now.descriptors <= before.descriptors {
            Ok(())
        } else {
            Err(format!("{now:?}, before {before:?}"))
        }
    });
    let again = connect(0);
    let silent = again.receive_within(Duration::ZERO, Duration::from_millis(50));
    assert!(matches!(silent, Ok(Received::Nothing)), "{silent:?}");
    assert_eq!(words(&mut home)[0], 1);
    end(&place, [home]);
}

/// The waiting processes go on when the home has repaired the object, and the home's program itself
/// need not do anything for that.
#[test]
fn who_is_killed_in_an_operation_holds_nobody_up() {
    let _company = in_company();
    let place = place();
    let (mut home, mut victim, mut other) = (made(&place, ""), found(&place), found(&place));
    for turn in 1..=20 {
        victim.say("die");
        let begun = Instant::now();
        other.ask("count 1").expect_ok("counting beside a process that dies");
        victim.ended();
        assert_eq!(words(&mut home)[2], turn, "{:?}", begun.elapsed());
        assert_eq!(words(&mut other)[..2], [2 * turn; 2]);
        victim = found(&place);
    }
    end(&place, [home, victim, other]);
}

/// Returns the peak memory of a process, in bytes.
fn peak(party: &Party) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", party.pid())).expect("it lives");
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the kernel says so");
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
}

/// A guest makes an element of a list its own successor, and is killed. The list has room for 16
/// GiB.
#[test]
fn a_guest_that_leaves_a_circle_costs_its_home_next_to_nothing() {
    let _company = in_company();
    let place = place();
    let mut home = place.start("share object list");
    let shape = home.hear().expect_ok("making it").remove(0);
    let before = peak(&home);
    let mut guest = place.start(&format!("share object scribble {shape}"));
    guest.ended();
    home.ask("length").expect_error("Poisoned", &["has to be created again"]);
    let grown = peak(&home) - before;
    assert!(grown < 8 << 20, "{grown} bytes");
    end(&place, [home]);
}

#[test]
fn what_cannot_be_repaired_is_told() {
    let _company = in_company();
    let place = place();
    let (mut home, mut victim, mut other) = (made(&place, "poison"), found(&place), found(&place));
    victim.say("die");
    victim.ended();
    eventually("it is poisoned", || fails(&mut other));
    for party in [&mut home, &mut other] {
        party.ask("count 1").expect_error("Poisoned", &["has to be created again"]);
    }
    place.start("share object find").hear().expect_error("Refused", &["has to be created again"]);
    end(&place, [home, other]);
}

#[test]
fn who_holds_it_while_stopped_is_named_and_nobody_spins() {
    let _company = in_company();
    let place = place();
    let (mut home, mut holder, mut other) = (made(&place, ""), found(&place), found(&place));
    other.ask("count 1").expect_ok("counting");
    let enough = place.path().join("enough");
    holder.ask(&format!("hold {}", enough.display())).expect_ok("the begin of an operation");
    holder.stop();
    other.ask("patience 300").expect_ok("patience");
    let pid = holder.pid().to_string();
    other.ask("count 1").expect_error("Busy", &["300ms", &pid, "stopped"]);
    other.ask("patience none").expect_ok("patience");
    other.say("count 1");
    home.say("count 1");
    come_to_rest(
        "processes that wait",
        &[home.pid(), other.pid()],
        Duration::from_secs(1),
        Duration::from_millis(50),
    );
    std::fs::write(&enough, []).unwrap();
    holder.signal(Signal::CONT);
    for party in [&mut holder, &mut other, &mut home] {
        party.hear().expect_ok("going on");
    }
    assert_eq!(words(&mut other), [3, 3, 0]);
    end(&place, [home, holder, other]);
}

#[test]
fn when_the_home_is_killed_others_are_told_and_another_one_takes_its_place() {
    let _company = in_company();
    let place = place();
    let (mut home, mut other, mut waits) = (made(&place, ""), found(&place), found(&place));
    other.ask("count 5").expect_ok("counting");
    home.ask("hold /nowhere").expect_ok("the begin of an operation");
    waits.say("count 1");
    std::thread::sleep(Duration::from_millis(50));
    home.kill();
    home.ended();
    waits.hear().expect_error("Ended", &["find it again"]);
    eventually("the other one knows", || fails(&mut other));
    let mut home = made(&place, "");
    let mut again = found(&place);
    again.ask("count 1").expect_ok("counting again");
    assert_eq!(words(&mut home), [1, 1, 0]);
    end(&place, [home, other, waits, again]);
}

/// Processes that may only read see whole states and can do nothing else, even while others write
/// or end in the middle of a write.
#[test]
fn who_may_only_read_sees_whole_states_and_writes_nothing() {
    let _company = in_company();
    let place = place();
    let mut home = made(&place, "");
    let mut reader = place.start_with("share object find", "ONLY_READS", "1");
    reader.hear().expect_ok("finding it");
    let (mut writer, mut victim) = (found(&place), found(&place));
    assert_eq!(reader.ask("mapped").expect_ok("its mapping"), ["r--s"]);
    assert_eq!(writer.ask("mapped").expect_ok("its mapping"), ["rw-s"]);
    reader.ask("count 1").expect_error("NotGranted", &["less than that", "`read`"]);
    reader.say("looks 300000");
    writer.say("count 100000");
    for turn in 1..=10 {
        victim.say("die");
        victim.ended();
        eventually("it is repaired", || match home.ask("look").numbers("the words")[..] {
            [.., repaired] if repaired == turn => Ok(()),
            ref other => Err(format!("{other:?}")),
        });
        victim = found(&place);
    }
    writer.hear().expect_ok("counting");
    reader.hear().expect_ok("looking");
    assert_eq!(reader.ask("look").numbers("the words"), [100_010, 100_010, 10]);
    end(&place, [home, reader, writer, victim]);
}

#[test]
fn what_only_its_home_writes_is_sealed() {
    let _company = in_company();
    let place = place();
    let (mut home, mut other) = (made(&place, "sealed"), found(&place));
    assert_eq!(other.ask("mapped").expect_ok("its mapping"), ["r--s"]);
    other.ask("count 1").expect_error("NotGranted", &["less than that"]);
    home.ask("count 7").expect_ok("counting at home");
    assert_eq!(other.ask("look").numbers("the words"), [7, 7, 0]);
    home.kill();
    home.ended();
    eventually("the other one knows", || match other.ask("look") {
        Said::Error { .. } => Ok(()),
        Said::Ok(words) => Err(format!("{words:?}")),
    });
    end(&place, [other]);
}

/// Each invocation is run once, or its caller gets the error that the outcome is unknown. No other
/// process is harmed.
#[test]
fn one_that_ends_at_any_point_of_an_invocation_harms_no_other() {
    let _company = in_company();
    if !POINTS_ARE_THERE {
        return println!("    skipped: points are in builds with debug assertions only");
    }
    for &point in Point::ALL.iter().filter(|point| point.name().starts_with("invocation")) {
        for &act in Act::ALL {
            let fault = format!("{point}:{}", act.name());
            println!("    {fault}");
            let place = place();
            let at_home = point != Point::InvocationSent;
            let start = |what: &str, faulty: bool| {
                let party = format!("share object {what}");
                let mut party = if faulty {
                    place.start_with(&party, "UPCALL_FAULT", &fault)
                } else {
                    place.start(&party)
                };
                party.hear().expect_ok(what);
                party
            };
            let mut home = start("serve", at_home);
            let (mut asks, mut other) = (start("ask", !at_home), start("ask", false));
            asks.say("add 1");
            let faulty = if at_home { &home } else { &asks };
            match act {
                Act::Stop => {
                    stops(faulty);
                    faulty.signal(Signal::CONT);
                    asks.hear().expect_ok("an invocation that was stopped in between");
                    assert_eq!(other.ask("add 1").numbers("the number"), [2]);
                }
                _ if at_home => {
                    let kind = asks.hear().expect_error("Ended", &["it may have run"]);
                    println!("    {kind}");
                }
                _ => {
                    if act != Act::Exec {
                        asks.ended();
                    }
                    // The invocation may still be run, or not at all.
                    let now = [(); 2].map(|()| other.ask("add 1").numbers("the number")[0]);
                    assert!(now[0] < now[1] && (2..=3).contains(&now[1]), "{now:?}");
                }
            }
            // A panic ends only the thread that serves.
            if at_home && act == Act::Panic {
                other.ask("add 1").expect_error("NotServed", &["has to serve it"]);
                assert!(home.ask("number").numbers("the number")[0] <= 1);
            }
            for party in [&mut asks, &mut home] {
                party.kill();
                party.ended();
            }
            end(&place, [other]);
        }
    }
}

/// Each point with each act, for the points of the home and of others.
#[test]
fn one_that_ends_at_any_point_harms_no_other() {
    let _company = in_company();
    if !POINTS_ARE_THERE {
        return println!("    skipped: points are in builds with debug assertions only");
    }
    for &point in Point::ALL.iter().filter(|point| point.name().starts_with("object")) {
        for &act in Act::ALL {
            println!("    {point}:{}", act.name());
            let fault = format!("{point}:{}", act.name());
            match point {
                Point::ObjectMade | Point::ObjectNamed | Point::ObjectRepairs => {
                    a_faulty_home(point, act, &fault)
                }
                _ => a_faulty_user(point, act, &fault),
            }
        }
    }
}

fn a_faulty_user(point: Point, act: Act, fault: &str) {
    let place = place();
    let (mut home, mut other) = (made(&place, ""), found(&place));
    let mut faulty = place.start_with("share object find", "UPCALL_FAULT", fault);
    let opens = matches!(point, Point::ObjectAsked | Point::ObjectOpened);
    if !opens {
        faulty.hear().expect_ok("finding it");
        faulty.say("count 1");
    }
    match act {
        Act::Stop => stops(&faulty),
        Act::Exec => {}
        _ => drop(faulty.ended()),
    }
    if act == Act::Stop && !opens {
        // The faulty process has the lock.
        other.say(&format!("count {EACH}"));
        faulty.signal(Signal::CONT);
        other.hear().expect_ok("counting after a stopped process");
        faulty.hear().expect_ok("its own operation");
    } else {
        other.ask(&format!("count {EACH}")).expect_ok("counting beside a process that has ended");
        home.ask(&format!("count {EACH}")).expect_ok("counting at home");
    }
    let all = if act == Act::Stop && !opens { EACH } else { 2 * EACH };
    let own = match point {
        Point::ObjectDone => 1,
        Point::ObjectLocked if act == Act::Stop => 1,
        _ => 0,
    };
    // A process that becomes another program may have had its turn after the others.
    eventually(fault, || match words(&mut home) {
        [first, second, _] if first == second && first == all + own => Ok(()),
        other => Err(format!("{other:?} in place of {}", all + own)),
    });
    faulty.kill();
    faulty.ended();
    end(&place, [home, other]);
}

fn a_faulty_home(point: Point, act: Act, fault: &str) {
    let place = place();
    let mut faulty = place.start_with("share object make", "UPCALL_FAULT", fault);
    if point == Point::ObjectRepairs {
        faulty.hear().expect_ok("making it");
        let (mut victim, mut other) = (found(&place), found(&place));
        victim.say("die");
        victim.ended();
        other.say("count 1");
        match act {
            Act::Stop => {
                stops(&faulty);
                faulty.signal(Signal::CONT);
                other.hear().expect_ok("counting after all");
            }
            // If the home panics, there is no repair.
            Act::Panic => drop(other.hear().expect_error("Poisoned", &[])),
            _ => drop(other.hear().expect_error("Ended", &[])),
        }
        faulty.kill();
        faulty.ended();
        return end(&place, [other]);
    }
    if act == Act::Stop {
        stops(&faulty);
        faulty.signal(Signal::CONT);
        faulty.hear().expect_ok("making it after all");
    } else if act != Act::Exec {
        faulty.ended();
    }
    faulty.kill();
    faulty.ended();
    let (home, mut other) = (made(&place, ""), found(&place));
    other.ask(&format!("count {EACH}")).expect_ok("counting in the next one");
    end(&place, [home, other]);
}
