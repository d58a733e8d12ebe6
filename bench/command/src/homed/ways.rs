//! One operation by every method, and its two sides: the caller, and the home, which serves
//! requests and, where required, touches the object between two operations.

use super::objects::{Ordinary, Subject};
use std::cell::Cell;
use std::hint::black_box;
use std::time::{Duration, Instant};
use upcall::Pacing;
use upcall::home::{Homed, Operation, Operations, Procedure, Queue};
use upcall_bench::child::Outcome;
use upcall_bench::homed::case::{Op, way};
use upcall_bench::homed::child::{Finding, Task};
use upcall_bench::lab::{Gate, Lab, OVER};
use upcall_bench::stats::{Clock, Summary};

/// Number of operations of a batch, for operations that are too short to be timed alone.
const BATCH: u32 = 64;

/// Minimum number of samples, and initial capacity for them.
const LEAST: usize = 20;
const MANY: usize = 1 << 14;

/// The first turn: the object exists. In the following odd turns the home touches it.
const READY: u64 = 2;

/// Number of polls after which the home yields: the other side may need its processor.
const LOOKS: u32 = 1 << 16;

/// Returns the name of an object.
pub fn name(task: &Task, what: &str) -> String {
    format!("bench-homed-{what}-{}", task.group)
}

/// Makes an object for an operation.
pub fn create<S: Subject>(task: &Task, what: &str, subject: &S) -> Outcome<Homed<S::Of>> {
    Ok(Homed::create(&name(task, what)).with(|object| subject.fill(object))?)
}

/// Serves requests and touches the object until the last turn.
pub fn attend(
    gate: &Gate,
    mut serve: impl FnMut(),
    mut touch: impl FnMut() -> Outcome<()>,
) -> Outcome<()> {
    gate.open(READY);
    let mut looks = 0_u32;
    loop {
        serve();
        match gate.turn() {
            OVER => return Ok(()),
            turn if turn % 2 == 1 => {
                touch()?;
                gate.open(turn + 1);
            }
            _ => gate.check()?,
        }
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(LOOKS) {
            std::thread::yield_now();
        }
    }
}

/// Computes for about a microsecond.
pub fn compute() {
    const STEPS: u64 = 1000;
    black_box((0..STEPS).fold(1_u64, |state, _| {
        black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1))
    }));
}

/// Runs `body` on a virtual processor that is pinned to processor `cpu`.
pub fn on_a_processor<T>(cpu: usize, body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    upcall::thread::processors(1, Pacing::Poll)?.pin([cpu]).run(body)?
}

/// The side that calls.
pub struct Caller<'a> {
    gate: &'a Gate,
    clock: Clock,
    time: Duration,
    turn: Cell<u64>,
}

