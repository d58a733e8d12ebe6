//! The time from a send to the handler's first instruction (UDM, Table 4: receive by interrupt), by
//! the activity of the receiver's virtual processor.

use super::common::{MANY, joining, on_a_processor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use upcall::message::{Handlers, Pacing, Promise};
use upcall::thread;
use upcall_bench::child::Outcome;
use upcall_bench::lab::{Gate, Lab, OVER};
use upcall_bench::messages::own::case::Own;
use upcall_bench::messages::own::child::{Finding, Task};
use upcall_bench::stats::{Clock, Summary};

/// Measures half of a ping-pong by handlers, which run by upcall or by polling.
pub fn ping_pong(lab: &mut Lab<Task>, by_upcall: bool) -> Outcome<Vec<Finding>> {
    let (task, clock) = (lab.task, Clock::calibrated());
    let side = |rank: usize, gate: &Gate| {
        let body = || player(rank, &task, by_upcall, &clock, gate);
        if by_upcall { on_a_processor(task.cpus[rank], Pacing::Poll, body) } else { body() }
    };
    let Some((trips, _)) = lab.both(|gate| side(0, gate), |gate| side(1, gate))? else {
        return Ok(Vec::new());
    };
    let halves = trips.iter().map(|&ticks| clock.ns(ticks) / 2.0).collect();
    Ok(vec![Finding::times(task.case.name(), Summary::of_nanoseconds(halves))])
}

/// Runs one of the two players. For the first player, returns the ticks from before each of its
/// sends to its handler.
fn player(
    rank: usize,
    task: &Task,
    by_upcall: bool,
    clock: &Clock,
    gate: &Gate,
) -> Outcome<Vec<u64>> {
    let mut handlers = Handlers::new();
    let (ball, stop) = (handlers.kind::<()>("ball"), handlers.kind::<()>("stop"));
    let (tell, ended) = thread::mpsc::channel();
    let over = Rc::new(Cell::new(false));
    let trips = Rc::new(RefCell::new(Vec::with_capacity(MANY)));
    let begun = Rc::new(Cell::new(0));
    let (clock, ours, since, done, told) =
        (*clock, trips.clone(), begun.clone(), over.clone(), tell.clone());
    let (start, time) = (Instant::now(), task.time);
    handlers.on(ball, move |group, from, ()| {
        if rank == 0 {
            let now = clock.read();
            ours.borrow_mut().push(now.wrapping_sub(since.get()));
            if start.elapsed() >= time {
                group.send(from, stop, &()).unwrap();
                done.set(true);
                told.send(()).unwrap();
                return;
            }
            since.set(clock.read());
        }
        group.send(from, ball, &()).unwrap();
    });
    let done = over.clone();
    handlers.on(stop, move |_, _, ()| {
        done.set(true);
        tell.send(()).unwrap();
    });
    let group = joining(task, if by_upcall { "idle" } else { "polled" }, 2, rank)
        .upcalls(by_upcall)
        .join(handlers)?;
    if rank == 0 {
        begun.set(clock.read());
        group.send(1, ball, &())?;
    }
    if by_upcall {
        until_told(&ended, gate)?;
    } else {
        while !over.get() {
            if group.poll() == 0 {
                gate.check()?;
            }
        }
    }
    // The first ones warm up.
    let mut trips = trips.take();
    let warm_up = trips.len() / 10;
    Ok(trips.split_off(warm_up))
}

/// Measures the time by the clock's value in the message, for each activity of the receiver.
pub fn one_way(lab: &mut Lab<Task>) -> Outcome<Vec<Finding>> {
    let (task, clock) = (lab.task, Clock::calibrated());
    let pacing = if task.case == Own::Asleep { Pacing::Sleep } else { Pacing::Poll };
    let receiver = |gate: &Gate| match task.case {
        Own::Signal => interrupted(&task, &clock, gate),
        _ => on_a_processor(task.cpus[1], pacing, || receiver(&task, &clock, gate)),
    };
    let Some(((), ways)) = lab.both(|gate| sender(&task, &clock, gate), receiver)? else {
        return Ok(Vec::new());
    };
    let ways = ways.iter().map(|&ticks| clock.ns(ticks)).collect();
    Ok(vec![Finding::times(task.case.name(), Summary::of_nanoseconds(ways))])
}

/// Sends each message after the previous one was handled and a pause of varying length, so that it
/// finds the receiver at any point of its activity.
fn sender(task: &Task, clock: &Clock, gate: &Gate) -> Outcome<()> {
    let mut handlers = Handlers::new();
    let (at, stop) = (handlers.kind::<u64>("at"), handlers.kind::<()>("stop"));
    let group = joining(task, task.case.name(), 2, 0).join(handlers)?;
    // An idle receiver is asleep by then.
    let least = if task.case == Own::Asleep { 100_000.0 } else { 2_000.0 };
    let (begun, mut sent, mut random) = (Instant::now(), 0, 1_u64);
    while sent < 10 || begun.elapsed() < task.time {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (since, pause) = (clock.read(), least + (random >> 52) as f64);
        while clock.ns(clock.read().wrapping_sub(since)) < pause {
            std::hint::spin_loop();
        }
        group.send(1, at, &clock.read())?;
        sent += 1;
        gate.wait(sent)?;
    }
    group.send(1, stop, &())?;
    gate.wait(OVER).map(drop)
}

/// Returns the ticks of each message in transit.
fn receiver(task: &Task, clock: &Clock, gate: &Gate) -> Outcome<Vec<u64>> {
    let mut handlers = Handlers::new();
    let (at, stop) = (handlers.kind::<u64>("at"), handlers.kind::<()>("stop"));
    let ways = Rc::new(RefCell::new(Vec::with_capacity(MANY)));
    let (over, (tell, ended)) = (Arc::new(AtomicBool::new(false)), thread::mpsc::channel());
    let (clock, ours, turns, told) = (*clock, ways.clone(), gate.clone(), over.clone());
    handlers.on(at, move |_, _, sent| {
        let now = clock.read();
        let mut ways = ours.borrow_mut();
        ways.push(now.wrapping_sub(sent));
        turns.open(ways.len() as u64);
    });
    handlers.on(stop, move |_, _, ()| {
        told.store(true, Ordering::Relaxed);
        tell.send(()).unwrap();
    });
    let _group = joining(task, task.case.name(), 2, 1).join(handlers)?;
    let yielding = || {
        let over = over.clone();
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        })
    };
    let busy: Vec<_> =
        (0..if task.case == Own::Busy { 3 } else { 0 }).map(|_| yielding()).collect();
    while task.case == Own::Computing && !over.load(Ordering::Relaxed) {
        gate.check()?;
        let since = clock.read();
        while clock.ns(clock.read().wrapping_sub(since)) < 1000.0 {
            std::hint::spin_loop();
        }
        thread::safe_point();
    }
    until_told(&ended, gate)?;
    busy.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked"))?;
    gate.open(OVER);
    Ok(ways.take())
}

