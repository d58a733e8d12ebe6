//! Walks over chains of lines that the home has written, to find the length from which an
//! invocation is worthwhile (Psyche, P8 and P12).

use super::objects::{Line, Ordinary, Subject, Walk, touch_chain};
use super::ways::{Caller, attend, batches, create, found, name, on_a_processor, operations};
use std::hint::black_box;
use upcall::home::{Homed, Operation, Queue};
use upcall_bench::child::Outcome;
use upcall_bench::homed::case::{CHAINS, chain, way};
use upcall_bench::homed::child::{Finding, Task};
use upcall_bench::lab::{Gate, Lab};
use upcall_bench::stats::Clock;

#[expect(clippy::too_many_lines, reason = "both sides of a measurement stand together")]
pub fn measure(lab: &mut Lab<Task>) -> Outcome<Vec<Finding>> {
    let task = lab.task;
    // The caller has stored the length.
    let touch = |home: &Homed<Queue<Line>>, gate: &Gate| {
        Ok(home.access(|lines| touch_chain(lines, gate.said()))?)
    };
    let polls = |gate: &Gate| {
        let home = create(&task, "chain", &Walk(0))?;
        let clock = Clock::in_order();
        let local = |lines: u32| {
            let walk = || {
                black_box(home.perform::<Walk>(black_box(u64::from(lines)))?);
                Ok(())
            };
            Ok(Finding::times(&chain(lines), way::LOCAL, batches(&clock, task.time, walk)?))
        };
        let told = CHAINS.into_iter().map(local).collect::<Outcome<Vec<_>>>()?;
        let serving = home.serve(operations::<Walk>())?;
        attend(gate, || _ = serving.poll(), || touch(&home, gate))?;
        Ok(told)
    };
    let asks = |gate: &Gate| {
        let caller = Caller::new(gate, &task)?;
        let away = Homed::<<Walk as Subject>::Of>::find(&name(&task, "chain"))?;
        let mut told = Vec::new();
        for lines in CHAINS {
            let count = u64::from(lines);
            gate.say(count);
            let access = caller.each(true, || {
                black_box(away.perform::<Walk>(black_box(count))?);
                Ok(())
            })?;
            let read = caller.each(true, || {
                black_box(away.read(|object| Walk::run(object, black_box(count)))?);
                Ok(())
            })?;
            let urgent = caller.each(true, || {
                black_box(away.urgent::<Walk>(black_box(count))?);
                Ok(())
            })?;
            let own = away.try_clone()?;
            let auto = caller.each(true, || {
                black_box(own.auto::<Walk>(black_box(count))?);
                Ok(())
            })?;
            let bulk = caller.each(true, || {
                black_box(away.bulk(|object| Walk::run(object, black_box(count)))?);
                Ok(())
            })?;
            let ways = [
                (way::ACCESS, access),
                (way::READ, read),
                (way::URGENT, urgent),
                (way::AUTO, auto),
                (way::BULK, bulk),
            ];
            told.extend(ways.map(|(way, times)| Finding::times(&chain(lines), way, times)));
        }
        caller.end();
        Ok(told)
    };
    let mut all = found(lab.both(polls, asks)?);

    // A home on a virtual processor.
    let home = |gate: &Gate| {
        on_a_processor(task.cpus[0], || {
            let home = create(&task, "chain-virtual", &Walk(0))?;
            let _serving = home.serve(operations::<Walk>())?;
            attend(gate, upcall::thread::yield_now, || touch(&home, gate)).map(|()| Vec::new())
        })
    };
    let asks = |gate: &Gate| {
        let caller = Caller::new(gate, &task)?;
        let away = Homed::<<Walk as Subject>::Of>::find(&name(&task, "chain-virtual"))?;
        let invoked = |lines: u32| {
            let count = u64::from(lines);
            gate.say(count);
            let invoke = caller.each(true, || {
                black_box(away.invoke::<Ordinary<Walk>>(black_box(count))?);
                Ok(())
            })?;
            Ok(Finding::times(&chain(lines), way::INVOKE, invoke))
        };
        let told = CHAINS.into_iter().map(invoked).collect::<Outcome<Vec<_>>>()?;
        caller.end();
        Ok(told)
    };
    all.extend(found(lab.both(home, asks)?));
    Ok(all)
}
