//! Walks over chains of lines that the home has written: from how many on an invocation is worth it (P8, P12).

use super::objects::{Subject, Walk, touch_chain};
use super::ways::{Caller, attend, batches, create, name, operations};
use std::hint::black_box;
use upcall::home::{Homed, Operation};
use upcall_bench::child::Outcome;
use upcall_bench::homed::case::{CHAINS, chain, way};
use upcall_bench::homed::child::{Finding, Task};
use upcall_bench::lab::{Gate, Lab};
use upcall_bench::stats::Clock;

pub fn measure(lab: &mut Lab<Task>) -> Outcome<Vec<Finding>> {
    let task = lab.task;
    let home = |gate: &Gate| {
        let home = create(&task, "chain", &Walk(0))?;
        let clock = Clock::in_order();
        let local = |lines: u32| {
            let walk = || {
                black_box(home.perform::<Walk>(black_box(u64::from(lines)))?);
                Ok(())
            };
            Ok(Finding::times(&chain(lines), way::LOCAL, batches(&clock, task.time, walk)?))
        };
        let found = CHAINS.into_iter().map(local).collect::<Outcome<Vec<_>>>()?;
        let serving = home.serve(operations::<Walk>())?;
        // The caller has said how many.
        let touch = || Ok(home.access(|lines| touch_chain(lines, gate.said()))?);
        attend(gate, || _ = serving.poll(), touch)?;
        Ok(found)
    };
    let asks = |gate: &Gate| {
        let caller = Caller::new(gate, &task)?;
        let away = Homed::<<Walk as Subject>::Of>::find(&name(&task, "chain"))?;
        let mut found = Vec::new();
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
            let ways = [(way::ACCESS, access), (way::READ, read), (way::URGENT, urgent), (way::AUTO, auto)];
            found.extend(ways.map(|(way, times)| Finding::times(&chain(lines), way, times)));
        }
        caller.end();
        Ok(found)
    };
    Ok(lab.both(home, asks)?.map_or(Vec::new(), |(home, caller)| [home, caller].concat()))
}
