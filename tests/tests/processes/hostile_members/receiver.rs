//! A hostile receiver: what it reports about the queue that an honest member has brought, and what
//! it answers.

use super::steps::BARRIER;
use super::{
    DISPOSED, DIVERTED, HOME_AT, Lacks, MESSAGE, Opened, SEGMENT_BYTES, Scene, Taken, pack, sent,
};
use crate::in_company;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use upcall::message::Lack;
use upcall_os::doorbell::Doorbell;
use upcall_os::memory::MemoryFile;
use upcall_shm::station::Station;
use upcall_tests::dice::Dice;
use upcall_tests::place::{AtLast, eventually};
use upcall_tests::usage::Usage;

/// Returns `true` if the error shows that the receiver was found out.
fn found_out(error: &str, rank: usize) -> bool {
    error == format!("Violation{{rank:{rank}}}")
}

#[test]
fn a_receiver_lies_about_what_it_has_taken() {
    let _company = in_company();
    let mut scene = Scene::new(2, 6, "");
    let station = Station::new().unwrap();
    let taken: Vec<Taken> = (0..6)
        .map(|at| {
            scene.honest[0].say(&format!("send {} 1", 2 + at));
            let taken = Taken::at(&scene.doors[at]);
            taken.answer(&station);
            assert_eq!(sent(scene.honest[0].hear()), (1, String::new()));
            taken
        })
        .collect();
    let send = |scene: &mut Scene, at: usize, count: u64| {
        sent(scene.honest[0].ask(&format!("send {} {count}", 2 + at)))
    };
    // At home: more than was sent.
    taken[0].tell(DISPOSED, 1 << 40);
    assert!(found_out(&send(&mut scene, 0, 5000).1, 2));
    taken[1].tell(DISPOSED, u64::MAX);
    assert!(found_out(&send(&mut scene, 1, 5000).1, 2 + 1));
    // At home: less than was reported before.
    send(&mut scene, 2, 1000);
    taken[2].tell(DISPOSED, 900);
    assert_eq!(send(&mut scene, 2, 600), (600, String::new()));
    taken[2].tell(DISPOSED, 100);
    assert!(found_out(&send(&mut scene, 2, 500).1, 2 + 2));
    // In the segments: more than was sent, and less than was reported before.
    for at in 3..5 {
        assert_eq!(send(&mut scene, at, 3000), (3000, String::new()));
    }
    taken[3].tell(DIVERTED, 1 << 50);
    assert!(found_out(&send(&mut scene, 3, 1).1, 2 + 3));
    taken[4].tell(DIVERTED, 5);
    assert_eq!(send(&mut scene, 4, 1), (1, String::new()));
    taken[4].tell(DIVERTED, 2);
    assert!(found_out(&send(&mut scene, 4, 1).1, 2 + 4));
    // Later sends to these members fail as well.
    for at in 0..5 {
        let (count, error) = send(&mut scene, at, 1);
        assert!(count == 0 && found_out(&error, 2 + at), "{error}");
    }
    scene.meanwhile("lies", |_| ());
}

#[test]
fn receivers_walk() {
    let _company = in_company();
    const LIVES: usize = 16;
    let mut scene = Scene::new(2, LIVES, "");
    let mut dice = Dice::thrown("hostile receivers");
    let station = Station::new().unwrap();
    let mut violations = 0;
    for life in 0..LIVES {
        let (rank, seed) = (2 + life, dice.any());
        let what = format!("life {life}, seed {seed}");
        scene.honest[0].say(&format!("send {rank} 20000"));
        let taken = Taken::at(&scene.doors[life]);
        let mut own = Dice::new(seed);
        if own.below(4) > 0 {
            taken.answer(&station);
        }
        let line = station.line(0);
        let over = AtomicBool::new(false);
        let said = std::thread::scope(|scope| {
            let _at_last = AtLast(&over);
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let near = taken.first[DISPOSED].load(Ordering::Relaxed) + own.below(40);
                    match own.below(64) {
                        0 => taken.tell(DISPOSED, own.any() >> own.below(64)),
                        1 => taken.tell(DIVERTED, own.any() >> own.below(64)),
                        2 => taken.tell(DISPOSED, own.below(4096)),
                        3 => taken.tell(DIVERTED, own.below(4096)),
                        // Messages that are still to be read, and the words that link to the next
                        // segment.
                        4..8 => taken.first[HOME_AT + own.below(4096) as usize]
                            .store(own.any(), Ordering::Relaxed),
                        8 => drop(taken.file.give_back(0, SEGMENT_BYTES)),
                        9..16 => line.asleep.store(own.below(2) as u32, Ordering::Release),
                        16..20 => line.sleeps.store(own.any(), Ordering::Release),
                        20..30 => std::thread::sleep(Duration::from_micros(own.below(200))),
                        _ => taken.tell(DISPOSED, near),
                    }
                }
            });
            sent(scene.honest[0].hear())
        });
        assert!(said == (20_000, String::new()) || found_out(&said.1, rank), "{what}: {said:?}");
        violations += u32::from(found_out(&said.1, rank));
        scene.unharmed(&what);
    }
    println!("    {violations} of {LIVES} were found out");
    scene.meanwhile("receivers", |_| ());
}

