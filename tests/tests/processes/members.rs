//! Members of groups as processes. They are ended, stopped or killed at each labelled point, and do
//! not poll for a long time. No other member is harmed, what was sent arrives once and in order,
//! and nothing is left behind (UDM).

use crate::faults::state;
use crate::{alone, in_company, place};
use rustix::process::Signal;
use std::fs;
use std::time::Duration;
use upcall_os::fault::{Act, POINTS_ARE_THERE, Point};
use upcall_tests::party::{Party, Said};
use upcall_tests::place::{Place, entered, eventually};
use upcall_tests::usage::{come_to_rest, memory};

/// Number of messages that a member sends to each other one: more than a queue holds without
/// segments.
const LIFE: u64 = 3000;

/// Maximum time for a step of members on a busy machine.
const GUARD: Duration = Duration::from_secs(60);

fn member(place: &Place, size: usize, rank: usize, options: &str) -> Party {
    place.start(&format!("member group {size} {rank} {options}"))
}

fn group(place: &Place, size: usize) -> Vec<Party> {
    group_with(place, size, "")
}

fn group_with(place: &Place, size: usize, options: &str) -> Vec<Party> {
    let mut members: Vec<Party> =
        (0..size).map(|rank| member(place, size, rank, options)).collect();
    for (rank, member) in members.iter_mut().enumerate() {
        assert_eq!(member.hear().numbers("joining"), [rank as u64]);
    }
    members
}

/// Fills each member's queue to each other one. Returns the number of messages in each queue, by
/// sender and receiver.
fn fill(members: &mut [Party]) -> Vec<Vec<u64>> {
    let size = members.len();
    let mut filled = |from: usize, to: usize| match from == to {
        true => 0,
        false => members[from].ask(&format!("fill {to}")).numbers("filling a queue")[0],
    };
    (0..size).map(|from| (0..size).map(|to| filled(from, to)).collect()).collect()
}

fn end(place: &Place, members: Vec<Party>) {
    for mut member in members {
        member.say("leave");
        member.ended();
    }
    place.expect_empty();
}

#[test]
fn all_tell_all_and_nothing_is_left() {
    let _company = in_company();
    let place = place();
    let mut members = group(&place, 4);
    for member in &mut members {
        member.say(&format!("life {LIFE}"));
    }
    for (rank, member) in members.iter_mut().enumerate() {
        let taken = member.hear().numbers("a life");
        assert!(
            taken
                .iter()
                .enumerate()
                .all(|(from, &taken)| taken == if from == rank { 0 } else { LIFE }),
            "{taken:?}"
        );
    }
    end(&place, members);
    // The name is free for another group.
    end(&place, group(&place, 2));
}

/// A stopped member loses nothing and holds up no other member, and the memory for its messages is
/// freed.
#[test]
fn a_stopped_member_is_buffered_for() {
    let _company = in_company();
    let place = place();
    let mut members = group(&place, 3);
    members[0].ask("send 1 10").expect_ok("sending to a running member");
    members[1].ask("take 0 10").expect_ok("taking");
    let before = memory(members[0].pid());
    members[1].stop();
    members[0].ask("send 1 400000").expect_ok("sending to a stopped member");
    let [buffered] = members[0].ask("buffered 1").numbers("the buffer")[..] else {
        panic!("one number")
    };
    assert!(buffered >= 15 << 20, "{buffered}");
    // The others go on in the meantime.
    members[2].say("pong 0 2000");
    members[0].ask("ping 2 2000").expect_ok("messages between others");
    members[2].hear().expect_ok("messages between others");
    members[1].signal(Signal::CONT);
    assert_eq!(members[1].ask("take 0 400010").numbers("taking all"), [400_010]);
    members[0].ask("send 1 1").expect_ok("sending to a member that has taken all");
    assert_eq!(members[0].ask("buffered 1").numbers("the buffer"), [0]);
    members[1].ask("take 0 400011").expect_ok("taking the last one");
    eventually("the memory goes back", || {
        let now = memory(members[0].pid());
        if now.0 < before.0 + (4 << 20) { Ok(()) } else { Err(format!("{before:?}, {now:?}")) }
    });
    end(&place, members);
}