impl<'a> Caller<'a> {
    /// Creates a caller when the object exists.
    pub fn new(gate: &'a Gate, task: &Task) -> Outcome<Caller<'a>> {
        let clock = Clock::in_order();
        Ok(Caller { turn: Cell::new(gate.wait(READY)?), gate, clock, time: task.time })
    }

    /// Creates a caller within the home, which touches nothing.
    pub fn alone(gate: &'a Gate, task: &Task) -> Caller<'a> {
        Caller { gate, clock: Clock::in_order(), time: task.time, turn: Cell::new(0) }
    }

    /// Makes the home touch the object.
    fn touch(&self) -> Outcome<()> {
        let turn = self.turn.get() + 2;
        self.turn.set(turn);
        self.gate.open(turn - 1);
        self.gate.wait(turn).map(drop)
    }

    /// Times single operations, each after a touch if `touched` is set.
    pub fn each(&self, touched: bool, mut run: impl FnMut() -> Outcome<()>) -> Outcome<Summary> {
        self.inside(touched, || {
            let before = self.clock.read();
            run()?;
            Ok(self.clock.read().wrapping_sub(before))
        })
    }

    /// Like [`each`](Self::each), for an operation that returns its own number of ticks.
    fn inside(&self, touched: bool, mut run: impl FnMut() -> Outcome<u64>) -> Outcome<Summary> {
        let mut samples = Vec::with_capacity(MANY);
        let begun = Instant::now();
        while samples.len() < LEAST || begun.elapsed() < self.time {
            if touched {
                self.touch()?;
            }
            samples.push(self.clock.ns(run()?));
        }
        Ok(summary(samples))
    }

    /// Begins the last turn.
    pub fn end(&self) {
        self.gate.open(OVER);
    }
}

/// Times batches of one operation.
pub fn batches(
    clock: &Clock,
    time: Duration,
    mut run: impl FnMut() -> Outcome<()>,
) -> Outcome<Summary> {
    let mut samples = Vec::with_capacity(MANY);
    let begun = Instant::now();
    while samples.len() < LEAST || begun.elapsed() < time {
        let before = clock.read();
        for _ in 0..BATCH {
            run()?;
        }
        samples.push(clock.ns(clock.read().wrapping_sub(before)) / f64::from(BATCH));
    }
    Ok(summary(samples))
}

/// Summarises the samples without the first tenth, which warms up.
fn summary(mut samples: Vec<f64>) -> Summary {
    let warm_up = samples.len() / 10;
    samples.drain(..warm_up);
    Summary::of_nanoseconds(samples)
}

/// Returns the operations of a subject, as its home serves them.
pub fn operations<S: Subject>() -> Operations<S::Of> {
    Operations::new().operation::<S::Run>().procedure::<Ordinary<S::Run>>()
}

/// Measures at home: with the lock, while holding it, and on Rust's own types.
fn at_home<S: Subject>(
    task: &Task,
    case: &str,
    subject: &S,
    home: &Homed<S::Of>,
) -> Outcome<Vec<Finding>> {
    let (clock, time, argument) = (Clock::in_order(), task.time, subject.argument());
    let local = batches(&clock, time, || {
        black_box(home.perform::<S::Run>(black_box(argument))?);
        Ok(())
    })?;
    let unlocked = home.access(|object| {
        Ok(batches(&clock, time, || {
            black_box(S::Run::run(object, black_box(argument))?);
            Ok(())
        }))
    })??;
    let mut run = subject.bare();
    let bare = batches(&clock, time, || {
        black_box(run());
        Ok(())
    })?;
    let told = [(way::LOCAL, local), (way::LOCAL_UNLOCKED, unlocked), (way::BARE, bare)];
    Ok(told.map(|(way, found)| Finding::times(case, way, found)).into())
}

/// Measures remote access: with the lock, while holding it, by reads, and on a copy.
fn by_access<S: Subject>(
    caller: &Caller<'_>,
    op: Op,
    subject: &S,
    away: &Homed<S::Of>,
) -> Outcome<Vec<Finding>> {
    let (clock, time, argument) = (&caller.clock, caller.time, subject.argument());
    let perform = || {
        black_box(away.perform::<S::Run>(black_box(argument))?);
        Ok(())
    };
    let look = || {
        black_box(away.read(|object| S::Run::run(object, black_box(argument)))?);
        Ok(())
    };
    let copy = || {
        black_box(away.bulk(|object| S::Run::run(object, black_box(argument)))?);
        Ok(())
    };
    let (plain, dirty) = (op.name(), op.dirty());
    let unlocked = away.access(|object| {
        Ok(batches(clock, time, || {
            black_box(S::Run::run(object, black_box(argument))?);
            Ok(())
        }))
    })??;
    let unlocked_dirty = caller.inside(true, || {
        Ok(away.access(|object| {
            let before = clock.read();
            black_box(S::Run::run(object, black_box(argument))?);
            Ok(clock.read().wrapping_sub(before))
        })?)
    })?;
    let mut found = vec![
        Finding::times(&plain, way::ACCESS, batches(clock, time, perform)?),
        Finding::times(&plain, way::ACCESS_UNLOCKED, unlocked),
        Finding::times(&dirty, way::ACCESS, caller.each(true, perform)?),
        Finding::times(&dirty, way::ACCESS_UNLOCKED, unlocked_dirty),
    ];
    if S::Run::LOOKS {
        found.push(Finding::times(&plain, way::READ, batches(clock, time, look)?));
        found.push(Finding::times(&dirty, way::READ, caller.each(true, look)?));
    }
    found.push(Finding::times(&plain, way::BULK, batches(clock, time, copy)?));
    found.push(Finding::times(&dirty, way::BULK, caller.each(true, copy)?));
    Ok(found)
}

/// Measures the method that Upcall finds to be the cheapest. Each figure uses a new handle, which
/// has not learned anything yet.
fn by_itself<S: Subject>(
    caller: &Caller<'_>,
    op: Op,
    subject: &S,
    away: &Homed<S::Of>,
) -> Outcome<Vec<Finding>> {
    let argument = subject.argument();
    let auto = |own: &Homed<S::Of>| {
        black_box(own.auto::<S::Run>(black_box(argument))?);
        Outcome::Ok(())
    };
    let own = [away.try_clone()?, away.try_clone()?];
    let plain = batches(&caller.clock, caller.time, || auto(&own[0]))?;
    let dirty = caller.each(true, || auto(&own[1]))?;
    Ok(vec![
        Finding::times(&op.name(), way::AUTO, plain),
        Finding::times(&op.dirty(), way::AUTO, dirty),
    ])
}

/// Measures an operation without touches and with them.
fn both(
    caller: &Caller<'_>,
    op: Op,
    way: &str,
    mut run: impl FnMut() -> Outcome<()>,
) -> Outcome<Vec<Finding>> {
    let plain = Finding::times(&op.name(), way, caller.each(false, &mut run)?);
    Ok(vec![plain, Finding::times(&op.dirty(), way, caller.each(true, &mut run)?)])
}

/// Returns the findings of both sides, in the home.
pub fn found(both: Option<(Vec<Finding>, Vec<Finding>)>) -> Vec<Finding> {
    both.map_or(Vec::new(), |(home, caller)| [home, caller].concat())
}

/// Measures a short operation.
#[expect(clippy::too_many_lines, reason = "both sides of a measurement stand together")]
pub fn short<S: Subject>(lab: &mut Lab<Task>, op: Op, subject: &S) -> Outcome<Vec<Finding>> {
    let task = lab.task;
    let touch = |home: &Homed<S::Of>| Ok(home.access(|object| subject.touch(object))?);
    let find = |what: &str| {
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Homed::<S::Of>::find(&name(&task, what))?)
    };
    let urgent = |away: &Homed<S::Of>| {
        black_box(away.urgent::<S::Run>(black_box(subject.argument()))?);
        Outcome::Ok(())
    };
    let invoke = |away: &Homed<S::Of>| {
        black_box(away.invoke::<Ordinary<S::Run>>(black_box(subject.argument()))?);
        Outcome::Ok(())
    };

    // A home that polls.
    let polls = |gate: &Gate| {
        let home = create(&task, "polls", subject)?;
        let found = at_home(&task, &op.name(), subject, &home)?;
        let serving = home.serve(operations::<S>())?;
        attend(gate, || _ = serving.poll(), || touch(&home))?;
        Ok(found)
    };
    let asks = |gate: &Gate| {
        let caller = Caller::new(gate, &task)?;
        let away = find("polls")?;
        let mut found = by_access(&caller, op, subject, &away)?;
        found.extend(both(&caller, op, way::URGENT, || urgent(&away))?);
        found.extend(by_itself(&caller, op, subject, &away)?);
        caller.end();
        Ok(found)
    };
    let mut all = found(lab.both(polls, asks)?);

    // A home that computes, and polls each microsecond.
    let computes = |gate: &Gate| {
        let home = create(&task, "computes", subject)?;
        let serving = home.serve(operations::<S>())?;
        let serve = || {
            compute();
            serving.poll();
        };
        attend(gate, serve, || touch(&home)).map(|()| Vec::new())
    };
    let asks = |gate: &Gate| {
        let caller = Caller::new(gate, &task)?;
        let away = find("computes")?;
        let found = both(&caller, op, way::URGENT_COMPUTING, || urgent(&away))?;
        caller.end();
        Ok(found)
    };
    all.extend(found(lab.both(computes, asks)?));

    // A home on a virtual processor.
    let asks = |gate: &Gate| {
        let caller = Caller::new(gate, &task)?;
        let away = find("virtual")?;
        let found = both(&caller, op, way::INVOKE, || invoke(&away))?;
        caller.end();
        Ok(found)
    };
    let home = |gate: &Gate| {
        on_a_processor(task.cpus[0], || {
            let home = create(&task, "virtual", subject)?;
            let _serving = home.serve(operations::<S>())?;
            attend(gate, upcall::thread::yield_now, || touch(&home)).map(|()| Vec::new())
        })
    };
    all.extend(found(lab.both(home, asks)?));

    // A home that sleeps when idle.
    let home = |gate: &Gate| {
        let home = create(&task, "background", subject)?;
        let _served = home.serve_in_background(operations::<S>())?;
        gate.open(READY);
        gate.rest(OVER).map(|_| Vec::new())
    };
    let asks = |gate: &Gate| {
        let caller = Caller::new(gate, &task)?;
        let away = find("background")?;
        let urgent = caller.each(false, || urgent(&away))?;
        let invoke = caller.each(false, || invoke(&away))?;
        caller.end();
        let told = [(way::URGENT_BACKGROUND, urgent), (way::INVOKE_BACKGROUND, invoke)];
        Ok(told.map(|(way, found)| Finding::times(&op.name(), way, found)).into())
    };
    all.extend(found(lab.both(home, asks)?));
    Ok(all)
}

/// Measures an operation that may block.
pub fn long<P>(lab: &mut Lab<Task>, op: Op) -> Outcome<Vec<Finding>>
where
    P: for<'a> Procedure<Of = Queue<u64>, Args<'a> = u64>,
{
    use super::objects::EnqueueDequeue;
    let task = lab.task;
    let touch = |home: &Homed<Queue<u64>>| Ok(home.access(|queue| EnqueueDequeue.touch(queue))?);
    let run = |on: &Homed<Queue<u64>>| Outcome::Ok(P::run(on, 7).map(drop)?);
    let invoke = |on: &Homed<Queue<u64>>| Outcome::Ok(on.invoke::<P>(7).map(drop)?);
    let operations = || Operations::<<EnqueueDequeue as Subject>::Of>::new().procedure::<P>();

    let home = |gate: &Gate| {
        on_a_processor(task.cpus[0], || {
            let home = create(&task, "long", &EnqueueDequeue)?;
            let alone = Caller::alone(gate, &task);
            let found =
                vec![Finding::times(&op.name(), way::LOCAL, alone.each(false, || run(&home))?)];
            let _serving = home.serve(operations())?;
            attend(gate, upcall::thread::yield_now, || touch(&home)).map(|()| found)
        })
    };
    let asks = |gate: &Gate| {
        let caller = Caller::new(gate, &task)?;
        let away = Homed::find(&name(&task, "long"))?;
        let mut found = both(&caller, op, way::ACCESS, || run(&away))?;
        found.extend(both(&caller, op, way::INVOKE, || invoke(&away))?);
        caller.end();
        Ok(found)
    };
    let mut all = found(lab.both(home, asks)?);

    let home = |gate: &Gate| {
        let home = create(&task, "sleeps", &EnqueueDequeue)?;
        let _served = home.serve_in_background(operations())?;
        gate.open(READY);
        gate.rest(OVER).map(|_| Vec::new())
    };
    let asks = |gate: &Gate| {
        let caller = Caller::new(gate, &task)?;
        let away = Homed::find(&name(&task, "sleeps"))?;
        let found = caller.each(false, || invoke(&away))?;
        caller.end();
        Ok(vec![Finding::times(&op.name(), way::INVOKE_BACKGROUND, found)])
    };
    all.extend(found(lab.both(home, asks)?));
    Ok(all)
}
