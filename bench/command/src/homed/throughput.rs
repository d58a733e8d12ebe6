//! Several processes at once on one hot object: by remote access, by urgent invocation, and the
//! same data under a mutex of the C library and under a spin lock.
//!
//! Callers by remote access, and those of the two locks, alternate between both processors; the
//! home sleeps. Callers by invocation are on the second processor, and the home polls on the first.

use super::objects::{Count, EnqueueDequeue, Subject};
use super::ways::{batches, create, name, operations};
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};
use upcall::home::Homed;
use upcall_bench::child::{Outcome, Throughput};
use upcall_bench::homed::case::{CALLERS, Hot, way};
use upcall_bench::homed::child::{Finding, Task};
use upcall_bench::homed::raw::{self, Bare, Data};
use upcall_bench::lab::{Gate, Lab, pin};
use upcall_bench::stats::Clock;

/// Turns: the object exists; all begin; all end.
const READY: u64 = 1;
const GO: u64 = 2;
const STOP: u64 = 3;

/// Number of operations between two checks for the end.
const ROUND: u64 = 16;

pub fn measure(lab: &mut Lab<Task>, hot: Hot) -> Outcome<Vec<Finding>> {
    match hot {
        Hot::Counter => of(lab, hot, &Count, Data::count),
        Hot::Queue => of(lab, hot, &EnqueueDequeue, |data| data.pass(7)),
    }
}

fn of<S: Subject>(
    lab: &mut Lab<Task>,
    hot: Hot,
    subject: &S,
    bare: impl Fn(&Data) -> u64 + Copy + Sync + Send,
) -> Outcome<Vec<Finding>> {
    let task = lab.task;
    let (made, opened) = (OnceLock::<(Bare, OwnedFd)>::new(), OnceLock::<Bare>::new());
    let first = |gate: &Gate| {
        let (memory, file) = Bare::create()?;
        gate.open(1 + raw::number(&file));
        let found = alone(&task, hot, subject, &memory, bare)?;
        made.set((memory, file)).map_err(|_| "the memory was made already")?;
        Ok(found)
    };
    let other = |_: usize, gate: &Gate| {
        let number = gate.rest(1)? - 1;
        let memory = Bare::open(task.group, number as i32)?;
        opened.get_or_init(|| memory);
        Ok(())
    };
    let mut all = lab.all(first, other)?.map_or(Vec::new(), |(found, _)| found);
    for way in [way::ACCESS, way::URGENT, way::MUTEX, way::SPIN] {
        for callers in CALLERS {
            let object = format!("hot-{way}-{callers}");
            let home = |gate: &Gate| {
                let window = task.time * 4;
                if [way::MUTEX, way::SPIN].contains(&way) {
                    return sleep(gate, window, callers);
                }
                let home = create(&task, &object, subject)?;
                if way == way::ACCESS {
                    return sleep(gate, window, callers);
                }
                let serving = home.serve(operations::<S>())?;
                attend(gate, window, callers, || _ = serving.poll())
            };
            let caller = |rank: usize, gate: &Gate| {
                if rank > callers {
                    return Ok(0);
                }
                gate.rest(READY)?;
                if way != way::URGENT {
                    pin(task.cpus[rank % 2])?;
                }
                let (memory, argument) = (opened.get().ok_or("no memory")?, subject.argument());
                let find = || Homed::<S::Of>::find(&name(&task, &object));
                match way {
                    way::ACCESS => drive(gate, by_access::<S>(&find()?, argument)),
                    way::URGENT => drive(gate, by_urgent::<S>(&find()?, argument)),
                    way::MUTEX => drive(gate, || {
                        black_box(memory.with_mutex(bare));
                        Ok(())
                    }),
                    _ => drive(gate, || {
                        black_box(memory.with_spin(bare));
                        Ok(())
                    }),
                }
            };
            let Some((window, counts)) = lab.all(home, caller)? else { continue };
            let rate = Throughput::new(counts.iter().sum(), window);
            all.push(Finding::rate(&hot.record(callers), way, callers, rate));
        }
    }
    Ok(all)
}

fn by_access<S: Subject>(away: &Homed<S::Of>, argument: u64) -> impl FnMut() -> Outcome<()> {
    move || {
        black_box(away.perform::<S::Run>(black_box(argument))?);
        Ok(())
    }
}

fn by_urgent<S: Subject>(away: &Homed<S::Of>, argument: u64) -> impl FnMut() -> Outcome<()> {
    move || {
        black_box(away.urgent::<S::Run>(black_box(argument))?);
        Ok(())
    }
}

/// Measures the home alone.
fn alone<S: Subject>(
    task: &Task,
    hot: Hot,
    subject: &S,
    memory: &Bare,
    bare: impl Fn(&Data) -> u64 + Copy,
) -> Outcome<Vec<Finding>> {
    let home = create(task, "alone", subject)?;
    let clock = Clock::in_order();
    let (case, time) = (hot.alone(), task.time);
    let local = batches(&clock, time, by_access::<S>(&home, subject.argument()))?;
    let spin = batches(&clock, time, || {
        black_box(memory.with_spin(bare));
        Ok(())
    })?;
    let mutex = batches(&clock, time, || {
        black_box(memory.with_mutex(bare));
        Ok(())
    })?;
    Ok([(way::LOCAL, local), (way::SPIN, spin), (way::MUTEX, mutex)]
        .map(|(way, found)| Finding::times(&case, way, found))
        .into())
}

/// Runs a home without work. Returns the time that the callers had.
fn sleep(gate: &Gate, window: Duration, callers: usize) -> Outcome<Duration> {
    let until = |arrived: u64| {
        while gate.said() < arrived {
            gate.check()?;
            thread::sleep(Duration::from_millis(1));
        }
        Outcome::Ok(())
    };
    gate.open(READY);
    until(callers as u64)?;
    let begun = Instant::now();
    gate.open(GO);
    thread::sleep(window);
    gate.open(STOP);
    let spent = begun.elapsed();
    until(2 * callers as u64)?;
    Ok(spent)
}

/// Runs a home that serves. Returns the time that the callers had.
fn attend(
    gate: &Gate,
    window: Duration,
    callers: usize,
    mut serve: impl FnMut(),
) -> Outcome<Duration> {
    let mut while_it = |on: &mut dyn FnMut() -> bool| {
        while on() {
            (0..64).for_each(|_| serve());
            gate.check()?;
        }
        Outcome::Ok(())
    };
    gate.open(READY);
    while_it(&mut || gate.said() < callers as u64)?;
    let begun = Instant::now();
    gate.open(GO);
    while_it(&mut || begun.elapsed() < window)?;
    gate.open(STOP);
    let spent = begun.elapsed();
    while_it(&mut || gate.said() < 2 * callers as u64)?;
    Ok(spent)
}

/// Runs one caller. Returns the number of its operations.
fn drive(gate: &Gate, mut run: impl FnMut() -> Outcome<()>) -> Outcome<u64> {
    run()?;
    gate.arrive();
    gate.wait(GO)?;
    let mut count = 0;
    // At least once, in case others have all processors for the whole time.
    loop {
        for _ in 0..ROUND {
            run()?;
        }
        count += ROUND;
        if gate.turn() >= STOP {
            break;
        }
    }
    gate.arrive();
    Ok(count)
}