#[test]
fn answers_that_are_none() {
    let _company = in_company();
    let mut scene = Scene::new(2, 9, "");
    let station = Station::new().unwrap();
    let (plain, doorbell) = (MemoryFile::create("t", 8192).unwrap(), Doorbell::new().unwrap());
    let short = MemoryFile::create_for_one_writer("t", 4096).unwrap();
    let no_station = MemoryFile::create_for_one_writer("t", 8192).unwrap();
    let yes = pack(&Opened::Yes { line: 0, makes_fences: true });
    let far = pack(&Opened::Yes { line: u16::MAX, makes_fences: false });
    let no = pack(&Opened::No("x".repeat(100_000)));
    let answers: [(&str, &[u8], Vec<BorrowedFd<'_>>, &str); 8] = [
        ("no station", &yes, vec![], "Unreachable"),
        ("a doorbell", &yes, vec![doorbell.as_fd()], "Unreachable"),
        ("memory that others write", &yes, vec![plain.as_fd()], "Unreachable"),
        ("short memory", &yes, vec![short.0.as_fd()], "Unreachable"),
        ("memory that is no station", &yes, vec![no_station.0.as_fd()], "Unreachable"),
        ("a long refusal", &no, vec![], "Unreachable"),
        ("garbage", &[7; 100], vec![], "Unreachable"),
        ("a line that is none", &far, vec![station.as_fd()], ""),
    ];
    for (at, (what, bytes, fds, expected)) in answers.iter().enumerate() {
        scene.honest[0].say(&format!("send {} 3", 2 + at));
        let taken = Taken::at(&scene.doors[at]);
        taken.connection.send(bytes, fds).unwrap();
        // The messages may have been sent before the answer arrived.
        let (count, mut error) = sent(scene.honest[0].hear());
        if count == 3 && !expected.is_empty() {
            eventually(what, || {
                error = sent(scene.honest[0].ask(&format!("send {} 1", 2 + at))).1;
                if error.is_empty() { Err("nothing".into()) } else { Ok(()) }
            });
        }
        assert!(
            error.starts_with(expected) && error.is_empty() == expected.is_empty(),
            "{what}: {error}"
        );
    }
    // A member that answers again and again: each answer has to be mapped.
    scene.honest[0].say("send 10 1");
    let taken = Taken::at(&scene.doors[8]);
    let before = Usage::of(scene.honest[0].pid());
    for _ in 0..2000 {
        if taken.connection.send(&yes, &[station.as_fd()]).is_err() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    std::thread::sleep(Duration::from_millis(50));
    let now = Usage::of(scene.honest[0].pid());
    assert!(now.mappings < before.mappings + 50, "{before:?}, {now:?}");
    scene.honest[0].hear().expect_ok("sending");
    eventually("it is refused", || {
        let again = sent(scene.honest[0].ask("send 10 1")).1;
        if again.contains("Unreachable") && again.contains("morethanonce") {
            Ok(())
        } else {
            Err(again)
        }
    });
    scene.meanwhile("answers", |_| ());
}

/// Sends to a hostile member until a send fails; the member treats each queue that it gets with
/// `treat`. Returns the number of messages sent before, and the error.
pub(super) fn fails_at_last(scene: &mut Scene, at: usize, treat: impl Fn(Taken)) -> (u64, String) {
    let start = Instant::now();
    for before in 0.. {
        assert!(start.elapsed() < Duration::from_secs(60), "each message is sent");
        scene.honest[0].say(&format!("send {} 1", 2 + at));
        // A queue that was refused late is offered again when the sender has read the refusal.
        let asked = Instant::now();
        while asked.elapsed() < Duration::from_millis(100) {
            if let Some(taken) = Taken::at_once(&scene.doors[at]) {
                treat(taken);
                break;
            }
        }
        match sent(scene.honest[0].hear()) {
            (1, _) => {}
            (_, error) => return (before, error),
        }
    }
    unreachable!("numbers have no end")
}

#[test]
fn a_receiver_that_lacks_something_gets_all_that_was_sent_later() {
    let _company = in_company();
    let mut scene = Scene::new(2, 4, "");
    let station = Station::new().unwrap();
    let lacks = |lack, errno| pack(&Opened::Lacks(Lacks { lack, errno }));
    let answers = [
        (lacks(Lack::Memory, Some(12)), "lack:Memory,errno:Some(12)"),
        (lacks(Lack::Descriptors, None), "lack:Descriptors,errno:None"),
        (lacks(Lack::Watches, Some(-28)), "lack:Watches,errno:None"),
    ];
    for (at, (answer, told)) in answers.iter().enumerate() {
        let rank = 2 + at;
        // The answer arrives after three messages were sent.
        scene.honest[0].say(&format!("send {rank} 3"));
        let taken = Taken::at(&scene.doors[at]);
        assert_eq!(sent(scene.honest[0].hear()), (3, String::new()));
        taken.connection.send(answer, &[]).unwrap();
        let (more, error) =
            fails_at_last(&mut scene, at, |taken| drop(taken.connection.send(answer, &[])));
        assert_eq!(error, format!("Refused{{rank:{rank},{told},waiting:{}}}", 3 + more));
        // The member has room again.
        scene.honest[0].say(&format!("send {rank} 1"));
        let taken = Taken::at(&scene.doors[at]);
        taken.answer(&station);
        assert_eq!(sent(scene.honest[0].hear()), (1, String::new()));
        let messages = (0..4 + more as usize)
            .filter(|at| taken.first[HOME_AT + 3 * at].load(Ordering::Acquire) & MESSAGE != 0);
        assert_eq!(
            messages.count() as u64,
            4 + more,
            "what was sent before lies in the same queue"
        );
        // A receiver that has accepted the queue can no longer refuse it.
        taken.connection.send(answer, &[]).unwrap();
        eventually("a second answer ends the queue", || {
            let again = sent(scene.honest[0].ask(&format!("send {rank} 1"))).1;
            if again.contains("Unreachable") && again.contains("morethanonce") {
                Ok(())
            } else {
                Err(again)
            }
        });
    }
    // A member that hangs up but lives has not ended.
    let (_, error) = fails_at_last(&mut scene, 3, drop);
    assert!(error.starts_with("Unreachable{rank:5") && error.contains("itlives"), "{error}");
    for rank in 2..6 {
        let known = scene.honest[0].ask(&format!("about {rank}")).expect_ok("what it knows");
        assert_eq!(known.len(), 2, "of member {rank}, which lives: {known:?}");
    }
    scene.meanwhile("refusals", |_| ());
}

/// The sender sends nothing more to that member; it only waits for something else.
#[test]
fn a_refused_queue_is_offered_again_while_its_sender_waits() {
    let _company = in_company();
    let mut scene = Scene::new(2, 1, "");
    let station = Station::new().unwrap();
    let lacks = pack(&Opened::Lacks(Lacks { lack: Lack::Memory, errno: Some(12) }));
    // The answer arrives after three messages were sent.
    scene.honest[0].say("send 2 3");
    let taken = Taken::at(&scene.doors[0]);
    assert_eq!(sent(scene.honest[0].hear()), (3, String::new()));
    scene.honest[0].say("exchange 1 1");
    taken.connection.send(&lacks, &[]).unwrap();
    for _ in 0..3 {
        Taken::at(&scene.doors[0]).connection.send(&lacks, &[]).unwrap();
    }
    let taken = Taken::at(&scene.doors[0]);
    taken.answer(&station);
    let messages =
        (0..3).filter(|at| taken.first[HOME_AT + 3 * at].load(Ordering::Acquire) & MESSAGE != 0);
    assert_eq!(messages.count(), 3, "what was sent lies in the queue");
    scene.honest[1].ask("exchange 0 1").expect_ok("what it waits for");
    scene.honest[0].hear().expect_ok("what it waited for");
    scene.honest[0].say("send 2 1");
    assert_eq!(sent(scene.honest[0].hear()), (1, String::new()), "it is taken again");
}

/// Sends three messages to hostile member 2, calls `before`, and refuses the queue.
fn refused_late(scene: &mut Scene, lacks: &[u8], before: impl FnOnce(&mut Scene)) {
    scene.honest[0].say("send 2 3");
    let taken = Taken::at(&scene.doors[0]);
    assert_eq!(sent(scene.honest[0].hear()), (3, String::new()));
    before(scene);
    taken.connection.send(lacks, &[]).unwrap();
}

/// The member's handlers run by themselves, so the message is taken before the wait ends.
#[test]
fn a_refused_queue_keeps_no_wait_from_its_end() {
    let _company = in_company();
    for options in ["virtual", ""] {
        let mut scene = Scene::new(2, 1, options);
        let lacks = pack(&Opened::Lacks(Lacks { lack: Lack::Memory, errno: Some(12) }));
        refused_late(&mut scene, &lacks, |scene| scene.honest[0].say("await 1 1"));
        let start = Instant::now();
        for round in 0.. {
            if let Some(said) = scene.honest[0].heard() {
                assert_eq!(said.expect_ok("what it waited for"), ["held"], "{options}");
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{options}: the wait does not end");
            if let Some(taken) = Taken::at_once(&scene.doors[0]) {
                taken.connection.send(&lacks, &[]).unwrap();
            }
            // The hostile member has refused some offers by then.
            if round == 100 {
                scene.honest[1].say("send 0 1");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(sent(scene.honest[1].hear()), (1, String::new()));
    }
}

#[test]
fn a_refusal_ends_no_wait() {
    let _company = in_company();
    for options in ["virtual", ""] {
        let mut scene = Scene::new(2, 1, options);
        let lacks = pack(&Opened::Lacks(Lacks { lack: Lack::Descriptors, errno: None }));
        refused_late(&mut scene, &lacks, |scene| {
            scene.honest[0].say("wait 300");
            std::thread::sleep(Duration::from_millis(50));
        });
        assert_eq!(scene.honest[0].hear().expect_ok("a wait"), ["false", "true"], "{options}");
        // The queue was offered during the wait.
        Taken::at(&scene.doors[0]);
    }
}

#[test]
fn a_barrier_whose_report_is_refused_ends_and_goes_on_with_the_next_call() {
    let _company = in_company();
    let mut scene = Scene::new(2, 1, "");
    let station = Station::new().unwrap();
    let lacks = pack(&Opened::Lacks(Lacks { lack: Lack::Memory, errno: Some(12) }));
    // Member 1 reports to the hostile member, and then waits for member 0.
    scene.honest[1].say("barrier");
    let start = Instant::now();
    let end = loop {
        assert!(start.elapsed() < Duration::from_secs(60), "the barrier does not end");
        if let Some(taken) = Taken::at_once(&scene.doors[0]) {
            // The first answer arrives while member 1 waits.
            std::thread::sleep(Duration::from_millis(if start.elapsed().as_millis() < 50 {
                50
            } else {
                0
            }));
            let _ = taken.connection.send(&lacks, &[]);
        }
        if let Some(said) = scene.honest[1].heard() {
            break said.expect_ok("a barrier").concat();
        }
    };
    assert!(end.starts_with("Unsent{rank:2,") && end.contains("lives"), "{end}");
    scene.honest[1].say("barrier");
    let taken = Taken::at(&scene.doors[0]);
    taken.answer(&station);
    eventually("its report lies in the queue", || {
        match taken.first[BARRIER].load(Ordering::Acquire) {
            1 => Ok(()),
            reports => Err(reports.to_string()),
        }
    });
    // Member 1 now waits for the others.
    std::thread::sleep(Duration::from_millis(50));
    assert!(scene.honest[1].heard().is_none(), "member 0 has not come");
    assert_eq!(taken.first[BARRIER].load(Ordering::Acquire), 1, "it has reported once");
}

#[test]
fn one_that_takes_nothing_holds_nobody_up() {
    let _company = in_company();
    let mut scene = Scene::new(2, 1, "");
    scene.honest[0].say("pour 2 1000");
    let taken = Taken::at(&scene.doors[0]);
    let words = scene.honest[0].hear().expect_ok("twelve megabytes");
    assert!(words.concat().is_empty(), "{words:?}");
    scene.meanwhile("a member that takes nothing", |_| ());
    // The messages that the hostile member never took go with its queue.
    let held = taken.file.allocated();
    assert!(held > 12_000_000, "{held}");
    drop(taken);
}
