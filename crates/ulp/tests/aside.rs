//! Calls that helpers run: their results, interruptions, and ULPs that end before their calls.

mod common;

use common::{apart, compile, over, words};
use std::io::{Write, pipe};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use upcall_ulp::{
    ASK_ASIDE, ASK_OWN, Aside, Image, StopReason, Ulp, UlpRequest, Worker, descriptors,
};

const EINTR: i64 = 4;

/// Returns the address of the call that the ULP asks for.
fn asks_aside(worker: &mut Worker, ulp: &mut Ulp) -> u64 {
    match worker.resume(ulp) {
        StopReason::Asks(UlpRequest { what: ASK_ASIDE, args }) => args[0],
        other => panic!("{other:?}"),
    }
}

/// Waits until `count` calls are done.
fn until_done(aside: &Aside, mut count: usize) {
    let end = Instant::now() + Duration::from_secs(60);
    while count > 0 {
        assert!(Instant::now() < end, "{count} are not done");
        descriptors::ready(&[(aside.descriptor(), 1)], Some(Duration::from_secs(1)));
        count -= aside.done().len();
    }
}

#[test]
fn a_call_runs_aside_until_it_is_done_or_interrupted() {
    let Some(folder) = apart("a_call_runs_aside_until_it_is_done_or_interrupted") else { return };
    let image = Image::open(&compile(folder.path(), "aside")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let (reader, mut writer) = pipe().unwrap();
    let aside = Aside::begin().unwrap();
    let rounds = 3000;
    let mut ulp = Ulp::load(
        &image,
        &words(&["aside", &reader.as_raw_fd().to_string(), &rounds.to_string()]),
        &[],
    )
    .unwrap();
    for round in 0..rounds {
        let at = asks_aside(&mut worker, &mut ulp);
        ulp.begin_aside(&aside, at, 7).unwrap();
        assert_eq!(ulp.begin_aside(&aside, at, 7), Err(libc::EBUSY));
        let writes = round % 10 == 0;
        if writes {
            writer.write_all(b"x").unwrap();
        } else {
            // Interrupts at each point of the call's way into the kernel.
            (0..round % 200 * 20).for_each(|_| std::hint::spin_loop());
            ulp.interrupt_aside();
        }
        until_done(&aside, 1);
        let result = ulp.aside().unwrap();
        assert_eq!(ulp.aside(), None);
        assert_eq!(result, if writes { 1 } else { -EINTR }, "in round {round}");
        ulp.answer(result);
        let StopReason::Asks(UlpRequest { what, args }) = worker.resume(&mut ulp) else {
            panic!("the ULP has ended")
        };
        assert_eq!(
            (what, args[0] as i64, args[1]),
            (ASK_OWN, result, if writes { u64::from(b'x') } else { 0 })
        );
    }
    let at = asks_aside(&mut worker, &mut ulp);
    assert_eq!(ulp.begin_aside(&aside, at, 7), Err(libc::ENOSYS));
    let nowhere = asks_aside(&mut worker, &mut ulp);
    assert_eq!(ulp.begin_aside(&aside, nowhere, 7), Err(libc::EFAULT));
    assert_eq!(worker.resume(&mut ulp), StopReason::Ended { status: 0 });
    over(folder)
}

#[test]
fn who_ends_while_its_call_runs_keeps_its_memory_until_that_is_done() {
    let Some(folder) = apart("who_ends_while_its_call_runs_keeps_its_memory_until_that_is_done")
    else {
        return;
    };
    let image = Image::open(&compile(folder.path(), "aside")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let (reader, _writer) = pipe().unwrap();
    let aside = Aside::begin().unwrap();
    let load = || {
        Ulp::load(&image, &words(&["aside", &reader.as_raw_fd().to_string(), "1"]), &[]).unwrap()
    };
    for round in 0..20 {
        // More than there are helpers.
        let mut ulps = (0..if round < 2 { 400 } else { 40 }).map(|_| load()).collect::<Vec<_>>();
        let count = ulps.len();
        for (token, ulp) in ulps.iter_mut().enumerate() {
            let at = asks_aside(&mut worker, ulp);
            ulp.begin_aside(&aside, at, token as u64).unwrap();
        }
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(ulps);
        until_done(&aside, count);
        // A slot that was given back too early would have been unmapped under the call; a slot that
        // was not given back would be missing.
        assert_eq!(load().slot(), 0);
    }
    // No helper is left after there was nothing to do for a while.
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let end = Instant::now() + Duration::from_secs(60);
    while threads() > 4 {
        assert!(Instant::now() < end, "{} threads are left", threads());
        std::thread::sleep(Duration::from_millis(50));
    }
    over(folder)
}
