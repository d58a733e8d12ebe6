//! The loss of a home that computes, for each operation of a caller (Psyche, P9 and P13).
//!
//! The home computes for windows of half a millisecond, with a safe point each microsecond, or
//! without safe points and interrupted by signals. In quiet windows the caller only polls a line.
//! In the others it runs operations by one method, back to back or after pauses. The home's work
//! that is missing compared with the quiet windows is the time that the operations took from it.

use super::objects::{EnqueueDequeue, FindLast, Ordinary, Subject};
use super::ways::{batches, compute, create, name, on_a_processor, operations};
use std::hint::black_box;
use std::time::{Duration, Instant};
use upcall::home::{Homed, Operations, Promise};
use upcall_bench::child::Outcome;
use upcall_bench::homed::case::{Op, SLOWED, slowdown, slowdown_caller, slowdown_quiet, way};
use upcall_bench::homed::child::{Finding, Task};
use upcall_bench::lab::{Gate, Lab, OVER};
use upcall_bench::stats::{Clock, Summary};

/// Length of a window.
const WINDOW: Duration = Duration::from_micros(500);

/// Pause between two operations, if there is one. It is long enough that a home that was just asked
/// gives up polling for more.
const PAUSE: Duration = Duration::from_micros(50);
const NO_PAUSE: Duration = Duration::ZERO;

/// Minimum number of windows of each kind, and the maximum time of all windows, including other
/// programs' use of the processors.
const LEAST: u64 = 4;
const LONGEST: Duration = Duration::from_secs(20);

/// Turns: the object exists; the caller has found it; and then three for each window: it begins, it
/// ends, and the caller has stored the number of operations.
const READY: u64 = 1;
const FOUND: u64 = 2;
const FIRST: u64 = 3;
const EACH: u64 = 3;

pub fn measure(lab: &mut Lab<Task>) -> Outcome<Vec<Finding>> {
    let mut all = Vec::new();
    for op in SLOWED {
        all.extend(match op {
            Op::FindLast(length) => of(lab, op, &FindLast(length))?,
            _ => of(lab, op, &EnqueueDequeue)?,
        });
    }
    Ok(all)
}

fn of<S: Subject>(lab: &mut Lab<Task>, op: Op, subject: &S) -> Outcome<Vec<Finding>> {
    let task = lab.task;
    let argument = subject.argument();
    let object = |kind: &str| format!("{}-{kind}", op.name());

    let home = |gate: &Gate| {
        let steps = batches(&Clock::in_order(), task.time, || {
            compute();
            Ok(())
        })?;
        let home = create(&task, &object("polls"), subject)?;
        let serving = home.serve(operations::<S>())?;
        let mut found = computes(gate, &task, 3, || _ = serving.poll())?;
        found.push(steps);
        Ok(found)
    };
    let caller = |gate: &Gate| {
        gate.wait(READY)?;
        let away = Homed::<S::Of>::find(&name(&task, &object("polls")))?;
        asks(gate, [NO_PAUSE, NO_PAUSE, PAUSE], |kind| {
            match kind {
                0 => _ = black_box(away.perform::<S::Run>(argument)?),
                _ => _ = black_box(away.urgent::<S::Run>(argument)?),
            }
            Ok(())
        })
    };
    let ways = [way::ACCESS, way::URGENT_COMPUTING, way::URGENT_COMPUTING_PAUSED];
    let mut all = told(op, &ways, way::URGENT_COMPUTING, lab.both(home, caller)?);

    let home = |gate: &Gate| {
        let home = create(&task, &object("signals"), subject)?;
        let serving = home.serve(Operations::new().on_interrupt::<S::Run>())?;
        serving.interruptible(promise(), || computes(gate, &task, 2, || ()))?
    };
    let caller = |gate: &Gate| {
        gate.wait(READY)?;
        let away = Homed::<S::Of>::find(&name(&task, &object("signals")))?;
        asks(gate, [NO_PAUSE, PAUSE], |_| {
            black_box(away.urgent::<S::Run>(argument)?);
            Ok(())
        })
    };
    let ways = [way::URGENT_SIGNAL, way::URGENT_SIGNAL_PAUSED];
    all.extend(told(op, &ways, way::URGENT_SIGNAL, lab.both(home, caller)?));

    let home = |gate: &Gate| {
        on_a_processor(task.cpus[0], || {
            let home = create(&task, &object("virtual"), subject)?;
            let _serving = home.serve(operations::<S>())?;
            computes(gate, &task, 1, upcall::thread::safe_point)
        })
    };
    let caller = |gate: &Gate| {
        gate.wait(READY)?;
        let away = Homed::<S::Of>::find(&name(&task, &object("virtual")))?;
        asks(gate, [NO_PAUSE], |_| {
            black_box(away.invoke::<Ordinary<S::Run>>(argument)?);
            Ok(())
        })
    };
    all.extend(told(op, &[way::INVOKE], way::INVOKE, lab.both(home, caller)?));
    Ok(all)
}

#[allow(unsafe_code)]
fn promise() -> Promise {
    // SAFETY: the operations of `SLOWED` change a queue of numbers, or read a list of them, in
    // objects, by arguments and replies without memory of their own.
    unsafe { Promise::given() }
}

