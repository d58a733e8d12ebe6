//! What a ULP has of a process that is measured, limited or named: processor time, limits, name.

mod common;

use common::{apart, apart_with, compile, over, words};
use std::fs;
use std::os::unix::process::parent_id;
use std::time::Duration;
use upcall_ulp::{
    ASK_OWN, ASK_READY, ASK_UMASK, ASK_YIELD, Image, StopReason, Ulp, UlpRequest, Worker,
    descriptors,
};

const EVERY: Duration = Duration::from_millis(4);
/// Maximum processor time between two interrupts, in nanoseconds, generously.
const INTERVAL: u64 = 50_000_000;

/// Runs a ULP until it ends, or asks something of its own.
fn run(worker: &mut Worker, ulp: &mut Ulp, image: &Image) -> StopReason {
    loop {
        match worker.resume(ulp) {
            StopReason::Interrupted => {
                if ulp.handles() && ulp.is_in_own_code(image) {
                    ulp.answer(1);
                }
            }
            StopReason::Asks(UlpRequest { what: ASK_READY, args }) => {
                descriptors::ready(&[(args[0] as i32, args[1] as u16)], None);
                ulp.answer(1);
            }
            StopReason::Asks(UlpRequest { what: ASK_YIELD, .. }) => ulp.answer(0),
            other => return other,
        }
    }
}

/// Runs a ULP until it asks with its processor time, and returns that.
fn turn(worker: &mut Worker, ulp: &mut Ulp, image: &Image) -> u64 {
    let StopReason::Asks(UlpRequest { what: ASK_OWN, args }) = run(worker, ulp, image) else {
        panic!("{ulp:?}")
    };
    ulp.answer(1);
    args[0]
}

