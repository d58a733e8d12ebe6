//! Members on three hosts, of which two are cut off from each other: the third one reaches both.

use crate::far_members::Scene;
use crate::{in_company, in_idle_company};
use rustix::process::Signal;
use upcall_tests::party::Party;

/// All events that a member got: ranks that have ended, and pairs that are parted.
fn told(member: &mut Party) -> Vec<String> {
    member.ask("told").expect_ok("what it was told")
}

/// Starts a group on three hosts, and cuts those of members 0 and 1 off from each other until each
/// takes the other one for ended.
fn parted(scene: &Scene, options: &str) -> Vec<Party> {
    let mut members = scene.group(&[0, 1, 2], options);
    members.iter_mut().for_each(|member| member.say("life 100"));
    members.iter_mut().for_each(|member| _ = member.hear().expect_ok("a life"));
    scene.hosts.part(0, 1);
    // These never arrive.
    members[0].ask("send 1 10").expect_ok("sending across the cut");
    members[1].ask("send 0 10").expect_ok("sending across the cut");
    members[0].say("end-of 1");
    members[1].say("end-of 0");
    assert_eq!(members[0].hear().numbers("the end of member 1"), [100]);
    assert_eq!(members[1].hear().numbers("the end of member 0"), [100]);
    members[2].ask("parted 0 1").expect_ok("that they are parted");
    members
}

/// Checks that the first two get nothing more of each other, and the third one goes on with both.
///
/// `ends`: by rank, how many messages of the other one the first two had taken in the end.
fn goes_on_with_both(members: &mut [Party], taken: &mut u64, ends: [u64; 2]) {
    members[0].ask("send 1 1").expect_error("Ended", &[]);
    members[1].ask("send 0 1").expect_error("Ended", &[]);
    members[2].ask("send 0 3000").expect_ok("sending");
    members[2].ask("send 1 3000").expect_ok("sending");
    *taken += 3000;
    for from in [0, 1] {
        members[from].ask("send 2 3000").expect_ok("sending");
        let taken = [*taken];
        assert_eq!(members[from].ask(&format!("take 2 {}", taken[0])).numbers("taking"), taken);
        assert_eq!(members[2].ask(&format!("take {from} {}", taken[0])).numbers("taking"), taken);
        let end = format!("end-of {}", 1 - from);
        assert_eq!(members[from].ask(&end).numbers("the end of the other one"), [ends[from]]);
    }
}

#[test]
fn a_third_member_keeps_two_that_are_cut_off_from_each_other() {
    let _company = in_idle_company();
    let scene = Scene::new(3);
    if !scene.hosts.are_apart() {
        return println!("skipped: cuts, which need network namespaces");
    }
    let (mut members, mut taken) = (parted(&scene, "lost=1000 cut=1000"), 100);
    goes_on_with_both(&mut members, &mut taken, [100, 100]);
    // Operations end at once, also while the first two do nothing.
    for operation in ["barrier", "reduce 3"] {
        members[2].ask(operation).expect_error("Parted", &["members 0 and 1", "lost each other"]);
    }
    for operation in ["broadcast", "gather", "all_gather", "reduce_to", "all_reduce", "all_to_all"]
    {
        members[2].ask(&format!("collective {operation}")).expect_error("Parted", &["0 and 1"]);
        members[0].ask(&format!("collective {operation}")).expect_error("Lost", &["member 1"]);
        members[1].ask(&format!("collective {operation}")).expect_error("Lost", &["member 0"]);
    }
    // The cut heals, and they stay parted.
    scene.hosts.reunite(0, 1);
    goes_on_with_both(&mut members, &mut taken, [100, 100]);
    for (rank, expected) in ["1", "0", "0/1"].iter().enumerate() {
        assert_eq!(told(&mut members[rank]), [*expected]);
    }
    members[2].ask("barrier").expect_error("Parted", &["members 0 and 1"]);
    // The end of one of them follows, once.
    let mut first = members.remove(0);
    first.kill();
    first.ended();
    members[1].ask("end-of 0").expect_ok("the end of member 0");
    assert_eq!(told(&mut members[1]), ["0", "0/1"]);
    assert_eq!(told(&mut members[0]), ["0"]);
    // A killed member leaves its socket behind, until another one of its host finds it.
    for mut member in members {
        member.say("leave");
        member.ended();
    }
}