/// Makes the records of both sides' findings, and of the home's step in quiet windows, with the
/// system name `quiet`.
fn told(
    op: Op,
    ways: &[&str],
    quiet: &str,
    found: Option<(Vec<Summary>, Vec<Summary>)>,
) -> Vec<Finding> {
    let Some((home, caller)) = found else { return Vec::new() };
    let of = |case: String, ways: &[&str], found: &[Summary]| {
        ways.iter()
            .zip(found)
            .map(|(way, found)| Finding::times(&case, way, *found))
            .collect::<Vec<_>>()
    };
    let quiet = of(slowdown_quiet(op), &[quiet, way::BARE], &home[ways.len()..]);
    [of(slowdown(op), ways, &home), of(slowdown_caller(op), ways, &caller), quiet].concat()
}

/// Runs the home. Returns the ns lost for an operation of each kind, and last the ns of a step in
/// quiet windows.
fn computes(
    gate: &Gate,
    task: &Task,
    kinds: usize,
    mut serve: impl FnMut(),
) -> Outcome<Vec<Summary>> {
    let serve_until = |turn: u64, serve: &mut dyn FnMut()| {
        while gate.turn() != turn {
            serve();
            gate.check()?;
        }
        Outcome::Ok(())
    };
    gate.open(READY);
    serve_until(FOUND, &mut serve)?;
    let windows = (task.time * 4).div_duration_f64(WINDOW) as u64 / (2 * kinds as u64);
    // For each window: its duration, the number of steps, and the number of operations.
    let mut found: Vec<Vec<(f64, f64, f64)>> = vec![Vec::new(); 1 + kinds];
    let (started, least) = (Instant::now(), windows.max(LEAST));
    let enough =
        |found: &[Vec<(f64, f64, f64)>]| found.iter().all(|windows| windows.len() as u64 >= least);
    for at in 0.. {
        if at % (2 * kinds) == 0 && enough(&found) {
            break;
        }
        if started.elapsed() > LONGEST {
            return Err("the caller ran no operations in most windows".into());
        }
        // There is a quiet window between two windows with operations.
        let kind = if at % 2 == 0 { 0 } else { 1 + at / 2 % kinds };
        let turn = FIRST + EACH * at as u64;
        gate.open(turn);
        let (begun, mut done) = (Instant::now(), 0.0);
        while begun.elapsed() < WINDOW {
            for _ in 0..8 {
                compute();
                serve();
            }
            done += 8.0;
            // Otherwise the caller would rarely run in a window.
            if task.cpus[0] == task.cpus[1] {
                std::thread::yield_now();
            }
        }
        let spent = begun.elapsed().as_nanos() as f64;
        gate.open(turn + 1);
        serve_until(turn + 2, &mut serve)?;
        // A caller that other programs kept from its processor has run no operations.
        let count = gate.said();
        if kind == 0 || count > 0 {
            found[kind].push((spent, done, count as f64));
        }
    }
    gate.open(OVER);
    let steps =
        Summary::of_nanoseconds(found[0].iter().map(|(spent, done, _)| spent / done).collect());
    let lost = |windows: &Vec<(f64, f64, f64)>| {
        Summary::of_nanoseconds(
            windows
                .iter()
                .map(|(spent, done, count)| (spent - done * steps.p50_ns) / count)
                .collect(),
        )
    };
    Ok(found[1..].iter().map(lost).chain([steps]).collect())
}

/// Runs the caller. Returns the ns of an operation of each kind, without the pause before it.
fn asks<const KINDS: usize>(
    gate: &Gate,
    pauses: [Duration; KINDS],
    mut run: impl FnMut(usize) -> Outcome<()>,
) -> Outcome<Vec<Summary>> {
    let mut found = vec![Vec::new(); KINDS];
    gate.open(FOUND);
    for at in 0.. {
        let turn = FIRST + EACH * at as u64;
        if gate.wait(turn)? == OVER {
            break;
        }
        let (begun, mut paused, mut count) = (Instant::now(), Duration::ZERO, 0_u64);
        let kind = if at % 2 == 0 { None } else { Some(at / 2 % KINDS) };
        while gate.turn() == turn {
            let Some(kind) = kind else {
                std::hint::spin_loop();
                continue;
            };
            if pauses[kind] > NO_PAUSE {
                paused += pause(pauses[kind]);
                if gate.turn() != turn {
                    break;
                }
            }
            run(kind)?;
            count += 1;
        }
        if let Some(kind) = kind.filter(|_| count > 0) {
            found[kind].push((begun.elapsed() - paused).as_nanos() as f64 / count as f64);
        }
        gate.say(count);
        gate.open(turn + 2);
    }
    if found.iter().any(Vec::is_empty) {
        return Err("no operation in any window".into());
    }
    Ok(found.into_iter().map(Summary::of_nanoseconds).collect())
}

/// Spins for `time`, and returns the time that has passed.
fn pause(time: Duration) -> Duration {
    let begun = Instant::now();
    loop {
        let spent = begun.elapsed();
        if spent >= time {
            return spent;
        }
        std::hint::spin_loop();
    }
}
