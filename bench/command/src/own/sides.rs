//! The costs of one side: a section while no message waits (UDM's `beginatom` and `endatom`), and
//! polling with handlers.

use super::common::{BURST, MANY, joining, on_a_processor, take, well};
use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};
use upcall::message::{Handlers, Pacing};
use upcall_bench::child::Outcome;
use upcall_bench::lab::{Gate, Lab, OVER};
use upcall_bench::messages::own::child::{Finding, Task};
use upcall_bench::stats::{Clock, Summary};

/// Number of sections of a sample.
const SECTIONS: u32 = 256;

pub fn section(lab: &mut Lab<Task>) -> Outcome<Vec<Finding>> {
    let mut findings = Vec::new();
    for others in [1, 7, 30] {
        if let Some([section, look]) = section_beside(others, lab)? {
            findings.push(Finding::times(&format!("section-{others}"), section));
            findings.push(Finding::times(&format!("available-{others}"), look));
        }
    }
    Ok(findings)
}

/// Measures a section, and the check for waiting messages, which is most of it, where `others`
/// other members have sent something before.
fn section_beside(others: usize, lab: &mut Lab<Task>) -> Outcome<Option<[Summary; 2]>> {
    let task = lab.task;
    let name = format!("section-{others}");
    let own = |gate: &Gate| {
        let mut handlers = Handlers::new();
        handlers.kind::<()>("once");
        let group = joining(&task, &name, others + 1, 0).join(handlers)?;
        take(&group, gate, others as u64)?;
        let clock = Clock::calibrated();
        let mut samples = [Vec::with_capacity(MANY), Vec::with_capacity(MANY)];
        let begun = Instant::now();
        while samples[1].is_empty() || begun.elapsed() < task.time {
            let before = clock.read();
            for _ in 0..SECTIONS {
                let section = group.atomic();
                // Makes the section non-empty for the compiler.
                black_box(&group);
                drop(section);
            }
            let between = clock.read();
            for _ in 0..SECTIONS {
                black_box(black_box(&group).available());
            }
            let after = clock.read();
            for (samples, ticks) in
                samples.iter_mut().zip([between.wrapping_sub(before), after.wrapping_sub(between)])
            {
                samples.push(clock.ns(ticks) / f64::from(SECTIONS));
            }
        }
        gate.open(OVER);
        Ok(samples.map(Summary::of_nanoseconds))
    };
    // Sections are needed only where handlers run as upcalls: on a virtual processor.
    let own = |gate: &Gate| on_a_processor(task.cpus[0], Pacing::Poll, || own(gate));
    let other = |rank, gate: &Gate| {
        let mut handlers = Handlers::new();
        let once = handlers.kind::<()>("once");
        let group = joining(&task, &name, others + 1, rank).join(handlers)?;
        group.send(0, once, &())?;
        gate.rest(OVER)
    };
    let rest = |gate: &Gate| {
        thread::scope(|scope| {
            let other = &other;
            let threads: Vec<_> = (2..=others)
                .map(|rank| scope.spawn(move || gate.guard(|| other(rank, gate))))
                .collect();
            let mut ended = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("a member panicked".into())));
            gate.guard(|| other(1, gate)).and_then(|_| ended.try_for_each(|ended| ended.map(drop)))
        })
    };
    Ok(lab.both(own, rest)?.map(|(found, ())| found))
}

/// Measures bursts that wait in the queue, taken by `poll` and by `receive` in turn.
pub fn poll(lab: &mut Lab<Task>) -> Outcome<Vec<Finding>> {
    let task = lab.task;
    let sender = |gate: &Gate| {
        let mut handlers = Handlers::new();
        let (handled, bare) = (handlers.kind::<()>("handled"), handlers.kind::<()>("bare"));
        let group = joining(&task, "poll", 2, 0).join(handlers)?;
        let mut turn = 1;
        while gate.wait(turn)? != OVER {
            let kind = if turn % 4 == 1 { handled } else { bare };
            (0..BURST).try_for_each(|_| group.send(1, kind, &()))?;
            gate.open(turn + 1);
            turn += 2;
        }
        Ok(())
    };
    let receiver = |gate: &Gate| {
        let mut handlers = Handlers::new();
        let (handled, count) = (handlers.kind::<()>("handled"), Rc::new(Cell::new(0_u64)));
        handlers.kind::<()>("bare");
        let counted = count.clone();
        handlers.on(handled, move |_, _, ()| counted.set(counted.get() + 1));
        let group = joining(&task, "poll", 2, 1).join(handlers)?;
        let clock = Clock::calibrated();
        let mut samples = [Vec::with_capacity(MANY), Vec::with_capacity(MANY)];
        let (begun, mut turn, warm_up) =
            (Instant::now(), 1, task.time.min(Duration::from_millis(1)));
        while samples.iter().any(Vec::is_empty) || begun.elapsed() < task.time {
            gate.open(turn);
            gate.wait(turn + 1)?;
            let (by_poll, before) = (turn % 4 == 1, clock.read());
            if by_poll {
                let all = count.get() + BURST;
                while count.get() < all {
                    if group.poll() == 0 {
                        gate.check()?;
                    }
                }
                // Like a receiver that takes all waiting messages.
                group.poll();
            } else {
                take(&group, gate, BURST)?;
            }
            let spent = clock.ns(clock.read().wrapping_sub(before)) / BURST as f64;
            if begun.elapsed() > warm_up {
                samples[usize::from(!by_poll)].push(spent);
            }
            turn += 2;
        }
        well(&group)?;
        gate.open(OVER);
        Ok(samples.map(Summary::of_nanoseconds))
    };
    let Some(((), [by_poll, by_receive])) = lab.both(sender, receiver)? else {
        return Ok(Vec::new());
    };
    Ok(vec![Finding::times("poll-0", by_poll), Finding::times("poll-0-by-receive", by_receive)])
}