#[test]
fn what_a_killed_member_has_sent_arrives() {
    let _company = in_company();
    let place = place();
    let mut members = group(&place, 3);
    // More than a queue holds, to a member that does not poll.
    members[0].ask("send 1 50000").expect_ok("sending");
    members[0].ask("send 2 1").expect_ok("sending");
    members[0].kill();
    members[0].ended();
    assert_eq!(members[1].ask("end-of 0").numbers("all that it had sent"), [50_000]);
    assert_eq!(members[2].ask("end-of 0").numbers("all that it had sent"), [1]);
    // The survivors learn of the end.
    members[1].ask("send 0 1").expect_error("Ended", &["member 0 has ended"]);
    members.remove(0);
    end(&place, members);
}

#[test]
fn a_group_that_is_not_complete_says_so() {
    let _company = in_company();
    let place = place();
    let (mut first, mut second) =
        (member(&place, 3, 0, "within=300"), member(&place, 3, 2, "within=60000"));
    first.hear().expect_error("Incomplete", &["did not form within 300ms", "of 3"]);
    // The second member goes on by itself, and leads if the first one did.
    let mut again = member(&place, 3, 0, "within=60000");
    let mut third = member(&place, 3, 1, "within=60000");
    match second.hear() {
        Said::Ok(_) => again.hear().expect_ok("joining"),
        // The second member has learned that the group is incomplete.
        Said::Error { text, .. } => {
            assert!(text.contains("of 3 came in time"), "{text}");
            second = member(&place, 3, 2, "within=60000");
            second.hear().expect_ok("joining");
            again.hear().expect_ok("joining")
        }
    };
    third.hear().expect_ok("joining");
    end(&place, vec![again, third, second]);
}

/// Floods, barriers and reductions of four members, which are all stopped again and again, once for
/// longer than a second.
#[test]
fn a_group_that_is_stopped_as_a_whole_goes_on() {
    let _company = in_company();
    for options in ["timeout=50 limit=8388608", "timeout=never"] {
        let place = place();
        let mut members = group_with(&place, 4, options);
        let file = place.path().join("enough");
        members.iter_mut().for_each(|member| member.say(&format!("work {}", file.display())));
        for pause in [1, 20, 3, 1200, 1, 20, 3] {
            std::thread::sleep(Duration::from_millis(20));
            members.iter().for_each(Party::stop);
            members.iter().for_each(stops);
            std::thread::sleep(Duration::from_millis(pause));
            members.iter().for_each(|member| member.signal(Signal::CONT));
        }
        std::fs::write(&file, []).unwrap();
        let rounds: Vec<_> = members
            .iter_mut()
            .map(|member| member.hear_within(GUARD).numbers("the work")[0])
            .collect();
        assert!(rounds[0] > 0 && rounds.iter().all(|&round| round == rounds[0]), "{rounds:?}");
        end(&place, members);
    }
}

/// Every queue is full, and no member takes anything before it comes to the barrier.
#[test]
fn a_barrier_behind_full_queues_is_passed() {
    let _company = in_company();
    let place = place();
    let mut members = group_with(&place, 3, "timeout=never");
    let sent = fill(&mut members);
    for turn in 0..3 {
        members.iter_mut().for_each(|member| member.say("barrier"));
        for member in &mut members {
            member.hear_within(GUARD).expect_ok("the barrier");
        }
        members.iter_mut().for_each(|member| member.say(&format!("reduce {turn}")));
        for member in &mut members {
            assert_eq!(member.hear_within(GUARD).numbers("the sum"), [3 * turn]);
        }
    }
    for (rank, member) in members.iter_mut().enumerate() {
        for from in (0..3).filter(|&from| from != rank) {
            let all = sent[from][rank];
            assert_eq!(member.ask(&format!("take {from} {all}")).numbers("what was sent"), [all]);
        }
    }
    end(&place, members);
}

