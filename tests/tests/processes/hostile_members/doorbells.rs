//! Doorbells that are rung and drained for ever, and stations that report a false sleep state.

use super::receiver::fails_at_last;
use super::{Brought, LATE_MS, Scene, Taken, sent};
use crate::in_company;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use upcall_shm::station::Station;
use upcall_tests::place::{AtLast, eventually};
use upcall_tests::usage::processor_time;

#[test]
fn bells_that_never_rest() {
    let _company = in_company();
    for pacing in ["sleep", ""] {
        let mut scene = Scene::new(2, 2, pacing);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _at_last = AtLast(&over);
            let queues = [2, 3].map(|rank| Brought::new(&scene, rank, 0));
            scope.spawn(|| {
                let [rung, drained] = queues;
                while !over.load(Ordering::Relaxed) {
                    rung.doorbell.notify();
                    drained.doorbell.notify();
                    drained.doorbell.silence();
                }
                // The doorbell is full, and blocking.
                let flags = rustix::fs::fcntl_getfl(&rung.doorbell).unwrap();
                rustix::fs::fcntl_setfl(&rung.doorbell, flags & !rustix::fs::OFlags::NONBLOCK)
                    .unwrap();
                rung.doorbell.silence();
                rustix::io::write(&rung.doorbell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            });
            scene.meanwhile("doorbells", |_| ());
            scene.honest[1].say("endure 300");
            let numbers = scene.honest[0].ask("endure 300").numbers("doorbells");
            scene.honest[1].hear().expect_ok("nothing to do");
            println!("    {} rounds in 300 ms, {} ms late", numbers[0], numbers[1]);
            assert!(numbers[1] < LATE_MS, "a wait of 300 ms took {} ms longer", numbers[1]);
        });
        scene.meanwhile("doorbells that are full", |_| ());
        eventually("300 ms of a quiet time take less than 150 ms of processor time", || {
            let before = processor_time(scene.honest[0].pid());
            scene.honest[0].ask("endure 300").expect_ok("a quiet time");
            let spent = Duration::from_nanos(processor_time(scene.honest[0].pid()) - before);
            if spent < Duration::from_millis(150) { Ok(()) } else { Err(format!("{spent:?}")) }
        });
    }
}

#[test]
fn stations_that_lie() {
    let _company = in_company();
    let mut scene = Scene::new(2, 4, "");
    let station = Station::new().unwrap();
    for (at, (asleep, changes)) in
        [(1, false), (0, false), (1, true), (1, true)].into_iter().enumerate()
    {
        let line = station.line(0);
        line.asleep.store(asleep, Ordering::Release);
        scene.honest[0].say(&format!("send {} 1", 2 + at));
        let taken = Taken::at(&scene.doors[at]);
        taken.answer(&station);
        scene.honest[0].hear().expect_ok("the first one");
        // The doorbell is full and blocking: a sender that rang it with a write would wait for
        // ever.
        let flags = rustix::fs::fcntl_getfl(&taken.doorbell).unwrap();
        let _ = rustix::io::write(&taken.doorbell, &(u64::MAX - 2).to_ne_bytes());
        let _ = rustix::io::write(&taken.doorbell, &1_u64.to_ne_bytes());
        rustix::fs::fcntl_setfl(&taken.doorbell, flags & !rustix::fs::OFlags::NONBLOCK).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _at_last = AtLast(&over);
            scope.spawn(|| {
                while changes && !over.load(Ordering::Relaxed) {
                    line.sleeps.fetch_add(1, Ordering::Relaxed);
                    line.asleep.store(
                        (at < 3 || !line.sleeps.load(Ordering::Relaxed).is_multiple_of(3)) as u32,
                        Ordering::Release,
                    );
                }
            });
            scene.honest[0].say(&format!("send {} 3000", 2 + at));
            assert_eq!(sent(scene.honest[0].hear()), (3000, String::new()));
        });
        // The hostile member ends the queue together with its doorbell.
        if at == 3 {
            drop(taken);
        }
        scene.meanwhile("stations", |_| ());
    }
    // A member that never answers, and has closed its doorbell.
    let mut scene = Scene::new(2, 1, "");
    scene.honest[0].say("send 2 1");
    let Taken { connection, first, file, doorbell } = Taken::at(&scene.doors[0]);
    drop((first, file, doorbell));
    scene.honest[0].hear().expect_ok("the first one");
    assert_eq!(sent(scene.honest[0].ask("send 2 100")), (100, String::new()));
    drop(connection);
    scene.meanwhile("a member that never answers", |_| ());
    // The member lives and has not answered, so it is offered the queue again, with all messages in
    // it.
    let (_, error) = fails_at_last(&mut scene, 0, drop);
    assert!(error.starts_with("Unreachable{rank:2") && error.contains("itlives"), "{error}");
    let known = scene.honest[0].ask("about 2").expect_ok("what it knows");
    assert_eq!(known.len(), 2, "of a member that lives: {known:?}");
}
