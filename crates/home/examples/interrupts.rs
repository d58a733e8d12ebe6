//! Measures the round trip of an urgent invocation: at a home that polls, and at a home that
//! computes and is interrupted, with and without pauses between invocations, beside the round trip
//! of a cache line. Also measures the cost of keeping interrupts off:
//! `cargo run --release -p upcall-home --example interrupts`.

use std::hint::black_box;
use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::thread;
use std::time::{Duration, Instant};
use upcall_home::{DataError, Homed, Operation, Operations, Place, Promise};

const TURNS: u64 = 15;
const EACH: u64 = 5000;
const ROUNDS: u64 = 1_000_000;

/// Increments the number.
struct Add;

impl Operation for Add {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "add";

    fn run(number: Place<'_, u64>, more: u64) -> Result<u64, DataError> {
        number.update(|number| number + more)
    }
}

/// Pause between two invocations, and the number of invocations with pauses.
const PAUSE: Duration = Duration::from_micros(50);
const SPARSE: u64 = 500;

fn each(rounds: u64, mut operation: impl FnMut(u64)) -> f64 {
    let begun = Instant::now();
    (0..rounds).for_each(&mut operation);
    begun.elapsed().as_nanos() as f64 / rounds as f64
}

/// The median, with the minimum and the maximum.
fn told(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    format!("{:.1} ({:.1} to {:.1})", times[times.len() / 2], times[0], times[times.len() - 1])
}

/// Round-trip time of a cache line between two threads that spin.
fn line() -> f64 {
    let word = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..EACH {
                while word.load(Acquire) != 2 * turn + 1 {
                    std::hint::spin_loop();
                }
                word.store(2 * turn + 2, Release);
            }
        });
        each(EACH, |turn| {
            word.store(2 * turn + 1, Release);
            while word.load(Acquire) != 2 * turn + 2 {
                std::hint::spin_loop();
            }
        })
    })
}

/// Computes until `over` returns `true`. Returns the number of steps.
fn compute(over: impl Fn() -> bool) -> u64 {
    let (mut sum, mut steps) = (0_u64, 0);
    while !over() {
        sum = (0..64).fold(sum, |sum, at| black_box(sum.wrapping_mul(3) + at));
        steps += 1;
    }
    black_box(sum);
    steps
}

/// Time of a step, in ns.
fn step() -> f64 {
    let (begun, looked) = (Instant::now(), AtomicU64::new(0));
    // One reading of the clock for each hundred steps costs nothing.
    let over = || looked.fetch_add(1, Relaxed) % 100 == 99 && begun.elapsed().as_millis() >= 10;
    let steps = compute(over);
    begun.elapsed().as_nanos() as f64 / steps as f64
}

/// The median time of operations after pauses.
fn sparsely(operation: impl Fn(u64)) -> f64 {
    let mut times: Vec<f64> = (0..SPARSE)
        .map(|turn| {
            let begun = Instant::now();
            while begun.elapsed() < PAUSE {
                std::hint::spin_loop();
            }
            let begun = Instant::now();
            operation(turn);
            begun.elapsed().as_nanos() as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Invokes a home that polls or computes. Returns the time of each invocation, and how much of the
/// home's computing time each invocation takes, in ns.
fn asked(name: &str, computes: bool, pauses: bool) -> Result<[f64; 2], Box<dyn std::error::Error>> {
    let rounds = if pauses { SPARSE } else { EACH };
    let home = Homed::<u64>::create(name).with(|_| Ok(()))?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let serving = home.serve(Operations::new().on_interrupt::<Add>())?;
        let away = Homed::<u64>::find(name)?;
        let asks = scope.spawn(|| {
            let away = away;
            let add = |_| _ = black_box(away.urgent::<Add>(1).unwrap());
            (0..rounds / 10).for_each(add);
            let taken = if pauses { sparsely(add) } else { each(rounds, add) };
            over.store(true, Release);
            taken
        });
        let mut lost = 0.0;
        if computes {
            let (alone, begun) = (step(), Instant::now());
            let body = || compute(|| over.load(Relaxed));
            // SAFETY: the operation that is registered for interrupts adds to a number.
            let steps = serving.interruptible(unsafe { Promise::given() }, body)?;
            lost = (begun.elapsed().as_nanos() as f64 - alone * steps as f64)
                / (rounds + rounds / 10) as f64;
        } else {
            while !over.load(Relaxed) {
                serving.poll();
            }
        }
        let taken = asks.join().map_err(|_| "the caller has panicked")?;
        Ok([taken, lost])
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = format!("interrupts-{}", std::process::id());
    let [mut lines, mut polled, mut signalled, mut lost, mut sparse, mut sparsely_lost] =
        [const { Vec::new() }; 6];
    for _ in 0..TURNS {
        lines.push(line());
        polled.push(asked(&name, false, false)?[0] / 1000.0);
        for (pauses, taken, lost) in
            [(false, &mut signalled, &mut lost), (true, &mut sparse, &mut sparsely_lost)]
        {
            let [each, own] = asked(&name, true, pauses)?;
            taken.push(each / 1000.0);
            lost.push(own / 1000.0);
        }
    }
    println!("round trip of a cache line, ns: {}", told(lines));
    println!("round trip of an urgent addition, µs: the home polls: {}", told(polled));
    println!(
        "the home is interrupted, without pauses: {}, each takes {} of its computing time",
        told(signalled),
        told(lost)
    );
    println!(
        "the home is interrupted, after pauses: {}, each takes {} of its computing time",
        told(sparse),
        told(sparsely_lost)
    );
    let home = Homed::<u64>::create(&name).with(|_| Ok(()))?;
    let serving = home.serve(Operations::new().on_interrupt::<Add>())?;
    let measure = || {
        let (mut masks, mut operations) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            masks.push(each(ROUNDS, |_| drop(black_box(serving.mask()))));
            operations.push(each(ROUNDS, |_| _ = black_box(home.perform::<Add>(1).unwrap())));
        }
        (told(masks), told(operations))
    };
    let (mask, operation) = measure();
    println!("a mask, ns: {mask}; an addition at home: {operation}");
    // SAFETY: as above.
    let (mask, operation) = serving.interruptible(unsafe { Promise::given() }, measure)?;
    println!("the same while interrupts may arrive: {mask}; {operation}");
    Ok(())
}