/// The killed member has joined no step, and all queues, its own too, are full.
#[test]
fn a_death_ends_the_barrier_or_reduction_of_every_survivor() {
    let _company = in_company();
    for step in ["barrier", "reduce 7"] {
        for dies in [0, 2, 3] {
            let place = place();
            let mut members = group_with(&place, 4, "timeout=never");
            fill(&mut members);
            members[dies].stop();
            stops(&members[dies]);
            let mut dead = members.remove(dies);
            members.iter_mut().for_each(|member| member.say(step));
            dead.kill();
            dead.ended();
            for _ in 0..2 {
                for member in &mut members {
                    member
                        .hear_within(GUARD)
                        .expect_error("Lost", &["has ended or left the group"]);
                }
                // Another try ends in the same way.
                members.iter_mut().for_each(|member| member.say(step));
            }
            for member in &mut members {
                member.hear_within(GUARD).expect_error("Lost", &["has ended or left the group"]);
            }
            end(&place, members);
        }
    }
}

/// The operations of the command `collective`.
const COLLECTIVES: [&str; 6] =
    ["broadcast", "gather", "all_gather", "reduce_to", "all_reduce", "all_to_all"];

/// Members on two hosts, of which one has a fault, all in the same operation.
fn in_an_operation(place: &Place, faulty: usize, fault: &str, operation: &str) -> Vec<Party> {
    let options = "timeout=100 hosts=0101";
    let start = |rank| match rank == faulty {
        true => {
            place.start_with(&format!("member group 4 {rank} {options}"), "UPCALL_FAULT", fault)
        }
        false => member(place, 4, rank, options),
    };
    let mut members: Vec<_> = (0..4).map(start).collect();
    for (rank, member) in members.iter_mut().enumerate() {
        assert_eq!(member.hear().numbers("joining"), [rank as u64]);
    }
    members.iter_mut().for_each(|member| member.say(&format!("collective {operation}")));
    members
}

/// The member is killed before and after it sends or takes each of its first parts.
#[test]
fn a_death_ends_the_collective_operation_of_every_survivor() {
    let _company = in_company();
    if !POINTS_ARE_THERE {
        return println!("    skipped: points are in builds with debug assertions only");
    }
    let points = [Point::MemberDescribed, Point::MemberLaunched, Point::MemberTook];
    for (operation, dies) in COLLECTIVES.into_iter().flat_map(|name| [(name, 0), (name, 3)]) {
        for (point, times) in points.into_iter().flat_map(|point| [(point, 1), (point, 3)]) {
            let place = place();
            let fault = format!("{}:{}:{times}", point.name(), Act::Kill.name());
            let mut members = in_an_operation(&place, dies, &fault, operation);
            let mut dead = members.remove(dies);
            let is_lost = |said: &Said| {
                matches!(said, Said::Error { kind, .. }
                    if kind.starts_with("Lost") || kind.starts_with("GivenUp"))
            };
            for member in &mut members {
                let said = member.hear_within(GUARD);
                assert!(is_lost(&said) || matches!(said, Said::Ok(_)), "{operation} {said:?}");
            }
            // It may have ended the operation before.
            dead.kill();
            dead.ended();
            members.iter_mut().for_each(|member| member.say("collective all_to_all"));
            for member in &mut members {
                let said = member.hear_within(GUARD);
                assert!(is_lost(&said), "{operation} after {fault} of {dies}: {said:?}");
            }
            end(&place, members);
        }
    }
}

#[test]
fn a_stopped_member_only_delays_a_collective_operation() {
    let _company = in_company();
    if !POINTS_ARE_THERE {
        return println!("    skipped: points are in builds with debug assertions only");
    }
    let fault = format!("{}:{}", Point::MemberDescribed.name(), Act::Stop.name());
    for (operation, stopped) in COLLECTIVES.into_iter().flat_map(|name| [(name, 0), (name, 3)]) {
        let place = place();
        let mut members = in_an_operation(&place, stopped, &fault, operation);
        stops(&members[stopped]);
        std::thread::sleep(Duration::from_millis(50));
        members[stopped].signal(Signal::CONT);
        for member in &mut members {
            member.hear_within(GUARD).expect_ok(operation);
        }
        end(&place, members);
    }
}