/// Like [`receiver`], with a receiver that computes and is interrupted by signals.
fn interrupted(task: &Task, clock: &Clock, gate: &Gate) -> Outcome<Vec<u64>> {
    let mut handlers = Handlers::new();
    let (at, stop) = (handlers.kind::<u64>("at"), handlers.kind::<()>("stop"));
    let ways: Arc<[AtomicU64]> = (0..MANY).map(|_| AtomicU64::new(0)).collect();
    let (count, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (clock, ours, turns, counted, told) =
        (*clock, ways.clone(), gate.clone(), count.clone(), over.clone());
    handlers.on_interrupt(at, move |_, message| {
        let now = clock.read();
        let before = counted.fetch_add(1, Ordering::Relaxed);
        if let (Some(way), Some(sent)) = (ours.get(before), message.word(0)) {
            way.store(now.wrapping_sub(sent), Ordering::Relaxed);
        }
        turns.open(before as u64 + 1);
    });
    handlers.on_interrupt(stop, move |_, _| told.store(true, Ordering::Relaxed));
    let group = joining(task, task.case.name(), 2, 1).join(handlers)?;
    group.interruptible(promise(), || {
        while !over.load(Ordering::Relaxed) {
            gate.check()?;
            let since = clock.read();
            while clock.ns(clock.read().wrapping_sub(since)) < 1_000_000.0
                && !over.load(Ordering::Relaxed)
            {
                std::hint::spin_loop();
            }
        }
        Outcome::Ok(())
    })??;
    gate.open(OVER);
    let count = count.load(Ordering::Relaxed).min(MANY);
    Ok(ways[..count].iter().map(|way| way.load(Ordering::Relaxed)).collect())
}

#[allow(unsafe_code)]
fn promise() -> Promise {
    // SAFETY: the handlers of `interrupted` read a clock and a word, and write to atomics.
    unsafe { Promise::given() }
}

/// Blocks this thread of a virtual processor until a handler reports the end.
fn until_told(ended: &thread::mpsc::Receiver<()>, gate: &Gate) -> Outcome<()> {
    while ended.recv_timeout(Duration::from_secs(1)).is_err() {
        gate.check()?;
    }
    Ok(())
}