/// Processor time of this thread, in nanoseconds.
fn thread_time() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn the_time_of_a_ulp_that_computes_alone_is_that_of_the_thread() {
    let Some(folder) = apart("the_time_of_a_ulp_that_computes_alone_is_that_of_the_thread") else {
        return;
    };
    let image = Image::open(&compile(folder.path(), "clocks")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let load = |how| Ulp::load(&image, &words(&["clocks", how]), &[]).unwrap();
    let ended = StopReason::Ended { status: 0 };
    assert_eq!(worker.resume(&mut load("exact")), ended);
    worker.interrupt_every(EVERY).unwrap();
    assert_eq!(run(&mut worker, &mut load("alone"), &image), ended);
    assert_eq!(run(&mut worker, &mut load("children"), &image), ended);
    over(folder)
}

#[test]
fn no_time_is_counted_for_two_ulps_and_who_waits_has_none() {
    let Some(folder) = apart("no_time_is_counted_for_two_ulps_and_who_waits_has_none") else {
        return;
    };
    /// What each ULP that computes is to use, in nanoseconds.
    const ALL: u64 = 250_000_000;
    let image = Image::open(&compile(folder.path(), "clocks")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let parent = parent_id().to_string();
    let load = |how, turn| Ulp::load(&image, &words(&["clocks", how, turn, &parent]), &[]).unwrap();
    // Without interrupts, a ULP's time is all that it has seen itself.
    let mut ulps = [load("turns", "20"), load("turns", "0")];
    for _ in 0..3 {
        let [one, waits] = ulps.each_mut().map(|ulp| turn(&mut worker, ulp, &image));
        assert!(one >= 20_000_000 && waits == 0, "{one} {waits}");
    }
    worker.interrupt_every(EVERY).unwrap();
    // Interrupts find one of them only.
    let mut ulps = [load("long", "0"), load("short", "0")];
    let (before, mut used) = (thread_time(), [0; 2]);
    for _ in 0..100 {
        used = ulps.each_mut().map(|ulp| turn(&mut worker, ulp, &image));
    }
    let all = thread_time() - before;
    assert!(used[0] + used[1] <= all + 2 * INTERVAL, "{used:?} of {all}");
    // Two compute in turns of unequal length; the third only asks for its time.
    let mut ulps = ["5", "3", "0"].map(|time| load("turns", time));
    let before = thread_time();
    let mut used = [0; 3];
    while used[0] < ALL || used[1] < ALL {
        for (ulp, used) in ulps.iter_mut().zip(&mut used) {
            let now = turn(&mut worker, ulp, &image);
            assert!(now >= *used, "{now} after {used}");
            *used = now;
        }
    }
    let all = thread_time() - before;
    let sum = used.iter().sum::<u64>();
    assert!(sum <= all + 3 * INTERVAL, "{used:?} of {all}");
    assert!(sum >= all / 2, "{used:?} of {all}");
    assert!(used[2] <= INTERVAL, "{used:?} of {all}");
    for ulp in &mut ulps {
        ulp.answer(0);
        assert_eq!(run(&mut worker, ulp, &image), StopReason::Ended { status: 0 });
    }
    over(folder)
}

#[test]
fn limits_and_names_are_each_ones_own_or_refused() {
    let name = "limits_and_names_are_each_ones_own_or_refused";
    let look = |said: &str| {
        for name in ["FSIZE", "DATA", "STACK", "NPROC", "NOFILE", "MEMLOCK", "AS", "RTPRIO"] {
            let refused = format!("upvm: setrlimit(RLIMIT_{name}) is refused in a task: ");
            assert_eq!(said.matches(&refused).count(), 2, "{name}: {said}");
        }
        for (call, times) in [
            ("nice", 2),
            ("setpriority", 4),
            (&format!("prctl({})", libc::PR_SET_DUMPABLE), 2),
            (&format!("prctl({})", libc::PR_SET_PDEATHSIG), 2),
            ("setitimer(ITIMER_VIRTUAL)", 2),
            ("setitimer(ITIMER_PROF)", 2),
            ("timer_create", 2),
        ] {
            let refused = format!("upvm: {call} is refused in a task: ");
            assert_eq!(said.matches(&refused).count(), times, "{call}: {said}");
        }
    };
    let Some(folder) = apart_with(name, look) else { return };
    let image = Image::open(&compile(folder.path(), "limits")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let parent = parent_id().to_string();
    let state = || {
        ["limits", "comm"]
            .map(|name| fs::read_to_string(format!("/proc/thread-self/{name}")).unwrap())
    };
    let before = state();
    let mut ulps = [1, 2].map(|number: i32| {
        Ulp::load(&image, &words(&["limits", "all", &number.to_string(), &parent]), &[]).unwrap()
    });
    for ulp in &mut ulps {
        assert!(matches!(worker.resume(ulp), StopReason::Asks(_)), "{ulp:?}");
    }
    for ulp in &mut ulps {
        assert_eq!(worker.resume(ulp), StopReason::Ended { status: 0 });
    }
    assert_eq!(state(), before);
    over(folder)
}

#[test]
fn who_uses_more_processor_time_than_it_may_is_warned_and_ends() {
    let Some(folder) = apart("who_uses_more_processor_time_than_it_may_is_warned_and_ends") else {
        return;
    };
    let image = Image::open(&compile(folder.path(), "limits")).unwrap();
    let mut worker = Worker::begin().unwrap();
    worker.interrupt_every(EVERY).unwrap();
    let load = |how| Ulp::load(&image, &words(&["limits", how, "0"]), &[]).unwrap();
    let warned = StopReason::Ended { status: 128 + libc::SIGXCPU };
    assert_eq!(run(&mut worker, &mut load("soft"), &image), warned);
    let mut ulp = load("hard");
    let StopReason::Asks(UlpRequest { what: ASK_OWN, args: [1, ..] }) =
        run(&mut worker, &mut ulp, &image)
    else {
        panic!("{ulp:?}")
    };
    ulp.answer(0);
    let killed = StopReason::Ended { status: 128 + libc::SIGKILL };
    assert_eq!(run(&mut worker, &mut ulp, &image), killed);
    over(folder)
}

#[test]
fn a_umask_is_the_hosts_to_keep() {
    let Some(folder) = apart("a_umask_is_the_hosts_to_keep") else { return };
    let image = Image::open(&compile(folder.path(), "mask")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let mut ulp = Ulp::load(&image, &words(&["mask"]), &[]).unwrap();
    let StopReason::Asks(UlpRequest { what, args }) = worker.resume(&mut ulp) else {
        panic!("{ulp:?}")
    };
    assert_eq!((what, args[0]), (ASK_UMASK, 0o027));
    ulp.answer(0o123);
    assert_eq!(worker.resume(&mut ulp), StopReason::Ended { status: 0o123 });
    over(folder)
}