/// When the members go on, the time for which they wait for others is over by the clock.
#[test]
fn members_that_are_stopped_before_their_group_is_complete_go_on() {
    let _company = in_company();
    let place = place();
    let mut first: Vec<_> = (0..2).map(|rank| member(&place, 3, rank, "within=1000")).collect();
    let leads =
        || entered(&place.names(), "group.group").map(drop).ok_or("no member does".to_string());
    eventually("a member leads", leads);
    first.iter().for_each(Party::stop);
    first.iter().for_each(stops);
    let last = member(&place, 3, 2, "within=60000");
    std::thread::sleep(Duration::from_millis(1100));
    first.iter().for_each(|member| member.signal(Signal::CONT));
    first.push(last);
    for (rank, member) in first.iter_mut().enumerate() {
        assert_eq!(member.hear_within(GUARD).numbers("joining"), [rank as u64]);
    }
    end(&place, first);
}

/// The leader ends after the follower has connected to it.
#[test]
fn a_leader_that_ends_before_it_is_asked_is_one_of_no_group() {
    let _company = in_company();
    if !POINTS_ARE_THERE {
        return println!("    skipped: points are in builds with debug assertions only");
    }
    let place = place();
    let mut leader = member(&place, 2, 1, "within=60000");
    let leads =
        || entered(&place.names(), "group.group").map(drop).ok_or("no member does".to_string());
    eventually("a member leads", leads);
    let fault = format!("{}:{}", Point::MemberFormsFinds, Act::Stop.name());
    let follower = place.start_with("member group 2 0 within=60000", "UPCALL_FAULT", &fault);
    stops(&follower);
    leader.kill();
    leader.ended();
    let other = member(&place, 2, 1, "within=60000");
    follower.signal(Signal::CONT);
    let mut members = vec![follower, other];
    for (rank, member) in members.iter_mut().enumerate() {
        assert_eq!(member.hear_within(GUARD).numbers("joining"), [rank as u64]);
    }
    end(&place, members);
}

#[test]
fn a_member_that_waits_takes_no_processor_time() {
    let _alone = alone();
    let place = place();
    let mut members = group(&place, 2);
    members[0].ask("send 1 10").expect_ok("sending");
    members[1].ask("take 0 10").expect_ok("taking");
    members[1].say("take 0 11");
    come_to_rest(
        "a member that waits",
        &[members[1].pid()],
        Duration::from_secs(2),
        Duration::from_millis(20),
    );
    members[0].ask("send 1 1").expect_ok("waking it");
    members[1].hear().expect_ok("the message that woke it");
    end(&place, members);
}

/// Waits until a member has stopped.
fn stops(member: &Party) {
    eventually("it stops", || {
        if state(member.pid()) == Some('T') { Ok(()) } else { Err("it runs".into()) }
    });
}

/// Waits until a member has done the act.
fn comes_to(member: &Party, act: Act) {
    eventually("it does what was asked for", || {
        let name = fs::read_to_string(format!("/proc/{}/comm", member.pid())).unwrap_or_default();
        let has_come = match act {
            Act::Stop => state(member.pid()) == Some('T'),
            Act::Exec => name == "sleep\n",
            Act::Kill | Act::Exit | Act::Panic => {
                matches!(state(member.pid()), None | Some('Z' | 'X'))
            }
        };
        if has_come { Ok(()) } else { Err(format!("{name:?}, {:?}", state(member.pid()))) }
    });
}

/// Each point with each act. The honest members exchange all of their messages, and what arrives
/// from the faulty one is a prefix of what it would have sent.
#[test]
fn a_member_that_ends_at_any_point_harms_no_other() {
    let _company = in_company();
    if !POINTS_ARE_THERE {
        return println!("    skipped: points are in builds with debug assertions only");
    }
    for &point in Point::ALL.iter().filter(|point| point.name().starts_with("member")) {
        for (turn, &act) in Act::ALL.iter().enumerate() {
            println!("    {point}:{}", act.name());
            let forms = point.name().starts_with("member-forms");
            // Only the leader reaches some points, and only a follower reaches others.
            let leads = match point {
                Point::MemberFormsLeads | Point::MemberFormsAll => true,
                Point::MemberFormsFinds | Point::MemberFormsAsked => false,
                _ => turn % 2 == 0,
            };
            a_faulty_member(point, act, forms, leads);
        }
    }
}

