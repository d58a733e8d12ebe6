//! Each system call that takes a resource fails in turn: in a server, a client, a member of a
//! group, a home, and a guest.
//!
//! The outcome has to be the same each time. The process gets a typed error or does without, its
//! peers notice no more than a typed error, and nothing is left over. The tests refuse the first
//! call, then the second, and so on, until a run ends before the number is reached.
//! `make test-long` repeats them with the errors of a machine that lacks the resource, and with all
//! calls from a number on refused.

use crate::{in_company, place};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use upcall_tests::party::{Party, Said};
use upcall_tests::place::{Place, eventually};
use upcall_tests::shortage::{Rule, Shortage};
use upcall_tests::speech::{Came, Hold, Request};
use upcall_tests::usage::{Usage, open_descriptors};

/// More system calls that take a resource than any of the runs makes.
const NO_END: usize = 3000;

/// Kinds of errors that a process may get when it, or its peer, lacks a resource.
const TYPED: [&str; 12] = [
    "Resource",
    "NoAnswer",
    "NoMemory",
    "Failed.Refused",
    "Failed.Lane",
    "Unreachable",
    "Refused",
    "Name.",
    "NotAnObject",
    "NotServed.",
    "Os.code",
    "Custom.kind",
];

/// Calls `run` with each number until no call was refused. `run` returns the refused call and its
/// outcome. After a failure the other numbers are tried all the same.
fn each(
    what: &str,
    rule: fn(usize) -> Rule,
    mut run: impl FnMut(Rule) -> Option<(&'static str, String)>,
) {
    let mut failed = Vec::new();
    for nth in 1..NO_END {
        match catch_unwind(AssertUnwindSafe(|| run(rule(nth)))) {
            Ok(Some((refused, came))) => println!("    {what}, {:?}, {refused}: {came}", rule(nth)),
            Ok(None) => {
                println!("    {what}: {} calls", nth - 1);
                assert!(failed.is_empty(), "{what}: {failed:?}");
                return;
            }
            Err(_) => failed.push(rule(nth)),
        }
        assert!(failed.len() < 12, "{what}: {failed:?}, and perhaps more");
    }
    panic!("{what}: no end to system calls that take something");
}

/// Returns the words of a success, or the text of a typed error. Panics if the error claims a
/// death.
#[track_caller]
fn outcome(said: &Said, what: &str) -> String {
    if let Said::Error { kind, text } = said {
        assert!(TYPED.iter().any(|typed| kind.starts_with(typed)), "{what}: {kind}: {text}");
        assert!(!text.contains("has ended"), "{what}: a false claim of a death: {kind}: {text}");
    }
    said.to_line()
}

/// Checks that a party has not panicked.
#[track_caller]
fn is_calm(shortage: &Shortage, what: &str) {
    let complaints = shortage.complaints();
    assert!(
        !complaints.contains("panicked") && !complaints.contains("memory allocation of"),
        "{what}: {complaints}"
    );
}

#[track_caller]
fn is_served(place: &Place, what: &str) {
    for life in ["scenario trial", "scenario trial user-level"] {
        place.client().ask(life).expect_ok(&format!("a client after {what}"));
    }
}

fn is_back(pid: u32, before: &Usage, what: &str) {
    eventually(&format!("everything is given back after {what}"), || {
        let now = Usage::of(pid);
        match now.is_back_to(before) {
            true => Ok(()),
            false => Err(format!("{now:?}, before {before:?}; open: {}", open_descriptors(pid))),
        }
    });
}

fn a_server_starts_or_says_why_not(rule: fn(usize) -> Rule) {
    let _company = in_company();
    each("a server's start", rule, |rule| {
        let place = place();
        let (mut server, shortage) = Shortage::start(&place, "serve trial two", rule);
        let said = server.hear();
        let came = outcome(&said, &format!("a server's start, {rule:?}"));
        let refused = shortage.lift();
        let what = format!("a start with {rule:?} ({refused:?})");
        if let Said::Ok(_) = said {
            is_served(&place, &what);
        }
        is_calm(&shortage, &what);
        let status = server.ended();
        assert!(status.success(), "{what}: {status}");
        place.expect_empty();
        refused.map(|refused| (refused, came))
    });
}

#[test]
fn a_server_starts_or_says_why_not_whichever_call_is_refused() {
    a_server_starts_or_says_why_not(Rule::One);
}

/// A server, a client that is bound to it before any call is refused, and what the server uses.
struct Scene {
    place: Place,
    server: Party,
    shortage: Shortage,
    bystander: Party,
    before: Usage,
    /// The address at which the server listens, if it does.
    address: Option<String>,
}

impl Scene {
    fn new(options: &str) -> Self {
        let place = place();
        let (mut server, shortage) =
            Shortage::start(&place, &format!("serve trial {options}"), Rule::Nothing);
        let address = server.hear().expect_ok("a server's start").into_iter().next();
        let mut bystander = place.client();
        bystander.ask("bind trial").expect_ok("binding");
        bystander.ask("honest 100").expect_ok("calls that leave their segments for the next ones");
        is_served(&place, "the start");
        let before = Usage::of(server.pid());
        let mut scene = Self { place, server, shortage, bystander, before, address };
        scene.before = scene.rest();
        scene
    }

    /// Waits until the server's clients have gone, and returns what it uses then.
    fn rest(&self) -> Usage {
        let pid = self.server.pid();
        let mut last = Usage::of(pid);
        eventually("the server rests", || {
            std::thread::sleep(Duration::from_millis(100));
            let now = Usage::of(pid);
            let rests = now == last;
            last = now;
            if rests { Ok(()) } else { Err(format!("{now:?}")) }
        });
        last
    }

    /// Refuses each call of the server in turn while a client lives this life.
    fn walk(&mut self, life: &str, rule: fn(usize) -> Rule, live: impl Fn(&Place) -> String) {
        each(life, rule, |rule| {
            self.shortage.set(rule);
            let came = live(&self.place);
            // What the server does after the client has gone belongs to the client's life.
            let refused = self.shortage.lift();
            let what = format!("{life}, {rule:?} ({refused:?})");
            assert!(
                self.server.lives(),
                "{what}: the server has ended: {}",
                self.shortage.complaints()
            );
            is_calm(&self.shortage, &what);
            assert_eq!(self.bystander.ask("add 2 3").numbers(&what), [5]);
            is_served(&self.place, &what);
            is_back(self.server.pid(), &self.before, &what);
            assert_eq!(self.place.entries().len(), 3, "{what}: {:?}", self.place.entries());
            refused.map(|refused| (refused, came))
        });
    }
}

fn a_server_goes_on(rule: fn(usize) -> Rule) {
    let _company = in_company();
    let mut scene = Scene::new("");
    for life in ["scenario trial", "scenario trial user-level"] {
        scene.walk(life, rule, |place| outcome(&place.client().ask(life), life));
    }
    scene.walk("a client that is killed", rule, |place| {
        let mut client = place.client();
        let said = client.ask("bind trial");
        client.say("sum 300000");
        client.kill();
        client.ended();
        outcome(&said, "binding")
    });
}

#[test]
fn a_server_goes_on_whichever_call_is_refused() {
    a_server_goes_on(Rule::One);
}

#[test]
fn a_server_goes_on_whichever_receipt_of_a_message_has_no_room_for_descriptors() {
    a_server_goes_on(Rule::Receipt);
}

/// The same while a client on the network lives these lives.
fn a_server_on_the_network_goes_on(rule: fn(usize) -> Rule) {
    let _company = in_company();
    let mut scene = Scene::new("tcp");
    let address = scene.address.clone().expect("it listens");
    for way in ["", " user-level"] {
        let life = format!("scenario tcp://{address}/trial{way}");
        scene.walk(&life, rule, |place| outcome(&place.client().ask(&life), &life));
    }
}

#[test]
fn a_server_on_the_network_goes_on_whichever_call_is_refused() {
    a_server_on_the_network_goes_on(Rule::One);
}

fn a_client_gets_a_typed_error(rule: fn(usize) -> Rule) {
    let _company = in_company();
    let place = place();
    let (server, address) = place.serve_far("trial tcp");
    is_served(&place, "the start");
    let before = Usage::of(server.pid());
    let far = format!("scenario tcp://{address}/trial");
    for life in ["scenario trial", "scenario trial user-level", &far, &format!("{far} user-level")]
    {
        each(life, rule, |rule| {
            let (mut client, shortage) = Shortage::start(&place, "client", Rule::Nothing);
            shortage.set(rule);
            let said = client.ask(life);
            let refused = shortage.lift();
            let what = format!("{life}, {rule:?} ({refused:?})");
            let came = outcome(&said, &what);
            client
                .ask(life)
                .expect_ok(&format!("the same client once there is enough, after {what}: {came}"));
            is_calm(&shortage, &what);
            let status = client.ended();
            assert!(status.success(), "{what}: {status}");
            is_back(server.pid(), &before, &what);
            refused.map(|refused| (refused, came))
        });
    }
}

#[test]
fn a_client_gets_a_typed_error_whichever_call_is_refused() {
    a_client_gets_a_typed_error(Rule::One);
}

#[test]
fn a_client_gets_a_typed_error_whichever_receipt_of_a_message_has_no_room_for_descriptors() {
    a_client_gets_a_typed_error(Rule::Receipt);
}

/// Two members form a group and send; one of them lacks a resource. Both report the outcome, first
/// the member that lacks it. Once there is enough, what was not sent can be sent, and nothing is
/// lost.
fn two_members(
    place: &Place,
    rank: usize,
    rule: Rule,
    number: usize,
    within: &str,
) -> (Vec<Said>, Option<&'static str>) {
    let start = |rank: usize| format!("member g{number} 2 {rank} within={within} patience=15000");
    let mut other = place.start(&start(1 - rank));
    let (mut member, shortage) = Shortage::start(place, &start(rank), rule);
    let what = format!("{rule:?} in rank {rank}");
    let limit = Duration::from_secs(60);
    let mut said: Vec<_> = [&mut member, &mut other].map(|party| party.hear_within(limit)).into();
    if said.iter().all(|said| matches!(said, Said::Ok(_))) {
        // What was sent is taken.
        member.say(&format!("send {} 3000", 1 - rank));
        other.say(&format!("send {rank} 3000"));
        let sent = [&mut member, &mut other].map(|party| party.hear_within(limit));
        let mut waits = Vec::new();
        for (from, sent) in [rank, 1 - rank].into_iter().zip(&sent) {
            let taker = if from == rank { &mut other } else { &mut member };
            if let Said::Ok(_) = sent {
                taker.say(&format!("take {from} 3000"));
                match taker.hear_within(limit) {
                    // A receiver that lacks a resource may refuse the queue after all messages were
                    // sent.
                    Said::Error { kind, .. } if from != rank && kind == "nothing.comes" => {
                        waits.push((from, 3001))
                    }
                    taken => assert_eq!(taken.numbers(&what), [3000], "{what}"),
                }
            } else {
                waits.push((from, 1));
            }
        }
        said.extend(sent);
        shortage.relent();
        for (from, count) in waits {
            let (sender, taker) =
                if from == rank { (&mut member, &mut other) } else { (&mut other, &mut member) };
            sender
                .ask(&format!("send {} 1", 1 - from))
                .expect_ok(&format!("sending again, {what}"));
            taker.say(&format!("take {from} {count}"));
            let taken = taker.hear_within(limit).numbers(&what)[0];
            assert!(taken >= count, "{what}: {taken} of {count} were taken from {from}");
        }
    }
    let refused = shortage.lift();
    is_calm(&shortage, &what);
    for (party, who) in [(&mut member, "it"), (&mut other, "the other one")] {
        let status = party.ended();
        assert!(status.success(), "{what}: {who}: {status}");
    }
    place.expect_empty();
    (said, refused)
}

fn a_member_gets_a_typed_error(rank: usize, rule: fn(usize) -> Rule) {
    let _company = in_company();
    let place = place();
    let (said, _) = two_members(&place, rank, Rule::Nothing, 0, "60000");
    assert!(said.len() == 4 && said.iter().all(|said| matches!(said, Said::Ok(_))), "{said:?}");
    let mut number = 0;
    each(&format!("a member of rank {rank}"), rule, |rule| {
        number += 1;
        // The other member waits in vain for a member that could not even begin.
        let (said, refused) = two_members(&place, rank, rule, number, "700");
        let outcome =
            |(at, said)| member_outcome(said, at % 2 == 0, &format!("{rule:?} in rank {rank}"));
        let came: Vec<_> = said.iter().enumerate().map(outcome).collect();
        refused.map(|refused| (refused, came.join("; ")))
    });
}

/// Like [`outcome`], for the member that lacks a resource and for the other one. Both live.
#[track_caller]
fn member_outcome(said: &Said, lacks: bool, what: &str) -> String {
    const OF_THE_ONE: [&str; 4] = ["Resource", "Incomplete", "NoMemory", "Unreachable"];
    const OF_THE_OTHER: [&str; 2] = ["Incomplete", "Refused.rank"];
    if let Said::Error { kind, text } = said {
        let typed: &[&str] = if lacks { &OF_THE_ONE } else { &OF_THE_OTHER };
        assert!(typed.iter().any(|typed| kind.starts_with(typed)), "{what}: {kind}: {text}");
        assert!(!text.contains("has ended"), "{what}: a false claim of a death: {kind}: {text}");
        let explains = !kind.starts_with("Refused.")
            || text.contains("lives") && text.contains("was not sent");
        assert!(explains, "{what}: {text}");
    }
    said.to_line()
}

#[test]
fn the_first_member_gets_a_typed_error_whichever_call_is_refused() {
    a_member_gets_a_typed_error(0, Rule::One);
}

#[test]
fn the_second_member_gets_a_typed_error_whichever_call_is_refused() {
    a_member_gets_a_typed_error(1, Rule::One);
}

/// A member that has joined learns of the end of a member that has sent it nothing.
#[test]
fn a_member_learns_of_every_end_whichever_call_is_refused() {
    let _company = in_company();
    let place = place();
    let mut number = 0;
    each("a member that is to learn of an end", Rule::One, |rule| {
        number += 1;
        let start = |rank: usize| format!("member e{number} 2 {rank} within=60000");
        let mut other = place.start(&start(1));
        let (mut member, shortage) = Shortage::start(&place, &start(0), rule);
        let what = format!("{rule:?}");
        let said = member.hear_within(Duration::from_secs(60));
        let came = member_outcome(&said, true, &what);
        let joined = matches!(said, Said::Ok(_))
            && matches!(other.hear_within(Duration::from_secs(60)), Said::Ok(_));
        other.kill();
        other.ended();
        if joined {
            member.say("end-of 1");
            assert_eq!(member.hear_within(Duration::from_secs(60)).numbers(&what), [0], "{what}");
        }
        let refused = shortage.lift();
        assert!(joined || refused.is_some(), "{what}: {came}");
        is_calm(&shortage, &what);
        let status = member.ended();
        assert!(status.success(), "{what}: {status}");
        refused.map(|refused| (refused, came))
    });
}

/// A home makes an object, which a guest uses and leaves. The home lacks a resource.
fn a_home_gets_a_typed_error(rule: fn(usize) -> Rule) {
    let _company = in_company();
    let place = place();
    let mut number = 0;
    for (home, guest, commands) in
        [("make", "find", &["count 3", "read", "look"][..]), ("serve", "ask", &["add 1", "number"])]
    {
        each(&format!("a home ({home})"), rule, |rule| {
            number += 1;
            let (mut it, shortage) =
                Shortage::start(&place, &format!("share o{number} {home}"), rule);
            let said = it.hear();
            let mut came = vec![outcome(&said, &format!("a home's start, {rule:?}"))];
            if let Said::Ok(_) = said {
                let mut visitor = place.start(&format!("share o{number} {guest}"));
                came.push(outcome(&visitor.hear(), &format!("finding, {rule:?}")));
                if came[1].starts_with("ok") {
                    came.extend(
                        commands.iter().map(|command| outcome(&visitor.ask(command), command)),
                    );
                }
                visitor.kill();
                visitor.ended();
            }
            let refused = shortage.lift();
            let what = format!("a home ({home}), {rule:?} ({refused:?})");
            if let Said::Ok(_) = said {
                let mut next = place.start(&format!("share o{number} {guest}"));
                next.hear().expect_ok(&format!("a guest after {what}"));
                for command in commands {
                    next.ask(command).expect_ok(&format!("{command} after {what}"));
                    it.ask(commands[0]).expect_ok(&format!("the home itself after {what}"));
                }
            }
            is_calm(&shortage, &what);
            let status = it.ended();
            assert!(status.success(), "{what}: {status}");
            // If the home ends while its clerk serves a guest, its name stays until the next sweep.
            place.serve("sweeper").ended();
            place.expect_empty();
            refused.map(|refused| (refused, came.join("; ")))
        });
    }
}

#[test]
fn a_home_gets_a_typed_error_whichever_call_is_refused() {
    a_home_gets_a_typed_error(Rule::One);
}

/// A guest finds an object, uses it and leaves. The guest lacks a resource.
fn a_guest_gets_a_typed_error(rule: fn(usize) -> Rule) {
    let _company = in_company();
    let place = place();
    for (home, guest, commands) in
        [("make", "find", &["count 3", "read", "look"][..]), ("serve", "ask", &["add 1", "number"])]
    {
        let mut it = place.start(&format!("share {home}-it {home}"));
        it.hear().expect_ok("a home");
        each(&format!("a guest ({guest})"), rule, |rule| {
            let (mut visitor, shortage) =
                Shortage::start(&place, &format!("share {home}-it {guest}"), rule);
            let mut came = vec![outcome(&visitor.hear(), &format!("finding, {rule:?}"))];
            if came[0].starts_with("ok") {
                came.extend(commands.iter().map(|command| outcome(&visitor.ask(command), command)));
            }
            let refused = shortage.lift();
            let what = format!("a guest ({guest}), {rule:?} ({refused:?})");
            if came[0].starts_with("ok") {
                for command in commands {
                    visitor.ask(command).expect_ok(&format!("{command} after {what}"));
                }
            }
            is_calm(&shortage, &what);
            let status = visitor.ended();
            assert!(status.success(), "{what}: {status}");
            it.ask(commands[0]).expect_ok(&format!("the home after {what}"));
            refused.map(|refused| (refused, came.join("; ")))
        });
    }
}

#[test]
fn a_guest_gets_a_typed_error_whichever_call_is_refused() {
    a_guest_gets_a_typed_error(Rule::One);
}

/// Smallest allocation that is refused, in bytes. Smaller ones are nodes, names, and texts of
/// errors. The standard library makes most of them, and aborts where they fail.
const LEAST: usize = 1024;

/// Values of sizes that a client chooses, in arguments and results, objects, and lists of
/// procedures.
const STEPS: [&str; 11] = [
    "total 200",
    "total 100000",
    "sum 1000000",
    "shapes trial.shapes nested 2 5000",
    "shapes trial.shapes nested 2000 10",
    "shapes trial.shapes entries 100 20",
    "shapes trial.shapes entries 2 50000",
    "shapes trial.shapes give 2000 10",
    "shapes trial.shapes give 3 100000",
    "open 900",
    "bind trial",
];

#[test]
fn a_server_goes_on_whichever_allocation_is_refused() {
    let _company = in_company();
    let place = place();
    let mut server = place.serve("trial shapes");
    let mut bystander = place.client();
    bystander.ask("bind trial").expect_ok("binding");
    let typed = |said: &Said, what: &str| match said {
        Said::Ok(_) => {}
        Said::Error { kind, text } => {
            let kinds = ["NoMemory", "Refused", "Resource", "HungUp", "no.memory"];
            assert!(kinds.iter().any(|typed| kind.starts_with(typed)), "{what}: {kind}: {text}");
            assert!(!text.contains("has ended"), "{what}: {text}");
        }
    };
    for step in STEPS {
        for nth in 1.. {
            let mut client = place.client();
            client.ask("bind trial").expect_ok("binding");
            server.ask(&format!("refuse-memory {nth} {LEAST}")).expect_ok("the refusal");
            let said = client.ask(step);
            let counted = server.ask("permit-memory").numbers("what came of it");
            let what = format!("{step}, allocation {nth} of {}", counted[0]);
            println!("    {what}: {}", said.to_line());
            typed(&said, &what);
            assert!(server.lives(), "{what}");
            assert_eq!(bystander.ask("add 2 3").numbers(&what), [5]);
            if counted[1] == 0 {
                said.expect_ok(&what);
                break;
            }
            client.ask("bind trial").expect_ok(&format!("binding after {what}"));
            client.ask(step).expect_ok(&format!("the same after {what}"));
        }
    }
}

#[test]
fn a_server_goes_on_whichever_allocation_for_a_list_of_procedures_is_refused() {
    let _company = in_company();
    let place = place();
    let mut server = place.serve("trial");
    let socket = place.sockets().pop().expect("a socket");
    for (what, name) in
        [("known", "null"), ("unknown", "none-of-the-server's-procedures-has-such-a-long-name")]
    {
        for nth in 1.. {
            let hold = Hold::new(&socket, "trial").expect("a channel");
            let hash = upcall_tests::interfaces::trial::INTERFACE
                .procedures
                .iter()
                .find(|known| known.name == name);
            let wanted =
                (name.to_string(), hash.map_or(0, |known| known.hash), "func()".to_string());
            let request = Request::Bind {
                id: 1,
                name: "trial".into(),
                interface: "upcall:tests/trial@1.0.0".into(),
                procedures: vec![wanted; 1000],
                stacks: 0,
            };
            server.ask(&format!("refuse-memory {nth} {LEAST}")).expect_ok("the refusal");
            let came = hold.speaker.ask(request, &[]);
            let counted = server.ask("permit-memory").numbers("what came of it");
            let shown = format!("{came:?}");
            println!(
                "    {what} procedures, allocation {nth} of {}: {}",
                counted[0],
                &shown[..shown.len().min(100)]
            );
            assert!(!matches!(came, Came::Nothing), "{what}, {nth}: no answer");
            place.client().ask("scenario trial").expect_ok("a client afterwards");
            if counted[1] == 0 {
                break;
            }
        }
    }
}

/// Calls that wait, more than one piece of memory has stacks for. Each number gets a new server,
/// because stacks stay.
#[test]
fn a_server_without_memory_for_another_stack_goes_on_with_those_it_has() {
    let _company = in_company();
    each("calls that wait", Rule::PrivateMemory, |rule| {
        let place = place();
        let (mut server, shortage) = Shortage::start(&place, "serve latch latch", Rule::Nothing);
        server.hear().expect_ok("a server's start");
        let (mut holder, mut other) = (place.client(), place.client());
        for client in [&mut holder, &mut other] {
            client.ask("bind-latch latch").expect_ok("binding");
        }
        shortage.set(rule);
        holder.ask("hold 40").expect_ok("calls that wait");
        eventually("calls come in", || match other.ask("came-in").numbers("came-in")[0] {
            came_in if came_in >= 14 => Ok(()),
            came_in => Err(format!("{came_in}, {rule:?}")),
        });
        other.ask("let-out 40").expect_ok("letting them out");
        eventually("all calls end", || match holder.ask("holds-ended").numbers("holds-ended")[0] {
            40 => Ok(()),
            ended => Err(format!("{ended}, {rule:?}")),
        });
        let refused = shortage.lift();
        let what = format!("calls that wait, {rule:?} ({refused:?})");
        is_calm(&shortage, &what);
        assert!(server.lives(), "{what}");
        refused.map(|refused| (refused, "all came in, and ended".into()))
    });
}

/// As if the whole machine lacked the resource: `ENFILE` and `ENOSPC`.
#[test]
#[ignore = "long"]
fn long_each_call_is_refused_as_by_a_machine_that_has_no_more() {
    a_server_starts_or_says_why_not(Rule::OneOfMachine);
    a_server_goes_on(Rule::OneOfMachine);
    a_client_gets_a_typed_error(Rule::OneOfMachine);
    a_member_gets_a_typed_error(0, Rule::OneOfMachine);
    a_member_gets_a_typed_error(1, Rule::OneOfMachine);
    a_home_gets_a_typed_error(Rule::OneOfMachine);
    a_guest_gets_a_typed_error(Rule::OneOfMachine);
}

/// All calls from a number on that take descriptors, threads or shared memory are refused.
#[test]
#[ignore = "long"]
fn long_all_calls_from_one_on_are_refused() {
    a_server_starts_or_says_why_not(Rule::From);
    a_client_gets_a_typed_error(Rule::From);
    a_server_goes_on(Rule::From);
}

/// The same with memory for the list of stacks. Each number gets a new server, because a list
/// stays.
#[test]
fn a_server_without_memory_to_list_stacks_drops_what_a_client_had() {
    let _company = in_company();
    for nth in 1.. {
        let place = place();
        let mut server = place.serve("trial");
        let (mut client, mut other) = (place.client(), place.client());
        for client in [&mut client, &mut other] {
            client.ask("bind trial").expect_ok("binding");
        }
        client.ask("open 1").expect_ok("an object");
        server.ask(&format!("refuse-memory {nth} {LEAST}")).expect_ok("the refusal");
        // The client's objects are dropped on a thread of their own, which has the first stack of
        // its size.
        drop(client);
        eventually("the object is dropped", || match other.ask("things").numbers("things")[..] {
            [opened, dropped, ..] if opened == dropped => Ok(()),
            ref things => Err(format!("{things:?}, allocation {nth}")),
        });
        let counted = server.ask("permit-memory").numbers("what came of it");
        println!("    allocation {nth} of {}", counted[0]);
        if counted[1] == 0 {
            assert!(nth > 1, "no list was made");
            break;
        }
    }
}