/// The third member waits in an operation when the other two lose each other.
#[test]
fn members_that_wait_in_an_operation_are_set_free() {
    let _company = in_idle_company();
    let scene = Scene::new(3);
    if !scene.hosts.are_apart() {
        return println!("skipped: cuts, which need network namespaces");
    }
    for operation in ["barrier", "reduce 3", "collective all_to_all", "collective broadcast"] {
        let mut members = scene.group(&[0, 1, 2], "lost=1000 cut=1000");
        // Member 2 waits for the others, which do nothing until they have lost each other.
        members[2].say(operation);
        scene.hosts.part(0, 1);
        members[0].ask("end-of 1").expect_ok("the end of member 1");
        members[1].ask("end-of 0").expect_ok("the end of member 0");
        members[2].hear().expect_error("Parted", &["members 0 and 1"]);
        members[0].ask("barrier").expect_error("Lost", &["member 1"]);
        members[1].ask("barrier").expect_error("Lost", &["member 0"]);
        scene.hosts.reunite(0, 1);
        scene.end(members);
    }
}

/// One of the two notices the cut, and the other one does not before it heals. Messages of their
/// session are refused then.
#[test]
fn two_that_have_parted_do_not_half_talk_when_the_cut_heals() {
    let _company = in_idle_company();
    let scene = Scene::new(3);
    if !scene.hosts.are_apart() {
        return println!("skipped: cuts, which need network namespaces");
    }
    for impatient in [0, 1] {
        // Only one of them looks for signs of life.
        let options = |rank: usize| match rank == impatient {
            true => "lost=1000 cut=1000",
            false => "lost=600000 cut=1000",
        };
        let mut members = scene.group_with(&[0, 1, 2], options);
        let (one, other) = (impatient, 1 - impatient);
        members.iter_mut().for_each(|member| member.say("life 100"));
        members.iter_mut().for_each(|member| _ = member.hear().expect_ok("a life"));
        scene.hosts.part(0, 1);
        members[one].ask(&format!("send {other} 10")).expect_ok("sending across the cut");
        members[other].ask(&format!("send {one} 10")).expect_ok("sending across the cut");
        let end = format!("end-of {other}");
        assert_eq!(members[one].ask(&end).numbers("the end of the other one"), [100]);
        // The other one still takes it for alive, and so does the third member.
        assert_eq!(told(&mut members[other]), [""; 0]);
        assert_eq!(told(&mut members[2]), [""; 0]);
        scene.hosts.reunite(0, 1);
        // What the first one had sent before it gave up may still arrive, as from a dead member.
        // What the other one sends is refused.
        let arrived = members[other].ask(&format!("end-of {one}")).numbers("the end")[0];
        assert!((100..=110).contains(&arrived), "{arrived} messages");
        members[2].ask("parted 0 1").expect_ok("that they are parted");
        let mut ends = [100; 2];
        ends[other] = arrived;
        goes_on_with_both(&mut members, &mut 100, ends);
        assert_eq!(told(&mut members[2]), ["0/1"]);
        scene.end(members);
    }
}

/// A member that is stopped reports no loss. So the third member learns of no parting, also not
/// when the stopped one then dies.
#[test]
fn a_loss_that_only_one_of_two_reports_is_no_parting() {
    let _company = in_company();
    let scene = Scene::new(3);
    let mut members = scene.group(&[0, 1, 2], "");
    members[1].stop();
    members[2].ask("expel 1").expect_ok("expelling");
    members[2].ask("end-of 1").expect_ok("the end of member 1");
    // Its report comes before these.
    members[2].ask("send 0 10").expect_ok("sending");
    assert_eq!(members[0].ask("take 2 10").numbers("taking"), [10]);
    assert_eq!(told(&mut members[0]), [""; 0]);
    members[1].kill();
    members[1].ended();
    members[0].ask("end-of 1").expect_ok("the end of member 1");
    for rank in [0, 2] {
        assert_eq!(told(&mut members[rank]), ["1"]);
    }
    for rank in [0, 2] {
        members[rank].say("leave");
        members[rank].ended();
    }
}

/// Member 1 has lost member 0, and member 2 has lost member 1, before member 0 reports its loss.
#[test]
fn a_member_is_told_of_no_parting_after_the_end_of_one_of_the_two() {
    let _company = in_company();
    let scene = Scene::new(3);
    let mut members = scene.group(&[0, 1, 2], "");
    members[0].stop();
    members[1].ask("expel 0").expect_ok("expelling");
    members[1].ask("end-of 0").expect_ok("the end of member 0");
    members[1].ask("send 2 10").expect_ok("sending");
    assert_eq!(members[2].ask("take 1 10").numbers("taking"), [10]);
    assert_eq!(told(&mut members[2]), [""; 0]);
    members[2].ask("expel 1").expect_ok("expelling");
    members[2].ask("end-of 1").expect_ok("the end of member 1");
    members[0].signal(Signal::CONT);
    members[0].ask("end-of 1").expect_ok("the end of member 1");
    members[0].ask("send 2 10").expect_ok("sending");
    assert_eq!(members[2].ask("take 0 10").numbers("taking"), [10]);
    assert_eq!(told(&mut members[2]), ["1"]);
    scene.end(members);
}