#[expect(clippy::too_many_lines, reason = "steps of one story, each of which needs those before")]
fn a_faulty_member(point: Point, act: Act, forms: bool, leads: bool) {
    let place = place();
    let fault = format!("{point}:{}", act.name());
    let options = "within=60000 timeout=100";
    let faulty =
        || place.start_with(&format!("member group 3 0 {options}"), "UPCALL_FAULT", &fault);
    let honest = |rank| member(&place, 3, rank, options);
    let settled = || std::thread::sleep(Duration::from_millis(50));
    let a_member_leads = || {
        let leads =
            || entered(&place.names(), "group.group").map(drop).ok_or("no member does".to_string());
        eventually("a member leads", leads);
    };
    let (mut faulty, mut members) = if leads {
        let faulty = faulty();
        match point {
            Point::MemberForms | Point::MemberFormsLeads => comes_to(&faulty, act),
            _ => a_member_leads(),
        }
        (faulty, [honest(1), honest(2)])
    } else {
        let one = honest(1);
        a_member_leads();
        let faulty = faulty();
        // A member that ends while the group forms does not belong to it.
        if forms {
            comes_to(&faulty, act);
        }
        (faulty, [one, honest(2)])
    };
    if forms {
        if act == Act::Stop {
            stops(&faulty);
            faulty.signal(Signal::CONT);
            faulty.hear().expect_ok("joining after all");
        } else {
            // Another process takes its place.
            if act != Act::Exec {
                faulty.ended();
            }
            faulty.kill();
            faulty = member(&place, 3, 0, options);
            faulty.hear().expect_ok("joining in its place");
        }
        for member in &mut members {
            member.hear().expect_ok("joining");
        }
    } else {
        faulty.hear().expect_ok("joining");
        for member in &mut members {
            member.hear().expect_ok("joining");
        }
    }
    let life = format!("life {LIFE}");
    // The first members to be started fill the queues of those that do not poll yet.
    if point == Point::MemberLeaves {
        for member in &mut members {
            member.ask(&format!("tell {LIFE}")).expect_ok("filling the queues of the others");
            member.say(&format!("listen {LIFE}"));
        }
        faulty.say(&life);
        return a_fault_on_leaving_a_segment(&place, act, faulty, members);
    }
    faulty.say(&life);
    settled();
    members.iter_mut().for_each(|member| member.say(&life));
    if act == Act::Stop && !forms {
        stops(&faulty);
        // In the meantime the others send messages to each other, and to the stopped member.
        settled();
        faulty.signal(Signal::CONT);
    }
    let whole = forms || act == Act::Stop;
    for (rank, member) in members.iter_mut().enumerate().map(|(at, member)| (at + 1, member)) {
        let taken = member.hear().numbers(&format!("{fault}: the life of member {rank}"));
        assert_eq!(
            taken[3 - rank],
            LIFE,
            "{fault}: member {rank} of the other honest one: {taken:?}"
        );
        assert!(
            taken[0] == LIFE || (!whole && taken[0] < LIFE),
            "{fault}: member {rank}: {taken:?}"
        );
    }
    if whole {
        assert_eq!(faulty.hear().numbers("its own life"), [0, LIFE, LIFE], "{fault}");
    }
    faulty.kill();
    faulty.ended();
    end(&place, members.into());
}

/// A segment is left when its sender, whose messages have all been taken, sends another one.
fn a_fault_on_leaving_a_segment(
    place: &Place,
    act: Act,
    mut faulty: Party,
    mut members: [Party; 2],
) {
    for member in [&mut faulty].into_iter().chain(&mut members) {
        let taken = member.hear().numbers("a life without a fault");
        assert_eq!(taken.iter().sum::<u64>(), 2 * LIFE, "{taken:?}");
    }
    members[0].ask("send 0 1").expect_ok("one more");
    faulty.say(&format!("take 1 {}", LIFE + 1));
    match act {
        Act::Stop => {
            stops(&faulty);
            faulty.signal(Signal::CONT);
            assert_eq!(faulty.hear().numbers("taking it after all"), [LIFE + 1]);
        }
        Act::Exec => {}
        _ => drop(faulty.ended()),
    }
    members[1].say("pong 1 100");
    members[0].ask("ping 2 100").expect_ok("messages between the others");
    members[1].hear().expect_ok("messages between the others");
    faulty.kill();
    faulty.ended();
    end(place, members.into());
}
