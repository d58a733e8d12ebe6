//! A server that runs on a caller's processor: whose calls it serves, and when it gives the
//! processor back. Also, what becomes of calls whose server processor is busy.

use crate::{alone, place};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use upcall_os::processor::CpuSet;
use upcall_tests::donors::CALLS_AFTER;
use upcall_tests::party::PATIENCE;

/// Runs `turns` of a server that was asleep when all calls arrived, with `times` in ms (see
/// `upcall_tests::donors::turns`). Returns in which order and on which processor the calls were
/// served, first those of the donor, then those of the others.
fn turns(own: usize, others: usize, times: &str) -> (Vec<[u64; 2]>, Vec<[u64; 2]>) {
    let place = place();
    let server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    client.ask(&format!("turns {others} {own} {times}")).expect_ok("lanes for all");
    std::thread::sleep(CALLS_AFTER / 2);
    server.stop();
    std::thread::sleep(CALLS_AFTER);
    server.signal(Signal::CONT);
    let turns = client.hear().numbers("turns");
    println!("    order and processor, the donor's first: {turns:?}");
    let mut turns: Vec<[u64; 2]> = turns.chunks_exact(2).map(|turn| [turn[0], turn[1]]).collect();
    turns[..own].sort_unstable();
    let others = turns.split_off(own);
    (turns, others)
}

fn two_processors() -> bool {
    let two = CpuSet::allowed().is_ok_and(|allowed| allowed.count() > 1);
    if !two {
        println!("    skipped: processors 0 and 1 are needed");
    }
    two
}

#[test]
fn the_donors_calls_are_served_first_and_others_elsewhere() {
    let _alone = alone();
    if !two_processors() {
        return;
    }
    // When the calls arrive, the server sleeps on its own processor, or on the one to which the
    // donor has brought it before.
    for times in ["20 0 0", "20 0 200"] {
        // At the first reply the kernel may run the donor at once. The donor then has its processor
        // back, as it should, and the server goes on elsewhere. One turn in which that does not
        // happen is enough.
        let mut places = Vec::new();
        for _ in 0..5 {
            let (own, others) = turns(3, 3, times);
            assert!(
                own.iter().all(|&[order, _]| order < 3),
                "others were served before the donor: {own:?}"
            );
            assert!(
                others.iter().all(|&[_, place]| place != 0),
                "others were served on the donor's processor: {others:?}"
            );
            places.push(own.iter().map(|&[_, place]| place).collect::<Vec<_>>());
            if places.last().is_some_and(|places| places.iter().all(|&place| place == 0)) {
                break;
            }
        }
        let last = places.last().expect("a turn");
        assert!(
            last.iter().all(|&place| place == 0),
            "the donor's calls were never all served where it gave a processor: {places:?}"
        );
    }
}

#[test]
fn a_donor_with_work_of_its_own_gets_its_processor_back() {
    let _alone = alone();
    if !two_processors() {
        return;
    }
    // After the first reply the donor's processor computes for longer than the other calls take.
    let (own, _) = turns(6, 0, "30 300 0");
    assert_eq!(own[0][1], 0, "the first call was served where the donor gave a processor: {own:?}");
    assert!(
        own[3..].iter().all(|&[_, place]| place != 0),
        "the server stayed on a processor that its donor needs: {own:?}"
    );
}

#[test]
fn a_busy_processor_of_a_server_holds_up_nobody_while_another_sleeps() {
    let _alone = alone();
    let place = place();
    let _server = place.serve("trial two");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    std::thread::sleep(Duration::from_millis(100));
    // A call that waits for the busy processor ends no earlier than the long call. On a busy
    // machine a call may take that long now and then, so three rounds without such a call suffice.
    let (mut good, start) = (0, Instant::now());
    for round in 0.. {
        assert!(start.elapsed() < PATIENCE, "calls wait for a busy processor in most rounds");
        let [calls, longest] = client.ask("beside-a-long-call 400").numbers("calls")[..] else {
            panic!("two numbers")
        };
        println!(
            "    round {round}: {calls} calls beside the long one, the longest took {longest} µs"
        );
        good += u32::from(calls > 20 && longest < 200_000);
        if good == 3 {
            return;
        }
    }
}
